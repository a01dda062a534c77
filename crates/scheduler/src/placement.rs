//! Where waiting requests start: late binding. A request stays in the one queue until a rank can start it now, and goes
//! to the rank with the least load in tokens.

use paceline_plan::{Seat, WorkerLimits};

use crate::choice::{Candidate, Choice, Key};
use crate::rank::Rank;
use crate::request::{Place, Request, Requests, Slot};
use crate::seated::Load;
use crate::selection::Selection;
use crate::{Config, PlacementReason};

/// What placement knows of a rank, counting what it has already given it in this round.
#[derive(Clone, Copy, Debug)]
struct View {
    /// Index in the group that is being planned; nothing when the rank is in another group.
    index: Option<usize>,
    open: bool,
    seats: u32,
    blocks: u32,
    /// Whether requests leave in this round to make room.
    some_leave: bool,
    /// Whether requests start in this round on blocks that others hold.
    some_share: bool,
    /// Blocks at their longest of what was started here in this round.
    blocks_started: u32,
    budget: u32,
    /// Tokens of one request's chunk at most.
    longest_chunk: u32,
    /// Tokens of prompts that run here or were started in this round.
    prompt_tokens: u32,
    load_tokens: u64,
    requests: u32,
    last_placed: u64,
}

/// Tokens that a rank of another group is likely to have left in its next step.
fn budget_expected(load: &Load, limits: &WorkerLimits, query_len: u32) -> u32 {
    let taken = load.prompt_left + u64::from(load.decoding) * u64::from(query_len);
    u32::try_from(u64::from(limits.max_num_batched_tokens).saturating_sub(taken)).unwrap_or(0)
}

/// A request that starts now, and where.
#[derive(Clone, Debug)]
pub(crate) struct Start {
    pub(crate) slot: Slot,
    /// Its rank's index in the group.
    pub(crate) index: usize,
    /// Tokens of it that are to be computed.
    pub(crate) tokens: u32,
    /// Requests of lower priority that make room for it.
    pub(crate) victims: Vec<Seat>,
    /// Whether it waits for the blocks of requests that leave while steps in flight run them.
    pub(crate) waits: bool,
    pub(crate) reason: PlacementReason,
}

/// What the queue is told of a round.
#[derive(Clone, Debug, Default)]
pub(crate) struct Chosen {
    /// In order.
    pub(crate) starts: Vec<Start>,
    /// Requests that were overtaken, and how often they have been now.
    pub(crate) skipped: Vec<(Slot, u32)>,
}

/// Differences of less than this in a round's prompt tokens do not count.
const ALIGNED_TOKENS: u32 = 1_024;

/// Most waiting requests that are looked at past the first that fits nowhere.
const LOOKED_AT_MAX: usize = 256;

/// The requests that start now in the group `members`.
///
/// First come, first served: a request that no rank can take closes the ranks that it may go to for those behind it,
/// at once or when as many as the skip policy allows have overtaken it. One whose best rank is in another group stays
/// in the queue for that group's plan, unless a rank of this group has nothing to do until then.
pub(crate) struct Placement<'a> {
    pub(crate) ranks: &'a [Rank],
    pub(crate) requests: &'a Requests,
    pub(crate) config: &'a Config,
    pub(crate) query_len: u32,
    /// Requests that wait.
    pub(crate) waiting: usize,
    /// Index of the group that is planned.
    pub(crate) group: usize,
    /// The rows of its ranks so far.
    pub(crate) selections: &'a [Selection],
    /// By group, whether a step of it is not answered yet.
    pub(crate) in_flight: &'a [bool],
}

/// A rank for a request.
#[derive(Clone, Debug, Default)]
struct Offer {
    position: usize,
    /// Blocks that it takes from what is spare.
    blocks: u32,
    hit_tokens: u32,
    victims: Vec<Seat>,
    waits: bool,
    reason: PlacementReason,
}

