//! One step of one group: rows of what runs, then what starts, then the shape, then the plan.

use std::collections::VecDeque;

use paceline_plan::{DpRank, Epoch, GroupDraft, GroupId, GroupPart, StepId, StepPlan};

use crate::emit::{SentRow, Told, rank_part};
use crate::explain::RankExplanation;
use crate::pace::{self, Pace, Prospect};
use crate::placement::{Chosen, Placement, Start};
use crate::select::{Selected, Selection, Selector, trim_prompts};
use crate::shape::{self, Decision, Demand};
use crate::{Drafter, Explanation, HeldReason, Scheduler, check};

/// A step that is not answered by every rank yet.
#[derive(Clone, Debug)]
pub(crate) struct InFlight {
    pub(crate) step: StepId,
    pub(crate) k_draft: u32,
    /// By index in the group; nothing where the reply is in.
    pub(crate) rows: Vec<Option<Vec<SentRow>>>,
}

/// A lockstep group.
#[derive(Clone, Debug)]
pub(crate) struct Group {
    pub(crate) id: GroupId,
    pub(crate) dp_ranks: Vec<DpRank>,
    /// The same as indices of ranks.
    pub(crate) members: Vec<usize>,
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

impl Group {
    /// Index among the steps in flight.
    pub(crate) fn place_of(&self, step: StepId) -> Option<usize> {
        self.in_flight.iter().position(|in_flight| in_flight.step == step)
    }
}

impl Scheduler {
    /// The next step of a group. Nothing when no rank has a row (rule 1), or more steps are in flight than plans are made
    /// ahead (rule 16).
    ///
    /// # Panics
    /// When the plan breaks a rule: a fault of the scheduler, found before any worker sees it.
    pub fn plan(&mut self, group: GroupId) -> Option<StepPlan> {
        let index = group.get() as usize;
        let depth = self.config.depth;
        if self.groups.get(index)?.in_flight.len() > depth as usize {
            return None;
        }
        let members = self.groups[index].members.clone();
        let tick = self.groups[index].tick + 1;
        let k_by_load = self.rules.k_by_load(self.running_most(&members));
        let mut selections: Vec<Selection> =
            members.iter().map(|rank| self.selector(*rank, k_by_load).select()).collect();
        let chosen = self.choose(&members, &selections);
        let pace = self.pace(index, &selections, &chosen);
        if let Pace::Held { .. } = pace {
            for (rank, selection) in members.iter().zip(&mut selections) {
                self.selector(*rank, k_by_load).hold_prompts(selection);
            }
        } else {
            self.start_waiting(&members, &mut selections, chosen, tick, k_by_load);
        }
        if let Pace::Level { tokens } = pace {
            selections.iter_mut().for_each(|selection| trim_prompts(selection, tokens, k_by_load + 1));
        }
        self.add_wanted_blocks(&members, &mut selections);
        let demands = self.demands(&members, &selections);
        let decision = shape::decide(&self.rules, &demands)?;
        for (selection, rows) in selections.iter_mut().zip(&decision.decode_rows_run) {
            self.hold_past_ladder(selection, *rows);
        }
        let demands = self.demands(&members, &selections);

        let state = &mut self.groups[index];
        state.tick = tick;
        state.k_by_load = k_by_load;
        state.step = state.step.next();
        let (epoch, step, dp_ranks) = (state.epoch, state.step, state.dp_ranks.clone());
        let query_len = decision.is_full().then(|| decision.query_len());
        let (k_verify, k_draft, passes) = (decision.k_verify, decision.k_draft, decision.passes.clone());
        let keep_history = self.config.drafter == Drafter::Ngram;
        let told = Told { keep_history, lookahead: self.config.lookahead(), k_draft };
        let mut parts = Vec::with_capacity(members.len());
        let mut rows = Vec::with_capacity(members.len());
        for (rank, selection) in members.iter().zip(&selections) {
            let (rank, requests) = (&mut self.ranks[*rank], &mut self.requests);
            let (part, sent) = rank_part(rank, requests, &selection.rows, query_len, told, tick);
            check::blocks_add_up(rank, requests, tick);
            parts.push(part);
            rows.push(Some(sent));
        }
        let draft = GroupDraft { group, epoch, step, depth, k_verify, k_draft, dp_ranks, passes };
        let plan = GroupPart::new(draft).and_then(|part| StepPlan::new(part, parts, &self.config.limits));
        let plan = plan.unwrap_or_else(|error| panic!("the scheduler's own plan, step {step}: {error}"));
        self.groups[index].in_flight.push_back(InFlight { step, k_draft, rows });
        self.account(index, &decision, &demands, selections, pace);
        Some(plan)
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

    fn choose(&self, members: &[usize], selections: &[Selection]) -> Chosen {
        let placement = Placement {
            ranks: &self.ranks,
            requests: &self.requests,
            config: &self.config,
            query_len: self.rules.query_len_max(),
            members,
            selections,
        };
        placement.choose(self.queue.iter())
    }

    /// How fast the group's prompts run, and how long they have been held for that.
    fn pace(&mut self, index: usize, selections: &[Selection], chosen: &Chosen) -> Pace {
        let mut prospects: Vec<Prospect> = selections.iter().map(|selection| self.prospect(selection)).collect();
        for start in chosen.starts.iter().filter(|start| !start.waits) {
            let prospect = &mut prospects[start.index];
            let tokens = prospect.prompt_tokens.saturating_add(start.tokens);
            prospect.prompt_tokens = tokens;
        }
        let most = self.config.limits.max_num_batched_tokens;
        let query_len = self.rules.query_len_max();
        for prospect in &mut prospects {
            prospect.prompt_tokens = prospect.prompt_tokens.min(most.saturating_sub(prospect.decode_rows * query_len));
        }
        let pace = pace::decide(&self.config.policies, most, &prospects, self.groups[index].prompts_held_steps);
        self.groups[index].prompts_held_steps = if let Pace::Held { steps } = pace { steps } else { 0 };
        pace
    }

    fn prospect(&self, selection: &Selection) -> Prospect {
        let mut prospect = Prospect::default();
        for row in &selection.rows {
            if row.is_decode {
                prospect.decode_rows += 1;
            } else {
                let left = self.requests[row.slot].on_seat().prompt_left();
                prospect.prompt_tokens = prospect.prompt_tokens.saturating_add(left);
            }
        }
        prospect
    }

    fn start_waiting(&mut self, members: &[usize], selections: &mut [Selection], chosen: Chosen, tick: u64, k: u32) {
        let Chosen { starts, skipped } = chosen;
        let mut full = vec![false; members.len()];
        for Start { slot, index, victims, waits, .. } in starts {
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
            self.selector(rank, k).start(slot, tick, &mut selections[index]);
        }
        for (slot, skips) in skipped {
            self.requests[slot].skips = skips;
        }
    }

    /// Rule 18: blocks for what the single passes are going to write. They come last, from what nobody else needs.
    fn add_wanted_blocks(&mut self, members: &[usize], selections: &mut [Selection]) {
        let k_draft = self.rules.k_draft(self.running_most(members));
        if self.config.drafter != Drafter::Model || k_draft < 2 {
            return;
        }
        for (rank, selection) in members.iter().zip(selections) {
            let missing = self.selector(*rank, k_draft).add_wanted_blocks(selection);
            self.ranks[*rank].counters.wanted_blocks_missing += u64::from(missing);
        }
    }

    fn demands(&self, members: &[usize], selections: &[Selection]) -> Vec<Demand> {
        let demand = |(rank, selection): (&usize, &Selection)| {
            self.demand(&selection.rows, self.ranks[*rank].running.len() as u32)
        };
        members.iter().zip(selections).map(demand).collect()
    }

    fn demand(&self, rows: &[Selected], running: u32) -> Demand {
        let mut demand = Demand { running, ..Demand::default() };
        for row in rows {
            if row.is_decode {
                demand.decode_rows += 1;
                demand.drafts += row.drafts;
                demand.drafts_max = demand.drafts_max.max(row.drafts);
            } else {
                let seated = self.requests[row.slot].on_seat();
                demand.prompt_rows += 1;
                demand.prompt_tokens += row.tokens;
                demand.sampled_prompt_rows += u32::from(row.tokens == seated.prompt_left());
            }
        }
        demand
    }

    /// Keeps the first `decode_rows` decode rows: those that waited longest.
    fn hold_past_ladder(&self, selection: &mut Selection, decode_rows: u32) {
        let mut seen = 0;
        let Selection { rows, held, .. } = selection;
        rows.retain(|row| {
            seen += u32::from(row.is_decode);
            let keep = !row.is_decode || seen <= decode_rows;
            if !keep {
                held.push((self.requests[row.slot].id, HeldReason::Ladder));
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
        selections: Vec<Selection>,
        pace: Pace,
    ) {
        let target = &decision.passes[0];
        let downgraded = decision.reason.downgrading_rank();
        let mut ranks = Vec::with_capacity(demands.len());
        for (index, (demand, selection)) in demands.iter().zip(selections).enumerate() {
            let rank = &mut self.ranks[self.groups[group].members[index]];
            let padding = shape::padding(&self.rules, decision, index, demand.tokens());
            let counters = &mut rank.counters;
            counters.count_step(target, index, demand, &padding);
            counters.count_held(&selection.held);
            counters.drafts_trimmed += u64::from(selection.drafts_trimmed);
            if downgraded == Some(index) {
                counters.count_downgrade(decision.reason);
            }
            ranks.push(RankExplanation {
                dp_rank: rank.dp_rank,
                is_dummy: target.loads()[index].is_dummy(),
                decode_rows: demand.decode_rows,
                prompt_rows: demand.prompt_rows,
                real_tokens: demand.tokens(),
                padding,
                started: selection.started,
                held: selection.held,
                preempted: selection.preempted,
                drafts_trimmed: selection.drafts_trimmed,
                cached_tokens: selection.cached_tokens,
            });
        }
        let real = demands.iter().map(|demand| u64::from(demand.tokens()));
        self.balance_real_tokens += real.clone().sum::<u64>();
        self.balance_largest_tokens += real.max().unwrap_or(0) * demands.len() as u64;
        let state = &mut self.groups[group];
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
            ranks,
        });
    }
}
