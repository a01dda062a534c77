//! Steps of one load, each part in a function of its own, for callgrind to count: `tests/bench/instructions.py`.
//!
//! `instructions RANKS ROWS K mixed|decode[-nocache] STEPS`. It measures nothing itself: callgrind collects inside [`measured`],
//! and the cost of a part is the inclusive cost of its `part_*` function.

mod world;

use std::hint::black_box;

use paceline_plan::arrays::{Extent, PassArrays, fill_target};
use paceline_plan::seats::{RowOutcome, SeatTable, StepHeader, WorkerStep};
use paceline_plan::{
    Coded, DpRank, Epoch, Error, GroupDraft, GroupId, GroupPart, LogitsWanted, Pass, PassKind, RankDraft, RankLoad,
    RankPart, Shape, StepPlan, StepReply, WorkerLimits, digest, from_bytes, to_bytes,
};
use paceline_scheduler::{Output, Scheduler};
use world::Load;

/// A plan's bytes, in memory that is used again: the digest of the group part, the group part, one part for each rank.
type Encoded = (u64, Vec<u8>, Vec<Vec<u8>>);

#[inline(never)]
fn part_plan(scheduler: &mut Scheduler) -> StepPlan {
    scheduler.plan(GroupId::new(0)).expect("requests run")
}

/// The checks that a plan passes while the scheduler makes it; part 1, of the group part.
#[inline(never)]
fn part_check_group(passes: Vec<(PassKind, Shape, Vec<RankLoad>)>, mut draft: GroupDraft) -> GroupPart {
    draft.passes =
        passes.into_iter().map(|(kind, shape, loads)| Pass::new(kind, shape, loads).expect("true")).collect();
    GroupPart::new(draft).expect("true")
}

/// Part 2, of a rank's part alone.
#[inline(never)]
fn part_check_rank(draft: RankDraft) -> Result<RankPart, Error> {
    RankPart::new(draft)
}

/// Part 3, of all parts beside each other and the ranks' sizes.
#[inline(never)]
fn part_check_plan(group: GroupPart, ranks: Vec<RankPart>, limits: &WorkerLimits) -> Result<StepPlan, Error> {
    StepPlan::new(group, ranks, limits)
}

#[inline(never)]
fn part_encode(plan: &StepPlan, encoded: &mut Encoded) {
    let (group_digest, group_part, parts) = encoded;
    group_part.clear();
    plan.group().append_to(group_part);
    *group_digest = digest(group_part);
    parts.resize_with(plan.ranks().len(), Vec::new);
    for (rank, part) in plan.ranks().iter().zip(parts) {
        part.clear();
        rank.append_to(part);
    }
}

/// What a worker's decoder does, the checks that a value of the type passes included.
#[inline(never)]
fn part_decode(group_part: &[u8], rank_part: &[u8]) -> (GroupPart, RankPart) {
    (from_bytes(group_part).expect("true"), from_bytes(rank_part).expect("true"))
}

/// Decode, all of a worker's checks, and the deltas applied.
#[inline(never)]
fn part_begin(table: &mut SeatTable, header: StepHeader, group_part: &[u8], rank_part: &[u8]) -> WorkerStep {
    table.begin(header, group_part, rank_part).expect("true")
}

#[inline(never)]
fn part_fill(buffers: &mut Buffers, table: &SeatTable, step: &WorkerStep) -> usize {
    buffers.fill(table, step)
}

#[inline(never)]
fn part_worker_commit(table: &mut SeatTable, step: &WorkerStep, outcomes: Vec<RowOutcome>) -> StepReply {
    table.commit(step, outcomes).expect("true")
}

#[inline(never)]
fn part_reply_encode(reply: &StepReply) -> Vec<u8> {
    to_bytes(reply)
}

#[inline(never)]
fn part_reply_decode(bytes: &[u8]) -> StepReply {
    from_bytes(bytes).expect("true")
}

#[inline(never)]
fn part_commit(scheduler: &mut Scheduler, header: StepHeader, reply: StepReply, outputs: &mut Vec<Output>) {
    scheduler.commit_into(reply.dp_rank, header.epoch, header.step, reply, outputs).expect("true");
}

#[inline(never)]
fn part_recycle(scheduler: &mut Scheduler, plan: StepPlan) {
    scheduler.recycle(plan);
}

/// The arrays that kernels are given.
struct Buffers {
    wide: [Vec<i64>; 4],
    narrow: [Vec<i32>; 4],
    extent: Extent,
}

impl Buffers {
    fn new(limits: &WorkerLimits) -> Self {
        let (rows, tokens) = (limits.row_capacity as usize, limits.token_capacity as usize);
        let wide = [const { Vec::new() }; 4].map(|_: Vec<i64>| vec![0; tokens]);
        let narrow = [rows + 1, rows, rows * limits.table_width as usize, tokens].map(|len| vec![0; len]);
        Self { wide, narrow, extent: Extent { rows, tokens } }
    }

    fn fill(&mut self, table: &SeatTable, step: &WorkerStep) -> usize {
        let [input_ids, positions, slots, logits_index] = &mut self.wide;
        let [query_start_loc, kv_lens, block_table, request_index] = &mut self.narrow;
        let mut arrays = PassArrays {
            input_ids,
            positions,
            slots,
            query_start_loc,
            kv_lens,
            block_table,
            request_index,
            logits_index,
        };
        fill_target(table, step, &mut arrays, &mut self.extent).expect("fits")
    }
}

