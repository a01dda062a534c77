//! Choosing tokens: one row, or a row of drafts verified by sampling and matching.

use crate::filter::{Filter, Kept, Scratch, key, key_logit, key_token};
use crate::mask;
use crate::noise::{NOISE_MAX, NoiseSource, noise_bound_of_word, noise_of_word};
use crate::scan::{Largest, largest, token_id};
use crate::{Context, Error, SamplingParams, TokenLogprobs, token_logprobs};

/// Tokens whose logits are compared before any noise is made.
const CHUNK: usize = 256;

/// Validated parameters of one request, ready to sample with.
#[derive(Debug, Clone)]
pub struct Sampler {
    params: SamplingParams,
    filter: Filter,
}

/// What one row of a step produced.
#[derive(Debug, Clone, PartialEq)]
pub struct Produced {
    /// Drafts that the target agreed with.
    pub accepted: usize,
    /// The tokens: accepted drafts, then one of the target's own.
    pub emitted: Vec<u32>,
    /// One entry per emitted token, or none where the request wants none.
    pub logprobs: Vec<TokenLogprobs>,
}

/// The best token so far: largest score, lowest id on ties.
#[derive(Debug, Clone, Copy)]
struct Best {
    score: f64,
    token_id: u32,
}

impl Best {
    fn offer(&mut self, score: f64, token_id: u32) {
        if score > self.score || (score == self.score && token_id < self.token_id) {
            *self = Self { score, token_id };
        }
    }
}

impl Sampler {
    /// Prepares parameters for sampling.
    ///
    /// # Errors
    /// A parameter is out of range.
    pub fn new(params: SamplingParams) -> Result<Self, Error> {
        params.validate()?;
        let filter = Filter {
            temperature: f64::from(params.temperature),
            top_k: usize::try_from(params.top_k).unwrap_or(usize::MAX),
            top_p: f64::from(params.top_p),
            min_p_log: f64::from(params.min_p).ln(),
        };
        Ok(Self { params, filter })
    }

