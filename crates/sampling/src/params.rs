//! What a request says about sampling, and the seeds of its choices.

use crate::adjust::{Adjustments, outside};
use crate::{Error, philox};

/// The most alternatives reported with one token.
pub const LOGPROBS_MAX: u32 = 20;

/// The sampling part of one request. Plain data: [`SamplingParams::validate`] says whether it can be used, and
/// [`crate::Sampler`] exists only for parameters that passed.
#[derive(Debug, Clone, PartialEq)]
pub struct SamplingParams {
    /// Divides the logits; 0 is greedy.
    pub temperature: f32,
    /// Keep the k largest logits; 0 keeps all.
    pub top_k: u32,
    /// Keep the fewest largest tokens whose probability reaches this; 1 keeps all.
    pub top_p: f32,
    /// Keep tokens at least this likely relative to the likeliest; 0 keeps all.
    pub min_p: f32,
    /// Key of the noise.
    pub seed: u64,
    /// `None`: no log-probabilities. `Some(n)`: that of the token produced and of the n likeliest.
    pub logprobs: Option<u32>,
    /// `Some(n)`: the log-probability of each prompt token, and of the n likeliest in its place.
    pub prompt_logprobs: Option<u32>,
    /// Changes to single logits, before the temperature.
    pub adjust: Adjustments,
}

impl Default for SamplingParams {
    /// Plain sampling at temperature 1 with nothing filtered.
    fn default() -> Self {
        Self {
            temperature: 1.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            seed: 0,
            logprobs: None,
            prompt_logprobs: None,
            adjust: Adjustments::default(),
        }
    }
}

impl SamplingParams {
    /// Greedy decoding: the likeliest token each time.
    #[must_use]
    pub fn greedy() -> Self {
        Self { temperature: 0.0, ..Self::default() }
    }

    /// Checks every field.
    ///
    /// # Errors
    /// The first field out of range, by name and with its value.
    pub fn validate(&self) -> Result<(), Error> {
        if !(self.temperature.is_finite() && self.temperature >= 0.0) {
            return Err(Error::Temperature { got: self.temperature });
        }
        if !(self.top_p > 0.0 && self.top_p <= 1.0) {
            return Err(Error::TopP { got: self.top_p });
        }
        if !(self.min_p >= 0.0 && self.min_p <= 1.0) {
            return Err(Error::MinP { got: self.min_p });
        }
        for wanted in [self.logprobs, self.prompt_logprobs] {
            if let Some(got) = wanted.filter(|got| *got > LOGPROBS_MAX) {
                return Err(Error::Logprobs { got });
            }
        }
        self.adjust.validate()
    }

    /// Checks that every token named exists.
    ///
    /// # Errors
    /// The first field that names one outside `vocab_size`.
    pub fn check_vocabulary(&self, vocab_size: usize) -> Result<(), Error> {
        match outside(&self.adjust, vocab_size) {
            Some((field, got)) => Err(Error::FieldToken { field, vocab_size, got }),
            None => Ok(()),
        }
    }
}

/// The seed of choice `index` of `count` choices of one request.
///
/// A single choice keeps the request's seed. With several, each one, the first included, gets the first two Philox
/// words of key `seed` and counter `(index, 0, 0, 1)`; noise never uses a last counter word other than 0.
#[must_use]
pub fn choice_seed(seed: u64, index: u32, count: u32) -> u64 {
    if count <= 1 {
        return seed;
    }
    let [low, high, _, _] = philox::philox4x32([index, 0, 0, 1], philox::key(seed));
    u64::from(low) | u64::from(high) << 32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn out_of_range_fields_are_named_with_their_value() {
        let base = SamplingParams::default;
        let cases = [
            (SamplingParams { temperature: -1.0, ..base() }, "temperature", "-1"),
            (SamplingParams { temperature: f32::NAN, ..base() }, "temperature", "NaN"),
            (SamplingParams { temperature: f32::INFINITY, ..base() }, "temperature", "inf"),
            (SamplingParams { top_p: 0.0, ..base() }, "top_p", "0"),
            (SamplingParams { top_p: 1.5, ..base() }, "top_p", "1.5"),
            (SamplingParams { min_p: -0.25, ..base() }, "min_p", "-0.25"),
            (SamplingParams { min_p: f32::NAN, ..base() }, "min_p", "NaN"),
            (SamplingParams { logprobs: Some(10_000), ..base() }, "logprobs", "10000"),
        ];
        for (params, field, value) in cases {
            let error = params.validate().expect_err(field);
            assert_eq!(error.field(), Some(field));
            let text = error.to_string();
            assert!(text.starts_with(field) && text.ends_with(&format!("got {value}")), "{text}");
        }
    }

    #[test]
    fn limits_themselves_are_accepted() {
        let params = SamplingParams { min_p: 1.0, logprobs: Some(LOGPROBS_MAX), ..SamplingParams::greedy() };
        assert_eq!(params.validate(), Ok(()));
    }

    #[test]
    fn choices_have_their_own_seeds_only_when_there_are_several() {
        assert_eq!(choice_seed(7, 0, 1), 7);
        let seeds: std::collections::BTreeSet<u64> = (0..128).map(|index| choice_seed(7, index, 128)).collect();
        assert_eq!(seeds.len(), 128);
        assert!(!seeds.contains(&7));
        assert_eq!(choice_seed(7, 1, 2), choice_seed(7, 1, 128));
    }
}
