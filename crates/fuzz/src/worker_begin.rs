//! One input of the `worker_begin` target, also run by `crates/plan/tests/it/corpus.rs`.
//!
//! Input: per plan, the length of its group part as one little-endian u16, the group part, the length of the rank
//! part as one little-endian u16, the rank part. Plans go to one worker in turn, in epoch 1, step after step.

use paceline_plan::arrays::{Extent, PassArrays, fill_target};
use paceline_plan::seats::{RowOutcome, SeatTable, StepHeader, WorkerStep};
use paceline_plan::{DpRank, Epoch, GroupId, LogitsWanted, StepId, WorkerLimits, digest};

const LIMITS: WorkerLimits = WorkerLimits {
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
};

/// Sends the input's plans to a worker of a group of two.
pub(super) fn run(mut input: &[u8]) {
    let Ok(mut table) = SeatTable::new(LIMITS, DpRank::new(0), vec![DpRank::new(0), DpRank::new(1)]) else {
        return;
    };
    table.reset(Epoch::new(1));
    for step in 1.. {
        let Some(group_part) = take(&mut input) else { return };
        let Some(rank_part) = take(&mut input) else { return };
        let header = StepHeader {
            group: GroupId::new(0),
            epoch: Epoch::new(1),
            step: StepId::new(step),
            digest: digest(group_part),
        };
        let Ok(step) = table.begin(header, group_part, rank_part) else { return };
        fill(&table, &step);
        let outcomes = step.rank.rows().iter().map(|row| match row.logits {
            LogitsWanted::None => RowOutcome::default(),
            _ => RowOutcome { emitted: vec![16], proposed: vec![17, 18], ..RowOutcome::default() },
        });
        if table.commit(&step, outcomes.collect()).is_err() {
            return;
        }
    }
}

fn take<'a>(input: &mut &'a [u8]) -> Option<&'a [u8]> {
    let (length, rest) = input.split_first_chunk::<2>()?;
    let (part, rest) = rest.split_at_checked(u16::from_le_bytes(*length).into())?;
    *input = rest;
    Some(part)
}

fn fill(table: &SeatTable, step: &WorkerStep) {
    let (rows, tokens) = (LIMITS.row_capacity as usize, LIMITS.token_capacity as usize);
    let mut arrays = PassArrays {
        input_ids: &mut vec![0; tokens],
        positions: &mut vec![0; tokens],
        slots: &mut vec![0; tokens],
        query_start_loc: &mut vec![0; rows + 1],
        kv_lens: &mut vec![0; rows],
        block_table: &mut vec![0; rows * LIMITS.table_width as usize],
        request_index: &mut vec![0; tokens],
        logits_index: &mut vec![0; tokens],
    };
    let filled = fill_target(table, step, &mut arrays, &mut Extent { rows, tokens });
    assert!(filled.is_ok(), "a checked plan fits the arrays: {filled:?}");
    let pool = i64::from(LIMITS.block_size) * (i64::from(LIMITS.num_blocks) + 1);
    assert!(arrays.slots.iter().all(|slot| *slot == -1 || (i64::from(LIMITS.block_size)..pool).contains(slot)));
}
