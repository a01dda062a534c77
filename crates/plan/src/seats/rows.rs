//! The rows of a plan beside what the worker knows of their seats.

use super::SeatTable;
use super::state::SeatState;
use crate::error::{check_at_least, check_at_most, check_equal};
use crate::{Error, LogitsWanted, Mask, RankPart, Row};

impl SeatTable {
    /// Checks every row, once the step's deltas are applied.
    ///
    /// # Errors
    /// The broken rule with both numbers.
    pub(super) fn check_rows(&self, rank: &RankPart, depth: u32) -> Result<(), Error> {
        let (decode_rows, prompt_rows) = rank.rows().split_at(rank.decode_rows() as usize);
        let refused_most = depth.saturating_mul(self.limits.k_max);
        for row in decode_rows.iter().filter(|row| !self.is_plain(row, depth, refused_most)) {
            self.check_row(row, true, depth)?;
        }
        prompt_rows.iter().try_for_each(|row| self.check_row(row, false, depth))
    }

    /// Whether a decode row is what most are, and right: all of [`Self::check_row`] in a few comparisons. At most
    /// `refused_most` drafts in flight can have been refused since it was planned (rule 16).
    #[inline]
    fn is_plain(&self, row: &Row, depth: u32, refused_most: u32) -> bool {
        let Some(state) = self.seat(row.seat) else { return false };
        state.generation == row.generation
            && state.blocks.len() == row.blocks as usize
            && row.start_max.checked_sub(state.computed).is_some_and(|refused| refused <= refused_most)
            && state.known().checked_sub(state.computed) == Some(1)
            && (depth > 0 || row.drafts as usize <= state.drafts.len())
    }

    fn check_row(&self, row: &Row, is_decode: bool, depth: u32) -> Result<(), Error> {
        let state = self.seat(row.seat).ok_or_else(|| Error::rule(11, "request on the seat", 1, 0))?;
        let generation = state.generation.get();
        check_equal(11, "generation of a row", generation.into(), row.generation.get().into())?;
        check_equal(9, "blocks of the seat", state.blocks.len() as i64, row.blocks.into())?;
        if depth == 0 || !is_decode {
            check_equal(16, "start of a row", state.computed.into(), row.start_max.into())?;
        } else {
            // Rule 16: what was in flight when the row was planned is answered by now, with drafts refused perhaps.
            let refused_most = i64::from(depth) * i64::from(self.limits.k_max);
            check_at_least(16, "start of a row", state.computed.into(), row.start_max.into())?;
            check_at_most(16, "start of a row", i64::from(state.computed) + refused_most, row.start_max.into())?;
        }
        if is_decode {
            check_equal(9, "known tokens of a decode row", i64::from(state.computed) + 1, state.known().into())?;
            if depth == 0 {
                check_at_most(9, "drafts", state.drafts.len() as i64, row.drafts.into())?;
            }
            return Ok(());
        }
        let end = state.computed + row.query_len.get();
        check_at_most(9, "end of a prompt row", state.known().into(), end.into())?;
        let wants_sample = matches!(row.logits, LogitsWanted::Last);
        if wants_sample {
            check_equal(20, "end of a sampled prompt row", state.known().into(), end.into())?;
        }
        if row.mask != Mask::None {
            check_equal(19, "end of a prompt row with a mask", state.known().into(), end.into())?;
        }
        self.check_lookahead(state, row, end)
    }

    /// Rule 18: a chunk that does not end what is known comes with the tokens after it that the drafter's layers need,
    /// as far as the prompt has them. What was emitted before a preemption counts on, but only the daemon knows how far.
    fn check_lookahead(&self, state: &SeatState, row: &Row, end: u32) -> Result<(), Error> {
        if self.drafter_layers == 0 || !matches!(row.logits, LogitsWanted::None) {
            return Ok(());
        }
        let ahead = self.drafter_layers.min(state.prompt_len.saturating_sub(end)).max(1);
        check_at_least(18, "known tokens after a chunk", (end + ahead).into(), state.known().into())
    }
}
