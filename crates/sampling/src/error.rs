//! Everything that can be wrong with sampling parameters, their bytes or a row of logits.

use crate::params::LOGPROBS_MAX;

/// What was refused, with the numbers.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum Error {
    /// Temperature is negative or not finite.
    #[error("temperature must be a finite number of at least 0, got {got}")]
    Temperature {
        /// The value given.
        got: f32,
    },
    /// `top_p` is outside (0, 1].
    #[error("top_p must be above 0 and at most 1, got {got}")]
    TopP {
        /// The value given.
        got: f32,
    },
    /// `min_p` is outside [0, 1].
    #[error("min_p must be between 0 and 1, got {got}")]
    MinP {
        /// The value given.
        got: f32,
    },
    /// More log-probabilities per token than [`LOGPROBS_MAX`].
    #[error("logprobs must be at most {LOGPROBS_MAX}, got {got}")]
    Logprobs {
        /// The count given.
        got: u32,
    },
    /// A value is outside its range.
    #[error("{field} must be between {low} and {high}, got {got}")]
    Range {
        /// The request field.
        field: &'static str,
        /// The least allowed.
        low: f32,
        /// The most allowed.
        high: f32,
        /// The value given.
        got: f32,
    },
    /// A list is too long.
    #[error("{field} takes at most {most} entries, got {got}")]
    TooMany {
        /// The request field.
        field: &'static str,
        /// Entries allowed.
        most: usize,
        /// Entries given.
        got: usize,
    },
    /// A list that must hold something is empty.
    #[error("{field} must not be empty")]
    Empty {
        /// The request field.
        field: &'static str,
    },
    /// A field names a token that does not exist.
    #[error("{field} names token {got}, outside the vocabulary of {vocab_size}")]
    FieldToken {
        /// The request field.
        field: &'static str,
        /// Tokens there are.
        vocab_size: usize,
        /// The token named.
        got: u32,
    },
    /// The parameter bytes are not a msgpack array of the known fields.
    #[error("sampling parameters cannot be decoded: {message}")]
    Bytes {
        /// What the decoder said.
        message: String,
    },
    /// The parameter bytes hold more after the array.
    #[error("sampling parameters are {expected} bytes long, got {got}")]
    BytesLength {
        /// Bytes the array takes.
        expected: usize,
        /// Bytes given.
        got: usize,
    },
    /// A logit is NaN or positive infinity, so no token can be chosen.
    #[error("the logit of token {token_id} is {value}: the model gave no usable distribution")]
    Logit {
        /// The lowest such token.
        token_id: u32,
        /// NaN or infinity.
        value: f32,
    },
    /// Every logit of the row is negative infinity, or the row is empty.
    #[error("all {vocab_size} tokens of a row are excluded")]
    NoCandidate {
        /// Length of the row.
        vocab_size: usize,
    },
    /// There is not one row of logits for each draft and one more.
    #[error("verification needs {expected} rows of logits (drafts + 1), got {got}")]
    LogitsRows {
        /// Drafts + 1.
        expected: usize,
        /// Rows given.
        got: usize,
    },
    /// A token id outside the row was asked for.
    #[error("token {token_id} is outside the vocabulary of {vocab_size}")]
    TokenId {
        /// The token asked for.
        token_id: u32,
        /// Length of the row.
        vocab_size: usize,
    },
}

impl Error {
    /// The request field at fault, for errors of parameters.
    #[must_use]
    pub fn field(&self) -> Option<&'static str> {
        match self {
            Self::Temperature { .. } => Some("temperature"),
            Self::TopP { .. } => Some("top_p"),
            Self::MinP { .. } => Some("min_p"),
            Self::Logprobs { .. } => Some("logprobs"),
            Self::Range { field, .. }
            | Self::TooMany { field, .. }
            | Self::Empty { field }
            | Self::FieldToken { field, .. } => Some(field),
            _ => None,
        }
    }
}
