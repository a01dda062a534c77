//! What can reach the step loop. Everything that changes state comes through one bounded channel of these.

use std::time::Instant;

use paceline_fleet::{Input, Join, StepAnswer, WorkerId};
use paceline_proto::v1::{ControlToWorker, StepToWorker};
use tokio::sync::{mpsc, oneshot};
use tonic::Status;

use crate::admin::Admin;
use crate::handle::{GenerateRequest, SubmitError};
use crate::slot::TokenSink;

pub(crate) type ControlSender = mpsc::Sender<Result<ControlToWorker, Status>>;
pub(crate) type StepsSender = mpsc::Sender<Result<StepToWorker, Status>>;

/// One event for the step loop.
pub(crate) enum Event {
    /// A request, and where to say yes or no.
    Submit(Box<Submission>),
    /// What an operator wants.
    Admin(Admin),
    /// Look at the list of abandoned requests.
    Wake,
    /// A worker opened its control stream.
    Join(WorkerId, Box<Join>, ControlSender),
    /// A worker opened its steps stream; the answer is who it is, if it may.
    Hello(Box<Hello>),
    /// A worker answered a step; when the answer arrived.
    Reply(WorkerId, Box<StepAnswer>, Instant),
    /// Anything else that is the fleet's business.
    Fleet(Input),
    /// Time passes.
    Tick,
    /// The end, and why.
    Stop(String),
}

/// A request on its way in.
pub(crate) struct Submission {
    pub(crate) id: u64,
    pub(crate) request: GenerateRequest,
    pub(crate) sink: TokenSink,
    pub(crate) answer: oneshot::Sender<Result<(), SubmitError>>,
}

/// A steps stream that says whose it is.
pub(crate) struct Hello {
    pub(crate) dp_rank: u32,
    pub(crate) tp_rank: u32,
    pub(crate) incarnation: String,
    pub(crate) join_token: String,
    pub(crate) sender: StepsSender,
    pub(crate) answer: oneshot::Sender<Option<WorkerId>>,
}
