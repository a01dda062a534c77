//! Small worlds for the enumeration: requests whose only property is what kind of row they are in the next step, and
//! the events that make them that.

use std::rc::Rc;

use paceline_plan::seats::{RowOutcome, SeatTable, StepHeader, WorkerStep};
use paceline_plan::{DpRank, GroupId, LogitsWanted, StepPlan, WorkerLimits, digest, to_bytes};
use paceline_scheduler::{Config, Drafter, RequestId, RequestSpec, Scheduler, ShapeConfig};

use crate::arrays::Arrays;
use crate::checks::check_plan;

/// Tokens of a rank and step, more than decode rows and short prompts take and fewer than a long prompt has.
pub(crate) const BUDGET: u32 = 20;
/// Tokens of a request.
pub(crate) const LENGTH: u32 = 25;
/// Tokens of a prompt that is not at a border.
const PROMPT: u32 = 5;
const GROUP: GroupId = GroupId::new(0);

/// What a request adds to its rank's next step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    /// A new prompt of 2 tokens.
    Short,
    /// A new prompt that the budget cuts; the rank's second and later ones find no budget and wait.
    Long,
    /// A prompt with exactly Q tokens left; the rank's second and later ones have exactly Q tokens in all.
    ChunkOfQ,
    /// What a lost epoch left: exactly Q known tokens to compute again.
    RecomputeOfQ,
    /// A decode row with this many drafts.
    Decode(u32),
    /// A decode row one token below the model's length, to which drafts were proposed.
    AtLimit,
    /// No row: its rank takes no new requests, or, where others start, it waits to be sent back to the queue.
    Held,
}

impl Kind {
    pub(crate) fn all(k: u32) -> Vec<Self> {
        let mut kinds = vec![Self::Short, Self::Long, Self::ChunkOfQ, Self::RecomputeOfQ, Self::AtLimit, Self::Held];
        kinds.extend((0..=k).map(Self::Decode));
        kinds
    }
}

/// The rows of a rank.
pub(crate) type Mix = Vec<Kind>;

pub(crate) fn count(mix: &[Kind], kind: Kind) -> u32 {
    mix.iter().filter(|other| **other == kind).count() as u32
}

/// What must have happened on a rank before its next step; mixes with the same past differ in replies and new requests
/// only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Past {
    lost: u32,
    at_limit: u32,
    decodes: u32,
    is_mid_prompt: bool,
}

impl Past {
    pub(crate) fn of(mix: &[Kind]) -> Self {
        let is_busy = mix.iter().any(|kind| matches!(kind, Kind::Short | Kind::Long | Kind::RecomputeOfQ))
            || count(mix, Kind::ChunkOfQ) > 1;
        let held_lost = if is_busy { count(mix, Kind::Held) } else { 0 };
        Self {
            lost: count(mix, Kind::RecomputeOfQ) + held_lost,
            at_limit: count(mix, Kind::AtLimit),
            decodes: mix.iter().filter(|kind| matches!(kind, Kind::Decode(_))).count() as u32,
            is_mid_prompt: count(mix, Kind::ChunkOfQ) > 0,
        }
    }
}

pub(crate) fn config(ranks: usize, rows: u32, k: u32, drafter: Drafter, shapes: ShapeConfig) -> Config {
    let limits = WorkerLimits {
        seats: rows,
        max_num_seqs: rows,
        max_num_batched_tokens: BUDGET,
        max_model_len: LENGTH,
        block_size: 4,
        num_blocks: 64,
        k_max: k,
        row_capacity: rows,
        token_capacity: 32,
        table_width: (LENGTH + k).div_ceil(4),
        vocab_size: 50,
    };
    let mut config = Config::new(Config::lockstep_groups(ranks as u32), limits, shapes);
    (config.k, config.drafter) = (k, drafter);
    config
}

/// A scheduler and its workers, with a step that every worker has run and no reply delivered (or no step at all).
#[derive(Clone)]
pub(crate) struct Small {
    pub(crate) scheduler: Scheduler,
    workers: Vec<SeatTable>,
    launched: Rc<Vec<WorkerStep>>,
    k: u32,
    /// By rank.
    lost: Vec<Vec<RequestId>>,
    /// By rank: those whose proposals the next step's kinds decide.
    decodes: Vec<Vec<RequestId>>,
    next_id: u64,
}

