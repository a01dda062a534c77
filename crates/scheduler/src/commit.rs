//! A reply changes requests here (rules 10 and 11): checked against the rows that were sent, then applied whole.

use paceline_plan::{DpRank, Epoch, Logprobs, RowReply, Seat, StepId, StepReply, Words};

use crate::emit::SentRow;
use crate::rank::Rank;
use crate::recent::Recent;
use crate::request::{Request, Requests};
use crate::seated::Seated;
use crate::{CacheSecret, Config, Drafter, Error, RequestId, Scheduler, spare};

/// Why a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish {
    /// It emitted this stop token, its last one.
    Stop(u32),
    /// It emitted `max_new_tokens`.
    Length,
}

/// What a reply gave to one request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Output {
    /// Which request.
    pub id: RequestId,
    /// Tokens that it read from the prefix cache when it first started.
    pub cached_tokens: u32,
    /// Log-probabilities of prompt tokens that were not reported before, in order, from the second token on.
    pub prompt_logprobs: Logprobs,
    /// New tokens, in order; at least one where there are no log-probabilities of the prompt.
    pub tokens: Words,
    /// Log-probabilities of these tokens: none, or an entry for each, an empty one where it is not wanted.
    pub logprobs: Logprobs,
    /// Set in the request's last output; its id may be used again afterwards.
    pub finished: Option<Finish>,
}

impl Scheduler {
    /// Applies a rank's reply. A reply to an earlier step or epoch, or a second one, is counted and dropped.
    ///
    /// # Errors
    /// When the rank does not exist, the step was not sent yet, the rank owes an earlier reply, or the reply contradicts
    /// its plan; then nothing of the reply is applied.
    pub fn commit(
        &mut self,
        dp_rank: DpRank,
        epoch: Epoch,
        step: StepId,
        reply: StepReply,
    ) -> Result<Vec<Output>, Error> {
        let mut outputs = Vec::new();
        self.commit_into(dp_rank, epoch, step, reply, &mut outputs).map(|()| outputs)
    }

    /// The same; outputs are added at the end of `outputs`, whose memory may be used again and again.
    ///
    /// # Errors
    /// As [`Self::commit`]; then nothing is added.
    pub fn commit_into(
        &mut self,
        dp_rank: DpRank,
        epoch: Epoch,
        step: StepId,
        reply: StepReply,
        outputs: &mut Vec<Output>,
    ) -> Result<(), Error> {
        let rank_index = dp_rank.index();
        let rank = self.ranks.get_mut(rank_index).ok_or(Error::UnknownRank { dp_rank })?;
        let group = &mut self.groups[rank.group];
        if (epoch, step) > (group.epoch, group.step) {
            return Err(Error::UnknownStep { group: group.id, epoch, dp_rank, expected: group.step, got: step });
        }
        let index = rank.place;
        let mut owed = group.in_flight.iter().enumerate().filter(|(_, in_flight)| in_flight.rows[index].is_some());
        let oldest = owed.next().map(|(_, in_flight)| in_flight.step);
        let is_owed = epoch == group.epoch && oldest.is_some_and(|oldest| oldest <= step);
        let Some((oldest, place)) = oldest.filter(|_| is_owed).zip(group.place_of(step)) else {
            rank.counters.stale_replies += 1;
            return Ok(());
        };
        let in_flight = &group.in_flight[place];
        let (vocab_size, k_draft) = (self.config.limits.vocab_size, in_flight.k_draft);
        let checker = ReplyChecker { dp_rank, step, vocab_size, k_draft, rank };
        // Rule 16: a worker runs its steps in order, and a row starts from what the one before it came to.
        checker.equal(0, "step", oldest.get().cast_signed(), step.get().cast_signed())?;
        let rows = in_flight.rows[index].as_ref().expect("the oldest reply that is owed");
        checker.check(rows, &reply)?;
        let rows = group.in_flight[place].rows[index].take().expect("the reply was owed");
        while group.in_flight.front().is_some_and(|in_flight| in_flight.rows.iter().all(Option::is_none)) {
            let done = group.in_flight.pop_front().expect("there is a first one");
            spare::keep(&mut self.spare.flights, done.rows);
        }
        outputs.reserve(rows.len());
        for (sent, row) in rows.iter().zip(reply.rows) {
            self.commit_row(rank_index, sent, row, outputs);
        }
        spare::keep(&mut self.spare.sent, rows);
        Ok(())
    }

