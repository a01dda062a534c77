//! One rank's part against the group's decisions and the rank's sizes. The scheduler runs it on every plan before it
//! is sent, the worker on every plan it receives.

use crate::error::{check_at_least, check_at_most, check_equal};
use crate::{Error, GroupPart, LogitsWanted, Mode, RankPart, Row, Tokens, WorkerLimits};

/// Checks the part of the rank at `index` of the group.
///
/// # Errors
/// The broken rule with both numbers.
pub fn check_rank(group: &GroupPart, index: usize, part: &RankPart, limits: &WorkerLimits) -> Result<(), Error> {
    check_part(group, index, part, limits, true)
}

/// The parts of all ranks, in the group's order.
pub(crate) fn check_ranks(group: &GroupPart, parts: &[RankPart], limits: &WorkerLimits) -> Result<(), Error> {
    for (index, part) in parts.iter().enumerate() {
        // The group's own sizes are looked at once.
        check_part(group, index, part, limits, index == 0)?;
    }
    Ok(())
}

fn check_part(
    group: &GroupPart,
    index: usize,
    part: &RankPart,
    limits: &WorkerLimits,
    with_group: bool,
) -> Result<(), Error> {
    let (decode_rows, prompt_rows) = part.rows().split_at(part.decode_rows() as usize);
    let plain = PlainRows::new(group, limits);
    let all_plain = decode_rows.iter().all(|row| plain.admit(row));
    let tokens = match plain.uniform_tokens(decode_rows) {
        Some(tokens) if all_plain && prompt_rows.is_empty() => tokens,
        _ => part.tokens_real(),
    };
    check_load(group, index, part, tokens)?;
    check_single_passes(group, index, part)?;
    check_at_most(10, "rows", limits.max_num_seqs.into(), part.rows_real().get().into())?;
    check_at_most(10, "tokens", limits.max_num_batched_tokens.into(), tokens.get().into())?;
    if with_group {
        check_group_sizes(group, limits)?;
    }
    for row in decode_rows.iter().filter(|row| !all_plain && !plain.admit(row)) {
        check_at_most(2, "seat", i64::from(limits.seats) - 1, row.seat.get().into())?;
        check_decode_row(group, row, limits)?;
    }
    for row in prompt_rows {
        check_at_most(2, "seat", i64::from(limits.seats) - 1, row.seat.get().into())?;
        check_prompt_row(row, limits)?;
    }
    Ok(())
}

/// Rows and tokens are what the group part says of this rank.
fn check_load(group: &GroupPart, index: usize, part: &RankPart, tokens: Tokens) -> Result<(), Error> {
    let expected = group.dp_ranks().get(index).map_or(-1, |dp_rank| i64::from(dp_rank.get()));
    check_equal(1, "dp_rank", expected, part.dp_rank().get().into())?;
    let load = group.target().loads()[index];
    check_equal(1, "rows of the rank", load.rows().get().into(), part.rows_real().get().into())?;
    check_equal(10, "tokens of the rank", load.tokens().get().into(), tokens.get().into())?;
    if group.target().mode() == Mode::Full {
        check_equal(3, "decode rows of a FULL step", part.rows().len() as i64, part.decode_rows().into())?;
    }
    Ok(())
}

/// A single pass has one token for each row that samples, and a dummy where no row does (rule 2). A chunk whose every
/// position is wanted samples if it ends what is known: whoever knows that counts again when the pass is filled.
fn check_single_passes(group: &GroupPart, index: usize, part: &RankPart) -> Result<(), Error> {
    let Some(single_passes) = group.passes().get(2..).filter(|passes| !passes.is_empty()) else { return Ok(()) };
    let rows_with = |wanted: &[LogitsWanted]| part.rows().iter().filter(|row| wanted.contains(&row.logits)).count();
    let sampled = rows_with(&[LogitsWanted::Last, LogitsWanted::Verify]) as i64;
    let perhaps = rows_with(&[LogitsWanted::All]) as i64;
    for pass in single_passes {
        let planned = i64::from(pass.loads()[index].rows().get());
        check_equal(2, "rows of a single pass", planned.clamp(sampled, sampled + perhaps), planned)?;
    }
    Ok(())
}

