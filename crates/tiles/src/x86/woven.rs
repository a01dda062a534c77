//! What vectors of AVX-512 do beside the tiles: rows for columns, pairs of rows woven into each other, and rounding.

use std::arch::x86_64::{
    __m256bh, __m512, __m512bh, __m512i, _mm_loadu_si128, _mm512_add_ps, _mm512_castps_si512, _mm512_castsi512_ps,
    _mm512_cvtne2ps_pbh, _mm512_cvtneps_pbh, _mm512_load_si512, _mm512_loadu_ps, _mm512_loadu_si512,
    _mm512_mask_broadcast_i32x4, _mm512_mul_ps, _mm512_permutexvar_epi16, _mm512_permutexvar_epi64, _mm512_set_epi64,
    _mm512_set1_ps, _mm512_setzero_si512, _mm512_shuffle_f32x4, _mm512_store_si512, _mm512_storeu_si512,
    _mm512_unpackhi_epi16, _mm512_unpackhi_epi32, _mm512_unpackhi_epi64, _mm512_unpacklo_epi16, _mm512_unpacklo_epi32,
    _mm512_unpacklo_epi64,
};

use crate::{INPUTS, Lines, SIDE, Square};

// Indices instead of iterators: adapters over vectors are not inlined into code for wider vectors.

#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn transposed_to(square: &Square, turned: &mut Square) {
    store(&transposed(&rows_of(square)), turned);
}

/// The first four columns only: of each, a quarter of a vector is four rows.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn four_columns_to(square: &Square, turned: &mut Square) {
    let mut rows = [_mm512_setzero_si512(); 4];
    let mut row = 0;
    while row < 4 {
        let mut quarter = 0;
        while quarter < 4 {
            // SAFETY: 16 bytes are read from a row of 64.
            let four = unsafe { _mm_loadu_si128(square.0[4 * quarter + row].as_ptr().cast()) };
            rows[row] = _mm512_mask_broadcast_i32x4(rows[row], 0xf << (4 * quarter), four);
            quarter += 1;
        }
        row += 1;
    }
    let (low, high) = (_mm512_unpacklo_epi32(rows[0], rows[1]), _mm512_unpackhi_epi32(rows[0], rows[1]));
    let (other_low, other_high) = (_mm512_unpacklo_epi32(rows[2], rows[3]), _mm512_unpackhi_epi32(rows[2], rows[3]));
    // SAFETY: rows are 64 bytes, on lines of their own.
    unsafe {
        _mm512_store_si512(turned.0[0].as_mut_ptr().cast(), _mm512_unpacklo_epi64(low, other_low));
        _mm512_store_si512(turned.0[1].as_mut_ptr().cast(), _mm512_unpackhi_epi64(low, other_low));
        _mm512_store_si512(turned.0[2].as_mut_ptr().cast(), _mm512_unpacklo_epi64(high, other_high));
        _mm512_store_si512(turned.0[3].as_mut_ptr().cast(), _mm512_unpackhi_epi64(high, other_high));
    }
}

/// # Safety
/// `rows` are sixteen times `size` numbers, and `column + 32` is at most `size`.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn turn_to(rows: &[u16], size: usize, column: usize, turned: &mut Square) {
    let mut vectors = [_mm512_setzero_si512(); SIDE];
    let mut row = 0;
    while row < SIDE {
        // SAFETY: 32 numbers of one of the sixteen rows, as the caller says.
        vectors[row] = unsafe { _mm512_loadu_si512(rows.as_ptr().add(row * size + column).cast()) };
        row += 1;
    }
    store(&transposed(&vectors), turned);
}

