//! Every rule that the sending end enforces, broken by hand in a plan that is legal until then: `Pass::new`,
//! `GroupPart::new`, `RankPart::new` or `StepPlan::new` refuses it, with the rule and both numbers.

use paceline_plan::{
    DpRank, Epoch, Error, GroupDraft, GroupId, GroupPart, LogitsWanted, Mask, Pass, PassKind, QueryLen, RankDraft,
    RankLoad, RankPart, Row, Rows, RowsPadded, Seat, SeatGeneration, Shape, StepId, StepPlan, Tokens, TokensPadded,
    WorkerLimits,
};

const K: u32 = 3;
const Q: QueryLen = QueryLen::verifying(K);

fn limits() -> WorkerLimits {
    WorkerLimits {
        seats: 4,
        max_num_seqs: 4,
        max_num_batched_tokens: 24,
        max_model_len: 64,
        block_size: 4,
        num_blocks: 32,
        k_max: K,
        row_capacity: 4,
        token_capacity: 32,
        table_width: 17,
        vocab_size: 100,
    }
}

/// A pass before it is checked.
#[derive(Clone)]
struct PassDraft {
    kind: PassKind,
    shape: Shape,
    loads: Vec<RankLoad>,
}

/// A plan before any of it is checked.
#[derive(Clone)]
struct Draft {
    passes: Vec<PassDraft>,
    group: GroupDraft,
    ranks: Vec<RankDraft>,
    limits: WorkerLimits,
}

impl Draft {
    fn build(self) -> Result<StepPlan, Error> {
        let passes = self.passes.into_iter().map(|pass| Pass::new(pass.kind, pass.shape, pass.loads));
        let group = GroupDraft { passes: passes.collect::<Result<_, _>>()?, ..self.group };
        let ranks = self.ranks.into_iter().map(RankPart::new).collect::<Result<_, _>>()?;
        StepPlan::new(GroupPart::new(group)?, ranks, &self.limits)
    }

    fn row(&mut self) -> &mut Row {
        &mut self.ranks[0].rows[0]
    }
}

fn real(rows: u32, tokens: u32) -> RankLoad {
    RankLoad::Real { rows: Rows::new(rows), tokens: Tokens::new(tokens) }
}

fn dummy(query_len: u32) -> RankLoad {
    RankLoad::Dummy { query_len: QueryLen::new(query_len).expect("not zero") }
}

fn row(seat: u32, is_decode: bool) -> Row {
    Row {
        seat: Seat::new(seat),
        generation: SeatGeneration::new(0),
        start_max: 5,
        query_len: Q,
        drafts: if is_decode { 2 } else { 0 },
        blocks: 3,
        logits: if is_decode { LogitsWanted::Verify } else { LogitsWanted::Last },
        mask: Mask::None,
    }
}

fn draft(shape: Shape, rows: Vec<Row>, decode_rows: u32) -> Draft {
    let count = rows.len() as u32;
    let tokens = rows.iter().map(|row| row.query_len.get()).sum();
    let loads = vec![real(count, tokens), dummy(1 + K)];
    let single_loads = vec![real(count, count), dummy(1)];
    let single = Shape::Full { query_len: QueryLen::ONE, rows_padded: RowsPadded::new(4) };
    let pass = |kind, shape, loads: &Vec<RankLoad>| PassDraft { kind, shape, loads: loads.clone() };
    Draft {
        passes: vec![
            pass(PassKind::Target, shape, &loads),
            pass(PassKind::Extend, shape, &loads),
            pass(PassKind::Single { index: 2 }, single, &single_loads),
            pass(PassKind::Single { index: 3 }, single, &single_loads),
        ],
        group: GroupDraft {
            group: GroupId::new(0),
            epoch: Epoch::new(1),
            step: StepId::new(7),
            depth: 0,
            k_verify: K,
            k_draft: K,
            dp_ranks: vec![DpRank::new(0), DpRank::new(1)],
            passes: Vec::new(),
        },
        ranks: vec![
            RankDraft { rows, decode_rows, ..RankDraft::default() },
            RankDraft { dp_rank: DpRank::new(1), ..RankDraft::default() },
        ],
        limits: limits(),
    }
}