    fn commit_row(&mut self, rank_index: usize, sent: &SentRow, mut reply: RowReply, outputs: &mut Vec<Output>) {
        let rank = &mut self.ranks[rank_index];
        if sent.seated(rank).is_none() {
            // Rule 11: it ended or left since; what came of its row touches nobody.
            rank.answered_for(sent.seat, sent.generation);
            return;
        }
        let verified = rank.on_mut(sent.seat).take_answer(sent, &reply);
        rank.counters.drafts.count(verified, reply.accepted);
        let prompt_logprobs = match sent.reported_end {
            Some(end) => take_prompt_logprobs(&mut self.requests[sent.slot], end, &mut reply),
            None => Logprobs::NONE,
        };
        let (mut finished, reports) = (None, !prompt_logprobs.is_empty());
        if sent.samples {
            finished = take_tokens(rank, sent, &mut self.requests, &mut reply);
            rank.counters.emitted_tokens += reply.emitted.len() as u64;
        }
        if sent.samples || reports {
            let Recent { id, cached_tokens, .. } = rank.recent[sent.seat.index()];
            let RowReply { emitted: tokens, logprobs, .. } = reply;
            outputs.push(Output { id, cached_tokens, prompt_logprobs, tokens, logprobs, finished });
        }
        if let Some(secret) = self.config.prefix_cache {
            let seated = rank.on(sent.seat);
            let next = (seated.published + 1) * self.config.limits.block_size;
            if seated.computed.min(seated.known) >= next {
                publish(&self.config, secret, rank, sent.seat, &mut self.requests[sent.slot]);
            }
        }
        if finished.is_some() {
            self.retire(rank_index, sent.seat);
            self.finished += 1;
        }
    }

    /// Takes a running request off its rank and out of the table.
    pub(crate) fn retire(&mut self, rank_index: usize, seat: Seat) {
        let slot = self.ranks[rank_index].slot(seat);
        self.ranks[rank_index].unseat(seat, &mut self.requests[slot]);
        self.requests.remove(slot);
    }
}

/// Rule 10: blocks whose every position holds a computed, accepted token enter the prefix cache.
fn publish(config: &Config, secret: CacheSecret, rank: &mut Rank, seat: Seat, request: &mut Request) {
    let block_size = config.limits.block_size;
    let Seated { computed, known, published, .. } = *rank.on(seat);
    let full = computed.min(known) / block_size;
    rank.recent[seat.index()].settle(request);
    request.chain.extend(secret, &request.tokens[..(full * block_size) as usize], block_size);
    let keys = request.chain.keys();
    let Rank { blocks, tables, .. } = rank;
    let (table, cache) = (&tables[seat.index()], &mut blocks.cache);
    // A drafter's last position of a block depends on the token after it: only the very block that comes before
    // was made with this one's tokens.
    let own_chain = config.drafter == Drafter::Model;
    for index in published as usize..full as usize {
        let parent = index.checked_sub(1).map(|before| keys[before]);
        let before = index.checked_sub(1).map(|before| table[before]);
        if own_chain && parent.and_then(|key| cache.find(key)) != before {
            break;
        }
        let tokens = &request.tokens[index * block_size as usize..(index + 1) * block_size as usize];
        cache.publish(table[index], keys[index], parent, tokens);
    }
    rank.on_mut(seat).published = full;
}

/// Rule 20: the row's entries for prompt tokens, without those that were reported before a preemption.
fn take_prompt_logprobs(request: &mut Request, end: u32, reply: &mut RowReply) -> Logprobs {
    let Some(next) = request.report_next else { return Logprobs::NONE };
    // A row that emits has an entry for each token behind them, an empty one where it is not wanted.
    let count = reply.logprobs.len().saturating_sub(reply.emitted.len());
    let mut fresh = reply.logprobs.split_to(count);
    let first = end - count as u32;
    fresh.drain(..(next.saturating_sub(first) as usize).min(count));
    request.report_next = Some(next + fresh.len() as u32).filter(|next| *next < request.prompt_len);
    fresh.into()
}

/// Rule 10: gives a request the emitted tokens, cut at the first stop token or at the limit.
#[inline]
fn take_tokens(rank: &mut Rank, sent: &SentRow, requests: &mut Requests, reply: &mut RowReply) -> Option<Finish> {
    let index = sent.seat.index();
    let (seated, recent) = (&mut rank.seated[index], &mut rank.recent[index]);
    for (index, token) in reply.emitted.iter().copied().enumerate() {
        recent.push(token, || &mut requests[sent.slot]);
        seated.known += 1;
        let finished = if recent.stops_at(token, || &mut requests[sent.slot]) {
            Finish::Stop(token)
        } else if seated.known == seated.end {
            Finish::Length
        } else {
            continue;
        };
        reply.emitted.truncate(index + 1);
        reply.logprobs.truncate(index + 1);
        return Some(finished);
    }
    None
}

impl Seated {
    /// Rule 10: moves on by what a row came to. How many drafts it verified.
    fn take_answer(&mut self, sent: &SentRow, reply: &RowReply) -> u32 {
        let verified = sent.drafts.min(self.proposed);
        self.in_flight -= 1;
        self.giving -= u16::from(sent.samples);
        self.computed += if sent.is_decode { 1 + reply.accepted } else { sent.tokens };
        // The row was planned as if all its drafts would be accepted (rule 16).
        self.start_max -= sent.drafts - reply.accepted;
        self.proposed = reply.proposed;
        verified
    }
}

