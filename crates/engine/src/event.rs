//! What can reach the step loop. Everything that changes state comes through this one channel.

use tokio::sync::oneshot;

use crate::handle::{GenerateRequest, SubmitError};
use crate::slot::TokenSink;

/// One event for the step loop.
pub(crate) enum Event {
    /// A request, and where to say yes or no.
    Submit(Box<Submission>),
    /// Look at the list of abandoned requests.
    Wake,
}

/// A request on its way in.
pub(crate) struct Submission {
    pub(crate) id: u64,
    pub(crate) request: GenerateRequest,
    pub(crate) sink: TokenSink,
    pub(crate) answer: oneshot::Sender<Result<(), SubmitError>>,
}
