//! What changes single logits before the filters: penalties, biases, and tokens that are allowed or not.
//!
//! In this order, each in f32:
//!
//! 1. Every token that occurred in prompt or output: a positive logit is divided by `repetition_penalty`, another one
//!    multiplied by it. Every token that occurred in the output: less `frequency_penalty` for each time, then less
//!    `presence_penalty`.
//! 2. `logit_bias` is added.
//! 3. With `allowed_token_ids`, all other tokens are excluded.
//! 4. The last token of a bad word is excluded where the output ends in the tokens before it; while the output is
//!    shorter than `min_tokens`, so are the tokens that would end it. When that leaves nothing, these two are void.
//!
//! The output at a verify position is the output so far and the drafts before it: rejected drafts leave no trace.

use crate::Error;

/// Presence and frequency penalties are at most this, either way.
pub const PENALTY_MAX: f32 = 2.0;

/// Repetition penalties lie between 1 over this and this.
pub const REPETITION_PENALTY_MAX: f32 = 1_000.0;

/// Biases are at most this, either way.
pub const LOGIT_BIAS_MAX: f32 = 100.0;

/// Entries of `logit_bias`, and of `allowed_token_ids`.
pub const ADJUSTED_TOKENS_MAX: usize = 4_096;

/// Bad words of one request, in all their spellings.
pub const BAD_WORDS_MAX: usize = 512;

/// Tokens of one bad word.
pub const BAD_WORD_TOKENS_MAX: usize = 64;

/// Marks a token that occurred; the bits under it count how often it did in the output.
const SEEN: u32 = 1 << 31;

/// Changes to the logits of one request. The default changes nothing.
#[derive(Debug, Clone, PartialEq)]
pub struct Adjustments {
    /// Taken once from every token of the output.
    pub presence_penalty: f32,
    /// Taken from a token for each time it is in the output.
    pub frequency_penalty: f32,
    /// Divides positive logits of tokens in prompt or output and multiplies others; 1 changes nothing.
    pub repetition_penalty: f32,
    /// Added to the logits of these tokens.
    pub logit_bias: Vec<(u32, f32)>,
    /// The only tokens that may be chosen; `None` allows all.
    pub allowed_token_ids: Option<Vec<u32>>,
    /// Token sequences that must not come about.
    pub bad_words: Vec<Vec<u32>>,
    /// Tokens of output before one of `ending_token_ids` may be chosen.
    pub min_tokens: u32,
    /// The tokens that would end the output; needed with `min_tokens` only.
    pub ending_token_ids: Vec<u32>,
}

impl Default for Adjustments {
    fn default() -> Self {
        Self {
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            repetition_penalty: 1.0,
            logit_bias: Vec::new(),
            allowed_token_ids: None,
            bad_words: Vec::new(),
            min_tokens: 0,
            ending_token_ids: Vec::new(),
        }
    }
}

/// Where in its request a row of logits stands.
#[derive(Debug, Clone, Copy, Default)]
pub struct Context<'a> {
    /// Tokens of the prompt.
    pub prompt_len: u64,
    /// 0-based position, in prompt and output, of the first token to be chosen.
    pub index: u64,
    /// The tokens that end before `index`: all of them where [`Adjustments::needs_history`], else as many as are known.
    pub tokens: &'a [u32],
}

impl Context<'_> {
    /// A place in a request whose tokens do not matter.
    #[must_use]
    pub const fn at(index: u64) -> Self {
        Context { prompt_len: 0, index, tokens: &[] }
    }

    /// How many of `tokens` belong to the prompt.
    fn prompt_tokens(&self) -> usize {
        let output = self.index.saturating_sub(self.prompt_len);
        self.tokens.len().saturating_sub(usize::try_from(output).unwrap_or(usize::MAX))
    }

    /// Tokens of output before the one at `index`.
    fn output_len(&self) -> u64 {
        self.index.saturating_sub(self.prompt_len)
    }
}

/// Buffers of [`Adjustments::apply`].
#[derive(Debug, Default)]
pub(crate) struct AdjustScratch {
    /// The changed row.
    pub(crate) row: Vec<f32>,
    /// One entry per token of the vocabulary; zero between uses.
    counts: Vec<u32>,
    /// Excluded tokens with what they had.
    excluded: Vec<(usize, f32)>,
}

