//! What can go wrong between text and tokens.

use std::path::PathBuf;

/// Every failure of this crate.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file of the model folder is missing or unreadable.
    #[error("cannot read {path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// The operating system's answer.
        source: std::io::Error,
    },
    /// A file of the model folder does not hold what its name promises.
    #[error("cannot use {path}: {message}")]
    Parse {
        /// The file.
        path: PathBuf,
        /// What the parser found.
        message: String,
    },
    /// The tokenizer refused a text.
    #[error("the prompt cannot be tokenized: {message}")]
    Encode {
        /// The tokenizer's own words.
        message: String,
    },
    /// The tokenizer refused token ids.
    #[error("the tokens cannot be decoded: {message}")]
    Decode {
        /// The tokenizer's own words.
        message: String,
    },
    /// The model folder holds no chat template.
    #[error("this model has no chat template")]
    NoChatTemplate,
    /// The chat template refused the conversation (many raise on roles in an unexpected order).
    #[error("the chat template refused the messages: {message}")]
    Template {
        /// The template engine's words, or those of the template's `raise_exception`.
        message: String,
    },
}
