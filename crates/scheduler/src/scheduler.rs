//! The scheduler's state, and the events that change it from outside: requests, aborts, losses.

use std::collections::VecDeque;

use paceline_plan::{DpRank, Epoch, GroupId, Seat, SeatGeneration, StepId};

use crate::cache::CacheChange;
use crate::keys::KeyChain;
use crate::planner::Group;
use crate::queue::Queue;
use crate::rank::Rank;
use crate::request::{Place, Request, Requests};
use crate::sent::SentRows;
use crate::shape::ShapeRules;
use crate::spare::Spare;
use crate::stats::RankCounters;
use crate::{Config, Error, Explanation, MaskedRow, RankStats, Refusal, RequestId, RequestSpec, Stats, check};

/// Decides every step of every group.
#[derive(Clone, Debug)]
pub struct Scheduler {
    pub(crate) config: Config,
    pub(crate) rules: ShapeRules,
    pub(crate) requests: Requests,
    pub(crate) queue: Queue,
    /// By `dp_rank`.
    pub(crate) ranks: Vec<Rank>,
    /// By group id.
    pub(crate) groups: Vec<Group>,
    pub(crate) placements: u64,
    pub(crate) submitted: u64,
    pub(crate) refused: u64,
    pub(crate) aborted: u64,
    pub(crate) finished: u64,
    pub(crate) balance_real_tokens: u64,
    pub(crate) balance_largest_tokens: u64,
    pub(crate) spare: Spare,
}

impl Scheduler {
    /// A scheduler with all ranks available, every group in epoch 1 before its first step.
    ///
    /// # Errors
    /// When no correct plan can be made with the configuration: the field with both numbers.
    pub fn new(config: Config) -> Result<Self, Error> {
        config.check()?;
        let mut ranks: Vec<Rank> = Vec::new();
        let mut groups = Vec::with_capacity(config.groups.len());
        for (index, dp_ranks) in config.groups.iter().enumerate() {
            let members = dp_ranks.iter().enumerate();
            ranks.extend(members.map(|(place, dp_rank)| Rank::new(*dp_rank, index, place, &config)));
            groups.push(Group {
                id: GroupId::new(index as u32),
                dp_ranks: dp_ranks.clone(),
                members: dp_ranks.iter().map(|dp_rank| dp_rank.index()).collect(),
                epoch: Epoch::new(1),
                step: StepId::default(),
                tick: 0,
                k_by_load: config.k,
                prompts_held_steps: 0,
                in_flight: VecDeque::new(),
                explanation: None,
            });
        }
        ranks.sort_by_key(|rank| rank.dp_rank);
        Ok(Self {
            rules: ShapeRules::new(&config),
            config,
            requests: Requests::default(),
            queue: Queue::default(),
            ranks,
            groups,
            placements: 0,
            submitted: 0,
            refused: 0,
            aborted: 0,
            finished: 0,
            balance_real_tokens: 0,
            balance_largest_tokens: 0,
            spare: Spare::default(),
        })
    }

    /// Takes a request into the queue.
    ///
    /// # Errors
    /// When it can never run, or the queue is full: the reason with both numbers. Nothing is kept of it.
    pub fn submit(&mut self, spec: RequestSpec) -> Result<(), Refusal> {
        if let Err(refusal) = self.admissible(&spec) {
            self.refused += 1;
            return Err(refusal);
        }
        self.submitted += 1;
        let mut stop_token_ids = spec.stop_token_ids;
        stop_token_ids.sort_unstable();
        let prompt_len = spec.prompt.len() as u32;
        let mut chain = KeyChain::default();
        if let Some(secret) = self.config.prefix_cache {
            chain = KeyChain::new(secret, &spec.cache_salt);
            chain.extend(secret, &spec.prompt, self.config.limits.block_size);
        }
        let slot = self.requests.insert(Request {
            id: spec.id,
            prompt_len,
            tokens: spec.prompt,
            max_new_tokens: spec.max_new_tokens,
            stop_token_ids,
            sampling: spec.sampling,
            pinned: spec.pinned,
            priority: if self.config.policies.priority { spec.priority } else { 0 },
            history: spec.history,
            report_next: spec.prompt_logprobs.then_some(1).filter(|next| *next < prompt_len),
            constrained: spec.constrained,
            // A prompt that no block holds is computed by each.
            shares_prompt_with: spec.shares_prompt_with.filter(|_| !chain.keys().is_empty()),
            chain,
            cached_tokens: None,
            preemptions: 0,
            skips: 0,
            ran_on: None,
            arrival: self.submitted,
            place: Place::Waiting { resumes: false },
        });
        self.queue.push(slot, &self.requests[slot]);
        Ok(())
    }

