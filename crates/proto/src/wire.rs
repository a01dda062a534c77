//! Wire settings of the worker protocol and the servers and channels made with them.
//!
//! One table for both ends: the daemon and Rust workers use it from here, Python workers from
//! `paceline.worker.wire`, which is generated from the same lines. Message limits belong to each generated service:
//! pass [`MESSAGE_LIMIT`] to its `max_decoding_message_size` and `max_encoding_message_size`.

use std::time::Duration;

use tonic::transport::{Endpoint, Server};

include!("settings.rs");

/// [`MESSAGE_LIMIT_BYTES`] in the type that generated services take.
pub const MESSAGE_LIMIT: usize = MESSAGE_LIMIT_BYTES as usize;

const STREAM_WINDOW: u32 = STREAM_WINDOW_BYTES as u32;
const CONNECTION_WINDOW: u32 = CONNECTION_WINDOW_BYTES as u32;

/// Time between a worker's heartbeats.
pub const HEARTBEAT_INTERVAL: Duration = Duration::from_millis(HEARTBEAT_INTERVAL_MS);

/// A worker without heartbeat for so long is lost.
pub const HEARTBEAT_TIMEOUT: Duration = Duration::from_millis(HEARTBEAT_TIMEOUT_MS);

/// A worker that has had no daemon for so long exits.
pub const DAEMON_LOSS_EXIT: Duration = Duration::from_millis(DAEMON_LOSS_EXIT_MS);

/// A server builder with the wire settings; services are added by the caller.
///
/// A listener the caller binds itself (`serve_with_incoming`) has to set `TCP_NODELAY` on what it accepts.
#[must_use]
pub fn server() -> Server {
    Server::builder()
        .tcp_nodelay(NO_DELAY == 1)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .http2_keepalive_interval(Some(Duration::from_millis(PING_INTERVAL_MS)))
        .http2_keepalive_timeout(Some(Duration::from_millis(PING_TIMEOUT_MS)))
}

/// A client endpoint with the wire settings. Every `connect` of it opens a connection of its own.
#[must_use]
pub fn client(endpoint: Endpoint) -> Endpoint {
    endpoint
        .tcp_nodelay(NO_DELAY == 1)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .http2_keep_alive_interval(Duration::from_millis(PING_INTERVAL_MS))
        .keep_alive_timeout(Duration::from_millis(PING_TIMEOUT_MS))
        .keep_alive_while_idle(PING_WITHOUT_CALLS == 1)
}
