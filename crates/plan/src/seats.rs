//! The worker's mirror of its seats: applies a plan's deltas after checking them against what the worker knows.
//!
//! It is the second end of every check: [`crate::check_rank`] looks at the plan alone, [`SeatTable::begin`] looks at
//! the plan beside the worker's own state. A plan that disagrees is refused, never repaired (rule 13), and nothing
//! more is accepted until [`SeatTable::reset`] starts a new epoch.
//!
//! It does not run a model and does not sample.

mod rows;
mod state;

use crate::error::{check_at_least, check_at_most, check_equal};
use crate::{
    Admission, BlockAppend, BlockId, DpRank, Epoch, Error, Feed, GroupId, GroupPart, LogitsWanted, Mask, RankPart,
    Release, Row, RowDrafts, RowReply, Seat, SeatGeneration, StepId, StepReply, WorkerLimits, check_rank, digest,
    from_bytes,
};

pub use state::{RowOutcome, SeatState};

/// Which step an envelope says it carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepHeader {
    /// The lockstep group.
    pub group: GroupId,
    /// The life of its process groups.
    pub epoch: Epoch,
    /// The step.
    pub step: StepId,
    /// Digest of the group part's bytes.
    pub digest: u64,
}

/// A plan that has passed every check and whose deltas are applied.
#[derive(Clone, Debug)]
pub struct WorkerStep {
    /// What the envelope said.
    pub header: StepHeader,
    /// The group's decisions.
    pub group: GroupPart,
    /// This rank's part.
    pub rank: RankPart,
    /// Index of this rank in the group.
    pub rank_index: usize,
}

/// The worker's seats and the owners of its blocks.
#[derive(Clone, Debug)]
pub struct SeatTable {
    limits: WorkerLimits,
    /// Lm: layers of the drafter that has KV of its own; 0 without one.
    drafter_layers: u32,
    /// Steps that plans may be made ahead of their replies (rule 16).
    depth: u32,
    group_dp_ranks: Vec<DpRank>,
    rank_index: usize,
    epoch: Epoch,
    next_step: StepId,
    refused: bool,
    seats: Vec<Option<SeatState>>,
    /// Per seat, the generation that comes next at the earliest.
    generations: Vec<SeatGeneration>,
    /// Per block, how many seats hold it.
    block_holders: Vec<u32>,
}

impl SeatTable {
    /// An empty table for epoch 0, which accepts no step before [`Self::reset`].
    ///
    /// # Errors
    /// Rule 1 when `dp_rank` is not in the group.
    pub fn new(limits: WorkerLimits, dp_rank: DpRank, group_dp_ranks: Vec<DpRank>) -> Result<Self, Error> {
        let rank_index = group_dp_ranks.iter().position(|other| *other == dp_rank).ok_or(Error::rule(
            1,
            "dp_rank in the group",
            -1,
            dp_rank.get(),
        ))?;
        Ok(Self {
            limits,
            drafter_layers: 0,
            depth: 0,
            group_dp_ranks,
            rank_index,
            epoch: Epoch::default(),
            next_step: StepId::new(1),
            refused: false,
            seats: vec![None; limits.seats as usize],
            generations: vec![SeatGeneration::default(); limits.seats as usize],
            block_holders: vec![0; limits.num_blocks as usize + 1],
        })
    }

    /// The same table for a worker whose drafter has KV in `drafter_layers` layers: chunks that do not end what is
    /// known come with the tokens that its last positions need (rule 18).
    #[must_use]
    pub const fn with_drafter_layers(mut self, drafter_layers: u32) -> Self {
        self.drafter_layers = drafter_layers;
        self
    }

    /// The same table for a group whose plans are made up to `depth` steps ahead of their replies (rule 16).
    #[must_use]
    pub const fn with_depth(mut self, depth: u32) -> Self {
        self.depth = depth;
        self
    }

    /// Starts an epoch: every seat and block is void.
    pub fn reset(&mut self, epoch: Epoch) {
        self.epoch = epoch;
        self.next_step = StepId::new(1);
        self.refused = false;
        self.seats.fill(None);
        self.generations.fill(SeatGeneration::default());
        self.block_holders.fill(0);
    }

    /// The sizes that plans must keep to.
    pub const fn limits(&self) -> &WorkerLimits {
        &self.limits
    }

    /// Layers of the drafter that has KV of its own; 0 without one.
    pub const fn drafter_layers(&self) -> u32 {
        self.drafter_layers
    }

    /// Seats that hold a request.
    pub fn occupied(&self) -> usize {
        self.seats.iter().flatten().count()
    }

    /// What is known of the request on `seat`.
    pub fn seat(&self, seat: Seat) -> Option<&SeatState> {
        self.seats.get(seat.index())?.as_ref()
    }

