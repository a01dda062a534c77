//! Encryption: a certificate and its key, from files.

use std::path::Path;
use std::sync::Arc;

use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring::default_provider;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

use super::Protocols;
use crate::Error;

/// What connections are encrypted with. Clients are not asked for certificates.
#[derive(Clone)]
pub struct Tls {
    http: Arc<ServerConfig>,
    grpc: Arc<ServerConfig>,
}

impl Tls {
    /// Reads a chain of certificates, the server's own first, and the key of that one, both in PEM.
    ///
    /// # Errors
    /// [`Error::Tls`] with the file that cannot be read, or when the two do not belong together.
    pub fn load(certificates: &Path, key: &Path) -> Result<Self, Error> {
        let failed = |file: &Path| {
            let file = file.display().to_string();
            move |message: String| Error::Tls { file, message }
        };
        let chain: Vec<CertificateDer<'static>> = CertificateDer::pem_file_iter(certificates)
            .and_then(Iterator::collect)
            .map_err(|error| failed(certificates)(error.to_string()))?;
        if chain.is_empty() {
            return Err(failed(certificates)("it holds no certificate".to_owned()));
        }
        let private = PrivateKeyDer::from_pem_file(key).map_err(|error| failed(key)(error.to_string()))?;
        let config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
            .with_safe_default_protocol_versions()
            .and_then(|builder| builder.with_no_client_auth().with_single_cert(chain, private))
            .map_err(|error| failed(key)(error.to_string()))?;
        let speaking = |protocols: &[&[u8]]| {
            let mut config = config.clone();
            config.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
            Arc::new(config)
        };
        Ok(Self { http: speaking(&[b"h2", b"http/1.1"]), grpc: speaking(&[b"h2"]) })
    }

    pub(super) fn acceptor(&self, protocols: Protocols) -> TlsAcceptor {
        TlsAcceptor::from(Arc::clone(match protocols {
            Protocols::Http => &self.http,
            Protocols::Grpc => &self.grpc,
        }))
    }
}
