//! What the daemon gives the server.

use std::net::SocketAddr;

use paceline_text::{ReasoningFormat, SamplingDefaults, Tokenizer, ToolFormat};
use tokio::net::TcpListener;

use crate::Error;
use crate::limits::{BODY_BYTES_MAX, OPEN_CALLS_MAX, STOP_STRINGS_MAX};
use crate::listen::{ConnectionLimits, Tls};
use crate::traces::Traces;

/// Settings of a [`crate::Server`].
#[derive(Clone)]
pub struct Options {
    /// The name clients call the model by.
    pub model_name: String,
    /// Where the model came from: a folder or a name on a hub. Shown in `/v1/models`.
    pub model_root: String,
    /// The model's tokenizer, with its chat template and settings.
    pub tokenizer: Tokenizer,
    /// Sampling values for what a request leaves out, normally the tokenizer's
    /// [`sampling`](paceline_text::ModelSettings::sampling).
    pub sampling_defaults: SamplingDefaults,
    /// The key that every route but liveness asks for; `None` asks for none.
    pub api_key: Option<String>,
    /// Whether operators may pause, drain, abort and follow the prefix cache over the same ports.
    pub admin: bool,
    /// How answers to chats are read.
    pub chat: ChatOptions,
    /// What one client may ask of the server.
    pub limits: RequestLimits,
    /// What a single connection may do.
    pub connections: ConnectionLimits,
    /// What connections are encrypted with; `None` leaves them as they are.
    pub tls: Option<Tls>,
    /// Where spans of calls go; `None` makes none.
    pub traces: Option<Traces>,
    /// Which pages may call this server from a browser.
    pub cors: CorsOptions,
}

/// Which pages may call from a browser, and how. Without an origin, none may.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CorsOptions {
    /// Origins of these pages; `*` stands for all.
    pub origins: Vec<String>,
    /// Methods that they may use; empty or `*` are all that routes take.
    pub methods: Vec<String>,
    /// Headers that they may send; empty or `*` are all.
    pub headers: Vec<String>,
    /// Whether browsers send cookies and the like along.
    pub credentials: bool,
}

/// What clients may ask of the server; more is refused with the limit in the error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequestLimits {
    /// Bytes of one HTTP body or gRPC message: 413.
    pub body_bytes: usize,
    /// Stop strings of one call: 400.
    pub stop_strings: usize,
    /// Tokens of one prompt, where that is less than the model's context: 400.
    pub prompt_tokens: Option<u32>,
    /// Calls that run or wait at once, streamed or not: 429.
    pub open_calls: usize,
}

impl Default for RequestLimits {
    fn default() -> Self {
        Self {
            body_bytes: BODY_BYTES_MAX,
            stop_strings: STOP_STRINGS_MAX,
            prompt_tokens: None,
            open_calls: OPEN_CALLS_MAX,
        }
    }
}

/// How answers to chats are read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ChatOptions {
    /// The spelling of tool calls; `None` goes by what the chat template teaches.
    pub tool_format: Option<ToolFormat>,
    /// How reasoning is marked; `None` leaves it in the content.
    pub reasoning: Option<ReasoningFormat>,
}

/// The sockets, bound before any weight is loaded, so that a taken port is known at once.
#[derive(Debug)]
pub struct Listeners {
    /// For HTTP.
    pub http: TcpListener,
    /// For gRPC, if it is to be served.
    pub grpc: Option<TcpListener>,
}

impl Listeners {
    /// Binds both addresses. Port 0 takes a free one.
    ///
    /// # Errors
    /// [`Error::Listen`] with the address that cannot be had.
    pub async fn bind(http: SocketAddr, grpc: Option<SocketAddr>) -> Result<Self, Error> {
        let http = bind(http).await?;
        let grpc = match grpc {
            Some(address) => Some(bind(address).await?),
            None => None,
        };
        Ok(Self { http, grpc })
    }

    /// The address HTTP listens on, with the port that was chosen.
    ///
    /// # Errors
    /// The operating system's answer.
    pub fn http_addr(&self) -> std::io::Result<SocketAddr> {
        self.http.local_addr()
    }

    /// The address gRPC listens on, with the port that was chosen.
    ///
    /// # Errors
    /// The operating system's answer.
    pub fn grpc_addr(&self) -> std::io::Result<Option<SocketAddr>> {
        self.grpc.as_ref().map(TcpListener::local_addr).transpose()
    }
}

async fn bind(address: SocketAddr) -> Result<TcpListener, Error> {
    TcpListener::bind(address).await.map_err(|source| Error::Listen { address, source })
}
