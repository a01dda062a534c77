//! What a fleet is made with.

use paceline_plan::{DpRank, WorkerLimits};
use paceline_scheduler::{
    CacheSecret, Config as SchedulerConfig, Drafter, KByRows, Policies, QueueLimits, ShapeConfig,
};

/// What a fleet is made with. Fixed for its life.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Data-parallel ranks.
    pub dp_size: u32,
    /// Workers of a rank, which share its model; at least 1.
    pub tp_size: u32,
    /// True: all ranks are one lockstep group. False: each rank is its own and steps at its own pace.
    pub lockstep: bool,
    /// What a worker must present to join.
    pub join_token: String,
    /// Hash of the worker protocol's schema.
    pub protocol_hash: String,
    /// Sizes of a rank as configured; `num_blocks` and `vocab_size` come from the workers.
    pub limits: WorkerLimits,
    /// Ladders.
    pub shapes: ShapeConfig,
    /// k: drafts proposed for a row in a step.
    pub k: u32,
    /// k by the running rows of a group's largest rank; empty: always `k`.
    pub k_by_rows: Vec<KByRows>,
    /// How drafts are proposed.
    pub drafter: Drafter,
    /// Draft layers with a KV cache of their own; 0 unless a model drafts.
    pub drafter_layers: u32,
    /// Steps of a group that may be in flight when its next one is planned (rule 16).
    pub depth: u32,
    /// How much may wait.
    pub queue: QueueLimits,
    /// What the prefix cache's keys are made with; nothing switches the cache off.
    pub prefix_cache: Option<CacheSecret>,
    /// Who runs when.
    pub policies: Policies,
    /// True: a worker that is lost before the fleet was ready for the first time ends the daemon.
    pub fatal_start: bool,
    /// Time limits.
    pub deadlines: Deadlines,
}

/// Time limits in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deadlines {
    /// From the fleet's start to its first readiness; later, from the moment that a group is complete to its service.
    pub start_ms: u64,
    /// A worker in service without heartbeat for so long is lost.
    pub heartbeat_ms: u64,
    /// A step without all its replies for so long, plus [`Self::step_token_us`] per token, is a fault.
    pub step_ms: u64,
    /// Microseconds added to a step's limit for each token of its target pass.
    pub step_token_us: u64,
    /// Requests that no rank can start for so long end with an error.
    pub unserved_ms: u64,
}

impl Default for Deadlines {
    /// The numbers of rule 15, with 300 s as everything may be a shape's first run.
    fn default() -> Self {
        Self { start_ms: 1_800_000, heartbeat_ms: 5_000, step_ms: 300_000, step_token_us: 20_000, unserved_ms: 8_000 }
    }
}

impl Config {
    /// The groups by their ranks.
    pub fn groups(&self) -> Vec<Vec<DpRank>> {
        if self.lockstep {
            SchedulerConfig::lockstep_groups(self.dp_size)
        } else {
            SchedulerConfig::dense_groups(self.dp_size)
        }
    }

    /// What the scheduler is made with once the workers' sizes are known.
    pub fn scheduler(&self, limits: WorkerLimits) -> SchedulerConfig {
        let mut config = SchedulerConfig::new(self.groups(), limits, self.shapes.clone());
        config.k = self.k;
        config.k_by_rows = self.k_by_rows.clone();
        config.drafter = self.drafter;
        config.drafter_layers = self.drafter_layers;
        config.depth = self.depth;
        config.queue = self.queue;
        config.prefix_cache = self.prefix_cache;
        config.policies = self.policies;
        config
    }
}
