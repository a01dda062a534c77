//! A worker's bidirectional gRPC stream to the daemon, each over a connection of its own.
//!
//! Messages are bytes here: the worker knows what they mean. One runtime thread drives all streams of the process and
//! their heartbeats, so that neither a pass of the model nor the interpreter lock holds up a ping or a heartbeat. A message
//! that is sent leaves on the thread that sends it: see [`crate::crew`].

use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use bytes::{Buf, BufMut, Bytes};
use paceline_proto::v1::ControlFromWorker;
use paceline_proto::v1::control_from_worker::Message as ToDaemon;
use paceline_proto::wire;
use prost::Message;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use tokio::runtime::Runtime;
use tokio::sync::{mpsc, oneshot, watch};
use tokio_stream::wrappers::ReceiverStream;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Status};

use crate::crew::Crew;
use crate::errors::StreamLost;
use crate::pulse::Pulse;

/// Messages that may wait in either direction before whoever brings another has to wait.
const MESSAGES_WAITING_MOST: usize = 64;
/// Time between two tries to reach a daemon that does not answer yet.
const DIAL_INTERVAL: Duration = Duration::from_millis(50);

/// Messages as the bytes that they are.
struct RawCodec;

impl Codec for RawCodec {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for RawCodec {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, item: Bytes, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.put(item);
        Ok(())
    }
}

impl Decoder for RawCodec {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(buffer.copy_to_bytes(buffer.remaining())))
    }
}

/// What the thread that receives gets.
enum Incoming {
    /// A message of the daemon.
    Message(Bytes),
    /// What another thread of this process put among them.
    Local(Py<PyAny>),
    /// The last of all: why nothing more comes.
    End(String),
}

/// One stream. `send` may be called from any thread; one thread receives.
#[pyclass(frozen)]
pub(crate) struct WorkerStream {
    /// Nothing once this direction is closed.
    outgoing: Mutex<Option<mpsc::Sender<Bytes>>>,
    incoming: Mutex<mpsc::Receiver<Incoming>>,
    /// The way in for other threads of this process.
    local: mpsc::Sender<Incoming>,
    /// Why the stream has ended, once it has.
    ended: watch::Receiver<Option<String>>,
    /// Dropped to break the connection.
    connection: Mutex<Option<oneshot::Sender<()>>>,
    /// What carries the bytes.
    crew: Crew,
}

#[pymethods]
impl WorkerStream {
    /// Dials the daemon at `address` ("HOST:PORT") and opens `method` ("Control" or "Steps") of its `Workers` service.
    ///
    /// # Errors
    /// `StreamLost` when nobody answers in time; `ValueError` for what is no address or no method.
    #[new]
    fn new(py: Python<'_>, address: &str, method: &str) -> PyResult<Self> {
        let path = match method {
            "Control" => "/paceline.v1.Workers/Control",
            "Steps" => "/paceline.v1.Workers/Steps",
            _ => return Err(PyValueError::new_err(format!("method: \"Control\" or \"Steps\", got {method:?}"))),
        };
        let endpoint = Endpoint::from_shared(format!("http://{address}"))
            .map_err(|error| PyValueError::new_err(format!("address: HOST:PORT, got {address:?}: {error}")))?;
        let runtime = runtime()?;
        let crew = Crew::start(runtime);
        let endpoint = wire::client(endpoint).executor(crew.clone());
        let channel = py.detach(|| runtime.block_on(dial(endpoint)));
        let channel = channel.ok_or_else(|| StreamLost::new_err(format!("no daemon answers at {address}")))?;
        let (outgoing, to_send) = mpsc::channel(MESSAGES_WAITING_MOST);
        let (received, incoming) = mpsc::channel(MESSAGES_WAITING_MOST);
        let (end, ended) = watch::channel(None);
        let (connection, closed) = oneshot::channel();
        let local = received.clone();
        crew.add(async move {
            let reason = tokio::select! {
                reason = carry(channel, PathAndQuery::from_static(path), to_send, &received) => reason,
                _ = closed => "the stream was dropped".to_owned(),
            };
            // First for those who wait for the end: the thread that receives may be busy, and the queue full.
            end.send_replace(Some(reason.clone()));
            // Whoever no longer receives does not want the reason either.
            let _ = received.send(Incoming::End(reason)).await;
        });
        Ok(Self {
            outgoing: Mutex::new(Some(outgoing)),
            incoming: Mutex::new(incoming),
            local,
            ended,
            connection: Mutex::new(Some(connection)),
            crew,
        })
    }

    /// Sends a message, or drops it when the stream is broken: the receiving side says why.
    fn send(&self, py: Python<'_>, message: &[u8]) -> PyResult<()> {
        let Some(outgoing) = locked(&self.outgoing).clone() else { return Ok(()) };
        let message = Bytes::copy_from_slice(message);
        let mut queued = Ok(());
        self.crew.send(runtime()?, || queued = outgoing.try_send(message));
        if let Err(mpsc::error::TrySendError::Full(message)) = queued {
            // Only a broken stream refuses it from here on.
            let _ = py.detach(|| outgoing.blocking_send(message));
        }
        Ok(())
    }

    /// Sends a heartbeat with what `pulse` says, now and at every interval of the wire settings, until the stream ends.
    fn beat(&self, pulse: &Pulse) -> PyResult<()> {
        let Some(outgoing) = locked(&self.outgoing).clone() else { return Ok(()) };
        let progress = pulse.progress.clone();
        runtime()?.spawn(async move {
            let mut times = tokio::time::interval(wire::HEARTBEAT_INTERVAL);
            loop {
                times.tick().await;
                let message = ControlFromWorker { message: Some(ToDaemon::Heartbeat(progress.heartbeat())) };
                if outgoing.send(message.encode_to_vec().into()).await.is_err() {
                    return;
                }
            }
        });
        Ok(())
    }

