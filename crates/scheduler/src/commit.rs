//! A reply changes requests here (rules 10 and 11): checked against the rows that were sent, then applied whole.

use paceline_plan::{DpRank, Epoch, RowReply, StepId, StepReply, TokenLogprobs};

use crate::emit::SentRow;
use crate::request::{Place, Request, Slot};
use crate::{Drafter, Error, RequestId, Scheduler};

/// One token given to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EmittedToken {
    /// Its id.
    pub token: u32,
    /// Its log-probabilities, where the request wants them.
    pub logprobs: Option<TokenLogprobs>,
}

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
    /// Log-probabilities of prompt tokens that were not reported before, in order, from the second token on.
    pub prompt_logprobs: Vec<TokenLogprobs>,
    /// New tokens, in order; at least one where there are no log-probabilities of the prompt.
    pub tokens: Vec<EmittedToken>,
    /// Set in the request's last output; its id may be used again afterwards.
    pub finished: Option<Finish>,
}

impl Scheduler {
    /// Applies a rank's reply. A reply to an earlier step or epoch, or a second one, is counted and dropped.
    ///
    /// # Errors
    /// When the rank does not exist, the step was not sent yet, or the reply contradicts its plan; then nothing of
    /// the reply is applied.
    pub fn commit(
        &mut self,
        dp_rank: DpRank,
        epoch: Epoch,
        step: StepId,
        reply: StepReply,
    ) -> Result<Vec<Output>, Error> {
        let rank_index = dp_rank.index();
        let rank = self.ranks.get_mut(rank_index).ok_or(Error::UnknownRank { dp_rank })?;
        let group = &mut self.groups[rank.group];
        if (epoch, step) > (group.epoch, group.step) {
            return Err(Error::UnknownStep { group: group.id, epoch, dp_rank, expected: group.step, got: step });
        }
        let index = group.members.iter().position(|member| *member == rank_index).expect("a rank is in its group");
        let awaited = group.in_flight.as_mut().filter(|in_flight| epoch == group.epoch && step == in_flight.step);
        let rows = awaited.and_then(|in_flight| in_flight.rows[index].as_ref().map(|rows| (rows, in_flight.k_draft)));
        let Some((rows, k_draft)) = rows else {
            rank.counters.stale_replies += 1;
            return Ok(Vec::new());
        };
        let checker = ReplyChecker { dp_rank, step, vocab_size: self.config.limits.vocab_size, k_draft };
        checker.check(rows, &reply)?;
        let in_flight = group.in_flight.as_mut().expect("the reply was awaited");
        let rows = in_flight.rows[index].take().expect("the reply was awaited");
        if in_flight.rows.iter().all(Option::is_none) {
            group.in_flight = None;
        }
        let outputs = rows.iter().zip(reply.rows).filter_map(|(sent, row)| self.commit_row(rank_index, sent, row));
        Ok(outputs.collect())
    }

    fn commit_row(&mut self, rank_index: usize, sent: &SentRow, mut reply: RowReply) -> Option<Output> {
        let slot = sent.slot;
        let request = &mut self.requests[slot];
        let seated = request.on_seat_mut();
        seated.in_flight = false;
        if seated.aborted {
            self.retire(rank_index, slot);
            return None;
        }
        seated.computed += if sent.is_decode { 1 + reply.accepted } else { sent.tokens };
        seated.proposed = reply.proposed;
        let counters = &mut self.ranks[rank_index].counters;
        if sent.drafts > 0 {
            counters.drafts.drafts += 1;
            counters.drafts.draft_tokens += u64::from(sent.drafts);
            counters.drafts.accepted_tokens += u64::from(reply.accepted);
            let drafts = &mut counters.drafts;
            drafts.accepted_per_position[..reply.accepted as usize].iter_mut().for_each(|count| *count += 1);
            drafts.verified_per_position[..sent.drafts as usize].iter_mut().for_each(|count| *count += 1);
        }
        let prompt_logprobs = take_prompt_logprobs(request, sent, &mut reply);
        let (tokens, finished) = if sent.samples { take_tokens(request, reply) } else { (Vec::new(), None) };
        counters.emitted_tokens += tokens.len() as u64;
        let id = request.id;
        self.publish(rank_index, slot);
        if !sent.samples && prompt_logprobs.is_empty() {
            return None;
        }
        if finished.is_some() {
            self.retire(rank_index, slot);
            self.finished += 1;
        }
        Some(Output { id, prompt_logprobs, tokens, finished })
    }