    /// Ends a request: it is in no later plan. Its blocks are free at once or, when steps that run it are in flight, when
    /// they are answered. False when no such request lives.
    pub fn abort(&mut self, id: RequestId) -> bool {
        let Some(slot) = self.requests.find(id) else { return false };
        match self.requests[slot].place {
            Place::Waiting { .. } => {
                self.queue.remove(&self.requests[slot]);
                self.requests.remove(slot);
            }
            Place::Running { dp_rank, seat } => self.retire(dp_rank.index(), seat),
            Place::Void => {
                self.requests.remove(slot);
            }
        }
        self.aborted += 1;
        true
    }

    /// Ends a group's epoch: seats, blocks and the steps in flight are void, the next step is step 1 of the next epoch.
    /// Returns the requests that ran there, in order of their start; each stays until it is requeued or aborted.
    pub fn void_group(&mut self, group: GroupId) -> Vec<RequestId> {
        let Some(state) = self.groups.get_mut(group.get() as usize) else { return Vec::new() };
        state.epoch = state.epoch.next();
        state.step = StepId::default();
        state.in_flight.clear();
        let mut lost = Vec::new();
        for member in state.members.iter() {
            let rank = &mut self.ranks[*member];
            for seat in rank.running.clone() {
                let request = &mut self.requests[rank.slot(seat)];
                rank.on_mut(seat).in_flight = 0;
                rank.unseat(seat, request);
                lost.push(request.id);
            }
            rank.void_leaving();
            rank.releases.clear();
            rank.blocks.forget();
        }
        lost
    }

    /// Sends a request that [`Self::void_group`] returned back to the queue, with every token it emitted. False when
    /// it is not such a request.
    pub fn requeue(&mut self, id: RequestId) -> bool {
        let Some(slot) = self.requests.find(id) else { return false };
        let request = &mut self.requests[slot];
        if !matches!(request.place, Place::Void) {
            return false;
        }
        request.place = Place::Waiting { resumes: true };
        self.queue.push(slot, request);
        true
    }

    /// Whether requests may start on a rank. What runs there goes on. Ranks that do not exist are ignored.
    pub fn set_available(&mut self, dp_rank: DpRank, available: bool) {
        if let Some(rank) = self.ranks.get_mut(dp_rank.index()) {
            rank.available = available;
        }
    }

    /// Whether a rank rests: nothing starts or runs there, and what ran keeps its seat and its KV blocks until it goes
    /// on. A resting rank is one without rows. Ranks that do not exist are ignored.
    pub fn set_paused(&mut self, dp_rank: DpRank, paused: bool) {
        if let Some(rank) = self.ranks.get_mut(dp_rank.index()) {
            rank.paused = paused;
        }
    }

    /// Whether requests have seats on a rank, or blocks that a step in flight may still write.
    pub fn is_running(&self, dp_rank: DpRank) -> bool {
        self.ranks.get(dp_rank.index()).is_some_and(|rank| !rank.running.is_empty() || !rank.leaving.is_empty())
    }

    /// Whether a step in flight runs a request of this rank.
    pub fn is_stepping(&self, dp_rank: DpRank) -> bool {
        let steps = |rank: &Rank| {
            let mut running = rank.running.iter();
            !rank.leaving.is_empty() || running.any(|seat| rank.on(*seat).in_flight > 0)
        };
        self.ranks.get(dp_rank.index()).is_some_and(steps)
    }

    /// The configuration.
    pub const fn config(&self) -> &Config {
        &self.config
    }

    /// A group's epoch; nothing when the group does not exist.
    pub fn epoch(&self, group: GroupId) -> Option<Epoch> {
        self.groups.get(group.get() as usize).map(|state| state.epoch)
    }

    /// The steps of a group that some rank has not answered, the oldest first.
    pub fn in_flight(&self, group: GroupId) -> impl Iterator<Item = StepId> {
        let group = self.groups.get(group.get() as usize);
        group.into_iter().flat_map(|group| &group.in_flight).map(|in_flight| in_flight.step)
    }

