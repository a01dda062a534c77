//! Requests and responses as OpenAI clients write and read them.
//!
//! Requests are read field by field, so that an error names the field. A field nobody knows is an error; one that is
//! known but not built yet is accepted while it asks for nothing (see `neutral`).

mod chat_request;
mod common;
mod completion_request;
mod fields;
mod logprobs;
mod neutral;
mod response;

pub(crate) use chat_request::ChatRequest;
pub(crate) use common::StreamOptions;
pub(crate) use completion_request::CompletionRequest;
pub(crate) use logprobs::{ChatLogprobs, CompletionLogprobs};
pub(crate) use response::{
    Answer, ChatBody, ChatChoice, ChatChunk, ChatChunkChoice, ChatDelta, ChatMessage, CompletionBody, CompletionChoice,
    CompletionChunk, StopValue, UsageBody, finish_reason,
};
