//! The fleet: one function in, actions out. Membership is here; steps, faults and requests are in files of their own.

use std::collections::{BTreeMap, VecDeque};

use paceline_plan::{DpRank, Epoch, GroupId, WorkerLimits};
use paceline_scheduler::{Output, RequestId, Scheduler};

use crate::Error;
use crate::config::Config;
use crate::group::{Group, Member, Phase, Stage, Worker, names};
use crate::join::{Difference, Reference, least, serves, within};
use crate::message::{Action, Input, Join, Level, Loaded, StoreAddress, WorkerId};
use crate::order::Gate;
use crate::place::Place;
use crate::status::{Counters, RankState, RankStatus, WorkerStatus};

/// Membership, epochs, deadlines and recovery of all ranks, and the scheduler over them.
///
/// After [`Fleet::handle`], ask [`Fleet::next_dispatch`] until it has nothing.
#[derive(Debug)]
pub struct Fleet {
    pub(crate) config: Config,
    pub(crate) groups: Vec<Group>,
    pub(crate) reference: Reference,
    pub(crate) scheduler: Option<Scheduler>,
    /// What a reply gave; empty, its memory is used again.
    pub(crate) outputs: Vec<Output>,
    pub(crate) limits: Option<WorkerLimits>,
    /// Every request that was taken and has not ended, with the rank that it is pinned to.
    pub(crate) live: BTreeMap<RequestId, Option<DpRank>>,
    pub(crate) counters: Counters,
    pub(crate) now_ms: u64,
    pub(crate) was_ready: bool,
    pub(crate) stopping: bool,
    /// By rank.
    pub(crate) gates: Vec<Gate>,
    /// Whether every new request is refused.
    pub(crate) draining: bool,
    /// Whether changes of the prefix caches are kept.
    pub(crate) follows_cache: bool,
    pub(crate) actions: Vec<Action>,
}

impl Fleet {
    /// A fleet without workers.
    ///
    /// # Errors
    /// When the configuration cannot make a correct plan whatever the workers have, with the numbers.
    pub fn new(config: Config) -> Result<Self, Error> {
        // What the workers have is not known yet: enough for one request.
        let mut limits = config.limits;
        (limits.num_blocks, limits.vocab_size) = (limits.table_width.max(1), u32::MAX);
        Scheduler::new(config.scheduler(limits))?;
        let groups = config.groups().into_iter().enumerate();
        let group =
            |(index, ranks): (usize, Vec<DpRank>)| Group::new(GroupId::new(index as u32), &ranks, config.tp_size);
        let groups = groups.map(group).collect();
        Ok(Self {
            gates: vec![Gate::Open; config.dp_size as usize],
            draining: false,
            follows_cache: false,
            config,
            groups,
            reference: Reference::default(),
            scheduler: None,
            outputs: Vec::new(),
            limits: None,
            live: BTreeMap::new(),
            counters: Counters::default(),
            now_ms: 0,
            was_ready: false,
            stopping: false,
            actions: Vec::new(),
        })
    }

    /// Takes one input and gives what is to be done, in order.
    pub fn handle(&mut self, input: Input) -> Vec<Action> {
        match input {
            Input::Join(worker, join) => self.join(worker, &join),
            Input::Attached(worker) => self.with_worker(worker, |worker| worker.attached = true),
            Input::Loaded(worker, loaded) => self.loaded(worker, loaded),
            Input::StoreBound(worker, epoch, address) => self.store_bound(worker, epoch, &address),
            Input::Formed(worker, epoch) => self.formed(worker, epoch),
            Input::Heartbeat(worker) => {
                let now_ms = self.now_ms;
                self.with_worker(worker, |worker| worker.heard_ms = now_ms);
            }
            Input::Reply(worker, answer) => self.reply(worker, answer),
            Input::Refused(worker, refusal) => self.refused(worker, &refusal),
            Input::Lost(worker, reason) => self.lost(worker, &reason),
            Input::Exited(place, process_id, reason) => self.exited(place, process_id, &reason),
            Input::Submit(spec) => self.submit(*spec),
            Input::Abort(request) => self.abort(request),
            Input::Order(order) => self.order(order),
            Input::Stuck(request, message) => self.stuck(request, message),
            Input::Tick(now_ms) => self.tick(now_ms),
            Input::Stop(reason) => self.stop(&reason),
        }
        self.advance();
        std::mem::take(&mut self.actions)
    }

