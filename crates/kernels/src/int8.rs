//! Matrix products with weights of 8 bits, which halve what a product of few rows reads from memory.
//!
//! Every output has a factor of its own, and so has every row of inputs, which is quantised when it comes. Sums are
//! exact integers, so that neither instructions, nor threads, nor the rows beside it change a row's result.

mod multiply;
mod quantise;

use std::ops::Range;

use multiply::{Instructions, PANEL, Pair, STREAMS_MAX, Work};
use pulp::{Arch, Simd, WithSimd};

use crate::{Element, crew};

pub use quantise::quantise_rows;

/// Inputs of a matrix: the sum of more products of two bytes may not fit 32 bits.
const INPUTS_MAX: usize = 1 << 17;

/// Weights that no product can be made with.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Int8Error {
    /// A number that is not what the others ask for.
    #[error("{what}: expected {expected}, got {got}")]
    Differs {
        /// What is counted.
        what: &'static str,
        /// What the others ask for.
        expected: usize,
        /// What there is.
        got: usize,
    },
    /// A sum of so many products may not fit.
    #[error("inputs of an int8 matrix: expected {INPUTS_MAX} at most, got {0}")]
    TooManyInputs(usize),
}

/// Pairs of weights of 32 outputs for the same two inputs, side by side: a cache line.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
struct Line([[i8; 2]; PANEL]);

/// A matrix of int8 weights `[outputs, inputs]`, laid out for the product: panels of outputs, each a run of lines.
#[derive(Clone, Debug)]
pub struct Int8Matrix {
    inputs: usize,
    /// A factor for each output; the bias is added last.
    factors: Vec<f32>,
    bias: Option<Vec<f32>>,
    lines: Vec<Line>,
}

impl Int8Matrix {
    /// Lays out `weights [outputs, inputs]`, which are to be multiplied by a factor for each output.
    ///
    /// # Errors
    /// When lengths do not fit each other, or there are too many inputs.
    pub fn new(weights: &[i8], factors: Vec<f32>, bias: Option<Vec<f32>>) -> Result<Self, Int8Error> {
        let outputs = factors.len();
        let inputs = weights.len().checked_div(outputs).unwrap_or(0);
        if inputs > INPUTS_MAX {
            return Err(Int8Error::TooManyInputs(inputs));
        }
        require("weights", outputs * inputs, weights.len())?;
        if let Some(bias) = &bias {
            require("biases", outputs, bias.len())?;
        }
        let pairs = inputs.div_ceil(2);
        let mut lines = vec![Line([[0; 2]; PANEL]); outputs.div_ceil(PANEL) * pairs];
        for (panel, rows) in lines.chunks_exact_mut(pairs.max(1)).zip(weights.chunks((PANEL * inputs).max(1))) {
            for (output, row) in rows.chunks_exact(inputs.max(1)).enumerate() {
                let (whole, last) = row.as_chunks::<2>();
                for (line, &pair) in panel.iter_mut().zip(whole) {
                    line.0[output] = pair;
                }
                if let (Some(line), &[last]) = (panel.last_mut(), last) {
                    line.0[output] = [last, 0];
                }
            }
        }
        Ok(Self { inputs, factors, bias, lines })
    }

    /// Elements of a row that is multiplied.
    pub fn inputs(&self) -> usize {
        self.inputs
    }

    /// Elements of a row of results.
    pub fn outputs(&self) -> usize {
        self.factors.len()
    }

    /// Writes `x @ weights.T * factors + bias` to `product [rows, outputs]`, for `x [rows, inputs]`.
    ///
    /// # Panics
    /// If lengths are no multiple of the widths or do not fit each other.
    pub fn multiply<E: Element>(&self, x: &[E], product: &mut [E]) {
        self.multiply_with(Instructions::best(), x, product);
    }

    /// Writes `sums * factors * scales + bias` to `product [rows, outputs]`: what [`Self::multiply`] makes of the sums of
    /// rows that were quantised with `scales`, for sums that another product gave, as fp32.
    ///
    /// # Panics
    /// If lengths do not fit each other.
    pub fn finish<E: Element>(&self, sums: &[f32], scales: &[f32], product: &mut [E]) {
        assert_eq!(product.len(), scales.len() * self.outputs(), "elements of the product");
        assert_eq!(product.len(), sums.len(), "elements of the sums");
        if product.is_empty() {
            return;
        }
        let part = scales.len().div_ceil(crew::parts(scales.len(), sums.len()));
        let parts = scales.chunks(part).zip(sums.chunks(part * self.outputs()));
        let parts = parts.zip(product.chunks_mut(part * self.outputs()));
        crew::run(parts.map(|((scales, sums), product)| {
            move || Arch::new().dispatch(Finish { matrix: self, sums, scales, product })
        }));
    }

    fn multiply_with<E: Element>(&self, instructions: Instructions, x: &[E], product: &mut [E]) {
        let rows = product.len().checked_div(self.outputs()).unwrap_or(0);
        assert_eq!(product.len(), rows * self.outputs(), "elements of the product");
        assert_eq!(x.len(), rows * self.inputs, "elements of x");
        if rows == 0 {
            return;
        }
        let (tiles, scales) = self.quantise(instructions, x, rows);
        let panels = self.outputs().div_ceil(PANEL);
        let part = panels.div_ceil(crew::parts(panels, rows * self.lines.len() * PANEL));
        let bands = crew::bands(self.outputs(), part * PANEL);
        let parts = crew::columns(product, self.outputs(), &bands).into_iter().enumerate();
        let (tiles, scales) = (&tiles, &scales);
        crew::run(parts.map(|(index, mut rows)| {
            let own = index * part..panels.min((index + 1) * part);
            move || instructions.run(Panels { matrix: self, own, tiles, scales, rows: &mut rows })
        }));
    }

