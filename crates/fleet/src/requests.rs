//! Requests in, and out again when nobody waits for them.

use paceline_scheduler::{RequestId, RequestSpec};

use crate::fleet::Fleet;
use crate::group::Group;
use crate::message::{Action, Declined, FailureKind};

impl Fleet {
    pub(crate) fn submit(&mut self, spec: RequestSpec) {
        let (request, pinned) = (spec.id, spec.pinned);
        let answer = self.take(spec);
        match &answer {
            Ok(()) => {
                self.counters.accepted += 1;
                self.live.insert(request, pinned);
            }
            Err(_) => self.counters.refused += 1,
        }
        self.actions.push(Action::Answer { request, answer });
    }

    fn take(&mut self, spec: RequestSpec) -> Result<(), Declined> {
        let unavailable = |message: &str| Err(Declined::Unavailable(message.to_owned()));
        if self.stopping {
            return unavailable("the daemon stops");
        }
        if let Some(message) = self.gate_refuses(spec.pinned) {
            return unavailable(&message);
        }
        let Some(scheduler) = &mut self.scheduler else {
            return unavailable("the workers are still loading");
        };
        if !self.groups.iter().any(Group::in_service) {
            return unavailable("no rank is in service");
        }
        if let Some(dp_rank) = spec.pinned
            && let Some(group) = self.groups.iter().find(|group| group.dp_ranks().contains(&dp_rank))
            && !group.in_service()
        {
            return unavailable(&format!("dp{dp_rank} is not in service"));
        }
        scheduler.submit(spec)?;
        Ok(())
    }

    /// The request ends with an error; a row of it in flight is dropped with its reply.
    pub(crate) fn stuck(&mut self, request: RequestId, message: String) {
        if let Some(scheduler) = &mut self.scheduler {
            scheduler.abort(request);
        }
        self.fail(request, FailureKind::Stuck, message);
    }

    pub(crate) fn abort(&mut self, request: RequestId) {
        if self.live.remove(&request).is_none() {
            return;
        }
        if let Some(scheduler) = &mut self.scheduler {
            scheduler.abort(request);
        }
        self.counters.aborted += 1;
        self.actions.push(Action::Aborted { request });
    }
}
