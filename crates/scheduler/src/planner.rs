//! One step of one group: rows of what runs, then what starts, then the shape, then the plan.

use std::collections::VecDeque;
use std::sync::Arc;

use paceline_plan::{DpRank, Epoch, GroupDraft, GroupId, GroupPart, StepId, StepPlan};

use crate::emit::{Told, rank_part};
use crate::explain::RankExplanation;
use crate::pace::{self, Pace, Prospect};
use crate::placement::{Chosen, Placement, Start};
use crate::select::Selector;
use crate::selection::{Selection, trim_prompts};
use crate::sent::SentRows;
use crate::shape::{self, Decision, Demand};
use crate::spare::Desk;
use crate::{Drafter, Explanation, HeldReason, Scheduler, ShapeReason, check, spare};

/// A step that is not answered by every rank yet.
#[derive(Clone, Debug)]
pub(crate) struct InFlight {
    pub(crate) step: StepId,
    pub(crate) k_draft: u32,
    /// By index in the group; nothing where the reply is in.
    pub(crate) rows: Vec<Option<SentRows>>,
    /// Ranks whose reply is not in.
    pub(crate) owed: usize,
}

/// A lockstep group.
#[derive(Clone, Debug)]
pub(crate) struct Group {
    pub(crate) id: GroupId,
    pub(crate) dp_ranks: Vec<DpRank>,
    /// The same as indices of ranks.
    pub(crate) members: Arc<[usize]>,
    pub(crate) epoch: Epoch,
    /// The newest step of the epoch; 0 before the first.
    pub(crate) step: StepId,
    /// Steps over all epochs.
    pub(crate) tick: u64,
    /// Most drafts of a row that the newest step could verify, by the load before it.
    pub(crate) k_by_load: u32,
    /// Steps that prompts have been held for others to run beside.
    pub(crate) prompts_held_steps: u32,
    /// Steps that some rank has not answered, the oldest first.
    pub(crate) in_flight: VecDeque<InFlight>,
    pub(crate) explanation: Option<Explanation>,
}

impl Scheduler {
    /// The next step of a group. Nothing when no rank has a row (rule 1), or more steps are in flight than plans are made
    /// ahead (rule 16).
    ///
    /// # Panics
    /// When the plan breaks a rule: a fault of the scheduler, found before any worker sees it.
    pub fn plan(&mut self, group: GroupId) -> Option<StepPlan> {
        let index = group.get() as usize;
        if self.groups.get(index)?.in_flight.len() > self.config.depth as usize {
            return None;
        }
        let mut desk = self.spare.desk.take().unwrap_or_default();
        let plan = self.plan_on(index, &mut desk);
        self.spare.desk = Some(desk);
        plan
    }

    /// Takes a plan back that was sent: its memory is used for a later one. Nobody needs to.
    pub fn recycle(&mut self, plan: StepPlan) {
        self.spare.keep_plan(plan);
    }

    fn plan_on(&mut self, index: usize, desk: &mut Desk) -> Option<StepPlan> {
        let members = Arc::clone(&self.groups[index].members);
        let tick = self.groups[index].tick + 1;
        let k_by_load =
            if self.rules.k_is_fixed() { self.config.k } else { self.rules.k_by_load(self.running_most(&members)) };
        let Desk { selections, demands, prospects } = desk;
        selections.resize_with(selections.len().max(members.len()), Selection::default);
        let selections = &mut selections[..members.len()];
        for (rank, selection) in members.iter().zip(selections.iter_mut()) {
            self.selector(*rank, k_by_load).select(selection);
        }
        let pace = if self.queue.len() > 0 || selections.iter().any(|selection| selection.has_prompts) {
            self.take_in(index, &members, selections, prospects, (tick, k_by_load))
        } else {
            self.groups[index].prompts_held_steps = 0;
            Pace::Free
        };
        if let Pace::Level { tokens, .. } = pace {
            selections.iter_mut().for_each(|selection| trim_prompts(selection, tokens, k_by_load + 1));
        }
        self.add_wanted_blocks(&members, selections);
        self.count_demands(&members, selections, demands);
        let Some(decision) = shape::decide_in(&self.rules, demands, &mut self.spare) else {
            for (rank, selection) in members.iter().zip(selections) {
                self.ranks[*rank].untold.append(&mut selection.preempted);
            }
            return None;
        };
        if matches!(decision.reason, ShapeReason::Held { .. }) {
            self.hold_rows(&members, selections, &decision.decode_rows_run, demands);
        }
        let state = &mut self.groups[index];
        state.tick = tick;
        state.k_by_load = k_by_load;
        state.step = state.step.next();
        self.account(index, &decision, demands, selections, pace);
        Some(self.launch(index, &members, decision, selections))
    }

