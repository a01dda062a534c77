//! What the scheduler holds for one rank, and the two ways off it: for good, or back to the queue.

use std::collections::BTreeMap;

use paceline_plan::{DpRank, Release, Seat, SeatGeneration, WorkerLimits};

use crate::blocks::BlockPool;
use crate::keys::BlockKey;
use crate::queue::Queue;
use crate::recent::Recent;
use crate::request::{Place, Request, Requests, Slot, Standing};
use crate::seated::{Load, Seated};
use crate::seats::SeatPool;
use crate::stats::RankCounters;
use crate::{Config, Drafter, RequestId};

/// What is left of a request on a rank that it is not on any more, until no step in flight runs it.
#[derive(Clone, Debug)]
pub(crate) struct Leaving {
    pub(crate) seat: Seat,
    pub(crate) generation: SeatGeneration,
    pub(crate) in_flight: u16,
    pub(crate) blocks: Vec<u32>,
}

#[derive(Clone, Debug)]
pub(crate) struct Rank {
    pub(crate) dp_rank: DpRank,
    /// Index of its group.
    pub(crate) group: usize,
    /// Index in its group.
    pub(crate) place: usize,
    /// Whether requests may start here.
    pub(crate) available: bool,
    /// Whether nothing runs here for now: requests keep their seats and blocks.
    pub(crate) paused: bool,
    /// Requests on its seats whose tokens are masked (rule 19).
    pub(crate) constrained: u32,
    pub(crate) seats: SeatPool,
    pub(crate) blocks: BlockPool,
    /// By seat: the numbers of who sits there.
    pub(crate) seated: Vec<Seated>,
    /// By seat: what answers need, and the tokens that the request does not have yet.
    pub(crate) recent: Vec<Recent>,
    /// By seat: KV blocks, in order.
    pub(crate) tables: Vec<Vec<u32>>,
    /// By seat: who goes first.
    pub(crate) standings: Vec<Standing>,
    /// Seats in order of their requests' start.
    pub(crate) running: Vec<Seat>,
    /// The same, whoever waited longest first, then by standing, while `turns_hold`.
    pub(crate) turns: Vec<Seat>,
    turns_hold: bool,
    /// Sums over `running`, while nothing has changed since they were made.
    load: Option<Load>,
    /// Requests that left while steps that run them are in flight: their blocks may still be written (rule 11).
    pub(crate) leaving: Vec<Leaving>,
    /// Seats that the worker still has to be told are free; sent with the next step in which this rank has rows.
    pub(crate) releases: Vec<Release>,
    /// Requests that were sent back to the queue where no step came of it: told with the next one.
    pub(crate) untold: Vec<RequestId>,
    /// Number of the placement that was the last one here; ties go to the rank that waited longest.
    pub(crate) last_placed: u64,
    pub(crate) counters: RankCounters,
}

/// Most tokens that room is made for when a request starts; one that emits more gets room as it grows.
const ROOM_TOKENS: u32 = 16_384;

impl Rank {
    pub(crate) fn new(dp_rank: DpRank, group: usize, place: usize, config: &Config) -> Self {
        let limits = &config.limits;
        let seats = limits.seats as usize;
        Self {
            dp_rank,
            group,
            place,
            available: true,
            paused: false,
            constrained: 0,
            seats: SeatPool::new(limits.seats),
            blocks: BlockPool::new(limits.num_blocks, config.prefix_cache.is_some()),
            seated: vec![Seated::NOBODY; seats],
            recent: vec![Recent::NOTHING; seats],
            tables: vec![Vec::new(); seats],
            standings: vec![Standing::default(); seats],
            running: Vec::with_capacity(seats),
            turns: Vec::with_capacity(seats),
            turns_hold: true,
            load: None,
            leaving: Vec::new(),
            releases: Vec::new(),
            untold: Vec::new(),
            last_placed: 0,
            counters: RankCounters::new(config.k),
        }
    }

    /// The numbers of a seat.
    pub(crate) fn on(&self, seat: Seat) -> &Seated {
        &self.seated[seat.index()]
    }

    /// The same, to be changed.
    pub(crate) fn on_mut(&mut self, seat: Seat) -> &mut Seated {
        self.load = None;
        &mut self.seated[seat.index()]
    }

    /// What runs changes: sums over it are counted anew when they are needed.
    pub(crate) const fn forget_load(&mut self) {
        self.load = None;
    }

    /// The numbers of all seats, to be changed, and their tables.
    pub(crate) fn parts_mut(&mut self) -> (&mut [Seated], &[Vec<u32>]) {
        self.load = None;
        (&mut self.seated, &self.tables)
    }

    /// Who sits there, while a request runs there.
    pub(crate) fn slot(&self, seat: Seat) -> Slot {
        self.on(seat).slot
    }

    pub(crate) fn standing(&self, seat: Seat) -> Standing {
        self.standings[seat.index()]
    }

    /// Puts a waiting request on a seat with no block yet. Its place in the queue must be gone already.
    pub(crate) fn seat(&mut self, slot: Slot, request: &mut Request, tick: u64, limits: &WorkerLimits) -> Seat {
        let (seat, generation) = self.seats.take().expect("a request starts on a rank with a free seat");
        request.place = Place::Running { dp_rank: self.dp_rank, seat };
        self.constrained += u32::from(request.constrained);
        let (known, end) = (request.known(), request.longest_computed() + 1);
        *self.on_mut(seat) =
            Seated { slot, generation, prompt_end: known, known, end, last_run: tick, ..Seated::NOBODY };
        self.standings[seat.index()] = request.standing();
        self.recent[seat.index()] = Recent::of(request);
        let room = (end - known).min(ROOM_TOKENS);
        request.tokens.reserve(room as usize);
        let blocks = limits.blocks_for((known + room).min(end)) as usize;
        request.chain.make_room(blocks);
        let table = &mut self.tables[seat.index()];
        table.clear();
        table.reserve(blocks);
        self.running.push(seat);
        self.turns.push(seat);
        self.turns_hold = false;
        seat
    }