impl Placement<'_> {
    pub(crate) fn choose(&self, waiting: impl Iterator<Item = Slot>) -> Chosen {
        let mut waiting = waiting.peekable();
        let mut chosen = Chosen::default();
        if waiting.peek().is_none() {
            return chosen;
        }
        let mut views: Vec<View> = (0..self.ranks.len()).map(|position| self.view(position)).collect();
        let mut placed = self.ranks.iter().map(|rank| rank.last_placed).max().unwrap_or(0);
        let preempts = self.config.policies.priority && self.config.policies.priority_preempts;
        for slot in waiting {
            let some_takes = views.iter().any(|view| view.index.is_some() && takes_any(view));
            if (!some_takes && !preempts) || chosen.skipped.len() > LOOKED_AT_MAX {
                break;
            }
            if !views.iter().any(|view| view.index.is_some() && view.open) {
                break;
            }
            let request = &self.requests[slot];
            if self.waits_for_prompt(request) {
                continue;
            }
            let offer = self.best(request, &views);
            let offer = offer.or_else(|| if preempts { self.by_preemption(request, &views, &chosen) } else { None });
            let Some(offer) = offer else {
                self.pass_over(slot, &mut views, &mut chosen);
                continue;
            };
            placed += 1;
            self.accept(slot, offer, placed, &mut views, &mut chosen);
        }
        chosen
    }

    /// A choice of one call waits until the first one's prompt can be read from the cache.
    fn waits_for_prompt(&self, request: &Request) -> bool {
        let first = request.shares_prompt_with.filter(|_| self.config.prefix_cache.is_some());
        let first = first.and_then(|id| self.requests.find(id)).map(|slot| &self.requests[slot]);
        first.is_some_and(|first| self.known(first) == first.prompt_len)
    }

    fn known(&self, request: &Request) -> u32 {
        match request.place {
            Place::Running { dp_rank, seat } => self.ranks[dp_rank.index()].on(seat).known,
            Place::Waiting { .. } | Place::Void => request.known(),
        }
    }

    /// The rank with the least to do before it has done this too, among those that have room for it. An empty rank waits
    /// for none that may not take the request after all (rule 12): what a rank of another group has to spare is certain
    /// only while no row of its own and no step in flight can take it first.
    fn best(&self, request: &Request, views: &[View]) -> Option<Offer> {
        let (mut any, mut at_once) = (Choice::default(), Choice::default());
        let mut one_is_empty = false;
        for (position, view) in views.iter().enumerate() {
            if !may_go(request, position) || !takes_any(view) {
                continue;
            }
            let Some(blocks) = self.fits(request, position, view) else { continue };
            let hit_tokens = self.ranks[position].hit_about(request, self.config) * self.config.limits.block_size;
            let (key, uncached) = (self.key(request, view, hit_tokens), self.key(request, view, 0));
            let prompt_tokens = view.prompt_tokens;
            let candidate = Candidate { position, blocks, hit_tokens, prompt_tokens, key, uncached };
            any.consider(candidate);
            let is_certain = view.requests == 0 && !self.in_flight[self.ranks[position].group];
            if view.index.is_some() || is_certain {
                at_once.consider(candidate);
            }
            one_is_empty |= view.index.is_some() && view.requests == 0;
        }
        let choice = if one_is_empty { at_once } else { any };
        let (best, reason) = choice.decide(request.pinned.is_some())?;
        let Candidate { position, blocks, hit_tokens, .. } = best;
        Some(Offer { position, blocks, hit_tokens, reason, ..Offer::default() })
    }

    /// What a rank is compared by for a request of which so many tokens are cached there.
    fn key(&self, request: &Request, view: &View, hit_tokens: u32) -> Key {
        let policies = &self.config.policies;
        let left = if policies.prefix_affinity { request.known() - hit_tokens } else { 0 };
        let load = if policies.load_in_tokens { view.load_tokens } else { view.requests.into() };
        // With alignment, the prompts of a step are spread before the loads are.
        let prompts = policies.alignment.map_or(0, |_| view.prompt_tokens / ALIGNED_TOKENS);
        Key { prompts, load: load + u64::from(left), requests: view.requests, last_placed: view.last_placed }
    }

    /// Blocks that a request takes from what a rank has to spare; nothing when that is not enough.
    fn fits(&self, request: &Request, position: usize, view: &View) -> Option<u32> {
        let limits = &self.config.limits;
        let rank = &self.ranks[position];
        let alone = view.requests == 0;
        // Who was sent back before is not to be sent back again and again: it starts where it can end.
        let to_the_end = request.preemptions > self.config.policies.preemptions_free && !alone;
        let (last, spare) = if to_the_end {
            let started = view.blocks_started;
            let spare = rank.blocks_spare_to_the_end(limits).saturating_sub(started);
            (request.longest_computed(), spare.min(view.blocks))
        } else {
            (request.known(), view.blocks)
        };
        let spare = if alone { spare } else { spare.saturating_sub(self.config.policies.watermark_blocks) };
        let needed = limits.blocks_for(last);
        if needed <= spare {
            return Some(needed);
        }
        // Blocks of a prefix that others hold cost nothing, as long as nobody leaves.
        let held = if self.config.prefix_cache.is_some() && !view.some_leave {
            rank.hit(request, self.config).held
        } else {
            0
        };
        (needed - held.min(needed) <= spare).then_some(needed - held.min(needed))
    }

    /// The rank on which the fewest requests of lower priority make room; none leaves when that would not be enough.
    fn by_preemption(&self, request: &Request, views: &[View], chosen: &Chosen) -> Option<Offer> {
        let mut best: Option<Offer> = None;
        for (position, view) in views.iter().enumerate() {
            if view.index.is_none() || !view.open || view.some_share || !may_go(request, position) {
                continue;
            }
            let Some(offer) = self.with_victims(request, position, view, chosen) else { continue };
            if best.as_ref().is_none_or(|other| offer.victims.len() < other.victims.len()) {
                best = Some(offer);
            }
        }
        best
    }

    fn with_victims(&self, request: &Request, position: usize, view: &View, chosen: &Chosen) -> Option<Offer> {
        let rank = &self.ranks[position];
        let place = rank.place;
        let taken =
            |seat: &Seat| chosen.starts.iter().any(|start| start.index == place && start.victims.contains(seat));
        let lower = rank.running.iter().copied();
        let lower = lower.filter(|seat| rank.standing(*seat).0 > request.priority && !taken(seat));
        let mut lower: Vec<Seat> = lower.collect();
        lower.sort_by_key(|seat| std::cmp::Reverse(rank.standing(*seat)));
        let mut view = *view;
        view.budget = view.budget.max(1);
        view.some_leave = true;
        let mut victims = Vec::new();
        let coming = rank.blocks_coming();
        let mut waits = coming > 0;
        if coming > 0 {
            // Rule 11: while what is coming is enough, nobody else leaves.
            view.blocks += coming;
            if view.seats > 0
                && let Some(blocks) = self.fits(request, position, &view)
            {
                return Some(Offer { position, blocks, waits, ..Offer::default() });
            }
        }
        for seat in lower {
            waits |= rank.on(seat).in_flight > 0;
            view.seats += 1;
            view.requests = view.requests.saturating_sub(1);
            view.blocks += rank.blocks_alone(seat);
            victims.push(seat);
            if let Some(blocks) = self.fits(request, position, &view) {
                let reason = PlacementReason::Priority { victims: victims.len() as u32 };
                return Some(Offer { position, blocks, hit_tokens: 0, victims, waits, reason });
            }
        }
        None
    }

    /// A request that fits nowhere: it may be overtaken for a while.
    fn pass_over(&self, slot: Slot, views: &mut [View], chosen: &mut Chosen) {
        let request = &self.requests[slot];
        if request.skips < self.config.policies.skips_max {
            chosen.skipped.push((slot, request.skips));
        } else {
            close(request, views);
        }
    }

    fn accept(&self, slot: Slot, offer: Offer, placed: u64, views: &mut [View], chosen: &mut Chosen) {
        let request = &self.requests[slot];
        let Offer { position, blocks, hit_tokens, victims, waits, reason } = offer;
        let needed = self.config.limits.blocks_for(request.known());
        let grows = self.config.limits.blocks_for(request.longest_computed()) > needed;
        let view = &mut views[position];
        view.last_placed = placed;
        let left = request.known() - hit_tokens;
        view.seats = (view.seats + victims.len() as u32).saturating_sub(1);
        view.some_leave |= !victims.is_empty();
        view.some_share |= blocks < needed;
        for victim in &victims {
            // Blocks that are yet to come are nobody's in this round.
            view.blocks += if waits { 0 } else { self.ranks[position].blocks_alone(*victim) };
            view.requests -= 1;
        }
        view.blocks = view.blocks.saturating_sub(blocks + u32::from(grows));
        view.blocks_started += self.config.limits.blocks_for(request.longest_computed());
        view.budget = view.budget.saturating_sub(left.min(view.longest_chunk));
        view.prompt_tokens = view.prompt_tokens.saturating_add(left);
        view.load_tokens += u64::from(request.known()) + u64::from(left);
        view.requests += 1;
        let Some(index) = view.index else { return };
        chosen.starts.push(Start { slot, index, tokens: left, victims, waits, reason });
        if waits {
            return;
        }
        for (skipped, skips) in &mut chosen.skipped {
            let earlier = &self.requests[*skipped];
            if may_go(earlier, position) {
                *skips += 1;
                if *skips >= self.config.policies.skips_max {
                    close(earlier, views);
                }
            }
        }
    }

    /// A rank that holds a running request back takes no new one.
    fn view(&self, position: usize) -> View {
        let (rank, limits, policies) = (&self.ranks[position], &self.config.limits, &self.config.policies);
        let load = rank.load(limits);
        let index = (rank.group == self.group).then_some(rank.place);
        let budget = index.map_or_else(
            || budget_expected(&load, limits, self.query_len),
            |index| if self.selections[index].held.is_empty() { self.selections[index].budget_left } else { 0 },
        );
        let requests = rank.running.len() as u32;
        View {
            index,
            open: rank.available && !rank.paused,
            seats: limits.max_num_seqs.saturating_sub(requests),
            blocks: rank.blocks_spare(limits),
            some_leave: false,
            some_share: false,
            blocks_started: 0,
            budget,
            longest_chunk: policies.longest_chunk(limits.max_num_batched_tokens, rank.running.len() + self.waiting),
            prompt_tokens: u32::try_from(load.prompt_left).unwrap_or(u32::MAX),
            load_tokens: load.tokens(),
            requests,
            last_placed: rank.last_placed,
        }
    }
}

/// Whether some request could start here now.
const fn takes_any(view: &View) -> bool {
    view.open && view.seats > 0 && view.budget > 0 && view.blocks > 0
}

fn may_go(request: &Request, position: usize) -> bool {
    request.pinned.is_none_or(|dp_rank| dp_rank.index() == position)
}

/// Nobody behind this request starts where it may go.
fn close(request: &Request, views: &mut [View]) {
    for (position, view) in views.iter_mut().enumerate() {
        view.open &= !may_go(request, position);
    }
}
