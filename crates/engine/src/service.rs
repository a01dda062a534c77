//! The gRPC service that workers dial: bytes in, events out. It decides nothing.

use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use paceline_fleet::{
    AnswerBody, Contract, Input, Join, Loaded, PlanRefusal, StepAnswer, StoreAddress, TpEcho, WorkerId,
};
use paceline_plan::{Epoch, GroupId, StepId, from_bytes};
use paceline_proto::v1::control_from_worker::Message as FromWorker;
use paceline_proto::v1::step_from_worker::Message as StepMessage;
use paceline_proto::v1::workers_server::Workers;
use paceline_proto::v1::{self, ControlFromWorker, ControlToWorker, Reply, StepFromWorker, StepToWorker};
use tokio::sync::{mpsc, oneshot};
use tokio_stream::Stream;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

use crate::event::{Event, Hello};

/// The first message of a stream has to come within this.
const FIRST_MESSAGE_LIMIT: Duration = Duration::from_secs(10);

/// Messages that may wait for one worker. Few steps are in flight, and control messages are few: a full channel means
/// that the worker does not read.
const PEER_CHANNEL: usize = 64;

pub(crate) struct WorkersService {
    events: mpsc::Sender<Event>,
    next_worker: AtomicU64,
}

impl WorkersService {
    pub(crate) const fn new(events: mpsc::Sender<Event>) -> Self {
        Self { events, next_worker: AtomicU64::new(1) }
    }
}

type Outgoing<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

async fn first<T>(stream: &mut Streaming<T>) -> Result<T, Status> {
    let message = tokio::time::timeout(FIRST_MESSAGE_LIMIT, stream.message()).await;
    let late = |_| Status::deadline_exceeded(format!("no first message within {} s", FIRST_MESSAGE_LIMIT.as_secs()));
    message.map_err(late)??.ok_or_else(|| Status::invalid_argument("the stream ended before its first message"))
}

fn stopped() -> Status {
    Status::unavailable("the daemon stops")
}

#[tonic::async_trait]
impl Workers for WorkersService {
    type ControlStream = Outgoing<ControlToWorker>;
    type StepsStream = Outgoing<StepToWorker>;

    async fn control(
        &self,
        request: Request<Streaming<ControlFromWorker>>,
    ) -> Result<Response<Self::ControlStream>, Status> {
        let mut stream = request.into_inner();
        let Some(FromWorker::Join(join)) = first(&mut stream).await?.message else {
            return Err(Status::invalid_argument("the first message of a control stream is Join"));
        };
        let worker = WorkerId::new(self.next_worker.fetch_add(1, Ordering::Relaxed));
        let join = Join {
            dp_rank: join.dp_rank,
            tp_rank: join.tp_rank,
            incarnation: join.incarnation,
            join_token: join.join_token,
            protocol_hash: join.protocol_hash,
            checkpoint_digest: join.checkpoint_digest,
            tokenizer_digest: join.tokenizer_digest,
            process_id: join.process_id,
        };
        let (sender, receiver) = mpsc::channel(PEER_CHANNEL);
        self.events.send(Event::Join(worker, Box::new(join), sender)).await.map_err(|_| stopped())?;
        tokio::spawn(read_control(worker, stream, self.events.clone()));
        Ok(Response::new(Box::pin(ReceiverStream::new(receiver))))
    }

    async fn steps(&self, request: Request<Streaming<StepFromWorker>>) -> Result<Response<Self::StepsStream>, Status> {
        let mut stream = request.into_inner();
        let Some(StepMessage::Hello(hello)) = first(&mut stream).await?.message else {
            return Err(Status::invalid_argument("the first message of a steps stream is Hello"));
        };
        let (sender, receiver) = mpsc::channel(PEER_CHANNEL);
        let (answer, answered) = oneshot::channel();
        let hello = Hello {
            dp_rank: hello.dp_rank,
            tp_rank: hello.tp_rank,
            incarnation: hello.incarnation,
            join_token: hello.join_token,
            sender,
            answer,
        };
        self.events.send(Event::Hello(Box::new(hello))).await.map_err(|_| stopped())?;
        let unknown = || Status::unauthenticated("no worker that joined has this rank and incarnation");
        let worker = answered.await.map_err(|_| stopped())?.ok_or_else(unknown)?;
        tokio::spawn(read_steps(worker, stream, self.events.clone()));
        Ok(Response::new(Box::pin(ReceiverStream::new(receiver))))
    }
}

