//! One tile of attention: the queries that share a cached head, and a chunk of its keys and values, widened to fp32.

use pulp::Simd;

use super::tiled::Workspace;
use crate::Element;
use crate::exponential::exponential;

/// Keys that are widened at a time: both halves of a tile stay in the nearest cache.
pub(super) const CHUNK: usize = 32;
/// Rows of a tile are filled up with zeros to whole vectors of every width that there is.
const ALIGNMENT: usize = 16;
/// Keys whose scores are added up side by side, and vectors of a sum that are kept in registers.
const ABREAST: usize = 4;

/// Queries, keys, values, and the running softmax of each query.
#[derive(Debug, Default)]
pub(super) struct Tile {
    key_width: usize,
    value_width: usize,
    queries: Vec<f32>,
    keys: Vec<f32>,
    values: Vec<f32>,
    scores: Vec<f32>,
    // Of each query: the largest score so far, the sum of weights, the weighted sum of values.
    maxima: Vec<f32>,
    weights: Vec<f32>,
    sums: Vec<f32>,
    /// Where there are matrix instructions.
    pub(super) workspace_of_tiles: Workspace,
}

impl Tile {
    /// Begins with `query_count` queries that have seen nothing.
    pub(super) fn begin(&mut self, query_count: usize, key_size: usize, value_size: usize) {
        let widths = (key_size.next_multiple_of(ALIGNMENT), value_size.next_multiple_of(ALIGNMENT));
        if widths != (self.key_width, self.value_width) {
            (self.key_width, self.value_width) = widths;
            self.keys = vec![0.0; CHUNK * self.key_width];
            self.values = vec![0.0; CHUNK * self.value_width];
            self.queries.clear();
        }
        self.scores.resize(CHUNK, 0.0);
        self.queries.resize(query_count * self.key_width, 0.0);
        self.maxima.clear();
        self.maxima.resize(query_count, f32::NEG_INFINITY);
        self.weights.clear();
        self.weights.resize(query_count, 0.0);
        self.sums.clear();
        self.sums.resize(query_count * self.value_width, 0.0);
    }

    /// Sets query `index`, multiplied by `scale`.
    #[inline(always)]
    pub(super) fn set_query<E: Element>(&mut self, index: usize, query: &[E], scale: f32) {
        let row = &mut self.queries[index * self.key_width..][..query.len()];
        for (place, &value) in row.iter_mut().zip(query) {
            *place = value.to_f32() * scale;
        }
    }

    /// Widens keys, rows of their own size, to places from `place` on.
    #[inline(always)]
    pub(super) fn load_keys<E: Element>(&mut self, place: usize, keys: &[E], size: usize) {
        widen(&mut self.keys[place * self.key_width..], self.key_width, keys, size, size);
    }

    /// Widens the first `size` columns of values, rows of `stride`, to places from `place` on.
    #[inline(always)]
    pub(super) fn load_values<E: Element>(&mut self, place: usize, values: &[E], size: usize, stride: usize) {
        widen(&mut self.values[place * self.value_width..], self.value_width, values, size, stride);
    }

    /// Lets query `index` see the keys at places `from .. to`.
    #[inline(always)]
    pub(super) fn attend<S: Simd>(&mut self, simd: S, index: usize, from: usize, to: usize) {
        let query = &self.queries[index * self.key_width..][..self.key_width];
        let keys = &self.keys[from * self.key_width..to * self.key_width];
        let scores = &mut self.scores[..(to - from).next_multiple_of(ALIGNMENT)];
        let (seen, filling) = scores.split_at_mut(to - from);
        score(simd, query, keys, seen);
        // Their weights are too small to count, and no value is read for them.
        filling.fill(f32::NEG_INFINITY);
        let maximum = largest(simd, scores, self.maxima[index]);
        let correction = exponential(self.maxima[index] - maximum);
        let mut parts = [0.0_f32; ALIGNMENT];
        for group in scores.chunks_exact_mut(ALIGNMENT) {
            for (part, score) in parts.iter_mut().zip(group) {
                *score = exponential(*score - maximum);
                *part += *score;
            }
        }
        self.maxima[index] = maximum;
        self.weights[index] = self.weights[index] * correction + total(simd, &parts);
        let sum = &mut self.sums[index * self.value_width..][..self.value_width];
        let values = &self.values[from * self.value_width..to * self.value_width];
        accumulate(simd, sum, correction, &self.scores[..to - from], values);
    }

    /// Gives the weighted mean of the values that query `index` has seen.
    #[inline(always)]
    pub(super) fn finish<E: Element>(&self, index: usize, output: &mut [E]) {
        let factor = 1.0 / self.weights[index];
        for (place, &sum) in output.iter_mut().zip(&self.sums[index * self.value_width..]) {
            *place = E::from_f32(sum * factor);
        }
    }
}

/// The largest of `scores`, whole vectors of them, and `least`. NaN may be passed over: its weight is NaN all the same.
#[inline(always)]
pub(super) fn largest<S: Simd>(simd: S, scores: &[f32], least: f32) -> f32 {
    let scores = S::as_simd_f32s(scores).0;
    let mut maximum = simd.splat_f32s(least);
    for &score in scores {
        maximum = simd.max_f32s(maximum, score);
    }
    simd.reduce_max_f32s(maximum)
}

