//! Text on both sides of the engine: prompts to token ids, token ids back to text.
//!
//! * [`Tokenizer`] is loaded from a model folder and is cheap to clone.
//! * [`ChatTemplate`] renders a conversation the way the model was trained to read it.
//! * [`IncrementalDecoder`] turns one request's tokens into text, never showing half a character.
//! * [`AnswerReader`] tells reasoning, content and tool calls of a chat apart.
//! * [`StopMatcher`] finds stop strings across token borders and holds text back no longer than needed.
//! * [`ModelSettings`] is what the folder says about end-of-sequence ids, lengths and default sampling.
//!
//! This crate opens no socket, samples nothing and knows nothing about requests.

mod answer;
mod decode;
mod error;
mod python_json;
mod settings;
mod stop;
mod strftime;
mod template;
mod tokenizer;
mod vocabulary;

pub use answer::{
    AnswerPart, AnswerReader, CallPiece, CallSpelling, ReasoningCounter, ReasoningFormat, ReasoningStart, ToolCall,
    ToolFormat,
};
pub use decode::{IncrementalDecoder, SpecialTokens};
pub use error::Error;
pub use settings::{ModelSettings, SamplingDefaults};
pub use stop::{StopMatch, StopMatcher};
pub use template::{ChatInput, ChatTemplate};
pub use tokenizer::Tokenizer;
