//! What a scheduler is made with, and the checks on it.

use std::collections::BTreeMap;

use paceline_plan::{DpRank, WorkerLimits};

use crate::{CacheSecret, Error, Policies, ShapeConfig, WithoutGraph};

/// How drafts are proposed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Drafter {
    /// Not at all: one token per row and step.
    #[default]
    None,
    /// The worker looks them up in the request's own tokens; no pass of its own.
    Ngram,
    /// A draft layer or model: an extend pass whenever the target runs, then single passes.
    Model,
}

/// k where a rank has up to so many running requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KByRows {
    /// The most running requests of the group's largest rank.
    pub rows_most: u32,
    /// k of such a step.
    pub k: u32,
}

/// How much may wait beyond what can start at once; nothing is no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueLimits {
    /// Most waiting requests.
    pub requests: Option<u32>,
    /// Most prompt tokens of waiting requests.
    pub tokens: Option<u64>,
}

/// What a scheduler is made with. Fixed for its life.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// The lockstep groups by their ranks; group `i` is entry `i`. Each rank from 0 is in exactly one.
    pub groups: Vec<Vec<DpRank>>,
    /// Sizes of a rank: the least over all workers.
    pub limits: WorkerLimits,
    /// Ladders.
    pub shapes: ShapeConfig,
    /// k: drafts proposed for a row in a step, and the most that are verified.
    pub k: u32,
    /// The values that `k_verify` may take from step to step: the smallest that covers the step's drafts is used.
    /// Empty: always `k`. `k` is always allowed.
    pub k_verify_values: Vec<u32>,
    /// How drafts are proposed.
    pub drafter: Drafter,
    /// Lm: layers of a model drafter, each with KV of its own; of no meaning for other drafters.
    pub drafter_layers: u32,
    /// k by the load of the group's largest rank, rows going up: the first entry that covers it, past the last one the
    /// last one's. Empty: always `k`.
    pub k_by_rows: Vec<KByRows>,
    /// Steps of a group that may be in flight when its next one is planned (rule 16); 0: a step is planned when every
    /// rank has answered the one before.
    pub depth: u32,
    /// How much may wait.
    pub queue: QueueLimits,
    /// What the prefix cache's keys are made with; nothing switches the cache off.
    pub prefix_cache: Option<CacheSecret>,
    /// Who runs when.
    pub policies: Policies,
}

impl Config {
    /// Without speculation and queue limits.
    pub fn new(groups: Vec<Vec<DpRank>>, limits: WorkerLimits, shapes: ShapeConfig) -> Self {
        let queue = QueueLimits { requests: None, tokens: None };
        Self {
            groups,
            limits,
            shapes,
            k: 0,
            k_verify_values: Vec::new(),
            drafter: Drafter::None,
            drafter_layers: 1,
            k_by_rows: Vec::new(),
            depth: 0,
            queue,
            prefix_cache: None,
            policies: Policies::default(),
        }
    }

    /// One lockstep group of ranks 0 to `ranks - 1`.
    pub fn lockstep_groups(ranks: u32) -> Vec<Vec<DpRank>> {
        vec![(0..ranks).map(DpRank::new).collect()]
    }

    /// Every rank its own group, as for a dense model.
    pub fn dense_groups(ranks: u32) -> Vec<Vec<DpRank>> {
        (0..ranks).map(|dp_rank| vec![DpRank::new(dp_rank)]).collect()
    }

    /// The row ladders that plans can use, by Q: what workers run once before they are ready. Empty when graphs are
    /// off.
    pub fn row_ladders_used(&self) -> BTreeMap<u32, Vec<u32>> {
        let mut ladders = self.shapes.row_ladders.clone();
        ladders.retain(|query_len, ladder| self.uses_query_len(*query_len) && self.shapes.full && !ladder.is_empty());
        ladders
    }

    /// Tokens of the largest padded shape: step buffers hold this and the token budget.
    pub fn tokens_padded_max(&self) -> u64 {
        let rows = self.row_ladders_used();
        let largest = |(query_len, ladder): (&u32, &Vec<u32>)| {
            u64::from(*query_len) * u64::from(ladder.last().copied().unwrap_or(0))
        };
        let full = rows.iter().map(largest).max().unwrap_or(0);
        let piecewise = self.shapes.token_ladders.values().filter_map(|ladder| ladder.last().copied()).max();
        full.max(piecewise.unwrap_or(0).into())
    }

    /// Batches that no graph covers, to be warned of once at start-up.
    pub fn without_graph(&self) -> impl Iterator<Item = &WithoutGraph> {
        self.shapes.without_graph.iter().filter(|without| self.uses_query_len(without.query_len))
    }

