//! One lockstep group: who its workers are and how far they have come.

use paceline_plan::{DpRank, Epoch, GroupId, StepId};

use crate::message::{Loaded, WorkerId};

/// How far a worker has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Stage {
    Joined,
    Loaded,
    Formed,
}

/// The worker of one rank.
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
    pub(crate) collectives: Option<(DpRank, u32)>,
    pub(crate) waiting: Vec<DpRank>,
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
    /// In service, nothing in flight.
    Ready,
    /// In service, one step in flight.
    Stepping(InFlight),
    /// For good.
    Stopped,
}

/// One rank of a group.
#[derive(Clone, Debug)]
pub(crate) struct Member {
    pub(crate) dp_rank: DpRank,
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
    pub(crate) members: Vec<Member>,
    /// True once it has been in service.
    pub(crate) proven: bool,
    /// Since when it has not been in service.
    pub(crate) down_since_ms: u64,
}

impl Group {
    pub(crate) fn new(id: GroupId, dp_ranks: Vec<DpRank>) -> Self {
        let member =
            |dp_rank| Member { dp_rank, worker: None, restarts: 0, joined_before: false, gone_process_id: None };
        Self {
            id,
            epoch: Epoch::new(1),
            phase: Phase::Assembling,
            members: dp_ranks.into_iter().map(member).collect(),
            proven: false,
            down_since_ms: 0,
        }
    }

    pub(crate) fn dp_ranks(&self) -> Vec<DpRank> {
        self.members.iter().map(|member| member.dp_rank).collect()
    }

    pub(crate) const fn in_service(&self) -> bool {
        matches!(self.phase, Phase::Ready | Phase::Stepping(_))
    }

    /// True when every rank has a worker at `stage` or past it, with its steps stream open.
    pub(crate) fn all_at(&self, stage: Stage) -> bool {
        let there = |worker: &Worker| worker.stage >= stage && worker.attached;
        self.members.iter().all(|member| member.worker.as_ref().is_some_and(there))
    }

    /// The ranks that are not at `stage` yet, for people.
    pub(crate) fn missing(&self, stage: Stage) -> Vec<DpRank> {
        let there = |worker: &Worker| worker.stage >= stage && worker.attached;
        let absent = |member: &&Member| !member.worker.as_ref().is_some_and(there);
        self.members.iter().filter(absent).map(|member| member.dp_rank).collect()
    }

    pub(crate) fn workers(&self) -> impl Iterator<Item = (DpRank, &Worker)> {
        self.members.iter().filter_map(|member| Some((member.dp_rank, member.worker.as_ref()?)))
    }

    pub(crate) fn member(&mut self, dp_rank: DpRank) -> Option<&mut Member> {
        self.members.iter_mut().find(|member| member.dp_rank == dp_rank)
    }

    pub(crate) fn worker(&mut self, dp_rank: DpRank) -> Option<&mut Worker> {
        self.member(dp_rank)?.worker.as_mut()
    }
}

/// Rank numbers in words: `dp0, dp2`.
pub(crate) fn names(dp_ranks: &[DpRank]) -> String {
    dp_ranks.iter().map(|dp_rank| format!("dp{dp_rank}")).collect::<Vec<_>>().join(", ")
}