impl Small {
    /// Brings a new scheduler to where every rank has its past.
    pub(crate) fn with_past(config: Config, pasts: &[Past]) -> Self {
        let k = config.k;
        let limits = config.limits;
        let dp_ranks = config.groups[0].clone();
        let workers = dp_ranks.iter().map(|dp_rank| {
            let table = SeatTable::new(limits, *dp_rank, dp_ranks.clone()).expect("the rank is in its group");
            let mut table = table.with_drafter_layers(config.lookahead());
            table.reset(paceline_plan::Epoch::new(1));
            table
        });
        let mut small = Self {
            workers: workers.collect(),
            scheduler: Scheduler::new(config).expect("a correct configuration"),
            launched: Rc::default(),
            k,
            lost: vec![Vec::new(); dp_ranks.len()],
            decodes: vec![Vec::new(); dp_ranks.len()],
            next_id: 0,
        };
        small.lose(pasts);
        small.run_to_the_limit(pasts);
        for (rank, past) in pasts.iter().enumerate() {
            for _ in 0..past.decodes {
                let id = small.submit(rank, PROMPT, 10);
                small.decodes[rank].push(id);
            }
            if past.is_mid_prompt {
                let taken = past.at_limit * (k + 1) + past.decodes * PROMPT;
                small.submit(rank, BUDGET - taken + k + 1, 1);
            }
        }
        if pasts.iter().all(|past| past.decodes == 0 && !past.is_mid_prompt)
            && pasts.iter().any(|past| past.at_limit > 0)
        {
            small.pace(pasts);
        }
        small.launch();
        small
    }

    /// Requests that a lost epoch leaves with exactly Q known tokens.
    fn lose(&mut self, pasts: &[Past]) {
        for (rank, past) in pasts.iter().enumerate() {
            for _ in 0..past.lost {
                let id = self.submit(rank, self.k.max(1), 10);
                self.lost[rank].push(id);
            }
        }
        if self.launch().is_none() {
            return;
        }
        if self.k > 0 {
            self.answer(&[], self.k);
        }
        self.launched = Rc::default();
        let lost: u32 = pasts.iter().map(|past| past.lost).sum();
        assert_eq!(self.scheduler.void_group(GROUP).len(), lost as usize);
        let epoch = self.scheduler.epoch(GROUP).expect("the group exists");
        self.workers.iter_mut().for_each(|worker| worker.reset(epoch));
    }

    /// Decodes in one pace on all ranks until the step after the next one gives the last token.
    fn run_to_the_limit(&mut self, pasts: &[Past]) {
        if pasts.iter().all(|past| past.at_limit == 0) {
            return;
        }
        let prompt = BUDGET / self.scheduler.config().limits.max_num_seqs;
        for (rank, past) in pasts.iter().enumerate() {
            for _ in 0..past.at_limit {
                self.submit(rank, prompt, LENGTH - prompt);
            }
        }
        let mut known = prompt;
        let mut drafts = 0;
        while known + 1 + drafts < LENGTH - 1 {
            self.pace(pasts);
            self.launch().expect("requests run");
            known += 1 + drafts;
            drafts = self.k.min(LENGTH - 1 - known - 1);
            self.answer(&[], drafts);
        }
    }

    /// A prompt of one token and one step wherever a seat is free: no step of decode rows only, in which a short ladder
    /// would hold some.
    fn pace(&mut self, pasts: &[Past]) {
        let rows = self.scheduler.config().limits.max_num_seqs;
        for (rank, _) in pasts.iter().enumerate().filter(|(_, past)| past.at_limit < rows) {
            self.submit(rank, 1, 1);
        }
    }