impl Adjustments {
    /// Whether anything is changed at all.
    #[must_use]
    pub fn is_neutral(&self) -> bool {
        !self.has_penalties()
            && self.logit_bias.is_empty()
            && self.allowed_token_ids.is_none()
            && self.bad_words.is_empty()
            && self.min_tokens == 0
    }

    /// Whether all tokens of prompt and output must be known where tokens are chosen.
    #[must_use]
    pub fn needs_history(&self) -> bool {
        self.has_penalties() || self.bad_words.iter().any(|word| word.len() > 1)
    }

    fn has_penalties(&self) -> bool {
        self.presence_penalty != 0.0 || self.frequency_penalty != 0.0 || self.repetition_penalty != 1.0
    }

    /// Checks every field.
    pub(crate) fn validate(&self) -> Result<(), Error> {
        let penalties = [("presence_penalty", self.presence_penalty), ("frequency_penalty", self.frequency_penalty)];
        for (field, got) in penalties {
            in_range(field, -PENALTY_MAX, PENALTY_MAX, got)?;
        }
        let low = 1.0 / REPETITION_PENALTY_MAX;
        in_range("repetition_penalty", low, REPETITION_PENALTY_MAX, self.repetition_penalty)?;
        for (_, bias) in &self.logit_bias {
            in_range("logit_bias", -LOGIT_BIAS_MAX, LOGIT_BIAS_MAX, *bias)?;
        }
        at_most("logit_bias", ADJUSTED_TOKENS_MAX, self.logit_bias.len())?;
        if let Some(allowed) = &self.allowed_token_ids {
            at_most("allowed_token_ids", ADJUSTED_TOKENS_MAX, allowed.len())?;
            if allowed.is_empty() {
                return Err(Error::Empty { field: "allowed_token_ids" });
            }
        }
        at_most("bad_words", BAD_WORDS_MAX, self.bad_words.len())?;
        for word in &self.bad_words {
            at_most("bad_words", BAD_WORD_TOKENS_MAX, word.len())?;
            if word.is_empty() {
                return Err(Error::Empty { field: "bad_words" });
            }
        }
        Ok(())
    }

    /// Writes the changed `logits` of the token after `context` and `drafts` into `scratch.row`.
    pub(crate) fn apply(&self, logits: &[f32], context: &Context<'_>, drafts: &[u32], scratch: &mut AdjustScratch) {
        scratch.row.clear();
        scratch.row.extend_from_slice(logits);
        if self.has_penalties() {
            scratch.counts.resize(scratch.counts.len().max(logits.len()), 0);
            self.penalize(&mut scratch.row, context, drafts, &mut scratch.counts);
        }
        for (token_id, bias) in &self.logit_bias {
            if let Some(logit) = scratch.row.get_mut(*token_id as usize) {
                *logit += bias;
            }
        }
        if let Some(allowed) = &self.allowed_token_ids {
            keep_only(&mut scratch.row, allowed);
        }
        self.exclude(context, drafts, scratch);
    }

    fn penalize(&self, row: &mut [f32], context: &Context<'_>, drafts: &[u32], counts: &mut [u32]) {
        let counts = &mut counts[..row.len()];
        let (prompt, output) = context.tokens.split_at(context.prompt_tokens());
        for token_id in prompt {
            if let Some(count) = counts.get_mut(*token_id as usize) {
                *count |= SEEN;
            }
        }
        for token_id in output.iter().chain(drafts) {
            if let Some(count) = counts.get_mut(*token_id as usize) {
                *count = (*count | SEEN) + 1;
            }
        }
        for token_id in context.tokens.iter().chain(drafts) {
            let Some(count) = counts.get_mut(*token_id as usize) else { continue };
            let seen = std::mem::take(count);
            if seen == 0 {
                continue;
            }
            let logit = &mut row[*token_id as usize];
            if self.repetition_penalty != 1.0 {
                *logit = if *logit > 0.0 { *logit / self.repetition_penalty } else { *logit * self.repetition_penalty };
            }
            if seen != SEEN {
                *logit -= self.frequency_penalty * (seen & !SEEN) as f32;
                *logit -= self.presence_penalty;
            }
        }
    }

