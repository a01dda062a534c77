// The table of wire settings, without module header: it is included by `wire.rs` here and by the code generator in
// `crates/dev`, which renders it for Python. Every number that both ends must share is in it, once.

/// One entry of the table, as the code generator sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setting {
    /// Name of the constant, the same in Rust and Python.
    pub name: &'static str,
    /// What it is for, in one line.
    pub comment: &'static str,
    /// Its value; 0 and 1 stand for false and true.
    pub value: u64,
}

macro_rules! settings {
    ($($(#[doc = $comment:literal])+ $name:ident = $value:expr;)+) => {
        $($(#[doc = $comment])+ pub const $name: u64 = $value;)+

        /// All settings, in the order they are written.
        pub const SETTINGS: &[Setting] = &[
            $(Setting { name: stringify!($name), comment: concat!($($comment),+), value: $name },)+
        ];
    };
}

settings! {
    /// Largest gRPC message: masks, prompt log-probabilities and long prompts pass the default of 4 MiB.
    MESSAGE_LIMIT_BYTES = 64 * 1024 * 1024;
    /// HTTP/2 flow control window of one stream.
    STREAM_WINDOW_BYTES = 16 * 1024 * 1024;
    /// HTTP/2 flow control window of one connection.
    CONNECTION_WINDOW_BYTES = 16 * 1024 * 1024;
    /// 1: small messages leave at once (TCP_NODELAY).
    NO_DELAY = 1;
    /// Time between HTTP/2 pings.
    PING_INTERVAL_MS = 10_000;
    /// A ping without answer for so long closes the connection.
    PING_TIMEOUT_MS = 5_000;
    /// 1: pings go out on a connection without calls too.
    PING_WITHOUT_CALLS = 1;
    /// Pings allowed without data between them; 0 is no limit.
    PINGS_WITHOUT_DATA_MAX = 0;
    /// History for penalties and n-gram drafts goes ahead of a plan in pieces of this size.
    HISTORY_PIECE_BYTES = 256 * 1024;
    /// Replies over this size are split.
    REPLY_PIECE_BYTES = 1024 * 1024;
    /// Time between a worker's heartbeats.
    HEARTBEAT_INTERVAL_MS = 1_000;
    /// A worker without heartbeat for so long is lost.
    HEARTBEAT_TIMEOUT_MS = 5_000;
    /// A worker that has had no daemon for so long exits.
    DAEMON_LOSS_EXIT_MS = 8_000;
}
