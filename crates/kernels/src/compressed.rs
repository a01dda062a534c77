//! A weight in three quarters of its bytes, without loss: a decode step reads every weight once, and memory sets its time.

mod multiply;

use std::ops::Range;

use paceline_tiles::{CompressedRows, CompressedTile, Exception, INPUTS, PAIR_OUTPUTS, SIDE};

use crate::crew;
use crate::matrix::{starts, takes};

pub(crate) use multiply::multiply;

/// Of so many weights one may be an exception at most: more would take longer than what is read less.
const WEIGHTS_PER_EXCEPTION: usize = 128;
/// Every so many rows of a block say which upper bytes are frequent.
const SAMPLED: usize = 4;
const CODES: usize = 16;

/// A weight `[outputs, inputs]` for matrix instructions, in blocks of 32 outputs.
#[derive(Debug)]
pub struct Compressed {
    tiles: Vec<[CompressedTile; 2]>,
    blocks: Vec<Block>,
    exceptions: Vec<Exception>,
    // Lines of inputs.
    lines: usize,
    outputs: usize,
}

#[derive(Clone, Debug, Default)]
struct Block {
    table: [u8; CODES],
    exceptions: Range<usize>,
}

impl Compressed {
    /// Compresses `weight [outputs, inputs]`; gives nothing where there are no matrix instructions for it, or its numbers have
    /// too many magnitudes.
    ///
    /// # Panics
    /// If these are not whole rows.
    pub fn new(weight: &[u16], inputs: usize) -> Option<Self> {
        assert!(inputs > 0 && weight.len().is_multiple_of(inputs), "whole rows");
        let (outputs, lines) = (weight.len() / inputs, inputs / INPUTS);
        if !takes(outputs, inputs) {
            return None;
        }
        let count = outputs.div_ceil(PAIR_OUTPUTS);
        let mut tiles = vec![[CompressedTile::ZERO; 2]; count * lines];
        let mut blocks = vec![(Block::default(), Vec::new()); count];
        let share = count.div_ceil(crew::parts(count, weight.len()));
        let work = tiles.chunks_mut(share * lines).zip(blocks.chunks_mut(share)).enumerate();
        crew::run(work.map(|(index, (tiles, blocks))| {
            move || {
                for (place, (tiles, block)) in tiles.chunks_exact_mut(lines).zip(blocks).enumerate() {
                    let starts = starts((index * share + place) * PAIR_OUTPUTS, outputs);
                    *block = compress(starts.map(|start| &weight[start * inputs..][..SIDE * inputs]), inputs, tiles);
                }
            }
        }));
        let mut exceptions = Vec::new();
        for (block, found) in &mut blocks {
            block.exceptions = exceptions.len()..exceptions.len() + found.len();
            exceptions.append(found);
        }
        let is_worth_it = exceptions.len() * WEIGHTS_PER_EXCEPTION <= weight.len();
        let blocks = blocks.into_iter().map(|(block, _)| block).collect();
        is_worth_it.then_some(Self { tiles, blocks, exceptions, lines, outputs })
    }

    /// Outputs and inputs.
    pub const fn shape(&self) -> (usize, usize) {
        (self.outputs, self.lines * INPUTS)
    }

    /// Memory that it takes.
    pub const fn bytes(&self) -> usize {
        size_of_val(self.tiles.as_slice())
            + size_of_val(self.blocks.as_slice())
            + size_of_val(self.exceptions.as_slice())
    }

    /// Block `index`.
    pub(crate) fn rows(&self, index: usize) -> CompressedRows<'_> {
        let Block { table, exceptions } = &self.blocks[index];
        CompressedRows { tiles: self.tiles_of(index), table, exceptions: &self.exceptions[exceptions.clone()] }
    }

    /// The tiles of block `index`.
    pub(crate) fn tiles_of(&self, index: usize) -> &[[CompressedTile; 2]] {
        &self.tiles[index * self.lines..][..self.lines]
    }
}

fn compress(halves: [&[u16]; 2], inputs: usize, tiles: &mut [[CompressedTile; 2]]) -> (Block, Vec<Exception>) {
    let table = frequent(halves.iter().flat_map(|half| half.chunks_exact(inputs).step_by(SAMPLED)));
    let mut code_of = [None; 1 << 8];
    for (code, upper) in table.iter().enumerate() {
        code_of[usize::from(*upper)] = Some(code as u8);
    }
    let mut exceptions = Vec::new();
    for (half, rows) in halves.into_iter().enumerate() {
        for (line, pair) in tiles.iter_mut().enumerate() {
            for (row, weights) in turned(rows, inputs, line).iter().enumerate() {
                let mut codes = [0; INPUTS];
                for (place, (weight, code)) in weights.iter().zip(&mut codes).enumerate() {
                    let upper = (weight >> 8) as u8;
                    match code_of[usize::from(upper)] {
                        Some(known) => *code = known,
                        None => {
                            let byte = ((half * SIDE + row) * INPUTS + place) * size_of::<u16>() + 1;
                            exceptions.push(Exception { line: line as u32, byte: byte as u16, upper });
                        }
                    }
                }
                pair[half].set(row, weights, &codes);
            }
        }
    }
    exceptions.sort_by_key(|exception| exception.line);
    (Block { table, exceptions: 0..0 }, exceptions)
}

