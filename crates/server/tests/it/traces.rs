//! Collectors of spans that are no use. What one that works is told, `tests/e2e/test_traces.py` reads.

use std::net::SocketAddr;

use crate::common::{Setup, TestServer};
use paceline_server::Traces;
use serde_json::json;
use tokio::net::TcpListener;

async fn free_port() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("bound");
    (listener, address)
}

async fn traced(collector: SocketAddr) -> (TestServer, Traces) {
    let traces = Traces::start(&format!("grpc://{collector}"), "tests").expect("an address");
    let setup = Setup { traces: Some(traces.clone()), ..Setup::default() };
    (TestServer::saying_with(setup, "speak").await, traces)
}

#[tokio::test]
async fn a_collector_that_is_away_fails_no_call_and_what_it_misses_is_counted() {
    let (listener, address) = free_port().await;
    drop(listener);
    let (server, traces) = traced(address).await;
    let dropped = "paceline_spans_dropped_total";
    assert_eq!(server.metric(dropped).await, Some(0.0));
    for _ in 0..3 {
        assert_eq!(server.complete(&json!({"prompt": "x"})).await.status, 200);
    }
    traces.flush().await;
    assert_eq!(server.metric(dropped).await, Some(3.0));
    server.stop().await;
}

#[tokio::test]
async fn a_collector_that_never_answers_holds_up_no_call() {
    let (_listener, address) = free_port().await;
    let (server, _traces) = traced(address).await;
    for _ in 0..100 {
        assert_eq!(server.complete(&json!({"prompt": "x"})).await.status, 200);
    }
    server.stop().await;
}

#[tokio::test]
async fn an_address_that_is_none_is_refused() {
    for endpoint in ["nowhere", "https://127.0.0.1:1", "http://", "grpc://", "http://127.0.0.1:4318/v1/traces", ""] {
        let error = Traces::start(endpoint, "tests").expect_err("no address").to_string();
        assert!(error.contains("spans cannot be sent to"), "{endpoint}: {error}");
    }
}
