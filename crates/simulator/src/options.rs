//! What is simulated.

use paceline_fleet::{Config as FleetConfig, Deadlines};
use paceline_plan::WorkerLimits;
use paceline_scheduler::{CacheSecret, Drafter, Policies, QueueLimits, ShapeConfig};

use crate::{Costs, Error};

/// Token ids of the pretended model.
pub(crate) const VOCAB_SIZE: u32 = 32_000;

/// Who chooses a request's rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Placing {
    /// The scheduler, when the request can start.
    #[default]
    Scheduler,
    /// Arrival number modulo ranks, before the scheduler sees it.
    RoundRobin,
}

/// A fleet and its workers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Data-parallel ranks.
    pub dp_size: u32,
    /// Whether all ranks step together.
    pub lockstep: bool,
    /// S.
    pub max_num_seqs: u32,
    /// B.
    pub max_num_batched_tokens: u32,
    /// L.
    pub max_model_len: u32,
    /// Tokens of a KV block.
    pub block_size: u32,
    /// KV blocks of a rank.
    pub num_blocks: u32,
    /// Ladders.
    pub shapes: ShapeConfig,
    /// k.
    pub k: u32,
    /// How often a draft is what the target says, in 1/1000.
    pub acceptance_permille: u32,
    /// A draft layer of its own rather than n-grams.
    pub drafter_model: bool,
    /// Steps that plans are made ahead of their replies.
    pub depth: u32,
    /// How much may wait.
    pub queue: QueueLimits,
    /// Who chooses ranks.
    pub placing: Placing,
    /// Who runs when.
    pub policies: Policies,
    /// Whether prefixes are cached.
    pub prefix_cache: bool,
    /// How long steps take.
    pub costs: Costs,
    /// Acceptance comes from this.
    pub seed: u64,
}

impl Default for Options {
    /// 8 coupled ranks, 256 rows, 8,192 tokens a step, 120,000 blocks of 16 tokens, no drafts.
    fn default() -> Self {
        Self {
            dp_size: 8,
            lockstep: true,
            max_num_seqs: 256,
            max_num_batched_tokens: 8_192,
            max_model_len: 131_072,
            block_size: 16,
            num_blocks: 120_000,
            shapes: ShapeConfig::graph_default(256, &[0], 256),
            k: 0,
            acceptance_permille: 700,
            drafter_model: false,
            depth: 0,
            queue: QueueLimits::default(),
            placing: Placing::Scheduler,
            policies: Policies::default(),
            prefix_cache: true,
            costs: Costs::default(),
            seed: 0,
        }
    }
}

impl Options {
    /// Sizes of a rank.
    pub fn limits(&self) -> WorkerLimits {
        let width = (self.max_model_len + self.k).div_ceil(self.block_size.max(1));
        WorkerLimits {
            seats: self.max_num_seqs,
            max_num_seqs: self.max_num_seqs,
            max_num_batched_tokens: self.max_num_batched_tokens,
            max_model_len: self.max_model_len,
            block_size: self.block_size,
            num_blocks: self.num_blocks,
            k_max: self.k,
            row_capacity: self.max_num_seqs,
            token_capacity: self.max_num_batched_tokens.max(self.max_num_seqs * (1 + self.k)),
            table_width: width,
            vocab_size: VOCAB_SIZE,
        }
    }

    pub(crate) fn fleet(&self) -> FleetConfig {
        let drafter = match (self.k, self.drafter_model) {
            (0, _) => Drafter::None,
            (_, true) => Drafter::Model,
            (_, false) => Drafter::Ngram,
        };
        FleetConfig {
            dp_size: self.dp_size,
            tp_size: 1,
            lockstep: self.lockstep,
            join_token: String::new(),
            protocol_hash: String::new(),
            limits: self.limits(),
            shapes: self.shapes.clone(),
            k: self.k,
            k_by_rows: Vec::new(),
            depth: self.depth,
            drafter,
            drafter_layers: u32::from(drafter == Drafter::Model),
            queue: self.queue,
            prefix_cache: self.prefix_cache.then(|| CacheSecret::new(self.seed, 1)),
            policies: self.policies,
            fatal_start: true,
            deadlines: Deadlines { unserved_ms: u64::MAX, ..Deadlines::default() },
        }
    }

    pub(crate) fn check(&self) -> Result<(), Error> {
        let least = |field, value: u32| {
            if value > 0 { Ok(()) } else { Err(Error::Value { field, expected: "at least 1", got: "0".to_owned() }) }
        };
        least("data_parallel_size", self.dp_size)?;
        least("block_size", self.block_size)?;
        if self.acceptance_permille > 1_000 {
            let got = self.acceptance_permille.to_string();
            return Err(Error::Value { field: "acceptance_permille", expected: "at most 1000", got });
        }
        Ok(())
    }
}
