//! Which tokens an answer may go on with: JSON, regular expressions, choices and grammars, and how long it may think.
//!
//! * [`Vocabulary`] is a model's tokens as grammars see them, built once.
//! * [`Source`] is what a caller asks for, a [`Pattern`] what is put together from parts; [`Compiler`] makes a [`Grammar`]
//!   of it, within limits, and remembers it.
//! * [`Constraint`] follows one answer: it moves by accepted tokens only, and gives one [`TokenMask`] for the next token
//!   and one after each draft (rule 19).
//!
//! This crate opens no socket, starts no thread and knows nothing about steps.

mod compiler;
mod constraint;
mod error;
mod gbnf;
mod gbnf_parser;
mod pattern;
mod reasoning;
mod source;
mod vocabulary;

pub use compiler::{Compiler, Grammar, Limits};
pub use constraint::{Constraint, TokenMask};
pub use error::Error;
pub use pattern::Pattern;
pub use reasoning::{Begins, Reasoning};
pub use source::{JsonStyle, Source};
pub use vocabulary::Vocabulary;