impl SentRow {
    /// The seat of the row's request; nothing when the request has left it.
    fn seated<'a>(&self, rank: &'a Rank) -> Option<&'a Seated> {
        let seated = rank.on(self.seat);
        (seated.generation == self.generation && seated.is_taken()).then_some(seated)
    }
}

struct ReplyChecker<'a> {
    dp_rank: DpRank,
    step: StepId,
    vocab_size: u32,
    k_draft: u32,
    rank: &'a Rank,
}

impl ReplyChecker<'_> {
    fn error(&self, row: usize, field: &'static str, expected: i64, got: i64) -> Error {
        Error::Reply { step: self.step, dp_rank: self.dp_rank, row: row as u64, field, expected, got }
    }

    fn equal(&self, row: usize, field: &'static str, expected: i64, got: i64) -> Result<(), Error> {
        if expected == got { Ok(()) } else { Err(self.error(row, field, expected, got)) }
    }

    fn at_most(&self, row: usize, field: &'static str, most: i64, got: i64) -> Result<(), Error> {
        if got <= most { Ok(()) } else { Err(self.error(row, field, most, got)) }
    }

    fn check(&self, rows: &[SentRow], reply: &StepReply) -> Result<(), Error> {
        self.equal(rows.len(), "dp_rank", self.dp_rank.get().into(), reply.dp_rank.get().into())?;
        self.equal(rows.len(), "rows", rows.len() as i64, reply.rows.len() as i64)?;
        for (index, (sent, row)) in rows.iter().zip(&reply.rows).enumerate() {
            if !self.is_plain(sent, row) {
                self.check_row(index, sent, row)?;
            }
        }
        if self.rank.constrained > 0 || !reply.drafts.is_empty() {
            self.check_drafts(rows, reply)?;
        }
        Ok(())
    }

    /// Whether a row is what most rows are, and right: all of [`Self::check_row`] at once, for a decode row of a request
    /// that still runs and without log-probabilities.
    #[inline]
    fn is_plain(&self, sent: &SentRow, row: &RowReply) -> bool {
        let Some(seated) = sent.seated(self.rank) else { return false };
        let expected = (sent.seat, sent.generation, seated.computed + 1, 1 + row.accepted as usize);
        sent.is_decode
            && (row.seat, row.generation, row.known, row.emitted.len()) == expected
            && row.accepted <= sent.drafts.min(seated.proposed)
            && row.proposed <= self.k_draft
            && row.logprobs.is_empty()
            && row.emitted.iter().all(|token| *token < self.vocab_size)
    }

    /// Rule 19: the drafts of every row whose mask followed are told.
    fn check_drafts(&self, rows: &[SentRow], reply: &StepReply) -> Result<(), Error> {
        let mut told = reply.drafts.iter();
        for (index, (sent, row)) in rows.iter().zip(&reply.rows).enumerate() {
            if !sent.is_masked || row.proposed == 0 {
                continue;
            }
            let of_row = told.next().filter(|told| (told.seat, told.generation) == (sent.seat, sent.generation));
            let got = of_row.map_or(0, |told| told.drafts.len());
            self.equal(index, "drafts", row.proposed.into(), got as i64)?;
        }
        self.equal(rows.len(), "rows with drafts", 0, told.count() as i64)
    }

    fn check_row(&self, index: usize, sent: &SentRow, row: &RowReply) -> Result<(), Error> {
        self.equal(index, "seat", sent.seat.get().into(), row.seat.get().into())?;
        self.equal(index, "generation", sent.generation.get().into(), row.generation.get().into())?;
        let drafts = match sent.seated(self.rank) {
            Some(seated) => {
                let known = if sent.is_decode { seated.computed + 1 } else { sent.known_max };
                self.equal(index, "known", known.into(), row.known.into())?;
                sent.drafts.min(seated.proposed)
            }
            None => {
                self.at_most(index, "known", sent.known_max.into(), row.known.into())?;
                sent.drafts
            }
        };
        self.at_most(index, "accepted", drafts.into(), row.accepted.into())?;
        let emitted = if sent.samples { 1 + i64::from(row.accepted) } else { 0 };
        self.equal(index, "emitted", emitted, row.emitted.len() as i64)?;
        let proposed_most = if sent.samples { self.k_draft } else { 0 };
        self.at_most(index, "proposed", proposed_most.into(), row.proposed.into())?;
        let prompt_most = sent.reported_end.map_or(0, |end| end.min(sent.tokens));
        self.at_most(index, "logprobs", emitted + i64::from(prompt_most), row.logprobs.len() as i64)?;
        if sent.reported_end.is_none() && !row.logprobs.is_empty() {
            self.equal(index, "logprobs", emitted, row.logprobs.len() as i64)?;
        }
        let token_last = i64::from(self.vocab_size) - 1;
        row.emitted.iter().try_for_each(|token| self.at_most(index, "token id", token_last, (*token).into()))
    }
}