    /// Places waiting requests, and decides what the group's prompts may do.
    fn take_in(
        &mut self,
        index: usize,
        members: &[usize],
        selections: &mut [Selection],
        prospects: &mut Vec<Prospect>,
        (tick, k): (u64, u32),
    ) -> Pace {
        let chosen = self.choose(index, selections);
        let pace = self.pace(index, members, selections, &chosen, prospects);
        if let Pace::Held { .. } = pace {
            for (rank, selection) in members.iter().zip(selections) {
                self.selector(*rank, k).hold_prompts(selection);
            }
        } else {
            self.start_waiting(members, selections, chosen, tick, k);
        }
        pace
    }

    /// Makes the plan of what was decided, and keeps what its replies are checked against.
    fn launch(
        &mut self,
        index: usize,
        members: &[usize],
        decision: Decision,
        selections: &mut [Selection],
    ) -> StepPlan {
        let Self { config, ranks, requests, groups, spare, .. } = self;
        let (limits, depth, state) = (&config.limits, config.depth, &mut groups[index]);
        let query_len = decision.is_full().then(|| decision.query_len());
        let Decision { k_verify, k_draft, passes, decode_rows_run, .. } = decision;
        let keep_history = config.drafter == Drafter::Ngram;
        let Group { id: group, epoch, step, tick, .. } = *state;
        let told = Told { keep_history, lookahead: config.lookahead(), k_draft, query_len, tick };
        spare::keep(&mut spare.counts, decode_rows_run);
        let dp_ranks = spare.dp_ranks_like(&state.dp_ranks);
        let mut parts = spare.parts_of(members.len());
        let mut rows = spare::empty(&mut spare.flights);
        for (place, part) in parts.iter_mut().enumerate() {
            let (rank, selection) = (&mut ranks[members[place]], &mut selections[place]);
            let mut sent = spare.sent.pop().unwrap_or_default();
            selection.sort_by_seat(rank.seated.len());
            rank_part(rank, requests, &selection.rows, told, (part, &mut sent));
            check::blocks_add_up(rank, requests, limits, tick);
            rows.push(Some(sent));
        }
        let draft = GroupDraft { group, epoch, step, depth, k_verify, k_draft, dp_ranks, passes };
        let fault = |error| -> ! { panic!("the scheduler's own plan, step {step}: {error}") };
        let part = GroupPart::new(draft).unwrap_or_else(|error| fault(error));
        let plan = StepPlan::new(part, parts, limits).unwrap_or_else(|error| fault(error));
        state.in_flight.push_back(InFlight { step, k_draft, rows, owed: members.len() });
        plan
    }

    /// Running requests of the rank that has most of them.
    fn running_most(&self, members: &[usize]) -> u32 {
        members.iter().map(|rank| self.ranks[*rank].running.len() as u32).max().unwrap_or(0)
    }