    /// Prepares the parameters that a plan carries.
    ///
    /// # Errors
    /// The bytes cannot be decoded or a parameter is out of range.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, Error> {
        Self::new(SamplingParams::from_bytes(bytes)?)
    }

    /// The parameters.
    #[must_use]
    pub fn params(&self) -> &SamplingParams {
        &self.params
    }

    /// Chooses the token that follows `context` and `drafts` from one row of raw logits: adjusts them, then samples.
    ///
    /// # Errors
    /// A logit is NaN or positive infinity, or every token is excluded.
    pub fn choose(
        &self,
        logits: &[f32],
        context: &Context<'_>,
        drafts: &[u32],
        scratch: &mut Scratch,
    ) -> Result<u32, Error> {
        let index = context.index + drafts.len() as u64;
        if self.params.adjust.is_neutral() {
            return self.sample(logits, index, scratch);
        }
        self.params.adjust.apply(logits, context, drafts, &mut scratch.adjusted);
        let row = std::mem::take(&mut scratch.adjusted.row);
        let chosen = self.sample(&row, index, scratch);
        scratch.adjusted.row = row;
        chosen
    }

    /// As [`Sampler::choose`], among the tokens that `allowed` allows: token t if bit `t % 32` of word `t / 32` is set.
    ///
    /// What is allowed counts for more than the adjustments: where they leave none of it, they are void.
    ///
    /// # Errors
    /// Those of [`Sampler::choose`].
    pub fn choose_allowed(
        &self,
        logits: &[f32],
        context: &Context<'_>,
        drafts: &[u32],
        allowed: &[u32],
        scratch: &mut Scratch,
    ) -> Result<u32, Error> {
        let mut row = std::mem::take(&mut scratch.adjusted.row);
        if self.params.adjust.is_neutral() {
            row.clear();
            row.extend_from_slice(logits);
        } else {
            scratch.adjusted.row = row;
            self.params.adjust.apply(logits, context, drafts, &mut scratch.adjusted);
            row = std::mem::take(&mut scratch.adjusted.row);
        }
        if !mask::keep_allowed(&mut row, allowed) {
            row.copy_from_slice(logits);
            mask::keep_allowed(&mut row, allowed);
        }
        let chosen = self.sample(&row, context.index + drafts.len() as u64, scratch);
        scratch.adjusted.row = row;
        chosen
    }

    /// Chooses the token at `index`, its 0-based position in prompt and output, from one row of logits as they are.
    ///
    /// # Errors
    /// A logit is NaN or positive infinity, or every token is excluded.
    pub fn sample(&self, logits: &[f32], index: u64, scratch: &mut Scratch) -> Result<u32, Error> {
        let largest = largest(logits)?;
        if self.is_greedy() {
            return Ok(largest.token_id);
        }
        let noise = NoiseSource::new(self.params.seed, index);
        Ok(match self.filter.apply(logits, largest, scratch) {
            Kept::AtLeast(floor) => self.best_of_row(logits, floor, largest, noise),
            Kept::Ranked(keys) => self.best_of_ranked(keys, noise),
        })
    }

    /// The tokens that the filters keep in this row, in rank order: what [`Sampler::sample`] chooses among.
    ///
    /// # Errors
    /// The row is unusable.
    pub fn kept(&self, logits: &[f32], scratch: &mut Scratch) -> Result<Vec<u32>, Error> {
        let largest = largest(logits)?;
        if self.is_greedy() {
            return Ok(vec![largest.token_id]);
        }
        let floor = match self.filter.apply(logits, largest, scratch) {
            Kept::Ranked(keys) => return Ok(keys.iter().map(|key| key_token(*key)).collect()),
            Kept::AtLeast(floor) => floor,
        };
        let mut keys: Vec<u64> =
            (0..).zip(logits).filter(|(_, logit)| **logit >= floor).map(|(id, logit)| key(*logit, id)).collect();
        keys.sort_unstable_by(|left, right| right.cmp(left));
        Ok(keys.into_iter().map(key_token).collect())
    }

    /// Verifies drafts by sampling the target at each position.
    ///
    /// `rows` holds one row of logits more than there are drafts: row j is what the target gave after draft j - 1,
    /// and its token has position `context.index + j`. A draft is accepted while it equals the token sampled in its
    /// place; the first that differs is replaced, and one more token follows when all are accepted. So 1 + accepted
    /// tokens are appended to `emitted`, the very tokens that sampling one by one would give. Returns the number
    /// accepted.
    ///
    /// # Errors
    /// The rows are of another number, or one that is reached is unusable; `emitted` then holds the tokens of the
    /// rows before it.
    pub fn verify(
        &self,
        rows: &[&[f32]],
        drafts: &[u32],
        context: &Context<'_>,
        scratch: &mut Scratch,
        emitted: &mut Vec<u32>,
    ) -> Result<usize, Error> {
        self.verify_allowed(rows, &[], drafts, context, scratch, emitted)
    }

    /// [`Sampler::verify`] with a mask for each row that has one; rows past the end of `masks` have none.
    fn verify_allowed(
        &self,
        rows: &[&[f32]],
        masks: &[Option<&[u32]>],
        drafts: &[u32],
        context: &Context<'_>,
        scratch: &mut Scratch,
        emitted: &mut Vec<u32>,
    ) -> Result<usize, Error> {
        let expected = drafts.len() + 1;
        if rows.len() != expected {
            return Err(Error::LogitsRows { expected, got: rows.len() });
        }
        let mut accepted = 0;
        for (index, row) in rows.iter().enumerate() {
            let before = &drafts[..accepted];
            let token_id = match masks.get(index).copied().flatten() {
                Some(allowed) => self.choose_allowed(row, context, before, allowed, scratch)?,
                None => self.choose(row, context, before, scratch)?,
            };
            emitted.push(token_id);
            if drafts.get(accepted) != Some(&token_id) {
                break;
            }
            accepted += 1;
        }
        Ok(accepted)
    }

    /// Everything that one row of a step produces: verified drafts, emitted tokens, and log-probabilities of the
    /// emitted tokens where the request wants them. Without drafts it is plain sampling.
    ///
    /// # Errors
    /// Those of [`Sampler::verify`].
    pub fn produce(
        &self,
        rows: &[&[f32]],
        drafts: &[u32],
        context: &Context<'_>,
        scratch: &mut Scratch,
    ) -> Result<Produced, Error> {
        self.produce_allowed(rows, &[], drafts, context, scratch)
    }

    /// [`Sampler::produce`] with a mask for each row that has one (see [`Sampler::choose_allowed`]); rows past the end
    /// of `masks` have none. Log-probabilities are of the logits as they are, masked or not.
    ///
    /// # Errors
    /// Those of [`Sampler::verify`].
    pub fn produce_allowed(
        &self,
        rows: &[&[f32]],
        masks: &[Option<&[u32]>],
        drafts: &[u32],
        context: &Context<'_>,
        scratch: &mut Scratch,
    ) -> Result<Produced, Error> {
        let mut emitted = Vec::with_capacity(drafts.len() + 1);
        let accepted = self.verify_allowed(rows, masks, drafts, context, scratch, &mut emitted)?;
        let logprobs = match self.params.logprobs {
            None => Vec::new(),
            Some(top_count) => {
                let of_row = |(row, token_id): (&&[f32], &u32)| token_logprobs(row, *token_id, top_count, scratch);
                rows.iter().zip(&emitted).map(of_row).collect::<Result<_, _>>()?
            }
        };
        Ok(Produced { accepted, emitted, logprobs })
    }

    /// Whether the likeliest token is the only one that can be chosen.
    fn is_greedy(&self) -> bool {
        self.params.temperature == 0.0 || self.params.top_k == 1
    }

    /// The winner among all tokens with a logit of at least `floor`.
    ///
    /// The likeliest token sets the score to beat; others are then ruled out by what noise can reach at most, or by
    /// a bound on their own noise that takes no logarithm.
    fn best_of_row(&self, logits: &[f32], floor: f32, largest: Largest, noise: NoiseSource) -> u32 {
        let score = self.filter.scaled(largest.logit) + noise.of(largest.token_id);
        let mut best = Best { score, token_id: largest.token_id };
        let mut reach = self.lowest_that_can_win(score).max(floor);
        let mut candidates = [0_usize; CHUNK];
        for (chunk_index, chunk) in logits.chunks(CHUNK).enumerate() {
            // Written without a branch, which would be mispredicted about half the time.
            let mut count = 0;
            for (offset, &logit) in chunk.iter().enumerate() {
                candidates[count] = offset;
                count += usize::from(logit >= reach);
            }
            for &offset in &candidates[..count] {
                let id = token_id(chunk_index * CHUNK + offset);
                let (scaled, word) = (self.filter.scaled(chunk[offset]), noise.word(id));
                if scaled + noise_bound_of_word(word) >= best.score {
                    best.offer(scaled + noise_of_word(word), id);
                    reach = self.lowest_that_can_win(best.score).max(floor);
                }
            }
        }
        best.token_id
    }

    /// A logit under which no noise reaches `score`. [`NOISE_MAX`] exceeds the largest noise by more than this
    /// arithmetic is off near zero, and the step down in f32 by more than it is off elsewhere.
    fn lowest_that_can_win(&self, score: f64) -> f32 {
        (((score - NOISE_MAX) * self.filter.temperature) as f32).next_down()
    }

    /// The winner among ranked tokens: once the noise cannot lift a token over the best, no later one can win.
    fn best_of_ranked(&self, keys: &[u64], noise: NoiseSource) -> u32 {
        let mut best = Best { score: f64::NEG_INFINITY, token_id: u32::MAX };
        for &key in keys {
            let (scaled, token_id) = (self.filter.scaled(key_logit(key)), key_token(key));
            if scaled + NOISE_MAX < best.score {
                break;
            }
            let word = noise.word(token_id);
            if scaled + noise_bound_of_word(word) >= best.score {
                best.offer(scaled + noise_of_word(word), token_id);
            }
        }
        best.token_id
    }
}