#[inline]
#[target_feature(enable = "avx512f,avx512bf16")]
pub(super) fn narrow_to(numbers: &[[f32; SIDE]], halves: &mut [[u16; SIDE]]) {
    for (numbers, halves) in numbers.iter().zip(halves) {
        // SAFETY: sixteen numbers are read from an array of sixteen.
        let rounded = _mm512_cvtneps_pbh(unsafe { _mm512_loadu_ps(numbers.as_ptr()) });
        // SAFETY: 32 bytes are written to a place of sixteen numbers of two bytes.
        unsafe { halves.as_mut_ptr().cast::<__m256bh>().write_unaligned(rounded) };
    }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bf16")]
pub(super) fn narrow_woven_to(sums: &[[[f32; SIDE]; 2]], factor: f32, halves: &mut [[u16; INPUTS]]) {
    let factor = _mm512_set1_ps(factor);
    // Four columns of the first square, then four of the second.
    let order = _mm512_set_epi64(7, 3, 6, 2, 5, 1, 4, 0);
    for (sums, halves) in sums.iter().zip(halves) {
        // SAFETY: sixteen numbers are read from an array of sixteen, twice.
        let (first, second) = unsafe { (_mm512_loadu_ps(sums[0].as_ptr()), _mm512_loadu_ps(sums[1].as_ptr())) };
        let rounded = _mm512_cvtne2ps_pbh(_mm512_mul_ps(second, factor), _mm512_mul_ps(first, factor));
        // SAFETY: both are 64 bytes, of which any are fine.
        let rounded = unsafe { std::mem::transmute::<__m512bh, __m512i>(rounded) };
        // SAFETY: 64 bytes are written to 32 numbers of two.
        unsafe { _mm512_storeu_si512(halves.as_mut_ptr().cast(), _mm512_permutexvar_epi64(order, rounded)) };
    }
}

#[target_feature(enable = "avx512f,avx512bf16")]
pub(super) fn round_to(sums: [&Square; 2], biases: &[[f32; SIDE]; 2], lines: &mut Lines) {
    for half in 0..2 {
        // SAFETY: sixteen numbers are read from an array of sixteen.
        let bias = unsafe { _mm512_loadu_ps(biases[half].as_ptr()) };
        let columns = transposed(&rows_of(sums[half]));
        let mut row = 0;
        while row < SIDE {
            let rounded = _mm512_cvtneps_pbh(_mm512_add_ps(_mm512_castsi512_ps(columns[row]), bias));
            let place = &mut lines.0[row][half * SIDE..][..SIDE];
            // SAFETY: 32 bytes are written to a place of sixteen numbers of two bytes.
            unsafe { place.as_mut_ptr().cast::<__m256bh>().write_unaligned(rounded) };
            row += 1;
        }
    }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bf16")]
pub(super) fn round_rows_to(sums: [&Square; 2], count: usize, biases: &[[f32; SIDE]; 2], lines: &mut Lines) {
    // SAFETY: sixteen numbers are read from an array of sixteen.
    let biases = biases.each_ref().map(|bias| unsafe { _mm512_loadu_ps(bias.as_ptr()) });
    for row in 0..count {
        // SAFETY: rows of squares are 64 bytes, on lines of their own.
        let halves = sums.map(|square| unsafe { _mm512_load_si512(square.0[row].as_ptr().cast()) });
        let first = _mm512_add_ps(_mm512_castsi512_ps(halves[0]), biases[0]);
        let second = _mm512_add_ps(_mm512_castsi512_ps(halves[1]), biases[1]);
        let rounded = _mm512_cvtne2ps_pbh(second, first);
        // SAFETY: a row of lines is 64 bytes, on a line of its own.
        unsafe { lines.0[row].as_mut_ptr().cast::<__m512bh>().write(rounded) };
    }
}

/// Rounded first, then turned around: two outputs of a row are one word.
///
/// # Safety
/// Every row has 32 numbers from `first` on.
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
pub(super) unsafe fn round_into(sums: [&Square; 2], biases: &[f32; INPUTS], rows: &mut [&mut [u16]], first: usize) {
    let mut words = [_mm512_setzero_si512(); SIDE];
    // SAFETY: 64 bytes, on a line of their own.
    let order = unsafe { _mm512_load_si512(PAIRS.0.as_ptr().cast()) };
    let mut word = 0;
    while word < SIDE {
        let two = &sums[word / (SIDE / 2)].0[2 * word % SIDE..][..2];
        // SAFETY: a row is 64 bytes.
        let (even, odd) = unsafe { (_mm512_loadu_ps(two[0].as_ptr().cast()), _mm512_loadu_ps(two[1].as_ptr().cast())) };
        let even = _mm512_add_ps(even, _mm512_set1_ps(biases[2 * word]));
        let odd = _mm512_add_ps(odd, _mm512_set1_ps(biases[2 * word + 1]));
        // SAFETY: both are 64 bytes, of which any are fine.
        let rounded = unsafe { std::mem::transmute::<__m512bh, __m512i>(_mm512_cvtne2ps_pbh(odd, even)) };
        words[word] = _mm512_permutexvar_epi16(order, rounded);
        word += 1;
    }
    let lines = transposed(&words);
    let count = rows.len();
    let mut row = 0;
    while row < SIDE {
        if row < count {
            // SAFETY: the row has 32 numbers from `first` on, as the caller says.
            unsafe { _mm512_storeu_si512(rows[row].as_mut_ptr().add(first).cast(), lines[row]) };
        }
        row += 1;
    }
}

/// Sixteen numbers and sixteen others by turns.
static PAIRS: Lines = {
    let mut lines = Lines::ZERO;
    let mut place = 0;
    while place < SIDE {
        lines.0[0][2 * place] = place as u16;
        lines.0[0][2 * place + 1] = (SIDE + place) as u16;
        place += 1;
    }
    lines
};

/// # Safety
/// `rows` are sixteen times `size` numbers each, and `column + 64` is at most `size`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
pub(super) unsafe fn weave_to(rows: [&[u16]; 2], size: usize, column: usize, woven: &mut [Square; 4]) {
    for (half, rows) in rows.iter().enumerate() {
        for pair in 0..SIDE / 2 {
            for part in 0..2 {
                let start = 2 * pair * size + column + part * INPUTS;
                let place = half * SIDE / 2 + pair;
                // SAFETY: 32 numbers each of two of the sixteen rows, as the caller says; rows of squares are 64 bytes, on
                // lines of their own.
                unsafe {
                    let first = _mm512_loadu_si512(rows.as_ptr().add(start).cast());
                    let second = _mm512_loadu_si512(rows.as_ptr().add(start + size).cast());
                    let low = woven[2 * part].0[place].as_mut_ptr();
                    _mm512_store_si512(low.cast(), _mm512_unpacklo_epi16(first, second));
                    let high = woven[2 * part + 1].0[place].as_mut_ptr();
                    _mm512_store_si512(high.cast(), _mm512_unpackhi_epi16(first, second));
                }
            }
        }
    }
}

/// The rows of a square.
#[inline]
#[target_feature(enable = "avx512f")]
fn rows_of(square: &Square) -> [__m512i; SIDE] {
    let mut rows = [_mm512_setzero_si512(); SIDE];
    let mut row = 0;
    while row < SIDE {
        // SAFETY: a row is 64 bytes, on a line of its own.
        rows[row] = unsafe { _mm512_load_si512(square.0[row].as_ptr().cast()) };
        row += 1;
    }
    rows
}

#[inline]
#[target_feature(enable = "avx512f")]
fn store(rows: &[__m512i; SIDE], square: &mut Square) {
    let mut row = 0;
    while row < SIDE {
        // SAFETY: a row is 64 bytes, on a line of its own.
        unsafe { _mm512_store_si512(square.0[row].as_mut_ptr().cast(), rows[row]) };
        row += 1;
    }
}

/// The columns of sixteen rows: pairs of rows are woven into each other, then pairs of pairs, then quarters of vectors.
#[inline]
#[target_feature(enable = "avx512f")]
fn transposed(rows: &[__m512i; SIDE]) -> [__m512i; SIDE] {
    let mut pairs = [_mm512_setzero_si512(); SIDE];
    let mut pair = 0;
    while pair < SIDE {
        pairs[pair] = _mm512_unpacklo_epi32(rows[pair], rows[pair + 1]);
        pairs[pair + 1] = _mm512_unpackhi_epi32(rows[pair], rows[pair + 1]);
        pair += 2;
    }
    let mut fours = pairs;
    let mut four = 0;
    while four < SIDE {
        fours[four] = _mm512_unpacklo_epi64(pairs[four], pairs[four + 2]);
        fours[four + 1] = _mm512_unpackhi_epi64(pairs[four], pairs[four + 2]);
        fours[four + 2] = _mm512_unpacklo_epi64(pairs[four + 1], pairs[four + 3]);
        fours[four + 3] = _mm512_unpackhi_epi64(pairs[four + 1], pairs[four + 3]);
        four += 4;
    }
    // Now `fours[4 * group + place]` has, in quarter q, column 4 q + place of the rows 4 group to 4 group + 3.
    let mut columns = fours;
    let mut place = 0;
    while place < 4 {
        let (first, second) = (_mm512_castsi512_ps(fours[place]), _mm512_castsi512_ps(fours[4 + place]));
        let (third, fourth) = (_mm512_castsi512_ps(fours[8 + place]), _mm512_castsi512_ps(fours[12 + place]));
        let (even_low, odd_low) = (even_quarters(first, second), odd_quarters(first, second));
        let (even_high, odd_high) = (even_quarters(third, fourth), odd_quarters(third, fourth));
        columns[place] = _mm512_castps_si512(even_quarters(even_low, even_high));
        columns[4 + place] = _mm512_castps_si512(even_quarters(odd_low, odd_high));
        columns[8 + place] = _mm512_castps_si512(odd_quarters(even_low, even_high));
        columns[12 + place] = _mm512_castps_si512(odd_quarters(odd_low, odd_high));
        place += 1;
    }
    columns
}

/// The even quarters of two vectors.
#[inline]
#[target_feature(enable = "avx512f")]
fn even_quarters(first: __m512, second: __m512) -> __m512 {
    _mm512_shuffle_f32x4::<0b10_00_10_00>(first, second)
}

/// The odd quarters of two vectors.
#[inline]
#[target_feature(enable = "avx512f")]
fn odd_quarters(first: __m512, second: __m512) -> __m512 {
    _mm512_shuffle_f32x4::<0b11_01_11_01>(first, second)
}
