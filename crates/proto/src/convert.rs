//! Between messages of the wire and the types of `plan`, for both ends.

use paceline_plan::seats::StepHeader;
use paceline_plan::{Epoch, Error, GroupId, StepId, WorkerLimits};

use crate::v1::{Refused, StepEnvelope, WorkerSettings};

impl StepEnvelope {
    /// Which step this envelope says it carries.
    #[must_use]
    pub fn header(&self) -> StepHeader {
        StepHeader {
            group: GroupId::new(self.group),
            epoch: Epoch::new(self.epoch),
            step: StepId::new(self.step),
            digest: self.digest,
        }
    }

    /// The answer of a worker that will not run this step (rule 13).
    #[must_use]
    pub fn refused(&self, error: &Error) -> Refused {
        let (field, expected, got) = match error {
            Error::Rule { field, expected, got, .. } => ((*field).to_owned(), *expected, *got),
            Error::Decode { .. } => ("body".to_owned(), 0, 0),
        };
        Refused {
            group: self.group,
            epoch: self.epoch,
            step: self.step,
            rule: error.rule_name(),
            field,
            expected,
            got,
            message: error.to_string(),
        }
    }
}

impl WorkerSettings {
    /// The limits of a worker that loaded with these settings.
    ///
    /// `num_blocks` counts usable KV blocks, the null block not among them; `vocab_size` is the model's.
    #[must_use]
    pub fn limits(&self, num_blocks: u32, vocab_size: u32) -> WorkerLimits {
        WorkerLimits {
            seats: self.seats,
            max_num_seqs: self.max_num_seqs,
            max_num_batched_tokens: self.max_num_batched_tokens,
            max_model_len: self.max_model_len,
            block_size: self.block_size,
            num_blocks,
            k_max: self.k_max,
            row_capacity: self.row_capacity,
            token_capacity: self.token_capacity,
            table_width: self.table_width,
            vocab_size,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_names_the_step_the_rule_and_both_numbers() {
        let envelope = StepEnvelope { group: 1, epoch: 2, step: 3, digest: 4, ..StepEnvelope::default() };
        let refused = envelope.refused(&Error::rule(4, "tokens_padded", 16, 13));
        assert_eq!((refused.group, refused.epoch, refused.step), (1, 2, 3));
        assert_eq!(refused.rule, "rule 4");
        assert_eq!(refused.field, "tokens_padded");
        assert_eq!((refused.expected, refused.got), (16, 13));
        assert!(refused.message.contains("expected 16, got 13"));
        assert_eq!(envelope.header().step, StepId::new(3));
    }
}
