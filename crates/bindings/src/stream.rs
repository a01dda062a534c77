//! A worker's bidirectional gRPC stream to the daemon, each over a connection of its own.
//!
//! Messages are bytes here: the worker knows what they mean. One runtime thread drives all streams of the process and
//! their heartbeats, so that neither a pass of the model nor the interpreter lock holds up a ping or a heartbeat.

use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
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
use tokio::sync::{mpsc, oneshot};
use tokio_stream::wrappers::ReceiverStream;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Status};

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

type Incoming = Result<Bytes, String>;

/// One stream. `send` may be called from any thread; one thread receives.
#[pyclass(frozen)]
pub(crate) struct WorkerStream {
    /// Nothing once this direction is closed.
    outgoing: Mutex<Option<mpsc::Sender<Bytes>>>,
    incoming: Mutex<mpsc::Receiver<Incoming>>,
    /// Dropped to break the connection.
    connection: Mutex<Option<oneshot::Sender<()>>>,
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
        let channel = py.detach(|| runtime.block_on(dial(wire::client(endpoint))));
        let channel = channel.ok_or_else(|| StreamLost::new_err(format!("no daemon answers at {address}")))?;
        let (outgoing, to_send) = mpsc::channel(MESSAGES_WAITING_MOST);
        let (received, incoming) = mpsc::channel(MESSAGES_WAITING_MOST);
        let (connection, closed) = oneshot::channel();
        runtime.spawn(async move {
            tokio::select! {
                () = carry(channel, PathAndQuery::from_static(path), to_send, received) => {}
                _ = closed => {}
            }
        });
        Ok(Self {
            outgoing: Mutex::new(Some(outgoing)),
            incoming: Mutex::new(incoming),
            connection: Mutex::new(Some(connection)),
        })
    }

    /// Sends a message, or drops it when the stream is broken: the receiving side says why.
    fn send(&self, py: Python<'_>, message: &[u8]) {
        let Some(outgoing) = locked(&self.outgoing).clone() else { return };
        let message = Bytes::copy_from_slice(message);
        if let Err(mpsc::error::TrySendError::Full(message)) = outgoing.try_send(message) {
            // Only a broken stream refuses it from here on.
            let _ = py.detach(|| outgoing.blocking_send(message));
        }
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

    /// Waits for the next message.
    ///
    /// # Errors
    /// `StreamLost` with the reason once the stream is closed or broken.
    fn receive<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let message = py.detach(|| locked(&self.incoming).blocking_recv());
        match message {
            Some(Ok(message)) => Ok(PyBytes::new(py, &message)),
            Some(Err(reason)) => Err(StreamLost::new_err(reason)),
            None => Err(StreamLost::new_err("the daemon closed the stream")),
        }
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
fn runtime() -> PyResult<&'static Runtime> {
    static RUNTIME: OnceLock<std::io::Result<Runtime>> = OnceLock::new();
    let made = RUNTIME.get_or_init(|| {
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).thread_name("paceline-wire").enable_all().build()
    });
    made.as_ref().map_err(|error| StreamLost::new_err(format!("no thread for the streams: {error}")))
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

/// Carries messages both ways until the stream ends; the last thing that it hands over is the reason.
async fn carry(channel: Channel, path: PathAndQuery, to_send: mpsc::Receiver<Bytes>, received: mpsc::Sender<Incoming>) {
    if let Err(status) = exchange(channel, path, to_send, &received).await {
        // Whoever no longer receives does not want the reason either.
        let _ = received.send(Err(format!("{:?}: {}", status.code(), status.message()))).await;
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
        if received.send(Ok(message)).await.is_err() {
            return Ok(());
        }
    }
    Ok(())
}