    /// The rows of a group's newest step whose masks follow, rank by rank in the plan's order. Asked before anything is
    /// committed or aborted after the plan.
    pub fn masked_rows(&self, group: GroupId) -> Vec<MaskedRow> {
        let state = self.groups.get(group.get() as usize);
        let Some((state, in_flight)) = state.and_then(|state| Some((state, state.in_flight.back()?))) else {
            return Vec::new();
        };
        let mut masked = Vec::new();
        for ((dp_rank, member), sent) in state.dp_ranks.iter().zip(state.members.iter()).zip(&in_flight.rows) {
            let rank = &self.ranks[*member];
            if rank.constrained == 0 {
                continue;
            }
            let rows = sent.iter().flat_map(SentRows::iter).filter(|row| row.is_masked);
            masked.extend(rows.map(|row| MaskedRow {
                dp_rank: *dp_rank,
                id: self.requests[rank.slot(row.seat)].id,
                seat: row.seat,
                generation: row.generation,
                drafts: row.drafts,
            }));
        }
        masked
    }

    /// Who sits on a seat in this life of it.
    pub fn request_on(&self, dp_rank: DpRank, seat: Seat, generation: SeatGeneration) -> Option<RequestId> {
        let rank = self.ranks.get(dp_rank.index())?;
        let seated = rank.seated.get(seat.index())?;
        let sits = seated.is_taken() && seated.generation == generation;
        sits.then(|| self.requests[seated.slot].id)
    }

    /// The oldest step that a rank has not answered: the masks of its rows are due (rule 19).
    pub fn oldest_owed(&self, dp_rank: DpRank) -> Option<(Epoch, StepId)> {
        let group = &self.groups[self.ranks.get(dp_rank.index())?.group];
        let index = group.dp_ranks.iter().position(|other| *other == dp_rank)?;
        let owed = group.in_flight.iter().find(|in_flight| in_flight.rows[index].is_some())?;
        Some((group.epoch, owed.step))
    }

    /// Most drafts of a row that a group's newest step could verify, by the load before it; k before the first step.
    pub fn k_by_load(&self, group: GroupId) -> Option<u32> {
        self.groups.get(group.get() as usize).map(|state| state.k_by_load)
    }

    /// Why a group's newest step is what it is.
    pub fn explanation(&self, group: GroupId) -> Option<&Explanation> {
        self.groups.get(group.get() as usize)?.explanation.as_ref()
    }

    /// Where a request runs; nothing while it waits or when it does not live.
    pub fn dp_rank_of(&self, id: RequestId) -> Option<DpRank> {
        match self.requests[self.requests.find(id)?].place {
            Place::Running { dp_rank, .. } => Some(dp_rank),
            Place::Waiting { .. } | Place::Void => None,
        }
    }

    /// Tokens that a live request read from the prefix cache when it first started; nothing before.
    pub fn cached_tokens(&self, id: RequestId) -> Option<u32> {
        self.requests[self.requests.find(id)?].cached_tokens
    }

    /// Whether changes of every rank's prefix cache are kept until they are fetched, from now on.
    pub fn follow_cache(&mut self, follow: bool) {
        self.ranks.iter_mut().for_each(|rank| rank.blocks.cache.log.follow(follow));
    }

    /// Changes of a rank's prefix cache since the last call, in order, and how many were missed after them because too
    /// many had come. Nothing when the rank does not exist.
    pub fn take_cache_changes(&mut self, dp_rank: DpRank) -> Option<(Vec<CacheChange>, u64)> {
        self.ranks.get_mut(dp_rank.index()).map(|rank| rank.blocks.cache.log.take())
    }

    /// Forgets every cached prefix. Requests that run keep the blocks that they hold.
    pub fn reset_prefix_cache(&mut self) {
        self.ranks.iter_mut().for_each(|rank| rank.blocks.forget());
    }

    /// Counters and what is where now.
    pub fn stats(&self) -> Stats {
        let ranks: Vec<RankStats> = self.ranks.iter().map(|rank| self.rank_stats(rank)).collect();
        let seated: usize = self.ranks.iter().map(|rank| rank.running.len()).sum();
        Stats {
            ranks,
            waiting: self.queue.len() as u32,
            waiting_tokens: self.queue.tokens(),
            void: (self.requests.len() - self.queue.len() - seated) as u32,
            submitted: self.submitted,
            refused: self.refused,
            aborted: self.aborted,
            finished: self.finished,
            balance_real_tokens: self.balance_real_tokens,
            balance_largest_tokens: self.balance_largest_tokens,
        }
    }

