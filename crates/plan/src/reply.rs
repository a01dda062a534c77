//! What a worker answers to a step.

use serde::Deserialize;

use crate::codec::{Coded, OFFSET_BASIS, digest_more};
use crate::error::check_equal;
use crate::pack;
use crate::{DpRank, Error, Seat, SeatGeneration, Words};

/// Log-probabilities of one emitted token: its own first, then the most likely ones. Floats travel as their bits.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TokenLogprobs {
    /// Token ids; the first is the emitted token.
    pub token_ids: Vec<u32>,
    /// `f32::to_bits` of each log-probability.
    pub logprob_bits: Vec<u32>,
}

/// Log-probabilities of the tokens of a row or a request. Most have none, which then needs one word and no memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Logprobs(
    // A box of a vector, so that nothing takes no more room than a pointer.
    #[expect(clippy::box_collection, reason = "a pointer is three times smaller than an empty vector")]
    Option<Box<Vec<TokenLogprobs>>>,
);

impl Logprobs {
    /// None.
    pub const NONE: Self = Self(None);

    /// The entries, to be kept.
    pub fn into_vec(self) -> Vec<TokenLogprobs> {
        self.0.map_or_else(Vec::new, |entries| *entries)
    }

    /// Takes out the first `count` entries.
    pub fn split_to(&mut self, count: usize) -> Vec<TokenLogprobs> {
        let mut first = std::mem::take(self).into_vec();
        *self = first.split_off(count.min(first.len())).into();
        first
    }

    /// Keeps the first `most` entries.
    pub fn truncate(&mut self, most: usize) {
        if let Some(entries) = &mut self.0 {
            entries.truncate(most);
        }
    }
}

impl From<Vec<TokenLogprobs>> for Logprobs {
    fn from(entries: Vec<TokenLogprobs>) -> Self {
        if entries.is_empty() { Self::NONE } else { Self(Some(Box::new(entries))) }
    }
}

impl std::ops::Deref for Logprobs {
    type Target = [TokenLogprobs];

    #[inline]
    fn deref(&self) -> &[TokenLogprobs] {
        self.0.as_ref().map_or(&[], |entries| entries)
    }
}

/// What came of one row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowReply {
    /// Whose row.
    pub seat: Seat,
    /// Which life of the seat.
    pub generation: SeatGeneration,
    /// Tokens known to the worker before the step: `n` of rule 16.
    pub known: u32,
    /// Drafts that the target agreed with.
    pub accepted: u32,
    /// Tokens produced, at most `accepted + 1`; none for a chunk that does not end what is known.
    pub emitted: Words,
    /// Drafts proposed for the next step.
    pub proposed: u32,
    /// First an entry for each prompt token that the row reports, in order: the last of the row's own tokens that belong
    /// to the prompt. Then one per emitted token where any is wanted; empty entries stand for those that are not.
    pub logprobs: Logprobs,
}

/// The drafts that a row proposed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowDrafts {
    /// Whose row.
    pub seat: Seat,
    /// Which life of the seat.
    pub generation: SeatGeneration,
    /// In order; at least one.
    pub drafts: Words,
}

/// A worker's answer to a step, rows in the plan's order. Identity travels beside it, in the envelope.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StepReply {
    /// Who answers.
    pub dp_rank: DpRank,
    /// One entry per row.
    pub rows: Vec<RowReply>,
    /// Of the rows whose mask followed and that proposed any, in order: the next masks are made with them (rule 19).
    pub drafts: Vec<RowDrafts>,
    /// Forwards that ran.
    pub passes: u32,
    /// Collectives that were entered.
    pub collectives: u32,
    /// Microseconds spent in decode, fill, forward, sample.
    pub timings_us: [u32; 4],
}

impl StepReply {
    /// FNV-1a 64 of what must be equal on all tp workers of a rank: of each row the seat, the generation, the accepted
    /// count, how many tokens were emitted and which, and how many drafts were proposed, as little-endian u32.
    pub fn tokens_digest(&self) -> u64 {
        let more = |hash, word: &u32| digest_more(hash, &word.to_le_bytes());
        self.rows.iter().fold(OFFSET_BASIS, |hash, row| {
            let counts = [row.seat.get(), row.generation.get(), row.accepted, row.emitted.len() as u32];
            counts.iter().chain(&row.emitted[..]).chain(&[row.proposed]).fold(hash, more)
        })
    }
}

/// A reply as it travels: columns.
#[derive(Deserialize)]
pub struct ReplyWire {
    dp_rank: DpRank,
    seats: Words,
    generations: Words,
    known: Words,
    accepted: Words,
    emitted_counts: Words,
    emitted: Words,
    proposed: Words,
    /// Rows whose drafts are told; how many each has.
    draft_seats: Words,
    draft_generations: Words,
    draft_counts: Words,
    drafts: Words,
    /// Log-probabilities reported by each row; empty when no row has any.
    logprob_rows: Words,
    /// Entries of each of them, 0 where none are wanted.
    logprob_counts: Words,
    logprob_token_ids: Words,
    logprob_bits: Words,
    passes: u32,
    collectives: u32,
    timings_us: Words,
}

/// Hands out slices of a column, with an error instead of a panic past its end.
struct Cursor<'a> {
    words: &'a [u32],
    field: &'static str,
}

