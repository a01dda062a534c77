//! What a connection may do before and beside its calls: headers, encryption, and reading what it asked for.

use std::sync::Arc;
use std::time::Duration;

use crate::common::{Setup, TestServer, long, open, output, read_until, send};
use hyper_util::rt::TokioIo;
use paceline_proto::v1::GetModelInfoRequest;
use paceline_proto::v1::model_client::ModelClient;
use paceline_server::{ConnectionLimits, Tls};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::crypto::ring::default_provider;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};
use tonic::transport::Endpoint;

#[tokio::test]
async fn headers_have_a_size_and_a_number() {
    let connections = ConnectionLimits { header_bytes: 8_192, header_count: 20, ..ConnectionLimits::default() };
    let server = TestServer::saying_with(Setup { connections, ..Setup::default() }, "speak").await;
    let (fits, large) = ("x".repeat(4_000), "x".repeat(9_000));
    let many: Vec<(String, &str)> = (0..21).map(|number| (format!("x-{number}"), "1")).collect();
    let many: Vec<(&str, &str)> = many.iter().map(|(name, value)| (name.as_str(), *value)).collect();
    assert_eq!(send(server.http, "GET", "/health", &[("x-a", &fits)], "").await.status, 200);
    assert_eq!(send(server.http, "GET", "/health", &[("x-a", &large)], "").await.status, 431);
    assert_eq!(send(server.http, "GET", "/health", &many, "").await.status, 431);
    assert_eq!(send(server.http, "GET", "/health", &[], "").await.status, 200);
    server.stop().await;
}

/// A certificate for `localhost` that signs itself, made now: the server's end, and what clients trust.
fn certificate() -> (Tls, CertificateDer<'static>) {
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).expect("a certificate");
    let folder =
        std::env::temp_dir().join(format!("paceline-tls-{}-{:016x}", std::process::id(), rand::random::<u64>()));
    std::fs::create_dir(&folder).expect("a new folder");
    let (chain, key) = (folder.join("chain.pem"), folder.join("key.pem"));
    std::fs::write(&chain, made.cert.pem()).expect("writes");
    std::fs::write(&key, made.signing_key.serialize_pem()).expect("writes");
    let tls = Tls::load(&chain, &key).expect("they belong together");
    for (chain, key, at_fault) in
        [(&key, &key, "key.pem"), (&chain, &chain, "chain.pem"), (&chain, &folder, "paceline-tls")]
    {
        let error = Tls::load(chain, key).err().expect("not usable").to_string();
        assert!(error.contains(at_fault) && error.contains("cannot be used for TLS"), "{error}");
    }
    std::fs::remove_dir_all(&folder).expect("removes");
    (tls, made.cert.der().clone())
}

fn connector(trusted: CertificateDer<'static>, protocol: &[u8]) -> TlsConnector {
    let mut roots = RootCertStore::empty();
    roots.add(trusted).expect("a certificate");
    let builder = ClientConfig::builder_with_provider(Arc::new(default_provider()));
    let mut config = builder
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![protocol.to_vec()];
    TlsConnector::from(Arc::new(config))
}

#[tokio::test]
async fn http_and_grpc_are_encrypted_with_the_certificate_that_is_given() {
    let (tls, trusted) = certificate();
    let server = TestServer::saying_with(Setup { tls: Some(tls), ..Setup::default() }, "speak").await;
    let name = || ServerName::try_from("localhost").expect("a name");

    let socket = TcpStream::connect(server.http).await.unwrap();
    let mut http = connector(trusted.clone(), b"http/1.1").connect(name(), socket).await.unwrap();
    http.write_all(b"GET /health HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n").await.unwrap();
    let mut answer = String::new();
    http.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");

    let (grpc, encrypt) = (server.grpc, connector(trusted, b"h2"));
    let dial = tower::service_fn(move |_| {
        let encrypt = encrypt.clone();
        async move {
            let socket = TcpStream::connect(grpc).await?;
            let name = ServerName::try_from("localhost").expect("a name");
            encrypt.connect(name, socket).await.map(TokioIo::new)
        }
    });
    let channel = Endpoint::from_static("http://localhost").connect_with_connector(dial).await.unwrap();
    let info = ModelClient::new(channel).get_model_info(GetModelInfoRequest {}).await.unwrap().into_inner();
    assert_eq!(info.model, "tiny");

    // Whoever speaks in clear is told so, with nothing of what was asked for.
    let clear = send(server.http, "GET", "/health", &[], "").await;
    assert_eq!((clear.status, clear.body.contains("speaks HTTPS")), (400, true), "{clear:?}");
    server.stop().await;
}

/// One client reads nothing of a long stream; another one, meanwhile, all of its own.
#[tokio::test]
async fn a_client_that_stops_reading_is_cut_and_holds_up_nobody() {
    let connections = ConnectionLimits { unread: Some(Duration::from_millis(300)), ..ConnectionLimits::default() };
    let setup = Setup { connections, ..long() };
    let (server, mut requests) = TestServer::held(setup).await;
    let body = r#"{"prompt": "x", "max_tokens": 100000, "stream": true, "logprobs": 5, "ignore_eos": true}"#;
    let _slow = open(server.http, "POST", "/v1/completions", &[], body).await;
    let slow = requests.recv().await.unwrap();
    let mut reader = open(server.http, "POST", "/v1/completions", &[], body).await;
    let read = requests.recv().await.unwrap();

    // More than any buffer between two sockets takes.
    slow.sink.tokens((0..60_000).map(|number| output(300 + number % 50, Some(5))).collect());
    let cut = slow.sink.abandoned();
    tokio::pin!(cut);
    loop {
        read.sink.tokens(vec![output(300, Some(5))]);
        read_until(&mut reader, "data: ").await;
        if tokio::time::timeout(Duration::from_millis(20), cut.as_mut()).await.is_ok() {
            break;
        }
    }
    assert!(!read.sink.is_abandoned());
    server.stop().await;
}
