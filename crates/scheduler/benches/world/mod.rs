//! What the benches share: a scheduler under a steady load, with no worker behind it.

use paceline_plan::{DpRank, WorkerLimits};
use paceline_scheduler::{CacheSecret, Config, Drafter, RequestId, RequestSpec, Scheduler, ShapeConfig};

/// Tokens of a long prompt of a mixed load.
const LONG_PROMPT: u32 = 2_048;

/// Tokens of the budget that decode rows of a mixed load leave to prompt chunks.
const CHUNK_BUDGET: u32 = 512;

/// A steady load: every rank has so many rows, and always one long prompt besides when it is mixed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    pub(crate) ranks: u32,
    pub(crate) rows: u32,
    pub(crate) k: u32,
    pub(crate) mixed: bool,
    /// Whether prefixes are cached.
    pub(crate) cache: bool,
}

impl Load {
    pub(crate) const fn limits(self) -> WorkerLimits {
        let rows = self.rows + self.mixed as u32;
        let budget = if self.mixed { self.rows * (1 + self.k) + CHUNK_BUDGET } else { 8_192 };
        WorkerLimits {
            seats: rows,
            max_num_seqs: rows,
            max_num_batched_tokens: budget,
            max_model_len: 4_096,
            block_size: 16,
            num_blocks: 100_000,
            k_max: self.k,
            row_capacity: rows,
            token_capacity: 8_192,
            table_width: 257,
            vocab_size: 32_000,
        }
    }

    /// A scheduler with all decoding requests in its queue.
    pub(crate) fn scheduler(self) -> Scheduler {
        let limits = self.limits();
        let shapes = ShapeConfig::cpu_default(limits.max_num_seqs, &[self.k], limits.max_num_seqs);
        let mut config = Config::new(Config::lockstep_groups(self.ranks), limits, shapes);
        config.k = self.k;
        config.drafter = if self.k > 0 { Drafter::Ngram } else { Drafter::None };
        config.prefix_cache = self.cache.then(|| CacheSecret::new(1, 2));
        let mut scheduler = Scheduler::new(config).expect("a correct configuration");
        for id in 0..u64::from(self.ranks * self.rows) {
            submit(&mut scheduler, id, 16, 4_000, None);
        }
        scheduler
    }

    /// Starts the load: every decoding request runs, and has run for a while. `step` makes one step.
    pub(crate) fn warm_up(self, scheduler: &mut Scheduler, mut step: impl FnMut(&mut Scheduler)) {
        while scheduler.stats().waiting > 0 {
            step(scheduler);
        }
        for _ in 0..20 {
            self.top_up(scheduler);
            step(scheduler);
        }
    }

    /// A mixed load's next prompts, one for each rank, when the last ones have all started.
    pub(crate) fn top_up(self, scheduler: &mut Scheduler) {
        let stats = scheduler.stats();
        if !self.mixed || stats.waiting > 0 {
            return;
        }
        for dp_rank in 0..self.ranks {
            let id = stats.submitted + u64::from(dp_rank);
            submit(scheduler, id, LONG_PROMPT, 1, Some(DpRank::new(dp_rank)));
        }
    }
}

fn submit(scheduler: &mut Scheduler, id: u64, prompt: u32, max_new_tokens: u32, pinned: Option<DpRank>) {
    let spec = RequestSpec {
        id: RequestId(id),
        prompt: vec![1; prompt as usize],
        max_new_tokens,
        stop_token_ids: vec![0],
        sampling: vec![0; 40],
        pinned,
        priority: 0,
        history: false,
        prompt_logprobs: false,
        cache_salt: Vec::new(),
        constrained: false,
        shares_prompt_with: None,
    };
    scheduler.submit(spec).expect("fits");
}
