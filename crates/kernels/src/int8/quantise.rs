//! From numbers to bytes with a factor for each row.

use pulp::{Arch, Simd, WithSimd};

use crate::{Element, crew};

/// The largest magnitude of a quantised number.
const LARGEST: f32 = 127.0;
/// Rows of which nothing is larger count as zero: their factor would have no inverse.
const NOTHING: f32 = 1e-30;
/// Bits of infinity; all that have more, the sign aside, are no number.
const INFINITE: u32 = 0x7f80_0000;
/// Added, rounds to the nearest whole number, ties to even, and leaves it in the lowest byte.
const ROUNDING: f32 = 12_582_912.0;

/// Quantises `rows` to `bytes`, and writes the factor of each row, by which its bytes are to be multiplied.
///
/// The largest magnitude of a row becomes 127. A row with a number that is not finite is all zeros with a factor that is
/// NaN, so that what is made of it is NaN too.
///
/// # Panics
/// If there are no factors and yet numbers, or numbers are no multiple of the factors or not as many as bytes.
pub fn quantise_rows<E: Element>(rows: &[E], bytes: &mut [i8], factors: &mut [f32]) {
    assert_eq!(rows.len(), bytes.len(), "bytes of the rows");
    let width = rows.len().checked_div(factors.len()).unwrap_or(0);
    assert_eq!(rows.len(), width * factors.len(), "numbers of the rows");
    if width == 0 {
        factors.fill(0.0);
        return;
    }
    let part = factors.len().div_ceil(crew::parts(factors.len(), rows.len()));
    let parts = rows.chunks(part * width).zip(bytes.chunks_mut(part * width)).zip(factors.chunks_mut(part));
    crew::run(
        parts.map(|((rows, bytes), factors)| move || Arch::new().dispatch(Quantise { rows, bytes, factors, width })),
    );
}

struct Quantise<'a, E> {
    rows: &'a [E],
    bytes: &'a mut [i8],
    factors: &'a mut [f32],
    width: usize,
}

impl<E: Element> WithSimd for Quantise<'_, E> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _simd: S) {
        let rows = self.rows.chunks_exact(self.width).zip(self.bytes.chunks_exact_mut(self.width));
        for ((row, bytes), factor) in rows.zip(self.factors) {
            *factor = quantise_row(row, bytes);
        }
    }
}

#[inline(always)]
fn quantise_row<E: Element>(row: &[E], bytes: &mut [i8]) -> f32 {
    // As bits: larger magnitudes have larger ones, and NaN has the largest.
    let largest = row.iter().fold(0, |largest, value| (value.to_f32().to_bits() & !(1 << 31)).max(largest));
    if largest >= INFINITE {
        bytes.fill(0);
        return f32::NAN;
    }
    let largest = f32::from_bits(largest);
    if largest < NOTHING {
        bytes.fill(0);
        return 0.0;
    }
    let inverse = LARGEST / largest;
    for (byte, value) in bytes.iter_mut().zip(row) {
        *byte = (value.to_f32() * inverse + ROUNDING).to_bits() as i8;
    }
    largest / LARGEST
}
