//! What can keep a server from starting or running.

use std::net::SocketAddr;

/// Every failure of the server as a whole; errors of single calls never leave it.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The address is taken, not local or not allowed.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// The address asked for.
        address: SocketAddr,
        /// The operating system's answer.
        source: std::io::Error,
    },
    /// A collector of spans that cannot be sent to.
    #[error("spans cannot be sent to {endpoint}: {message}")]
    Traces {
        /// The address asked for.
        endpoint: String,
        /// What is wrong with it.
        message: String,
    },
    /// A certificate or a key that cannot be used.
    #[error("{file} cannot be used for TLS: {message}")]
    Tls {
        /// The file at fault.
        file: String,
        /// What is wrong with it.
        message: String,
    },
    /// The gRPC server stopped by itself.
    #[error("the gRPC server failed: {0}")]
    Grpc(tonic::transport::Error),
    /// The schemas built into this program cannot be offered for reflection.
    #[error("gRPC reflection cannot be set up: {0}")]
    Reflection(tonic_reflection::server::Error),
}
