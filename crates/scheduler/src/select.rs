//! Which running requests of a rank get a row, and how long it is. Every one gets its turn: a decode row is Q of the
//! budget, a prompt row at least as much; whoever waited longest goes first, and what is left makes chunks longer.
//! Allocates the blocks, and preempts where that lets an older request go on.

use paceline_plan::{Seat, WorkerLimits};

use crate::queue::Queue;
use crate::rank::Rank;
use crate::request::{Requests, Slot};
use crate::selection::{Selected, Selection};
use crate::{Config, HeldReason, PlacementReason, RequestId, Started};
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
    pub(crate) fn select(mut self, selection: &mut Selection) {
        selection.clear(self.limits.max_num_batched_tokens);
        if self.rank.paused {
            selection.held.extend(self.rank.running.iter().map(|seat| (self.id(*seat), HeldReason::Paused)));
            return;
        }
        self.rank.take_turns();
        let plain = self.select_plain(&self.rank.turns, selection);
        if plain < self.rank.turns.len() {
            self.select_others(plain, selection);
        }
        if self.k > 0 {
            self.add_drafts(selection);
        }
        if selection.has_prompts {
            self.grow_chunks(selection);
        }
    }

    /// Rows for those whose turn comes after that of the first `plain`, as far as they get any.
    #[inline(never)]
    fn select_others(&mut self, plain: usize, selection: &mut Selection) {
        // Whoever is preempted meanwhile loses its turn below.
        let mut turns = std::mem::take(&mut self.rank.turns);
        let mut waiting = std::mem::take(&mut selection.waiting);
        let mut left = &turns[plain..];
        while let Some((seat, after)) = left.split_first() {
            if !self.select_one(*seat, selection) {
                waiting.push(*seat);
            }
            left = &after[self.select_plain(after, selection)..];
        }
        // A preemption gives back budget, perhaps enough for a row that was passed over.
        let mut preempted = 0;
        while selection.preempted.len() > preempted {
            preempted = selection.preempted.len();
            waiting.retain(|seat| !self.select_one(*seat, selection));
        }
        if preempted > 0 {
            turns.retain(|seat| self.rank.on(*seat).is_taken());
        }
        self.rank.turns = turns;
        selection.held.extend(waiting.iter().map(|seat| (self.id(*seat), HeldReason::Budget)));
        selection.waiting = waiting;
    }

    fn id(&self, seat: Seat) -> RequestId {
        self.requests[self.rank.slot(seat)].id
    }

    /// What most rows are: the next token of a request whose blocks hold it. Takes as many of them as come first and the
    /// budget is enough for; how many.
    #[inline]
    fn select_plain(&self, turns: &[Seat], selection: &mut Selection) -> usize {
        let Self { limits, rank, .. } = self;
        let cost = self.k + 1;
        let most = turns.len().min((selection.budget_left / cost) as usize);
        let others = turns[..most].iter().position(|seat| !rank.on(*seat).decodes_within(limits));
        let plain = &turns[..others.unwrap_or(most)];
        selection.budget_left -= plain.len() as u32 * cost;
        let row = |seat: &Seat| Selected { seat: *seat, is_decode: true, tokens: 1, drafts: 0, cost };
        selection.rows.extend(plain.iter().map(row));
        plain.len()
    }

    /// Gives a request a row, or holds it for want of blocks. False when the budget left is too small for it.
    fn select_one(&mut self, seat: Seat, selection: &mut Selection) -> bool {
        let seated = self.rank.on(seat);
        // Preempted for a request before it; or, by rule 16, all that it emits is in flight.
        if !seated.is_taken() || seated.ends_in_flight() {
            return true;
        }
        // Rule 10: every row gets its turn: a decode row costs Q, a prompt row as much, or what it has left.
        let is_decode = !seated.is_prompt();
        let cost = if is_decode { self.k + 1 } else { seated.prompt_left().min(self.k + 1) };
        if cost > selection.budget_left {
            return false;
        }
        let wanted = if is_decode { 1 } else { cost };
        let mut tokens = wanted;
        if seated.fitting(0, self.limits) < wanted {
            // Rule 16: whoever may have ended by then takes no block for a token that may be none.
            if seated.left_least() == 0 && seated.fitting(0, self.limits) == 0 {
                return true;
            }
            tokens = self.secure(seat, wanted, selection);
            if tokens == 0 {
                selection.held.push((self.id(seat), HeldReason::Blocks));
                return true;
            }
        }
        let cost = if is_decode { cost } else { tokens };
        selection.has_prompts |= !is_decode;
        selection.budget_left -= cost;
        selection.rows.push(Selected { seat, is_decode, tokens, drafts: 0, cost });
        true
    }

    /// Blocks for up to `wanted` more tokens; how many they hold. Fewer rather than a preemption; one token is worth
    /// a preemption when that is certain to make it fit.
    fn secure(&mut self, seat: Seat, wanted: u32, selection: &mut Selection) -> u32 {
        if self.fitting(seat, self.rank.blocks.free()) == 0 && !self.preempt_for(seat, selection) {
            return 0;
        }
        let tokens = wanted.min(self.fitting(seat, self.rank.blocks.free()));
        self.allocate(seat, tokens);
        tokens
    }

    /// Tokens after the computed ones that the held blocks and `more` others hold.
    fn fitting(&self, seat: Seat, more: u32) -> u32 {
        self.rank.on(seat).fitting(more, self.limits)
    }

    fn allocate(&mut self, seat: Seat, tokens: u32) {
        let seated = self.rank.on(seat);
        let needed = self.limits.blocks_for(seated.start_max + tokens);
        let lack = needed.saturating_sub(seated.blocks);
        self.rank.take_blocks(seat, lack);
    }

    /// Sends the request of lowest standing back to the queue, unless `slot` itself is that: its blocks make room for
    /// at least one token of `slot`, so nobody is evicted for nothing. They do so a step later when a step in flight runs
    /// it; while blocks are coming nobody else is evicted (rule 11).
    fn preempt_for(&mut self, seat: Seat, selection: &mut Selection) -> bool {
        let rank = &self.rank;
        if !rank.leaving.is_empty() && self.fitting(seat, rank.blocks.free() + rank.blocks_coming()) > 0 {
            return false;
        }
        let standing = rank.standing(seat);
        let victims = rank.running.iter().copied().filter(|victim| rank.standing(*victim) > standing);
        let holding = victims.filter(|victim| rank.on(*victim).blocks > 0);
        let Some(victim) = holding.max_by_key(|victim| rank.standing(*victim)) else { return false };
        self.preempt(victim, selection);
        true
    }

    /// Sends a running request back to the queue and takes its row out of the step.
    pub(crate) fn preempt(&mut self, victim: Seat, selection: &mut Selection) {
        if let Some(index) = selection.rows.iter().position(|row| row.seat == victim) {
            selection.budget_left += selection.rows.remove(index).cost;
        }
        let id = self.id(victim);
        selection.held.retain(|(other, _)| *other != id);
        selection.preempted.push(id);
        self.rank.preempt(victim, self.requests, self.queue);
    }

    /// Rule 9, with the blocks that nobody else needs.
    fn add_drafts(&mut self, selection: &mut Selection) {
        selection.has_drafts = true;
        let mut promised = None;
        let longest = self.limits.max_model_len;
        for row in selection.rows.iter_mut().filter(|row| row.is_decode) {
            let seated = self.rank.on(row.seat);
            let room = longest.saturating_sub(seated.known_max() + 1);
            let allowed = self.k.min(room).min(seated.left_least().saturating_sub(1));
            let wanted = seated.drafts_expected(self.config.drafter).min(allowed);
            if wanted < seated.fitting(0, self.limits) {
                row.drafts = wanted;
                continue;
            }
            // What prompts lack does not change with the rows that decode.
            let promised = *promised.get_or_insert_with(|| self.rank.blocks_promised(self.limits));
            let spare = self.rank.blocks.free().saturating_sub(promised);
            row.drafts = wanted.min(self.fitting(row.seat, spare) - 1);
            selection.drafts_trimmed += wanted - row.drafts;
            self.allocate(row.seat, 1 + row.drafts);
        }
    }

    /// Rule 18: blocks for the positions that single passes write for `self.k` drafts, past what the row itself needs
    /// and within what the request can grow to. Nobody is held or preempted for them. Returns how many are missing.
    pub(crate) fn add_wanted_blocks(self, selection: &Selection) -> u32 {
        let promised = self.rank.blocks_promised(self.limits);
        let mut missing = 0;
        for row in &selection.rows {
            let seated = self.rank.on(row.seat);
            if !row.is_decode && row.tokens < seated.prompt_left() {
                continue;
            }
            let written = seated.start_max + row.tokens + row.drafts;
            let wanted = (written + self.k - 1).min(seated.longest_computed());
            let lack = self.limits.blocks_for(wanted).saturating_sub(seated.blocks);
            let taken = lack.min(self.rank.blocks.free().saturating_sub(promised));
            self.rank.take_blocks(row.seat, taken);
            missing += lack - taken;
        }
        missing
    }

    /// The rest of the budget goes to prompt rows, in order of standing.
    fn grow_chunks(&mut self, selection: &mut Selection) {
        let mut prompts: Vec<usize> =
            (0..selection.rows.len()).filter(|index| !selection.rows[*index].is_decode).collect();
        prompts.sort_by_key(|index| self.rank.standing(selection.rows[*index].seat));
        let longest = self.longest_chunk();
        for index in prompts {
            let Selected { seat, tokens, .. } = selection.rows[index];
            let left = self.rank.on(seat).prompt_left() - tokens;
            let fitting = self.fitting(seat, self.rank.blocks.free()) - tokens;
            let more = left.min(selection.budget_left).min(fitting).min(longest.saturating_sub(tokens));
            self.allocate(seat, tokens + more);
            selection.budget_left -= more;
            selection.rows[index].tokens += more;
            selection.rows[index].cost += more;
        }
    }

    /// Starts a request on this rank: with what the prefix cache has of it, and a first chunk of what the budget
    /// leaves. Its place in the queue goes.
    pub(crate) fn start(mut self, (slot, reason): (Slot, PlacementReason), tick: u64, selection: &mut Selection) {
        let longest = self.longest_chunk();
        let request = &mut self.requests[slot];
        let hit = self.rank.hit(request, self.config).blocks;
        self.queue.remove(request);
        let seat = self.rank.seat(slot, request, tick, self.limits);
        let (id, ran_on) = (request.id, request.ran_on.replace(self.rank.dp_rank));
        let cached_tokens = self.share(slot, seat, hit);
        selection.started.push(Started { id, reason, ran_on, cached_tokens });
        selection.cached_tokens += cached_tokens;
        let seated = self.rank.on(seat);
        let tokens = seated.prompt_left().min(selection.budget_left).min(longest);
        let lack = self.limits.blocks_for(seated.computed + tokens) - hit;
        self.rank.take_blocks(seat, lack);
        selection.budget_left -= tokens;
        selection.has_prompts = true;
        selection.rows.push(Selected { seat, is_decode: false, tokens, drafts: 0, cost: tokens });
    }

    /// Prompt tokens of one request in this step.
    fn longest_chunk(&self) -> u32 {
        let requests = self.rank.running.len() + self.queue.len();
        self.config.policies.longest_chunk(self.limits.max_num_batched_tokens, requests)
    }

    /// Takes every prompt row out of the step: prompts wait for those of other ranks.
    pub(crate) fn hold_prompts(self, selection: &mut Selection) {
        let Selection { rows, held, budget_left, .. } = selection;
        rows.retain(|row| {
            if !row.is_decode {
                *budget_left += row.cost;
                held.push((self.id(row.seat), HeldReason::Alignment));
            }
            row.is_decode
        });
    }

    /// Gives a request that was just seated its first blocks from the prefix cache; how many tokens they hold.
    fn share(&mut self, slot: Slot, seat: Seat, blocks: u32) -> u32 {
        let request = &mut self.requests[slot];
        let tokens = blocks * self.limits.block_size;
        let counters = &mut self.rank.counters;
        counters.prefix_queried_tokens += u64::from(request.known());
        counters.prefix_hit_requests += u64::from(blocks > 0);
        counters.prefix_hit_blocks += u64::from(blocks);
        counters.prefix_hit_tokens += u64::from(tokens);
        request.cached_tokens = request.cached_tokens.or(Some(tokens));
        self.rank.recent[seat.index()].cached_tokens = request.cached_tokens.unwrap_or(0);
        self.rank.share_blocks(seat, &request.chain.keys()[..blocks as usize], tokens);
        tokens
    }
}
