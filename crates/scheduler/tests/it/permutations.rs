//! Permuted ranks give permuted plans: two schedulers see the same events, one with the ranks in another order, and plan
//! the same steps with the ranks in that order.

use paceline_plan::seats::{RowOutcome, SeatTable, StepHeader};
use paceline_plan::{DpRank, Epoch, GroupId, LogitsWanted, RankPart, StepPlan, digest, to_bytes};
use paceline_scheduler::{Config, Drafter, RequestId, RequestSpec, Scheduler, ShapeConfig};
use proptest::prelude::*;

use crate::world::{Random, limits};

const GROUP: GroupId = GroupId::new(0);

/// One of the two; `order[i]` is the rank that stands for rank `i`.
struct Side {
    scheduler: Scheduler,
    workers: Vec<SeatTable>,
    order: Vec<usize>,
}

impl Side {
    fn new(config: Config, order: Vec<usize>) -> Self {
        let dp_ranks = config.groups[0].clone();
        let workers = dp_ranks.iter().map(|dp_rank| {
            let table = SeatTable::new(config.limits, *dp_rank, dp_ranks.clone()).expect("in the group");
            let mut table = table.with_drafter_layers(config.lookahead());
            table.reset(Epoch::new(1));
            table
        });
        Self { workers: workers.collect(), scheduler: Scheduler::new(config).expect("correct"), order }
    }

    fn submit(&mut self, id: u64, rank: usize, prompt_len: u32, max_new_tokens: u32, priority: i32) -> bool {
        let spec = RequestSpec {
            id: RequestId(id),
            prompt: vec![5; prompt_len as usize],
            max_new_tokens,
            stop_token_ids: Vec::new(),
            sampling: id.to_le_bytes().to_vec(),
            pinned: Some(DpRank::new(self.order[rank] as u32)),
            priority,
            history: false,
            prompt_logprobs: false,
            cache_salt: Vec::new(),
            constrained: false,
            shares_prompt_with: None,
        };
        self.scheduler.submit(spec).is_ok()
    }

    /// Plans a step, runs it and answers; what a row makes of it depends on its request only.
    fn step(&mut self) -> Option<StepPlan> {
        let plan = self.scheduler.plan(GROUP)?;
        let part = to_bytes(plan.group());
        let (epoch, step) = (plan.group().epoch(), plan.group().step());
        let header = StepHeader { group: GROUP, epoch, step, digest: digest(&part) };
        for (rank, worker) in plan.ranks().iter().zip(&mut self.workers) {
            let begun = worker.begin(header, &part, &to_bytes(rank)).expect("a legal plan");
            let outcomes = rank.rows().iter().map(|row| {
                if row.logits == LogitsWanted::None {
                    return RowOutcome::default();
                }
                let state = worker.seat(row.seat).expect("the row's seat is taken");
                let id = u64::from_le_bytes(state.sampling().try_into().expect("eight bytes"));
                let mut random = Random(id << 32 | u64::from(state.known()));
                let accepted = random.below(row.drafts + 1);
                let proposed = vec![3; random.below(plan.group().k_draft() + 1) as usize];
                RowOutcome { accepted, emitted: vec![4; 1 + accepted as usize], proposed, logprobs: Vec::new() }
            });
            let outcomes = outcomes.collect();
            let reply = worker.commit(&begun, outcomes).expect("outcomes fit");
            self.scheduler.commit(rank.dp_rank(), epoch, step, reply).expect("a true reply");
        }
        Some(plan)
    }
}

