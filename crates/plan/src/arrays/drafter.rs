//! The drafter's arrays (rule 18). Its layer j at position p is fed the token at p + j, so its rows are the target's
//! with their tokens shifted by j, and its KV lies at the target's own slots.
//!
//! A token that is not known (after a rejected draft, in a placeholder, past the newest token) is token 0 and writes
//! nothing; it comes last in its row, so no token that counts sees it.

use crate::arrays::{Extent, PassArrays, Writer};
use crate::error::{check_at_least, check_equal};
use crate::seats::{RowOutcome, SeatState, SeatTable, WorkerStep};
use crate::{Error, Pass, PassKind, Row};

/// Fills the arrays of the extend pass for drafter layer `layer`, counted from 1. `outcomes` is what sampling made of
/// the step's rows, in their order. Returns how many entries of `logits_index` count: in every layer the last token
/// that counts of each row that sampled, and none in a step without drafts.
///
/// # Errors
/// Rule 2 when the step has no extend pass or lacks an outcome, rule 5 when an array is too short for the padded size.
pub fn fill_extend(
    table: &SeatTable,
    step: &WorkerStep,
    layer: u32,
    outcomes: &[RowOutcome],
    arrays: &mut PassArrays<'_>,
    extent: &mut Extent,
) -> Result<usize, Error> {
    check_at_least(18, "layer of the drafter", 1, layer.into())?;
    let pass = pass_of(step, 1, PassKind::Extend)?;
    let mut writer = Writer::begin(table, step, pass, arrays, extent)?;
    for drafted in drafted_rows(table, step, outcomes)? {
        let Drafted { state, row, outcome, .. } = drafted;
        let (start, query_len, first_token) = (state.computed(), row.query_len.get(), writer.token);
        writer.open_row(state, start + query_len);
        for position in start..start + query_len {
            writer.token(state, token_after(state, outcome, position + layer), position);
        }
        if step.group.k_draft() > 0 && drafted.samples() {
            writer.want_logits(first_token + (drafted.last_position() - start) as usize);
        }
        writer.row += 1;
    }
    Ok(writer.finish())
}

/// Fills the arrays of the single pass that gives draft `index`, from 2: one token for each row that sampled, in row
/// order. `layers` is how many layers the drafter has; its last one is run again for drafts past it. Returns how many
/// entries of `logits_index` count: the rows that sampled.
///
/// # Errors
/// Rule 2 when the step has no such pass, lacks an outcome or the draft before this one, or other rows sampled than
/// were planned; rule 5 when an array is too short for the padded size.
pub fn fill_single(
    table: &SeatTable,
    step: &WorkerStep,
    index: u32,
    layers: u32,
    outcomes: &[RowOutcome],
    arrays: &mut PassArrays<'_>,
    extent: &mut Extent,
) -> Result<usize, Error> {
    check_at_least(18, "layers of the drafter", 1, layers.into())?;
    check_at_least(2, "index of a single pass", 2, index.into())?;
    let pass = pass_of(step, index as usize, PassKind::Single { index })?;
    let rows = drafted_rows(table, step, outcomes)?;
    let sampled = rows.iter().filter(|drafted| drafted.samples()).count();
    let planned = pass.loads()[step.rank_index].rows();
    check_equal(2, "rows of a single pass", planned.get().into(), sampled as i64)?;
    let mut writer = Writer::begin(table, step, pass, arrays, extent)?;
    let longest = table.limits().max_model_len;
    for drafted in rows.iter().filter(|drafted| drafted.samples()) {
        let before = index as usize - 1;
        let token_id = drafted.outcome.proposed.get(before - 1).copied();
        let proposed = drafted.outcome.proposed.len();
        let token_id =
            token_id.ok_or_else(|| Error::rule(2, "drafts before a single pass", before as i64, proposed as i64))?;
        let position = drafted.last_position() + index.saturating_sub(layers);
        writer.open_row(drafted.state, position.min(longest - 1) + 1);
        let token = writer.token;
        writer.token(drafted.state, Some(token_id), position);
        writer.want_logits(token);
        writer.row += 1;
    }
    Ok(writer.finish())
}

/// A row with what came of it.
struct Drafted<'a> {
    state: &'a SeatState,
    row: &'a Row,
    outcome: &'a RowOutcome,
    is_decode: bool,
}

impl Drafted<'_> {
    /// Whether the row gave a token, so that drafts follow it.
    fn samples(&self) -> bool {
        !self.outcome.emitted.is_empty()
    }

    /// The last position that counts: its next token is the newest one.
    fn last_position(&self) -> u32 {
        let start = self.state.computed();
        if self.is_decode { start + self.outcome.accepted } else { start + self.row.query_len.get() - 1 }
    }
}

fn drafted_rows<'a>(
    table: &'a SeatTable,
    step: &'a WorkerStep,
    outcomes: &'a [RowOutcome],
) -> Result<Vec<Drafted<'a>>, Error> {
    let rows = step.rank.rows();
    check_equal(2, "row outcomes before a drafter's pass", rows.len() as i64, outcomes.len() as i64)?;
    let decode_rows = step.rank.decode_rows() as usize;
    let joined = rows.iter().zip(outcomes).enumerate().map(|(index, (row, outcome))| {
        let state = table.seat(row.seat).expect("begin() has checked that the seat holds a request");
        Drafted { state, row, outcome, is_decode: index < decode_rows }
    });
    Ok(joined.collect())
}

/// The token at `index` of a request, as far as this step's outcome makes it known.
fn token_after(state: &SeatState, outcome: &RowOutcome, index: u32) -> Option<u32> {
    match index.checked_sub(state.known()) {
        Some(beyond) => outcome.emitted.get(beyond as usize).copied(),
        None => Some(state.token(index)),
    }
}

fn pass_of(step: &WorkerStep, index: usize, kind: PassKind) -> Result<&Pass, Error> {
    let passes = step.group.passes();
    let pass = passes.get(index).ok_or_else(|| Error::rule(2, "passes", index as i64 + 1, passes.len() as i64))?;
    check_equal(2, "kind of a drafter's pass", 1, i64::from(pass.kind() == kind))?;
    Ok(pass)
}
