//! The running softmax of a tile of queries: scores become weights, and products with values are added up.

use std::f32::consts::LN_2;

use paceline_tiles::{INPUTS, SIDE, Square, Tiles};
use pulp::Simd;

use crate::attention::tile::largest;

/// Added and subtracted, rounds to the nearest whole number; its bits count up with that number.
const ROUNDING: f32 = 12_582_912.0;
/// The power of two that comes out as 0: its exponent, the least there is, and nothing behind the leading 1.
const EXPONENT_MIN: f32 = -127.0;
/// Minimax polynomial of 2 to the power of x on half to either side of 0, relative error below 2e-7, highest power first.
const POWER_OF_TWO: [f32; 6] = [1.330_060_7e-3, 9.669_691e-3, 5.550_558_5e-2, 2.402_228_3e-1, LN_2, 1.0];

/// Of each query: the largest score so far, the sum of weights, and the weighted sum of values, columns as woven.
#[derive(Debug, Default)]
pub(super) struct Running {
    maxima: [f32; SIDE],
    weights: [f32; SIDE],
    sums: Vec<[f32; SIDE]>,
}

/// What a block of keys adds to each query.
pub(super) struct Added {
    maxima: [f32; SIDE],
    weights: [f32; SIDE],
}

impl Running {
    /// Begins with `count` queries that have seen nothing.
    pub(super) fn begin(&mut self, count: usize, value_size: usize) {
        self.maxima = [f32::NEG_INFINITY; SIDE];
        self.weights = [0.0; SIDE];
        self.sums.clear();
        self.sums.resize(count * value_size / SIDE, [0.0; SIDE]);
    }

    /// Before any query has seen a block.
    pub(super) fn added(&self) -> Added {
        Added { maxima: self.maxima, weights: [0.0; SIDE] }
    }

    /// What earlier sums of each query are to be multiplied with, after it has seen a block.
    #[inline(always)]
    pub(super) fn correct<S: Simd>(&mut self, simd: S, added: &Added) -> [f32; SIDE] {
        let mut corrections = [0.0; SIDE];
        let places = S::as_mut_simd_f32s(&mut corrections).0;
        let (earlier, weights) = (S::as_simd_f32s(&self.maxima).0, S::as_mut_simd_f32s(&mut self.weights).0);
        let (maxima, more) = (S::as_simd_f32s(&added.maxima).0, S::as_simd_f32s(&added.weights).0);
        for at in 0..places.len() {
            // Of a query that has seen nothing yet, infinities make NaN; in this order, the second of two is taken instead.
            let exponent = simd.max_f32s(simd.sub_f32s(earlier[at], maxima[at]), simd.splat_f32s(EXPONENT_MIN));
            places[at] = power_of_two(simd, exponent);
            weights[at] = simd.mul_add_e_f32s(weights[at], places[at], more[at]);
        }
        self.maxima = added.maxima;
        corrections
    }

    /// Adds products of weights with `COLUMNS` columns of values, to each query's sums times its correction.
    #[inline(always)]
    pub(super) fn add(&mut self, products: &[Square; 4], corrections: &[f32], columns: usize, value_size: usize) {
        for (query, correction) in corrections.iter().enumerate() {
            let sums = &mut self.sums[query * (value_size / SIDE) + columns * 4..][..4];
            for (sums, products) in sums.iter_mut().zip(products) {
                for (sum, bits) in sums.iter_mut().zip(products.0[query]) {
                    *sum = *sum * correction + f32::from_bits(bits);
                }
            }
        }
    }

    /// Gives the weighted mean of the values that `query` has seen.
    #[inline(always)]
    pub(super) fn finish(&self, tiles: &Tiles, query: usize, output: &mut [u16]) {
        let vectors = output.len() / SIDE;
        tiles.narrow_woven(&self.sums[query * vectors..][..vectors], 1.0 / self.weights[query], output);
    }
}

impl Added {
    /// Scores `[query, key]` of one query, from a line of keys on, times `factor`: the exponents of two of its weights. Those of
    /// keys outside of `from .. to` become as small as they can be.
    #[inline(always)]
    pub(super) fn scale<S: Simd>(
        &mut self,
        simd: S,
        query: usize,
        (scores, first_line): (&[Square], usize),
        factor: f32,
        (from, to): (usize, usize),
        exponents: &mut [f32],
    ) {
        if from >= to {
            exponents.fill(f32::NEG_INFINITY);
            return;
        }
        let factor = simd.splat_f32s(factor);
        let scores = &scores[first_line * (INPUTS / SIDE)..];
        // Indices instead of iterators here and below: adapters over vectors are not inlined into code for wider vectors.
        for (places, square) in exponents.as_chunks_mut::<SIDE>().0.iter_mut().zip(scores) {
            let (places, bits) = (S::as_mut_simd_f32s(places).0, S::as_simd_u32s(&square.0[query]).0);
            for at in 0..bits.len() {
                places[at] = simd.mul_f32s(simd.transmute_f32s_u32s(bits[at]), factor);
            }
        }
        if from > 0 {
            exponents[..from].fill(f32::NEG_INFINITY);
        }
        if to < exponents.len() {
            exponents[to..].fill(f32::NEG_INFINITY);
        }
        self.maxima[query] = largest(simd, exponents, self.maxima[query]);
    }

    /// Exponents that were scaled become weights.
    #[inline(always)]
    pub(super) fn weigh<S: Simd>(&mut self, simd: S, query: usize, exponents: &mut [f32]) {
        // Finite, so that a query that sees nothing yet has weights of 0.
        let least = simd.splat_f32s(self.maxima[query].max(f32::MIN));
        let mut sum = simd.splat_f32s(0.0);
        for weight in S::as_mut_simd_f32s(exponents).0 {
            *weight = power_of_two(simd, simd.sub_f32s(*weight, least));
            sum = simd.add_f32s(sum, *weight);
        }
        self.weights[query] = simd.reduce_sum_f32s(sum);
    }
}

/// Two to the powers of `x`, none above 0, to about one unit in the last place; 0 for those from -127 down. NaN
/// stays NaN.
#[inline(always)]
fn power_of_two<S: Simd>(simd: S, x: S::f32s) -> S::f32s {
    // In this order, which gives the second of two if one is NaN.
    let x = simd.max_f32s(simd.splat_f32s(EXPONENT_MIN), x);
    let rounding = simd.splat_f32s(ROUNDING);
    let shifted = simd.add_f32s(x, rounding);
    let rest = simd.sub_f32s(x, simd.sub_f32s(shifted, rounding));
    let mut series = simd.splat_f32s(POWER_OF_TWO[0]);
    for coefficient in &POWER_OF_TWO[1..] {
        series = simd.mul_add_e_f32s(series, rest, simd.splat_f32s(*coefficient));
    }
    let exponent = simd.wrapping_dyn_shl_u32s(simd.transmute_u32s_f32s(shifted), simd.splat_u32s(23));
    simd.transmute_f32s_u32s(simd.add_u32s(simd.transmute_u32s_f32s(series), exponent))
}