/// Two decode rows beside an idle rank, in FULL(4 x 4), with a draft model.
fn decodes() -> Draft {
    let shape = Shape::Full { query_len: Q, rows_padded: RowsPadded::new(4) };
    draft(shape, vec![row(0, true), row(1, true)], 2)
}

/// A decode row without placeholders and a prompt row, EAGER.
fn mixed() -> Draft {
    let mut rows = vec![row(0, true), row(1, false)];
    rows[0].query_len = QueryLen::verifying(2);
    draft(Shape::Eager, rows, 1)
}

fn broken(mut draft: Draft, change: impl FnOnce(&mut Draft)) -> Error {
    change(&mut draft);
    draft.build().expect_err("the plan is refused")
}

#[test]
fn the_unbroken_plans_are_taken() {
    decodes().build().expect("legal");
    mixed().build().expect("legal");
}

#[test]
fn rule_1_every_rank_has_its_part() {
    let error = broken(decodes(), |draft| drop(draft.ranks.pop()));
    assert_eq!(error, Error::rule(1, "rank parts", 2, 1));
    let error = broken(decodes(), |draft| draft.group.dp_ranks[1] = DpRank::new(0));
    assert_eq!(error, Error::rule(1, "places of a dp_rank in the group", 1, 2));
    let error = broken(decodes(), |draft| draft.passes[2].loads.truncate(1));
    assert_eq!(error, Error::rule(1, "ranks of a pass", 2, 1));
    let error = broken(decodes(), |draft| draft.passes[0].loads[0] = dummy(4));
    assert_eq!(error, Error::rule(1, "ranks with rows", 1, 0));
    let error = broken(decodes(), |draft| draft.passes[0].loads[1] = real(0, 0));
    assert_eq!(error, Error::rule(1, "rows of a real rank", 1, 0));
    let error = broken(decodes(), |draft| draft.ranks.swap(0, 1));
    assert_eq!(error, Error::rule(1, "dp_rank", 0, 1));
    let error = broken(decodes(), |draft| drop(draft.ranks[0].rows.drain(..)));
    assert_eq!(error, Error::rule(2, "decode_rows", 0, 2));
    let error =
        broken(decodes(), |draft| draft.ranks[1] = RankDraft { dp_rank: DpRank::new(1), ..mixed().ranks.remove(0) });
    assert_eq!(error, Error::rule(1, "rows of the rank", 0, 2), "real rows where the group says dummy");
}

#[test]
fn rule_2_passes_are_in_order_and_seats_exist() {
    let error = broken(decodes(), |draft| draft.passes.clear());
    assert_eq!(error, Error::rule(2, "passes", 1, 0));
    let error = broken(decodes(), |draft| draft.passes.swap(0, 1));
    assert_eq!(error, Error::rule(2, "kind of pass 0 (0 is target)", 0, 1));
    let error = broken(decodes(), |draft| drop(draft.passes.remove(1)));
    assert_eq!(error, Error::rule(2, "kind of pass 1", 1, 2));
    let error = broken(decodes(), |draft| drop(draft.passes.pop()));
    assert_eq!(error, Error::rule(2, "passes", 4, 3));
    let error = broken(decodes(), |draft| draft.passes.swap(2, 3));
    assert_eq!(error, Error::rule(2, "index of a single pass", 2, 3));
    let error = broken(decodes(), |draft| draft.passes[3].loads[0] = real(2, 3));
    assert_eq!(error, Error::rule(2, "tokens of a single pass", 2, 3));
    let error = broken(decodes(), |draft| draft.passes[3].loads[0] = real(3, 3));
    assert_eq!(error, Error::rule(2, "rows of a single pass", 2, 3), "more rows than the rank has");
    let error = broken(decodes(), |draft| draft.passes[2].loads[0] = dummy(1));
    assert_eq!(error, Error::rule(2, "rows of a single pass", 2, 0), "a dummy where rows sample");
    let error = broken(decodes(), |draft| draft.passes[2].loads[1] = real(1, 1));
    assert_eq!(error, Error::rule(2, "rows of a single pass", 0, 1), "a row on an idle rank");
    let error = broken(mixed(), |draft| draft.ranks[0].rows[1].logits = LogitsWanted::None);
    assert_eq!(error, Error::rule(2, "rows of a single pass", 1, 2), "a row that does not sample");
    let error = broken(decodes(), |draft| draft.row().seat = Seat::new(4));
    assert_eq!(error, Error::rule(2, "seat", 3, 4));
    let error = broken(decodes(), |draft| draft.ranks[0].decode_rows = 3);
    assert_eq!(error, Error::rule(2, "decode_rows", 2, 3));
}

