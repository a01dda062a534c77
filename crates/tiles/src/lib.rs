//! The matrix instructions of x86 processors (AMX) behind checked calls: products of bfloat16 with fp32 sums.
//!
//! The compiler has no names for these instructions yet, so that they are written in assembly. Vectors of bfloat16, which
//! the same processors have, are here too. That is the only unchecked code of the workspace, and all that this crate has:
//! what is done with tiles is decided in `kernels`. Where a processor or its system has none, [`Tiles::new`] and
//! [`Vectors::new`] give nothing.
//!
//! The instructions are described in the *Intel Architecture Instruction Set Extensions Programming Reference*, chapter
//! "Intel Advanced Matrix Extensions".

#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
mod absent;
mod compressed;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
#[allow(unsafe_code, reason = "instructions that not every processor has, on masked places")]
mod vectors;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
#[allow(unsafe_code, reason = "tile instructions are known to the assembler only")]
mod x86;

#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
pub use absent::{Tiles, Vectors};
pub use compressed::{CompressedRows, CompressedTile, Exception, PAIR_OUTPUTS};
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
pub use vectors::Vectors;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
pub use x86::Tiles;

/// Rows of a tile: so many outputs meet so many rows of inputs.
pub const SIDE: usize = 16;
/// Inputs that one instruction takes of each row: a line of the cache.
pub const INPUTS: usize = 32;

/// Sixteen by sixteen words, on lines of the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C, align(64))]
pub struct Square(pub [[u32; SIDE]; SIDE]);

impl Square {
    /// Nothing but zeros.
    pub const ZERO: Self = Self([[0; SIDE]; SIDE]);
}

/// Sixteen rows of 32 outputs in bfloat16, each a line of the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C, align(64))]
pub struct Lines(pub [[u16; 2 * SIDE]; SIDE]);

impl Lines {
    /// Nothing but zeros.
    pub const ZERO: Self = Self([[0; 2 * SIDE]; SIDE]);
}
