//! Products with compressed weights, of any number of rows.
//!
//! Weights lie so that products come out as rows of outputs, and inputs are taken as they are. The bits are those of the
//! products with the weight as a checkpoint has it: a row's sums are added up in the same order.

use std::cell::RefCell;

use paceline_tiles::{INPUTS, Lines, SIDE, Square, Tiles};
use pulp::bytemuck::cast_slice_mut;

use crate::linear::Section;
use crate::matrix::{OUTPUTS, multiply_with, starts};
use crate::{Compressed, Part};

/// Squares of weights that are expanded before their places are used again, if each is used once: few enough to stay in the
/// nearest cache.
const RING: usize = 8;

thread_local! {
    /// Memory for weights, used again.
    static WEIGHTS: RefCell<Vec<Square>> = const { RefCell::new(Vec::new()) };
}

/// `x @ weight.T + bias`, for parts that are compressed, whose outputs follow each other.
///
/// # Panics
/// If lengths do not fit each other, or a part is not compressed.
pub(crate) fn multiply(x: &[u16], parts: &[Part<'_>], bias: Option<&[u16]>, inputs: usize, product: &mut [u16]) {
    multiply_with(x, parts, bias, inputs, product, align, |section, squares| {
        Work { section, inputs }.multiply(squares);
    });
}

/// Copies `x [rows, inputs]` to squares: for each sixteen rows, one for each line of inputs. Rows that are not there are 0.
fn align(x: &[u16], inputs: usize, squares: &mut Vec<Square>) {
    let lines = inputs / INPUTS;
    squares.resize(x.len().div_ceil(SIDE * inputs) * lines, Square::ZERO);
    for (rows, squares) in x.chunks(SIDE * inputs).zip(squares.chunks_exact_mut(lines)) {
        for (row, x) in rows.chunks_exact(inputs).enumerate() {
            for (x, square) in x.as_chunks::<INPUTS>().0.iter().zip(&mut *squares) {
                cast_slice_mut(&mut square.0[row]).copy_from_slice(x);
            }
        }
        for row in rows.len() / inputs..SIDE {
            squares.iter_mut().for_each(|square| square.0[row] = [0; SIDE]);
        }
    }
}

/// Some outputs of every row.
struct Work<'a, 'b> {
    section: Section<'a, 'b>,
    inputs: usize,
}

impl Work<'_, '_> {
    fn multiply(mut self, squares: &[Square]) {
        let mut tiles = Tiles::new().expect("nothing is compressed where there are no such instructions");
        let compressed = self.section.part.compressed.expect("all parts are, as was asked");
        let outputs = self.section.outputs(self.inputs);
        let mut weights = WEIGHTS.take();
        for first in (0..outputs).step_by(OUTPUTS) {
            let block = (self.section.first + first) / OUTPUTS;
            // What follows is fetched while these are expanded.
            let next = if first + OUTPUTS < outputs { block + 1 } else { block };
            self.outputs(&mut tiles, compressed, [block, next], starts(first, outputs), squares, &mut weights);
        }
        WEIGHTS.set(weights);
    }

    /// The 32 outputs of a block, of all rows.
    fn outputs(
        &mut self,
        tiles: &mut Tiles,
        compressed: &Compressed,
        [block, next]: [usize; 2],
        starts: [usize; 2],
        squares: &[Square],
        expanded: &mut Vec<Square>,
    ) {
        let (weights, next) = (compressed.rows(block), compressed.tiles_of(next));
        let biases = starts.map(|start| self.section.bias_of(start));
        let lines = self.inputs / INPUTS;
        expanded.resize(if squares.len() > 2 * lines { 2 * lines } else { RING }, Square::ZERO);
        let mut sums = [Square::ZERO; 4];
        let mut rounded = Lines::ZERO;
        for (index, pair) in squares.chunks(2 * lines).enumerate() {
            let row = index * 2 * SIDE;
            let (x, y) = pair.split_at(lines);
            match (index, y.is_empty()) {
                (0, true) => tiles.multiply_compressed(weights, next, [x], expanded, &mut sums),
                (0, false) => tiles.multiply_compressed(weights, next, [x, y], expanded, &mut sums),
                (_, true) => tiles.multiply_expanded(expanded, [x], &mut sums),
                (_, false) => tiles.multiply_expanded(expanded, [x, y], &mut sums),
            }
            for (row, sums) in [row, row + SIDE].into_iter().zip(sums.as_chunks::<2>().0) {
                let count = self.section.product.len().saturating_sub(row).min(SIDE);
                if count > 0 {
                    tiles.round_rows(sums.each_ref(), count, &biases, &mut rounded);
                    self.section.write(&rounded, row, starts);
                }
            }
        }
    }
}