    /// True only when every rank is in service.
    pub fn is_ready(&self) -> bool {
        self.groups.iter().all(Group::in_service)
    }

    /// Every rank, by number.
    pub fn ranks(&self) -> Vec<RankStatus> {
        let mut ranks: Vec<RankStatus> = self.groups.iter().flat_map(rank_states).collect();
        ranks.sort_by_key(|rank| rank.dp_rank);
        ranks
    }

    /// Counts since the fleet was made.
    pub const fn counters(&self) -> Counters {
        self.counters
    }

    /// The scheduler, once the workers' sizes are known.
    pub const fn scheduler(&self) -> Option<&Scheduler> {
        self.scheduler.as_ref()
    }

    /// The sizes that all workers serve, once they are known.
    pub const fn limits(&self) -> Option<WorkerLimits> {
        self.limits
    }

    pub(crate) fn log(&mut self, level: Level, message: String) {
        self.actions.push(Action::Log { level, message });
    }

    /// Where a worker is; nothing for one that was let go of.
    pub(crate) fn find(&self, id: WorkerId) -> Option<(usize, Place)> {
        self.groups.iter().enumerate().find_map(|(index, group)| {
            let (place, _) = group.workers().find(|(_, worker)| worker.id == id)?;
            Some((index, place))
        })
    }

    pub(crate) fn name(&self, place: Place) -> String {
        place.name(self.config.tp_size)
    }

    fn with_worker(&mut self, id: WorkerId, change: impl FnOnce(&mut Worker)) {
        if let Some((index, place)) = self.find(id)
            && let Some(worker) = self.groups[index].worker(place)
        {
            change(worker);
        }
    }

    fn reject(&mut self, worker: WorkerId, difference: Difference) {
        let Difference { field, expected, got } = difference;
        self.actions.push(Action::RejectJoin { worker, field, expected, got });
    }

    fn join(&mut self, id: WorkerId, join: &Join) {
        if self.stopping {
            let expected = "a daemon that goes on".to_owned();
            let got = "one that stops".to_owned();
            return self.reject(id, Difference { field: "daemon", expected, got });
        }
        if let Err(difference) = self.reference.check(&self.config, &self.groups, join) {
            let Difference { field, expected, got } = &difference;
            let (name, process_id) = (self.name(join.place()), join.process_id);
            let message =
                format!("{name}: join of process {process_id} refused: {field}: expected {expected}, got {got}");
            self.log(Level::Error, message);
            return self.reject(id, difference);
        }
        let now_ms = self.now_ms;
        let place = join.place();
        let Some(group) = self.groups.iter_mut().find(|group| group.places().contains(&place)) else {
            return;
        };
        if let Some(member) = group.member(place) {
            member.restarts += u64::from(member.joined_before);
            member.joined_before = true;
            member.worker = Some(Worker {
                id,
                process_id: join.process_id,
                stage: Stage::Joined,
                attached: false,
                loaded: Loaded::default(),
                heard_ms: now_ms,
            });
        }
        let (group, epoch, dp_ranks) = (group.id, group.epoch, group.dp_ranks());
        self.actions.push(Action::Welcome { worker: id, group, epoch, dp_ranks });
        self.log(Level::Info, format!("{}: worker joined (process {})", self.name(place), join.process_id));
    }

    fn loaded(&mut self, id: WorkerId, loaded: Loaded) {
        let Some((_, place)) = self.find(id) else { return };
        if let Err(Difference { field, expected, got }) = within(&self.config, &loaded.contract) {
            let name = &loaded.contract.name;
            return self.lost(id, &format!("attention contract {name}: {field}: expected {expected}, got {got}"));
        }
        if let Some(limits) = &self.limits
            && let Err(difference) = serves(limits, &loaded)
        {
            let Difference { field, expected, got } = difference;
            return self.lost(id, &format!("{field}: expected {expected}, got {got}"));
        }
        self.log(Level::Info, format!("{}: worker loaded, {} KV blocks", self.name(place), loaded.num_blocks));
        self.with_worker(id, |worker| (worker.stage, worker.loaded) = (Stage::Loaded, loaded));
    }

    fn store_bound(&mut self, id: WorkerId, epoch: Epoch, address: &StoreAddress) {
        let Some((index, _)) = self.find(id) else { return };
        if matches!(self.groups[index].phase, Phase::Binding) && self.groups[index].epoch == epoch {
            self.form(index, Some(address));
        }
    }

