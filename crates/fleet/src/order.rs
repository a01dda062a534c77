//! What an operator may ask of the fleet: to stop for a while, to take nothing new, to forget what is cached.

use paceline_plan::DpRank;
use paceline_scheduler::{CacheChange, RequestId};

use crate::fleet::Fleet;
use crate::group::{Group, names};
use crate::message::{FailureKind, Level};

/// What a rank does with requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Gate {
    /// They start and run.
    #[default]
    Open,
    /// What runs goes on to its end and nothing starts; new requests wait until the gate is open.
    Finishing,
    /// Nothing runs. What ran keeps its seat and its KV blocks and goes on when the gate is open; new requests wait.
    Paused,
    /// What runs goes on to its end and nothing starts; a request that only this rank may run is refused. As the gate
    /// of the whole fleet: every new request is refused, and all that were taken go on, those that wait too.
    Draining,
}

impl Gate {
    /// Its name in logs and answers.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Finishing => "finishing",
            Self::Paused => "paused",
            Self::Draining => "draining",
        }
    }
}

/// One wish of an operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Sets the gate of a rank, or of the whole fleet. Opening the whole fleet opens every rank.
    Gate(Option<DpRank>, Gate),
    /// Forgets every cached prefix. Requests that run keep the blocks that they hold.
    ResetPrefixCache,
    /// Whether changes of the prefix caches are kept for [`Fleet::take_cache_changes`].
    FollowCache(bool),
}

/// What happened to a rank's prefix cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheChanges {
    /// Which rank.
    pub dp_rank: DpRank,
    /// In order.
    pub changes: Vec<CacheChange>,
    /// Changes after these that were not kept, because nobody fetched them in time.
    pub missed: u64,
}

impl Fleet {
    /// What a rank does with requests; open for a rank that does not exist.
    pub fn gate(&self, dp_rank: DpRank) -> Gate {
        self.gates.get(dp_rank.index()).copied().unwrap_or_default()
    }

    /// Whether every new request is refused.
    pub const fn is_draining(&self) -> bool {
        self.draining
    }

    /// Changes of the prefix caches since the last call, of every rank that has some.
    pub fn take_cache_changes(&mut self) -> Vec<CacheChanges> {
        let Some(scheduler) = &mut self.scheduler else { return Vec::new() };
        let mut all = Vec::new();
        for dp_rank in (0..self.config.dp_size).map(DpRank::new) {
            if let Some((changes, missed)) = scheduler.take_cache_changes(dp_rank)
                && (!changes.is_empty() || missed > 0)
            {
                all.push(CacheChanges { dp_rank, changes, missed });
            }
        }
        all
    }

    pub(crate) fn order(&mut self, order: Order) {
        match order {
            Order::Gate(only, gate) => self.set_gate(only, gate),
            Order::ResetPrefixCache => {
                if let Some(scheduler) = &mut self.scheduler {
                    scheduler.reset_prefix_cache();
                }
                self.log(Level::Info, "the prefix cache is reset".to_owned());
            }
            Order::FollowCache(follow) => {
                self.follows_cache = follow;
                if let Some(scheduler) = &mut self.scheduler {
                    scheduler.follow_cache(follow);
                }
            }
        }
    }

    fn set_gate(&mut self, only: Option<DpRank>, gate: Gate) {
        let ranks: Vec<DpRank> = match only {
            Some(dp_rank) => vec![dp_rank],
            None => (0..self.config.dp_size).map(DpRank::new).collect(),
        };
        self.log(Level::Info, format!("{}: {}", names(&ranks), gate.name()));
        if only.is_none() && matches!(gate, Gate::Open | Gate::Draining) {
            self.draining = gate == Gate::Draining;
        }
        if only.is_none() && gate == Gate::Draining {
            return;
        }
        for dp_rank in &ranks {
            if let Some(own) = self.gates.get_mut(dp_rank.index()) {
                *own = gate;
            }
            self.apply_gate(*dp_rank);
        }
        if gate == Gate::Draining {
            ranks.into_iter().for_each(|dp_rank| self.fail_pinned(dp_rank));
        }
    }

    /// Tells the scheduler what a rank may do, by its gate and by whether it is in service.
    pub(crate) fn apply_gate(&mut self, dp_rank: DpRank) {
        let gate = self.gate(dp_rank);
        let serves = self.groups.iter().any(|group| group.in_service() && group.dp_ranks().contains(&dp_rank));
        if let Some(scheduler) = &mut self.scheduler {
            scheduler.set_available(dp_rank, serves && gate == Gate::Open);
            scheduler.set_paused(dp_rank, gate == Gate::Paused);
        }
    }

    /// Why a request that may run on `pinned` only, or anywhere, is not taken.
    pub(crate) fn gate_refuses(&self, pinned: Option<DpRank>) -> Option<String> {
        if self.draining {
            return Some("the server drains: it takes no new request".to_owned());
        }
        let drains = |dp_rank: DpRank| self.gate(dp_rank) == Gate::Draining;
        match pinned {
            Some(dp_rank) if drains(dp_rank) => Some(format!("dp{dp_rank} drains: it takes no new request")),
            None if (0..self.config.dp_size).map(DpRank::new).all(drains) => {
                Some("every rank drains: none takes a new request".to_owned())
            }
            _ => None,
        }
    }

    /// Requests that wait for this rank only would wait for ever.
    fn fail_pinned(&mut self, dp_rank: DpRank) {
        let Some(scheduler) = &mut self.scheduler else { return };
        let pinned = self.live.iter().filter(|(_, pinned)| **pinned == Some(dp_rank)).map(|(request, _)| *request);
        let waiting: Vec<RequestId> = pinned.filter(|request| scheduler.dp_rank_of(*request).is_none()).collect();
        for request in waiting {
            if let Some(scheduler) = &mut self.scheduler {
                scheduler.abort(request);
            }
            let message = format!("dp{dp_rank} drains: it starts no request");
            self.fail(request, FailureKind::WorkerLost, message);
        }
    }

    /// Whether the ranks asked about (all, where none is named) have come to rest as their gate says: nothing in flight
    /// on a paused one, nothing running on one that finishes or drains, and nothing waiting when the whole fleet drains.
    pub fn is_at_rest(&self, only: Option<DpRank>) -> bool {
        let Some(scheduler) = &self.scheduler else { return true };
        if only.is_none() && self.draining {
            return self.live.is_empty();
        }
        let ranks = self.groups.iter().flat_map(Group::dp_ranks);
        ranks.filter(|dp_rank| only.is_none_or(|only| only == *dp_rank)).all(|dp_rank| match self.gate(dp_rank) {
            Gate::Open => true,
            Gate::Paused => !scheduler.is_stepping(dp_rank),
            Gate::Finishing | Gate::Draining => !scheduler.is_running(dp_rank),
        })
    }
}