/// No decision of the group is larger than what its ranks hold.
fn check_group_sizes(group: &GroupPart, limits: &WorkerLimits) -> Result<(), Error> {
    check_at_most(9, "k_verify", limits.k_max.into(), group.k_verify().into())?;
    check_at_most(9, "k_draft", limits.k_max.into(), group.k_draft().into())?;
    for pass in group.passes() {
        check_at_most(5, "rows_padded", limits.row_capacity.into(), pass.rows_padded().get().into())?;
        check_at_most(5, "tokens_padded", limits.token_capacity.into(), pass.tokens_padded().get().into())?;
    }
    Ok(())
}

/// What decode rows mostly are, and right: all of [`check_decode_row`] in a few comparisons. A row that is not admitted is
/// looked at again, number by number.
struct PlainRows {
    seats: u32,
    query_len: u32,
    /// Whether a row is Q long; else as long as its drafts ask for.
    is_full: bool,
    drafts_most: u32,
    longest: u32,
    block_size: u32,
}

impl PlainRows {
    fn new(group: &GroupPart, limits: &WorkerLimits) -> Self {
        Self {
            seats: limits.seats,
            query_len: group.query_len().get(),
            is_full: group.target().mode() == Mode::Full,
            drafts_most: group.k_verify(),
            longest: limits.max_model_len,
            block_size: limits.block_size,
        }
    }

    #[inline]
    fn admit(&self, row: &Row) -> bool {
        let last = u64::from(row.start_max) + u64::from(row.drafts) + 1;
        let query_len = if self.is_full { self.query_len } else { row.drafts.saturating_add(1) };
        row.seat.get() < self.seats
            && row.query_len.get() == query_len
            && row.drafts <= self.drafts_most
            && last < u64::from(self.longest)
            && last <= u64::from(row.blocks) * u64::from(self.block_size)
    }

    /// Tokens of rows that are all admitted; nothing where rows differ in length.
    fn uniform_tokens(&self, rows: &[Row]) -> Option<Tokens> {
        let tokens = (rows.len() as u64).checked_mul(self.query_len.into()).filter(|_| self.is_full)?;
        u32::try_from(tokens).ok().map(Tokens::new)
    }
}

/// Rule 9: drafts fit the length limit and the blocks; rule 3: a FULL row is exactly Q long. With steps in flight the
/// row starts at `start_max` at most (rule 16): a request may have ended there, with all its tokens.
fn check_decode_row(group: &GroupPart, row: &Row, limits: &WorkerLimits) -> Result<(), Error> {
    let query_len = i64::from(group.query_len().get());
    let known = i64::from(row.start_max) + 1;
    let longest = i64::from(limits.max_model_len);
    let known_most = if group.depth() == 0 { longest - 1 } else { longest };
    check_at_most(9, "known tokens of a decode row", known_most, known)?;
    check_at_most(9, "query_len of a decode row", query_len, row.query_len.get().into())?;
    check_at_most(9, "drafts", (longest - known - 1).max(0).min(group.k_verify().into()), row.drafts.into())?;
    if group.target().mode() == Mode::Full {
        check_equal(3, "query_len of a FULL row", query_len, row.query_len.get().into())?;
    } else {
        check_equal(3, "placeholders outside FULL", 0, row.placeholders().into())?;
    }
    check_at_least(9, "positions in blocks", known + i64::from(row.drafts), covered(row, limits))
}

/// A chunk ends inside the request's blocks and below the length limit.
fn check_prompt_row(row: &Row, limits: &WorkerLimits) -> Result<(), Error> {
    let end = i64::from(row.start_max) + i64::from(row.query_len.get());
    check_at_most(9, "end of a prompt row", i64::from(limits.max_model_len) - 1, end)?;
    check_at_least(9, "positions in blocks", end, covered(row, limits))
}

/// Positions that the row's blocks hold.
fn covered(row: &Row, limits: &WorkerLimits) -> i64 {
    i64::from(row.blocks) * i64::from(limits.block_size)
}