#[test]
fn rule_3_full_is_uniform() {
    let error = broken(decodes(), |draft| draft.passes[0].loads[0] = real(2, 7));
    assert_eq!(error, Error::rule(3, "tokens of a FULL pass", 8, 7));
    let error = broken(decodes(), |draft| draft.passes[0].loads[1] = dummy(1));
    assert_eq!(error, Error::rule(3, "tokens of a FULL pass", 4, 1), "the dummy that ran one token");
    let error = broken(decodes(), |draft| {
        draft.ranks[0].decode_rows = 1;
        draft.ranks[0].rows[1] = row(1, false);
    });
    assert_eq!(error, Error::rule(3, "decode rows of a FULL step", 2, 1));
    let error = broken(decodes(), |draft| {
        draft.ranks[0].rows[0].query_len = QueryLen::verifying(2);
        draft.ranks[0].rows[1].query_len = QueryLen::verifying(4);
    });
    assert_eq!(error, Error::rule(3, "query_len of a FULL row", 4, 3));
    let error = broken(mixed(), |draft| {
        draft.row().query_len = Q;
        draft.passes[0].loads[0] = real(2, 8);
        draft.passes[1].loads[0] = real(2, 8);
    });
    assert_eq!(error, Error::rule(3, "placeholders outside FULL", 0, 1));
    let error = broken(mixed(), |draft| {
        draft.passes[0].shape = Shape::Piecewise { tokens_padded: TokensPadded::new(4) };
    });
    assert_eq!(error, Error::rule(3, "tokens", 4, 7));
    let error = broken(mixed(), |draft| {
        draft.passes[0].shape = Shape::Piecewise { tokens_padded: TokensPadded::new(9) };
    });
    assert_eq!(error, Error::rule(3, "tokens_padded modulo Q of a PIECEWISE pass", 0, 1));
    let error = broken(decodes(), |draft| {
        for pass in &mut draft.passes[..2] {
            pass.shape = Shape::Full { query_len: QueryLen::ONE, rows_padded: RowsPadded::new(4) };
            pass.loads = vec![real(2, 2), dummy(1)];
        }
    });
    assert_eq!(error, Error::rule(8, "tokens of a dummy", 4, 1));
}

#[test]
fn rule_4_no_rank_passes_the_padded_size() {
    let error = broken(decodes(), |draft| {
        draft.passes[0].shape = Shape::Full { query_len: Q, rows_padded: RowsPadded::new(1) };
    });
    assert_eq!(error, Error::rule(4, "rows", 1, 2));
    let error = broken(mixed(), |draft| draft.passes[0].loads[0] = real(2, 1));
    assert_eq!(error, Error::rule(4, "tokens of a real rank", 2, 1));
}

#[test]
fn rule_5_padded_sizes_fit_the_buffers() {
    let error = broken(decodes(), |draft| {
        draft.passes[0].shape = Shape::Full { query_len: Q, rows_padded: RowsPadded::new(5) };
    });
    assert_eq!(error, Error::rule(5, "rows_padded", 4, 5));
    let error = broken(mixed(), |draft| {
        draft.passes[0].shape = Shape::Piecewise { tokens_padded: TokensPadded::new(36) };
    });
    assert_eq!(error, Error::rule(5, "tokens_padded", 32, 36));
}

#[test]
fn rule_8_dummies_run_what_their_peers_run() {
    let error = broken(mixed(), |draft| draft.passes[0].loads[1] = dummy(1));
    assert_eq!(error, Error::rule(8, "tokens of a dummy", 4, 1));
    let error = broken(decodes(), |draft| draft.passes[2].loads[1] = dummy(4));
    assert_eq!(error, Error::rule(8, "dummy tokens of a single pass", 1, 4));
}

