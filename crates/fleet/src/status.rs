//! What a fleet says about itself.

use paceline_plan::DpRank;

/// Where a rank is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RankState {
    /// No worker has joined.
    Absent,
    /// A worker has joined and loads.
    Loading,
    /// The worker waits for the rest of its group or of the fleet.
    Loaded,
    /// In service.
    Ready,
    /// Its group was in service and is put together again.
    Recovering,
    /// Stopped for good.
    Stopped,
}

/// One rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RankStatus {
    /// Which.
    pub dp_rank: DpRank,
    /// Where it is in its life: as far as the last of its workers.
    pub state: RankState,
    /// Times that it was manned again after the first.
    pub restarts: u64,
    /// Its workers, by `tp_rank`.
    pub workers: Vec<WorkerStatus>,
}

/// One worker of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkerStatus {
    /// Its place within the rank.
    pub tp_rank: u32,
    /// Where it is in its life.
    pub state: RankState,
    /// Workers that took the place after the first.
    pub restarts: u64,
}

/// Counts since the fleet was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Steps sent.
    pub steps: u64,
    /// Requests taken.
    pub accepted: u64,
    /// Requests not taken.
    pub refused: u64,
    /// Requests that ended by a stop token or a limit.
    pub finished: u64,
    /// Requests whose reader left.
    pub aborted: u64,
    /// Requests that ended with an error.
    pub failed: u64,
    /// Tokens of requests delivered.
    pub tokens: u64,
    /// Plans that a worker refused.
    pub refused_plans: u64,
}
