//! Dummies and padding on a rank whose KV pool is full (field case A10).

use paceline_plan::seats::{RowOutcome, SeatTable, StepHeader};
use paceline_plan::{
    Admission, BlockAppend, DpRank, Epoch, Feed, GroupDraft, GroupId, GroupPart, KvGroup, LogitsWanted, Mask, Mode,
    Pass, PassKind, QueryLen, RankDraft, RankLoad, RankPart, Row, Rows, RowsPadded, Seat, SeatGeneration, Shape,
    StepId, StepPlan, Tokens, WorkerLimits, digest, to_bytes,
};

use crate::arrays::Arrays;
use crate::world::{World, lockstep};

/// Rank 1's one request holds every block of its pool, so there is none for the rows that pad it to its peer's four.
#[test]
fn a10_padding_rows_need_no_block_where_none_is_free() {
    let mut config = lockstep(2, 4, 1);
    config.limits.block_size = 128;
    config.limits.num_blocks = 4;
    let mut world = World::new(config);
    world.accept_permille = 0;
    for _ in 0..4 {
        world.submit_to(0, 4, 125);
    }
    world.submit_to(1, 385, 128);
    world.step(0).expect("prompts");
    for _ in 0..100 {
        assert_eq!(world.scheduler.stats().ranks[1].blocks_used, 4, "no block is free");
        let plan = world.step(0).expect("decodes");
        let target = plan.group().target();
        assert_eq!((target.mode(), target.rows_padded().get(), target.loads()[1].rows_run()), (Mode::Full, 4, 1));
        assert_eq!(world.scheduler.stats().ranks[1].blocks_used, 4);
    }
    assert_eq!(world.scheduler.stats().ranks.iter().map(|rank| rank.counters.preemptions).sum::<u64>(), 0);
}

const Q: QueryLen = QueryLen::verifying(1);

fn limits(seats: u32) -> WorkerLimits {
    WorkerLimits {
        seats,
        max_num_seqs: seats,
        max_num_batched_tokens: 64,
        max_model_len: 64,
        block_size: 4,
        num_blocks: 12,
        k_max: 1,
        row_capacity: seats,
        token_capacity: 64,
        table_width: 17,
        vocab_size: 100,
    }
}

fn prompt_row(seat: u32, tokens: u32, blocks: u32) -> Row {
    Row {
        seat: Seat::new(seat),
        generation: SeatGeneration::new(1),
        start_max: 0,
        query_len: QueryLen::new(tokens).expect("not zero"),
        drafts: 0,
        blocks,
        logits: LogitsWanted::Last,
        mask: Mask::None,
    }
}

/// Prompts on all seats that fill the pool.
fn filling(dp_rank: u32, limits: &WorkerLimits) -> RankDraft {
    let per_seat = limits.num_blocks / limits.seats;
    let tokens = per_seat * limits.block_size;
    let mut draft = RankDraft { dp_rank: DpRank::new(dp_rank), ..RankDraft::default() };
    for index in 0..limits.seats {
        let seat = Seat::new(index);
        let (generation, prompt_len) = (SeatGeneration::new(1), tokens);
        let sampling = vec![1];
        draft.admissions.push(Admission {
            seat,
            generation,
            prompt_len,
            computed: 0,
            adapter: 0,
            sampling,
            history: true,
        });
        draft.feeds.push(Feed { seat, start: 0, tokens: vec![5; tokens as usize].into() });
        let blocks = (1 + index * per_seat..=(index + 1) * per_seat).collect();
        draft.block_appends.push(BlockAppend { seat, kv_group: KvGroup::new(0), blocks });
        draft.rows.push(prompt_row(index, tokens, per_seat));
    }
    draft
}

/// The row of rank 0 that keeps the group busy: it is longer by one token in every step.
fn decode(step: u64) -> RankDraft {
    let row = Row {
        start_max: 3 + step as u32 % 20,
        query_len: Q,
        blocks: 12,
        logits: LogitsWanted::Verify,
        ..prompt_row(0, 1, 0)
    };
    RankDraft { rows: vec![row], decode_rows: 1, ..RankDraft::default() }
}