    fn selector(&mut self, rank: usize, k: u32) -> Selector<'_> {
        Selector {
            rank: &mut self.ranks[rank],
            requests: &mut self.requests,
            queue: &mut self.queue,
            limits: &self.config.limits,
            config: &self.config,
            k,
        }
    }

    fn choose(&mut self, group: usize, selections: &[Selection]) -> Chosen {
        if self.queue.len() == 0 {
            return Chosen::default();
        }
        self.ranks.iter_mut().for_each(|rank| rank.keep_load(&self.config.limits));
        let in_flight: Vec<bool> = self.groups.iter().map(|group| !group.in_flight.is_empty()).collect();
        let placement = Placement {
            in_flight: &in_flight,
            ranks: &self.ranks,
            requests: &self.requests,
            config: &self.config,
            query_len: self.rules.query_len_max(),
            waiting: self.queue.len(),
            group,
            selections,
        };
        placement.choose(self.queue.iter())
    }

    /// How fast the group's prompts run, and how long they have been held for that.
    fn pace(
        &mut self,
        index: usize,
        members: &[usize],
        selections: &[Selection],
        chosen: &Chosen,
        prospects: &mut Vec<Prospect>,
    ) -> Pace {
        prospects.clear();
        let ranks = members.iter().zip(selections);
        prospects.extend(ranks.map(|(rank, selection)| selection.prospect(&self.ranks[*rank])));
        for start in chosen.starts.iter().filter(|start| !start.waits) {
            let prospect = &mut prospects[start.index];
            let tokens = prospect.prompt_tokens.saturating_add(start.tokens);
            prospect.prompt_tokens = tokens;
        }
        let most = self.config.limits.max_num_batched_tokens;
        let query_len = self.rules.query_len_max();
        for prospect in prospects.iter_mut() {
            prospect.prompt_tokens = prospect.prompt_tokens.min(most.saturating_sub(prospect.decode_rows * query_len));
        }
        let pace = pace::decide(&self.config.policies, most, prospects, self.groups[index].prompts_held_steps);
        self.groups[index].prompts_held_steps = if let Pace::Held { steps, .. } = pace { steps } else { 0 };
        pace
    }

    fn start_waiting(&mut self, members: &[usize], selections: &mut [Selection], chosen: Chosen, tick: u64, k: u32) {
        let Chosen { starts, skipped } = chosen;
        let mut full = vec![false; if starts.is_empty() { 0 } else { members.len() }];
        for Start { slot, index, victims, waits, reason, .. } in starts {
            let rank = members[index];
            let selection = &selections[index];
            // Placement counts tokens by a quick look at the cache. What it chose after this one counts on this one.
            if full[index] || selection.budget_left + selection.cost_of(&victims) == 0 {
                full[index] = true;
                continue;
            }
            for victim in victims {
                self.selector(rank, k).preempt(victim, &mut selections[index]);
            }
            if waits {
                continue;
            }
            self.placements += 1;
            self.ranks[rank].last_placed = self.placements;
            self.selector(rank, k).start((slot, reason), tick, &mut selections[index]);
        }
        for (slot, skips) in skipped {
            self.requests[slot].skips = skips;
        }
    }

    /// Rule 18: blocks for what the single passes are going to write. They come last, from what nobody else needs.
    fn add_wanted_blocks(&mut self, members: &[usize], selections: &mut [Selection]) {
        if self.config.drafter != Drafter::Model {
            return;
        }
        let k_draft = self.rules.k_draft(self.running_most(members));
        if k_draft < 2 {
            return;
        }
        for (rank, selection) in members.iter().zip(selections) {
            let missing = self.selector(*rank, k_draft).add_wanted_blocks(selection);
            self.ranks[*rank].counters.wanted_blocks_missing += u64::from(missing);
        }
    }

    #[inline]
    fn count_demands(&self, members: &[usize], selections: &[Selection], demands: &mut Vec<Demand>) {
        demands.clear();
        demands.extend(members.iter().zip(selections).map(|(rank, selection)| selection.demand(&self.ranks[*rank])));
    }

    /// Holds what passes the ladder on every rank, and counts again.
    #[inline(never)]
    fn hold_rows(&self, members: &[usize], selections: &mut [Selection], run: &[u32], demands: &mut Vec<Demand>) {
        for ((rank, selection), rows) in members.iter().zip(&mut *selections).zip(run) {
            self.hold_past_ladder(*rank, selection, *rows);
        }
        self.count_demands(members, selections, demands);
    }

    /// Keeps the first `decode_rows` decode rows: those that waited longest.
    fn hold_past_ladder(&self, rank: usize, selection: &mut Selection, decode_rows: u32) {
        let Selection { rows, held, .. } = selection;
        if rows.len() <= decode_rows as usize {
            return;
        }
        let mut seen = 0;
        rows.retain(|row| {
            seen += u32::from(row.is_decode);
            let keep = !row.is_decode || seen <= decode_rows;
            if !keep {
                held.push((self.requests[self.ranks[rank].slot(row.seat)].id, HeldReason::Ladder));
            }
            keep
        });
    }

    /// Counts the step, and keeps why it is what it is.
    fn account(
        &mut self,
        group: usize,
        decision: &Decision,
        demands: &[Demand],
        selections: &mut [Selection],
        pace: Pace,
    ) {
        let target = &decision.passes[0];
        let downgraded = decision.reason.downgrading_rank();
        let state = &mut self.groups[group];
        let mut explained = state.explanation.take().map_or_else(Vec::new, |before| before.ranks);
        explained.resize_with(demands.len(), RankExplanation::default);
        let mut padder = shape::Padder::new(&self.rules, decision);
        let (mut real_tokens, mut largest_tokens) = (0, 0);
        for (index, demand) in demands.iter().enumerate() {
            let (rank, selection) = (&mut self.ranks[state.members[index]], &mut selections[index]);
            let explained = &mut explained[index];
            let tokens = demand.tokens();
            let padding = padder.of(index, tokens);
            (real_tokens, largest_tokens) = (real_tokens + u64::from(tokens), largest_tokens.max(u64::from(tokens)));
            let counters = &mut rank.counters;
            counters.count_step(target, index, demand, &padding);
            counters.count_held(&selection.held);
            counters.drafts_trimmed += u64::from(selection.drafts_trimmed);
            if downgraded == Some(index) {
                counters.count_downgrade(decision.reason);
            }
            if !rank.untold.is_empty() {
                rank.untold.append(&mut selection.preempted);
                std::mem::swap(&mut rank.untold, &mut selection.preempted);
            }
            selection.explain(explained);
            explained.dp_rank = rank.dp_rank;
            explained.is_dummy = target.loads()[index].is_dummy();
            (explained.decode_rows, explained.prompt_rows) = (demand.decode_rows, demand.prompt_rows);
            (explained.real_tokens, explained.padding) = (tokens, padding);
        }
        self.balance_real_tokens += real_tokens;
        self.balance_largest_tokens += largest_tokens * demands.len() as u64;
        state.explanation = Some(Explanation {
            group: state.id,
            epoch: state.epoch,
            step: state.step,
            k_verify: decision.k_verify,
            k_draft: decision.k_draft,
            passes: decision.passes.len() as u32,
            mode: target.mode(),
            pace,
            reason: decision.reason,
            downgraded_by: downgraded.map(|index| state.dp_ranks[index]),
            rows_padded: target.rows_padded().get(),
            tokens_padded: target.tokens_padded().get(),
            ranks: explained,
        });
    }
}