    fn formed(&mut self, id: WorkerId, epoch: Epoch) {
        let now_ms = self.now_ms;
        let Some((index, place)) = self.find(id) else { return };
        let group = &mut self.groups[index];
        if matches!(group.phase, Phase::Forming)
            && group.epoch == epoch
            && let Some(worker) = group.worker(place)
        {
            (worker.stage, worker.heard_ms) = (Stage::Formed, now_ms);
        }
    }

    /// Takes every group as far as its workers have come.
    fn advance(&mut self) {
        if self.stopping {
            return;
        }
        if self.scheduler.is_none() {
            if !self.groups.iter().all(|group| group.all_at(Stage::Loaded)) {
                return;
            }
            if let Err(message) = self.settle_sizes() {
                self.actions.push(Action::Fatal { message });
                self.stopping = true;
                return;
            }
        }
        for index in 0..self.groups.len() {
            match self.groups[index].phase {
                Phase::Assembling if self.groups[index].all_at(Stage::Loaded) => self.meet(index),
                Phase::Forming if self.groups[index].all_at(Stage::Formed) => self.put_in_service(index),
                _ => {}
            }
        }
    }

    fn settle_sizes(&mut self) -> Result<(), String> {
        let loaded: Vec<Loaded> =
            self.groups.iter().flat_map(Group::workers).map(|(_, worker)| worker.loaded.clone()).collect();
        let limits = least(&self.config, &loaded)
            .map_err(|no| format!("the workers differ in {}: {} and {}", no.field, no.expected, no.got))?;
        let mut scheduler = Scheduler::new(self.config.scheduler(limits)).map_err(|error| error.to_string())?;
        for dp_rank in 0..self.config.dp_size {
            scheduler.set_available(DpRank::new(dp_rank), false);
        }
        scheduler.follow_cache(self.follows_cache);
        (self.scheduler, self.limits) = (Some(scheduler), Some(limits));
        self.actions.push(Action::Sized);
        Ok(())
    }

    fn meet(&mut self, index: usize) {
        let now_ms = self.now_ms;
        let group = &mut self.groups[index];
        group.met_ms = now_ms;
        if group.members.len() == 1 {
            return self.form(index, None);
        }
        group.phase = Phase::Binding;
        let epoch = group.epoch;
        let first = group.workers().next().map(|(_, worker)| worker.id);
        if let Some(worker) = first {
            self.actions.push(Action::BindStore { worker, epoch });
        }
    }

    fn form(&mut self, index: usize, store: Option<&StoreAddress>) {
        let group = &mut self.groups[index];
        group.phase = Phase::Forming;
        let world_size = group.members.len() as u32;
        for (world_rank, (_, worker)) in group.workers().enumerate() {
            self.actions.push(Action::Form {
                worker: worker.id,
                epoch: group.epoch,
                store: store.cloned(),
                world_size,
                world_rank: world_rank as u32,
            });
        }
    }

    fn put_in_service(&mut self, index: usize) {
        let group = &mut self.groups[index];
        group.phase = Phase::Serving(VecDeque::new());
        group.proven = true;
        let dp_ranks = group.dp_ranks();
        let message = format!("group {} ({}) is in service, epoch {}", group.id, names(&dp_ranks), group.epoch);
        dp_ranks.into_iter().for_each(|dp_rank| self.apply_gate(dp_rank));
        self.log(Level::Info, message);
        self.was_ready |= self.is_ready();
    }
}

fn rank_states(group: &Group) -> Vec<RankStatus> {
    let state = |member: &Member| match (&group.phase, &member.worker) {
        (Phase::Stopped, _) => RankState::Stopped,
        (Phase::Serving(_), _) => RankState::Ready,
        _ if group.proven => RankState::Recovering,
        (_, None) => RankState::Absent,
        (_, Some(worker)) if worker.stage == Stage::Joined => RankState::Loading,
        (_, Some(_)) => RankState::Loaded,
    };
    let worker = |member: &Member| WorkerStatus {
        tp_rank: member.place.tp_rank,
        state: state(member),
        restarts: member.restarts,
    };
    let rank = |members: &[Member]| {
        let workers: Vec<WorkerStatus> = members.iter().map(worker).collect();
        RankStatus {
            dp_rank: members[0].place.dp_rank,
            state: workers.iter().map(|worker| worker.state).min().unwrap_or(RankState::Absent),
            restarts: workers.iter().map(|worker| worker.restarts).max().unwrap_or(0),
            workers,
        }
    };
    group.members.chunks(group.tp_size as usize).map(rank).collect()
}
