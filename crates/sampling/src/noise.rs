//! The noise added to a scaled logit: Gumbel-distributed, a pure function of seed, index and token.
//!
//! `x` is the first Philox word of key = seed and counter = (index low, index high, token id, 0);
//! `u = (x + 0.5) * 2^-32`; noise = `-ln(-ln u)`, in f64.

use std::f64::consts::LN_2;

use crate::philox;

/// No noise exceeds this: the largest is `-ln(-ln(1 - 2^-33))`, just under `33 ln 2`.
pub const NOISE_MAX: f64 = 33.0 * LN_2;

/// Where the noise of one token position comes from.
#[derive(Debug, Clone, Copy)]
pub struct NoiseSource {
    key: [u32; 2],
    index: [u32; 2],
}

impl NoiseSource {
    /// `index` is the 0-based position in prompt and output of the token being produced.
    #[must_use]
    pub fn new(seed: u64, index: u64) -> Self {
        Self { key: philox::key(seed), index: philox::key(index) }
    }

    /// The noise of one token.
    #[must_use]
    pub fn of(&self, token_id: u32) -> f64 {
        noise_of_word(self.word(token_id))
    }

    /// The random word of one token.
    #[must_use]
    #[inline]
    pub fn word(&self, token_id: u32) -> u32 {
        philox::philox4x32([self.index[0], self.index[1], token_id, 0], self.key)[0]
    }
}

/// The noise made from a random word.
#[must_use]
pub fn noise_of_word(word: u32) -> f64 {
    const SCALE: f64 = 1.0 / 4_294_967_296.0;
    let uniform = (f64::from(word) + 0.5) * SCALE;
    -(-uniform.ln()).ln()
}

/// An upper bound of [`noise_of_word`] that takes no logarithm.
///
/// With `w = 2^32 - 1 - word`, `-ln u >= 1 - u = (w + 0.5) * 2^-32`, so noise `<= 32 ln 2 - ln(w + 0.5)`, and
/// `w + 0.5 > 2^(31 - leading zeros of w)`. It exceeds the noise by far more than rounding errors.
#[must_use]
#[inline]
pub fn noise_bound_of_word(word: u32) -> f64 {
    f64::from((!word).leading_zeros() + 1) * LN_2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extremes() {
        assert!((noise_of_word(u32::MAX) - (-(-f64::ln_1p(-(-33.0_f64).exp2())).ln())).abs() < 1e-9);
        assert!(noise_of_word(u32::MAX) < NOISE_MAX);
        assert!((noise_of_word(0) - -(33.0 * LN_2).ln()).abs() < 1e-12);
    }

    #[test]
    fn the_bound_holds_at_every_power_of_two_and_between() {
        let source = NoiseSource::new(3, 4);
        let near_powers = (0..32).flat_map(|shift| {
            let power = 1_u32 << shift;
            [power - 1, power, power.wrapping_add(1), power | power >> 1]
        });
        let words = near_powers.chain((0..10_000).map(|id| source.word(id))).chain([0, u32::MAX]);
        for word in words.flat_map(|word| [word, !word]) {
            assert!(noise_of_word(word) + 1e-11 < noise_bound_of_word(word), "word {word}");
            assert!(noise_bound_of_word(word) <= NOISE_MAX);
        }
    }

    #[test]
    fn index_and_token_both_matter_beyond_32_bits() {
        let words = [0, 1, 1 << 32, (1 << 32) + 1].map(|index| NoiseSource::new(9, index).word(5));
        let distinct: std::collections::BTreeSet<u32> = words.into_iter().collect();
        assert_eq!(distinct.len(), 4);
    }
}
