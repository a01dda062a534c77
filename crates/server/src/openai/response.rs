//! Response bodies and stream chunks, field for field as clients read them.
//!
//! Fields that are always null here (`token_ids`, `refusal`, ...) are there because clients look for them.

use paceline_text::ToolCall;
use serde::Serialize;
use serde_json::{Value, json};

use super::logprobs::{ChatLogprobs, CompletionLogprobs};
use crate::generate::{Delta, Finish, FinishCause, PromptReport, StopReason, TokenPiece, Usage};

/// A field that is always null.
type Null = Option<()>;

/// One choice gathered whole, for answers that are not streamed.
#[derive(Debug, Default)]
pub(crate) struct Answer {
    pub(crate) text: String,
    pub(crate) token_ids: Vec<u32>,
    pub(crate) pieces: Vec<TokenPiece>,
    pub(crate) finish: Option<Finish>,
    pub(crate) prompt: Option<Box<PromptReport>>,
}

impl From<Delta> for Answer {
    fn from(delta: Delta) -> Self {
        let Delta { text, token_ids, pieces, finish, prompt, .. } = delta;
        Self { text, token_ids, pieces, finish, prompt }
    }
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
    prompt_tokens_details: PromptTokensDetails,
    /// Null where answers are not read for reasoning.
    completion_tokens_details: Option<CompletionTokensDetails>,
}

/// What became of a call's prompt tokens.
#[derive(Debug, Clone, Copy, Serialize)]
struct PromptTokensDetails {
    /// Read from the prefix cache.
    cached_tokens: usize,
}

/// What the tokens of the answers are.
#[derive(Debug, Clone, Copy, Serialize)]
struct CompletionTokensDetails {
    /// Between the markers of reasoning.
    reasoning_tokens: usize,
}

impl From<Usage> for UsageBody {
    fn from(usage: Usage) -> Self {
        Self {
            prompt_tokens: usage.prompt_tokens,
            total_tokens: usage.prompt_tokens + usage.completion_tokens,
            completion_tokens: usage.completion_tokens,
            prompt_tokens_details: PromptTokensDetails { cached_tokens: usage.cached_tokens },
            completion_tokens_details: usage
                .reasoning_tokens
                .map(|reasoning_tokens| CompletionTokensDetails { reasoning_tokens }),
        }
    }
}

impl UsageBody {
    /// Under the names of responses.
    pub(crate) fn as_response(&self) -> Value {
        let reasoning_tokens = self.completion_tokens_details.map_or(0, |details| details.reasoning_tokens);
        json!({
            "input_tokens": self.prompt_tokens,
            "input_tokens_details": self.prompt_tokens_details,
            "output_tokens": self.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": reasoning_tokens},
            "total_tokens": self.total_tokens,
        })
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
    pub(crate) token_ids: Option<Vec<u32>>,
    pub(crate) prompt_logprobs: Option<Value>,
    pub(crate) prompt_token_ids: Option<Vec<u32>>,
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
    pub(crate) prompt_logprobs: Option<Value>,
    pub(crate) prompt_token_ids: Option<Vec<u32>>,
}

/// One choice of a chat.
#[derive(Debug, Serialize)]
pub(crate) struct ChatChoice {
    pub(crate) index: u32,
    pub(crate) message: ChatMessage,
    pub(crate) logprobs: Option<ChatLogprobs>,
    pub(crate) finish_reason: Option<&'static str>,
    pub(crate) stop_reason: Option<StopValue>,
    pub(crate) token_ids: Option<Vec<u32>>,
}

/// What an answer says, its parts told apart.
#[derive(Debug, Clone, Default)]
pub(crate) struct Said {
    pub(crate) content: String,
    pub(crate) reasoning: Option<String>,
    pub(crate) calls: Vec<ToolCallBody>,
}

impl Said {
    /// Whether nothing is said.
    pub(crate) fn is_empty(&self) -> bool {
        self.content.is_empty() && self.reasoning.is_none() && self.calls.is_empty()
    }
}

/// The assistant's message.
#[derive(Debug, Serialize)]
pub(crate) struct ChatMessage {
    role: &'static str,
    /// Null beside calls, when there is none.
    content: Option<String>,
    refusal: Null,
    annotations: Null,
    audio: Null,
    function_call: Null,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<ToolCallBody>,
    reasoning: Option<String>,
    /// An older name of `reasoning`.
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning_content: Option<String>,
}

/// A call that the assistant wants made.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct ToolCallBody {
    /// Place among the calls of a stream; a whole message has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    index: Option<usize>,
    pub(crate) id: String,
    #[serde(rename = "type")]
    kind: &'static str,
    function: FunctionBody,
}

#[derive(Debug, Clone, Serialize)]
struct FunctionBody {
    name: String,
    arguments: String,
}

impl ToolCallBody {
    pub(crate) fn new(index: usize, id: String, call: ToolCall) -> Self {
        let function = FunctionBody { name: call.name, arguments: call.arguments };
        Self { index: Some(index), id, kind: "function", function }
    }

    /// The tool's name.
    pub(crate) fn name(&self) -> &str {
        &self.function.name
    }

    /// JSON as text.
    pub(crate) fn arguments(&self) -> &str {
        &self.function.arguments
    }
}

impl ChatMessage {
    pub(crate) fn assistant(said: Said) -> Self {
        let Said { content, reasoning, mut calls } = said;
        calls.iter_mut().for_each(|call| call.index = None);
        Self {
            role: "assistant",
            content: (!content.is_empty() || calls.is_empty()).then_some(content),
            refusal: None,
            annotations: None,
            audio: None,
            function_call: None,
            tool_calls: calls,
            reasoning_content: reasoning.clone(),
            reasoning,
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
    /// With the first piece of the first choice, when asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) prompt_token_ids: Option<Vec<u32>>,
}

/// What is new about one choice of a chat.
#[derive(Debug, Serialize)]
pub(crate) struct ChatChunkChoice {
    pub(crate) index: u32,
    pub(crate) delta: ChatDelta,
    pub(crate) logprobs: Option<ChatLogprobs>,
    pub(crate) finish_reason: Option<&'static str>,
    pub(crate) stop_reason: Option<StopValue>,
    pub(crate) token_ids: Option<Vec<u32>>,
}

/// A piece of the assistant's message.
#[derive(Debug, Default, Serialize)]
pub(crate) struct ChatDelta {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) role: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) content: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reasoning: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reasoning_content: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) tool_calls: Vec<ToolCallBody>,
}