/// Line `line` of sixteen outputs: of each pair of inputs, those of all outputs.
fn turned(rows: &[u16], inputs: usize, line: usize) -> [[u16; INPUTS]; SIDE] {
    let mut pairs = [[0; INPUTS]; SIDE];
    for (output, weights) in rows.chunks_exact(inputs).enumerate() {
        let weights = weights[line * INPUTS..][..INPUTS].as_chunks::<2>().0;
        for (pair, weights) in pairs.iter_mut().zip(weights) {
            pair[2 * output..][..2].copy_from_slice(weights);
        }
    }
    pairs
}

/// The upper bytes that are most frequent in `rows`.
fn frequent<'a>(rows: impl Iterator<Item = &'a [u16]>) -> [u8; CODES] {
    let mut counts = [0_u32; 1 << 8];
    for weight in rows.flatten() {
        counts[usize::from(weight >> 8)] += 1;
    }
    let mut uppers: [u8; 1 << 8] = std::array::from_fn(|upper| upper as u8);
    uppers.sort_by_key(|upper| std::cmp::Reverse(counts[usize::from(*upper)]));
    std::array::from_fn(|code| uppers[code])
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{Compressed, INPUTS, SIDE};
    use crate::linear::tests::{cut, numbers};
    use crate::matrix::takes;
    use crate::{Element, Part, linear};

    /// Weights of a layer are small numbers about 0, few of them very small.
    fn weights(count: usize, seed: u64) -> Vec<u16> {
        let (a, b, c) = (numbers(count, seed), numbers(count, seed + 1), numbers(count, seed + 2));
        let sums = a.iter().zip(&b).zip(&c).map(|((a, b), c)| a.to_f32() + b.to_f32() + c.to_f32());
        sums.map(|sum| u16::from_f32(sum / 16.0)).collect()
    }

    fn product(x: &[u16], parts: &[Part<'_>], bias: Option<&[u16]>, inputs: usize) -> Vec<u16> {
        let outputs: usize = parts.iter().map(|part| part.weight.len() / inputs).sum();
        let mut product = vec![0x7fc0; x.len() / inputs * outputs];
        linear(x, parts, bias, inputs, &mut product);
        product
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn products_are_those_of_the_weight_bit_for_bit(
            sizes in prop::collection::vec(SIDE..150, 1..4), lines in 1_usize..9, rows in 1_usize..100,
            wild in prop::collection::vec((any::<prop::sample::Index>(), any::<u16>()), 0..20), has_bias in any::<bool>(),
        ) {
            let (inputs, outputs) = (lines * INPUTS, sizes.iter().sum::<usize>());
            if !takes(outputs, inputs) {
                return Ok(());
            }
            let (x, mut weight, bias) = (numbers(rows * inputs, 1), weights(outputs * inputs, 2), numbers(outputs, 5));
            for (place, bits) in wild {
                // No infinities: their products with 0 have bits that instructions choose.
                let finite = if bits & 0x7f80 == 0x7f80 { bits & 0xbfff } else { bits };
                weight[place.index(outputs * inputs)] = finite;
            }
            let bias = has_bias.then_some(&bias[..]);
            let plain = cut(&weight, inputs, &sizes);
            let compressed: Option<Vec<_>> = plain.iter().map(|part| Compressed::new(part, inputs)).collect();
            let Some(compressed) = compressed else {
                // So small a part may have too many of the wild ones.
                return Ok(());
            };
            let parts: Vec<_> =
                plain.iter().zip(&compressed).map(|(weight, compressed)| Part { weight, compressed: Some(compressed) }).collect();
            prop_assert_eq!(product(&x, &parts, bias, inputs), product(&x, &[weight[..].into()], bias, inputs));
        }
    }

    #[test]
    fn weights_of_all_magnitudes_are_not_compressed() {
        let weight: Vec<u16> = (0..64 * 64).map(|index| (index as u16).wrapping_mul(40_503)).collect();
        assert!(Compressed::new(&weight, 64).is_none());
    }

    #[test]
    fn a_compressed_weight_takes_three_quarters() {
        if !takes(576, 576) {
            return;
        }
        let compressed = Compressed::new(&weights(576 * 576, 1), 576).expect("weights of a layer");
        assert_eq!(compressed.shape(), (576, 576));
        assert!(compressed.bytes() < 576 * 576 * 2 * 77 / 100, "{} bytes", compressed.bytes());
    }
}
