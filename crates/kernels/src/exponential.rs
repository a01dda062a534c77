//! The exponential function in a form that compilers turn into vector instructions.

const LOG2_E: f32 = std::f32::consts::LOG2_E;
/// ln 2 in two parts, the first exact in few bits, so that the reduced argument is exact.
const LN_2_HIGH: f32 = 0.693_359_4;
const LN_2_LOW: f32 = -2.121_944_4e-4;
/// Added and subtracted, rounds to the nearest whole number; its bits count up with that number.
const ROUNDING: f32 = 12_582_912.0;
/// Beyond these the result would leave the normal numbers.
const ARGUMENT_MIN: f32 = -87.0;
const ARGUMENT_MAX: f32 = 88.0;

/// `e` to the power of `x`, to about one unit in the last place; `x` is taken as -87 or 88 beyond these. NaN stays NaN.
#[inline(always)]
pub(crate) fn exponential(x: f32) -> f32 {
    // Not `clamp` or `max`, which would turn NaN into a number.
    let x = if x < ARGUMENT_MIN { ARGUMENT_MIN } else { x };
    let x = if x > ARGUMENT_MAX { ARGUMENT_MAX } else { x };
    let shifted = x * LOG2_E + ROUNDING;
    let whole = shifted - ROUNDING;
    let rest = (x - whole * LN_2_HIGH) - whole * LN_2_LOW;
    // Minimax polynomial of the exponential on half of ln 2 to either side of 0 (Cephes `expf`).
    let mut series = 1.987_569_1e-4;
    series = series * rest + 1.398_199_9e-3;
    series = series * rest + 8.333_452e-3;
    series = series * rest + 4.166_579_6e-2;
    series = series * rest + 1.666_666_5e-1;
    series = series * rest + 0.5;
    let value = series * rest * rest + rest + 1.0;
    let exponent = shifted.to_bits().wrapping_sub(ROUNDING.to_bits()).wrapping_add(127);
    value * f32::from_bits(exponent << 23)
}

#[cfg(test)]
mod tests {
    use super::exponential;

    #[test]
    fn it_is_close_to_the_library_function() {
        let mut worst = 0.0_f32;
        for step in -870_000..880_000 {
            let x = step as f32 * 1e-4;
            worst = worst.max((exponential(x) / x.exp() - 1.0).abs());
        }
        assert!(worst < 3e-7, "relative error {worst}");
    }

    #[test]
    fn extremes_stay_in_range_and_nan_stays() {
        assert!(exponential(f32::NEG_INFINITY) < 1e-37);
        assert!(exponential(f32::INFINITY).is_finite());
        assert!(exponential(f32::NAN).is_nan());
        assert_eq!(exponential(0.0), 1.0);
    }
}
