//! What can go wrong between a client and its server.

/// Why a client's work failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An argument or an input file that cannot be used.
    #[error("{0}")]
    Usage(String),
    /// No answer, or one that was cut.
    #[error("{url}: {message}")]
    Connection {
        /// What was asked.
        url: String,
        /// What happened, in the HTTP library's words.
        message: String,
    },
    /// The server refused or failed.
    #[error("{url}: status {status}: {message}")]
    Status {
        /// What was asked.
        url: String,
        /// HTTP status; 200 when a stream that had begun failed.
        status: u16,
        /// The server's own words.
        message: String,
    },
    /// An answer that is not what the API promises.
    #[error("{url}: {message}")]
    Answer {
        /// What was asked.
        url: String,
        /// What is wrong with the answer.
        message: String,
    },
    /// A file that cannot be read or written.
    #[error("{path}: {source}")]
    File {
        /// Which.
        path: String,
        /// Why.
        source: std::io::Error,
    },
}

impl Error {
    /// A file that cannot be read or written.
    pub(crate) fn file(path: &std::path::Path, source: std::io::Error) -> Self {
        Self::File { path: path.display().to_string(), source }
    }
}
