//! Everything that goes into a fleet and everything that comes out.

use paceline_plan::{DpRank, Epoch, Error as PlanError, GroupId, Logprobs, StepId, StepReply, TokenLogprobs, Words};
use paceline_scheduler::{Finish, Refusal, RequestId, RequestSpec};

use crate::order::Order;
use crate::place::Place;

/// One connection of a worker, given by the shell: a worker that comes back is another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WorkerId(u64);

impl WorkerId {
    /// Wraps the number.
    pub const fn new(value: u64) -> Self {
        Self(value)
    }

    /// The number.
    pub const fn get(self) -> u64 {
        self.0
    }
}

/// What a worker says of itself before it loads anything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Join {
    /// The rank that it wants to be.
    pub dp_rank: u32,
    /// Its place within the rank.
    pub tp_rank: u32,
    /// New for every process.
    pub incarnation: String,
    /// Proof that it may join.
    pub join_token: String,
    /// Hash of the protocol schema it was built with.
    pub protocol_hash: String,
    /// Digest of the checkpoint that it will load.
    pub checkpoint_digest: String,
    /// Digest of the tokenizer beside it.
    pub tokenizer_digest: String,
    /// For the log.
    pub process_id: u32,
}

impl Join {
    /// Where it wants to be.
    pub const fn place(&self) -> Place {
        Place::new(DpRank::new(self.dp_rank), self.tp_rank)
    }
}

/// What a worker's attention backend can take.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Contract {
    /// Name of the contract.
    pub name: String,
    /// Longest row of a uniform launch; 0 is no limit.
    pub uniform_query_len_max: u32,
    /// Tokens that a KV block may have; empty is any number.
    pub block_sizes: Vec<u32>,
    /// Columns of a block table are a multiple of this; 0 counts as 1.
    pub table_alignment: u32,
}

/// What a worker says of itself once it has loaded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Loaded {
    /// Usable KV blocks.
    pub num_blocks: u32,
    /// Rows that its step buffers hold.
    pub row_capacity: u32,
    /// Token ids are below this.
    pub vocab_size: u32,
    /// What its attention backend can take.
    pub contract: Contract,
}

/// A worker's answer to a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StepAnswer {
    /// The group that the worker says it stepped in.
    pub group: GroupId,
    /// The epoch that it was in.
    pub epoch: Epoch,
    /// The step that it executed.
    pub step: StepId,
    /// Digest of the group part that it executed.
    pub digest: u64,
    /// What came of it, or why the bytes are no reply.
    pub body: Result<AnswerBody, PlanError>,
}

/// What a worker says of a step that it executed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AnswerBody {
    /// Of tp worker 0: what came of its rank's rows.
    Rows(StepReply),
    /// Of the other tp workers: that they did the same.
    Echo(TpEcho),
}

/// What must be equal on all tp workers of a rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TpEcho {
    /// [`StepReply::tokens_digest`].
    pub tokens_digest: u64,
    /// Forwards of the step.
    pub passes: u32,
    /// Collectives that the worker entered in the step.
    pub collectives: u32,
}

impl From<&StepReply> for TpEcho {
    fn from(reply: &StepReply) -> Self {
        Self { tokens_digest: reply.tokens_digest(), passes: reply.passes, collectives: reply.collectives }
    }
}

/// A plan that a worker would not execute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanRefusal {
    /// The epoch of the plan.
    pub epoch: Epoch,
    /// The step of the plan.
    pub step: StepId,
    /// The rule that it breaks, such as `rule 4`.
    pub rule: String,
    /// What is wrong, by its field name.
    pub field: String,
    /// What the rule asks for.
    pub expected: i64,
    /// What the plan says.
    pub got: i64,
}

