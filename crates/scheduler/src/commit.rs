//! A reply changes requests here (rules 10 and 11): checked against the rows that were sent, then applied whole.

use paceline_plan::{DpRank, Epoch, Logprobs, Row, RowReply, Seat, StepId, StepReply, Words};

use crate::rank::Rank;
use crate::recent::Recent;
use crate::request::{Request, Requests};
use crate::seated::Seated;
use crate::sent::{SentRow, SentRows};
use crate::{Config, Drafter, Error, RequestId, Scheduler, spare};

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
        let (place, in_flight) = (rank.place, &mut group.in_flight);
        let oldest = (0..in_flight.len()).find(|index| in_flight[*index].rows[place].is_some());
        let oldest = oldest.map(|index| &mut in_flight[index]).filter(|oldest| oldest.step <= step);
        let Some(oldest) = oldest.filter(|_| epoch == group.epoch) else {
            rank.counters.stale_replies += 1;
            return Ok(());
        };
        let checker =
            ReplyChecker { dp_rank, step, vocab_size: self.config.limits.vocab_size, k_draft: oldest.k_draft, rank };
        // Rule 16: a worker runs its steps in order, and a row starts from what the one before it came to.
        checker.equal(0, "step", oldest.step.get().cast_signed(), step.get().cast_signed())?;
        let sent = oldest.rows[place].as_ref().expect("the oldest reply that is owed");
        let decode_rows_are_plain = checker.check(sent, &reply)?;
        let mut sent = oldest.rows[place].take().expect("the reply was owed");
        oldest.owed -= 1;
        while in_flight.front().is_some_and(|oldest| oldest.owed == 0) {
            let done = in_flight.pop_front().expect("there is a first one");
            spare::keep(&mut self.spare.flights, done.rows);
        }
        let mut replies = reply.rows;
        let decode_rows: &[Row] = if decode_rows_are_plain { sent.decode_rows() } else { &[] };
        self.commit_plain(rank_index, decode_rows, &mut replies, outputs);
        if decode_rows.len() < sent.rows.len() {
            replies.drain(..decode_rows.len());
            self.commit_others(rank_index, &sent, decode_rows_are_plain, replies, outputs);
        }
        sent.clear();
        self.spare.sent.push(sent);
        Ok(())
    }

    /// Applies replies to decode rows that are [plain](ReplyChecker::are_plain): all of [`Self::commit_row`] that such a row
    /// can come to.
    #[inline(never)]
    fn commit_plain(&mut self, rank_index: usize, rows: &[Row], replies: &mut [RowReply], outputs: &mut Vec<Output>) {
        let Self { config, ranks, requests, finished: ended, .. } = self;
        let rank = &mut ranks[rank_index];
        rank.forget_load();
        let block_size = config.prefix_cache.map(|_| config.limits.block_size);
        let mut emitted_tokens = 0;
        outputs.extend(rows.iter().zip(replies).map(|(row, reply)| {
            let Rank { seated, recent, counters, .. } = &mut *rank;
            let (seated, recent) = (&mut seated[row.seat.index()], &mut recent[row.seat.index()]);
            counters.drafts.count(row.drafts.min(seated.proposed), reply.accepted);
            seated.giving -= 1;
            seated.answer(1 + reply.accepted, row.drafts - reply.accepted, reply.proposed);
            let only = reply.emitted.only();
            let finished = match only {
                Some(token) => take_token(seated, recent, requests, token),
                None => take_tokens(seated, recent, requests, reply),
            };
            emitted_tokens += only.map_or_else(|| reply.emitted.len() as u64, |_| 1);
            let (id, cached_tokens) = (recent.id, recent.cached_tokens);
            if block_size.is_some_and(|block_size| seated.fills_another(block_size)) {
                publish(config, rank, row.seat, requests);
            }
            if finished.is_some() {
                rank.retire(row.seat, requests);
                *ended += 1;
            }
            let tokens = only.map_or_else(|| std::mem::take(&mut reply.emitted), Words::one);
            let (prompt_logprobs, logprobs) = (Logprobs::NONE, Logprobs::NONE);
            Output { id, cached_tokens, prompt_logprobs, tokens, logprobs, finished }
        }));
        rank.counters.emitted_tokens += emitted_tokens;
    }

    /// Applies replies to prompt rows, and to decode rows too unless those are done.
    #[inline(never)]
    fn commit_others(
        &mut self,
        rank_index: usize,
        sent: &SentRows,
        prompts_only: bool,
        replies: Vec<RowReply>,
        outputs: &mut Vec<Output>,
    ) {
        let decode_rows = if prompts_only { 0 } else { sent.decode_rows().len() };
        outputs.reserve(replies.len());
        let mut replies = replies.into_iter();
        for (sent, reply) in sent.iter().take(decode_rows).zip(&mut replies) {
            self.commit_row(rank_index, &sent, reply, outputs);
        }
        for (sent, reply) in sent.prompt_rows().zip(replies) {
            self.commit_row(rank_index, &sent, reply, outputs);
        }
    }

    fn commit_row(&mut self, rank_index: usize, sent: &SentRow, mut reply: RowReply, outputs: &mut Vec<Output>) {
        let Self { config, ranks, requests, .. } = self;
        let rank = &mut ranks[rank_index];
        if sent.seated(rank).is_none() {
            // Rule 11: it ended or left since; what came of its row touches nobody.
            rank.answered_for(sent.seat, sent.generation);
            return;
        }
        rank.forget_load();
        let Rank { seated, recent, counters, .. } = &mut *rank;
        let (seated, recent) = (&mut seated[sent.seat.index()], &mut recent[sent.seat.index()]);
        counters.drafts.count(sent.drafts.min(seated.proposed), reply.accepted);
        seated.giving -= u16::from(sent.samples);
        let computed = if sent.is_decode { 1 + reply.accepted } else { sent.tokens };
        seated.answer(computed, sent.drafts - reply.accepted, reply.proposed);
        let prompt_logprobs = match sent.reported_end {
            Some(end) => take_prompt_logprobs(&mut requests[seated.slot], end, &mut reply),
            None => Logprobs::NONE,
        };
        let (mut finished, reports) = (None, !prompt_logprobs.is_empty());
        if sent.samples {
            finished = take_tokens(seated, recent, requests, &mut reply);
            counters.emitted_tokens += reply.emitted.len() as u64;
        }
        if sent.samples || reports {
            let Recent { id, cached_tokens, .. } = *recent;
            let RowReply { emitted: tokens, logprobs, .. } = reply;
            outputs.push(Output { id, cached_tokens, prompt_logprobs, tokens, logprobs, finished });
        }
        if config.prefix_cache.is_some() && seated.fills_another(config.limits.block_size) {
            publish(config, rank, sent.seat, requests);
        }
        if finished.is_some() {
            self.retire(rank_index, sent.seat);
            self.finished += 1;
        }
    }

    /// Takes a running request off its rank and out of the table.
    pub(crate) fn retire(&mut self, rank_index: usize, seat: Seat) {
        self.ranks[rank_index].retire(seat, &mut self.requests);
    }
}