    fn exclude(&self, context: &Context<'_>, drafts: &[u32], scratch: &mut AdjustScratch) {
        let AdjustScratch { row, excluded, .. } = scratch;
        excluded.clear();
        let mut take = |token_id: u32| {
            if let Some(logit) = row.get_mut(token_id as usize).filter(|logit| **logit != f32::NEG_INFINITY) {
                excluded.push((token_id as usize, std::mem::replace(logit, f32::NEG_INFINITY)));
            }
        };
        for word in &self.bad_words {
            let (last, before) = word.split_last().expect("validated: a bad word has a token");
            if output_ends_with(context, drafts, before) {
                take(*last);
            }
        }
        if context.output_len() + (drafts.len() as u64) < u64::from(self.min_tokens) {
            self.ending_token_ids.iter().for_each(|token_id| take(*token_id));
        }
        if !excluded.is_empty() && row.iter().all(|logit| *logit == f32::NEG_INFINITY) {
            for (position, logit) in excluded.drain(..) {
                row[position] = logit;
            }
        }
    }
}

fn output_ends_with(context: &Context<'_>, drafts: &[u32], ending: &[u32]) -> bool {
    let output = &context.tokens[context.prompt_tokens()..];
    let known = output.iter().chain(drafts).rev();
    output.len() + drafts.len() >= ending.len() && known.zip(ending.iter().rev()).all(|(left, right)| left == right)
}

/// Excludes every token that is not in `allowed`.
fn keep_only(row: &mut [f32], allowed: &[u32]) {
    let of = |token_id: &u32| row.get(*token_id as usize).map(|logit| (*token_id as usize, *logit));
    let kept: Vec<(usize, f32)> = allowed.iter().filter_map(of).collect();
    row.fill(f32::NEG_INFINITY);
    for (position, logit) in kept {
        row[position] = logit;
    }
}

fn in_range(field: &'static str, low: f32, high: f32, got: f32) -> Result<(), Error> {
    if got >= low && got <= high { Ok(()) } else { Err(Error::Range { field, low, high, got }) }
}

fn at_most(field: &'static str, most: usize, got: usize) -> Result<(), Error> {
    if got <= most { Ok(()) } else { Err(Error::TooMany { field, most, got }) }
}