    /// Recounts everything that is kept incrementally.
    ///
    /// # Panics
    /// When a count is off: a fault of the scheduler.
    pub fn assert_consistent(&self) {
        for rank in &self.ranks {
            check::recount(rank, &self.requests, &self.config.limits);
        }
        let waiting: u64 = self.queue.iter().map(|slot| u64::from(self.requests[slot].known())).sum();
        assert_eq!(waiting, self.queue.tokens(), "tokens of the queue");
    }

    fn rank_stats(&self, rank: &Rank) -> RankStats {
        RankStats {
            dp_rank: rank.dp_rank,
            running: rank.running.len() as u32,
            blocks_used: rank.blocks.held(),
            blocks_cached: rank.blocks.cache.idle(),
            blocks_total: rank.blocks.total(),
            load_tokens: rank.load(&self.config.limits).tokens(),
            counters: RankCounters { blocks_evicted: rank.blocks.cache.evicted, ..rank.counters.clone() },
        }
    }

    fn admissible(&self, spec: &RequestSpec) -> Result<(), Refusal> {
        let limits = &self.config.limits;
        let (prompt, most) = (spec.prompt.len() as u64, u64::from(limits.max_model_len));
        let total = prompt + u64::from(spec.max_new_tokens);
        if prompt == 0 {
            return Err(Refusal::EmptyPrompt);
        }
        if prompt >= most {
            return Err(Refusal::PromptTooLong { most: most - 1, got: prompt });
        }
        if spec.max_new_tokens == 0 {
            return Err(Refusal::NothingToGenerate);
        }
        let pool = u64::from(limits.num_blocks) * u64::from(limits.block_size);
        let never_fits =
            |got| Refusal::NeverFits { most: pool, got, blocks: limits.num_blocks, block_size: limits.block_size };
        if prompt > pool {
            return Err(never_fits(prompt));
        }
        if total > most {
            let max_new_tokens = spec.max_new_tokens.into();
            return Err(Refusal::TotalTooLong { prompt, max_new_tokens, most, got: total });
        }
        if total - 1 > pool {
            return Err(never_fits(total - 1));
        }
        token_ids_exist("prompt", &spec.prompt, limits.vocab_size)?;
        token_ids_exist("stop_token_ids", &spec.stop_token_ids, limits.vocab_size)?;
        if let Some(got) = spec.pinned.filter(|dp_rank| dp_rank.index() >= self.ranks.len()) {
            return Err(Refusal::UnknownRank { ranks: self.ranks.len() as u64, got });
        }
        if self.requests.find(spec.id).is_some() {
            return Err(Refusal::DuplicateId { id: spec.id });
        }
        self.queue_has_room(prompt)
    }

    /// Requests that free seats can take at once do not count as waiting.
    fn queue_has_room(&self, prompt: u64) -> Result<(), Refusal> {
        let limits = self.config.queue;
        let open = self.ranks.iter().filter(|rank| rank.available && !rank.paused);
        let seats_free = open.map(|rank| self.config.limits.max_num_seqs as usize - rank.running.len()).sum::<usize>();
        let waiting = self.queue.len().saturating_sub(seats_free) as u64;
        if self.queue.len() < seats_free {
            return Ok(());
        }
        if let Some(most) = limits.requests.map(u64::from)
            && waiting >= most
        {
            return Err(Refusal::QueueFullRequests { most, waiting });
        }
        if let Some(most) = limits.tokens {
            let starting = self.queue.iter().take(seats_free).map(|slot| u64::from(self.requests[slot].known()));
            let waiting = self.queue.tokens() - starting.sum::<u64>();
            if waiting + prompt > most {
                return Err(Refusal::QueueFullTokens { most, waiting, got: prompt });
            }
        }
        Ok(())
    }
}

fn token_ids_exist(field: &'static str, token_ids: &[u32], vocab_size: u32) -> Result<(), Refusal> {
    match token_ids.iter().enumerate().find(|(_, token)| **token >= vocab_size) {
        Some((index, got)) => Err(Refusal::TokenId { field, index: index as u64, vocab_size, got: *got }),
        None => Ok(()),
    }
}
