//! The server: built from options and a handle, run until told to stop.

use axum::serve::ListenerExt;
use paceline_engine::Handle;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tonic::transport::server::TcpIncoming;

use crate::app::{App, Shared};
use crate::limits::STOP_GRACE;
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
    /// A listener that failed by itself, or schemas that cannot be offered for reflection.
    pub async fn run(self, shutdown: CancellationToken) -> Result<(), Error> {
        let Self { app, listeners } = self;
        // Either part failing stops the other.
        let stop = shutdown.child_token();
        let http = serve_http(app.clone(), listeners.http, stop.clone());
        let grpc = serve_grpc(app, listeners.grpc, stop.clone());
        let both = async {
            let http = async { http.await.inspect_err(|_| stop.cancel()) };
            let grpc = async { grpc.await.inspect_err(|_| stop.cancel()) };
            let (http, grpc) = tokio::join!(http, grpc);
            http.and(grpc)
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

async fn serve_http(app: App, listener: TcpListener, stop: CancellationToken) -> Result<(), Error> {
    let listener = listener.tap_io(|socket| {
        if let Err(error) = socket.set_nodelay(true) {
            tracing::debug!(%error, "TCP_NODELAY cannot be set");
        }
    });
    axum::serve(listener, http::router(app)).with_graceful_shutdown(stop.cancelled_owned()).await.map_err(Error::Http)
}

async fn serve_grpc(app: App, listener: Option<TcpListener>, stop: CancellationToken) -> Result<(), Error> {
    let Some(listener) = listener else { return Ok(()) };
    let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
    grpc::router(app)?.serve_with_incoming_shutdown(incoming, stop.cancelled_owned()).await.map_err(Error::Grpc)
}
