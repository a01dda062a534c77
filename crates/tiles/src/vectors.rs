//! Vectors of bfloat16 of x86: what is rounded in one instruction, and divided without a division.

use std::arch::x86_64::{
    __m256bh, __m256i, __m512, __mmask16, _MM_FROUND_NO_EXC, _MM_FROUND_TO_NEAREST_INT, _mm256_mask_storeu_epi16,
    _mm256_maskz_loadu_epi16, _mm512_add_ps, _mm512_castsi512_ps, _mm512_cvtepu16_epi32, _mm512_cvtneps_pbh,
    _mm512_fmadd_ps, _mm512_fnmadd_ps, _mm512_max_ps, _mm512_min_ps, _mm512_mul_ps, _mm512_rcp14_ps,
    _mm512_reduce_add_ps, _mm512_roundscale_ps, _mm512_scalef_ps, _mm512_set1_ps, _mm512_setzero_ps, _mm512_slli_epi32,
    _mm512_sub_ps,
};
use std::sync::OnceLock;

use crate::SIDE;

/// Beyond these the exponential leaves the normal numbers.
const ARGUMENT_MIN: f32 = -87.0;
const ARGUMENT_MAX: f32 = 88.0;
/// ln 2 in two parts, the first exact in few bits.
const LN_2: [f32; 2] = [0.693_359_4, -2.121_944_4e-4];
/// Minimax polynomial of the exponential on half of ln 2 to either side of 0 (Cephes `expf`).
const SERIES: [f32; 6] = [1.987_569_1e-4, 1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 0.5];

/// Shows that the processor has vectors of bfloat16.
#[derive(Clone, Copy, Debug)]
pub struct Vectors(());

impl Vectors {
    /// The vectors of this processor, if it has them.
    pub fn new() -> Option<Self> {
        static AVAILABLE: OnceLock<bool> = OnceLock::new();
        let is_available = *AVAILABLE.get_or_init(|| {
            is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512vl")
                && is_x86_feature_detected!("avx512bf16")
        });
        is_available.then_some(Self(()))
    }

    /// `silu(gate) * up` in bfloat16.
    ///
    /// # Panics
    /// If lengths differ.
    #[inline]
    pub fn gate(self, gates: &[u16], ups: &[u16], product: &mut [u16]) {
        assert!(gates.len() == ups.len() && gates.len() == product.len(), "a gate for each number");
        // SAFETY: processors that gave `Self` have these instructions.
        unsafe { gate(gates, ups, product) };
    }

    /// Adds `added` to the row `x` in place, if given, and gives the sum of its squares.
    ///
    /// # Panics
    /// If lengths differ.
    #[inline]
    pub fn add(self, x: &mut [u16], added: Option<&[u16]>) -> f32 {
        assert!(added.is_none_or(|added| added.len() == x.len()), "a number for each place");
        // SAFETY: processors that gave `Self` have these instructions.
        unsafe { add(x, added) }
    }

    /// `x * factor * weight` in bfloat16.
    ///
    /// # Panics
    /// If lengths differ.
    #[inline]
    pub fn scale(self, x: &[u16], factor: f32, weight: &[u16], product: &mut [u16]) {
        assert!(x.len() == weight.len() && x.len() == product.len(), "a weight for each number");
        // SAFETY: processors that gave `Self` have these instructions.
        unsafe { scale(x, factor, weight, product) };
    }
}

/// Sixteen places from `at` on, those in `mask`.
#[derive(Clone, Copy)]
struct Places {
    at: usize,
    mask: __mmask16,
}

/// Sixteen places after another of `count`, the last as many as are left.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
fn for_each(count: usize, mut work: impl FnMut(Places)) {
    let whole = count / SIDE * SIDE;
    for at in (0..whole).step_by(SIDE) {
        work(Places { at, mask: !0 });
    }
    if whole < count {
        work(Places { at: whole, mask: (1 << (count - whole)) - 1 });
    }
}

/// # Safety
/// `places` are within `numbers`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn load(numbers: &[u16], places: Places) -> __m512 {
    // SAFETY: the caller says so.
    wide(unsafe { _mm256_maskz_loadu_epi16(places.mask, numbers.as_ptr().add(places.at).cast()) })
}