fn config(random: &mut Random, ranks: u32) -> Config {
    let (rows, k) = (1 + random.below(5), random.below(4));
    let mut limits = limits(rows, k);
    limits.max_num_batched_tokens = 1 + k + random.below(30);
    limits.max_model_len = 12 + random.below(40);
    limits.block_size = 1 + random.below(6);
    limits.num_blocks = 2 + limits.max_model_len / limits.block_size;
    limits.table_width = (limits.max_model_len + k).div_ceil(limits.block_size);
    let k_values = [0, k];
    let shapes = match random.below(4) {
        0 => ShapeConfig::from_tokens(&[1 + k, 2 * (1 + k)], rows.max(2), &k_values),
        1 => ShapeConfig::powers_of_two(rows, &k_values, rows).with_token_ladder(&[4, 16, 32], &k_values),
        _ => ShapeConfig::cpu_default(rows, &k_values, rows),
    };
    let mut config = Config::new(Config::lockstep_groups(ranks), limits, shapes);
    config.k = k;
    config.k_verify_values = if random.chance(500) { vec![0] } else { Vec::new() };
    config.drafter = match random.below(2) {
        _ if k == 0 => Drafter::None,
        0 => Drafter::Ngram,
        _ => Drafter::Model,
    };
    config
}

/// The part of a rank but for the rank's number.
fn assert_same_part(part: &RankPart, other: &RankPart) {
    assert_eq!((part.rows(), part.decode_rows()), (other.rows(), other.decode_rows()));
    assert_eq!((part.releases(), part.admissions()), (other.releases(), other.admissions()));
    assert_eq!((part.feeds(), part.block_appends()), (other.feeds(), other.block_appends()));
}

fn assert_permuted(plan: &StepPlan, other: &StepPlan, order: &[usize]) {
    let (group, permuted) = (plan.group(), other.group());
    assert_eq!(
        (group.step(), group.k_verify(), group.k_draft()),
        (permuted.step(), permuted.k_verify(), permuted.k_draft())
    );
    assert_eq!(group.passes().len(), permuted.passes().len());
    for (pass, permuted) in group.passes().iter().zip(permuted.passes()) {
        assert_eq!((pass.kind(), pass.shape()), (permuted.kind(), permuted.shape()));
        for (rank, load) in pass.loads().iter().enumerate() {
            assert_eq!(*load, permuted.loads()[order[rank]]);
        }
    }
    for (rank, part) in plan.ranks().iter().enumerate() {
        assert_same_part(part, &other.ranks()[order[rank]]);
    }
}

/// Runs both sides; how many steps they planned.
fn run(seed: u64) -> u32 {
    let mut random = Random(seed);
    let ranks = 2 + random.below(3);
    let config = config(&mut random, ranks);
    if Scheduler::new(config.clone()).is_err() {
        return 0;
    }
    let mut order: Vec<usize> = (0..ranks as usize).collect();
    for last in (1..order.len()).rev() {
        order.swap(last, random.below(last as u32 + 1) as usize);
    }
    let longest = config.limits.max_model_len;
    let mut side = Side::new(config.clone(), (0..ranks as usize).collect());
    let mut other = Side::new(config, order.clone());
    let (mut steps, mut id) = (0, 0);
    for _ in 0..60 {
        for _ in 0..random.below(4) {
            id += 1;
            let rank = random.below(ranks) as usize;
            let (prompt, output) = (1 + random.below(longest), 1 + random.below(longest / 2));
            let priority = random.below(2).cast_signed();
            assert_eq!(
                side.submit(id, rank, prompt, output, priority),
                other.submit(id, rank, prompt, output, priority)
            );
        }
        if random.chance(200) {
            let id = RequestId(1 + random.next() % id.max(1));
            assert_eq!(side.scheduler.abort(id), other.scheduler.abort(id));
        }
        match (side.step(), other.step()) {
            (Some(plan), Some(permuted)) => {
                assert_permuted(&plan, &permuted, &order);
                steps += 1;
            }
            (None, None) => {}
            (plan, permuted) => panic!("one has a step: {plan:?} {permuted:?}"),
        }
    }
    steps
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn permuted_ranks_give_permuted_plans(seed in any::<u64>()) {
        run(seed);
    }
}

#[test]
fn most_random_configurations_of_permuted_ranks_are_correct() {
    assert!((0..50).map(run).sum::<u32>() > 1000);
}