/// Why a stream that was open is not any more.
fn broken(name: &str, end: Result<(), Status>) -> String {
    match end {
        Ok(()) => format!("the {name} stream was closed"),
        Err(status) => format!("the {name} stream broke ({})", status.message()),
    }
}

async fn read_control(worker: WorkerId, mut stream: Streaming<ControlFromWorker>, events: mpsc::Sender<Event>) {
    let reason = loop {
        let message = match stream.message().await {
            Ok(Some(ControlFromWorker { message: Some(message) })) => message,
            Ok(Some(_)) => break "a control message of an unknown kind came".to_owned(),
            Ok(None) => break broken("control", Ok(())),
            Err(status) => break broken("control", Err(status)),
        };
        let input = match message {
            FromWorker::Join(_) => break "a second Join came on one stream".to_owned(),
            FromWorker::Failure(failure) => break failure.message,
            FromWorker::Progress(progress) => {
                tracing::debug!("worker {}: {} {}/{}", worker.get(), progress.stage, progress.done, progress.total);
                continue;
            }
            FromWorker::Loaded(loaded) => Input::Loaded(worker, self::loaded(loaded)),
            FromWorker::StoreBound(bound) => {
                let address = StoreAddress { host: bound.host, port: bound.port };
                Input::StoreBound(worker, Epoch::new(bound.epoch), address)
            }
            FromWorker::Formed(formed) => Input::Formed(worker, Epoch::new(formed.epoch)),
            FromWorker::Heartbeat(_) => Input::Heartbeat(worker),
        };
        if events.send(Event::Fleet(input)).await.is_err() {
            return;
        }
    };
    // A closed channel means that the step loop has ended; nobody is left to tell.
    let _ = events.send(Event::Fleet(Input::Lost(worker, reason))).await;
}

async fn read_steps(worker: WorkerId, mut stream: Streaming<StepFromWorker>, events: mpsc::Sender<Event>) {
    let reason = loop {
        let message = match stream.message().await {
            Ok(Some(StepFromWorker { message: Some(message) })) => message,
            Ok(Some(_)) => break "a step message of an unknown kind came".to_owned(),
            Ok(None) => break broken("steps", Ok(())),
            Err(status) => break broken("steps", Err(status)),
        };
        let event = match message {
            StepMessage::Hello(_) => break "a second Hello came on one stream".to_owned(),
            StepMessage::Reply(reply) => {
                let received = Instant::now();
                Event::Reply(worker, Box::new(answer(&reply)), received)
            }
            StepMessage::Refused(refused) => {
                let refusal = PlanRefusal {
                    epoch: Epoch::new(refused.epoch),
                    step: StepId::new(refused.step),
                    rule: refused.rule,
                    field: refused.field,
                    expected: refused.expected,
                    got: refused.got,
                };
                Event::Fleet(Input::Refused(worker, refusal))
            }
        };
        if events.send(event).await.is_err() {
            return;
        }
    };
    let _ = events.send(Event::Fleet(Input::Lost(worker, reason))).await;
}

fn loaded(loaded: v1::Loaded) -> Loaded {
    let contract = loaded.attention_contract.unwrap_or_default();
    Loaded {
        num_blocks: loaded.num_blocks,
        row_capacity: loaded.row_capacity,
        vocab_size: loaded.vocab_size,
        contract: Contract {
            name: contract.name,
            uniform_query_len_max: contract.uniform_query_len_max,
            block_sizes: contract.block_sizes,
            table_alignment: contract.table_alignment,
        },
    }
}

/// A reply without a body is that of a tp worker whose tokens are in the reply of tp worker 0.
fn answer(reply: &Reply) -> StepAnswer {
    let Reply { tokens_digest, passes, collectives, .. } = *reply;
    let body = if reply.body.is_empty() {
        Ok(AnswerBody::Echo(TpEcho { tokens_digest, passes, collectives }))
    } else {
        from_bytes(&reply.body).map(AnswerBody::Rows)
    };
    StepAnswer {
        group: GroupId::new(reply.group),
        epoch: Epoch::new(reply.epoch),
        step: StepId::new(reply.step),
        digest: reply.digest,
        body,
    }
}
