//! What the fleet says about itself: plain data for readiness, metrics and logs.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use paceline_fleet::Gate;
use paceline_scheduler::ModeTokens;

use crate::cache_events::CacheHub;
use crate::ledger::{ExplainQuery, ExplainedStep, Ledger, NotKept};
use crate::meter::{Meter, StepTimes};

/// What the model and the fleet can take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ModelLimits {
    /// Tokens of one request, prompt and output.
    pub max_model_len: u32,
    /// Token ids are below this.
    pub vocab_size: u32,
    /// Rows in one step, per rank.
    pub max_num_seqs: u32,
    /// Tokens in one step, per rank.
    pub max_num_batched_tokens: u32,
    /// Tokens of one KV block.
    pub block_size: u32,
    /// KV blocks, per rank.
    pub kv_blocks: u32,
    /// Data-parallel ranks.
    pub dp_size: u32,
}

/// Where a rank is in its life.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RankState {
    /// No worker has joined.
    #[default]
    Absent,
    /// A worker has joined and loads.
    Loading,
    /// The worker has loaded and waits for the rest of its group.
    Loaded,
    /// In service.
    Ready,
    /// Its group lost a worker and is put together again.
    Recovering,
    /// Stopped for good.
    Stopped,
}

impl RankState {
    /// Name of the state in `/ready` and logs.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Absent => "absent",
            Self::Loading => "loading",
            Self::Loaded => "loaded",
            Self::Ready => "ready",
            Self::Recovering => "recovering",
            Self::Stopped => "stopped",
        }
    }
}

/// Names of modes of a target pass, in the order of counters by mode.
pub const MODES: [&str; 3] = ["full", "piecewise", "eager"];

/// Counts of one rank since start-up.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RankCounters {
    /// Steps by mode of the target pass: see [`MODES`].
    pub steps_by_mode: [u64; MODES.len()],
    /// Tokens run for requests in target passes, and what kernels were given beyond them, by mode: see [`MODES`].
    pub tokens_by_mode: [ModeTokens; MODES.len()],
    /// Steps that the rank ran a dummy in.
    pub dummy_steps: u64,
    /// Tokens of these dummies, as attention sees them.
    pub dummy_tokens: u64,
    /// Passes that could not run in the better mode, by reason.
    pub downgrades: Vec<(&'static str, u64)>,
    /// Requests that lost their blocks and began again.
    pub preemptions: u64,
    /// Rows that had drafts.
    pub drafts: u64,
    /// Draft tokens verified.
    pub draft_tokens: u64,
    /// Draft tokens that the target agreed with.
    pub accepted_tokens: u64,
    /// Of these, by position in the row, from the first draft.
    pub accepted_per_position: Vec<u64>,
    /// Draft tokens verified, by position in the row.
    pub verified_per_position: Vec<u64>,
    /// Blocks that drafts after the first would have written to and that were not free.
    pub wanted_blocks_missing: u64,
    /// Tokens of prompt rows, recomputed ones too.
    pub prompt_tokens: u64,
    /// Tokens of requests that started, looked up in the prefix cache.
    pub prefix_queried_tokens: u64,
    /// Requests that found something there.
    pub prefix_hit_requests: u64,
    /// Tokens that they read from it.
    pub prefix_hit_tokens: u64,
    /// Cached blocks whose room was needed.
    pub blocks_evicted: u64,
}

impl RankCounters {
    /// Tokens run for requests in target passes of all modes.
    pub fn real_tokens(&self) -> u64 {
        self.tokens_by_mode.iter().map(|tokens| tokens.real).sum()
    }
}

/// One data-parallel rank.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RankStatus {
    /// Which.
    pub dp_rank: u32,
    /// Where it is in its life.
    pub state: RankState,
    /// What it does with requests.
    pub gate: Gate,
    /// Requests that have a seat.
    pub running: usize,
    /// KV blocks that requests hold.
    pub kv_blocks_used: u32,
    /// KV blocks that only the prefix cache holds: they are given up when their room is needed.
    pub kv_blocks_cached: u32,
    /// KV blocks of the pool.
    pub kv_blocks_total: u32,
    /// Known tokens of running requests and what of their prompts is not computed: what placement balances.
    pub load_tokens: u64,
    /// Times that the rank was manned again after the first.
    pub restarts: u64,
    /// Its workers, by `tp_rank`.
    pub workers: Vec<WorkerStatus>,
    /// Counts since start-up.
    pub counters: RankCounters,
}

/// One worker of a rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WorkerStatus {
    /// Its place within the rank.
    pub tp_rank: u32,
    /// Where it is in its life.
    pub state: RankState,
}

/// Counts of the fleet since start-up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FleetCounters {
    /// Steps of all groups.
    pub steps: u64,
    /// Requests accepted.
    pub accepted: u64,
    /// Requests refused, full queues included.
    pub refused: u64,
    /// Requests that ended by a stop token or a length limit.
    pub finished: u64,
    /// Requests whose reader left first.
    pub aborted: u64,
    /// Requests that ended with an error.
    pub failed: u64,
    /// Tokens delivered.
    pub tokens: u64,
    /// Plans that a worker refused.
    pub refused_plans: u64,
    /// Real tokens of all ranks over all steps.
    pub balance_real_tokens: u64,
    /// Real tokens of the largest rank of each step, times the ranks of its group.
    pub balance_largest_tokens: u64,
}

