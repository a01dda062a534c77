//! Why an engine cannot be built or cannot go on.

/// Why an engine cannot be built or cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No correct plan can be made with the options.
    #[error(transparent)]
    Fleet(#[from] paceline_fleet::Error),
    /// The fleet cannot go on.
    #[error("{message}")]
    Fatal {
        /// One line for people; it names the rank.
        message: String,
    },
    /// The step loop's thread could not be started.
    #[error("cannot start the step loop's thread: {0}")]
    Thread(#[source] std::io::Error),
}