    /// Answers the step before with the drafts that the mixes ask for, submits what starts, and plans the next step.
    /// Every worker begins it; its arrays, which may hold any step of such a rank, are filled and checked.
    pub(crate) fn next_step(&mut self, mixes: &[&Mix], arrays: &mut [Arrays]) -> Option<StepPlan> {
        let drafts = mixes.iter().map(|mix| {
            let drafts =
                mix.iter().filter_map(|kind| if let Kind::Decode(drafts) = kind { Some(*drafts) } else { None });
            drafts.collect::<Vec<u32>>()
        });
        self.answer(&drafts.collect::<Vec<_>>(), self.k);
        for (rank, mix) in mixes.iter().enumerate() {
            for _ in 0..count(mix, Kind::Short) {
                self.submit(rank, 2, 4);
            }
            for _ in 1..count(mix, Kind::ChunkOfQ) {
                self.submit(rank, self.k + 1, 4);
            }
            for index in 0..count(mix, Kind::RecomputeOfQ) as usize {
                assert!(self.scheduler.requeue(self.lost[rank][index]));
            }
            for _ in 0..count(mix, Kind::Long) {
                self.submit(rank, LENGTH - 1, 1);
            }
            let held = count(mix, Kind::Held);
            if held > 0 && Past::of(mix).lost == 0 {
                self.scheduler.set_available(DpRank::new(rank as u32), false);
                for _ in 0..held {
                    self.submit(rank, 3, 4);
                }
            }
        }
        let plan = self.launch()?;
        check_plan(&plan, &self.scheduler);
        for ((worker, begun), arrays) in self.workers.iter().zip(self.launched.iter()).zip(arrays) {
            arrays.fill_and_check(worker, begun);
        }
        Some(plan)
    }

    fn submit(&mut self, rank: usize, prompt_len: u32, max_new_tokens: u32) -> RequestId {
        self.next_id += 1;
        let id = RequestId(self.next_id);
        let spec = RequestSpec {
            id,
            prompt: vec![7; prompt_len as usize],
            max_new_tokens,
            stop_token_ids: Vec::new(),
            sampling: self.next_id.to_le_bytes().to_vec(),
            pinned: Some(DpRank::new(rank as u32)),
            priority: 0,
            history: false,
            prompt_logprobs: false,
            cache_salt: Vec::new(),
            constrained: false,
            shares_prompt_with: None,
        };
        self.scheduler.submit(spec).expect("the request fits");
        id
    }

    /// Plans a step; every worker takes it.
    fn launch(&mut self) -> Option<StepPlan> {
        let plan = self.scheduler.plan(GROUP)?;
        let part = to_bytes(plan.group());
        let (epoch, step) = (plan.group().epoch(), plan.group().step());
        let header = StepHeader { group: GROUP, epoch, step, digest: digest(&part) };
        let begun = plan.ranks().iter().zip(&mut self.workers).map(|(rank, worker)| {
            let begun = worker.begin(header, &part, &to_bytes(rank));
            let begun = begun.unwrap_or_else(|error| panic!("worker {} refuses: {error}", rank.dp_rank()));
            assert_eq!(begun.group, *plan.group(), "every rank has the same passes");
            begun
        });
        self.launched = Rc::new(begun.collect());
        Some(plan)
    }

    /// Every rank answers: every draft was right, and each row that samples gets new drafts: a rank's decodes as many as
    /// `drafts` says, all others `otherwise`.
    fn answer(&mut self, drafts: &[Vec<u32>], otherwise: u32) {
        for (rank, step) in std::mem::take(&mut self.launched).iter().enumerate() {
            let outcomes = step.rank.rows().iter().map(|row| {
                if row.logits == LogitsWanted::None {
                    return RowOutcome::default();
                }
                let state = self.workers[rank].seat(row.seat).expect("the row's seat is taken");
                let id = RequestId(u64::from_le_bytes(state.sampling().try_into().expect("eight bytes")));
                let position = self.decodes[rank].iter().position(|other| *other == id);
                let wanted = position.map_or(otherwise, |index| drafts[rank][index]).min(step.group.k_draft());
                let emitted = vec![8; 1 + row.drafts as usize];
                RowOutcome { accepted: row.drafts, emitted, proposed: vec![8; wanted as usize], logprobs: Vec::new() }
            });
            let outcomes = outcomes.collect();
            let reply = self.workers[rank].commit(step, outcomes).expect("outcomes fit their rows");
            let dp_rank = step.rank.dp_rank();
            self.scheduler.commit(dp_rank, step.header.epoch, step.header.step, reply).expect("a true reply");
        }
    }
}
