//! What the scheduler holds for one rank, and the two ways off it: for good, or back to the queue.

use std::collections::BTreeMap;

use paceline_plan::{DpRank, Release, Seat, SeatGeneration, WorkerLimits};

use crate::blocks::BlockPool;
use crate::keys::BlockKey;
use crate::queue::Queue;
use crate::request::{Place, Request, Requests, Seated, Slot};
use crate::seats::SeatPool;
use crate::stats::RankCounters;
use crate::{Config, Drafter};

/// What is left of a request on a rank that it is not on any more, until no step in flight runs it.
#[derive(Clone, Debug)]
pub(crate) struct Leaving {
    pub(crate) seat: Seat,
    pub(crate) generation: SeatGeneration,
    pub(crate) in_flight: u32,
    pub(crate) blocks: Vec<u32>,
}

#[derive(Clone, Debug)]
pub(crate) struct Rank {
    pub(crate) dp_rank: DpRank,
    /// Index of its group.
    pub(crate) group: usize,
    /// Whether requests may start here.
    pub(crate) available: bool,
    pub(crate) seats: SeatPool,
    pub(crate) blocks: BlockPool,
    /// In order of their start.
    pub(crate) running: Vec<Slot>,
    /// Requests that left while steps that run them are in flight: their blocks may still be written (rule 11).
    pub(crate) leaving: Vec<Leaving>,
    /// Seats that the worker still has to be told are free; sent with the next step in which this rank has rows.
    pub(crate) releases: Vec<Release>,
    /// Number of the placement that was the last one here; ties go to the rank that waited longest.
    pub(crate) last_placed: u64,
    pub(crate) counters: RankCounters,
}

impl Rank {
    pub(crate) fn new(dp_rank: DpRank, group: usize, config: &Config) -> Self {
        let limits = &config.limits;
        Self {
            dp_rank,
            group,
            available: true,
            seats: SeatPool::new(limits.seats),
            blocks: BlockPool::new(limits.num_blocks, config.prefix_cache.is_some()),
            running: Vec::new(),
            leaving: Vec::new(),
            releases: Vec::new(),
            last_placed: 0,
            counters: RankCounters::new(config.k),
        }
    }

    /// Puts a waiting request on a seat with no block yet. Its place in the queue must be gone already.
    pub(crate) fn seat(&mut self, slot: Slot, request: &mut Request, tick: u64) {
        let (seat, generation) = self.seats.take().expect("a request starts on a rank with a free seat");
        request.place = Place::Running(Seated {
            dp_rank: self.dp_rank,
            seat,
            generation,
            told: false,
            computed: 0,
            start_max: 0,
            prompt_end: request.known(),
            fed: 0,
            blocks: Vec::new(),
            blocks_told: 0,
            published: 0,
            proposed: 0,
            proposing: 0,
            last_run: tick,
            in_flight: 0,
            giving: 0,
        });
        self.running.push(slot);
    }

    /// Takes a request off its seat; its place is void. The seat is free for another generation at once, the blocks when
    /// no step in flight runs the request (rule 11).
    pub(crate) fn unseat(&mut self, slot: Slot, request: &mut Request) {
        let Place::Running(seated) = std::mem::replace(&mut request.place, Place::Void) else {
            panic!("only a running request leaves a seat");
        };
        let Seated { seat, generation, in_flight, blocks, told, .. } = seated;
        if in_flight == 0 {
            self.blocks.give_back(&blocks);
        } else {
            self.leaving.push(Leaving { seat, generation, in_flight, blocks });
        }
        self.seats.give_back(seat);
        if told {
            self.releases.push(Release { seat, generation });
        }
        self.running.retain(|other| *other != slot);
    }

    /// A step is answered that ran a request which is not on this seat any more.
    ///
    /// # Panics
    /// When no such request is leaving: a fault of the scheduler.
    pub(crate) fn answered_for(&mut self, seat: Seat, generation: SeatGeneration) {
        let index = self.leaving.iter().position(|left| left.seat == seat && left.generation == generation);
        let index = index.expect("a row in flight is of a request that runs or leaves");
        self.leaving[index].in_flight -= 1;
        if self.leaving[index].in_flight == 0 {
            let left = self.leaving.swap_remove(index);
            self.blocks.give_back(&left.blocks);
        }
    }

    /// No step is in flight any more: what the requests held that were leaving is free.
    pub(crate) fn void_leaving(&mut self) {
        for left in std::mem::take(&mut self.leaving) {
            self.blocks.give_back(&left.blocks);
        }
    }

