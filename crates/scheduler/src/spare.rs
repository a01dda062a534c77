//! Memory of earlier steps, used again: a steady step asks for none.

use paceline_plan::{DpRank, Pass, RankLoad, RankPart, StepPlan};

use crate::pace::Prospect;
use crate::selection::Selection;
use crate::sent::SentRows;
use crate::shape::Demand;

/// Empty vectors that kept their memory.
#[derive(Clone, Debug, Default)]
pub(crate) struct Spare {
    /// Passes of old plans, whose loads are used again.
    passes: Vec<Vec<Pass>>,
    pub(crate) loads: Vec<Vec<RankLoad>>,
    pub(crate) counts: Vec<Vec<u32>>,
    /// Ranks of old plans: mostly those of new ones.
    dp_ranks: Vec<Vec<DpRank>>,
    /// Parts of old plans, to be made anew in place.
    pub(crate) parts: Vec<Vec<RankPart>>,
    pub(crate) sent: Vec<SentRows>,
    pub(crate) flights: Vec<Vec<Option<SentRows>>>,
    /// What one plan is made in; nothing while one is made.
    pub(crate) desk: Option<Box<Desk>>,
}

/// What a plan is made in, by index in the group. Whatever was left of an earlier plan is overwritten.
#[derive(Clone, Debug, Default)]
pub(crate) struct Desk {
    /// At least as many as the group has ranks.
    pub(crate) selections: Vec<Selection>,
    pub(crate) demands: Vec<Demand>,
    pub(crate) prospects: Vec<Prospect>,
}

/// Takes an empty vector out of a store of them.
pub(crate) fn empty<T>(store: &mut Vec<Vec<T>>) -> Vec<T> {
    store.pop().unwrap_or_default()
}

/// Puts a vector back, emptied.
pub(crate) fn keep<T>(store: &mut Vec<Vec<T>>, mut vector: Vec<T>) {
    vector.clear();
    store.push(vector);
}

impl Spare {
    /// The same loads once more.
    pub(crate) fn copy_of(&mut self, loads: &[RankLoad]) -> Vec<RankLoad> {
        let mut copy = empty(&mut self.loads);
        copy.extend_from_slice(loads);
        copy
    }

    /// Memory for a step's passes, and for the loads of one of them.
    pub(crate) fn passes_and_loads(&mut self) -> (Vec<Pass>, Vec<RankLoad>) {
        let mut passes = self.passes.pop().unwrap_or_default();
        let mut loads = passes.pop().map_or_else(|| empty(&mut self.loads), Pass::into_loads);
        loads.clear();
        while let Some(pass) = passes.pop() {
            keep(&mut self.loads, pass.into_loads());
        }
        (passes, loads)
    }

    /// The same ranks once more.
    pub(crate) fn dp_ranks_like(&mut self, dp_ranks: &[DpRank]) -> Vec<DpRank> {
        let mut like = self.dp_ranks.pop().unwrap_or_default();
        if like != dp_ranks {
            like.clear();
            like.extend_from_slice(dp_ranks);
        }
        like
    }

    /// Parts for so many ranks, to be made anew.
    pub(crate) fn parts_of(&mut self, ranks: usize) -> Vec<RankPart> {
        match self.parts.pop_if(|parts| parts.len() == ranks) {
            Some(parts) => parts,
            None => self.other_parts_of(ranks),
        }
    }

    #[cold]
    fn other_parts_of(&mut self, ranks: usize) -> Vec<RankPart> {
        let fitting = self.parts.iter().position(|parts| parts.len() == ranks);
        let mut parts = fitting.map_or_else(Vec::new, |index| self.parts.swap_remove(index));
        parts.resize_with(ranks, RankPart::default);
        parts
    }

    /// Takes a plan apart.
    pub(crate) fn keep_plan(&mut self, plan: StepPlan) {
        let (group, parts) = plan.into_parts();
        let group = group.into_draft();
        self.parts.push(parts);
        self.passes.push(group.passes);
        self.dp_ranks.push(group.dp_ranks);
    }
}
