//! A call from its parameters to its text, the same for HTTP and gRPC.
//!
//! [`Call`] is what a protocol understood. [`admit`] checks it against the model, tokenizes it and hands it to the
//! engine; the [`Generation`] it gives yields a [`Delta`] whenever a choice has something new. Dropping a generation
//! aborts what is still running.

mod admission;
mod call;
mod generation;
mod place;
mod prompt;
mod record;
mod sampling;
mod sequence;
mod structure;
mod tokenize;

pub(crate) use admission::admit;
pub(crate) use call::{Call, MaxTokens, Prompt, SamplingFields, Stopping, Structure, Thinking, Truncate};
pub(crate) use generation::{Generation, Usage};
pub(crate) use prompt::PromptReport;
pub(crate) use record::CallRecord;
pub(crate) use sequence::{Delta, Finish, FinishCause, StopReason, TokenPiece};
pub(crate) use structure::Grammars;
pub(crate) use tokenize::{detokenize, tokenize_alone};