impl<'a> Cursor<'a> {
    #[inline]
    fn take(&mut self, count: u32) -> Result<&'a [u32], Error> {
        let available = self.words.len();
        let split = self.words.split_at_checked(count as usize);
        let (head, rest) = split.ok_or_else(|| Error::rule(11, self.field, count, available as i64))?;
        self.words = rest;
        Ok(head)
    }

    fn finish(&self) -> Result<(), Error> {
        check_equal(11, self.field, 0, self.words.len() as i64)
    }
}

fn row_drafts(wire: &ReplyWire) -> Result<Vec<RowDrafts>, Error> {
    let count = wire.draft_seats.len();
    for column in [&wire.draft_generations, &wire.draft_counts] {
        check_equal(11, "length of a reply column", count as i64, column.len() as i64)?;
    }
    let mut words = Cursor { words: &wire.drafts, field: "drafts" };
    let mut all = Vec::with_capacity(count);
    for index in 0..count {
        let (seat, generation) = (wire.draft_seats[index], wire.draft_generations[index]);
        all.push(RowDrafts {
            seat: Seat::new(seat),
            generation: SeatGeneration::new(generation),
            drafts: words.take(wire.draft_counts[index])?.into(),
        });
    }
    words.finish().map(|()| all)
}

impl TryFrom<ReplyWire> for StepReply {
    type Error = Error;

    fn try_from(wire: ReplyWire) -> Result<Self, Error> {
        let count = wire.seats.len();
        for column in [&wire.generations, &wire.known, &wire.accepted, &wire.emitted_counts, &wire.proposed] {
            check_equal(11, "length of a reply column", count as i64, column.len() as i64)?;
        }
        if !wire.logprob_rows.is_empty() {
            check_equal(11, "length of a reply column", count as i64, wire.logprob_rows.len() as i64)?;
        }
        let timings_us = <[u32; 4]>::try_from(&wire.timings_us[..])
            .map_err(|_| Error::rule(11, "timings", 4, wire.timings_us.len() as i64))?;
        let mut emitted = Cursor { words: &wire.emitted, field: "emitted tokens" };
        let drafts = row_drafts(&wire)?;
        let mut counts = Cursor { words: &wire.logprob_counts, field: "logprob counts" };
        let mut ids = Cursor { words: &wire.logprob_token_ids, field: "logprob token ids" };
        let mut bits = Cursor { words: &wire.logprob_bits, field: "logprob bits" };
        let mut rows = Vec::with_capacity(count);
        let (seats, generations, known) = (&wire.seats[..count], &wire.generations[..count], &wire.known[..count]);
        let (accepted, proposed) = (&wire.accepted[..count], &wire.proposed[..count]);
        for (index, emitted_count) in wire.emitted_counts.iter().enumerate() {
            let mut logprobs = Vec::new();
            if let Some(reported) = wire.logprob_rows.get(index) {
                for entries in counts.take(*reported)? {
                    logprobs.push(TokenLogprobs {
                        token_ids: ids.take(*entries)?.to_vec(),
                        logprob_bits: bits.take(*entries)?.to_vec(),
                    });
                }
            }
            rows.push(RowReply {
                seat: Seat::new(seats[index]),
                generation: SeatGeneration::new(generations[index]),
                known: known[index],
                accepted: accepted[index],
                emitted: emitted.take(*emitted_count)?.into(),
                proposed: proposed[index],
                logprobs: logprobs.into(),
            });
        }
        for cursor in [&emitted, &counts, &ids, &bits] {
            cursor.finish()?;
        }
        Ok(Self { dp_rank: wire.dp_rank, rows, drafts, passes: wire.passes, collectives: wire.collectives, timings_us })
    }
}

impl Coded for StepReply {
    type Wire = ReplyWire;

    fn append_to(&self, bytes: &mut Vec<u8>) {
        let rows = &self.rows;
        pack::list(bytes, 19);
        pack::number(bytes, self.dp_rank.get());
        pack::columns(bytes, rows, |row| {
            let (seat, generation, emitted_count) = (row.seat.get(), row.generation.get(), row.emitted.len() as u32);
            [seat, generation, row.known, row.accepted, emitted_count]
        });
        pack::flat(bytes, rows.iter().map(|row| &row.emitted[..]));
        pack::column(bytes, rows, |row| row.proposed);
        pack::columns(bytes, &self.drafts, |row| [row.seat.get(), row.generation.get(), row.drafts.len() as u32]);
        pack::flat(bytes, self.drafts.iter().map(|row| &row.drafts[..]));
        if rows.iter().any(|row| !row.logprobs.is_empty()) {
            let entries = rows.iter().flat_map(|row| &row.logprobs[..]);
            let counts: Vec<u32> = entries.clone().map(|entry| entry.token_ids.len() as u32).collect();
            pack::column(bytes, rows, |row| row.logprobs.len() as u32);
            pack::words(bytes, &counts);
            pack::flat(bytes, entries.clone().map(|entry| &entry.token_ids[..]));
            pack::flat(bytes, entries.map(|entry| &entry.logprob_bits[..]));
        } else {
            (0..4).for_each(|_| pack::words(bytes, &[]));
        }
        pack::number(bytes, self.passes);
        pack::number(bytes, self.collectives);
        pack::words(bytes, &self.timings_us);
    }

    fn from_wire(wire: ReplyWire) -> Result<Self, Error> {
        Self::try_from(wire)
    }
}
