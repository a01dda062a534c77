//! Masks of the rows of steps in flight: noted with the plan, ordered once the step before is committed (rule 19).

use paceline_fleet::Dispatch;
use paceline_scheduler::MaskedRow;

use super::StepLoop;
use crate::masks::{Due, StepName};

impl StepLoop {
    /// Notes the rows of a step that wait for masks, rank by rank.
    pub(super) fn note_masked(&mut self, dispatch: &Dispatch) {
        let plan = dispatch.plan().group();
        let Some(scheduler) = self.parts.fleet.scheduler() else { return };
        let masked = scheduler.masked_rows(plan.group());
        let name = StepName { group: plan.group(), epoch: plan.epoch(), step: plan.step() };
        for rows in masked.chunk_by(|left: &MaskedRow, right| left.dp_rank == right.dp_rank) {
            let workers = dispatch.workers_of(rows[0].dp_rank).iter();
            let workers = workers.filter_map(|worker| Some((*worker, self.peers.steps(*worker)?))).collect();
            self.masks_due.push(Due { name, rows: rows.to_vec(), workers });
        }
    }

    /// Has masks made of every rank whose step before is committed (rule 19).
    pub(super) fn order_masks(&mut self) {
        let (Some(scheduler), Some(limits)) = (self.parts.fleet.scheduler(), self.parts.fleet.limits()) else { return };
        for due in std::mem::take(&mut self.masks_due) {
            let StepName { epoch, step, .. } = due.name;
            match scheduler.oldest_owed(due.rows[0].dp_rank) {
                Some(owed) if owed == (epoch, step) => self.masks.order(due, limits.vocab_size),
                Some(owed) if owed < (epoch, step) => self.masks_due.push(due),
                // The epoch has ended: nobody waits any more.
                _ => {}
            }
        }
    }
}
