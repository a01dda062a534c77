//! The limit on every size that comes from outside.

use std::time::Duration;

/// Calls that run or wait at once, unless configured otherwise.
pub const OPEN_CALLS_MAX: usize = 16_384;

/// Bytes of one HTTP request body or gRPC message, unless configured otherwise.
pub const BODY_BYTES_MAX: usize = 32 << 20;

/// Bytes of one HTTP request's line and headers together, unless configured otherwise.
pub const HEADER_BYTES_MAX: usize = 64 << 10;

/// Headers of one HTTP request, unless configured otherwise.
pub const HEADER_COUNT_MAX: usize = 100;

/// Time that a client may leave bytes of its answer unread, unless configured otherwise.
pub const UNREAD_TIMEOUT: Duration = Duration::from_secs(60);

/// Time that a client has for a TLS handshake, for its first byte, and for each request's line and headers.
pub const HEAD_READ_TIMEOUT: Duration = Duration::from_secs(60);

/// Connections for gRPC that wait to be taken over, beyond those that are still being made.
pub const CONNECTIONS_WAITING_MAX: usize = 64;

/// Time before the next connection is taken when the machine had no room for one.
pub const ACCEPT_RETRY: Duration = Duration::from_millis(50);

/// Prompts in one call.
pub const PROMPTS_MAX: usize = 1_024;

/// Choices per prompt (`n`).
pub const CHOICES_MAX: u32 = 128;

/// Stop strings of one call, unless configured otherwise.
pub const STOP_STRINGS_MAX: usize = 64;

/// Bytes of one stop string.
pub const STOP_STRING_BYTES_MAX: usize = 1_024;

/// Stop token ids of one call.
pub const STOP_TOKEN_IDS_MAX: usize = 128;

/// Time that the grammar of one call may take to compile.
pub const GRAMMAR_TIME_MAX: Duration = Duration::from_secs(10);

/// Tools of one chat.
pub const TOOLS_MAX: usize = 128;

/// Calls of one answer at most, where calls are forced or held to a schema.
pub const FORCED_CALLS_MAX: u32 = 16;

/// Bytes of a request id given by a client.
pub const REQUEST_ID_BYTES_MAX: usize = 256;

/// Tokens produced for a completion that names no limit, as OpenAI has it.
pub const COMPLETION_TOKENS_DEFAULT: u32 = 16;

/// When a client refused for load may come again.
pub const RETRY_AFTER_QUEUE_FULL_S: u64 = 1;

/// When a client refused for want of a ready worker may come again.
pub const RETRY_AFTER_UNAVAILABLE_S: u64 = 5;

/// Time between comments that keep a silent stream's connection open.
pub const STREAM_KEEP_ALIVE: Duration = Duration::from_secs(15);

/// Time that open connections get to end once the server is told to stop.
pub const STOP_GRACE: Duration = Duration::from_millis(500);

/// Time between two looks at readiness for a gRPC health watcher.
pub const HEALTH_WATCH_INTERVAL: Duration = Duration::from_millis(500);

/// Time between pings on an HTTP/2 connection, so that a client that vanished is noticed.
pub const PING_INTERVAL: Duration = Duration::from_secs(20);

/// Time an HTTP/2 client has to answer a ping.
pub const PING_TIMEOUT: Duration = Duration::from_secs(20);
