//! What a worker answers to a step.

use serde::{Deserialize, Serialize};

use crate::codec::Coded;
use crate::error::check_equal;
use crate::{DpRank, Error, Seat, SeatGeneration, Words, digest};

/// Log-probabilities of one emitted token: its own first, then the most likely ones. Floats travel as their bits.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TokenLogprobs {
    /// Token ids; the first is the emitted token.
    pub token_ids: Vec<u32>,
    /// `f32::to_bits` of each log-probability.
    pub logprob_bits: Vec<u32>,
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
    pub emitted: Vec<u32>,
    /// Drafts proposed for the next step.
    pub proposed: u32,
    /// One entry per emitted token where the request wants them, else empty.
    pub logprobs: Vec<TokenLogprobs>,
}

/// A worker's answer to a step, rows in the plan's order. Identity travels beside it, in the envelope.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StepReply {
    /// Who answers.
    pub dp_rank: DpRank,
    /// One entry per row.
    pub rows: Vec<RowReply>,
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
        let mut words = Words::default();
        for row in &self.rows {
            let counts = [row.seat.get(), row.generation.get(), row.accepted, row.emitted.len() as u32];
            words.0.extend_from_slice(&counts);
            words.0.extend_from_slice(&row.emitted);
            words.push(row.proposed);
        }
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        digest(&bytes)
    }
}

/// A reply as it travels: columns.
#[derive(Serialize, Deserialize)]
pub struct ReplyWire {
    dp_rank: DpRank,
    seats: Words,
    generations: Words,
    known: Words,
    accepted: Words,
    emitted_counts: Words,
    emitted: Words,
    proposed: Words,
    /// Entries per emitted token, 0 where none are wanted; empty when no row wants any.
    logprob_counts: Words,
    logprob_token_ids: Words,
    logprob_bits: Words,
    passes: u32,
    collectives: u32,
    timings_us: Words,
}

/// One value of every row. A copy of it for every column: calls through a pointer cost more than the values.
fn column(rows: &[RowReply], value: impl Fn(&RowReply) -> u32) -> Words {
    rows.iter().map(value).collect()
}

impl From<&StepReply> for ReplyWire {
    fn from(reply: &StepReply) -> Self {
        let rows = &reply.rows;
        let mut wire = Self {
            dp_rank: reply.dp_rank,
            seats: column(rows, |row| row.seat.get()),
            generations: column(rows, |row| row.generation.get()),
            known: column(rows, |row| row.known),
            accepted: column(rows, |row| row.accepted),
            emitted_counts: column(rows, |row| row.emitted.len() as u32),
            emitted: reply.rows.iter().flat_map(|row| row.emitted.iter().copied()).collect(),
            proposed: column(rows, |row| row.proposed),
            logprob_counts: Words::default(),
            logprob_token_ids: Words::default(),
            logprob_bits: Words::default(),
            passes: reply.passes,
            collectives: reply.collectives,
            timings_us: reply.timings_us.to_vec().into(),
        };
        if reply.rows.iter().any(|row| !row.logprobs.is_empty()) {
            for row in &reply.rows {
                for index in 0..row.emitted.len() {
                    let entry = row.logprobs.get(index);
                    wire.logprob_counts.push(entry.map_or(0, |entry| entry.token_ids.len() as u32));
                    if let Some(entry) = entry {
                        wire.logprob_token_ids.0.extend_from_slice(&entry.token_ids);
                        wire.logprob_bits.0.extend_from_slice(&entry.logprob_bits);
                    }
                }
            }
        }
        wire
    }
}

/// Hands out slices of a column, with an error instead of a panic past its end.
struct Cursor<'a> {
    words: &'a [u32],
    field: &'static str,
}

impl<'a> Cursor<'a> {
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

impl TryFrom<ReplyWire> for StepReply {
    type Error = Error;

    fn try_from(wire: ReplyWire) -> Result<Self, Error> {
        let count = wire.seats.len();
        for column in [&wire.generations, &wire.known, &wire.accepted, &wire.emitted_counts, &wire.proposed] {
            check_equal(11, "length of a reply column", count as i64, column.len() as i64)?;
        }
        let timings_us = <[u32; 4]>::try_from(&wire.timings_us[..])
            .map_err(|_| Error::rule(11, "timings", 4, wire.timings_us.len() as i64))?;
        let mut emitted = Cursor { words: &wire.emitted, field: "emitted tokens" };
        let mut counts = Cursor { words: &wire.logprob_counts, field: "logprob counts" };
        let mut ids = Cursor { words: &wire.logprob_token_ids, field: "logprob token ids" };
        let mut bits = Cursor { words: &wire.logprob_bits, field: "logprob bits" };
        let mut rows = Vec::with_capacity(count);
        for index in 0..count {
            let emitted_count = wire.emitted_counts[index];
            let mut logprobs = Vec::new();
            if !wire.logprob_counts.is_empty() {
                for entries in counts.take(emitted_count)? {
                    logprobs.push(TokenLogprobs {
                        token_ids: ids.take(*entries)?.to_vec(),
                        logprob_bits: bits.take(*entries)?.to_vec(),
                    });
                }
                if logprobs.iter().all(|entry| entry.token_ids.is_empty()) {
                    logprobs.clear();
                }
            }
            rows.push(RowReply {
                seat: Seat::new(wire.seats[index]),
                generation: SeatGeneration::new(wire.generations[index]),
                known: wire.known[index],
                accepted: wire.accepted[index],
                emitted: emitted.take(emitted_count)?.to_vec(),
                proposed: wire.proposed[index],
                logprobs,
            });
        }
        for cursor in [&emitted, &counts, &ids, &bits] {
            cursor.finish()?;
        }
        Ok(Self { dp_rank: wire.dp_rank, rows, passes: wire.passes, collectives: wire.collectives, timings_us })
    }
}

impl Coded for StepReply {
    type Wire = ReplyWire;

    fn to_wire(&self) -> ReplyWire {
        ReplyWire::from(self)
    }

    fn from_wire(wire: ReplyWire) -> Result<Self, Error> {
        Self::try_from(wire)
    }
}
