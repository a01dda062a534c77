//! What tensors are made of.

/// A number as a tensor stores it. Arithmetic is done in fp32.
pub trait Element: Copy + Send + Sync + 'static {
    /// Zero.
    const ZERO: Self;

    /// The number.
    fn to_f32(self) -> f32;

    /// The nearest number of this type, ties to even.
    fn from_f32(value: f32) -> Self;

    /// The same numbers, if they are bits of bfloat16.
    fn halves(numbers: &[Self]) -> Option<&[u16]>;

    /// The same numbers, to be changed.
    fn halves_mut(numbers: &mut [Self]) -> Option<&mut [u16]>;
}

impl Element for f32 {
    const ZERO: Self = 0.0;

    #[inline(always)]
    fn to_f32(self) -> f32 {
        self
    }

    #[inline(always)]
    fn from_f32(value: f32) -> Self {
        value
    }

    #[inline(always)]
    fn halves(_numbers: &[Self]) -> Option<&[u16]> {
        None
    }

    #[inline(always)]
    fn halves_mut(_numbers: &mut [Self]) -> Option<&mut [u16]> {
        None
    }
}

/// The bits of a bfloat16.
impl Element for u16 {
    const ZERO: Self = 0;

    #[inline(always)]
    fn to_f32(self) -> f32 {
        f32::from_bits(u32::from(self) << 16)
    }

    #[inline(always)]
    fn from_f32(value: f32) -> Self {
        let bits = value.to_bits();
        // Half of the last place kept, less one where that place is even: ties go to even.
        let rounded = bits.wrapping_add(0x7fff).wrapping_add((bits >> 16) & 1);
        // Rounding up the bits of a NaN could make another number of it.
        let kept = if value.is_nan() { bits | 0x0040_0000 } else { rounded };
        (kept >> 16) as u16
    }

    #[inline(always)]
    fn halves(numbers: &[Self]) -> Option<&[u16]> {
        Some(numbers)
    }

    #[inline(always)]
    fn halves_mut(numbers: &mut [Self]) -> Option<&mut [u16]> {
        Some(numbers)
    }
}
