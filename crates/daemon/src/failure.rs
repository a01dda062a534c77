//! How a command ends when it does not end well: one line and an exit code.

/// Bad usage or bad configuration, as in `sysexits.h`.
pub(crate) const EXIT_USAGE: u8 = 64;

/// Why a command ends.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// Help or the version was printed.
    #[error("")]
    Shown,
    /// The command line, the configuration or the model cannot be used.
    #[error("{0}")]
    Usage(String),
    /// A child process has said why, in its own line.
    #[error("")]
    Told(u8),
    /// A signal came before the fleet was ready.
    #[error("stopped by {name} before it was in service")]
    Signal {
        /// Name of the signal.
        name: &'static str,
        /// Its number.
        number: u8,
    },
    /// Anything else.
    #[error("{0:#}")]
    Other(#[from] anyhow::Error),
}

impl Failure {
    /// The exit code of the process.
    pub(crate) const fn exit_code(&self) -> u8 {
        match self {
            Self::Shown => 0,
            Self::Usage(_) => EXIT_USAGE,
            Self::Told(code) => *code,
            Self::Signal { number, .. } => 128 + *number,
            Self::Other(_) => 1,
        }
    }

    /// Whether there is something left to say.
    pub(crate) const fn is_silent(&self) -> bool {
        matches!(self, Self::Shown | Self::Told(_))
    }
}
