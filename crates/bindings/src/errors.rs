//! Rust errors as Python classes, one for each thing that a caller can tell apart, with the numbers as attributes.

use paceline_plan as plan;
use paceline_sampling as sampling;
use pyo3::create_exception;
use pyo3::exceptions::{PyException, PyValueError};
use pyo3::prelude::*;

create_exception!(paceline._core, CoreError, PyException, "Base of every error of this module.");
create_exception!(
    paceline._core,
    PlanRefused,
    CoreError,
    "A plan that breaks a rule. Attributes: rule, field, expected, got, dp_rank, step."
);
create_exception!(
    paceline._core,
    PlanUndecodable,
    PlanRefused,
    "Bytes that are no plan. The same attributes; rule is \"decode\"."
);
create_exception!(
    paceline._core,
    InvalidSampling,
    CoreError,
    "Sampling parameters that cannot be used. Attribute: field, or None where the bytes are broken."
);
create_exception!(
    paceline._core,
    UnusableLogits,
    CoreError,
    "A row of logits from which no token can be chosen. Attributes: row and seat, None outside a step."
);
create_exception!(
    paceline._core,
    StepOutOfOrder,
    CoreError,
    "A call for a step that is not the current one, or not in its turn."
);

create_exception!(
    paceline._core,
    StreamLost,
    CoreError,
    "The daemon cannot be reached, or has closed or broken a stream."
);

/// A refusal by `dp_rank` of `step`, as the class of its kind.
pub(crate) fn plan_error(py: Python<'_>, error: &plan::Error, dp_rank: u32, step: u64) -> PyErr {
    let message = format!("rank {dp_rank} refuses step {step}: {error}");
    let (refusal, field, expected, got) = match error {
        plan::Error::Rule { field, expected, got, .. } => (PlanRefused::new_err(message), *field, *expected, *got),
        plan::Error::Decode { .. } => (PlanUndecodable::new_err(message), "bytes", 0, 0),
    };
    let value = refusal.value(py);
    let attributes = value
        .setattr("rule", error.rule_name())
        .and_then(|()| value.setattr("field", field))
        .and_then(|()| value.setattr("expected", expected))
        .and_then(|()| value.setattr("got", got))
        .and_then(|()| value.setattr("dp_rank", dp_rank))
        .and_then(|()| value.setattr("step", step));
    attributes.map_or_else(|error| error, |()| refusal)
}

/// A sampling error as the class of its kind; `place` is the row and seat of a step.
pub(crate) fn sampling_error(py: Python<'_>, error: &sampling::Error, place: Option<(usize, u32)>) -> PyErr {
    match error {
        sampling::Error::Logit { .. } | sampling::Error::NoCandidate { .. } => {
            let message = match place {
                Some((row, seat)) => format!("row {row} (seat {seat}): {error}"),
                None => error.to_string(),
            };
            let unusable = UnusableLogits::new_err(message);
            let value = unusable.value(py);
            let attributes = value
                .setattr("row", place.map(|(row, _)| row))
                .and_then(|()| value.setattr("seat", place.map(|(_, seat)| seat)));
            attributes.map_or_else(|error| error, |()| unusable)
        }
        sampling::Error::LogitsRows { .. } | sampling::Error::TokenId { .. } => {
            PyValueError::new_err(error.to_string())
        }
        _ => {
            let invalid = InvalidSampling::new_err(error.to_string());
            let attributes = invalid.value(py).setattr("field", error.field());
            attributes.map_or_else(|error| error, |()| invalid)
        }
    }
}