/// The first token that an adjustment names and the vocabulary does not have.
pub(crate) fn outside(adjust: &Adjustments, vocab_size: usize) -> Option<(&'static str, u32)> {
    let bound = u32::try_from(vocab_size).unwrap_or(u32::MAX);
    let biased = adjust.logit_bias.iter().map(|(id, _)| ("logit_bias", *id));
    let allowed = adjust.allowed_token_ids.iter().flatten().map(|id| ("allowed_token_ids", *id));
    let bad = adjust.bad_words.iter().flatten().map(|id| ("bad_words", *id));
    biased.chain(allowed).chain(bad).find(|(_, id)| *id >= bound)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn applied(adjust: &Adjustments, logits: &[f32], prompt: &[u32], output: &[u32], drafts: &[u32]) -> Vec<f32> {
        adjust.validate().expect("in range");
        let tokens: Vec<u32> = prompt.iter().chain(output).copied().collect();
        let context = Context { prompt_len: prompt.len() as u64, index: tokens.len() as u64, tokens: &tokens };
        let mut scratch = AdjustScratch::default();
        // Twice: nothing of the first use may show in the second.
        adjust.apply(logits, &context, drafts, &mut scratch);
        let first = scratch.row.clone();
        adjust.apply(logits, &context, drafts, &mut scratch);
        assert_eq!(first, scratch.row);
        first
    }

    const OUT: f32 = f32::NEG_INFINITY;

    #[test]
    fn c15_penalties_count_output_and_drafts_and_only_repetition_counts_the_prompt() {
        let adjust = Adjustments {
            presence_penalty: 0.5,
            frequency_penalty: 0.25,
            repetition_penalty: 2.0,
            ..Adjustments::default()
        };
        let logits = [4.0, -4.0, 4.0, 4.0, 4.0];
        let found = applied(&adjust, &logits, &[0, 1], &[2, 2], &[2, 3]);
        assert_eq!(found, [2.0, -8.0, 2.0 - 0.75 - 0.5, 2.0 - 0.25 - 0.5, 4.0]);
        assert_eq!(applied(&adjust, &logits, &[0, 1], &[], &[]), [2.0, -8.0, 4.0, 4.0, 4.0]);
    }

    #[test]
    fn bias_and_allowed_tokens() {
        let adjust = Adjustments {
            logit_bias: vec![(1, 3.0), (2, -100.0)],
            allowed_token_ids: Some(vec![1, 3]),
            ..Adjustments::default()
        };
        assert_eq!(applied(&adjust, &[1.0; 4], &[0], &[], &[]), [OUT, 4.0, OUT, 1.0]);
    }

    #[test]
    fn a_bad_word_is_cut_at_its_last_token_and_only_in_the_output() {
        let adjust = Adjustments { bad_words: vec![vec![1, 2, 3], vec![0]], ..Adjustments::default() };
        assert_eq!(applied(&adjust, &[1.0; 4], &[1, 2], &[], &[]), [OUT, 1.0, 1.0, 1.0]);
        assert_eq!(applied(&adjust, &[1.0; 4], &[], &[1, 2], &[]), [OUT, 1.0, 1.0, OUT]);
        assert_eq!(applied(&adjust, &[1.0; 4], &[], &[1], &[2]), [OUT, 1.0, 1.0, OUT]);
        assert_eq!(applied(&adjust, &[1.0; 4], &[1], &[2], &[]), [OUT, 1.0, 1.0, 1.0]);
    }

    #[test]
    fn the_end_waits_for_min_tokens_drafts_included() {
        let adjust = Adjustments { min_tokens: 2, ending_token_ids: vec![1], ..Adjustments::default() };
        assert_eq!(applied(&adjust, &[1.0; 3], &[0], &[0], &[]), [1.0, OUT, 1.0]);
        assert_eq!(applied(&adjust, &[1.0; 3], &[0], &[0], &[0]), [1.0; 3]);
        assert_eq!(applied(&adjust, &[1.0; 3], &[0], &[0, 0], &[]), [1.0; 3]);
    }

    #[test]
    fn exclusions_that_leave_nothing_are_void() {
        let adjust = Adjustments {
            allowed_token_ids: Some(vec![1]),
            min_tokens: 9,
            ending_token_ids: vec![1],
            ..Adjustments::default()
        };
        assert_eq!(applied(&adjust, &[1.0; 3], &[0], &[], &[]), [OUT, 1.0, OUT]);
    }

    #[test]
    fn limits_name_the_field() {
        let cases = [
            (Adjustments { presence_penalty: 2.5, ..Adjustments::default() }, "presence_penalty"),
            (Adjustments { frequency_penalty: f32::NAN, ..Adjustments::default() }, "frequency_penalty"),
            (Adjustments { repetition_penalty: 0.0, ..Adjustments::default() }, "repetition_penalty"),
            (Adjustments { logit_bias: vec![(0, 101.0)], ..Adjustments::default() }, "logit_bias"),
            (Adjustments { allowed_token_ids: Some(vec![]), ..Adjustments::default() }, "allowed_token_ids"),
            (Adjustments { bad_words: vec![vec![]], ..Adjustments::default() }, "bad_words"),
            (Adjustments { bad_words: vec![vec![1]; 513], ..Adjustments::default() }, "bad_words"),
        ];
        for (adjust, field) in cases {
            assert_eq!(adjust.validate().expect_err(field).field(), Some(field));
        }
        assert!(Adjustments::default().is_neutral() && Adjustments::default().validate().is_ok());
    }

    #[test]
    fn tokens_outside_the_vocabulary_are_found() {
        let adjust = Adjustments { bad_words: vec![vec![1, 7]], ..Adjustments::default() };
        assert_eq!(outside(&adjust, 7), Some(("bad_words", 7)));
        assert_eq!(outside(&adjust, 8), None);
    }
}
