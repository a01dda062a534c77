//! What goes wrong, and the way back: the group's epoch ends, its requests end with an error, its workers are replaced.

use paceline_plan::DpRank;
use paceline_scheduler::RequestId;

use crate::fleet::Fleet;
use crate::group::{Group, Phase, Stage, names, place_names};
use crate::message::{Action, FailureKind, Level, WorkerId};
use crate::place::Place;

/// Between two ticks; a longer gap means that this process itself did not run, and nobody is blamed for it.
const TICK_GAP_MS: u64 = 2_000;

impl Fleet {
    pub(crate) fn lost(&mut self, id: WorkerId, reason: &str) {
        let Some((index, place)) = self.find(id) else { return };
        self.fault(index, &[place], FailureKind::WorkerLost, &format!("worker lost: {reason}"));
    }

    /// A process ended. One that never joined leaves its place without a worker; one that was let go of is no news.
    pub(crate) fn exited(&mut self, place: Place, process_id: u32, reason: &str) {
        let held = self.groups.iter().flat_map(Group::workers);
        let held = held.map(|(at, worker)| (at, worker.id, worker.process_id)).find(|(at, ..)| *at == place);
        match held {
            Some((_, id, held_process_id)) if held_process_id == process_id => self.lost(id, reason),
            Some(_) => {}
            None => {
                let member = self.groups.iter_mut().find_map(|group| group.member(place));
                if member.is_some_and(|member| member.gone_process_id != Some(process_id)) && !self.stopping {
                    self.replace_or_give_up(place, &format!("worker ended before it joined: {reason}"));
                }
            }
        }
    }

    fn replace_or_give_up(&mut self, place: Place, message: &str) {
        let message = format!("{}: {message}", self.name(place));
        if self.config.fatal_start && !self.was_ready {
            self.stopping = true;
            self.actions.push(Action::Fatal { message });
        } else {
            self.log(Level::Error, message);
            self.actions.push(Action::Respawn { place });
        }
    }

    /// Ends the epoch of a group. `blamed` are the workers at fault.
    pub(crate) fn fault(&mut self, index: usize, blamed: &[Place], kind: FailureKind, message: &str) {
        if self.stopping {
            return;
        }
        // Nothing binds the workers to each other before they meet: only those at fault are replaced.
        let alone = matches!(self.groups[index].phase, Phase::Assembling);
        let leaving: Vec<Place> = if alone { blamed.to_vec() } else { self.groups[index].places() };
        if !alone {
            self.end_epoch(index, blamed, kind, message);
        }
        let told = format!("{}: {message}", place_names(blamed, self.config.tp_size));
        for place in &leaving {
            let Some(member) = self.groups[index].member(*place) else { continue };
            if let Some(worker) = member.worker.take() {
                member.gone_process_id = Some(worker.process_id);
                self.actions.push(Action::StopWorker { worker: worker.id, reason: told.clone() });
            }
        }
        for place in leaving {
            if alone || (self.config.fatal_start && !self.was_ready) {
                self.replace_or_give_up(place, message);
            } else {
                self.actions.push(Action::Respawn { place });
            }
            if self.stopping {
                return;
            }
        }
    }

    fn end_epoch(&mut self, index: usize, blamed: &[Place], kind: FailureKind, message: &str) {
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
        let told = format!("{}: {message}", place_names(blamed, self.config.tp_size));
        let (group, count) = (names(&dp_ranks), ended.len());
        let log = format!("{told}; group {id} ({group}) recovers as epoch {epoch}, {count} requests end");
        self.log(Level::Error, log);
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
                group.met_ms += gap_ms;
                if let Phase::Serving(steps) = &mut group.phase {
                    steps.iter_mut().for_each(|in_flight| in_flight.deadline_ms += gap_ms);
                }
            }
        }
        self.check_start();
        for index in 0..self.groups.len() {
            self.check_meeting(index);
            self.check_silence(index);
            self.check_step(index);
        }
        self.check_unserved();
    }

    fn check_start(&mut self) {
        if self.was_ready || self.now_ms <= self.config.deadlines.start_ms {
            return;
        }
        let missing: Vec<Place> = self.groups.iter().flat_map(|group| group.missing(Stage::Formed)).collect();
        let limit_s = self.config.deadlines.start_ms / 1_000;
        self.stopping = true;
        let missing = place_names(&missing, self.config.tp_size);
        let message = format!("{missing}: not in service within {limit_s} s of the start");
        self.actions.push(Action::Fatal { message });
    }

    /// Meeting includes a warm-up with all peers: a worker that does not come through it holds up its whole group.
    fn check_meeting(&mut self, index: usize) {
        let group = &self.groups[index];
        let limit_ms = self.config.deadlines.start_ms;
        let meets = matches!(group.phase, Phase::Binding | Phase::Forming);
        if !meets || self.now_ms.saturating_sub(group.met_ms) <= limit_ms {
            return;
        }
        let missing = group.missing(Stage::Formed);
        let message = format!("worker lost: did not meet its peers within {} s", limit_ms / 1_000);
        self.fault(index, &missing, FailureKind::WorkerLost, &message);
    }

    fn check_silence(&mut self, index: usize) {
        let group = &self.groups[index];
        if !group.in_service() {
            return;
        }
        let limit_ms = self.config.deadlines.heartbeat_ms;
        let silent = group.workers().filter(|(_, worker)| self.now_ms.saturating_sub(worker.heard_ms) > limit_ms);
        let silent: Vec<Place> = silent.map(|(place, _)| place).collect();
        if !silent.is_empty() {
            let message = format!("worker lost: no heartbeat for {limit_ms} ms");
            self.fault(index, &silent, FailureKind::WorkerLost, &message);
        }
    }

    fn check_step(&mut self, index: usize) {
        let Some(in_flight) = self.groups[index].oldest() else { return };
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
