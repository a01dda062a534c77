//! Options, build, run: the engine's threads, tasks and listener.

use std::time::Duration;

use paceline_fleet::{Config, Fleet};
use paceline_proto::v1::workers_server::WorkersServer;
use paceline_proto::v1::{RowLadder, WorkerSettings};
use paceline_proto::wire;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot};
use tokio_stream::StreamExt;
use tokio_stream::wrappers::TcpListenerStream;
use tokio_util::sync::CancellationToken;

use crate::Error;
use crate::event::Event;
use crate::handle::Handle;
use crate::readers::{self, Readers};
use crate::service::WorkersService;
use crate::slot::Abandoned;
use crate::status::Publisher;
use crate::step_loop::{Parts, StepLoop};
use crate::supervise::Supervisor;

/// Events that may wait for the step loop.
const EVENT_CHANNEL: usize = 4_096;

/// How often the fleet is told the time.
const TICK: Duration = Duration::from_millis(100);

/// How long streams may take to close once the step loop has ended.
const CLOSE_LIMIT: Duration = Duration::from_millis(500);

/// What workers are told that the fleet does not decide by.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ModelSettings {
    /// Folder of the checkpoint.
    pub model_path: String,
    /// `float32` or `bfloat16`.
    pub dtype: String,
    /// What weights are turned into at load: `none` or `int8`.
    pub quantization: String,
    /// `cpu` or `cuda`.
    pub device: String,
    /// Attention backend.
    pub attention_backend: String,
    /// Contract that the backend keeps to; its own unless another is impersonated.
    pub attention_contract: String,
    /// Bytes of KV cache per rank, where `num_blocks_override` is 0.
    pub kv_cache_memory_bytes: u64,
    /// KV blocks per rank; 0 is what the memory holds.
    pub num_blocks_override: u32,
    /// Threads of one worker's model; 0 is the worker's choice.
    pub threads: u32,
    /// How experts are shared by the workers of a group.
    pub expert_parallel: ExpertParallel,
}

/// How the experts of a mixture are shared by the workers of a group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ExpertParallel {
    /// Every rank has all of them; its tp workers share each.
    #[default]
    Off,
    /// Whole experts on each worker; tokens travel by all-gather, results by reduce-scatter.
    AllgatherReducescatter,
    /// Whole experts on each worker; tokens and results travel by all-to-all of fixed size.
    AllToAll,
}

impl ExpertParallel {
    /// Its name for workers, flags and logs.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::AllgatherReducescatter => "allgather_reducescatter",
            Self::AllToAll => "all_to_all",
        }
    }
}

/// What an engine is made with.
#[derive(Debug)]
pub struct Options {
    /// What the fleet is made with.
    pub fleet: Config,
    /// What workers are told besides.
    pub model: ModelSettings,
    /// Where workers dial in.
    pub control_listener: TcpListener,
    /// How long tokens may wait for a reader before its request is ended; `None` waits for ever.
    pub unread: Option<Duration>,
}

/// An engine that is built and not running yet.
#[derive(Debug)]
pub struct Engine {
    options: Options,
    fleet: Fleet,
    events: mpsc::Sender<Event>,
    received: mpsc::Receiver<Event>,
    abandoned: std::sync::Arc<Abandoned>,
    publisher: Publisher,
    orders: mpsc::Sender<crate::LaunchOrder>,
    supervisor: Option<Supervisor>,
}

impl Engine {
    /// Checks the options and makes the parts; nothing runs yet.
    ///
    /// # Errors
    /// When no correct plan can be made with the options, with the numbers.
    pub fn build(options: Options) -> Result<Self, Error> {
        let fleet = Fleet::new(options.fleet.clone())?;
        let (events, received) = mpsc::channel(EVENT_CHANNEL);
        let (orders, ordered) = mpsc::channel(8 * (options.fleet.dp_size * options.fleet.tp_size) as usize + 8);
        let supervisor = Some(Supervisor { orders: ordered, events: events.clone() });
        let abandoned = Abandoned::new(events.clone());
        let publisher = Publisher::default();
        publisher.publish(crate::convert::status(&fleet));
        Ok(Self { options, fleet, events, received, abandoned, publisher, orders, supervisor })
    }

    /// Access to the engine; before and after it runs, submitted requests wait or are refused.
    pub fn handle(&self) -> Handle {
        Handle::new(self.events.clone(), self.abandoned.clone(), self.publisher.clone())
    }

    /// The launcher's end, once.
    pub fn supervisor(&mut self) -> Option<Supervisor> {
        self.supervisor.take()
    }

