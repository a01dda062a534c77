//! Steps on their way: planned, explained, sent, answered.

use std::sync::Arc;
use std::time::Instant;

use paceline_fleet::{AnswerBody, Dispatch, Input, StepAnswer, WorkerId};
use paceline_plan::{GroupId, StepId};
use paceline_proto::v1::StepEnvelope;
use paceline_scheduler::{RankExplanation, RequestId};

use super::StepLoop;
use crate::ledger::ExplainedStep;
use crate::meter::{Running, StepTimes, micros};
use crate::slot::TokenSink;
use crate::status::StepTokens;

impl StepLoop {
    /// Makes and sends all plans that can be made now.
    pub(super) async fn send_plans(&mut self) {
        while let Some(dispatch) = self.send_plan() {
            // The workers' sockets are this thread's too: what was sent leaves now, the rest is in no hurry.
            tokio::task::yield_now().await;
            self.explain(dispatch.plan().group().group());
            if !self.masks.is_idle() {
                self.note_masked(&dispatch);
                self.order_masks();
            }
            self.parts.fleet.recycle(dispatch);
        }
    }

    fn send_plan(&mut self) -> Option<Dispatch> {
        let began = Instant::now();
        let dispatch = self.parts.fleet.next_dispatch()?;
        let planned = Instant::now();
        let encoded = dispatch.encode();
        let encoded_at = Instant::now();
        self.parts.fleet.sent(&dispatch, &encoded);
        let times = StepTimes {
            plan_us: micros(planned - began),
            encode_us: micros(encoded_at - planned),
            ..StepTimes::default()
        };
        let (group, step) = (dispatch.plan().group().group(), dispatch.plan().group().step());
        let running = Running { times, sent: encoded_at, waiting: encoded.rank_parts.len() };
        if step == StepId::new(1) {
            // A new epoch: what was in flight before is never answered.
            self.running.retain(|(other, _), _| *other != group);
        }
        self.running.insert((group, step), running);
        self.send_parts(&dispatch, encoded);
        Some(dispatch)
    }

    /// Keeps why the newest step of a group is what it is, and logs it.
    fn explain(&mut self, group: GroupId) {
        let scheduler = self.parts.fleet.scheduler();
        let Some(explanation) = scheduler.and_then(|scheduler| scheduler.explanation(group)) else { return };
        tracing::debug!("{explanation}");
        for rank in &explanation.ranks {
            let dp_rank = rank.dp_rank.get();
            let sink = |request: &RequestId| self.sinks.get(request);
            let started = rank.started.iter().map(|started| &started.id);
            started.filter_map(sink).for_each(|sink| sink.start(dp_rank));
            rank.preempted.iter().filter_map(sink).for_each(TokenSink::preempt);
            if !rank.is_dummy {
                let none = StepTokens { dp_rank, ..StepTokens::default() };
                self.step_tokens.entry(dp_rank).or_insert(none).record(rank.real_tokens);
            }
        }
        let told = explanation.ranks.iter().flat_map(RankExplanation::requests);
        let names = told.filter_map(|request| Some((request, Arc::clone(self.names.get(&request)?)))).collect();
        self.parts.publisher.explain(ExplainedStep { explanation: explanation.clone(), names });
    }

    fn send_parts(&mut self, dispatch: &Dispatch, encoded: paceline_fleet::Encoded) {
        let plan = dispatch.plan().group();
        let group_part = bytes::Bytes::from(encoded.group_part);
        let mut lost = Vec::new();
        for (worker, rank_part) in encoded.rank_parts {
            let envelope = StepEnvelope {
                group: plan.group().get(),
                epoch: plan.epoch().get(),
                step: plan.step().get(),
                digest: encoded.digest,
                group_part: group_part.clone(),
                rank_part: rank_part.into(),
            };
            if !self.peers.step(worker, envelope) {
                lost.push(worker);
            }
        }
        for worker in lost {
            self.feed(Input::Lost(worker, "it does not read its steps stream".to_owned()));
        }
    }

    pub(super) fn reply(&mut self, worker: WorkerId, answer: StepAnswer, received: Instant) {
        let (group, step) = (answer.group, answer.step);
        let worker_us = match &answer.body {
            Ok(AnswerBody::Rows(reply)) => reply.timings_us,
            _ => [0; 4],
        };
        let began = Instant::now();
        self.feed(Input::Reply(worker, answer));
        if !self.masks_due.is_empty() {
            self.order_masks();
        }
        let Some(running) = self.running.get_mut(&(group, step)) else { return };
        if let Some(times) = running.answered(worker_us, received, began.elapsed()) {
            self.running.remove(&(group, step));
            // A step that was sent ahead has waited for this one in its workers.
            self.running.range_mut((group, step)..).filter(|((other, _), _)| *other == group).for_each(|(_, next)| {
                next.sent = next.sent.max(received);
            });
            self.parts.publisher.record(&times);
            tracing::trace!("group {group}: {times:?}");
        }
    }
}
