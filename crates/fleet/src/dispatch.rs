//! A plan on its way out, and its bytes.

use paceline_plan::{DpRank, StepPlan, digest, to_bytes};

use crate::message::WorkerId;

/// A plan and the workers that must execute it.
#[derive(Clone, Debug)]
pub struct Dispatch {
    pub(crate) plan: StepPlan,
    /// The tp workers of each rank, in the group's order.
    pub(crate) workers: Vec<Vec<WorkerId>>,
}

/// The bytes of a plan: the group part once, the rank parts in the group's order, the same for all of a rank's tp
/// workers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Encoded {
    /// Digest of the group part.
    pub digest: u64,
    /// The same bytes for every rank.
    pub group_part: Vec<u8>,
    /// One worker and its bytes each.
    pub rank_parts: Vec<(WorkerId, Vec<u8>)>,
}

impl Dispatch {
    /// The plan.
    pub const fn plan(&self) -> &StepPlan {
        &self.plan
    }

    /// The workers of a rank; none when it is not in the group.
    pub fn workers_of(&self, dp_rank: DpRank) -> &[WorkerId] {
        let index = self.plan.group().dp_ranks().iter().position(|other| *other == dp_rank);
        index.and_then(|index| self.workers.get(index)).map_or(&[], Vec::as_slice)
    }

    /// Encodes it. A pure function, apart from the fleet so that a shell can measure it.
    pub fn encode(&self) -> Encoded {
        let group_part = to_bytes(self.plan.group());
        let mut rank_parts = Vec::new();
        for (workers, part) in self.workers.iter().zip(self.plan.ranks()) {
            let bytes = to_bytes(part);
            let Some((last, others)) = workers.split_last() else { continue };
            rank_parts.extend(others.iter().map(|worker| (*worker, bytes.clone())));
            rank_parts.push((*last, bytes));
        }
        Encoded { digest: digest(&group_part), rank_parts, group_part }
    }
}
