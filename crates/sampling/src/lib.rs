//! How Paceline chooses tokens: parameters, their bytes, counter-based noise and the filter chain.
//!
//! Sampling is stateless. The noise of a token is a pure function of (seed, absolute index of the token produced,
//! token id), so the same request gives the same text for any batch mix, any number of ranks, after a preemption or
//! a restart, and with or without speculation: [`Sampler::verify`] samples the target at each position and accepts
//! a draft while it equals what was sampled.
//!
//! The chain is: adjustments of single logits ([`Adjustments`]), temperature, top-k, top-p, min-p, then the largest
//! `logit / temperature + noise`, lowest id on ties.
//! Temperature 0 is greedy: the largest logit, lowest id on ties.
//!
//! This crate runs no model, holds no request and knows neither Python nor the wire; it reads rows of f32 logits.

mod adjust;
mod bytes;
mod error;
mod filter;
mod logprobs;
mod mask;
pub mod ngram;
pub mod noise;
mod params;
pub mod philox;
mod sample;
mod scan;

pub use adjust::{
    ADJUSTED_TOKENS_MAX, Adjustments, BAD_WORD_TOKENS_MAX, BAD_WORDS_MAX, Context, LOGIT_BIAS_MAX, PENALTY_MAX,
    REPETITION_PENALTY_MAX,
};
pub use error::Error;
pub use filter::Scratch;
pub use logprobs::{TokenLogprobs, token_logprobs};
pub use params::{LOGPROBS_MAX, SamplingParams, choice_seed};
pub use sample::{Produced, Sampler};
