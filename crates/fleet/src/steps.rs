//! Steps out, replies and refusals in.

use std::collections::BTreeMap;
use std::fmt::Display;

use paceline_plan::{DpRank, Epoch, RowDrafts, StepId, StepReply};
use paceline_scheduler::Output;

use crate::dispatch::{Dispatch, Encoded};
use crate::fleet::Fleet;
use crate::group::{InFlight, Phase};
use crate::message::{Action, AnswerBody, FailureKind, Level, PlanRefusal, StepAnswer, TpEcho, WorkerId};
use crate::place::Place;

/// Why a reply is a fault: whose, the field and both values.
struct False {
    place: Place,
    field: &'static str,
    expected: String,
    got: String,
}

impl False {
    fn new(place: Place, field: &'static str, expected: impl Display, got: impl Display) -> Self {
        Self { place, field, expected: expected.to_string(), got: got.to_string() }
    }
}

fn same(place: Place, field: &'static str, expected: u64, got: u64) -> Result<(), False> {
    if expected == got { Ok(()) } else { Err(False::new(place, field, expected, got)) }
}

impl InFlight {
    /// Keeps what a worker said. The reply of its rank, once all of the rank's workers agree on it.
    fn note(&mut self, place: Place, body: AnswerBody) -> Result<Option<StepReply>, False> {
        let rank = place.dp_rank;
        match body {
            AnswerBody::Rows(reply) if self.is_complete(rank) && self.echoes.is_empty() => return Ok(Some(reply)),
            AnswerBody::Rows(reply) => drop(self.held.insert(rank, reply)),
            AnswerBody::Echo(echo) => drop(self.echoes.insert(place, echo.tokens_digest)),
        }
        let Some(reply) = self.held.get(&rank) else { return Ok(None) };
        let expected = reply.tokens_digest();
        for (other, got) in self.echoes.iter().filter(|(other, _)| other.dp_rank == rank) {
            same(*other, "tokens digest", expected, *got)?;
        }
        Ok(if self.is_complete(rank) { self.held.remove(&rank) } else { None })
    }

    fn is_complete(&self, rank: DpRank) -> bool {
        self.waiting.iter().all(|place| place.dp_rank != rank)
    }
}

impl Fleet {
    /// The next plan to send: encode it, tell [`Self::sent`], send it, and ask again.
    pub fn next_dispatch(&mut self) -> Option<Dispatch> {
        let scheduler = self.scheduler.as_mut()?;
        for group in &self.groups {
            if !group.in_service() {
                continue;
            }
            if let Some(plan) = scheduler.plan(group.id) {
                let workers: Vec<WorkerId> = group.workers().map(|(_, worker)| worker.id).collect();
                let workers = workers.chunks(group.tp_size as usize).map(<[WorkerId]>::to_vec).collect();
                return Some(Dispatch { plan, workers });
            }
        }
        None
    }

    /// A plan was sent: its memory is used for a later one. Nobody needs to.
    pub fn recycle(&mut self, dispatch: Dispatch) {
        if let Some(scheduler) = &mut self.scheduler {
            scheduler.recycle(dispatch.plan);
        }
    }

    /// A plan is on its way.
    pub fn sent(&mut self, dispatch: &Dispatch, encoded: &Encoded) {
        let plan = dispatch.plan.group();
        let deadlines = self.config.deadlines;
        let tokens = u64::from(plan.target().tokens_padded().get());
        let allowed_ms = deadlines.step_ms + tokens * deadlines.step_token_us / 1_000;
        let group = &mut self.groups[plan.group().get() as usize];
        let waiting = group.places();
        let Phase::Serving(steps) = &mut group.phase else { return };
        steps.push_back(InFlight {
            step: plan.step(),
            digest: encoded.digest,
            passes: plan.passes().len() as u32,
            collectives: None,
            waiting,
            held: BTreeMap::new(),
            echoes: BTreeMap::new(),
            allowed_ms,
            deadline_ms: self.now_ms + allowed_ms,
        });
        self.counters.steps += 1;
    }

    pub(crate) fn reply(&mut self, id: WorkerId, answer: StepAnswer) {
        // A worker that was let go of answers late: its seats are void.
        let Some((index, place)) = self.find(id) else { return };
        let (epoch, step) = (answer.epoch, answer.step);
        let asked = self.groups[index].owed_by(place).map_or(step, |in_flight| in_flight.step);
        let result = match self.check_reply(index, place, answer) {
            Ok(None) => Ok(Vec::new()),
            Ok(Some(reply)) => self.commit(place, epoch, step, reply),
            Err(no) => Err(no),
        };
        match result {
            Ok(outputs) => {
                self.deliver(outputs);
                self.answered(index, place);
            }
            Err(False { place, field, expected, got }) => {
                let message = format!("false reply to step {asked}: {field}: expected {expected}, got {got}");
                self.fault(index, &[place], FailureKind::Internal, &message);
            }
        }
    }

