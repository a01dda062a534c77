//! One lockstep group: who its workers are and how far they have come.

use std::collections::{BTreeMap, VecDeque};

use paceline_plan::{DpRank, Epoch, GroupId, StepId, StepReply};

use crate::message::{Loaded, WorkerId};
use crate::place::Place;

/// How far a worker has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Stage {
    Joined,
    Loaded,
    Formed,
}

/// The worker of one place.
#[derive(Clone, Debug)]
pub(crate) struct Worker {
    pub(crate) id: WorkerId,
    pub(crate) process_id: u32,
    pub(crate) stage: Stage,
    pub(crate) attached: bool,
    pub(crate) loaded: Loaded,
    pub(crate) heard_ms: u64,
}

/// A step that has been sent and not been answered by all.
#[derive(Clone, Debug)]
pub(crate) struct InFlight {
    pub(crate) step: StepId,
    pub(crate) digest: u64,
    pub(crate) passes: u32,
    /// Of the first answer, for comparison with the others.
    pub(crate) collectives: Option<u32>,
    pub(crate) waiting: Vec<Place>,
    /// Replies of ranks that some tp worker has not answered for.
    pub(crate) held: BTreeMap<DpRank, StepReply>,
    /// Digests of the tokens of the other tp workers.
    pub(crate) echoes: BTreeMap<Place, u64>,
    /// How long it may take from the moment that it is the oldest step in flight.
    pub(crate) allowed_ms: u64,
    /// When it has taken that long; of no meaning while an older step is in flight.
    pub(crate) deadline_ms: u64,
}

/// Where a group is in its life.
#[derive(Clone, Debug)]
pub(crate) enum Phase {
    /// Workers join and load.
    Assembling,
    /// The first worker binds the store.
    Binding,
    /// The workers join the process group.
    Forming,
    /// In service, with the steps in flight, the oldest first.
    Serving(VecDeque<InFlight>),
    /// For good.
    Stopped,
}

/// One place of a group.
#[derive(Clone, Debug)]
pub(crate) struct Member {
    pub(crate) place: Place,
    pub(crate) worker: Option<Worker>,
    pub(crate) restarts: u64,
    pub(crate) joined_before: bool,
    /// The process of the worker that was let go of last.
    pub(crate) gone_process_id: Option<u32>,
}

/// One lockstep group.
#[derive(Clone, Debug)]
pub(crate) struct Group {
    pub(crate) id: GroupId,
    pub(crate) epoch: Epoch,
    pub(crate) phase: Phase,
    /// Workers of a rank.
    pub(crate) tp_size: u32,
    /// By rank and tp rank: the index is a worker's rank in the world of the group.
    pub(crate) members: Vec<Member>,
    /// True once it has been in service.
    pub(crate) proven: bool,
    /// Since when it has not been in service.
    pub(crate) down_since_ms: u64,
    /// When its workers began to meet.
    pub(crate) met_ms: u64,
}

impl Group {
    pub(crate) fn new(id: GroupId, dp_ranks: &[DpRank], tp_size: u32) -> Self {
        let places = dp_ranks.iter().flat_map(|rank| (0..tp_size).map(|tp_rank| Place::new(*rank, tp_rank)));
        let member = |place| Member { place, worker: None, restarts: 0, joined_before: false, gone_process_id: None };
        Self {
            id,
            epoch: Epoch::new(1),
            phase: Phase::Assembling,
            tp_size,
            members: places.map(member).collect(),
            proven: false,
            down_since_ms: 0,
            met_ms: 0,
        }
    }

    pub(crate) fn dp_ranks(&self) -> Vec<DpRank> {
        let first = self.members.iter().filter(|member| member.place.tp_rank == 0);
        first.map(|member| member.place.dp_rank).collect()
    }

    pub(crate) fn places(&self) -> Vec<Place> {
        self.members.iter().map(|member| member.place).collect()
    }

    pub(crate) const fn in_service(&self) -> bool {
        matches!(self.phase, Phase::Serving(_))
    }

    /// The oldest step that a worker has not answered.
    pub(crate) fn owed_by(&mut self, place: Place) -> Option<&mut InFlight> {
        let Phase::Serving(steps) = &mut self.phase else { return None };
        steps.iter_mut().find(|in_flight| in_flight.waiting.contains(&place))
    }

    /// The oldest step in flight.
    pub(crate) fn oldest(&self) -> Option<&InFlight> {
        if let Phase::Serving(steps) = &self.phase { steps.front() } else { None }
    }

    /// True when every place has a worker at `stage` or past it, with its steps stream open.
    pub(crate) fn all_at(&self, stage: Stage) -> bool {
        let there = |worker: &Worker| worker.stage >= stage && worker.attached;
        self.members.iter().all(|member| member.worker.as_ref().is_some_and(there))
    }

    /// The places whose workers are not at `stage` yet.
    pub(crate) fn missing(&self, stage: Stage) -> Vec<Place> {
        let there = |worker: &Worker| worker.stage >= stage && worker.attached;
        let absent = |member: &&Member| !member.worker.as_ref().is_some_and(there);
        self.members.iter().filter(absent).map(|member| member.place).collect()
    }

    pub(crate) fn workers(&self) -> impl Iterator<Item = (Place, &Worker)> {
        self.members.iter().filter_map(|member| Some((member.place, member.worker.as_ref()?)))
    }

    pub(crate) fn member(&mut self, place: Place) -> Option<&mut Member> {
        self.members.iter_mut().find(|member| member.place == place)
    }

    pub(crate) fn worker(&mut self, place: Place) -> Option<&mut Worker> {
        self.member(place)?.worker.as_mut()
    }
}

/// Workers in words: `dp0 tp1, dp2 tp0`, or `dp0, dp2` where a rank is one worker.
pub(crate) fn place_names(places: &[Place], tp_size: u32) -> String {
    places.iter().map(|place| place.name(tp_size)).collect::<Vec<_>>().join(", ")
}

/// Ranks in words: `dp0, dp2`.
pub(crate) fn names(dp_ranks: &[DpRank]) -> String {
    dp_ranks.iter().map(|dp_rank| format!("dp{dp_rank}")).collect::<Vec<_>>().join(", ")
}