/// Rule 10: blocks whose every position holds a computed, accepted token enter the prefix cache.
#[inline(never)]
fn publish(config: &Config, rank: &mut Rank, seat: Seat, requests: &mut Requests) {
    let Some(secret) = config.prefix_cache else { return };
    let block_size = config.limits.block_size;
    let Seated { slot, computed, known, published, .. } = *rank.on(seat);
    let request = &mut requests[slot];
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
#[inline(never)]
fn take_tokens(
    seated: &mut Seated,
    recent: &mut Recent,
    requests: &mut Requests,
    reply: &mut RowReply,
) -> Option<Finish> {
    for (index, token) in reply.emitted.iter().copied().enumerate() {
        let finished = take_token(seated, recent, requests, token);
        if finished.is_some() {
            reply.emitted.truncate(index + 1);
            reply.logprobs.truncate(index + 1);
            return finished;
        }
    }
    None
}

/// Gives a request one more token; why it ends with it, if it does.
#[inline(always)]
fn take_token(seated: &mut Seated, recent: &mut Recent, requests: &mut Requests, token: u32) -> Option<Finish> {
    if !recent.push(token) {
        recent.settle(&mut requests[seated.slot]);
        recent.push(token);
    }
    seated.known += 1;
    if recent.stops_at(token).unwrap_or_else(|| requests[seated.slot].stops_at(token)) {
        return Some(Finish::Stop(token));
    }
    (seated.known == seated.end).then_some(Finish::Length)
}

impl Seated {
    /// Rule 10: moves on by `computed` tokens, as a row's answer says; `refused` of its drafts were not accepted.
    #[inline]
    const fn answer(&mut self, computed: u32, refused: u32, proposed: u32) {
        self.in_flight -= 1;
        self.computed += computed;
        // The row was planned as if all its drafts would be accepted (rule 16).
        self.start_max -= refused;
        self.proposed = proposed;
    }

    /// Whether it fills a block that has no name yet.
    #[inline]
    fn fills_another(&self, block_size: u32) -> bool {
        let full = (u64::from(self.published) + 1) * u64::from(block_size);
        u64::from(self.computed.min(self.known)) >= full
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

    /// Whether all decode rows are plain.
    fn check(&self, sent: &SentRows, reply: &StepReply) -> Result<bool, Error> {
        let count = sent.rows.len();
        self.equal(count, "dp_rank", self.dp_rank.get().into(), reply.dp_rank.get().into())?;
        self.equal(count, "rows", count as i64, reply.rows.len() as i64)?;
        let all_plain = self.are_plain(sent.decode_rows(), &reply.rows);
        if !all_plain || !sent.prompts.is_empty() {
            self.check_others(sent, reply, all_plain)?;
        }
        if self.rank.constrained > 0 || !reply.drafts.is_empty() {
            self.check_drafts(sent, reply)?;
        }
        Ok(all_plain)
    }

    /// The prompt rows, and the decode rows too unless those are known to be right.
    #[inline(never)]
    fn check_others(&self, sent: &SentRows, reply: &StepReply, prompts_only: bool) -> Result<(), Error> {
        let right = if prompts_only { sent.decode_rows().len() } else { 0 };
        let mut rows = sent.iter().zip(&reply.rows).enumerate().skip(right);
        rows.try_for_each(|(index, (sent, row))| self.check_row(index, &sent, row))
    }

    /// Whether decode rows and their replies are what they mostly are, and right: all of [`Self::check_row`] in one look, for
    /// requests that still run and want no log-probabilities.
    #[inline(never)]
    fn are_plain(&self, sent: &[Row], replies: &[RowReply]) -> bool {
        let (seats, vocab_size, k_draft) = (&self.rank.seated[..], self.vocab_size, self.k_draft);
        sent.iter().zip(replies).all(|(row, reply)| {
            let seated = &seats[row.seat.index()];
            (seated.generation, reply.generation, reply.seat) == (row.generation, row.generation, row.seat)
                && seated.is_taken()
                && u64::from(reply.known) == u64::from(seated.computed) + 1
                && reply.proposed <= k_draft
                && reply.logprobs.is_empty()
                && match reply.emitted.only() {
                    Some(token) => reply.accepted == 0 && token < vocab_size,
                    None => {
                        reply.accepted <= row.drafts.min(seated.proposed)
                            && reply.emitted.len() as u64 == u64::from(reply.accepted) + 1
                            && reply.emitted.iter().all(|token| *token < vocab_size)
                    }
                }
        })
    }

    /// Rule 19: the drafts of every row whose mask followed are told.
    fn check_drafts(&self, sent: &SentRows, reply: &StepReply) -> Result<(), Error> {
        let mut told = reply.drafts.iter();
        for (index, (sent, row)) in sent.iter().zip(&reply.rows).enumerate() {
            if !sent.is_masked || row.proposed == 0 {
                continue;
            }
            let of_row = told.next().filter(|told| (told.seat, told.generation) == (sent.seat, sent.generation));
            let got = of_row.map_or(0, |told| told.drafts.len());
            self.equal(index, "drafts", row.proposed.into(), got as i64)?;
        }
        self.equal(sent.rows.len(), "rows with drafts", 0, told.count() as i64)
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
