//! Connections of clients: accepted, encrypted where asked for, limited, and closed when their client stops reading.
//!
//! HTTP and gRPC meet the same limits here, before either protocol sees a byte.

mod clear;
mod patient;
mod socket;
mod tls;

use std::time::Duration;

use axum::Router;
use futures_util::Stream;
use futures_util::stream::unfold;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use self::clear::{refuse, speaks_clear};
pub(crate) use self::socket::Socket;
pub use self::tls::Tls;
use crate::limits::{ACCEPT_RETRY, CONNECTIONS_WAITING_MAX, HEAD_READ_TIMEOUT, PING_INTERVAL, PING_TIMEOUT};

/// What one connection may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConnectionLimits {
    /// Bytes of a request's line and headers together: 431. At least 8,192.
    pub header_bytes: usize,
    /// Headers of one request: 431.
    pub header_count: usize,
    /// Time that a client may leave bytes unread before its connection is closed; `None` waits for ever.
    pub unread: Option<Duration>,
}

impl Default for ConnectionLimits {
    fn default() -> Self {
        use crate::limits::{HEADER_BYTES_MAX, HEADER_COUNT_MAX, UNREAD_TIMEOUT};
        Self { header_bytes: HEADER_BYTES_MAX, header_count: HEADER_COUNT_MAX, unread: Some(UNREAD_TIMEOUT) }
    }
}

/// How connections are made of accepted sockets.
#[derive(Clone)]
pub(crate) struct Gate {
    pub(crate) tls: Option<Tls>,
    pub(crate) limits: ConnectionLimits,
}

impl Gate {
    /// Makes a connection of a socket: nothing when its client is silent for too long or speaks no TLS where it should.
    async fn open(&self, stream: TcpStream, protocols: Protocols) -> Option<Socket> {
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, "TCP_NODELAY cannot be set");
        }
        let Some(tls) = &self.tls else { return Some(Socket::plain(stream, self.limits.unread)) };
        if protocols == Protocols::Http && matches!(timeout(HEAD_READ_TIMEOUT, speaks_clear(&stream)).await, Ok(true)) {
            let _ = timeout(HEAD_READ_TIMEOUT, refuse(stream)).await;
            return None;
        }
        match timeout(HEAD_READ_TIMEOUT, tls.acceptor(protocols).accept(stream)).await {
            Ok(Ok(stream)) => Some(Socket::encrypted(stream, self.limits.unread)),
            Ok(Err(error)) => {
                tracing::debug!(%error, "a client's TLS handshake failed");
                None
            }
            Err(_) => {
                tracing::debug!("a client's TLS handshake took too long");
                None
            }
        }
    }

    /// Serves HTTP/1 and HTTP/2 until told to stop; then open connections end after the answer that they are at.
    pub(crate) async fn serve_http(self, listener: TcpListener, router: Router, stop: CancellationToken) {
        let connections = TaskTracker::new();
        let service = TowerToHyperService::new(router);
        while let Some(stream) = stop.run_until_cancelled(accept(&listener)).await {
            let (gate, service, stop) = (self.clone(), service.clone(), stop.clone());
            connections.spawn(async move {
                // A client that connects and says nothing is not kept.
                if !matches!(timeout(HEAD_READ_TIMEOUT, stream.readable()).await, Ok(Ok(()))) {
                    return;
                }
                let Some(socket) = gate.open(stream, Protocols::Http).await else { return };
                let builder = gate.builder();
                let connection = builder.serve_connection(TokioIo::new(socket), service);
                tokio::pin!(connection);
                let ended = tokio::select! {
                    ended = connection.as_mut() => ended,
                    () = stop.cancelled() => {
                        connection.as_mut().graceful_shutdown();
                        connection.await
                    }
                };
                if let Err(error) = ended {
                    tracing::debug!(%error, "a connection broke");
                }
            });
        }
        connections.close();
        connections.wait().await;
    }

    fn builder(&self) -> Builder<TokioExecutor> {
        let limits = self.limits;
        let header_bytes = u32::try_from(limits.header_bytes).unwrap_or(u32::MAX);
        let mut builder = Builder::new(TokioExecutor::new());
        let mut http1 = builder.http1();
        http1.timer(TokioTimer::new()).header_read_timeout(HEAD_READ_TIMEOUT).max_buf_size(limits.header_bytes);
        http1.max_headers(limits.header_count);
        let mut http2 = builder.http2();
        http2.timer(TokioTimer::new()).max_header_list_size(header_bytes);
        http2.keep_alive_interval(Some(PING_INTERVAL)).keep_alive_timeout(PING_TIMEOUT);
        builder
    }

    /// Connections for gRPC, which are made side by side, so that a slow handshake holds up no other.
    pub(crate) fn grpc_sockets(
        self,
        listener: TcpListener,
        stop: CancellationToken,
    ) -> impl Stream<Item = std::io::Result<Socket>> {
        let (sender, receiver) = mpsc::channel(CONNECTIONS_WAITING_MAX);
        tokio::spawn(async move {
            while let Some(stream) = stop.run_until_cancelled(accept(&listener)).await {
                let (gate, sender) = (self.clone(), sender.clone());
                tokio::spawn(async move {
                    if let Some(socket) = gate.open(stream, Protocols::Grpc).await {
                        // A server that stops takes no more.
                        let _ = sender.send(Ok(socket)).await;
                    }
                });
            }
        });
        unfold(receiver, async |mut receiver| Some((receiver.recv().await?, receiver)))
    }
}

/// What is spoken on a connection, as TLS negotiates it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protocols {
    /// HTTP/2 or HTTP/1.1.
    Http,
    /// HTTP/2 only.
    Grpc,
}

/// The next client. A machine that is out of sockets gets a moment to close some.
async fn accept(listener: &TcpListener) -> TcpStream {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => return stream,
            Err(error) => {
                tracing::warn!(%error, "a connection could not be accepted");
                tokio::time::sleep(ACCEPT_RETRY).await;
            }
        }
    }
}