#[test]
fn rule_9_drafts_fit_row_length_and_blocks() {
    let error = broken(decodes(), |draft| draft.row().drafts = 4);
    assert_eq!(error, Error::rule(9, "drafts", 3, 4));
    let error = broken(decodes(), |draft| draft.group.k_verify = 2);
    assert_eq!(error, Error::rule(8, "tokens of a dummy", 3, 4));
    let error = broken(decodes(), |draft| draft.limits.k_max = 2);
    assert_eq!(error, Error::rule(9, "k_verify", 2, 3));
    let error = broken(decodes(), |draft| {
        draft.row().start_max = 61;
        draft.row().blocks = 16;
    });
    assert_eq!(error, Error::rule(9, "drafts", 1, 2), "n = 62 of L = 64");
    let error = broken(decodes(), |draft| draft.row().start_max = 63);
    assert_eq!(error, Error::rule(9, "known tokens of a decode row", 63, 64));
    let error = broken(decodes(), |draft| draft.row().blocks = 1);
    assert_eq!(error, Error::rule(9, "positions in blocks", 8, 4));
    let error = broken(mixed(), |draft| draft.ranks[0].rows[1].drafts = 1);
    assert_eq!(error, Error::rule(9, "drafts", 0, 1), "a prompt chunk has no drafts");
    let error = broken(mixed(), |draft| draft.ranks[0].rows[1].start_max = 60);
    assert_eq!(error, Error::rule(9, "end of a prompt row", 63, 64));
    let error = broken(mixed(), |draft| draft.ranks[0].rows[1].blocks = 2);
    assert_eq!(error, Error::rule(9, "positions in blocks", 9, 8));
}

#[test]
fn rule_10_the_budget_holds_before_padding() {
    let error = broken(decodes(), |draft| draft.limits.max_num_batched_tokens = 7);
    assert_eq!(error, Error::rule(10, "tokens", 7, 8));
    let error = broken(decodes(), |draft| draft.limits.max_num_seqs = 1);
    assert_eq!(error, Error::rule(10, "rows", 1, 2));
    let error = broken(mixed(), |draft| draft.ranks[0].rows[1].query_len = QueryLen::ONE);
    assert_eq!(error, Error::rule(10, "tokens of the rank", 7, 4));
}

#[test]
fn rules_11_13_18_and_20_seats_steps_extend_passes_and_logits() {
    let error = broken(decodes(), |draft| draft.ranks[0].rows[1].seat = Seat::new(0));
    assert_eq!(error, Error::rule(11, "seat with two rows", -1, 0));
    let error = broken(decodes(), |draft| draft.group.step = StepId::new(0));
    assert_eq!(error, Error::rule(13, "step", 1, 0));
    let error = broken(mixed(), |draft| draft.passes[1].loads[0] = real(1, 7));
    assert_eq!(error, Error::rule(18, "rows of the extend pass", 2, 1));
    let error = broken(mixed(), |draft| draft.passes[1].loads[0] = real(2, 6));
    assert_eq!(error, Error::rule(18, "tokens of the extend pass", 7, 6));
    let error = broken(decodes(), |draft| draft.row().logits = LogitsWanted::Last);
    assert_eq!(error, Error::rule(20, "logits of a decode row", 2, 1));
    let error = broken(mixed(), |draft| draft.ranks[0].rows[1].logits = LogitsWanted::Verify);
    assert_eq!(error, Error::rule(20, "logits of a prompt row", 1, 2));
}

/// A group of one has no peers to run a dummy for.
#[test]
fn a_group_of_one_runs_no_dummy() {
    let alone = |load| {
        let pass = PassDraft { kind: PassKind::Extend, shape: Shape::Eager, loads: vec![load] };
        let mut draft = mixed();
        draft.passes = vec![PassDraft { kind: PassKind::Target, ..pass }];
        (draft.group.k_draft, draft.group.dp_ranks) = (0, vec![DpRank::new(0)]);
        draft.ranks.pop();
        draft
    };
    alone(real(2, 7)).build().expect("legal");
    let error = broken(alone(dummy(4)), |draft| draft.ranks[0] = RankDraft::default());
    assert_eq!(error, Error::rule(1, "ranks with rows", 1, 0));
}
