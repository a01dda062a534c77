//! Weights of bfloat16 in three quarters of their bytes, bit for bit.
//!
//! The upper byte of a bfloat16 is its sign and most of its exponent, and a checkpoint's weights have few of these: sixteen are
//! looked up by four bits each. The few others are put right one by one. Lower bytes are kept as they are.

use crate::{INPUTS, SIDE};

/// Outputs whose tiles lie side by side.
pub const PAIR_OUTPUTS: usize = 2 * SIDE;
/// Weights of a tile.
const TILE_LEN: usize = SIDE * INPUTS;
/// Weights that lie next to each other in both forms.
const RUN: usize = 8;

/// The weights of sixteen outputs for 32 inputs. Expanded, row `p` has inputs `2 p` and `2 p + 1` of each output: products come
/// out as rows of outputs, and inputs are taken as they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C, align(64))]
pub struct CompressedTile {
    // Of four rows 128 bytes: the first two in one vector, eight weights of one and of the other in turns; then the next two.
    lower: [u8; TILE_LEN],
    // Of four rows 64 bytes: codes of the first vector in the lower halves, of the second in the upper ones.
    codes: [u8; TILE_LEN / 2],
}

/// An upper byte that the table does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exception {
    /// The line of inputs.
    pub line: u32,
    /// Where in both tiles of this line, expanded, in bytes.
    pub byte: u16,
    /// The byte.
    pub upper: u8,
}

/// The weights of 32 outputs: two tiles for each line of 32 inputs.
#[derive(Clone, Copy, Debug)]
pub struct CompressedRows<'a> {
    /// Of each line the tile of the first sixteen outputs, and of the others.
    pub tiles: &'a [[CompressedTile; 2]],
    /// Upper bytes by code.
    pub table: &'a [u8; 16],
    /// In the order of their lines.
    pub exceptions: &'a [Exception],
}

impl CompressedTile {
    /// Nothing but the lower byte and the code 0.
    pub const ZERO: Self = Self { lower: [0; TILE_LEN], codes: [0; TILE_LEN / 2] };

    /// Sets the 32 weights of `row`, given the code of each. What was there is nothing yet.
    ///
    /// # Panics
    /// If the tile has no such row.
    #[inline]
    pub fn set(&mut self, row: usize, weights: &[u16; INPUTS], codes: &[u8; INPUTS]) {
        let (four, vector, half) = (row / 4, row / 2 % 2, row % 2);
        for (run, (weights, codes)) in weights.as_chunks::<RUN>().0.iter().zip(codes.as_chunks::<RUN>().0).enumerate() {
            let first = 2 * RUN * run + RUN * half;
            let lower = &mut self.lower[128 * four + 64 * vector + first..][..RUN];
            lower.iter_mut().zip(weights).for_each(|(byte, weight)| *byte = *weight as u8);
            let halves = &mut self.codes[64 * four + first..][..RUN];
            halves.iter_mut().zip(codes).for_each(|(byte, code)| *byte |= code << (4 * vector));
        }
    }

    pub(crate) const fn lower(&self) -> *const u8 {
        self.lower.as_ptr()
    }

    pub(crate) const fn codes(&self) -> *const u8 {
        self.codes.as_ptr()
    }
}