/// What happens to a fleet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// A worker wants in.
    Join(WorkerId, Join),
    /// A worker that joined has opened its steps stream.
    Attached(WorkerId),
    /// A worker has loaded and warmed up.
    Loaded(WorkerId, Loaded),
    /// A worker has bound the store of an epoch.
    StoreBound(WorkerId, Epoch, StoreAddress),
    /// A worker has joined the process group of an epoch.
    Formed(WorkerId, Epoch),
    /// A worker lives.
    Heartbeat(WorkerId),
    /// A worker executed a step.
    Reply(WorkerId, StepAnswer),
    /// A worker refused a plan.
    Refused(WorkerId, PlanRefusal),
    /// A worker's stream broke, or it said that it cannot go on.
    Lost(WorkerId, String),
    /// The process (by its id) of a worker ended, whether or not it ever joined.
    Exited(Place, u32, String),
    /// A new request.
    Submit(Box<RequestSpec>),
    /// Nobody waits for the request any more.
    Abort(RequestId),
    /// An operator wants something.
    Order(Order),
    /// No token can follow in the request: what its tokens are held to allows none, and why.
    Stuck(RequestId, String),
    /// Time passes; milliseconds since any fixed moment.
    Tick(u64),
    /// The end, and why.
    Stop(String),
}

/// Where the workers of a group meet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreAddress {
    /// Host name or address.
    pub host: String,
    /// Port.
    pub port: u32,
}

/// How a log line is to be taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// For whoever operates the fleet.
    Info,
    /// Something is worse than it should be.
    Warn,
    /// Something failed.
    Error,
}

/// Why a request was not taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Declined {
    /// The scheduler says so.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// No rank could run it now.
    #[error("{0}")]
    Unavailable(String),
}

/// Whose fault the end of a request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureKind {
    /// A worker went away.
    WorkerLost,
    /// A plan was refused or a reply was false.
    Internal,
    /// What the request holds its tokens to allows none.
    Stuck,
}

/// What the shell has to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Tell a worker that it is in.
    Welcome {
        /// Whom.
        worker: WorkerId,
        /// Its group.
        group: GroupId,
        /// The epoch that it will serve in.
        epoch: Epoch,
        /// The group's ranks.
        dp_ranks: Vec<DpRank>,
    },
    /// Tell a worker that it is not in, and close.
    RejectJoin {
        /// Whom.
        worker: WorkerId,
        /// What differs.
        field: &'static str,
        /// What the fleet has.
        expected: String,
        /// What the worker has.
        got: String,
    },
    /// Ask a worker to bind the store of its group.
    BindStore {
        /// Whom.
        worker: WorkerId,
        /// For which epoch.
        epoch: Epoch,
    },
    /// Tell a worker to join its process group and to void every seat.
    Form {
        /// Whom.
        worker: WorkerId,
        /// The epoch that begins.
        epoch: Epoch,
        /// Where the group meets; nothing for a group of one.
        store: Option<StoreAddress>,
        /// Workers of the group.
        world_size: u32,
        /// The worker's place among them.
        world_rank: u32,
    },
    /// Yes or no to a request.
    Answer {
        /// Which.
        request: RequestId,
        /// Whether it was taken.
        answer: Result<(), Declined>,
    },
    /// Tokens of a request, and its end with the last of them.
    Tokens {
        /// Which.
        request: RequestId,
        /// Tokens that it read from the prefix cache when it first started.
        cached_tokens: u32,
        /// In order.
        tokens: Words,
        /// None, or one entry per token, an empty one where it is not wanted.
        logprobs: Logprobs,
        /// Why there are no more.
        finish: Option<Finish>,
    },
    /// Drafts for the next row of a request whose tokens are masked; before its tokens of the same step.
    Drafts {
        /// Which.
        request: RequestId,
        /// In order.
        drafts: Words,
    },
    /// Log-probabilities of prompt tokens, in order, from the second token on; before any token of the output.
    PromptLogprobs {
        /// Whose prompt.
        request: RequestId,
        /// One entry per token, its own first.
        logprobs: Vec<TokenLogprobs>,
    },
    /// A request ends with an error.
    Fail {
        /// Which.
        request: RequestId,
        /// Whose fault.
        kind: FailureKind,
        /// One line for people.
        message: String,
    },
    /// A request is gone because its reader is.
    Aborted {
        /// Which.
        request: RequestId,
    },
    /// Tell a worker to end, and forget it.
    StopWorker {
        /// Whom.
        worker: WorkerId,
        /// Why.
        reason: String,
    },
    /// A place needs a new worker.
    Respawn {
        /// Which.
        place: Place,
    },
    /// The sizes of the fleet are settled.
    Sized,
    /// The fleet cannot go on.
    Fatal {
        /// One line for people.
        message: String,
    },
    /// A line for people.
    Log {
        /// How to take it.
        level: Level,
        /// It names the rank.
        message: String,
    },
}