impl FleetCounters {
    /// How evenly steps load the ranks of a group: 1 is even, 1/N is one rank of N alone. 1 before the first step.
    pub fn balance_ratio(&self) -> f64 {
        if self.balance_largest_tokens == 0 {
            return 1.0;
        }
        self.balance_real_tokens as f64 / self.balance_largest_tokens as f64
    }
}

/// The fleet as of its last change.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FleetStatus {
    /// True only when every rank is in service and new requests are taken.
    pub ready: bool,
    /// Whether new requests are refused.
    pub draining: bool,
    /// Every rank, by number.
    pub ranks: Vec<RankStatus>,
    /// Requests that no rank has started.
    pub waiting: usize,
    /// Their known tokens.
    pub waiting_tokens: u64,
    /// Requests that the engine knows anything of: 0 once all have ended and their readers were told.
    pub known: usize,
    /// Requests that were ended because their readers left tokens waiting.
    pub slow_readers: u64,
    /// Tokens of steps, of each rank that has run one.
    pub step_tokens: Vec<StepTokens>,
    /// Counts since start-up.
    pub counters: FleetCounters,
    /// Where the time of a step goes, over the latest steps.
    pub timings: StepTimings,
}

/// Upper bounds of the counts of [`StepTokens`], and above them all others.
pub const STEP_TOKENS_BOUNDS: [u32; 13] = [1, 8, 16, 32, 64, 128, 256, 512, 1_024, 2_048, 4_096, 8_192, 16_384];

/// How many tokens the steps of a rank had, dummies left out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepTokens {
    /// Which rank.
    pub dp_rank: u32,
    /// Steps by their tokens: up to each of [`STEP_TOKENS_BOUNDS`] and more than the one before, then those above all.
    pub steps: [u64; STEP_TOKENS_BOUNDS.len() + 1],
    /// Tokens of all these steps.
    pub tokens: u64,
}

impl StepTokens {
    pub(crate) fn record(&mut self, tokens: u32) {
        self.steps[STEP_TOKENS_BOUNDS.partition_point(|bound| *bound < tokens)] += 1;
        self.tokens += u64::from(tokens);
    }
}

/// One part of a step's time over the latest steps, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Spread {
    /// The middle value.
    pub median_us: u32,
    /// One in a hundred is longer.
    pub p99_us: u32,
}

/// Where the time of a step goes, over the latest steps of all groups.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepTimings {
    /// Steps measured.
    pub steps: u64,
    /// Deciding and checking the plan.
    pub plan: Spread,
    /// Encoding all parts.
    pub encode: Spread,
    /// From the first part sent to the last reply received, without the worker's own time.
    pub wire: Spread,
    /// Worker: decoding and checking, of the slowest rank.
    pub worker_decode: Spread,
    /// Worker: filling buffers.
    pub worker_fill: Spread,
    /// Worker: the model.
    pub worker_forward: Spread,
    /// Worker: sampling, verification and drafting.
    pub worker_sample: Spread,
    /// Applying the replies and handing tokens over.
    pub commit: Spread,
}

#[derive(Debug, Default)]
struct Published {
    status: FleetStatus,
    limits: ModelLimits,
    meter: Meter,
}

/// Where the engine leaves its state for handles to read.
#[derive(Clone, Debug, Default)]
pub struct Publisher {
    published: Arc<Mutex<Published>>,
    /// Apart, so that whoever reads it holds up neither status nor limits.
    ledger: Arc<Mutex<Ledger>>,
    cache: Arc<CacheHub>,
}

impl Publisher {
    fn published(&self) -> MutexGuard<'_, Published> {
        self.published.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Replaces the status that handles report; its timings are the publisher's own once a step was measured.
    pub fn publish(&self, status: FleetStatus) {
        self.published().status = status;
    }

    /// Replaces the limits that handles report.
    pub fn set_limits(&self, limits: ModelLimits) {
        self.published().limits = limits;
    }

    /// Keeps why a step is what it is.
    pub fn explain(&self, step: ExplainedStep) {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner).record(step);
    }

    pub(crate) fn explained(&self, query: ExplainQuery) -> Result<Vec<ExplainedStep>, NotKept> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner).find(query)
    }

    pub(crate) fn cache(&self) -> &CacheHub {
        &self.cache
    }

    /// Changes the status that handles report.
    pub(crate) fn update(&self, change: impl FnOnce(&mut FleetStatus)) {
        change(&mut self.published().status);
    }

    pub(crate) fn record(&self, times: &StepTimes) {
        self.published().meter.record(times);
    }

    pub(crate) fn status(&self) -> FleetStatus {
        let (mut status, meter) = {
            let published = self.published();
            (published.status.clone(), published.meter.clone())
        };
        let timings = meter.timings();
        if timings.steps > 0 {
            status.timings = timings;
        }
        status
    }

    pub(crate) fn limits(&self) -> ModelLimits {
        self.published().limits
    }
}