    /// Runs until `shutdown` is cancelled or the fleet cannot go on. Workers are told to stop before it returns.
    ///
    /// # Errors
    /// Why the fleet cannot go on, or that a thread could not be started.
    pub async fn run(self, shutdown: CancellationToken) -> Result<(), Error> {
        let settings = settings(&self.options);
        let (readers, told) = Readers::new();
        let parts = Parts {
            fleet: self.fleet,
            dp_size: self.options.fleet.dp_size,
            join_token: self.options.fleet.join_token.clone(),
            settings,
            events: self.received,
            loopback: self.events.downgrade(),
            abandoned: self.abandoned,
            publisher: self.publisher,
            orders: self.orders,
            readers,
            unread: self.options.unread,
        };
        drop(self.supervisor);
        let listener = self.options.control_listener.into_std().map_err(Error::Thread)?;
        let (ended, end) = oneshot::channel();
        let events = self.events.clone();
        let thread = std::thread::Builder::new().name("step-loop".to_owned()).spawn(move || {
            // Nobody listens only when `run` itself was dropped.
            let _ = ended.send(lead(StepLoop::new(parts), listener, events));
        });
        thread.map_err(Error::Thread)?;

        // It ends with the step loop, when it has told the last readers.
        tokio::spawn(readers::tell(told));
        let ticker = tokio::spawn(tick(self.events.clone()));
        let stopper = tokio::spawn(stop_when(shutdown, self.events));
        let result = match end.await {
            Ok(result) => result,
            Err(_) => Err(Error::Fatal { message: "the step loop panicked".to_owned() }),
        };
        ticker.abort();
        stopper.abort();
        result
    }
}

/// Runs the step loop and the workers' connections on the calling thread. A reply goes from its socket to the step loop
/// and the next plan from there to the sockets without waking another thread, which takes longer than a plan.
fn lead(step_loop: StepLoop, listener: std::net::TcpListener, events: mpsc::Sender<Event>) -> Result<(), Error> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(Error::Thread)?;
    runtime.block_on(async {
        let listener = TcpListener::from_std(listener).map_err(Error::Thread)?;
        let closing = CancellationToken::new();
        let server = tokio::spawn(serve(listener, events, closing.clone()));
        let result = step_loop.run().await;
        closing.cancel();
        // Streams that are still open then are dropped with the runtime.
        let _ = tokio::time::timeout(CLOSE_LIMIT, server).await;
        result.map_err(|message| Error::Fatal { message })
    })
}

async fn serve(listener: TcpListener, events: mpsc::Sender<Event>, closing: CancellationToken) {
    let service = WorkersServer::new(WorkersService::new(events))
        .max_decoding_message_size(wire::MESSAGE_LIMIT)
        .max_encoding_message_size(wire::MESSAGE_LIMIT);
    let incoming = TcpListenerStream::new(listener).map(|stream| {
        stream.inspect(|stream| {
            if let Err(error) = stream.set_nodelay(true) {
                tracing::debug!("a worker's connection cannot be set to TCP_NODELAY: {error}");
            }
        })
    });
    let served = wire::server().add_service(service).serve_with_incoming_shutdown(incoming, closing.cancelled());
    if let Err(error) = served.await {
        tracing::error!("the control port failed: {error}");
    }
}

async fn tick(events: mpsc::Sender<Event>) {
    let mut interval = tokio::time::interval(TICK);
    interval.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
    loop {
        interval.tick().await;
        // A full channel has more urgent things in it than the time; a closed one needs none.
        let _ = events.try_send(Event::Tick);
    }
}

async fn stop_when(shutdown: CancellationToken, events: mpsc::Sender<Event>) {
    shutdown.cancelled().await;
    let _ = events.send(Event::Stop("the daemon stops".to_owned())).await;
}

fn settings(options: &Options) -> WorkerSettings {
    let (fleet, model) = (&options.fleet, &options.model);
    let limits = &fleet.limits;
    let drafter = match fleet.drafter {
        paceline_scheduler::Drafter::None => "none",
        paceline_scheduler::Drafter::Ngram => "ngram",
        paceline_scheduler::Drafter::Model => "mtp",
    };
    let ladder = |(query_len, rows): (&u32, &Vec<u32>)| RowLadder { query_len: *query_len, rows: rows.clone() };
    let row_ladders =
        if fleet.shapes.full { fleet.shapes.row_ladders.iter().map(ladder).collect() } else { Vec::new() };
    WorkerSettings {
        model_path: model.model_path.clone(),
        dtype: model.dtype.clone(),
        device: model.device.clone(),
        attention_backend: model.attention_backend.clone(),
        attention_contract: model.attention_contract.clone(),
        dp_size: fleet.dp_size,
        tp_size: fleet.tp_size,
        max_num_seqs: limits.max_num_seqs,
        max_num_batched_tokens: limits.max_num_batched_tokens,
        max_model_len: limits.max_model_len,
        block_size: limits.block_size,
        num_blocks_override: model.num_blocks_override,
        kv_cache_memory_bytes: model.kv_cache_memory_bytes,
        seats: limits.seats,
        k_max: limits.k_max,
        row_capacity: limits.row_capacity,
        token_capacity: limits.token_capacity,
        table_width: limits.table_width,
        lockstep: fleet.lockstep,
        drafter: drafter.to_owned(),
        threads: model.threads,
        row_ladders,
        expert_parallel: model.expert_parallel.name().to_owned(),
        drafter_layers: fleet.drafter_layers,
        scheduling_depth: fleet.depth,
        quantization: model.quantization.clone(),
    }
}