fn plan(step: u64, shape: Shape, ranks: [RankDraft; 2], limits: &WorkerLimits) -> StepPlan {
    let ranks = ranks.map(|rank| RankPart::new(rank).expect("legal"));
    let loads = ranks.iter().map(|rank| match rank.rows_real() {
        Rows::ZERO => RankLoad::Dummy { query_len: Q },
        rows => RankLoad::Real { rows, tokens: Tokens::new(rank.tokens_real().get()) },
    });
    let passes = vec![Pass::new(PassKind::Target, shape, loads.collect()).expect("legal")];
    let (group, epoch, step) = (GroupId::new(0), Epoch::new(1), StepId::new(step));
    let dp_ranks = vec![DpRank::new(0), DpRank::new(1)];
    let draft = GroupDraft { group, epoch, step, depth: 0, k_verify: 1, k_draft: 0, dp_ranks, passes };
    StepPlan::new(GroupPart::new(draft).expect("legal"), ranks.into(), limits).expect("legal")
}

/// Requests that get no row hold every seat and every block of rank 1 while rank 0 decodes.
fn dummies_beside(seats: u32) {
    let limits = limits(seats);
    let dp_ranks = vec![DpRank::new(0), DpRank::new(1)];
    let mut worker = SeatTable::new(limits, DpRank::new(1), dp_ranks).expect("in the group");
    worker.reset(Epoch::new(1));
    let mut arrays = Arrays::new(&limits);
    let mut begin = |worker: &mut SeatTable, plan: &StepPlan| {
        let part = to_bytes(plan.group());
        let (group, step) = (plan.group().group(), plan.group().step());
        let header = StepHeader { group, epoch: plan.group().epoch(), step, digest: digest(&part) };
        let begun = worker.begin(header, &part, &to_bytes(&plan.ranks()[1])).expect("the worker takes it");
        arrays.fill_and_check(worker, &begun);
        (begun, arrays.slots.clone())
    };
    let first = plan(1, Shape::Eager, [decode_outside_full(), filling(1, &limits)], &limits);
    let (begun, _) = begin(&mut worker, &first);
    let outcome = RowOutcome { emitted: vec![6], ..RowOutcome::default() };
    worker.commit(&begun, vec![outcome; seats as usize]).expect("one token each");
    let held = |worker: &SeatTable| -> Vec<u32> {
        let seated = (0..seats).map(|seat| worker.seat(Seat::new(seat)).expect("the seat is taken").clone());
        seated.flat_map(|state| state.blocks().iter().map(|block| block.get()).collect::<Vec<_>>()).collect()
    };
    assert_eq!(held(&worker), (1..=12).collect::<Vec<_>>(), "no block is free");
    let shape = Shape::Full { query_len: Q, rows_padded: RowsPadded::new(seats) };
    for step in 2..102 {
        let dummy = RankDraft { dp_rank: DpRank::new(1), ..RankDraft::default() };
        let plan = plan(step, shape, [decode(step), dummy], &limits);
        assert_eq!(plan.group().target().mode(), Mode::Full);
        let (begun, slots) = begin(&mut worker, &plan);
        assert!(begun.rank.is_dummy() && slots.iter().all(|slot| *slot == -1));
        worker.commit(&begun, Vec::new()).expect("a dummy has no outcome");
        assert_eq!(held(&worker), (1..=12).collect::<Vec<_>>());
    }
}

fn decode_outside_full() -> RankDraft {
    let mut draft = decode(0);
    draft.rows[0].query_len = QueryLen::ONE;
    draft
}

#[test]
fn a10_a_dummy_runs_beside_requests_that_hold_all_blocks_and_seats() {
    dummies_beside(3);
}

#[test]
fn a10_a_dummy_runs_where_the_only_seat_is_taken() {
    dummies_beside(1);
}
