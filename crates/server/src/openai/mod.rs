//! Requests and responses as OpenAI clients write and read them.
//!
//! Requests are read field by field, so that an error names the field. A field nobody knows is an error; one that is
//! known but not built yet is accepted while it asks for nothing (see `neutral`).

mod chat_messages;
mod chat_request;
mod chat_tools;
mod common;
mod completion_request;
mod fields;
mod logprobs;
mod neutral;
mod response;
mod responses_request;
mod structural_tag;
mod structured;
mod tokenize_request;
mod tool_grammar;

pub(crate) use chat_request::ChatRequest;
pub(crate) use chat_tools::{ToolChoice, Tools};
pub(crate) use common::{Reported, StreamOptions, texts};
pub(crate) use completion_request::CompletionRequest;
pub(crate) use fields::Fields;
pub(crate) use logprobs::{ChatLogprobs, CompletionLogprobs, TokenNames, prompt_logprobs};
pub(crate) use response::{
    Answer, ChatBody, ChatChoice, ChatChunk, ChatChunkChoice, ChatDelta, ChatMessage, CompletionBody, CompletionChoice,
    CompletionChunk, Said, StopValue, ToolCallBody, UsageBody, finish_reason,
};
pub(crate) use responses_request::ResponsesRequest;
pub(crate) use structural_tag::structural_tag_of;
pub(crate) use tokenize_request::{DetokenizeRequest, TokenizeRequest};
pub(crate) use tool_grammar::held_to_calls;