#[inline]
#[target_feature(enable = "avx512f")]
fn wide(bits: __m256i) -> __m512 {
    _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(bits)))
}

/// Rounds, ties to even; gives what was stored.
///
/// # Safety
/// `places` are within `numbers`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
unsafe fn store(numbers: &mut [u16], places: Places, values: __m512) -> __m512 {
    // SAFETY: the types are of one size, and any bits are valid in both.
    let bits = unsafe { std::mem::transmute::<__m256bh, __m256i>(_mm512_cvtneps_pbh(values)) };
    // SAFETY: the caller says so.
    unsafe { _mm256_mask_storeu_epi16(numbers.as_mut_ptr().add(places.at).cast(), places.mask, bits) };
    wide(bits)
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
fn gate(gates: &[u16], ups: &[u16], product: &mut [u16]) {
    let (one, two) = (_mm512_set1_ps(1.0), _mm512_set1_ps(2.0));
    for_each(product.len(), |places| {
        // SAFETY: all three are of one length, as was checked.
        let [gate, up] = [gates, ups].map(|numbers| unsafe { load(numbers, places) });
        // What is less comes to nothing, too, and its exponential would not be large enough.
        let gate = _mm512_max_ps(_mm512_set1_ps(-ARGUMENT_MAX), gate);
        let divisor = _mm512_add_ps(one, exponential(_mm512_sub_ps(_mm512_setzero_ps(), gate)));
        // One step of Newton's doubles the 14 bits of the estimate.
        let estimate = _mm512_rcp14_ps(divisor);
        let inverse = _mm512_mul_ps(estimate, _mm512_fnmadd_ps(divisor, estimate, two));
        // SAFETY: as above.
        unsafe { store(product, places, _mm512_mul_ps(_mm512_mul_ps(gate, inverse), up)) };
    });
}

/// `e` to the power of `x`, taken as -87 or 88 beyond these. NaN stays NaN.
#[inline]
#[target_feature(enable = "avx512f")]
fn exponential(x: __m512) -> __m512 {
    const ROUNDING: i32 = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
    // Of two numbers that cannot be compared the second is taken.
    let x = _mm512_min_ps(_mm512_set1_ps(ARGUMENT_MAX), _mm512_max_ps(_mm512_set1_ps(ARGUMENT_MIN), x));
    let whole = _mm512_roundscale_ps::<ROUNDING>(_mm512_mul_ps(x, _mm512_set1_ps(std::f32::consts::LOG2_E)));
    let rest = LN_2.iter().fold(x, |rest, &part| _mm512_fnmadd_ps(whole, _mm512_set1_ps(part), rest));
    let mut series = _mm512_set1_ps(SERIES[0]);
    for &factor in &SERIES[1..] {
        series = _mm512_fmadd_ps(series, rest, _mm512_set1_ps(factor));
    }
    let value = _mm512_fmadd_ps(_mm512_mul_ps(rest, rest), series, _mm512_add_ps(rest, _mm512_set1_ps(1.0)));
    _mm512_scalef_ps(value, whole)
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
fn add(x: &mut [u16], added: Option<&[u16]>) -> f32 {
    let mut sum = _mm512_setzero_ps();
    for_each(x.len(), |places| {
        // SAFETY: what is added is as long, as was checked.
        let value = unsafe {
            match added {
                Some(added) => store(x, places, _mm512_add_ps(load(x, places), load(added, places))),
                None => load(x, places),
            }
        };
        sum = _mm512_fmadd_ps(value, value, sum);
    });
    _mm512_reduce_add_ps(sum)
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
fn scale(x: &[u16], factor: f32, weight: &[u16], product: &mut [u16]) {
    let factor = _mm512_set1_ps(factor);
    for_each(product.len(), |places| {
        // SAFETY: all three are of one length, as was checked.
        let [value, weight] = [x, weight].map(|numbers| unsafe { load(numbers, places) });
        // SAFETY: as above.
        unsafe { store(product, places, _mm512_mul_ps(_mm512_mul_ps(value, factor), weight)) };
    });
}
