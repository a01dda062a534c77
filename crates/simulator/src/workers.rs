//! Pretended workers: they answer every plan, and accept drafts by chance.

use paceline_fleet::{AnswerBody, StepAnswer};
use paceline_plan::{DpRank, GroupPart, LogitsWanted, Logprobs, RankPart, Row, RowReply, StepReply};

use crate::options::VOCAB_SIZE;
use crate::random::Random;

/// What one worker knows of a seat.
#[derive(Clone, Copy, Debug, Default)]
struct Seat {
    computed: u32,
    proposed: u32,
}

/// The worker of one rank.
#[derive(Clone, Debug)]
pub(crate) struct Worker {
    dp_rank: DpRank,
    seats: Vec<Seat>,
    random: Random,
    acceptance_permille: u32,
}

impl Worker {
    pub(crate) fn new(dp_rank: DpRank, seats: u32, acceptance_permille: u32, seed: u64) -> Self {
        let random = Random::new(seed ^ (u64::from(dp_rank.get()) << 32));
        Self { dp_rank, seats: vec![Seat::default(); seats as usize], random, acceptance_permille }
    }

    /// Runs its part of a step.
    pub(crate) fn run(&mut self, group: &GroupPart, part: &RankPart, digest: u64) -> StepAnswer {
        for admission in part.admissions() {
            self.seats[admission.seat.index()] = Seat { computed: admission.computed, proposed: 0 };
        }
        let decode_rows = part.decode_rows() as usize;
        let rows = part.rows().iter().enumerate();
        let rows = rows.map(|(index, row)| self.row(row, index < decode_rows, group.k_draft())).collect();
        let passes = group.passes().len() as u32;
        let reply = StepReply { dp_rank: self.dp_rank, rows, passes, ..StepReply::default() };
        StepAnswer {
            group: group.group(),
            epoch: group.epoch(),
            step: group.step(),
            digest,
            body: Ok(AnswerBody::Rows(reply)),
        }
    }

    fn row(&mut self, row: &Row, is_decode: bool, k_draft: u32) -> RowReply {
        let drafts = row.drafts.min(self.seats[row.seat.index()].proposed);
        let accepted = if is_decode { self.accepted(drafts) } else { 0 };
        let seat = &mut self.seats[row.seat.index()];
        let known = seat.computed + if is_decode { 1 } else { row.query_len.get() };
        seat.computed += if is_decode { 1 + accepted } else { row.query_len.get() };
        let samples = row.logits != LogitsWanted::None;
        seat.proposed = if samples { k_draft } else { 0 };
        // Never a stop token; text of its own for every row, so that outputs share no prefix by accident.
        let emitted = if samples { 1 + accepted } else { 0 };
        let emitted = (0..emitted).map(|_| self.random.below(VOCAB_SIZE)).collect();
        RowReply {
            seat: row.seat,
            generation: row.generation,
            known,
            accepted,
            emitted,
            proposed: seat.proposed,
            logprobs: Logprobs::NONE,
        }
    }

    /// Drafts are accepted one after another, each by the same chance.
    fn accepted(&mut self, drafts: u32) -> u32 {
        (0..drafts).take_while(|_| self.random.below(1_000) < self.acceptance_permille).count() as u32
    }
}
