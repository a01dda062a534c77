//! What the daemon gives the server.

use std::net::SocketAddr;

use paceline_text::{SamplingDefaults, Tokenizer};
use tokio::net::TcpListener;

use crate::Error;

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
