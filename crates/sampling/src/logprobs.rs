//! Log-probabilities: the log-softmax of raw logits, before any temperature or filter.

use crate::Error;
use crate::filter::{Scratch, keep_top_k, key_logit, key_token};
use crate::scan::largest;

/// Log-probabilities reported with one token.
#[derive(Debug, Clone, PartialEq)]
pub struct TokenLogprobs {
    /// That of the token produced.
    pub sampled: f32,
    /// The likeliest tokens with theirs, by value, then by id.
    pub top: Vec<(u32, f32)>,
}

/// The log-probabilities of `token_id` and of the `top_count` likeliest tokens of one row, summed in f64.
///
/// # Errors
/// The token is outside the row, or the row is unusable.
pub fn token_logprobs(
    logits: &[f32],
    token_id: u32,
    top_count: u32,
    scratch: &mut Scratch,
) -> Result<TokenLogprobs, Error> {
    let vocab_size = logits.len();
    let sampled = usize::try_from(token_id).ok().and_then(|position| logits.get(position));
    let &sampled = sampled.ok_or(Error::TokenId { token_id, vocab_size })?;
    let largest = f64::from(largest(logits)?.logit);
    let total: f64 = logits.iter().map(|logit| (f64::from(*logit) - largest).exp()).sum();
    let log_total = total.ln();
    let logprob = |logit: f32| (f64::from(logit) - largest - log_total) as f32;
    Ok(TokenLogprobs {
        sampled: logprob(sampled),
        top: scratch.ranked(logits, top_count).iter().map(|&key| (key_token(key), logprob(key_logit(key)))).collect(),
    })
}

impl Scratch {
    /// The keys of the `count` first-ranked tokens of a row, in rank order.
    fn ranked(&mut self, logits: &[f32], count: u32) -> &[u64] {
        let count = usize::try_from(count).map_or(logits.len(), |count| count.min(logits.len()));
        let keys = self.keys_mut();
        keys.clear();
        if count > 0 {
            keep_top_k(logits, count, keys);
            keys.sort_unstable_by(|left, right| right.cmp(left));
        }
        keys
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_a_small_row() {
        let probabilities = [0.5_f32, 0.125, 0.25, 0.125];
        let logits = probabilities.map(|probability| probability.ln() + 3.0);
        let mut scratch = Scratch::default();
        let found = token_logprobs(&logits, 3, 3, &mut scratch).expect("usable");
        assert!((found.sampled - 0.125_f32.ln()).abs() < 1e-6);
        assert_eq!(found.top.iter().map(|(id, _)| *id).collect::<Vec<_>>(), [0, 2, 1]);
        for (id, logprob) in &found.top {
            let expected = probabilities[usize::try_from(*id).expect("small")].ln();
            assert!((logprob - expected).abs() < 1e-6);
        }
    }

    #[test]
    fn zero_reports_only_the_token_itself_and_n_is_cut_at_the_vocabulary() {
        let mut scratch = Scratch::default();
        let logits = [1.0, f32::NEG_INFINITY, 0.0];
        assert_eq!(token_logprobs(&logits, 0, 0, &mut scratch).map(|found| found.top), Ok(vec![]));
        let found = token_logprobs(&logits, 1, 20, &mut scratch).expect("usable");
        assert_eq!(found.sampled, f32::NEG_INFINITY);
        assert_eq!(found.top.len(), 3);
        assert_eq!(token_logprobs(&logits, 3, 0, &mut scratch), Err(Error::TokenId { token_id: 3, vocab_size: 3 }));
    }
}
