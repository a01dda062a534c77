//! What can be wrong with a grammar, or with an answer that follows one.

/// Every failure of this crate.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The source is longer than it may be.
    #[error("the grammar has {got} bytes; at most {most} are allowed")]
    TooLong {
        /// Bytes that are allowed.
        most: usize,
        /// Bytes of the source.
        got: usize,
    },
    /// More choices than may be given.
    #[error("{got} choices are given; 1 to {most} are allowed")]
    Choices {
        /// Choices that are allowed.
        most: usize,
        /// Choices of the source.
        got: usize,
    },
    /// The source is no grammar of its kind, or one that is too large.
    #[error("{message}")]
    Source {
        /// What the compiler found.
        message: String,
    },
    /// A part of a pattern is no grammar of its kind.
    #[error("{message}")]
    Part {
        /// What the caller calls it.
        field: String,
        /// What the compiler found.
        message: String,
    },
    /// No token ends an answer of this model.
    #[error("the model has no end-of-sequence token, so that nothing could end such an answer")]
    NoEnd,
    /// The grammar allows no token where the answer stands.
    #[error("no token can follow: {message}")]
    Stuck {
        /// Why.
        message: String,
    },
    /// The answer holds a token that the grammar does not allow.
    #[error("token {token} does not follow the grammar: {message}")]
    Refused {
        /// The token.
        token: u32,
        /// What the parser found.
        message: String,
    },
}

/// The first line of a parser's message, without the state that it adds.
pub(crate) fn first_line(message: &impl std::fmt::Display) -> String {
    let whole = message.to_string();
    let line = whole.lines().find(|line| !line.trim().is_empty()).unwrap_or_default();
    line.trim().trim_end_matches("<non-verbose/>").trim().chars().take(400).collect()
}
