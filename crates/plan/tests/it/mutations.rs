//! Breaks a legal plan by hand, one rule at a time: the worker's end refuses each with the rule and both numbers.

use paceline_plan::seats::{RowOutcome, SeatTable};
use paceline_plan::{Error, Feed, GroupPart, LogitsWanted, RankDraft, RankPart, Release, Seat, SeatGeneration, Shape};

use crate::support::{deliver, full, group_draft, prompt_draft, real, row, run, worker};

/// One emitted token, 2 drafts, blocks 3 and 9, seat 2.
fn decoding() -> SeatTable {
    let mut table = worker(1);
    let step = run(&mut table, 1, 3, Shape::Eager, prompt_draft(2, &[1, 2, 3, 4, 5], &[3, 9])).expect("legal");
    let outcome = RowOutcome { emitted: vec![6], proposed: vec![7, 8], ..RowOutcome::default() };
    table.commit(&step, vec![outcome]).expect("one token");
    table
}

fn decode_draft() -> RankDraft {
    RankDraft { rows: vec![row(2, 5, 3, 2, 2, LogitsWanted::Verify)], decode_rows: 1, ..RankDraft::default() }
}

/// Delivers `draft` as step 2, skipping the scheduler's own checks.
fn refusal(table: &mut SeatTable, step: u64, draft: RankDraft) -> Option<Error> {
    let rank = RankPart::new(draft).expect("a part that is legal alone");
    let loads = vec![real(rank.rows_real().get(), rank.tokens_real().get())];
    let group = GroupPart::new(group_draft(step, 3, Shape::Eager, loads).expect("a legal pass")).expect("legal");
    deliver(table, &group, &rank).err()
}

fn broken(change: impl FnOnce(&mut RankDraft)) -> Option<Error> {
    let mut draft = decode_draft();
    change(&mut draft);
    refusal(&mut decoding(), 2, draft)
}

#[test]
fn the_legal_plan_is_taken() {
    assert_eq!(broken(|_| {}), None);
}

#[test]
fn a_skipped_step_is_refused_and_so_is_all_that_follows() {
    let mut table = decoding();
    assert_eq!(refusal(&mut table, 3, decode_draft()), Some(Error::rule(13, "step", 2, 3)));
    assert_eq!(refusal(&mut table, 2, decode_draft()), Some(Error::rule(13, "refusals in this epoch", 0, 1)));
}

#[test]
fn rows_that_disagree_with_the_worker_are_refused() {
    let stale = broken(|draft| draft.rows[0].generation = SeatGeneration::new(2));
    assert_eq!(stale, Some(Error::rule(11, "generation of a row", 1, 2)));
    assert_eq!(broken(|draft| draft.rows[0].start_max = 4), Some(Error::rule(16, "start of a row", 5, 4)));
    assert_eq!(broken(|draft| draft.rows[0].blocks = 3), Some(Error::rule(9, "blocks of the seat", 2, 3)));
    assert_eq!(broken(|draft| draft.rows[0].seat = Seat::new(1)), Some(Error::rule(11, "request on the seat", 1, 0)));
    assert_eq!(broken(|draft| draft.rows[0].seat = Seat::new(8)), Some(Error::rule(2, "seat", 7, 8)));
}

/// Numbers at the edge of their type are refused, not wrapped.
#[test]
fn huge_numbers_are_refused() {
    let start = broken(|draft| draft.rows[0].start_max = u32::MAX);
    assert_eq!(start, Some(Error::rule(9, "known tokens of a decode row", 63, i64::from(u32::MAX) + 1)));
    let mut table = decoding();
    let mut draft = decode_draft();
    draft.rows.push(row(3, 0, u32::MAX, 0, 0, LogitsWanted::None));
    assert_eq!(refusal(&mut table, 2, draft), Some(Error::rule(10, "tokens", 32, u32::MAX)));
}

#[test]
fn drafts_that_were_not_proposed_are_refused() {
    let more = broken(|draft| draft.rows[0] = row(2, 5, 4, 3, 2, LogitsWanted::Verify));
    assert_eq!(more, Some(Error::rule(9, "positions in blocks", 9, 8)));
}

/// A prompt chunk, whatever its length, is never a decode row.
#[test]
fn a_prompt_chunk_is_no_decode_row() {
    let mut table = worker(1);
    let mut draft = prompt_draft(0, &[1, 2, 3, 4], &[1]);
    draft.rows[0].logits = LogitsWanted::Verify;
    draft.decode_rows = 1;
    let rank = RankPart::new(draft).expect("a part that is legal alone");
    let draft = group_draft(1, 3, full(4, 1), vec![real(1, 4)]).expect("a legal pass");
    let group = GroupPart::new(draft).expect("a legal group part");
    let refused = deliver(&mut table, &group, &rank).err();
    assert_eq!(refused, Some(Error::rule(9, "known tokens of a decode row", 1, 4)));
}

#[test]
fn blocks_are_in_range_and_in_one_request() {
    let append = |blocks: &[u32]| {
        let mut draft = prompt_draft(4, &[9], blocks);
        draft.rows.splice(0..0, decode_draft().rows);
        draft.decode_rows = 1;
        refusal(&mut decoding(), 2, draft)
    };
    assert_eq!(append(&[4]), None);
    assert_eq!(append(&[0]), Some(Error::rule(7, "block", 1, 0)));
    assert_eq!(append(&[17]), Some(Error::rule(7, "block", 16, 17)));
    assert_eq!(append(&[9]), Some(Error::rule(11, "holders of a new block", 0, 1)));
}

#[test]
fn token_ids_are_in_the_vocabulary_and_in_order() {
    let feed = |start: u32, token: u32| {
        let mut draft = prompt_draft(4, &[9, 9], &[4]);
        draft.feeds = vec![Feed { seat: Seat::new(4), start, tokens: vec![9, token].into() }];
        refusal(&mut worker(1), 1, draft)
    };
    assert_eq!(feed(0, 99), None);
    assert_eq!(feed(0, 100), Some(Error::rule(7, "token id", 99, 100)));
    assert_eq!(feed(1, 99), Some(Error::rule(2, "start of the fed tokens", 0, 1)));
}

#[test]
fn a_released_seat_gives_its_blocks_back_and_keeps_its_generation() {
    let mut table = decoding();
    let mut draft = prompt_draft(2, &[9], &[9]);
    draft.releases = vec![Release { seat: Seat::new(2), generation: SeatGeneration::new(1) }];
    assert_eq!(refusal(&mut table, 2, draft.clone()), Some(Error::rule(11, "generation", 2, 1)));
    let mut table = decoding();
    draft.admissions[0].generation = SeatGeneration::new(2);
    draft.rows[0].generation = SeatGeneration::new(2);
    assert_eq!(refusal(&mut table, 2, draft), None);
    assert_eq!(table.occupied(), 1);
}

#[test]
fn another_epoch_is_refused() {
    let mut table = decoding();
    table.reset(paceline_plan::Epoch::new(2));
    assert_eq!(refusal(&mut table, 2, decode_draft()), Some(Error::rule(13, "epoch", 2, 1)));
    assert_eq!(table.occupied(), 0);
}