    /// Takes a request off its seat; its place is void. The seat is free for another generation at once, the blocks when
    /// no step in flight runs the request (rule 11).
    pub(crate) fn unseat(&mut self, seat: Seat, request: &mut Request) {
        request.place = Place::Void;
        self.recent[seat.index()].settle(request);
        self.constrained -= u32::from(request.constrained);
        let Seated { slot, generation, in_flight, blocks_told, .. } =
            std::mem::replace(self.on_mut(seat), Seated::NOBODY);
        assert!(slot != Slot::NONE, "only a running request leaves a seat");
        let blocks = &mut self.tables[seat.index()];
        if in_flight == 0 {
            self.blocks.give_back(blocks);
            blocks.clear();
        } else {
            let blocks = std::mem::take(blocks);
            self.leaving.push(Leaving { seat, generation, in_flight, blocks });
        }
        self.seats.give_back(seat);
        if blocks_told > 0 {
            self.releases.push(Release { seat, generation });
        }
        self.running.retain(|other| *other != seat);
        self.turns.retain(|other| *other != seat);
    }

    /// Takes a running request off its seat for good, and out of the table.
    pub(crate) fn retire(&mut self, seat: Seat, requests: &mut Requests) {
        let slot = self.slot(seat);
        self.unseat(seat, &mut requests[slot]);
        requests.remove(slot);
    }

    /// Puts `turns` in order.
    pub(crate) fn take_turns(&mut self) {
        if self.turns_hold {
            return;
        }
        let Self { turns, seated, standings, .. } = self;
        turns.sort_unstable_by_key(|seat| (seated[seat.index()].last_run, standings[seat.index()]));
    }

    /// A step runs `rows` requests, after which each of them ran last in it. The order of turns holds as long as all run
    /// in every step, since then it is that of their standings.
    pub(crate) fn ran(&mut self, rows: usize, tick: u64) {
        let Self { turns, seated, standings, .. } = self;
        let all_ran = rows == turns.len();
        self.turns_hold = all_ran && (self.turns_hold || turns.is_sorted_by_key(|seat| standings[seat.index()]));
        debug_assert!(!all_ran || turns.iter().all(|seat| seated[seat.index()].last_run == tick));
    }

    /// The blocks of a request.
    pub(crate) fn table(&self, seat: Seat) -> &[u32] {
        &self.tables[seat.index()]
    }

    /// How many blocks of a request no other one holds.
    pub(crate) fn blocks_alone(&self, seat: Seat) -> u32 {
        self.table(seat).iter().filter(|block| self.blocks.holders(**block) == 1).count() as u32
    }

    /// Adds free blocks to a request's.
    ///
    /// # Panics
    /// When fewer can be handed out.
    pub(crate) fn take_blocks(&mut self, seat: Seat, count: u32) {
        if count > 0 {
            self.blocks.take(count, &mut self.tables[seat.index()]);
            self.on_mut(seat).blocks += count;
        }
    }

    /// Gives a request that was just seated its first blocks from the prefix cache, which hold `tokens`.
    pub(crate) fn share_blocks(&mut self, seat: Seat, keys: &[BlockKey], tokens: u32) {
        self.blocks.share(keys, &mut self.tables[seat.index()]);
        let count = keys.len() as u32;
        let seated = self.on_mut(seat);
        (seated.blocks, seated.published) = (count, count);
        (seated.computed, seated.start_max) = (tokens, tokens);
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
    pub(crate) fn preempt(&mut self, seat: Seat, requests: &mut Requests, queue: &mut Queue) {
        let slot = self.slot(seat);
        let request = &mut requests[slot];
        self.unseat(seat, request);
        request.place = Place::Waiting { resumes: true };
        request.preemptions += 1;
        queue.push(slot, request);
        self.counters.preemptions += 1;
    }

    /// Sums over what runs here.
    pub(crate) fn load(&self, limits: &WorkerLimits) -> Load {
        self.load.unwrap_or_else(|| self.count_load(limits))
    }

    /// Counts the sums anew if something has changed since.
    pub(crate) fn keep_load(&mut self, limits: &WorkerLimits) {
        self.load = Some(self.load(limits));
    }

    pub(crate) fn count_load(&self, limits: &WorkerLimits) -> Load {
        let mut load = Load::default();
        self.running.iter().for_each(|seat| load.add(self.on(*seat), limits));
        load
    }

    /// Blocks that no running request is going to need soon: free ones, without what prompts that run still lack and
    /// one block for each request that grows past what it holds.
    pub(crate) fn blocks_spare(&self, limits: &WorkerLimits) -> u32 {
        self.blocks.free().saturating_sub(self.load(limits).reserved)
    }

    /// Blocks that are left when every running request has grown to its end.
    pub(crate) fn blocks_spare_to_the_end(&self, limits: &WorkerLimits) -> u32 {
        self.blocks.free().saturating_sub(self.load(limits).lack_to_the_end)
    }

    /// Blocks that prompts which run still lack.
    pub(crate) fn blocks_promised(&self, limits: &WorkerLimits) -> u32 {
        self.running.iter().map(|seat| self.on(*seat).prompt_lack(limits)).sum()
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