    /// Blocks that will be free when the steps in flight are answered.
    pub(crate) fn blocks_coming(&self) -> u32 {
        let mut lost: BTreeMap<u32, u32> = BTreeMap::new();
        for block in self.leaving.iter().flat_map(|left| &left.blocks) {
            *lost.entry(*block).or_default() += 1;
        }
        lost.iter().filter(|(block, lost)| self.blocks.holders(**block) == **lost).count() as u32
    }

    /// What a request would find in the prefix cache if it started now.
    pub(crate) fn hit(&self, request: &Request, config: &Config) -> Hit {
        let keys = readable_keys(request, config);
        let (matched, held) = self.blocks.matched(keys);
        let blocks = least_sure(matched, request, config);
        if blocks == matched {
            return Hit { blocks, held };
        }
        Hit { blocks, held: self.blocks.matched(&keys[..blocks as usize]).1 }
    }

    /// The blocks of [`Self::hit`] by a quick look, nearly always right.
    pub(crate) fn hit_about(&self, request: &Request, config: &Config) -> u32 {
        let matched = self.blocks.cache.matched_about(readable_keys(request, config)) as u32;
        least_sure(matched, request, config)
    }

    /// Sends a running request back to the queue: its KV is recomputed when it resumes, its tokens are kept.
    pub(crate) fn preempt(&mut self, slot: Slot, requests: &mut Requests, queue: &mut Queue) {
        let request = &mut requests[slot];
        self.unseat(slot, request);
        request.place = Place::Waiting { resumes: true };
        request.preemptions += 1;
        queue.push(slot, request);
        self.counters.preemptions += 1;
    }

    /// Blocks that no running request is going to need soon: free ones, without what prompts that run still lack and
    /// one block for each request that grows past what it holds.
    pub(crate) fn blocks_spare(&self, requests: &Requests, limits: &WorkerLimits) -> u32 {
        let reserved: u32 = self.running.iter().map(|slot| reserve(&requests[*slot], limits)).sum();
        self.blocks.free().saturating_sub(reserved)
    }

    /// Blocks that are left when every running request has grown to its end.
    pub(crate) fn blocks_spare_to_the_end(&self, requests: &Requests, limits: &WorkerLimits) -> u32 {
        let lack = |slot: &Slot| {
            let request = &requests[*slot];
            let longest = limits.blocks_for(request.longest_computed());
            longest.saturating_sub(request.on_seat().blocks.len() as u32)
        };
        self.blocks.free().saturating_sub(self.running.iter().map(lack).sum())
    }

    /// Blocks that prompts which run still lack.
    pub(crate) fn blocks_promised(&self, requests: &Requests, limits: &WorkerLimits) -> u32 {
        self.running.iter().map(|slot| prompt_lack(&requests[*slot], limits)).sum()
    }
}

/// Blocks of a prefix hit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Hit {
    /// All.
    pub(crate) blocks: u32,
    /// Those of them that a running request holds: they cost no room.
    pub(crate) held: u32,
}

/// Names of the blocks that a request may read.
fn readable_keys<'a>(request: &'a Request, config: &Config) -> &'a [BlockKey] {
    // Rule 20: positions whose values are still to be reported are computed.
    if request.report_next.is_some() {
        return &[];
    }
    // One more than may be read: with a drafter, the last one that matches is left out.
    let most = (request.known() - 1) / config.limits.block_size + 1;
    let keys = request.chain.keys();
    &keys[..keys.len().min(most as usize)]
}

/// Rule 18: at least one token is left to compute, and with a drafter that has KV of its own, the last block that
/// matches may lack the drafter's last positions.
fn least_sure(matched: u32, request: &Request, config: &Config) -> u32 {
    let sure = if config.drafter == Drafter::Model { matched.saturating_sub(1) } else { matched };
    sure.min((request.known() - 1) / config.limits.block_size)
}

/// Blocks that a running request's known tokens still lack while its prompt is not computed.
fn prompt_lack(request: &Request, limits: &WorkerLimits) -> u32 {
    let seated = request.on_seat();
    if seated.is_prompt() { limits.blocks_for(seated.prompt_end).saturating_sub(seated.blocks.len() as u32) } else { 0 }
}

fn reserve(request: &Request, limits: &WorkerLimits) -> u32 {
    let held = request.on_seat().blocks.len() as u32;
    let known = limits.blocks_for(request.known_max()).max(held);
    known - held + u32::from(limits.blocks_for(request.longest_computed()) > known)
}