/// The sum of whole vectors.
#[inline(always)]
pub(super) fn total<S: Simd>(simd: S, parts: &[f32]) -> f32 {
    let parts = S::as_simd_f32s(parts).0;
    let mut sum = simd.splat_f32s(0.0);
    for &part in parts {
        sum = simd.add_f32s(sum, part);
    }
    simd.reduce_sum_f32s(sum)
}

/// Copies the first `size` columns of rows `stride` apart into rows `width` apart, as fp32.
#[inline(always)]
fn widen<E: Element>(wide: &mut [f32], width: usize, rows: &[E], size: usize, stride: usize) {
    if size == stride && size == width {
        for (place, &value) in wide.iter_mut().zip(rows) {
            *place = value.to_f32();
        }
        return;
    }
    for (places, row) in wide.chunks_exact_mut(width).zip(rows.chunks_exact(stride)) {
        for (place, &value) in places.iter_mut().zip(&row[..size]) {
            *place = value.to_f32();
        }
    }
}

/// Products of one query with each key.
//
// Indices instead of iterators here and below: adapters over vectors are not inlined into code for wider vectors.
#[inline(always)]
fn score<S: Simd>(simd: S, query: &[f32], keys: &[f32], scores: &mut [f32]) {
    let query = S::as_simd_f32s(query).0;
    let keys = S::as_simd_f32s(keys).0;
    let vectors = query.len();
    let count = scores.len();
    assert!(keys.len() >= count * vectors, "as many keys as scores");
    let mut key = 0;
    while key + ABREAST <= count {
        let group = &keys[key * vectors..(key + ABREAST) * vectors];
        let (first, rest) = group.split_at(vectors);
        let (second, rest) = rest.split_at(vectors);
        let (third, fourth) = rest.split_at(vectors);
        let fourth = &fourth[..vectors];
        let mut sums = (simd.splat_f32s(0.0), simd.splat_f32s(0.0), simd.splat_f32s(0.0), simd.splat_f32s(0.0));
        for at in 0..vectors {
            let query = query[at];
            sums.0 = simd.mul_add_e_f32s(query, first[at], sums.0);
            sums.1 = simd.mul_add_e_f32s(query, second[at], sums.1);
            sums.2 = simd.mul_add_e_f32s(query, third[at], sums.2);
            sums.3 = simd.mul_add_e_f32s(query, fourth[at], sums.3);
        }
        let places = &mut scores[key..key + ABREAST];
        places[0] = simd.reduce_sum_f32s(sums.0);
        places[1] = simd.reduce_sum_f32s(sums.1);
        places[2] = simd.reduce_sum_f32s(sums.2);
        places[3] = simd.reduce_sum_f32s(sums.3);
        key += ABREAST;
    }
    while key < count {
        let row = &keys[key * vectors..(key + 1) * vectors];
        let mut sum = simd.splat_f32s(0.0);
        for at in 0..vectors {
            sum = simd.mul_add_e_f32s(query[at], row[at], sum);
        }
        scores[key] = simd.reduce_sum_f32s(sum);
        key += 1;
    }
}

/// `sum * correction` plus each value by its weight.
#[inline(always)]
fn accumulate<S: Simd>(simd: S, sum: &mut [f32], correction: f32, weights: &[f32], values: &[f32]) {
    let values = S::as_simd_f32s(values).0;
    let sum = S::as_mut_simd_f32s(sum).0;
    let vectors = sum.len();
    assert!(values.len() >= weights.len() * vectors, "as many values as weights");
    let correction = simd.splat_f32s(correction);
    let mut at = 0;
    while at + ABREAST <= vectors {
        let block = &mut sum[at..at + ABREAST];
        let mut first = simd.mul_f32s(block[0], correction);
        let mut second = simd.mul_f32s(block[1], correction);
        let mut third = simd.mul_f32s(block[2], correction);
        let mut fourth = simd.mul_f32s(block[3], correction);
        let mut rows = values;
        for &weight in weights {
            let (row, rest) = rows.split_at(vectors);
            let row = &row[at..at + ABREAST];
            let weight = simd.splat_f32s(weight);
            first = simd.mul_add_e_f32s(weight, row[0], first);
            second = simd.mul_add_e_f32s(weight, row[1], second);
            third = simd.mul_add_e_f32s(weight, row[2], third);
            fourth = simd.mul_add_e_f32s(weight, row[3], fourth);
            rows = rest;
        }
        block[0] = first;
        block[1] = second;
        block[2] = third;
        block[3] = fourth;
        at += ABREAST;
    }
    while at < vectors {
        let mut kept = simd.mul_f32s(sum[at], correction);
        let mut rows = values;
        for &weight in weights {
            let (row, rest) = rows.split_at(vectors);
            kept = simd.mul_add_e_f32s(simd.splat_f32s(weight), row[at], kept);
            rows = rest;
        }
        sum[at] = kept;
        at += 1;
    }
}
