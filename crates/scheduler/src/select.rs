//! Which running requests of a rank get a row, and how long it is. Every one gets its turn: a decode row is Q of the
//! budget, a prompt row at least as much; whoever waited longest goes first, and what is left makes chunks longer.
//! Allocates the blocks, and preempts where that lets an older request go on.

use paceline_plan::WorkerLimits;

use crate::queue::Queue;
use crate::rank::Rank;
use crate::request::{Place, Request, Requests, Seated, Slot};
use crate::{Config, Drafter, HeldReason, RequestId};

/// A row in the making.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Selected {
    pub(crate) slot: Slot,
    pub(crate) is_decode: bool,
    /// Tokens of a prompt row's chunk; 1 in a decode row.
    pub(crate) tokens: u32,
    /// Real drafts of a decode row.
    pub(crate) drafts: u32,
    /// What it took of the token budget.
    cost: u32,
}

/// A rank's rows in the making, decode rows in the order in which they may be held.
#[derive(Clone, Debug, Default)]
pub(crate) struct Selection {
    pub(crate) rows: Vec<Selected>,
    pub(crate) budget_left: u32,
    pub(crate) started: Vec<RequestId>,
    pub(crate) held: Vec<(RequestId, HeldReason)>,
    pub(crate) preempted: Vec<RequestId>,
    pub(crate) drafts_trimmed: u32,
    /// Tokens that started requests read from the prefix cache.
    pub(crate) cached_tokens: u32,
}

impl Selection {
    /// What these requests take of the budget.
    pub(crate) fn cost_of(&self, slots: &[Slot]) -> u32 {
        self.rows.iter().filter(|row| slots.contains(&row.slot)).map(|row| row.cost).sum()
    }
}

/// What selection works on: one rank, and the tables that preemption touches.
pub(crate) struct Selector<'a> {
    pub(crate) rank: &'a mut Rank,
    pub(crate) requests: &'a mut Requests,
    pub(crate) queue: &'a mut Queue,
    pub(crate) limits: &'a WorkerLimits,
    pub(crate) config: &'a Config,
    /// k of this step.
    pub(crate) k: u32,
}

