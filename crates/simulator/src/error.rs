//! What a simulation cannot be run with.

/// A trace or options that cannot be simulated.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A line of a trace file is no request.
    #[error("trace line {line}: {message}")]
    Trace {
        /// Counted from 1.
        line: u64,
        /// What is wrong with it.
        message: String,
    },
    /// A number that is out of its range.
    #[error("{field} is {got}, must be {expected}")]
    Value {
        /// Which number.
        field: &'static str,
        /// What it may be.
        expected: &'static str,
        /// What it is.
        got: String,
    },
    /// The fleet cannot be made.
    #[error(transparent)]
    Fleet(#[from] paceline_fleet::Error),
    /// The pretended workers were not taken into service: a fault of the simulator.
    #[error("the fleet is not ready: {0}")]
    NotReady(String),
    /// Requests are left and nothing happens any more: a fault of the scheduler.
    #[error("{left} requests are left at {clock_us} us and no step is planned")]
    Stuck {
        /// Requests that did not end.
        left: u64,
        /// Virtual time.
        clock_us: u64,
    },
}
