//! Arrays: padding values, placeholders, and padding that remembers nothing.

use paceline_plan::arrays::{Extent, PassArrays, fill_target};
use paceline_plan::seats::{RowOutcome, SeatTable, WorkerStep};
use paceline_plan::{LogitsWanted, RankDraft, Shape};

use crate::support::{full, limits, prompt_draft, row, run, worker};

/// Arrays of the test limits, full of garbage.
struct Owned {
    input_ids: Vec<i64>,
    positions: Vec<i64>,
    slots: Vec<i64>,
    query_start_loc: Vec<i32>,
    kv_lens: Vec<i32>,
    block_table: Vec<i32>,
    request_index: Vec<i32>,
    logits_index: Vec<i64>,
    extent: Extent,
}

impl Owned {
    fn poisoned() -> Self {
        let (rows, tokens) = (limits().row_capacity as usize, limits().token_capacity as usize);
        Self {
            input_ids: vec![99_999; tokens],
            positions: vec![99_999; tokens],
            slots: vec![99_999; tokens],
            query_start_loc: vec![99_999; rows + 1],
            kv_lens: vec![99_999; rows],
            block_table: vec![99_999; rows * limits().table_width as usize],
            request_index: vec![99_999; tokens],
            logits_index: vec![99_999; tokens],
            extent: Extent { rows, tokens },
        }
    }

    fn fill(&mut self, table: &SeatTable, step: &WorkerStep) -> usize {
        let mut arrays = PassArrays {
            input_ids: &mut self.input_ids,
            positions: &mut self.positions,
            slots: &mut self.slots,
            query_start_loc: &mut self.query_start_loc,
            kv_lens: &mut self.kv_lens,
            block_table: &mut self.block_table,
            request_index: &mut self.request_index,
            logits_index: &mut self.logits_index,
        };
        fill_target(table, step, &mut arrays, &mut self.extent).expect("the arrays have the capacity of the limits")
    }
}

fn emit(table: &mut SeatTable, step: &WorkerStep, token: u32, proposed: &[u32]) {
    let outcome = RowOutcome { emitted: vec![token], proposed: proposed.to_vec(), ..RowOutcome::default() };
    table.commit(step, vec![outcome; step.rank.rows().len()]).expect("one token per sampled row");
}

/// A request of 5 prompt tokens that has emitted one token and has 2 drafts.
fn decoding() -> (SeatTable, Owned) {
    let mut table = worker(1);
    let step = run(&mut table, 1, 3, Shape::Eager, prompt_draft(2, &[11, 12, 13, 14, 15], &[3, 9])).expect("legal");
    let mut arrays = Owned::poisoned();
    assert_eq!(arrays.fill(&table, &step), 1);
    assert_eq!(arrays.input_ids[..6], [11, 12, 13, 14, 15, 0]);
    assert_eq!(arrays.positions[..6], [0, 1, 2, 3, 4, 0]);
    assert_eq!(arrays.slots[..6], [12, 13, 14, 15, 36, -1]);
    assert_eq!(arrays.query_start_loc, [0, 5, 5, 5, 5, 5, 5, 5, 5]);
    assert_eq!(arrays.logits_index[..2], [4, -1]);
    emit(&mut table, &step, 16, &[17, 18]);
    (table, arrays)
}

fn decode_draft() -> RankDraft {
    RankDraft { rows: vec![row(2, 5, 4, 2, 2, LogitsWanted::Verify)], decode_rows: 1, ..RankDraft::default() }
}

#[test]
fn b09_offsets_end_where_the_tokens_end() {
    let (mut table, mut arrays) = decoding();
    let step = run(&mut table, 2, 3, full(4, 4), decode_draft()).expect("legal");
    assert_eq!(arrays.fill(&table, &step), 3, "the newest token and two drafts");
    assert_eq!(arrays.query_start_loc, [0, 4, 8, 12, 16, 16, 16, 16, 16]);
    assert_eq!(arrays.kv_lens, [9, 4, 4, 4, 0, 0, 0, 0]);
    assert_eq!(arrays.logits_index[..4], [0, 1, 2, -1]);
}

#[test]
fn placeholders_are_last_and_write_nothing() {
    let (mut table, mut arrays) = decoding();
    let step = run(&mut table, 2, 3, full(4, 1), decode_draft()).expect("legal");
    arrays.fill(&table, &step);
    assert_eq!(arrays.input_ids[..4], [16, 17, 18, 0]);
    assert_eq!(arrays.positions[..4], [5, 6, 7, 8]);
    assert_eq!(arrays.slots[..4], [37, 38, 39, -1]);
}

/// SGLang #10892: stale positions and block tables after a larger batch.
#[test]
fn b13_padding_remembers_nothing() {
    let (mut table, mut arrays) = decoding();
    let step = run(&mut table, 2, 3, full(4, 4), decode_draft()).expect("legal");
    arrays.fill(&table, &step);
    let mut fresh = Owned::poisoned();
    fresh.fill(&table, &step);
    let width = limits().table_width as usize;
    assert_eq!(arrays.block_table[width..], fresh.block_table[width..]);
    assert!(arrays.block_table[width..].iter().all(|block| *block == 0));
    assert_eq!(arrays.block_table[..3], [3, 9, 0]);
    assert!(arrays.input_ids[4..].iter().chain(&arrays.positions[4..]).all(|value| *value == 0));
    assert!(arrays.slots[4..].iter().all(|slot| *slot == -1));
    assert!(arrays.request_index[4..].iter().all(|index| *index == -1));
    assert_eq!(arrays.slots, fresh.slots);
}

/// vLLM #53658: no dummy sees more keys than its table has columns.
#[test]
fn b14_padding_rows_are_q_long() {
    let (mut table, mut arrays) = decoding();
    let step = run(&mut table, 2, 3, full(4, 8), decode_draft()).expect("legal");
    arrays.fill(&table, &step);
    assert!(arrays.kv_lens[1..].iter().all(|kv_len| *kv_len == 4));
    assert!(arrays.kv_lens.iter().all(|kv_len| *kv_len <= (limits().table_width * limits().block_size) as i32));
}
