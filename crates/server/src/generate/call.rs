//! A call as a protocol understood it: typed, but not yet checked against the model.

use paceline_grammar::Source;
use paceline_text::{ChatInput, ReasoningFormat};

use crate::traces::TraceContext;

/// One prompt.
#[derive(Debug, Clone)]
pub(crate) enum Prompt {
    /// Text for the tokenizer, with or without its own special tokens.
    Text { text: String, add_special_tokens: bool },
    /// Token ids as they are.
    Tokens(Vec<u32>),
    /// A conversation for the model's chat template, which writes its own special tokens.
    Chat { input: ChatInput, add_special_tokens: bool },
}

/// How many tokens may be produced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MaxTokens {
    /// The caller said so, in this field; more than fit is an error.
    Asked { tokens: u32, field: &'static str },
    /// The caller said nothing: this many, or as many as fit.
    UpTo(u32),
    /// The caller said nothing: as many as fit.
    AsFits,
}

impl MaxTokens {
    /// Whether nothing is to be produced.
    pub(crate) const fn is_zero(self) -> bool {
        matches!(self, Self::Asked { tokens: 0, .. })
    }
}

/// Sampling fields; what is absent falls back to the model's defaults.
#[derive(Debug, Clone, Default)]
pub(crate) struct SamplingFields {
    pub(crate) temperature: Option<f32>,
    pub(crate) top_p: Option<f32>,
    pub(crate) top_k: Option<u32>,
    pub(crate) min_p: Option<f32>,
    pub(crate) seed: Option<u64>,
    /// Likeliest tokens reported with each token; `Some(0)` reports the sampled one only.
    pub(crate) logprobs: Option<u32>,
    /// As `logprobs`, for the tokens of the prompt.
    pub(crate) prompt_logprobs: Option<u32>,
    pub(crate) presence_penalty: Option<f32>,
    pub(crate) frequency_penalty: Option<f32>,
    pub(crate) repetition_penalty: Option<f32>,
    pub(crate) logit_bias: Vec<(u32, f32)>,
    pub(crate) allowed_token_ids: Option<Vec<u32>>,
    /// Texts that must not come about.
    pub(crate) bad_words: Vec<String>,
    /// Tokens of output before it may end by a token or a stop string.
    pub(crate) min_tokens: u32,
}

/// How much of a prompt's end is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Truncate {
    /// As many tokens as fit beside those to be produced.
    ToFit,
    /// This many.
    Tokens(u32),
}

/// What ends a choice.
#[derive(Debug, Clone)]
pub(crate) struct Stopping {
    pub(crate) max_tokens: MaxTokens,
    pub(crate) stop: Vec<String>,
    pub(crate) stop_token_ids: Vec<u32>,
    pub(crate) ignore_eos: bool,
    /// Whether the stop string or token stays in the text.
    pub(crate) include_stop: bool,
}

/// What an answer has to be, and the field that said so.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Structure {
    pub(crate) field: String,
    pub(crate) source: Source,
}

impl Structure {
    pub(crate) fn new(field: impl Into<String>, source: Source) -> Self {
        Self { field: field.into(), source }
    }
}

/// Reasoning before the answer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Thinking {
    /// How it is marked, where answers are read for it.
    pub(crate) format: Option<ReasoningFormat>,
    /// Its tokens at most.
    pub(crate) budget: Option<u32>,
}

/// Everything a call asks for.
#[derive(Debug, Clone)]
pub(crate) struct Call {
    /// The name in responses, logs and the `X-Request-Id` header's wake; need not be unique.
    pub(crate) id: String,
    pub(crate) prompts: Vec<Prompt>,
    /// The field that prompts came in, for errors.
    pub(crate) prompt_field: &'static str,
    /// Choices per prompt.
    pub(crate) choices: u32,
    pub(crate) sampling: SamplingFields,
    pub(crate) stopping: Stopping,
    pub(crate) skip_special_tokens: bool,
    /// The answer begins with the prompt, in text and in log-probabilities.
    pub(crate) echo: bool,
    /// Whether token ids are returned beside the text.
    pub(crate) return_token_ids: bool,
    /// What the answer has to be.
    pub(crate) structure: Option<Structure>,
    pub(crate) thinking: Thinking,
    /// Keep only the end of each prompt.
    pub(crate) truncate: Option<Truncate>,
    pub(crate) priority: i32,
    /// Cached prefixes are shared only with calls of the same salt.
    pub(crate) cache_salt: Option<String>,
    pub(crate) dp_rank: Option<u32>,
    /// The trace that its caller wants it in.
    pub(crate) trace: Option<TraceContext>,
}
