//! A rank's rows while a step is made.

use paceline_plan::Seat;

use crate::pace::Prospect;
use crate::rank::Rank;
use crate::shape::Demand;
use crate::{HeldReason, RankExplanation, RequestId, Started};

/// A row in the making.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Selected {
    pub(crate) seat: Seat,
    pub(crate) is_decode: bool,
    /// Tokens of a prompt row's chunk; 1 in a decode row.
    pub(crate) tokens: u32,
    /// Real drafts of a decode row.
    pub(crate) drafts: u32,
    /// What it took of the token budget.
    pub(crate) cost: u32,
}

/// A rank's rows in the making, decode rows in the order in which they may be held.
#[derive(Clone, Debug, Default)]
pub(crate) struct Selection {
    pub(crate) rows: Vec<Selected>,
    /// Whether a row is, or was, a prompt row.
    pub(crate) has_prompts: bool,
    /// Whether a row may have drafts.
    pub(crate) has_drafts: bool,
    pub(crate) budget_left: u32,
    pub(crate) started: Vec<Started>,
    pub(crate) held: Vec<(RequestId, HeldReason)>,
    pub(crate) preempted: Vec<RequestId>,
    pub(crate) drafts_trimmed: u32,
    /// Tokens that started requests read from the prefix cache.
    pub(crate) cached_tokens: u32,
    /// Requests that have no row yet.
    pub(crate) waiting: Vec<Seat>,
    /// By seat, its row's index, and the rows in that order; memory of [`Self::sort_by_seat`].
    places: Vec<u32>,
    sorted: Vec<Selected>,
}

impl Selection {
    /// Begins a new step in the memory of an old one.
    pub(crate) fn clear(&mut self, budget: u32) {
        let Self { rows, waiting, started, held, preempted, .. } = self;
        rows.clear();
        waiting.clear();
        started.clear();
        held.clear();
        preempted.clear();
        (self.budget_left, self.drafts_trimmed, self.cached_tokens) = (budget, 0, 0);
        (self.has_prompts, self.has_drafts) = (false, false);
    }

    /// What these requests take of the budget.
    pub(crate) fn cost_of(&self, seats: &[Seat]) -> u32 {
        self.rows.iter().filter(|row| seats.contains(&row.seat)).map(|row| row.cost).sum()
    }

    /// What the rows come to on a rank.
    pub(crate) fn demand(&self, rank: &Rank) -> Demand {
        let mut demand = Demand { running: rank.running.len() as u32, ..Demand::default() };
        if !self.has_prompts {
            demand.decode_rows = self.rows.len() as u32;
            if self.has_drafts {
                demand.drafts = self.rows.iter().map(|row| row.drafts).sum();
                demand.drafts_max = self.rows.iter().map(|row| row.drafts).max().unwrap_or(0);
            }
            return demand;
        }
        for row in &self.rows {
            if row.is_decode {
                demand.decode_rows += 1;
                demand.drafts += row.drafts;
                demand.drafts_max = demand.drafts_max.max(row.drafts);
            } else {
                demand.prompt_rows += 1;
                demand.prompt_tokens += row.tokens;
                demand.sampled_prompt_rows += u32::from(row.tokens == rank.on(row.seat).prompt_left());
            }
        }
        demand
    }

    /// What a rank could run: all of its prompts, as far as they have a row.
    pub(crate) fn prospect(&self, rank: &Rank) -> Prospect {
        if !self.has_prompts {
            return Prospect { decode_rows: self.rows.len() as u32, prompt_tokens: 0 };
        }
        let mut prospect = Prospect::default();
        for row in &self.rows {
            if row.is_decode {
                prospect.decode_rows += 1;
            } else {
                let left = rank.on(row.seat).prompt_left();
                prospect.prompt_tokens = prospect.prompt_tokens.saturating_add(left);
            }
        }
        prospect
    }

    /// Puts the rows in the order in which they are sent: decode rows first, each kind by seat, so that steady rows keep
    /// their places in the worker's buffers.
    pub(crate) fn sort_by_seat(&mut self, seats: usize) {
        let Self { rows, places, sorted, has_prompts, .. } = self;
        let is_sorted = if *has_prompts {
            rows.is_sorted_by_key(|row| (u64::from(!row.is_decode) << 32) | u64::from(row.seat.get()))
        } else {
            rows.is_sorted_by_key(|row| row.seat)
        };
        if is_sorted {
            return;
        }
        places.clear();
        places.resize(seats, NO_ROW);
        for (index, row) in rows.iter().enumerate() {
            places[row.seat.index()] = index as u32;
        }
        sorted.clear();
        for is_decode in [true, false] {
            let by_seat = places.iter().filter(|place| **place != NO_ROW).map(|place| rows[*place as usize]);
            sorted.extend(by_seat.filter(|row| row.is_decode == is_decode));
        }
        std::mem::swap(rows, sorted);
    }

    /// Tells an explanation in the memory of an older one what became of the rank's requests.
    pub(crate) fn explain(&mut self, explained: &mut RankExplanation) {
        let RankExplanation { started, held, preempted, .. } = explained;
        hand_over(&mut self.started, started);
        hand_over(&mut self.held, held);
        hand_over(&mut self.preempted, preempted);
        (explained.drafts_trimmed, explained.cached_tokens) = (self.drafts_trimmed, self.cached_tokens);
    }
}

/// Moves entries, and leaves the memory of those that were there before for later ones.
fn hand_over<T>(from: &mut Vec<T>, to: &mut Vec<T>) {
    to.clear();
    if !from.is_empty() {
        std::mem::swap(from, to);
    }
}

/// No row of a seat.
const NO_ROW: u32 = u32::MAX;

/// Shortens the rank's prompt chunks until together they are no longer than `level`, the latest first. Each keeps
/// `least` tokens, so that all go on.
pub(crate) fn trim_prompts(selection: &mut Selection, level: u32, least: u32) {
    let total: u32 = selection.rows.iter().filter(|row| !row.is_decode).map(|row| row.tokens).sum();
    let mut over = total.saturating_sub(level);
    for row in selection.rows.iter_mut().rev().filter(|row| !row.is_decode) {
        let cut = row.tokens.saturating_sub(least).min(over);
        row.tokens -= cut;
        row.cost -= cut;
        selection.budget_left += cut;
        over -= cut;
    }
}
