//! Shapes: what cannot be built at all.

use paceline_plan::{Error, GroupPart, Pass, PassKind, Shape};

use crate::support::{dummy, full, group_draft, query_len, real};

/// vLLM #35243: an idle rank's dummy counted one token while MTP pads it to Q.
#[test]
fn a01_an_idle_rank_runs_one_row_of_q_tokens() {
    for k in 0..8 {
        let q = k + 1;
        let pass = Pass::new(PassKind::Target, full(q, 4), vec![real(3, 3 * q), dummy(q)]).expect("a legal pass");
        assert_eq!(pass.tokens_padded().get(), pass.rows_padded().get() * q);
        assert_eq!(pass.loads()[1].tokens_run(), 1 + k);
        for wrong in (1..10).filter(|wrong| *wrong != q) {
            let refused = Pass::new(PassKind::Target, full(q, 4), vec![real(3, 3 * q), dummy(wrong)]);
            assert_eq!(refused, Err(Error::rule(3, "tokens of a FULL pass", q, wrong)));
            let loads = vec![real(1, 1), dummy(wrong)];
            let refused = GroupPart::new(group_draft(1, k, Shape::Eager, loads).expect("a legal pass"));
            assert_eq!(refused, Err(Error::rule(8, "tokens of a dummy", q, wrong)));
        }
    }
}

/// vLLM #32626: padded requests with unpadded tokens.
#[test]
fn a02_padded_rows_and_tokens_come_together() {
    let pass = Pass::new(PassKind::Target, full(1, 8), vec![real(8, 8), dummy(1)]).expect("a legal pass");
    assert_eq!((pass.rows_padded().get(), pass.tokens_padded().get()), (8, 8));
    assert_eq!(pass.query_len(), Some(query_len(1)));
}

#[test]
fn a_rank_above_the_padded_size_is_refused_with_both_numbers() {
    let refused = Pass::new(PassKind::Target, full(1, 8), vec![real(9, 9)]);
    assert_eq!(refused, Err(Error::rule(4, "rows", 8, 9)));
}

#[test]
fn a_full_pass_has_no_shorter_row() {
    let refused = Pass::new(PassKind::Target, full(4, 4), vec![real(4, 13)]);
    assert_eq!(refused, Err(Error::rule(3, "tokens of a FULL pass", 16, 13)));
}

#[test]
fn a_group_of_one_runs_no_dummy_and_an_idle_group_no_step() {
    let refused = Pass::new(PassKind::Target, Shape::Eager, vec![dummy(1)]);
    assert_eq!(refused, Err(Error::rule(1, "ranks with rows", 1, 0)));
    let refused = Pass::new(PassKind::Target, Shape::Eager, vec![real(0, 0), real(1, 1)]);
    assert_eq!(refused, Err(Error::rule(1, "rows of a real rank", 1, 0)));
}

/// vLLM #26217: the idle rank runs as many drafter passes as the busy one.
#[test]
fn a06_the_list_of_passes_is_one_for_all_ranks() {
    let q = 4;
    let mut draft = group_draft(1, 3, full(q, 2), vec![real(2, 8), dummy(4)]).expect("a legal pass");
    draft.k_draft = 3;
    draft.passes.push(Pass::new(PassKind::Extend, full(q, 2), vec![real(2, 8), dummy(4)]).expect("a legal pass"));
    assert_eq!(GroupPart::new(draft.clone()), Err(Error::rule(2, "passes", 4, 2)));
    for index in 2..=3 {
        let kind = PassKind::Single { index };
        draft.passes.push(Pass::new(kind, full(1, 2), vec![real(2, 2), dummy(1)]).expect("a legal pass"));
    }
    assert_eq!(GroupPart::new(draft.clone()).map(|part| part.passes().len()), Ok(4));
    draft
        .passes
        .push(Pass::new(PassKind::Single { index: 4 }, full(1, 2), vec![real(2, 2), dummy(1)]).expect("a legal pass"));
    assert_eq!(GroupPart::new(draft), Err(Error::rule(2, "passes", 4, 5)));
}

#[test]
fn the_extend_pass_has_the_rows_of_the_target() {
    let mut draft = group_draft(1, 1, full(2, 2), vec![real(2, 4), dummy(2)]).expect("a legal pass");
    draft.passes.push(Pass::new(PassKind::Extend, full(2, 2), vec![real(1, 2), dummy(2)]).expect("a legal pass"));
    assert_eq!(GroupPart::new(draft), Err(Error::rule(18, "rows of the extend pass", 2, 1)));
}
