//! Where waiting requests start: late binding. A request stays in the one queue until a rank can start it now, and goes
//! to the rank with the least load in tokens.

use paceline_plan::WorkerLimits;

use crate::rank::Rank;
use crate::request::{Requests, Slot};
use crate::select::Selection;

/// What placement knows of a rank, counting what it has already given it in this round.
#[derive(Clone, Copy, Debug)]
struct View {
    /// Index in the group that is being planned; nothing when the rank is in another group.
    index: Option<usize>,
    open: bool,
    seats: u32,
    blocks: u32,
    budget: u32,
    load_tokens: u64,
    requests: u32,
    last_placed: u64,
}

/// Known tokens of what runs, plus what is left of its prompts.
pub(crate) fn load_tokens(rank: &Rank, requests: &Requests) -> u64 {
    let load = |slot: &Slot| {
        let request = &requests[*slot];
        u64::from(request.known()) + u64::from(request.on_seat().prompt_left())
    };
    rank.running.iter().map(load).sum()
}

/// Tokens that a rank of another group is likely to have left in its next step.
fn budget_expected(rank: &Rank, requests: &Requests, limits: &WorkerLimits, query_len: u32) -> u32 {
    let cost = |slot: &Slot| match requests[*slot].on_seat().prompt_left() {
        0 => u64::from(query_len),
        left => left.into(),
    };
    let taken: u64 = rank.running.iter().map(cost).sum();
    u32::try_from(u64::from(limits.max_num_batched_tokens).saturating_sub(taken)).unwrap_or(0)
}

/// The requests that start now in the group `members`, in order, each with its rank's index in the group.
///
/// First come, first served: a request that no rank can take closes the ranks that it may go to for those behind it.
/// One whose best rank is in another group stays in the queue for that group's plan.
pub(crate) struct Placement<'a> {
    pub(crate) ranks: &'a [Rank],
    pub(crate) requests: &'a Requests,
    pub(crate) limits: &'a WorkerLimits,
    pub(crate) query_len: u32,
    /// Indices of the planned group's ranks.
    pub(crate) members: &'a [usize],
    /// Their rows so far.
    pub(crate) selections: &'a [Selection],
}

impl Placement<'_> {
    pub(crate) fn choose(&self, waiting: impl Iterator<Item = Slot>) -> Vec<(Slot, usize)> {
        let mut waiting = waiting.peekable();
        let mut chosen = Vec::new();
        if waiting.peek().is_none() {
            return chosen;
        }
        let mut views: Vec<View> = (0..self.ranks.len()).map(|position| self.view(position)).collect();
        let mut placed = self.ranks.iter().map(|rank| rank.last_placed).max().unwrap_or(0);
        for slot in waiting {
            if !views.iter().any(|view| view.index.is_some() && takes_any(view)) {
                break;
            }
            let request = &self.requests[slot];
            let needed = self.limits.blocks_for(request.known());
            let may_go = |position: usize| request.pinned.is_none_or(|dp_rank| dp_rank.index() == position);
            let candidates = (0..views.len()).filter(|position| {
                may_go(*position) && takes_any(&views[*position]) && needed <= views[*position].blocks
            });
            let best = candidates.min_by_key(|position| {
                let view = &views[*position];
                (view.load_tokens, view.requests, view.last_placed)
            });
            let Some(best) = best else {
                for (position, view) in views.iter_mut().enumerate() {
                    view.open &= !may_go(position);
                }
                continue;
            };
            let grows = self.limits.blocks_for(request.longest_computed()) > needed;
            let view = &mut views[best];
            placed += 1;
            view.last_placed = placed;
            view.seats -= 1;
            view.blocks = view.blocks.saturating_sub(needed + u32::from(grows));
            view.budget = view.budget.saturating_sub(request.known());
            view.load_tokens += 2 * u64::from(request.known());
            view.requests += 1;
            if let Some(index) = view.index {
                chosen.push((slot, index));
            }
        }
        chosen
    }

    /// A rank that holds a running request back takes no new one.
    fn view(&self, position: usize) -> View {
        let rank = &self.ranks[position];
        let index = self.members.iter().position(|member| *member == position);
        let budget = index.map_or_else(
            || budget_expected(rank, self.requests, self.limits, self.query_len),
            |index| if self.selections[index].held.is_empty() { self.selections[index].budget_left } else { 0 },
        );
        let requests = rank.running.len() as u32;
        View {
            index,
            open: rank.available,
            seats: self.limits.max_num_seqs.saturating_sub(requests),
            blocks: rank.blocks_spare(self.requests, self.limits),
            budget,
            load_tokens: load_tokens(rank, self.requests),
            requests,
            last_placed: rank.last_placed,
        }
    }
}

/// Whether some request could start here now.
const fn takes_any(view: &View) -> bool {
    view.open && view.seats > 0 && view.budget > 0 && view.blocks > 0
}
