//! A plan on its way out, and its bytes.

use paceline_plan::{StepPlan, digest, to_bytes};

use crate::message::WorkerId;

/// A plan and the workers that must execute it.
#[derive(Clone, Debug)]
pub struct Dispatch {
    pub(crate) plan: StepPlan,
    pub(crate) workers: Vec<WorkerId>,
}

/// The bytes of a plan: the group part once, the rank parts in the group's order.
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

    /// Encodes it. A pure function, apart from the fleet so that a shell can measure it.
    pub fn encode(&self) -> Encoded {
        let group_part = to_bytes(self.plan.group());
        let rank_parts = self.workers.iter().zip(self.plan.ranks()).map(|(worker, part)| (*worker, to_bytes(part)));
        Encoded { digest: digest(&group_part), rank_parts: rank_parts.collect(), group_part }
    }
}