    /// Whether some pass has rows of this length: a verify width, or 1 in the single passes of a draft model.
    fn uses_query_len(&self, query_len: u32) -> bool {
        let is_single = query_len == 1 && self.drafter == Drafter::Model && self.k > 1;
        is_single || self.k_verify_sorted().iter().any(|k| k + 1 == query_len)
    }

    /// Tokens past the end of a chunk that come with it, as far as they are known: what the drafter's layers need at
    /// the chunk's last positions (rule 18).
    pub fn lookahead(&self) -> u32 {
        if self.drafter == Drafter::Model { self.drafter_layers } else { 0 }
    }

    /// The allowed values of `k_verify`, going up, `k` last: each verify width that steps can have, less one.
    pub fn k_verify_sorted(&self) -> Vec<u32> {
        let mut values = self.k_verify_values.clone();
        values.extend(self.k_by_rows.iter().map(|entry| entry.k));
        values.push(self.k);
        values.sort_unstable();
        values.dedup();
        values
    }

    /// Refuses what no correct plan can be made with.
    ///
    /// # Errors
    /// The field with both numbers.
    pub(crate) fn check(&self) -> Result<(), Error> {
        self.check_groups()?;
        self.check_sizes()?;
        self.check_speculation()?;
        self.shapes.check(&self.limits)
    }

    fn check_groups(&self) -> Result<(), Error> {
        at_least("groups", 1, self.groups.len() as u64, "a fleet has a rank")?;
        let ranks: usize = self.groups.iter().map(Vec::len).sum();
        for group in &self.groups {
            at_least("ranks of a group", 1, group.len() as u64, "a group has a rank")?;
        }
        for index in 0..ranks {
            let dp_rank = DpRank::new(index as u32);
            let got = self.groups.iter().flatten().filter(|member| **member == dp_rank).count();
            if got != 1 {
                return Err(Error::Groups { dp_rank, got: got as u64 });
            }
        }
        Ok(())
    }

    fn check_sizes(&self) -> Result<(), Error> {
        let limits = &self.limits;
        let query_len = u64::from(self.k) + 1;
        let budget = u64::from(limits.max_num_batched_tokens);
        let rows = u64::from(limits.max_num_seqs);
        at_least("max_num_seqs", 1, rows, "a rank runs at least one request")?;
        at_least("max_num_batched_tokens", query_len, budget, "one decode row has 1 + k tokens")?;
        at_least("max_model_len", 2, limits.max_model_len.into(), "a prompt token and a new one")?;
        at_least("block_size", 1, limits.block_size.into(), "a block holds a token")?;
        at_least("num_blocks", 1, limits.num_blocks.into(), "a request needs a block")?;
        at_least("vocab_size", 1, limits.vocab_size.into(), "a model has a token")?;
        at_least("seats", rows, limits.seats.into(), "each row of max_num_seqs has a seat")?;
        at_least("row_capacity", rows, limits.row_capacity.into(), "step buffers hold max_num_seqs rows")?;
        at_least("token_capacity", budget, limits.token_capacity.into(), "step buffers hold the token budget")?;
        let longest = u64::from(limits.max_model_len) + u64::from(limits.k_max);
        let table = u64::from(limits.table_width) * u64::from(limits.block_size);
        at_least("table_width * block_size", longest, table, "a block table covers max_model_len + k_max")
    }

    fn check_speculation(&self) -> Result<(), Error> {
        if self.drafter == Drafter::None {
            at_most("k", 0, self.k.into(), "drafts need a drafter")?;
        }
        at_most("k", self.limits.k_max.into(), self.k.into(), "workers are built for k_max drafts")?;
        for value in &self.k_verify_values {
            at_most("k_verify_values", self.k.into(), (*value).into(), "no more drafts than k exist")?;
        }
        if self.drafter == Drafter::Model {
            at_least("drafter_layers", 1, self.drafter_layers.into(), "a model drafter has a layer")?;
        }
        let mut rows = 0;
        for entry in &self.k_by_rows {
            at_most("k of k_by_rows", self.k.into(), entry.k.into(), "k is the most drafts of any load")?;
            at_least("rows_most of k_by_rows", rows + 1, entry.rows_most.into(), "rows go up")?;
            rows = entry.rows_most.into();
        }
        Ok(())
    }
}

pub(crate) fn at_least(field: &'static str, least: u64, got: u64, reason: &'static str) -> Result<(), Error> {
    if got >= least { Ok(()) } else { Err(Error::TooSmall { field, least, got, reason }) }
}

pub(crate) fn at_most(field: &'static str, most: u64, got: u64, reason: &'static str) -> Result<(), Error> {
    if got <= most { Ok(()) } else { Err(Error::TooLarge { field, most, got, reason }) }
}
