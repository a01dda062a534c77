//! Response bodies and stream chunks, field for field as clients read them.
//!
//! Fields that are always null here (`token_ids`, `refusal`, ...) are there because clients look for them.

use serde::Serialize;

use super::logprobs::{ChatLogprobs, CompletionLogprobs};
use crate::generate::{Finish, FinishCause, StopReason, TokenPiece, Usage};

/// A field that is always null.
type Null = Option<()>;

/// One choice gathered whole, for answers that are not streamed.
#[derive(Debug, Default)]
pub(crate) struct Answer {
    pub(crate) text: String,
    pub(crate) pieces: Vec<TokenPiece>,
    pub(crate) finish: Option<Finish>,
}

/// OpenAI's word for why a choice ended.
pub(crate) fn finish_reason(finish: &Finish) -> &'static str {
    match finish.cause {
        FinishCause::Stop => "stop",
        FinishCause::Length => "length",
        FinishCause::Abort => "abort",
    }
}

/// The stop string or token that ended a choice.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub(crate) enum StopValue {
    Text(String),
    Token(u32),
}

impl StopValue {
    pub(crate) fn of(finish: Option<&Finish>) -> Option<Self> {
        Some(match finish?.stop_reason.as_ref()? {
            StopReason::Text(text) => Self::Text(text.clone()),
            StopReason::Token(token_id) => Self::Token(*token_id),
        })
    }
}

/// Token counts of a call.
#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct UsageBody {
    prompt_tokens: usize,
    total_tokens: usize,
    completion_tokens: usize,
    prompt_tokens_details: Null,
    completion_tokens_details: Null,
}

impl From<Usage> for UsageBody {
    fn from(usage: Usage) -> Self {
        Self {
            prompt_tokens: usage.prompt_tokens,
            total_tokens: usage.prompt_tokens + usage.completion_tokens,
            completion_tokens: usage.completion_tokens,
            prompt_tokens_details: None,
            completion_tokens_details: None,
        }
    }
}

/// The answer of `/v1/completions`.
#[derive(Debug, Serialize)]
pub(crate) struct CompletionBody<'a> {
    pub(crate) id: &'a str,
    pub(crate) object: &'static str,
    pub(crate) created: u64,
    pub(crate) model: &'a str,
    pub(crate) choices: Vec<CompletionChoice>,
    pub(crate) service_tier: Null,
    pub(crate) system_fingerprint: String,
    pub(crate) usage: UsageBody,
}

/// One choice of a completion, whole or in part.
#[derive(Debug, Serialize)]
pub(crate) struct CompletionChoice {
    pub(crate) index: u32,
    pub(crate) text: String,
    pub(crate) logprobs: Option<CompletionLogprobs>,
    pub(crate) finish_reason: Option<&'static str>,
    pub(crate) stop_reason: Option<StopValue>,
    pub(crate) token_ids: Null,
    pub(crate) prompt_logprobs: Null,
    pub(crate) prompt_token_ids: Null,
}

/// One event of a streamed completion.
#[derive(Debug, Serialize)]
pub(crate) struct CompletionChunk<'a> {
    pub(crate) id: &'a str,
    pub(crate) object: &'static str,
    pub(crate) created: u64,
    pub(crate) model: &'a str,
    pub(crate) choices: Vec<CompletionChoice>,
    /// Absent unless asked for; null in all chunks but the last unless asked for in each.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) usage: Option<Option<UsageBody>>,
    pub(crate) system_fingerprint: &'a str,
}

/// The answer of `/v1/chat/completions`.
#[derive(Debug, Serialize)]
pub(crate) struct ChatBody<'a> {
    pub(crate) id: &'a str,
    pub(crate) object: &'static str,
    pub(crate) created: u64,
    pub(crate) model: &'a str,
    pub(crate) choices: Vec<ChatChoice>,
    pub(crate) service_tier: Null,
    pub(crate) system_fingerprint: String,
    pub(crate) usage: UsageBody,
    pub(crate) prompt_logprobs: Null,
    pub(crate) prompt_token_ids: Null,
}

/// One choice of a chat.
#[derive(Debug, Serialize)]
pub(crate) struct ChatChoice {
    pub(crate) index: u32,
    pub(crate) message: ChatMessage,
    pub(crate) logprobs: Option<ChatLogprobs>,
    pub(crate) finish_reason: Option<&'static str>,
    pub(crate) stop_reason: Option<StopValue>,
    pub(crate) token_ids: Null,
}

/// The assistant's message.
#[derive(Debug, Serialize)]
pub(crate) struct ChatMessage {
    role: &'static str,
    content: String,
    refusal: Null,
    annotations: Null,
    audio: Null,
    function_call: Null,
    reasoning: Null,
}

impl ChatMessage {
    pub(crate) fn assistant(content: String) -> Self {
        Self {
            role: "assistant",
            content,
            refusal: None,
            annotations: None,
            audio: None,
            function_call: None,
            reasoning: None,
        }
    }
}

/// One event of a streamed chat.
#[derive(Debug, Serialize)]
pub(crate) struct ChatChunk<'a> {
    pub(crate) id: &'a str,
    pub(crate) object: &'static str,
    pub(crate) created: u64,
    pub(crate) model: &'a str,
    pub(crate) choices: Vec<ChatChunkChoice>,
    /// As in [`CompletionChunk`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) usage: Option<Option<UsageBody>>,
    pub(crate) system_fingerprint: &'a str,
}

/// What is new about one choice of a chat.
#[derive(Debug, Serialize)]
pub(crate) struct ChatChunkChoice {
    pub(crate) index: u32,
    pub(crate) delta: ChatDelta,
    pub(crate) logprobs: Option<ChatLogprobs>,
    pub(crate) finish_reason: Option<&'static str>,
    pub(crate) stop_reason: Option<StopValue>,
    pub(crate) token_ids: Null,
}

/// A piece of the assistant's message.
#[derive(Debug, Default, Serialize)]
pub(crate) struct ChatDelta {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) role: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) content: Option<String>,
}
