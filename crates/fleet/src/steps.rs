//! Steps out, replies and refusals in.

use paceline_plan::{DpRank, StepId, StepReply};
use paceline_scheduler::Output;

use crate::dispatch::{Dispatch, Encoded};
use crate::fleet::Fleet;
use crate::group::{InFlight, Phase};
use crate::message::{Action, FailureKind, Level, PlanRefusal, StepAnswer, WorkerId};

/// Why a reply is a fault: the field and both values.
struct False {
    field: &'static str,
    expected: String,
    got: String,
}

fn check<T: PartialEq + std::fmt::Display + Copy>(field: &'static str, expected: T, got: T) -> Result<(), False> {
    if expected == got {
        return Ok(());
    }
    Err(False { field, expected: expected.to_string(), got: got.to_string() })
}

impl Fleet {
    /// The next plan to send: encode it, tell [`Self::sent`], send it, and ask again.
    pub fn next_dispatch(&mut self) -> Option<Dispatch> {
        let scheduler = self.scheduler.as_mut()?;
        for group in &self.groups {
            if !matches!(group.phase, Phase::Ready) {
                continue;
            }
            if let Some(plan) = scheduler.plan(group.id) {
                let workers = group.workers().map(|(_, worker)| worker.id).collect();
                return Some(Dispatch { plan, workers });
            }
        }
        None
    }

    /// A plan is on its way.
    pub fn sent(&mut self, dispatch: &Dispatch, encoded: &Encoded) {
        let plan = dispatch.plan.group();
        let deadlines = self.config.deadlines;
        let tokens = u64::from(plan.target().tokens_padded().get());
        let allowed_ms = deadlines.step_ms + tokens * deadlines.step_token_us / 1_000;
        let group = &mut self.groups[plan.group().get() as usize];
        group.phase = Phase::Stepping(InFlight {
            step: plan.step(),
            digest: encoded.digest,
            passes: plan.passes().len() as u32,
            collectives: None,
            waiting: plan.dp_ranks().to_vec(),
            deadline_ms: self.now_ms + allowed_ms,
        });
        self.counters.steps += 1;
    }

    pub(crate) fn reply(&mut self, id: WorkerId, answer: StepAnswer) {
        // A worker that was let go of answers late: its seats are void.
        let Some((index, dp_rank)) = self.find(id) else { return };
        let (epoch, step) = (answer.epoch, answer.step);
        let asked = self.step_in_flight(index).unwrap_or(step);
        let result = self.check_reply(index, dp_rank, answer).and_then(|reply| {
            let scheduler = self.scheduler.as_mut().expect("invariant: a step in flight has a scheduler");
            scheduler.commit(dp_rank, epoch, step, reply).map_err(|error| False {
                field: "reply",
                expected: "an answer to the plan".to_owned(),
                got: error.to_string(),
            })
        });
        match result {
            Ok(outputs) => {
                self.deliver(outputs);
                self.answered(index, dp_rank);
            }
            Err(False { field, expected, got }) => {
                let message = format!("false reply to step {asked}: {field}: expected {expected}, got {got}");
                self.fault(index, &[dp_rank], FailureKind::Internal, &message);
            }
        }
    }

    fn step_in_flight(&self, index: usize) -> Option<StepId> {
        match &self.groups[index].phase {
            Phase::Stepping(in_flight) => Some(in_flight.step),
            _ => None,
        }
    }

    fn check_reply(&mut self, index: usize, dp_rank: DpRank, answer: StepAnswer) -> Result<StepReply, False> {
        let group = &mut self.groups[index];
        let Phase::Stepping(in_flight) = &mut group.phase else {
            return check("steps in flight", 1, 0).map(|()| StepReply::default());
        };
        check("group", group.id.get(), answer.group.get())?;
        check("epoch", group.epoch.get(), answer.epoch.get())?;
        check("step", in_flight.step.get(), answer.step.get())?;
        check("replies", 1, 1 + usize::from(!in_flight.waiting.contains(&dp_rank)))?;
        check("digest", in_flight.digest, answer.digest)?;
        let reply = answer.body.map_err(|error| False {
            field: "body",
            expected: "a reply".to_owned(),
            got: error.to_string(),
        })?;
        check("dp_rank", dp_rank.get(), reply.dp_rank.get())?;
        check("passes", in_flight.passes, reply.passes)?;
        let (_, collectives) = *in_flight.collectives.get_or_insert((dp_rank, reply.collectives));
        check("collectives", collectives, reply.collectives)?;
        Ok(reply)
    }

    fn answered(&mut self, index: usize, dp_rank: DpRank) {
        let now_ms = self.now_ms;
        let group = &mut self.groups[index];
        if let Some(worker) = group.worker(dp_rank) {
            worker.heard_ms = now_ms;
        }
        if let Phase::Stepping(in_flight) = &mut group.phase {
            in_flight.waiting.retain(|other| *other != dp_rank);
            if in_flight.waiting.is_empty() {
                group.phase = Phase::Ready;
            }
        }
    }

    fn deliver(&mut self, outputs: Vec<Output>) {
        for output in outputs {
            let Output { id, prompt_logprobs, tokens, finished } = output;
            if !prompt_logprobs.is_empty() {
                self.actions.push(Action::PromptLogprobs { request: id, logprobs: prompt_logprobs });
            }
            if tokens.is_empty() {
                continue;
            }
            self.counters.tokens += tokens.len() as u64;
            if finished.is_some() {
                self.counters.finished += 1;
                self.live.remove(&id);
            }
            self.actions.push(Action::Tokens { request: id, tokens, finish: finished });
        }
    }

    pub(crate) fn refused(&mut self, id: WorkerId, refusal: &PlanRefusal) {
        let Some((index, dp_rank)) = self.find(id) else { return };
        self.counters.refused_plans += 1;
        let PlanRefusal { step, rule, field, expected, got, .. } = refusal;
        let message = format!("refused the plan of step {step}: {rule}: {field}: expected {expected}, got {got}");
        self.log(Level::Error, format!("dp{dp_rank}: {message}"));
        self.fault(index, &[dp_rank], FailureKind::Internal, &message);
    }
}
