//! Products of rows with a weight as checkpoints store it: bfloat16, an output's weights side by side.
//!
//! A decode step reads every weight once and does little with it, so that memory sets its time. Where there are matrix
//! instructions, they do the arithmetic (`matrix.rs`). Elsewhere a thread reads several places of its share at once, which
//! the processor fetches ahead of each other, and each weight is widened once for a few rows. The sums of a row are added up
//! in one order, whatever rows it comes with.

use std::ops::Range;

use paceline_tiles::{Lines, SIDE};
use pulp::{Arch, Simd, WithSimd};

use crate::{Compressed, Element, compressed, crew, matrix};

/// Rows that share a reading of the weights; more are taken in turns. With twice as many, arithmetic would set the time.
const ROWS: usize = 4;
/// More rows take longer to multiply than their weights to read, be they compressed or not.
const COMPRESSED_ROWS_MAX: usize = 64;
/// Registers that the sums of four outputs and four rows fit.
const REGISTERS: usize = 32;
/// Two bfloat16 in one word: the second is the upper half of a fp32, and so is the first, shifted.
const UPPER: u32 = 0xffff_0000;
/// Vectors begin on lines of the cache: so many fp32.
const LINE: usize = 16;

/// Whole rows of a weight `[outputs, inputs]`.
#[derive(Clone, Copy, Debug)]
pub struct Part<'a> {
    /// As a checkpoint has them.
    pub weight: &'a [u16],
    /// The same once more, if they could be compressed; read instead where matrix instructions multiply few rows.
    pub compressed: Option<&'a Compressed>,
}

impl<'a> From<&'a [u16]> for Part<'a> {
    fn from(weight: &'a [u16]) -> Self {
        Self { weight, compressed: None }
    }
}