    /// Decodes a plan, checks it and applies its deltas.
    ///
    /// # Errors
    /// The broken rule with both numbers. From then on every plan of this epoch is refused.
    pub fn begin(&mut self, header: StepHeader, group_part: &[u8], rank_part: &[u8]) -> Result<WorkerStep, Error> {
        if self.refused {
            return Err(Error::rule(13, "refusals in this epoch", 0, 1));
        }
        let result = self.check_and_apply(header, group_part, rank_part);
        self.refused = result.is_err();
        result
    }

    fn check_and_apply(
        &mut self,
        header: StepHeader,
        group_part: &[u8],
        rank_part: &[u8],
    ) -> Result<WorkerStep, Error> {
        check_equal(13, "epoch", self.epoch.get().into(), header.epoch.get().into())?;
        check_equal(13, "step", self.next_step.get().cast_signed(), header.step.get().cast_signed())?;
        check_equal(11, "digest", digest(group_part).cast_signed(), header.digest.cast_signed())?;
        let group: GroupPart = from_bytes(group_part)?;
        let rank: RankPart = from_bytes(rank_part)?;
        check_equal(11, "group of the body", header.group.get().into(), group.group().get().into())?;
        check_equal(11, "epoch of the body", header.epoch.get().into(), group.epoch().get().into())?;
        check_equal(11, "step of the body", header.step.get().cast_signed(), group.step().get().cast_signed())?;
        check_equal(1, "ranks of the group", self.group_dp_ranks.len() as i64, group.dp_ranks().len() as i64)?;
        for (mine, theirs) in self.group_dp_ranks.iter().zip(group.dp_ranks()) {
            check_equal(1, "dp_rank of the group", mine.get().into(), theirs.get().into())?;
        }
        check_at_most(16, "depth", self.depth.into(), group.depth().into())?;
        if self.drafter_layers > 0 {
            check_at_least(18, "passes of a step with a drafter", 2, group.passes().len() as i64)?;
        }
        check_rank(&group, self.rank_index, &rank, &self.limits)?;
        self.apply(&rank)?;
        self.check_rows(&rank, group.depth())?;
        self.next_step = self.next_step.next();
        Ok(WorkerStep { header, group, rank, rank_index: self.rank_index })
    }

    fn apply(&mut self, rank: &RankPart) -> Result<(), Error> {
        for release in rank.releases() {
            self.release(*release)?;
        }
        for admission in rank.admissions() {
            self.admit(admission)?;
        }
        self.check_fed(rank)?;
        for feed in rank.feeds() {
            self.feed(feed)?;
        }
        for append in rank.block_appends() {
            self.append_blocks(append)?;
        }
        for (source, destination) in rank.block_copies() {
            self.check_block("source of a block copy", source.get())?;
            self.check_block("destination of a block copy", destination.get())?;
        }
        for block in rank.block_zeroings() {
            self.check_block("block to set to zero", block.get())?;
        }
        Ok(())
    }

    /// Rule 10: no more tokens come than a step can use.
    fn check_fed(&self, rank: &RankPart) -> Result<(), Error> {
        let fed: i64 = rank.feeds().iter().map(|feed| feed.tokens.len() as i64).sum();
        let budget = i64::from(self.limits.max_num_batched_tokens);
        if fed <= budget {
            return Ok(());
        }
        // A chunk that gives all its logits comes with the token after it, drafter or not.
        let ahead_of = |row: &Row| self.drafter_layers.max(u32::from(row.logits == LogitsWanted::All));
        let ahead: i64 = rank.rows().iter().map(|row| i64::from(ahead_of(row))).sum();
        // A prefix hit's tokens are told to whoever needs their history.
        let cached = rank.admissions().iter().filter(|admission| admission.history);
        let cached: i64 = cached.map(|admission| i64::from(admission.computed)).sum();
        check_at_most(10, "tokens fed in one step", budget + ahead + cached, fed)
    }

    fn occupied_seat(&mut self, seat: Seat) -> Result<&mut SeatState, Error> {
        let last = self.seats.len() as i64 - 1;
        let place = self.seats.get_mut(seat.index()).ok_or_else(|| Error::rule(2, "seat", last, seat.get()))?;
        place.as_mut().ok_or_else(|| Error::rule(11, "request on the seat", 1, 0))
    }

    fn release(&mut self, release: Release) -> Result<(), Error> {
        let state = self.occupied_seat(release.seat)?;
        let (held, said) = (state.generation.get(), release.generation.get());
        check_equal(11, "generation of a released seat", held.into(), said.into())?;
        let blocks = std::mem::take(&mut state.blocks);
        self.seats[release.seat.index()] = None;
        for block in blocks {
            self.block_holders[block.index()] -= 1;
        }
        Ok(())
    }

