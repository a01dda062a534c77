//! The message that answers a step, made here: the worker's own classes of messages take longer than the reply's body.

use bytes::Bytes;
use paceline_proto::v1::step_from_worker::Message as StepMessage;
use paceline_proto::v1::{Reply, StepFromWorker};
use prost::Message;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

/// A `StepFromWorker` with the reply to a step, as bytes for the Steps stream.
#[pyfunction]
#[expect(clippy::too_many_arguments, reason = "one field each, as the message has them")]
pub(crate) fn encode_reply<'py>(
    py: Python<'py>,
    group: u32,
    epoch: u32,
    step: u64,
    digest: u64,
    body: &[u8],
    tokens_digest: u64,
    passes: u32,
    collectives: u32,
) -> Bound<'py, PyBytes> {
    let body = Bytes::copy_from_slice(body);
    let reply = Reply { group, epoch, step, digest, body, tokens_digest, passes, collectives };
    PyBytes::new(py, &StepFromWorker { message: Some(StepMessage::Reply(reply)) }.encode_to_vec())
}
