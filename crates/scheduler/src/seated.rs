//! The numbers of a request on a seat: what every step reads and writes.

use paceline_plan::{SeatGeneration, WorkerLimits};

use crate::Drafter;
use crate::request::Slot;

/// A request on a seat, one cache line. A rank holds them side by side, by seat; what a step seldom needs is in the
/// request, and the block table beside them.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
pub(crate) struct Seated {
    /// Who sits here; nobody when it is [`Slot::NONE`].
    pub(crate) slot: Slot,
    pub(crate) generation: SeatGeneration,
    /// Tokens whose KV is written and that are accepted, by the steps that are answered.
    pub(crate) computed: u32,
    /// The same once every step in flight is answered, if all drafts are accepted (rule 16): where its next row starts
    /// at most.
    pub(crate) start_max: u32,
    /// Known tokens when it started: up to here its rows are prompt rows, whatever their length.
    pub(crate) prompt_end: u32,
    /// n: known tokens.
    pub(crate) known: u32,
    /// Known tokens when it has emitted all that it may.
    pub(crate) end: u32,
    /// Tokens of its prompt rows that the worker was told.
    pub(crate) fed: u32,
    /// KV blocks that it holds.
    pub(crate) blocks: u32,
    /// How many of them the worker was told of; 0 until it is told of the request.
    pub(crate) blocks_told: u32,
    /// How many of them have their name in the prefix cache, or were found to have one.
    pub(crate) published: u32,
    /// Drafts that the worker proposed in the newest answered step that ran it.
    pub(crate) proposed: u32,
    /// Drafts that it is to propose in the newest step in flight that gives the request a token.
    pub(crate) proposing: u32,
    /// Steps that run it and are not answered yet.
    pub(crate) in_flight: u16,
    /// Those of them that give it a token, or more.
    pub(crate) giving: u16,
    /// Tick of the group's step that ran it last.
    pub(crate) last_run: u64,
}

impl Seated {
    /// An empty seat.
    pub(crate) const NOBODY: Self = Self {
        slot: Slot::NONE,
        generation: SeatGeneration::new(0),
        computed: 0,
        start_max: 0,
        prompt_end: 0,
        known: 0,
        end: 0,
        fed: 0,
        blocks: 0,
        blocks_told: 0,
        published: 0,
        proposed: 0,
        proposing: 0,
        in_flight: 0,
        giving: 0,
        last_run: 0,
    };

    /// Whether somebody sits here.
    pub(crate) fn is_taken(&self) -> bool {
        self.slot != Slot::NONE
    }

    /// Whether its next row is a prompt row.
    pub(crate) const fn is_prompt(&self) -> bool {
        self.start_max < self.prompt_end
    }

    /// Tokens that prompt rows still have to run.
    pub(crate) const fn prompt_left(&self) -> u32 {
        self.prompt_end.saturating_sub(self.start_max)
    }

    /// Whether its next row is a decode row, gives a token for sure, and starts within the blocks that it holds.
    #[inline]
    pub(crate) fn decodes_within(&self, limits: &WorkerLimits) -> bool {
        // An empty seat holds no block.
        let room = u64::from(self.blocks) * u64::from(limits.block_size);
        !self.is_prompt() && !self.ends_in_flight() && u64::from(self.start_max) < room
    }

    /// `n_max`: known tokens if all in flight is accepted.
    pub(crate) const fn known_max(&self) -> u32 {
        if self.is_prompt() { self.prompt_end } else { self.start_max + 1 }
    }

    /// `r_min`: tokens left to emit if all in flight is accepted. 0: it may have ended by then.
    pub(crate) const fn left_least(&self) -> u32 {
        self.end.saturating_sub(self.known_max())
    }

    /// Whether all that it emits is in flight: `r_max` is 0, the tokens left to emit if no draft is accepted. Nor does a
    /// row follow one that may be past the end already.
    pub(crate) const fn ends_in_flight(&self) -> bool {
        self.end as u64 <= self.known as u64 + self.giving as u64 || self.known_max() > self.end
    }

    /// A row of so many tokens, drafts and all, is sent in the group's step `tick` (rule 16).
    #[inline]
    pub(crate) const fn launch(&mut self, tokens: u32, tick: u64) {
        self.in_flight += 1;
        self.start_max += tokens;
        self.last_run = tick;
    }

    /// The row that is sent gives it a token, and is to propose `k_draft` drafts.
    #[inline]
    pub(crate) const fn gives(&mut self, k_draft: u32) {
        self.giving += 1;
        self.proposing = k_draft;
    }

    /// Tokens whose KV it needs at its longest: the last one is never computed.
    pub(crate) const fn longest_computed(&self) -> u32 {
        self.end - 1
    }

    /// Tokens after those that count as computed that the held blocks and `more` others hold.
    pub(crate) const fn fitting(&self, more: u32, limits: &WorkerLimits) -> u32 {
        (self.blocks + more) * limits.block_size - self.start_max
    }

    /// Blocks that its known tokens still lack while its prompt is not computed.
    pub(crate) const fn prompt_lack(&self, limits: &WorkerLimits) -> u32 {
        if self.is_prompt() { limits.blocks_for(self.prompt_end).saturating_sub(self.blocks) } else { 0 }
    }

    /// Drafts that the worker will have for the next row, as far as that is known. A model proposes all that it is asked
    /// for; text in which n-grams were found last is likely to hold more of them. Where fewer come, the row is filled
    /// with placeholders (rule 16).
    pub(crate) fn drafts_expected(&self, drafter: Drafter) -> u32 {
        match drafter {
            _ if self.giving == 0 => self.proposed,
            Drafter::Model => self.proposing,
            Drafter::Ngram | Drafter::None => self.proposing.min(self.proposed),
        }
    }
}

/// Sums over the requests that run on a rank: what placement compares ranks by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Load {
    /// Blocks that prompts still lack, and one for each request that grows past what it holds.
    pub(crate) reserved: u32,
    /// Blocks that are lacking until every request is at its end.
    pub(crate) lack_to_the_end: u32,
    /// Tokens of prompts that are not computed.
    pub(crate) prompt_left: u64,
    /// Known tokens.
    pub(crate) known: u64,
    /// Requests whose next row is a decode row.
    pub(crate) decoding: u32,
}

impl Load {
    pub(crate) const fn add(&mut self, seated: &Seated, limits: &WorkerLimits) {
        let held = seated.blocks;
        let known = limits.blocks_for(seated.known_max());
        let known = if known > held { known } else { held };
        let longest = limits.blocks_for(seated.longest_computed());
        self.reserved += known - held + (longest > known) as u32;
        self.lack_to_the_end += longest.saturating_sub(held);
        self.prompt_left += seated.prompt_left() as u64;
        self.known += seated.known as u64;
        self.decoding += !seated.is_prompt() as u32;
    }

    /// Known tokens of what runs, plus what is left of its prompts.
    pub(crate) const fn tokens(&self) -> u64 {
        self.known + self.prompt_left
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seat_is_one_cache_line() {
        assert_eq!(size_of::<Seated>(), 64);
    }
}
