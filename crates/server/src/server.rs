//! The server: built from options and a handle, run until told to stop.

use paceline_engine::Handle;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::app::{App, Shared};
use crate::limits::STOP_GRACE;
use crate::listen::Gate;
use crate::{Error, Listeners, Options, grpc, http};

/// HTTP and gRPC over one engine handle.
pub struct Server {
    app: App,
    listeners: Listeners,
}

impl Server {
    /// Puts the parts together; nothing is answered before [`Server::run`].
    #[must_use]
    pub fn build(options: Options, handle: Handle, listeners: Listeners) -> Self {
        Self { app: Shared::new(options, handle), listeners }
    }

    /// Serves until `shutdown` is cancelled; then takes no new connection and gives open ones a moment to end.
    ///
    /// A graceful drain happens before that, in the engine: while it drains, new requests are refused with 503 and
    /// running ones finish here as always.
    ///
    /// # Errors
    /// The gRPC server failed by itself, or has schemas that cannot be offered for reflection.
    pub async fn run(self, shutdown: CancellationToken) -> Result<(), Error> {
        let Self { app, listeners } = self;
        // Either part failing stops the other.
        let stop = shutdown.child_token();
        let gate = Gate { tls: app.options.tls.clone(), limits: app.options.connections };
        let http = gate.clone().serve_http(listeners.http, http::router(app.clone()), stop.clone());
        let grpc = serve_grpc(app, gate, listeners.grpc, stop.clone());
        let both = async {
            let grpc = async { grpc.await.inspect_err(|_| stop.cancel()) };
            tokio::join!(http, grpc).1
        };
        let late = async {
            stop.cancelled().await;
            tokio::time::sleep(STOP_GRACE).await;
        };
        tokio::select! {
            result = both => result,
            () = late => Ok(()),
        }
    }
}

async fn serve_grpc(app: App, gate: Gate, listener: Option<TcpListener>, stop: CancellationToken) -> Result<(), Error> {
    let Some(listener) = listener else { return Ok(()) };
    let sockets = gate.grpc_sockets(listener, stop.clone());
    grpc::router(app)?.serve_with_incoming_shutdown(sockets, stop.cancelled_owned()).await.map_err(Error::Grpc)
}
