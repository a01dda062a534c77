//! What goes wrong, and the way back: the group's epoch ends, its requests end with an error, its workers are replaced.

use paceline_plan::DpRank;
use paceline_scheduler::RequestId;

use crate::fleet::Fleet;
use crate::group::{Group, Phase, Stage, names};
use crate::message::{Action, FailureKind, Level, WorkerId};

/// Between two ticks; a longer gap means that this process itself did not run, and nobody is blamed for it.
const TICK_GAP_MS: u64 = 2_000;

impl Fleet {
    pub(crate) fn lost(&mut self, id: WorkerId, reason: &str) {
        let Some((index, dp_rank)) = self.find(id) else { return };
        self.fault(index, &[dp_rank], FailureKind::WorkerLost, &format!("worker lost: {reason}"));
    }

    /// A process ended. One that never joined leaves its rank without a worker; one that was let go of is no news.
    pub(crate) fn exited(&mut self, dp_rank: DpRank, process_id: u32, reason: &str) {
        let held = self.groups.iter().flat_map(Group::workers);
        let held = held.map(|(rank, worker)| (rank, worker.id, worker.process_id)).find(|(rank, ..)| *rank == dp_rank);
        match held {
            Some((_, id, held_process_id)) if held_process_id == process_id => self.lost(id, reason),
            Some(_) => {}
            None => {
                let member = self.groups.iter_mut().find_map(|group| group.member(dp_rank));
                if member.is_some_and(|member| member.gone_process_id != Some(process_id)) && !self.stopping {
                    self.replace_or_give_up(dp_rank, &format!("worker ended before it joined: {reason}"));
                }
            }
        }
    }

    fn replace_or_give_up(&mut self, dp_rank: DpRank, message: &str) {
        if self.config.fatal_start && !self.was_ready {
            self.stopping = true;
            self.actions.push(Action::Fatal { message: format!("dp{dp_rank}: {message}") });
        } else {
            self.log(Level::Error, format!("dp{dp_rank}: {message}"));
            self.actions.push(Action::Respawn { dp_rank });
        }
    }

    /// Ends the epoch of a group. `blamed` are the ranks at fault.
    pub(crate) fn fault(&mut self, index: usize, blamed: &[DpRank], kind: FailureKind, message: &str) {
        if self.stopping {
            return;
        }
        // Nothing binds the workers to each other before they meet: only those at fault are replaced.
        let alone = matches!(self.groups[index].phase, Phase::Assembling);
        let leaving: Vec<DpRank> = if alone { blamed.to_vec() } else { self.groups[index].dp_ranks() };
        if !alone {
            self.end_epoch(index, blamed, kind, message);
        }
        let told = format!("{}: {message}", names(blamed));
        for dp_rank in &leaving {
            let Some(member) = self.groups[index].member(*dp_rank) else { continue };
            if let Some(worker) = member.worker.take() {
                member.gone_process_id = Some(worker.process_id);
                self.actions.push(Action::StopWorker { worker: worker.id, reason: told.clone() });
            }
        }
        for dp_rank in leaving {
            if alone || (self.config.fatal_start && !self.was_ready) {
                self.replace_or_give_up(dp_rank, message);
            } else {
                self.actions.push(Action::Respawn { dp_rank });
            }
            if self.stopping {
                return;
            }
        }
    }

    fn end_epoch(&mut self, index: usize, blamed: &[DpRank], kind: FailureKind, message: &str) {
        let group = &mut self.groups[index];
        group.phase = Phase::Assembling;
        group.epoch = group.epoch.next();
        group.down_since_ms = self.now_ms;
        let (id, epoch, dp_ranks) = (group.id, group.epoch, group.dp_ranks());
        let mut ended = Vec::new();
        if let Some(scheduler) = &mut self.scheduler {
            ended = scheduler.void_group(id);
            for request in &ended {
                scheduler.abort(*request);
            }
            for dp_rank in &dp_ranks {
                scheduler.set_available(*dp_rank, false);
            }
        }
        let log = format!(
            "{}: {message}; group {id} ({}) recovers as epoch {epoch}, {} requests end",
            names(blamed),
            names(&dp_ranks),
            ended.len()
        );
        self.log(Level::Error, log);
        let told = format!("{}: {message}", names(blamed));
        for request in ended {
            self.fail(request, kind, told.clone());
        }
    }

