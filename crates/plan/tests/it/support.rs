//! Small plans for tests: one request per call, one or two ranks.

use paceline_plan::seats::{SeatTable, StepHeader, WorkerStep};
use paceline_plan::step::GroupDraft;
use paceline_plan::{
    Admission, BlockAppend, DpRank, Epoch, Error, Feed, GroupId, GroupPart, KvGroup, LogitsWanted, Mask, Pass,
    PassKind, QueryLen, RankDraft, RankLoad, RankPart, Row, Rows, RowsPadded, Seat, SeatGeneration, Shape, StepId,
    StepPlan, Tokens, WorkerLimits, digest, to_bytes,
};

/// Limits of a small rank: 8 rows, 64 tokens of context, 16 blocks of 4 tokens.
pub(crate) fn limits() -> WorkerLimits {
    WorkerLimits {
        seats: 8,
        max_num_seqs: 8,
        max_num_batched_tokens: 32,
        max_model_len: 64,
        block_size: 4,
        num_blocks: 16,
        k_max: 3,
        row_capacity: 8,
        token_capacity: 32,
        table_width: 17,
        vocab_size: 100,
    }
}

pub(crate) fn query_len(value: u32) -> QueryLen {
    QueryLen::new(value).expect("test lengths are not zero")
}

pub(crate) fn real(rows: u32, tokens: u32) -> RankLoad {
    RankLoad::Real { rows: Rows::new(rows), tokens: Tokens::new(tokens) }
}

pub(crate) fn dummy(tokens: u32) -> RankLoad {
    RankLoad::Dummy { query_len: query_len(tokens) }
}

pub(crate) fn full(q: u32, rows_padded: u32) -> Shape {
    Shape::Full { query_len: query_len(q), rows_padded: RowsPadded::new(rows_padded) }
}

/// A group part with only a target pass.
pub(crate) fn group_draft(step: u64, k: u32, shape: Shape, loads: Vec<RankLoad>) -> Result<GroupDraft, Error> {
    Ok(GroupDraft {
        group: GroupId::new(0),
        epoch: Epoch::new(1),
        step: StepId::new(step),
        depth: 0,
        k_verify: k,
        k_draft: 0,
        dp_ranks: (0..loads.len() as u32).map(DpRank::new).collect(),
        passes: vec![Pass::new(PassKind::Target, shape, loads)?],
    })
}

/// A row of `seat`.
pub(crate) fn row(seat: u32, start: u32, length: u32, drafts: u32, blocks: u32, logits: LogitsWanted) -> Row {
    Row {
        seat: Seat::new(seat),
        generation: SeatGeneration::new(1),
        start_max: start,
        query_len: query_len(length),
        drafts,
        blocks,
        logits,
        mask: Mask::None,
    }
}

/// A rank's first step: a prompt `tokens` on `seat`, its blocks being `blocks`.
pub(crate) fn prompt_draft(seat: u32, tokens: &[u32], blocks: &[u32]) -> RankDraft {
    RankDraft {
        admissions: vec![Admission {
            seat: Seat::new(seat),
            generation: SeatGeneration::new(1),
            prompt_len: tokens.len() as u32,
            computed: 0,
            adapter: 0,
            sampling: vec![7],
            history: true,
        }],
        feeds: vec![Feed { seat: Seat::new(seat), start: 0, tokens: tokens.into() }],
        block_appends: vec![BlockAppend { seat: Seat::new(seat), kv_group: KvGroup::new(0), blocks: blocks.into() }],
        rows: vec![row(seat, 0, tokens.len() as u32, 0, blocks.len() as u32, LogitsWanted::Last)],
        ..RankDraft::default()
    }
}

/// Sends a group part and a rank part to a worker, as the wire does.
pub(crate) fn deliver(table: &mut SeatTable, group: &GroupPart, rank: &RankPart) -> Result<WorkerStep, Error> {
    let group_bytes = to_bytes(group);
    let header =
        StepHeader { group: group.group(), epoch: group.epoch(), step: group.step(), digest: digest(&group_bytes) };
    table.begin(header, &group_bytes, &to_bytes(rank))
}

/// A worker of rank 0 in a group of `ranks`, in epoch 1.
pub(crate) fn worker(ranks: u32) -> SeatTable {
    let dp_ranks = (0..ranks).map(DpRank::new).collect();
    let mut table = SeatTable::new(limits(), DpRank::new(0), dp_ranks).expect("rank 0 is in the group");
    table.reset(Epoch::new(1));
    table
}

/// Checks and delivers a one-rank step, and commits it with one emitted token per sampled row.
pub(crate) fn run(
    table: &mut SeatTable,
    step: u64,
    k: u32,
    shape: Shape,
    draft: RankDraft,
) -> Result<WorkerStep, Error> {
    let rank = RankPart::new(draft)?;
    let loads = vec![real(rank.rows_real().get(), rank.tokens_real().get())];
    let group = GroupPart::new(group_draft(step, k, shape, loads)?)?;
    let plan = StepPlan::new(group, vec![rank], table.limits())?;
    deliver(table, plan.group(), &plan.ranks()[0])
}