    fn admit(&mut self, admission: &Admission) -> Result<(), Error> {
        let index = admission.seat.index();
        check_at_most(2, "seat", self.seats.len() as i64 - 1, admission.seat.get().into())?;
        check_equal(11, "requests on an admitted seat", 0, i64::from(self.seats[index].is_some()))?;
        let generation = admission.generation;
        check_at_least(11, "generation", self.generations[index].get().into(), generation.get().into())?;
        check_at_least(9, "prompt_len", 1, admission.prompt_len.into())?;
        let longest = i64::from(self.limits.max_model_len) - 1;
        check_at_most(9, "prompt_len", longest, admission.prompt_len.into())?;
        check_at_most(18, "computed", longest - 1, admission.computed.into())?;
        check_equal(18, "computed in whole blocks", 0, (admission.computed % self.limits.block_size).into())?;
        self.generations[index] = generation.next();
        self.seats[index] = Some(SeatState {
            generation,
            prompt_len: admission.prompt_len,
            computed: admission.computed,
            first: if admission.history { 0 } else { admission.computed },
            tokens: Vec::new(),
            blocks: Vec::new(),
            drafts: Vec::new(),
            sampling: admission.sampling.clone(),
        });
        Ok(())
    }

    fn feed(&mut self, feed: &Feed) -> Result<(), Error> {
        let vocab_size = self.limits.vocab_size;
        let longest = self.limits.max_model_len;
        let state = self.occupied_seat(feed.seat)?;
        check_equal(2, "start of the fed tokens", state.known().into(), feed.start.into())?;
        check_at_most(9, "known tokens", longest.into(), i64::from(state.known()) + feed.tokens.len() as i64)?;
        if let Some(token) = feed.tokens.iter().find(|token| **token >= vocab_size) {
            return Err(Error::rule(7, "token id", i64::from(vocab_size) - 1, *token));
        }
        state.tokens.extend_from_slice(&feed.tokens);
        Ok(())
    }

    fn check_block(&self, field: &'static str, block: u32) -> Result<(), Error> {
        check_at_least(7, field, 1, block.into())?;
        check_at_most(7, field, self.limits.num_blocks.into(), block.into())
    }

    fn append_blocks(&mut self, append: &BlockAppend) -> Result<(), Error> {
        check_equal(2, "kv_group", 0, append.kv_group.get().into())?;
        let shared = {
            let state = self.occupied_seat(append.seat)?;
            // Blocks of a prefix hit may be held by others; they come before anything is computed here.
            let shared = state.computed as usize;
            let held = state.blocks.len();
            (shared, held)
        };
        let shared_blocks = (shared.0 / self.limits.block_size as usize).saturating_sub(shared.1);
        let width = self.limits.table_width as usize;
        check_at_most(9, "blocks of a seat", width as i64, (shared.1 + append.blocks.len()) as i64)?;
        for (index, block) in append.blocks.iter().enumerate() {
            self.check_block("block", *block)?;
            let holders = self.block_holders[*block as usize];
            if index >= shared_blocks {
                check_equal(11, "holders of a new block", 0, holders.into())?;
            }
            self.block_holders[*block as usize] += 1;
        }
        let state = self.occupied_seat(append.seat)?;
        state.blocks.extend(append.blocks.iter().map(|block| BlockId::new(*block)));
        Ok(())
    }

    /// Applies what the model and the sampler made of a step's rows, and gives the reply. `outcomes` has the rows'
    /// order; a dummy has none.
    ///
    /// # Errors
    /// Rule 10 when an outcome does not fit its row.
    pub fn commit(&mut self, step: &WorkerStep, outcomes: Vec<RowOutcome>) -> Result<StepReply, Error> {
        check_equal(10, "row outcomes", step.rank.rows().len() as i64, outcomes.len() as i64)?;
        let mut rows = Vec::with_capacity(outcomes.len());
        let mut drafts = Vec::new();
        for (index, (row, outcome)) in step.rank.rows().iter().zip(outcomes).enumerate() {
            let is_decode = index < step.rank.decode_rows() as usize;
            let most = match row.logits {
                LogitsWanted::None => 0,
                LogitsWanted::Verify => i64::from(outcome.accepted) + 1,
                LogitsWanted::Last | LogitsWanted::All => 1,
            };
            check_at_most(10, "emitted tokens", most, outcome.emitted.len() as i64)?;
            let state = self.occupied_seat(row.seat)?;
            check_at_most(10, "accepted drafts", state.drafts_of(row).len() as i64, outcome.accepted.into())?;
            let known = state.known();
            state.computed += if is_decode { 1 + outcome.accepted } else { row.query_len.get() };
            state.tokens.extend_from_slice(&outcome.emitted);
            state.drafts.clone_from(&outcome.proposed);
            if row.mask != Mask::None && !outcome.proposed.is_empty() {
                let (seat, generation) = (row.seat, row.generation);
                drafts.push(RowDrafts { seat, generation, drafts: outcome.proposed[..].into() });
            }
            rows.push(RowReply {
                seat: row.seat,
                generation: row.generation,
                known,
                accepted: outcome.accepted,
                emitted: outcome.emitted.into(),
                proposed: outcome.proposed.len() as u32,
                logprobs: outcome.logprobs.into(),
            });
        }
        let dp_rank = step.rank.dp_rank();
        let passes = step.group.passes().len() as u32;
        Ok(StepReply { dp_rank, rows, drafts, passes, collectives: 0, timings_us: [0; 4] })
    }
}