    pub(crate) fn fail(&mut self, request: RequestId, kind: FailureKind, message: String) {
        if self.live.remove(&request).is_some() {
            self.counters.failed += 1;
            self.actions.push(Action::Fail { request, kind, message });
        }
    }

    pub(crate) fn tick(&mut self, now_ms: u64) {
        let gap_ms = now_ms.saturating_sub(self.now_ms);
        self.now_ms = now_ms;
        if self.stopping {
            return;
        }
        if gap_ms > TICK_GAP_MS {
            for group in &mut self.groups {
                for worker in group.members.iter_mut().filter_map(|member| member.worker.as_mut()) {
                    worker.heard_ms += gap_ms;
                }
                if let Phase::Stepping(in_flight) = &mut group.phase {
                    in_flight.deadline_ms += gap_ms;
                }
            }
        }
        self.check_start();
        for index in 0..self.groups.len() {
            self.check_silence(index);
            self.check_step(index);
        }
        self.check_unserved();
    }

    fn check_start(&mut self) {
        if self.was_ready || self.now_ms <= self.config.deadlines.start_ms {
            return;
        }
        let missing: Vec<DpRank> = self.groups.iter().flat_map(|group| group.missing(Stage::Formed)).collect();
        let limit_s = self.config.deadlines.start_ms / 1_000;
        self.stopping = true;
        let message = format!("{}: not in service within {limit_s} s of the start", names(&missing));
        self.actions.push(Action::Fatal { message });
    }

    fn check_silence(&mut self, index: usize) {
        let group = &self.groups[index];
        if !group.in_service() {
            return;
        }
        let limit_ms = self.config.deadlines.heartbeat_ms;
        let silent = group.workers().filter(|(_, worker)| self.now_ms.saturating_sub(worker.heard_ms) > limit_ms);
        let silent: Vec<DpRank> = silent.map(|(dp_rank, _)| dp_rank).collect();
        if !silent.is_empty() {
            let message = format!("worker lost: no heartbeat for {limit_ms} ms");
            self.fault(index, &silent, FailureKind::WorkerLost, &message);
        }
    }

    fn check_step(&mut self, index: usize) {
        let Phase::Stepping(in_flight) = &self.groups[index].phase else { return };
        if self.now_ms <= in_flight.deadline_ms {
            return;
        }
        let (step, waiting) = (in_flight.step, in_flight.waiting.clone());
        let message = format!("worker lost: no answer to step {step} within its limit");
        self.fault(index, &waiting, FailureKind::WorkerLost, &message);
    }

    /// Requests that wait for a rank which does not come back end with an error rather than wait for ever.
    fn check_unserved(&mut self) {
        let limit_ms = self.config.deadlines.unserved_ms;
        let now_ms = self.now_ms;
        let groups = self.groups.iter();
        let down = groups.filter(|group| !group.in_service() && now_ms.saturating_sub(group.down_since_ms) > limit_ms);
        let down: Vec<DpRank> = down.flat_map(Group::dp_ranks).collect();
        if down.is_empty() || self.live.is_empty() {
            return;
        }
        let all_down = down.len() as u32 == self.config.dp_size;
        let unserved = |pinned: &Option<DpRank>| pinned.map_or(all_down, |dp_rank| down.contains(&dp_rank));
        let requests = self.live.iter().filter(|(_, pinned)| unserved(pinned));
        let requests: Vec<RequestId> = requests.map(|(request, _)| *request).collect();
        for request in requests {
            if let Some(scheduler) = &mut self.scheduler {
                scheduler.abort(request);
            }
            let message = format!("no rank could run the request for {limit_ms} ms: {} out of service", names(&down));
            self.fail(request, FailureKind::WorkerLost, message);
        }
    }

    pub(crate) fn stop(&mut self, reason: &str) {
        self.stopping = true;
        for index in 0..self.groups.len() {
            self.groups[index].phase = Phase::Stopped;
            let workers: Vec<WorkerId> = self.groups[index].workers().map(|(_, worker)| worker.id).collect();
            for worker in workers {
                self.actions.push(Action::StopWorker { worker, reason: reason.to_owned() });
            }
            for member in &mut self.groups[index].members {
                member.worker = None;
            }
        }
        let requests: Vec<RequestId> = self.live.keys().copied().collect();
        for request in requests {
            self.fail(request, FailureKind::WorkerLost, reason.to_owned());
        }
    }
}