    /// Waits for the next message, or for what another thread puts among them.
    ///
    /// # Errors
    /// `StreamLost` with the reason once the stream is closed or broken.
    fn receive<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        if let Some(reason) = &*self.ended.borrow()
            && locked(&self.incoming).is_empty()
        {
            return Err(StreamLost::new_err(reason.clone()));
        }
        match py.detach(|| locked(&self.incoming).blocking_recv()) {
            Some(Incoming::Message(message)) => Ok(PyBytes::new(py, &message).into_any()),
            Some(Incoming::Local(object)) => Ok(object.into_bound(py)),
            Some(Incoming::End(reason)) => Err(StreamLost::new_err(reason)),
            None => Err(StreamLost::new_err("the stream was dropped")),
        }
    }

    /// Puts `message`, which is no `bytes`, behind what has been received, for the thread that receives.
    ///
    /// # Errors
    /// `StreamLost` when so much waits that nobody can be receiving.
    fn put(&self, message: Py<PyAny>) -> PyResult<()> {
        let full = |_| StreamLost::new_err(format!("nobody takes the {MESSAGES_WAITING_MOST} messages that wait"));
        self.local.try_send(Incoming::Local(message)).map_err(full)
    }

    /// Waits until the stream has ended, whatever the thread that receives is doing; gives the reason.
    fn wait_end(&self, py: Python<'_>) -> PyResult<String> {
        let mut ended = self.ended.clone();
        let runtime = runtime()?;
        let reason = py.detach(|| runtime.block_on(async { ended.wait_for(Option::is_some).await.ok()?.clone() }));
        Ok(reason.unwrap_or_else(|| "the stream was dropped".to_owned()))
    }

    /// Closes this direction once everything that waits is sent. Heartbeats go on until the stream ends.
    fn finish_sending(&self) {
        *locked(&self.outgoing) = None;
    }

    /// Drops the connection, whatever is in flight.
    fn close(&self) {
        *locked(&self.outgoing) = None;
        *locked(&self.connection) = None;
    }
}

/// The thread that drives every stream of this process.
struct Wire {
    runtime: Runtime,
    /// What the system calls it, where it says so.
    thread_id: Arc<OnceLock<u32>>,
}

fn wire_thread() -> PyResult<&'static Wire> {
    static WIRE: OnceLock<std::io::Result<Wire>> = OnceLock::new();
    let made = WIRE.get_or_init(|| {
        let thread_id = Arc::new(OnceLock::new());
        let told = Arc::clone(&thread_id);
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        builder.worker_threads(1).thread_name("paceline-wire").enable_all();
        builder.on_thread_start(move || {
            // Only the first is one that stays.
            if let Some(id) = own_thread_id() {
                told.get_or_init(|| id);
            }
        });
        Ok(Wire { runtime: builder.build()?, thread_id })
    });
    made.as_ref().map_err(|error| StreamLost::new_err(format!("no thread for the streams: {error}")))
}

fn runtime() -> PyResult<&'static Runtime> {
    Ok(&wire_thread()?.runtime)
}

/// The system's number of the calling thread, the last part of where `/proc/thread-self` leads to.
fn own_thread_id() -> Option<u32> {
    std::fs::read_link(Path::new("/proc/thread-self")).ok()?.file_name()?.to_str()?.parse().ok()
}

/// The system's number of the thread that drives every stream of this process, as in `/proc/self/task`; nothing where
/// the system does not say.
#[pyfunction]
pub(crate) fn wire_thread_id() -> PyResult<Option<u32>> {
    Ok(wire_thread()?.thread_id.get().copied())
}

/// A mutex's value; none of its holders can panic halfway.
fn locked<Value>(mutex: &Mutex<Value>) -> MutexGuard<'_, Value> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn dial(endpoint: Endpoint) -> Option<Channel> {
    let started = Instant::now();
    while started.elapsed() < wire::DAEMON_LOSS_EXIT {
        if let Ok(channel) = endpoint.connect().await {
            return Some(channel);
        }
        tokio::time::sleep(DIAL_INTERVAL).await;
    }
    None
}

/// Carries messages both ways until the stream ends; gives the reason.
async fn carry(
    channel: Channel,
    path: PathAndQuery,
    to_send: mpsc::Receiver<Bytes>,
    received: &mpsc::Sender<Incoming>,
) -> String {
    match exchange(channel, path, to_send, received).await {
        Ok(()) => "the daemon closed the stream".to_owned(),
        Err(status) => format!("{:?}: {}", status.code(), status.message()),
    }
}

async fn exchange(
    channel: Channel,
    path: PathAndQuery,
    to_send: mpsc::Receiver<Bytes>,
    received: &mpsc::Sender<Incoming>,
) -> Result<(), Status> {
    let mut client = tonic::client::Grpc::new(channel)
        .max_decoding_message_size(wire::MESSAGE_LIMIT)
        .max_encoding_message_size(wire::MESSAGE_LIMIT);
    client.ready().await.map_err(|error| Status::unavailable(error.to_string()))?;
    let call = client.streaming(Request::new(ReceiverStream::new(to_send)), path, RawCodec).await?;
    let mut messages = call.into_inner();
    while let Some(message) = messages.message().await? {
        if received.send(Incoming::Message(message)).await.is_err() {
            return Ok(());
        }
    }
    Ok(())
}