    fn commit(&mut self, place: Place, epoch: Epoch, step: StepId, reply: StepReply) -> Result<Vec<Output>, False> {
        let scheduler = self.scheduler.as_mut().expect("invariant: a step in flight has a scheduler");
        let drafts = reply.drafts.clone();
        let mut outputs = std::mem::take(&mut self.outputs);
        let result = scheduler.commit_into(place.dp_rank, epoch, step, reply, &mut outputs);
        for RowDrafts { seat, generation, drafts } in drafts {
            if let Some(request) = scheduler.request_on(place.dp_rank, seat, generation) {
                self.actions.push(Action::Drafts { request, drafts });
            }
        }
        let place = Place::new(place.dp_rank, 0);
        result.map(|()| outputs).map_err(|error| False::new(place, "reply", "an answer to the plan", error))
    }

    /// Notes the answer of a worker. The reply of its rank once all of the rank's workers have said the same.
    fn check_reply(&mut self, index: usize, place: Place, answer: StepAnswer) -> Result<Option<StepReply>, False> {
        let group = &mut self.groups[index];
        let (id, epoch) = (group.id, group.epoch);
        let check = |field, expected, got| same(place, field, expected, got);
        check("group", id.get().into(), answer.group.get().into())?;
        check("epoch", epoch.get().into(), answer.epoch.get().into())?;
        // A worker answers its steps in order, whatever its peers do.
        let Some(in_flight) = group.owed_by(place) else {
            return Err(False::new(place, "replies that are owed", 0, 1));
        };
        check("step", in_flight.step.get(), answer.step.get())?;
        check("digest", in_flight.digest, answer.digest)?;
        let body = answer.body.map_err(|error| False::new(place, "body", "a reply", error))?;
        let echo = match (&body, place.tp_rank) {
            (AnswerBody::Rows(reply), 0) => {
                check("dp_rank", place.dp_rank.get().into(), reply.dp_rank.get().into())?;
                TpEcho { passes: reply.passes, collectives: reply.collectives, ..TpEcho::default() }
            }
            (AnswerBody::Echo(echo), 1..) => *echo,
            (AnswerBody::Rows(_), _) => return Err(False::new(place, "body", "none", "a reply")),
            (AnswerBody::Echo(_), _) => return Err(False::new(place, "body", "a reply", "none")),
        };
        check("passes", in_flight.passes.into(), echo.passes.into())?;
        let collectives = *in_flight.collectives.get_or_insert(echo.collectives);
        check("collectives", collectives.into(), echo.collectives.into())?;
        in_flight.waiting.retain(|other| *other != place);
        in_flight.note(place, body)
    }

    fn answered(&mut self, index: usize, place: Place) {
        let now_ms = self.now_ms;
        let group = &mut self.groups[index];
        if let Some(worker) = group.worker(place) {
            worker.heard_ms = now_ms;
        }
        let Phase::Serving(steps) = &mut group.phase else { return };
        while steps.front().is_some_and(|in_flight| in_flight.waiting.is_empty()) {
            steps.pop_front();
            // The time of a step that was sent ahead begins when the one before it has ended.
            if let Some(next) = steps.front_mut() {
                next.deadline_ms = now_ms + next.allowed_ms;
            }
        }
    }

    fn deliver(&mut self, mut outputs: Vec<Output>) {
        for output in outputs.drain(..) {
            let Output { id, cached_tokens, prompt_logprobs, tokens, logprobs, finished } = output;
            if !prompt_logprobs.is_empty() {
                self.actions.push(Action::PromptLogprobs { request: id, logprobs: prompt_logprobs.into_vec() });
            }
            if tokens.is_empty() {
                continue;
            }
            self.counters.tokens += tokens.len() as u64;
            if finished.is_some() {
                self.counters.finished += 1;
                self.live.remove(&id);
            }
            self.actions.push(Action::Tokens { request: id, cached_tokens, tokens, logprobs, finish: finished });
        }
        // A reply without outputs brings no memory.
        if outputs.capacity() > self.outputs.capacity() {
            self.outputs = outputs;
        }
    }

    pub(crate) fn refused(&mut self, id: WorkerId, refusal: &PlanRefusal) {
        let Some((index, place)) = self.find(id) else { return };
        self.counters.refused_plans += 1;
        let PlanRefusal { step, rule, field, expected, got, .. } = refusal;
        let message = format!("refused the plan of step {step}: {rule}: {field}: expected {expected}, got {got}");
        self.log(Level::Error, format!("{}: {message}", self.name(place)));
        self.fault(index, &[place], FailureKind::Internal, &message);
    }
}
