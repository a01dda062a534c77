//! What a fleet cannot be made with.

/// A configuration that cannot work.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// No correct plan can be made.
    #[error(transparent)]
    Scheduler(#[from] paceline_scheduler::Error),
}