struct World {
    load: Load,
    limits: WorkerLimits,
    scheduler: Scheduler,
    tables: Vec<SeatTable>,
    buffers: Buffers,
    kept: Kept,
}

/// What the scheduler's caller keeps from step to step.
#[derive(Default)]
struct Kept {
    encoded: Encoded,
    outputs: Vec<Output>,
}

impl World {
    fn new(load: Load) -> Self {
        let limits = load.limits();
        let dp_ranks: Vec<DpRank> = (0..load.ranks).map(DpRank::new).collect();
        let table = |dp_rank: &DpRank| {
            let mut table = SeatTable::new(limits, *dp_rank, dp_ranks.clone()).expect("in the group");
            table.reset(Epoch::new(1));
            table
        };
        let tables = dp_ranks.iter().map(table).collect();
        Self {
            load,
            limits,
            scheduler: load.scheduler(),
            tables,
            buffers: Buffers::new(&limits),
            kept: Kept::default(),
        }
    }

    fn warm_up(&mut self) {
        let Self { load, limits, scheduler, tables, buffers, kept } = self;
        load.warm_up(scheduler, |scheduler| step(scheduler, tables, buffers, kept, limits));
    }
}

/// Where callgrind collects.
#[inline(never)]
fn measured(world: &mut World, steps: u32) {
    for _ in 0..steps {
        world.load.top_up(&mut world.scheduler);
        step(&mut world.scheduler, &mut world.tables, &mut world.buffers, &mut world.kept, &world.limits);
    }
}

fn step(
    scheduler: &mut Scheduler,
    tables: &mut [SeatTable],
    buffers: &mut Buffers,
    kept: &mut Kept,
    limits: &WorkerLimits,
) {
    let plan = part_plan(scheduler);
    check_again(&plan, limits);
    let Kept { encoded, outputs } = kept;
    part_encode(&plan, encoded);
    let (digest, group_part, rank_parts) = &*encoded;
    let group = plan.group();
    let header = StepHeader { group: group.group(), epoch: group.epoch(), step: group.step(), digest: *digest };
    part_recycle(scheduler, plan);
    for (table, rank_part) in tables.iter_mut().zip(rank_parts) {
        black_box(part_decode(group_part, rank_part));
        let step = part_begin(table, header, group_part, rank_part);
        black_box(part_fill(buffers, table, &step));
        let outcomes = outcomes(&step);
        let reply = part_worker_commit(table, &step, outcomes);
        let bytes = part_reply_encode(&reply);
        let reply = part_reply_decode(&bytes);
        outputs.clear();
        part_commit(scheduler, header, reply, outputs);
    }
}

/// The checks of the scheduler's end once more, apart from planning.
fn check_again(plan: &StepPlan, limits: &WorkerLimits) {
    let group = plan.group();
    let draft = GroupDraft {
        group: group.group(),
        epoch: group.epoch(),
        step: group.step(),
        depth: group.depth(),
        k_verify: group.k_verify(),
        k_draft: group.k_draft(),
        dp_ranks: group.dp_ranks().to_vec(),
        passes: Vec::new(),
    };
    let passes = group.passes().iter().map(|pass| (pass.kind(), pass.shape(), pass.loads().to_vec())).collect();
    let group = part_check_group(passes, draft);
    let drafts: Vec<RankDraft> = plan.ranks().iter().map(rank_draft).collect();
    let ranks = drafts.into_iter().map(|draft| part_check_rank(draft).expect("true")).collect();
    black_box(part_check_plan(group, ranks, limits).expect("true"));
}

fn rank_draft(part: &RankPart) -> RankDraft {
    RankDraft {
        dp_rank: part.dp_rank(),
        releases: part.releases().to_vec(),
        admissions: part.admissions().to_vec(),
        feeds: part.feeds().to_vec(),
        block_appends: part.block_appends().to_vec(),
        block_copies: part.block_copies().to_vec(),
        block_zeroings: part.block_zeroings().to_vec(),
        rows: part.rows().to_vec(),
        decode_rows: part.decode_rows(),
    }
}

/// Rows sample token 7 and accept no draft; drafts are proposed in full.
fn outcomes(step: &WorkerStep) -> Vec<RowOutcome> {
    let k_draft = step.group.k_draft() as usize;
    let rows = step.rank.rows().iter().map(|row| {
        let samples = row.logits != LogitsWanted::None;
        let proposed = if samples { vec![7; k_draft] } else { Vec::new() };
        RowOutcome { accepted: 0, emitted: vec![7; usize::from(samples)], proposed, logprobs: Vec::new() }
    });
    rows.collect()
}

fn main() {
    let arguments: Vec<String> = std::env::args().filter(|argument| argument != "--bench").skip(1).collect();
    let number = |index: usize| arguments.get(index).and_then(|text| text.parse::<u32>().ok());
    let (Some(ranks), Some(rows), Some(k), Some(kind), Some(steps)) =
        (number(0), number(1), number(2), arguments.get(3), number(4))
    else {
        println!("for callgrind, see tests/bench/instructions.py: RANKS ROWS K mixed|decode[-nocache] STEPS");
        return;
    };
    let mut world =
        World::new(Load { ranks, rows, k, mixed: kind.starts_with("mixed"), cache: !kind.ends_with("-nocache") });
    world.warm_up();
    measured(&mut world, steps);
}
