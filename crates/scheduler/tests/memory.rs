//! A steady decode step asks for no memory: planning, encoding and committing work in what earlier steps left.

use allocation_counter::measure;
use paceline_plan::{
    Coded, DpRank, GroupId, LogitsWanted, Logprobs, RankPart, RowReply, StepPlan, StepReply, WorkerLimits,
};
use paceline_scheduler::{CacheSecret, Config, Drafter, Output, RequestId, RequestSpec, Scheduler, ShapeConfig};

const RANKS: u32 = 8;
const ROWS: u32 = 32;

/// Steps that are measured: longer than any block takes to fill.
const STEPS: u32 = 64;

fn scheduler(k: u32, depth: u32) -> Scheduler {
    let limits = WorkerLimits {
        seats: ROWS,
        max_num_seqs: ROWS,
        max_num_batched_tokens: 2048,
        max_model_len: 2048,
        block_size: 16,
        num_blocks: 8192,
        k_max: k,
        row_capacity: ROWS,
        token_capacity: 2048,
        table_width: 129,
        vocab_size: 1000,
    };
    let mut config = Config::new(Config::lockstep_groups(RANKS), limits, ShapeConfig::cpu_default(ROWS, &[k], ROWS));
    config.k = k;
    config.depth = depth;
    config.drafter = if k > 0 { Drafter::Ngram } else { Drafter::None };
    config.prefix_cache = Some(CacheSecret::new(1, 2));
    Scheduler::new(config).expect("a correct configuration")
}

fn submit(scheduler: &mut Scheduler, id: u32) {
    let spec = RequestSpec {
        id: RequestId(id.into()),
        prompt: (0..20 + id % 40).map(|index| (id + index) % 1000).collect(),
        max_new_tokens: 1_500,
        stop_token_ids: vec![0],
        sampling: vec![0; 40],
        pinned: None,
        priority: 0,
        history: false,
        prompt_logprobs: false,
        cache_salt: Vec::new(),
        constrained: false,
        shares_prompt_with: None,
    };
    scheduler.submit(spec).expect("fits");
}

/// What every request of a rank knows, by seat: what a worker would say in its replies.
type Known = Vec<u32>;

/// Half of the drafts are accepted, as many are proposed as may be.
fn reply(part: &RankPart, k_draft: u32, known: &mut Known) -> StepReply {
    known.resize(ROWS as usize, 0);
    for feed in part.feeds() {
        known[feed.seat.index()] = feed.start + feed.tokens.len() as u32;
    }
    let mut rows = Vec::new();
    for row in part.rows() {
        let samples = row.logits != LogitsWanted::None;
        let accepted = if row.logits == LogitsWanted::Verify { row.drafts.div_ceil(2) } else { 0 };
        let emitted = if samples { 1 + accepted } else { 0 };
        let known = &mut known[row.seat.index()];
        rows.push(RowReply {
            seat: row.seat,
            generation: row.generation,
            known: *known,
            accepted,
            emitted: (0..emitted).map(|index| 7 + (*known + index) % 900).collect(),
            proposed: if samples { k_draft } else { 0 },
            logprobs: Logprobs::NONE,
        });
        *known += emitted;
    }
    StepReply { dp_rank: part.dp_rank(), rows, drafts: Vec::new(), passes: 1, collectives: 0, timings_us: [0; 4] }
}

struct Run {
    scheduler: Scheduler,
    known: Vec<Known>,
    bytes: Vec<u8>,
    outputs: Vec<Output>,
}

impl Run {
    /// One step, and how often each part of it asked for memory: plan, encode, commit.
    fn step(&mut self) -> [u64; 3] {
        let mut plan: Option<StepPlan> = None;
        let planned = measure(|| plan = self.scheduler.plan(GroupId::new(0)));
        let plan = plan.expect("requests run");
        let encoded = measure(|| {
            self.bytes.clear();
            plan.group().append_to(&mut self.bytes);
            plan.ranks().iter().for_each(|part| part.append_to(&mut self.bytes));
        });
        let group = plan.group();
        let (epoch, step, k_draft) = (group.epoch(), group.step(), group.k_draft());
        let replies = plan.ranks().iter().zip(&mut self.known).map(|(part, known)| reply(part, k_draft, known));
        let replies: Vec<StepReply> = replies.collect();
        let committed = measure(|| {
            self.scheduler.recycle(plan);
            for reply in replies {
                self.outputs.clear();
                let dp_rank: DpRank = reply.dp_rank;
                self.scheduler.commit_into(dp_rank, epoch, step, reply, &mut self.outputs).expect("a true reply");
                assert!(!self.outputs.is_empty());
            }
        });
        [planned, encoded, committed].map(|info| info.count_total)
    }
}

fn steady_steps_ask_for_no_memory(k: u32) {
    let mut run = Run {
        scheduler: scheduler(k, 0),
        known: vec![Vec::new(); RANKS as usize],
        bytes: Vec::new(),
        outputs: Vec::new(),
    };
    (0..RANKS * ROWS).for_each(|id| submit(&mut run.scheduler, id));
    for _ in 0..STEPS {
        run.step();
    }
    let stats = run.scheduler.stats();
    assert!(stats.ranks.iter().all(|rank| rank.running == ROWS), "every seat is taken");
    for step in 0..STEPS {
        assert_eq!(run.step(), [0; 3], "step {step}: plan, encode, commit");
    }
    let after = run.scheduler.stats();
    let emitted = |stats: &paceline_scheduler::Stats| stats.ranks.iter().map(|rank| rank.counters.emitted_tokens).sum();
    let (before, after): (u64, u64) = (emitted(&stats), emitted(&after));
    assert!(after - before >= u64::from(STEPS * RANKS * ROWS * (1 + k.div_ceil(2))) * 9 / 10, "a steady step decodes");
    run.scheduler.assert_consistent();
}

#[test]
fn no_memory_without_drafts() {
    steady_steps_ask_for_no_memory(0);
}

#[test]
fn no_memory_with_three_drafts() {
    steady_steps_ask_for_no_memory(3);
}
