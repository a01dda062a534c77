//! Wire settings of the worker protocol and the servers and channels made with them.
//!
//! One table for both ends: the daemon uses it, and workers, whose streams are the extension's. Message limits belong
//! to each generated service: pass [`MESSAGE_LIMIT`] to its `max_decoding_message_size` and `max_encoding_message_size`.

use std::time::Duration;

use tonic::transport::{Endpoint, Server};

/// Largest gRPC message, bytes: masks, prompt log-probabilities and long prompts pass the default of 4 MiB.
pub const MESSAGE_LIMIT: usize = 64 * 1024 * 1024;

/// HTTP/2 flow control window of one stream, bytes.
const STREAM_WINDOW: u32 = 16 * 1024 * 1024;
/// HTTP/2 flow control window of one connection, bytes.
const CONNECTION_WINDOW: u32 = 16 * 1024 * 1024;
/// Small messages leave at once.
const NO_DELAY: bool = true;
/// Time between HTTP/2 pings.
const PING_INTERVAL: Duration = Duration::from_secs(10);
/// A ping without answer for so long closes the connection.
const PING_TIMEOUT: Duration = Duration::from_secs(5);
/// Pings go out on a connection without calls too.
const PING_WITHOUT_CALLS: bool = true;

/// Time between a worker's heartbeats.
pub const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(1);

/// A worker without heartbeat for so long is lost.
pub const HEARTBEAT_TIMEOUT: Duration = Duration::from_secs(5);

/// A worker that has had no daemon for so long exits.
pub const DAEMON_LOSS_EXIT: Duration = Duration::from_secs(8);

/// A server builder with the wire settings; services are added by the caller.
///
/// A listener the caller binds itself (`serve_with_incoming`) has to set `TCP_NODELAY` on what it accepts.
#[must_use]
pub fn server() -> Server {
    Server::builder()
        .tcp_nodelay(NO_DELAY)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .http2_keepalive_interval(Some(PING_INTERVAL))
        .http2_keepalive_timeout(Some(PING_TIMEOUT))
}

/// A client endpoint with the wire settings. Every `connect` of it opens a connection of its own.
#[must_use]
pub fn client(endpoint: Endpoint) -> Endpoint {
    endpoint
        .tcp_nodelay(NO_DELAY)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .http2_keep_alive_interval(PING_INTERVAL)
        .keep_alive_timeout(PING_TIMEOUT)
        .keep_alive_while_idle(PING_WITHOUT_CALLS)
}
