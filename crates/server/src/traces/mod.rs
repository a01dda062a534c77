//! A span for each call and for its parts, sent to an OpenTelemetry collector over gRPC.
//!
//! Spans wait in a bounded channel and go out in batches; when the collector is slow or away they are dropped and counted,
//! and no call ever waits for them. The wire format is written out by hand: it is small, and a library for it would be
//! larger than the rest of this crate's dependencies.

mod context;
mod otlp;
mod span;

use std::time::Duration;

use prometheus_client::metrics::counter::Counter;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, timeout, timeout_at};
use tonic::Code;
use tonic::transport::{Channel, Endpoint};

pub(crate) use self::context::TraceContext;
use self::otlp::Span;
use self::span::Clock;
pub(crate) use self::span::{CHOICES_TOLD_MAX, CallSpan, ChoiceSpan};
use crate::Error;

/// Calls whose spans wait to be sent.
const CALLS_WAITING_MAX: usize = 4_096;

/// Spans of one message, and those of one call more: far below what collectors take, which is 4 MiB.
const SPANS_PER_EXPORT: usize = 512;

/// Time that spans are gathered before they are sent.
const GATHER_TIME: Duration = Duration::from_millis(500);

/// Time that a collector has to be connected to, and to answer a message.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const EXPORT_TIMEOUT: Duration = Duration::from_secs(10);

/// Time that the last spans have when the server stops.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(2);

/// What the exporter is told.
enum Order {
    /// A call has ended.
    Call(Box<CallSpan>),
    /// Whatever has been gathered is to go out now; the answer is that it went or was dropped.
    Flush(oneshot::Sender<()>),
}

/// Takes spans, for whoever has one; clones are cheap.
#[derive(Debug, Clone)]
pub struct Traces {
    sender: mpsc::Sender<Order>,
    /// Calls whose spans nobody got.
    pub(crate) dropped: Counter,
}

impl Traces {
    /// Sends spans to a collector, `http://HOST:PORT` or `grpc://HOST:PORT`, from now on, on the runtime that this is called
    /// on. The collector need not be there yet; `service_name` is what it calls this server.
    ///
    /// # Errors
    /// [`Error::Traces`] for an address that is none.
    pub fn start(endpoint: &str, service_name: &str) -> Result<Self, Error> {
        let failed = |message: String| Error::Traces { endpoint: endpoint.to_owned(), message };
        let url = endpoint.strip_prefix("grpc://").map_or_else(|| endpoint.to_owned(), |rest| format!("http://{rest}"));
        let address = Endpoint::from_shared(url).map_err(|error| failed(error.to_string()))?;
        let uri = address.uri();
        let is_whole = uri.scheme_str() == Some("http") && uri.host().is_some_and(|host| !host.is_empty());
        if !is_whole || !matches!(uri.path(), "" | "/") {
            return Err(failed("it must be http://HOST:PORT, a collector's port for gRPC".to_owned()));
        }
        let channel = address.connect_timeout(CONNECT_TIMEOUT).timeout(EXPORT_TIMEOUT).connect_lazy();
        let (sender, receiver) = mpsc::channel(CALLS_WAITING_MAX);
        let dropped = Counter::default();
        let exporter = Exporter {
            channel,
            endpoint: endpoint.to_owned(),
            service_name: service_name.to_owned(),
            dropped: dropped.clone(),
            is_away: false,
        };
        tokio::spawn(exporter.run(receiver));
        Ok(Self { sender, dropped })
    }

    /// Hands on the spans of a call that has ended. Never waits.
    pub(crate) fn send(&self, call: Box<CallSpan>) {
        if self.sender.try_send(Order::Call(call)).is_err() {
            self.dropped.inc();
        }
    }

    /// Waits until the spans of all calls so far are sent or dropped, but no longer than a server may take to stop.
    pub async fn flush(&self) {
        let (answer, answered) = oneshot::channel();
        let flushed = async {
            if self.sender.send(Order::Flush(answer)).await.is_ok() {
                // An exporter that is gone has nothing left.
                let _ = answered.await;
            }
        };
        let _ = timeout(FLUSH_TIMEOUT, flushed).await;
    }
}

/// The task that gathers spans and sends them.
struct Exporter {
    channel: Channel,
    endpoint: String,
    service_name: String,
    dropped: Counter,
    /// Whether the latest message was lost: that is told once.
    is_away: bool,
}

/// What one message will hold.
struct Batch {
    clock: Clock,
    spans: Vec<Span>,
    calls: u64,
    /// Who waits for it to be gone.
    asked: Option<oneshot::Sender<()>>,
}

impl Batch {
    fn begin(order: Order) -> Self {
        let mut batch = Self { clock: Clock::now(), spans: Vec::new(), calls: 0, asked: None };
        batch.take(order);
        batch
    }

    fn take(&mut self, order: Order) {
        match order {
            Order::Call(call) => {
                self.spans.extend(call.spans(self.clock));
                self.calls += 1;
            }
            Order::Flush(asked) => self.asked = Some(asked),
        }
    }

    fn is_due(&self) -> bool {
        self.asked.is_some() || self.spans.len() >= SPANS_PER_EXPORT
    }
}

impl Exporter {
    /// Gathers spans and sends them until nobody can make any more.
    async fn run(mut self, mut orders: mpsc::Receiver<Order>) {
        while let Some(order) = orders.recv().await {
            let due = Instant::now() + GATHER_TIME;
            let mut batch = Batch::begin(order);
            while !batch.is_due() {
                match timeout_at(due, orders.recv()).await {
                    Ok(Some(order)) => batch.take(order),
                    Ok(None) | Err(_) => break,
                }
            }
            self.export(batch.spans, batch.calls).await;
            if let Some(asked) = batch.asked {
                // Whoever asked may have waited long enough.
                let _ = asked.send(());
            }
        }
    }

    async fn export(&mut self, spans: Vec<Span>, calls: u64) {
        if spans.is_empty() {
            return;
        }
        let request = otlp::ExportRequest::new(&self.service_name, spans);
        let mut sent = otlp::export(&self.channel, request.clone()).await;
        // That a connection was closed while nothing was sent is found out by sending.
        if sent.as_ref().is_err_and(|status| status.code() == Code::Unavailable) {
            sent = otlp::export(&self.channel, request).await;
        }
        let endpoint = &self.endpoint;
        match sent {
            Ok(()) if std::mem::take(&mut self.is_away) => tracing::info!("spans reach {endpoint} again"),
            Ok(()) => {}
            Err(status) => {
                self.dropped.inc_by(calls);
                if !std::mem::replace(&mut self.is_away, true) {
                    let why = status.message();
                    tracing::warn!("spans do not reach {endpoint} and are dropped until they do: {why}");
                }
            }
        }
    }
}
