//! The steps stream of a scripted worker, read in the order that a worker needs.

use std::collections::VecDeque;

use paceline_plan::{Error as PlanError, StepMasks, from_bytes};
use paceline_proto::v1::{Masks, StepEnvelope, StepToWorker, step_to_worker};
use tonic::Streaming;

use crate::worker::{Ended, lost};

/// The steps stream: plans and masks come on it in no fixed order, but each kind in the order of steps.
pub(crate) struct Steps {
    stream: Streaming<StepToWorker>,
    plans: VecDeque<StepEnvelope>,
    masks: VecDeque<Masks>,
    /// Of the masks that came and were not told yet.
    mask_bytes: usize,
}

impl Steps {
    pub(crate) const fn new(stream: Streaming<StepToWorker>) -> Self {
        Self { stream, plans: VecDeque::new(), masks: VecDeque::new(), mask_bytes: 0 }
    }

    /// The next plan; nothing at the end of the stream.
    pub(crate) async fn next_plan(&mut self) -> Result<Option<StepEnvelope>, Ended> {
        while self.plans.is_empty() {
            if !self.read().await? {
                return Ok(None);
            }
        }
        Ok(self.plans.pop_front())
    }

    /// The masks of the step of `envelope`, checked to be its own.
    pub(crate) async fn masks_of(&mut self, envelope: &StepEnvelope) -> Result<Result<StepMasks, PlanError>, Ended> {
        let masks = loop {
            match self.masks.pop_front() {
                Some(masks) if masks.epoch == envelope.epoch => break masks,
                Some(_) => {}
                None if self.read().await? => {}
                None => return Err(lost("the daemon closed the steps stream")),
            }
        };
        if masks.step != envelope.step {
            let (expected, got) = (envelope.step.cast_signed(), masks.step.cast_signed());
            return Ok(Err(PlanError::rule(19, "step of the masks", expected, got)));
        }
        Ok(from_bytes(&masks.body))
    }

    /// Bytes of the masks that came since this was last asked.
    pub(crate) const fn take_mask_bytes(&mut self) -> usize {
        std::mem::replace(&mut self.mask_bytes, 0)
    }

    async fn read(&mut self) -> Result<bool, Ended> {
        match self.stream.message().await.map_err(lost)? {
            Some(StepToWorker { message: Some(step_to_worker::Message::Step(envelope)) }) => {
                self.plans.push_back(envelope);
            }
            Some(StepToWorker { message: Some(step_to_worker::Message::Masks(masks)) }) => {
                self.mask_bytes += masks.body.len();
                self.masks.push_back(masks);
            }
            Some(_) => return Err(lost("the daemon sent a step message of an unknown kind")),
            None => return Ok(false),
        }
        Ok(true)
    }
}