impl Selector<'_> {
    /// Rows for the requests that run on this rank.
    pub(crate) fn select(mut self) -> Selection {
        let budget_left = self.limits.max_num_batched_tokens;
        let mut selection = Selection { budget_left, ..Selection::default() };
        let mut waiting = self.order();
        loop {
            let preempted = selection.preempted.len();
            waiting.retain(|slot| !self.select_one(*slot, &mut selection));
            // A preemption gives back budget, perhaps enough for a row that was passed over.
            if selection.preempted.len() == preempted {
                break;
            }
        }
        selection.held.extend(waiting.iter().map(|slot| (self.requests[*slot].id, HeldReason::Budget)));
        self.add_drafts(&mut selection);
        self.grow_chunks(&mut selection);
        selection
    }

    /// Whoever waited longest first, then by standing.
    fn order(&self) -> Vec<Slot> {
        let mut order = self.rank.running.clone();
        order.sort_by_key(|slot| {
            let request = &self.requests[*slot];
            (request.on_seat().last_run, request.standing())
        });
        order
    }

    /// What a row takes of the budget at least, so that every row gets its turn (rule 10): Q for a decode row, and for
    /// a prompt row as much, or what it has left.
    fn least_cost(&self, request: &Request) -> u32 {
        let seated = request.on_seat();
        if seated.is_prompt() { seated.prompt_left().min(self.k + 1) } else { self.k + 1 }
    }

    /// Gives a request a row, or holds it for want of blocks. False when the budget left is too small for it.
    fn select_one(&mut self, slot: Slot, selection: &mut Selection) -> bool {
        let request = &self.requests[slot];
        // Preempted for a request before it.
        let Some(seated) = request.seated() else { return true };
        // Rule 16: all that it emits is in flight.
        if request.left_most() == 0 {
            return true;
        }
        let (id, is_decode) = (request.id, !seated.is_prompt());
        let cost = self.least_cost(request);
        if cost > selection.budget_left {
            return false;
        }
        let wanted = if is_decode { 1 } else { cost };
        // Rule 16: whoever may have ended by then takes no block for a token that may be none.
        if request.left_least() == 0 && self.fitting(slot, 0) == 0 {
            return true;
        }
        let tokens = self.secure(slot, wanted, selection);
        if tokens == 0 {
            selection.held.push((id, HeldReason::Blocks));
            return true;
        }
        let cost = if is_decode { cost } else { tokens };
        selection.budget_left -= cost;
        selection.rows.push(Selected { slot, is_decode, tokens, drafts: 0, cost });
        true
    }

    /// Blocks for up to `wanted` more tokens; how many they hold. Fewer rather than a preemption; one token is worth
    /// a preemption when that is certain to make it fit.
    fn secure(&mut self, slot: Slot, wanted: u32, selection: &mut Selection) -> u32 {
        if self.fitting(slot, self.rank.blocks.free()) == 0 && !self.preempt_for(slot, selection) {
            return 0;
        }
        let tokens = wanted.min(self.fitting(slot, self.rank.blocks.free()));
        self.allocate(slot, tokens);
        tokens
    }

    /// Tokens after the computed ones that the held blocks and `more` others hold.
    fn fitting(&self, slot: Slot, more: u32) -> u32 {
        let seated = self.requests[slot].on_seat();
        (seated.blocks.len() as u32 + more) * self.limits.block_size - seated.start_max
    }

    fn allocate(&mut self, slot: Slot, tokens: u32) {
        let seated = self.requests[slot].on_seat_mut();
        let needed = self.limits.blocks_for(seated.start_max + tokens);
        let lack = needed.saturating_sub(seated.blocks.len() as u32);
        if lack > 0 {
            self.rank.blocks.take(lack, &mut seated.blocks);
        }
    }

    /// Sends the request of lowest standing back to the queue, unless `slot` itself is that: its blocks make room for
    /// at least one token of `slot`, so nobody is evicted for nothing. They do so a step later when a step in flight runs
    /// it; while blocks are coming nobody else is evicted (rule 11).
    fn preempt_for(&mut self, slot: Slot, selection: &mut Selection) -> bool {
        if !self.rank.leaving.is_empty() && self.fitting(slot, self.rank.blocks.free() + self.rank.blocks_coming()) > 0
        {
            return false;
        }
        let standing = self.requests[slot].standing();
        let victims = self.rank.running.iter().copied().filter(|victim| self.requests[*victim].standing() > standing);
        let holding = victims.filter(|victim| !self.requests[*victim].on_seat().blocks.is_empty());
        let Some(victim) = holding.max_by_key(|victim| self.requests[*victim].standing()) else { return false };
        self.preempt(victim, selection);
        true
    }

    /// Sends a running request back to the queue and takes its row out of the step.
    pub(crate) fn preempt(&mut self, victim: Slot, selection: &mut Selection) {
        if let Some(index) = selection.rows.iter().position(|row| row.slot == victim) {
            selection.budget_left += selection.rows.remove(index).cost;
        }
        let id = self.requests[victim].id;
        selection.held.retain(|(other, _)| *other != id);
        selection.preempted.push(id);
        self.rank.preempt(victim, self.requests, self.queue);
    }

    /// Rule 9, with the blocks that nobody else needs.
    fn add_drafts(&mut self, selection: &mut Selection) {
        let promised = self.rank.blocks_promised(self.requests, self.limits);
        let longest = self.limits.max_model_len;
        for row in selection.rows.iter_mut().filter(|row| row.is_decode) {
            let request = &self.requests[row.slot];
            let room = longest.saturating_sub(request.known_max() + 1);
            let allowed = self.k.min(room).min(request.left_least().saturating_sub(1));
            let wanted = drafts_expected(self.config.drafter, request.on_seat()).min(allowed);
            let spare = self.rank.blocks.free().saturating_sub(promised);
            row.drafts = wanted.min(self.fitting(row.slot, spare) - 1);
            selection.drafts_trimmed += wanted - row.drafts;
            self.allocate(row.slot, 1 + row.drafts);
        }
    }

    /// Rule 18: blocks for the positions that single passes write for `self.k` drafts, past what the row itself needs
    /// and within what the request can grow to. Nobody is held or preempted for them. Returns how many are missing.
    pub(crate) fn add_wanted_blocks(self, selection: &Selection) -> u32 {
        let promised = self.rank.blocks_promised(self.requests, self.limits);
        let mut missing = 0;
        for row in &selection.rows {
            let request = &mut self.requests[row.slot];
            let longest = request.longest_computed();
            let seated = request.on_seat_mut();
            if !row.is_decode && row.tokens < seated.prompt_left() {
                continue;
            }
            let written = seated.start_max + row.tokens + row.drafts;
            let wanted = (written + self.k - 1).min(longest);
            let lack = self.limits.blocks_for(wanted).saturating_sub(seated.blocks.len() as u32);
            let taken = lack.min(self.rank.blocks.free().saturating_sub(promised));
            self.rank.blocks.take(taken, &mut seated.blocks);
            missing += lack - taken;
        }
        missing
    }

    /// The rest of the budget goes to prompt rows, in order of standing.
    fn grow_chunks(&mut self, selection: &mut Selection) {
        let mut prompts: Vec<usize> =
            (0..selection.rows.len()).filter(|index| !selection.rows[*index].is_decode).collect();
        prompts.sort_by_key(|index| self.requests[selection.rows[*index].slot].standing());
        for index in prompts {
            let Selected { slot, tokens, .. } = selection.rows[index];
            let left = self.requests[slot].on_seat().prompt_left() - tokens;
            let fitting = self.fitting(slot, self.rank.blocks.free()) - tokens;
            let more =
                left.min(selection.budget_left).min(fitting).min(self.longest_chunk(selection).saturating_sub(tokens));
            self.allocate(slot, tokens + more);
            selection.budget_left -= more;
            selection.rows[index].tokens += more;
            selection.rows[index].cost += more;
        }
    }

    /// Starts a request on this rank: with what the prefix cache has of it, and a first chunk of what the budget
    /// leaves. Its place in the queue goes.
    pub(crate) fn start(mut self, slot: Slot, tick: u64, selection: &mut Selection) {
        let longest = self.longest_chunk(selection);
        let request = &mut self.requests[slot];
        let hit = self.rank.hit(request, self.config).blocks;
        self.queue.remove(request);
        self.rank.seat(slot, request, tick);
        let cached_tokens = self.share(slot, hit);
        selection.cached_tokens += cached_tokens;
        let request = &mut self.requests[slot];
        let seated = request.on_seat_mut();
        let tokens = seated.prompt_left().min(selection.budget_left).min(longest);
        let lack = self.limits.blocks_for(seated.computed + tokens) - hit;
        self.rank.blocks.take(lack, &mut seated.blocks);
        selection.budget_left -= tokens;
        selection.started.push(request.id);
        selection.rows.push(Selected { slot, is_decode: false, tokens, drafts: 0, cost: tokens });
    }
    /// Prompt tokens of one request in this step: the threshold for long prompts, but no less than an even share of
    /// the budget, and no limit for a request that is alone.
    fn longest_chunk(&self, selection: &Selection) -> u32 {
        let threshold = self.config.policies.long_prefill_tokens;
        if threshold == 0 || (self.rank.running.len() <= 1 && self.queue.len() == 0) {
            return u32::MAX;
        }
        let prompts = selection.rows.iter().filter(|row| !row.is_decode).count() as u32;
        threshold.max(self.limits.max_num_batched_tokens / (prompts + 1))
    }

    /// Takes every prompt row out of the step: prompts wait for those of other ranks.
    pub(crate) fn hold_prompts(self, selection: &mut Selection) {
        let Selection { rows, held, budget_left, .. } = selection;
        rows.retain(|row| {
            if !row.is_decode {
                *budget_left += row.cost;
                held.push((self.requests[row.slot].id, HeldReason::Alignment));
            }
            row.is_decode
        });
    }

    /// Gives a request that was just seated its first blocks from the prefix cache; how many tokens they hold.
    fn share(&mut self, slot: Slot, blocks: u32) -> u32 {
        let request = &mut self.requests[slot];
        let tokens = blocks * self.limits.block_size;
        let counters = &mut self.rank.counters;
        counters.prefix_queried_tokens += u64::from(request.known());
        counters.prefix_hit_requests += u64::from(blocks > 0);
        counters.prefix_hit_blocks += u64::from(blocks);
        counters.prefix_hit_tokens += u64::from(tokens);
        request.cached_tokens = request.cached_tokens.or(Some(tokens));
        let Request { chain, place, .. } = request;
        if let Place::Running(seated) = place {
            self.rank.blocks.share(&chain.keys()[..blocks as usize], &mut seated.blocks);
            (seated.computed, seated.start_max) = (tokens, tokens);
            seated.published = blocks as usize;
        }
        tokens
    }
}

/// Drafts that a worker will have for a request's next row, as far as that is known. A model proposes all that it is
/// asked for; text in which n-grams were found last is likely to hold more of them. Where fewer come, the row is filled
/// with placeholders (rule 16).
fn drafts_expected(drafter: Drafter, seated: &Seated) -> u32 {
    match drafter {
        _ if seated.giving == 0 => seated.proposed,
        Drafter::Model => seated.proposing,
        Drafter::Ngram | Drafter::None => seated.proposing.min(seated.proposed),
    }
}

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