/// `x @ weight.T + bias` of bfloat16: `x [rows, inputs]`, a weight `[outputs, inputs]` and `bias [outputs]` give
/// `product [rows, outputs]`, added up in fp32.
///
/// The weight comes in parts, whole rows each, whose outputs follow each other; the bits are those of one weight, if
/// matrix instructions take every part or none.
///
/// # Panics
/// If `inputs` is odd or 0, lengths do not fit each other, or a part does not begin at a multiple of four bytes.
pub fn linear(x: &[u16], parts: &[Part<'_>], bias: Option<&[u16]>, inputs: usize, product: &mut [u16]) {
    linear_with(None, x, parts, bias, inputs, product);
}

/// With matrix instructions where they serve, or with vectors of `arch`.
fn linear_with(
    arch: Option<Arch>,
    x: &[u16],
    parts: &[Part<'_>],
    bias: Option<&[u16]>,
    inputs: usize,
    product: &mut [u16],
) {
    assert!(inputs > 0 && inputs.is_multiple_of(2), "inputs come in pairs");
    assert!(x.len().is_multiple_of(inputs), "whole rows");
    for Part { weight, compressed } in parts {
        assert!(weight.len().is_multiple_of(inputs), "whole rows of weights");
        let shape = (weight.len() / inputs, inputs);
        assert!(compressed.is_none_or(|compressed| compressed.shape() == shape), "the same weight compressed");
    }
    let (rows, outputs) = (x.len() / inputs, outputs_of(parts, inputs));
    assert_eq!(product.len(), rows * outputs, "elements of the product");
    if let Some(bias) = bias {
        assert_eq!(bias.len(), outputs, "elements of the bias");
    }
    if product.is_empty() {
        return;
    }
    let is_compressed = || parts.iter().all(|part| part.compressed.is_some());
    if arch.is_none() && rows <= COMPRESSED_ROWS_MAX && is_compressed() {
        return compressed::multiply(x, parts, bias, inputs, product);
    }
    if arch.is_none() && parts.iter().all(|part| matrix::takes(part.weight.len() / inputs, inputs)) {
        return matrix::multiply(x, parts, bias, inputs, product);
    }
    let arch = arch.unwrap_or_default();
    let wide = arch.dispatch(Widen { x, inputs });
    let band = outputs.div_ceil(crew::parts(outputs, outputs * inputs)).next_multiple_of(LINE);
    let shares = shares(parts, bias, inputs, product, crew::bands(outputs, band)).into_iter().map(|share| {
        let wide = &wide;
        move || {
            for Section { part: Part { weight, .. }, bias, product, .. } in share {
                arch.dispatch(Multiply { wide, weight, bias, inputs, product });
            }
        }
    });
    crew::run(shares);
}

/// Outputs of all `parts` of a weight.
pub(crate) fn outputs_of(parts: &[Part<'_>], inputs: usize) -> usize {
    parts.iter().map(|part| part.weight.len() / inputs).sum()
}

/// Outputs of one thread that lie side by side in one part of the weight.
pub(crate) struct Section<'a, 'b> {
    // Its rows of the weight; what is compressed is the whole part.
    pub(crate) part: Part<'a>,
    // The first of its outputs in the part.
    pub(crate) first: usize,
    pub(crate) bias: Option<&'a [u16]>,
    // Of each row.
    pub(crate) product: Vec<&'b mut [u16]>,
}

impl Section<'_, '_> {
    pub(crate) fn outputs(&self, inputs: usize) -> usize {
        self.part.weight.len() / inputs
    }

    /// The biases of outputs that follow each other; 0 if there are none.
    pub(crate) fn bias_of<const COUNT: usize>(&self, start: usize) -> [f32; COUNT] {
        let Some(bias) = self.bias else { return [0.0; COUNT] };
        std::array::from_fn(|index| bias[start + index].to_f32())
    }

    /// Writes `lines`, twice sixteen outputs of sixteen rows from `row` on, as far as they are there.
    pub(crate) fn write(&mut self, lines: &Lines, row: usize, [first, second]: [usize; 2]) {
        let rows = self.product[row..].iter_mut().zip(&lines.0);
        if second == first + SIDE {
            // A line of the cache is written at once.
            rows.for_each(|(product, line)| product[first..first + 2 * SIDE].copy_from_slice(line));
        } else {
            for (product, line) in rows {
                product[first..first + SIDE].copy_from_slice(&line[..SIDE]);
                product[second..second + SIDE].copy_from_slice(&line[SIDE..]);
            }
        }
    }
}

/// What each thread computes if `bands` of outputs, which follow each other, are shared out.
pub(crate) fn shares<'a, 'b>(
    parts: &[Part<'a>],
    bias: Option<&'a [u16]>,
    inputs: usize,
    product: &'b mut [u16],
    bands: impl Iterator<Item = Range<usize>>,
) -> Vec<Vec<Section<'a, 'b>>> {
    let mut sections = Vec::with_capacity(parts.len() + 1);
    let mut weights = Vec::with_capacity(parts.len() + 1);
    let mut counts = Vec::new();
    for band in bands {
        let before = sections.len();
        let mut first = 0;
        for &Part { weight, compressed } in parts {
            let end = first + weight.len() / inputs;
            let section = band.start.max(first)..band.end.min(end);
            if !section.is_empty() {
                let weight = &weight[(section.start - first) * inputs..(section.end - first) * inputs];
                weights.push((Part { weight, compressed }, section.start - first));
                sections.push(section);
            }
            first = end;
        }
        counts.push(sections.len() - before);
    }
    let products = crew::columns(product, outputs_of(parts, inputs), &sections.iter().cloned());
    let mut ready = products.into_iter().zip(weights).zip(sections).map(|((product, (part, first)), section)| {
        Section { part, first, bias: bias.map(|bias| &bias[section]), product }
    });
    counts.into_iter().map(|count| ready.by_ref().take(count).collect()).collect()
}

/// Rows as fp32, in groups of those that are multiplied side by side. A group has, for each vector of words of the
/// inputs, the first halves of the words of each row, then the second ones.
struct Wide {
    numbers: Vec<f32>,
    // The first of `numbers` that lies at the beginning of a line.
    start: usize,
    rows: usize,
    // Numbers of one row.
    row_len: usize,
}

impl Wide {
    fn group(&self, first: usize, count: usize) -> &[f32] {
        &self.numbers[self.start + first * self.row_len..][..count * self.row_len]
    }
}

struct Widen<'a> {
    x: &'a [u16],
    inputs: usize,
}

impl WithSimd for Widen<'_> {
    type Output = Wide;

    #[inline(always)]
    fn with_simd<S: Simd>(self, _simd: S) -> Wide {
        let lanes = S::F32_LANES;
        let rows = self.x.len() / self.inputs;
        let row_len = self.inputs.next_multiple_of(2 * lanes);
        let mut numbers = vec![0.0_f32; rows * row_len + LINE];
        let start = numbers.as_ptr().align_offset(LINE * size_of::<f32>()).min(LINE);
        let groups = self.x.chunks(ROWS * self.inputs);
        for (group, wide) in groups.zip(numbers[start..].chunks_mut(ROWS * row_len)) {
            let count = group.len() / self.inputs;
            for (index, row) in group.chunks_exact(self.inputs).enumerate() {
                for (chunk, words) in row.chunks(2 * lanes).enumerate() {
                    let first = (chunk * 2 * count + index) * lanes;
                    let second = first + count * lanes;
                    for (lane, word) in words.as_chunks::<2>().0.iter().enumerate() {
                        wide[first + lane] = word[0].to_f32();
                        wide[second + lane] = word[1].to_f32();
                    }
                }
            }
        }
        Wide { numbers, start, rows, row_len }
    }
}

struct Multiply<'a, 'b> {
    wide: &'a Wide,
    weight: &'a [u16],
    bias: Option<&'a [u16]>,
    inputs: usize,
    product: Vec<&'b mut [u16]>,
}

impl WithSimd for Multiply<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(mut self, simd: S) {
        let words: &[u32] = pulp::bytemuck::cast_slice(self.weight);
        let is_narrow = S::REGISTER_COUNT < REGISTERS;
        for first in (0..self.wide.rows).step_by(ROWS) {
            match (self.wide.rows - first, is_narrow) {
                (1, false) => self.group::<S, 8, 1>(simd, words, first),
                (2, false) => self.group::<S, 4, 2>(simd, words, first),
                (3, false) => self.group::<S, 4, 3>(simd, words, first),
                (_, false) => self.group::<S, 4, ROWS>(simd, words, first),
                (1, true) => self.group::<S, 4, 1>(simd, words, first),
                (2, true) => self.group::<S, 4, 2>(simd, words, first),
                (3, true) => self.group::<S, 2, 3>(simd, words, first),
                (_, true) => self.group::<S, 2, ROWS>(simd, words, first),
            }
        }
    }
}

impl Multiply<'_, '_> {
    /// All outputs of rows `first .. first + ROWS`.
    #[inline(always)]
    #[allow(clippy::needless_range_loop, reason = "as for the tile")]
    fn group<S: Simd, const STREAMS: usize, const ROWS: usize>(&mut self, simd: S, words: &[u32], first: usize) {
        let row_words = self.inputs / 2;
        let outputs = words.len() / row_words;
        let x = self.wide.group(first, ROWS);
        let quarter = outputs / STREAMS;
        for output in 0..quarter {
            let mut weights = [words; STREAMS];
            for stream in 0..STREAMS {
                weights[stream] = &words[(stream * quarter + output) * row_words..][..row_words];
            }
            let sums = tile::<S, STREAMS, ROWS>(simd, weights, x);
            for stream in 0..STREAMS {
                self.finish(stream * quarter + output, first, &sums[stream]);
            }
        }
        for output in STREAMS * quarter..outputs {
            let sums = tile::<S, 1, ROWS>(simd, [&words[output * row_words..][..row_words]], x);
            self.finish(output, first, &sums[0]);
        }
    }

    #[inline(always)]
    fn finish(&mut self, output: usize, first: usize, sums: &[f32]) {
        let bias = self.bias.map_or(0.0, |bias| bias[output].to_f32());
        for (row, &sum) in self.product[first..].iter_mut().zip(sums) {
            row[output] = Element::from_f32(sum + bias);
        }
    }
}

/// The sums of `STREAMS` outputs for each of `ROWS` rows.
#[inline(always)]
#[allow(clippy::needless_range_loop, reason = "adapters over vectors are not inlined into code for wider vectors")]
fn tile<S: Simd, const STREAMS: usize, const ROWS: usize>(
    simd: S,
    weights: [&[u32]; STREAMS],
    x: &[f32],
) -> [[f32; ROWS]; STREAMS] {
    let x = S::as_simd_f32s(x).0.as_chunks::<ROWS>().0.as_chunks::<2>().0;
    let whole = weights[0].len() / S::U32_LANES;
    let mut bodies = [S::as_simd_u32s(weights[0]).0; STREAMS];
    for stream in 0..STREAMS {
        bodies[stream] = &S::as_simd_u32s(weights[stream]).0[..whole];
    }
    let mut sums = [[simd.splat_f32s(0.0); ROWS]; STREAMS];
    for chunk in 0..whole {
        let inputs = &x[chunk];
        for stream in 0..STREAMS {
            sums[stream] = add(simd, sums[stream], bodies[stream][chunk], inputs);
        }
    }
    if let Some(inputs) = x.get(whole) {
        for stream in 0..STREAMS {
            let words = simd.partial_load_u32s(&weights[stream][whole * S::U32_LANES..]);
            sums[stream] = add(simd, sums[stream], words, inputs);
        }
    }
    let mut totals = [[0.0; ROWS]; STREAMS];
    for stream in 0..STREAMS {
        for row in 0..ROWS {
            totals[stream][row] = simd.reduce_sum_f32s(sums[stream][row]);
        }
    }
    totals
}

/// Adds to each row's sum the weights in `words` times its inputs: the first halves of words, then the second ones.
#[inline(always)]
fn add<S: Simd, const ROWS: usize>(
    simd: S,
    mut sums: [S::f32s; ROWS],
    words: S::u32s,
    [firsts, seconds]: &[[S::f32s; ROWS]; 2],
) -> [S::f32s; ROWS] {
    let first = simd.transmute_f32s_u32s(simd.wrapping_dyn_shl_u32s(words, simd.splat_u32s(16)));
    let second = simd.transmute_f32s_u32s(simd.and_u32s(words, simd.splat_u32s(UPPER)));
    for row in 0..ROWS {
        let sum = simd.mul_add_e_f32s(first, firsts[row], sums[row]);
        sums[row] = simd.mul_add_e_f32s(second, seconds[row], sum);
    }
    sums
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;
    use pulp::Arch;

    use super::linear_with;
    use crate::{Element, matrix};

    /// Repeatable numbers between -1 and 1.
    pub(crate) fn numbers(count: usize, seed: u64) -> Vec<u16> {
        let number = |index: usize| {
            let mixed = (seed * 1_000_003 + index as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            u16::from_f32((mixed >> 40) as f32 / (1_u64 << 23) as f32 - 1.0)
        };
        (0..count).map(number).collect()
    }

    /// Compares a row of a product with sums in f64.
    pub(crate) fn check(row: &[u16], weight: &[u16], bias: Option<&[u16]>, inputs: usize, got: &[u16]) {
        for (output, (weights, got)) in weight.chunks_exact(inputs).zip(got).enumerate() {
            let terms = row.iter().zip(weights).map(|(x, w)| f64::from(x.to_f32()) * f64::from(w.to_f32()));
            let exact = terms.sum::<f64>() + f64::from(bias.map_or(0.0, |bias| bias[output].to_f32()));
            let error = (f64::from(got.to_f32()) - exact).abs();
            assert!(error <= exact.abs() / 256.0 + 1e-4, "output {output}: {exact} and {}", got.to_f32());
        }
    }

    fn archs() -> Vec<Option<Arch>> {
        let mut archs = vec![None, Some(Arch::Scalar), Some(Arch::new())];
        #[cfg(target_arch = "x86_64")]
        archs.extend(pulp::x86::V3::try_new().map(|v3| Some(Arch::V3(v3))));
        archs
    }

    fn product(arch: Option<Arch>, x: &[u16], weight: &[u16], bias: Option<&[u16]>, inputs: usize) -> Vec<u16> {
        let mut product = vec![0x7fc0; x.len() / inputs * (weight.len() / inputs)];
        linear_with(arch, x, &[weight.into()], bias, inputs, &mut product);
        product
    }

    fn product_of_parts(arch: Option<Arch>, x: &[u16], parts: &[&[u16]], bias: &[u16], inputs: usize) -> Vec<u16> {
        let mut product = vec![0x7fc0; x.len() / inputs * bias.len()];
        let parts: Vec<_> = parts.iter().map(|&part| part.into()).collect();
        linear_with(arch, x, &parts, Some(bias), inputs, &mut product);
        product
    }

    /// A weight cut into parts of so many outputs.
    pub(crate) fn cut<'a>(mut weight: &'a [u16], inputs: usize, sizes: &[usize]) -> Vec<&'a [u16]> {
        let part = |size: &usize| weight.split_off(..size * inputs).expect("as many as the parts have");
        sizes.iter().map(part).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]

        #[test]
        fn every_set_of_instructions_gives_the_sums_and_rows_do_not_depend_on_each_other(
            outputs in 1_usize..70, pairs in 1_usize..90, rows in 1_usize..11, has_bias in any::<bool>(),
        ) {
            let inputs = 2 * pairs;
            let (x, weight, bias) = (numbers(rows * inputs, 1), numbers(outputs * inputs, 2), numbers(outputs, 3));
            let bias = has_bias.then_some(&bias[..]);
            for arch in archs() {
                let together = product(arch, &x, &weight, bias, inputs);
                for (row, got) in x.chunks_exact(inputs).zip(together.chunks_exact(outputs)) {
                    prop_assert_eq!(&product(arch, row, &weight, bias, inputs)[..], got);
                    check(row, &weight, bias, inputs, got);
                }
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]

        #[test]
        fn parts_of_a_weight_give_the_bits_of_the_whole(
            sizes in prop::collection::vec(1_usize..300, 1..5), pairs in 1_usize..90, rows in 1_usize..6,
        ) {
            let (inputs, outputs) = (2 * pairs, sizes.iter().sum::<usize>());
            let (x, weight, bias) = (numbers(rows * inputs, 1), numbers(outputs * inputs, 2), numbers(outputs, 3));
            let parts = cut(&weight, inputs, &sizes);
            // With matrix instructions if they take all: the bits of vectors are others.
            let is_one = sizes.iter().all(|&size| matrix::takes(size, inputs)) == matrix::takes(outputs, inputs);
            for arch in archs().into_iter().filter(|arch| arch.is_some() || is_one) {
                let whole = product(arch, &x, &weight, Some(&bias), inputs);
                prop_assert_eq!(product_of_parts(arch, &x, &parts, &bias, inputs), whole);
            }
        }
    }

    #[test]
    fn what_is_no_number_stays_in_its_row() {
        for arch in archs() {
            let got = product(arch, &[0x7fc0, 0, 0x3f80, 0x3f80], &[0x3f80, 0x4000], None, 2);
            assert!(got[0].to_f32().is_nan());
            assert_eq!(got[1].to_f32(), 3.0);
        }
    }
}