    /// Rule 10: blocks whose every position holds a computed, accepted token enter the prefix cache.
    fn publish(&mut self, rank_index: usize, slot: Slot) {
        let Some(secret) = self.config.prefix_cache else { return };
        let block_size = self.config.limits.block_size;
        let request = &mut self.requests[slot];
        let known = request.known();
        let Place::Running(seated) = &mut request.place else { return };
        let full = (seated.computed.min(known) / block_size) as usize;
        if full <= seated.published {
            return;
        }
        request.chain.extend(secret, &request.tokens[..full * block_size as usize], block_size);
        let keys = request.chain.keys();
        let cache = &mut self.ranks[rank_index].blocks.cache;
        // A drafter's last position of a block depends on the token after it: only the very block that comes before
        // was made with this one's tokens.
        let own_chain = self.config.drafter == Drafter::Model;
        for index in seated.published..full {
            let parent = index.checked_sub(1).map(|before| keys[before]);
            let before = index.checked_sub(1).map(|before| seated.blocks[before]);
            if own_chain && parent.and_then(|key| cache.find(key)) != before {
                break;
            }
            cache.publish(seated.blocks[index], keys[index], parent);
        }
        seated.published = full;
    }

    /// Takes a running request off its rank and out of the table.
    pub(crate) fn retire(&mut self, rank_index: usize, slot: Slot) {
        self.ranks[rank_index].unseat(slot, &mut self.requests[slot]);
        self.requests.remove(slot);
    }
}

/// Rule 20: the row's entries for prompt tokens, without those that were reported before a preemption.
fn take_prompt_logprobs(request: &mut Request, sent: &SentRow, reply: &mut RowReply) -> Vec<TokenLogprobs> {
    let (Some(end), Some(next)) = (sent.reported_end, request.report_next) else { return Vec::new() };
    let count = sent.prompt_entries(reply);
    let entries = reply.logprobs.drain(..count);
    let first = end - count as u32;
    let fresh: Vec<TokenLogprobs> = entries.skip(next.saturating_sub(first) as usize).collect();
    request.report_next = Some(next + fresh.len() as u32).filter(|next| *next < request.prompt_len);
    fresh
}

/// Rule 10: the emitted tokens, cut at the first stop token or at the limit.
fn take_tokens(request: &mut Request, reply: RowReply) -> (Vec<EmittedToken>, Option<Finish>) {
    let mut taken = Vec::with_capacity(reply.emitted.len());
    let mut logprobs = reply.logprobs.into_iter();
    for token in reply.emitted {
        taken.push(EmittedToken { token, logprobs: logprobs.next().filter(|entry| !entry.token_ids.is_empty()) });
        request.tokens.push(token);
        if request.stop_token_ids.binary_search(&token).is_ok() {
            return (taken, Some(Finish::Stop(token)));
        }
        if request.left() == 0 {
            return (taken, Some(Finish::Length));
        }
    }
    (taken, None)
}

impl SentRow {
    /// How many of a reply's log-probabilities belong to prompt tokens. A row that emits has an entry for each token
    /// behind them, an empty one where it is not wanted.
    fn prompt_entries(&self, reply: &RowReply) -> usize {
        if self.reported_end.is_some() { reply.logprobs.len().saturating_sub(reply.emitted.len()) } else { 0 }
    }
}

struct ReplyChecker {
    dp_rank: DpRank,
    step: StepId,
    vocab_size: u32,
    k_draft: u32,
}

impl ReplyChecker {
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
            self.check_row(index, sent, row)?;
        }
        Ok(())
    }

    fn check_row(&self, index: usize, sent: &SentRow, row: &RowReply) -> Result<(), Error> {
        self.equal(index, "seat", sent.seat.get().into(), row.seat.get().into())?;
        self.equal(index, "generation", sent.generation.get().into(), row.generation.get().into())?;
        self.equal(index, "known", sent.known.into(), row.known.into())?;
        self.at_most(index, "accepted", sent.drafts.into(), row.accepted.into())?;
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
