//! Which worker of which rank.

use paceline_plan::DpRank;

/// The place of a worker: its rank, and its part of the rank's model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    /// The data-parallel rank.
    pub dp_rank: DpRank,
    /// The worker within the rank, below `tp_size`.
    pub tp_rank: u32,
}

impl Place {
    /// The place of worker `tp_rank` of rank `dp_rank`.
    pub const fn new(dp_rank: DpRank, tp_rank: u32) -> Self {
        Self { dp_rank, tp_rank }
    }

    /// For people: `dp0 tp1`, or `dp0` where a rank is one worker.
    pub fn name(self, tp_size: u32) -> String {
        if tp_size == 1 { format!("dp{}", self.dp_rank) } else { format!("dp{} tp{}", self.dp_rank, self.tp_rank) }
    }
}