    /// Rows as bytes, in tiles of as many as are multiplied side by side, and the factor of each row.
    fn quantise<E: Element>(&self, instructions: Instructions, x: &[E], rows: usize) -> (Vec<Tile>, Vec<f32>) {
        let (mut bytes, mut scales) = (vec![0; rows * self.inputs], vec![0.0; rows]);
        quantise_rows(x, &mut bytes, &mut scales);
        let most = instructions.rows_max();
        let row_bytes = |row: usize| &bytes[row * self.inputs..(row + 1) * self.inputs];
        let tile = |first: usize| Tile::new(first..rows.min(first + most), most, self.inputs, row_bytes);
        ((0..rows).step_by(most).map(tile).collect(), scales)
    }
}

fn require(what: &'static str, expected: usize, got: usize) -> Result<(), Int8Error> {
    if expected == got { Ok(()) } else { Err(Int8Error::Differs { what, expected, got }) }
}

/// Rows that are multiplied side by side: of each pair of inputs, that of every row, as 16-bit numbers.
#[derive(Debug)]
struct Tile {
    rows: Range<usize>,
    /// Rows that are multiplied, those that fill up the tile included.
    width: usize,
    pairs: Vec<Pair>,
}

impl Tile {
    fn new<'a>(rows: Range<usize>, most: usize, inputs: usize, bytes: impl Fn(usize) -> &'a [i8]) -> Self {
        let width = multiply::WIDTHS.into_iter().find(|&width| width >= rows.len()).unwrap_or(most);
        let mut pairs = vec![[0; 2]; width * inputs.div_ceil(2)];
        for (index, row) in rows.clone().enumerate() {
            for (place, pair) in pairs[index..].iter_mut().step_by(width).zip(bytes(row).chunks(2)) {
                *place = [pair[0].into(), pair.get(1).copied().unwrap_or(0).into()];
            }
        }
        Self { rows, width, pairs }
    }
}

/// Some panels of outputs for all rows: every weight is read from memory once.
struct Panels<'a, 'b, E> {
    matrix: &'a Int8Matrix,
    own: Range<usize>,
    tiles: &'a [Tile],
    scales: &'a [f32],
    /// Of every row, the outputs of these panels.
    rows: &'a mut [&'b mut [E]],
}

impl<E: Element> Work for Panels<'_, '_, E> {
    #[inline(always)]
    fn run<M: multiply::Multiply>(mut self, multiplier: M) {
        let streams = self.tiles.first().map_or(1, |tile| multiplier.streams(tile.width));
        // Each stream has a run of panels of its own; what is left over comes one by one.
        let (begin, run) = (self.own.start, self.own.len() / streams);
        for first in begin..begin + run {
            self.multiply(multiplier, first, run, streams);
        }
        for panel in begin + streams * run..self.own.end {
            self.multiply(multiplier, panel, 0, 1);
        }
    }
}

impl<E: Element> Panels<'_, '_, E> {
    /// The outputs of `count` panels that are read side by side, each `stride` behind the one before, for all rows.
    #[inline(always)]
    fn multiply<M: multiply::Multiply>(&mut self, multiplier: M, first: usize, stride: usize, count: usize) {
        let pairs = self.matrix.inputs.div_ceil(2);
        let mut lines = [&self.matrix.lines[..0]; STREAMS_MAX];
        for (stream, lines) in lines[..count].iter_mut().enumerate() {
            *lines = &self.matrix.lines[(first + stream * stride) * pairs..][..pairs];
        }
        for tile in self.tiles {
            multiplier.tile(&lines[..count], &tile.pairs, tile.width, |stream, index, sums| {
                let panel = first + stream * stride;
                let outputs = panel * PANEL..self.matrix.factors.len().min((panel + 1) * PANEL);
                let begin = (panel - self.own.start) * PANEL;
                let factors = &self.matrix.factors[outputs.clone()];
                let bias = self.matrix.bias.as_ref().map(|bias| &bias[outputs.clone()]);
                // Rows that fill up a tile have no place.
                if let Some(row) = tile.rows.clone().nth(index) {
                    let place = &mut self.rows[row][begin..begin + outputs.len()];
                    finish(&sums.map(|sum| sum as f32), self.scales[row], factors, bias, place);
                }
            });
        }
    }
}

/// From exact sums of some outputs to the numbers they stand for.
#[inline(always)]
#[allow(clippy::needless_range_loop, reason = "a loop over four slices at once is not compiled to vectors as adapters")]
fn finish<E: Element>(sums: &[f32], scale: f32, factors: &[f32], bias: Option<&[f32]>, product: &mut [E]) {
    let count = product.len();
    let (sums, factors) = (&sums[..count], &factors[..count]);
    match bias {
        None => {
            for output in 0..count {
                product[output] = E::from_f32(sums[output] * factors[output] * scale);
            }
        }
        Some(bias) => {
            let bias = &bias[..count];
            for output in 0..count {
                product[output] = E::from_f32(sums[output] * factors[output] * scale + bias[output]);
            }
        }
    }
}

/// Rows of sums that are there already.
struct Finish<'a, E> {
    matrix: &'a Int8Matrix,
    sums: &'a [f32],
    scales: &'a [f32],
    product: &'a mut [E],
}

impl<E: Element> WithSimd for Finish<'_, E> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _simd: S) {
        let outputs = self.matrix.outputs();
        let rows = self.sums.chunks_exact(outputs).zip(self.product.chunks_exact_mut(outputs));
        for ((sums, product), &scale) in rows.zip(self.scales) {
            finish(sums, scale, &self.matrix.factors, self.matrix.bias.as_deref(), product);
        }
    }
}

#[cfg(test)]
mod tests;
