//! Products with compressed weights, which are expanded just before a tile takes them: what is not read from memory is time
//! won, and vectors have nothing else to do meanwhile. Products are added to sums that were begun.
//!
//! Tiles 4 and 5 hold inputs here, 6 and 7 weights: products are rows of outputs.

use std::arch::asm;
use std::arch::x86_64::{
    __m512i, _MM_HINT_T1, _mm_loadu_si128, _mm_prefetch, _mm512_and_si512, _mm512_broadcast_i32x4, _mm512_load_si512,
    _mm512_set1_epi8, _mm512_shuffle_epi8, _mm512_srli_epi16, _mm512_store_si512, _mm512_unpackhi_epi8,
    _mm512_unpacklo_epi8,
};

use super::{LINE_BYTES, PLACES};
use crate::{CompressedRows, CompressedTile, Exception, SIDE, Square};

/// Bytes of both tiles of a line of inputs, a part of which is fetched in each of the places in one step.
const PAIR_BYTES: usize = size_of::<[CompressedTile; 2]>();
const FETCHED_BYTES: usize = PAIR_BYTES / PLACES;

/// # Safety
/// The tiles are set up, and nobody else on this thread uses them. There are as many squares in each `x` as weights have
/// lines, and `expanded` is a multiple of two.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
pub(super) unsafe fn add_compressed<const ROWS: usize>(
    weights: CompressedRows<'_>,
    next: *const u8,
    x: [&[Square]; ROWS],
    expanded: &mut [Square],
) {
    // SAFETY: sixteen bytes are read from sixteen.
    let table = _mm512_broadcast_i32x4(unsafe { _mm_loadu_si128(weights.table.as_ptr().cast()) });
    let place_bytes = FETCHED_BYTES * weights.tiles.len();
    let mut exceptions = weights.exceptions;
    let mut slot = 0;
    for (line, tiles) in weights.tiles.iter().enumerate() {
        let mut place = 0;
        while place < PLACES {
            let first = next.wrapping_add(place * place_bytes + line * FETCHED_BYTES);
            let mut bytes = 0;
            while bytes < FETCHED_BYTES {
                // To fetch ahead of use is no access: any address will do.
                _mm_prefetch::<_MM_HINT_T1>(first.wrapping_add(bytes).cast());
                bytes += LINE_BYTES;
            }
            place += 1;
        }
        let pair = &mut expanded[slot..slot + 2];
        expand(&tiles[0], table, &mut pair[0]);
        expand(&tiles[1], table, &mut pair[1]);
        while let [Exception { line: at, byte, upper }, rest @ ..] = exceptions {
            if *at as usize != line {
                break;
            }
            put_right(pair, usize::from(*byte), *upper);
            exceptions = rest;
        }
        // SAFETY: two squares of weights, and a square of each `x` for this line; the caller answers for the tiles.
        unsafe { add(pair.as_ptr(), x.map(|x| x.as_ptr().add(line))) };
        slot += 2;
        if slot == expanded.len() {
            slot = 0;
        }
    }
}

/// The same with weights that were expanded before.
///
/// # Safety
/// The tiles are set up, and nobody else on this thread uses them. There are two squares of weights for each square of `x`.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn add_expanded<const ROWS: usize>(weights: &[Square], x: [&[Square]; ROWS]) {
    for line in 0..x[0].len() {
        // SAFETY: as the caller says.
        unsafe { add(weights.as_ptr().add(2 * line), x.map(|x| x.as_ptr().add(line))) };
    }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn expand(tile: &CompressedTile, table: __m512i, square: &mut Square) {
    let code = _mm512_set1_epi8(15);
    let mut four = 0;
    while four < 4 {
        let to: *mut u8 = square.0[4 * four].as_mut_ptr().cast();
        // SAFETY: four rows of 64 bytes are read and written, on lines of their own, of sixteen.
        unsafe {
            let codes = _mm512_load_si512(tile.codes().add(64 * four).cast());
            let uppers = [codes, _mm512_srli_epi16::<4>(codes)];
            let mut vector = 0;
            while vector < 2 {
                let lower = _mm512_load_si512(tile.lower().add(128 * four + 64 * vector).cast());
                let upper = _mm512_shuffle_epi8(table, _mm512_and_si512(uppers[vector], code));
                let to = to.add(128 * vector);
                _mm512_store_si512(to.cast(), _mm512_unpacklo_epi8(lower, upper));
                _mm512_store_si512(to.add(LINE_BYTES).cast(), _mm512_unpackhi_epi8(lower, upper));
                vector += 1;
            }
        }
        four += 1;
    }
}

#[cold]
fn put_right(pair: &mut [Square], byte: usize, upper: u8) {
    let word = &mut pair[byte / 1024].0[byte / LINE_BYTES % SIDE][byte % LINE_BYTES / 4];
    let shift = byte % 4 * 8;
    *word = *word & !(0xff << shift) | u32::from(upper) << shift;
}

/// Adds the products of two tiles of weights with one or two of inputs.
#[inline]
unsafe fn add<const ROWS: usize>(weights: *const Square, x: [*const Square; ROWS]) {
    // SAFETY: two squares of weights and one of each `x` are read, as the caller says.
    unsafe {
        if ROWS == 1 {
            asm!(
                "tileloadd tmm4, [{x} + {line}]",
                "tileloadd tmm6, [{weights} + {line}]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tileloadd tmm7, [{weights} + {line} + 1024]",
                "tdpbf16ps tmm1, tmm4, tmm7",
                x = in(reg) x[0],
                weights = in(reg) weights,
                line = in(reg) LINE_BYTES,
                out("tmm0") _, out("tmm1") _, out("tmm4") _, out("tmm6") _, out("tmm7") _,
                options(nostack, readonly, preserves_flags),
            );
        } else {
            asm!(
                "tileloadd tmm4, [{x} + {line}]",
                "tileloadd tmm6, [{weights} + {line}]",
                "tileloadd tmm7, [{weights} + {line} + 1024]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tileloadd tmm5, [{y} + {line}]",
                "tdpbf16ps tmm1, tmm4, tmm7",
                "tdpbf16ps tmm2, tmm5, tmm6",
                "tdpbf16ps tmm3, tmm5, tmm7",
                x = in(reg) x[0],
                y = in(reg) x[ROWS - 1],
                weights = in(reg) weights,
                line = in(reg) LINE_BYTES,
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                options(nostack, readonly, preserves_flags),
            );
        }
    }
}
