//! Limits with their errors, browsers, load, and metrics under the names of vLLM.

use crate::common::{Setup, TestServer, ranks, send};
use paceline_engine::FleetStatus;
use paceline_server::{CorsOptions, RequestLimits};
use serde_json::json;

#[tokio::test]
async fn each_limit_names_itself() {
    let request_limits =
        RequestLimits { body_bytes: 2_000, stop_strings: 2, prompt_tokens: Some(10), ..RequestLimits::default() };
    let server = TestServer::saying_with(Setup { request_limits, ..Setup::default() }, "speak").await;
    let long = server.complete(&json!({"prompt": "x".repeat(3_000)})).await;
    assert_eq!(long.status, 413);
    let stops = server.complete(&json!({"prompt": "x", "stop": ["a", "b", "c"]})).await;
    assert_eq!(stops.refusal(), (400, "stop".to_owned()));
    let prompt = server.complete(&json!({"prompt": vec![5; 11]})).await;
    assert_eq!(prompt.refusal(), (400, "prompt".to_owned()));
    assert!(prompt.body.contains("at most 10"));
    assert_eq!(server.complete(&json!({"prompt": vec![5; 10], "stop": ["a", "b"]})).await.status, 200);
    server.stop().await;
}

#[tokio::test]
async fn calls_beyond_those_that_may_be_open_are_told_to_come_again() {
    let request_limits = RequestLimits { open_calls: 1, ..RequestLimits::default() };
    let (server, mut requests) = TestServer::held(Setup { request_limits, ..Setup::default() }).await;
    let http = server.http;
    let first = tokio::spawn(async move { send(http, "POST", "/v1/completions", &[], "{\"prompt\": \"x\"}").await });
    let held = requests.recv().await.unwrap();
    let second = server.complete(&json!({"prompt": "x"})).await;
    assert_eq!((second.status, second.header("retry-after")), (429, Some("1")));
    held.produce(&[300; 16]);
    assert_eq!(first.await.unwrap().status, 200);
    let third = tokio::spawn(async move { send(http, "POST", "/v1/completions", &[], "{\"prompt\": \"x\"}").await });
    requests.recv().await.unwrap().produce(&[300; 16]);
    assert_eq!(third.await.unwrap().status, 200);
    server.stop().await;
}

#[tokio::test]
async fn browsers_may_call_only_from_pages_that_are_configured() {
    let cors = CorsOptions { origins: vec!["http://a.example".to_owned()], ..CorsOptions::default() };
    let server = TestServer::saying_with(Setup { cors, ..Setup::default() }, "speak").await;
    let ask = [("origin", "http://a.example"), ("access-control-request-headers", "content-type")];
    let asked = send(server.http, "OPTIONS", "/v1/completions", &ask, "").await;
    assert_eq!((asked.status, asked.header("access-control-allow-origin")), (204, Some("http://a.example")));
    assert_eq!(asked.header("access-control-allow-headers"), Some("content-type"));
    let from_b = send(server.http, "GET", "/v1/models", &[("origin", "http://b.example")], "").await;
    assert_eq!((from_b.status, from_b.header("access-control-allow-origin")), (200, None));
    let closed = TestServer::saying("speak").await;
    let asked = send(closed.http, "OPTIONS", "/v1/completions", &ask, "").await;
    assert_eq!((asked.status, asked.header("access-control-allow-origin")), (405, None));
    server.stop().await;
    closed.stop().await;
}

#[tokio::test]
async fn what_browsers_may_send_can_be_narrowed() {
    let cors = CorsOptions {
        origins: vec!["*".to_owned()],
        methods: vec!["GET".to_owned()],
        headers: vec!["x-a".to_owned(), "x-b".to_owned()],
        credentials: true,
    };
    let server = TestServer::saying_with(Setup { cors, ..Setup::default() }, "speak").await;
    let ask = [("origin", "http://c.example"), ("access-control-request-headers", "x-other")];
    let asked = send(server.http, "OPTIONS", "/v1/models", &ask, "").await;
    for (header, expected) in [
        ("access-control-allow-origin", "http://c.example"),
        ("access-control-allow-methods", "GET"),
        ("access-control-allow-headers", "x-a, x-b"),
        ("access-control-allow-credentials", "true"),
    ] {
        assert_eq!(asked.header(header), Some(expected));
    }
    server.stop().await;
}

/// Every route of the document is there, takes what it is said to take, and names its errors.
#[tokio::test]
async fn the_served_document_lists_the_routes() {
    let server = TestServer::saying("speak").await;
    let document = server.get("/openapi.json").await.json();
    assert_eq!(document["openapi"], "3.1.0");
    for (path, methods) in document["paths"].as_object().unwrap() {
        let (status, unknown) = if methods.get("get").is_some() {
            (server.get(path).await.status, None)
        } else {
            let fields = &methods["post"]["requestBody"]["content"]["application/json"]["schema"]["properties"];
            let nulls: serde_json::Map<_, _> =
                fields.as_object().unwrap().keys().map(|name| (name.clone(), serde_json::Value::Null)).collect();
            let reply = server.post(path, &json!(nulls)).await;
            (200, Some(reply.json()["error"]["message"].as_str().unwrap().contains("unknown")))
        };
        // Null stands for an absent field, so that what is missed is the prompt and nothing is unknown.
        assert_eq!((status, unknown.unwrap_or(false)), (200, false), "{path}");
    }
    server.stop().await;
}

#[tokio::test]
async fn f08_every_rank_has_its_series_under_vllms_names_too() {
    let server = TestServer::saying("speak").await;
    let status = FleetStatus { ready: true, ranks: ranks(&[1, 2, 3, 0]), waiting: 5, ..FleetStatus::default() };
    server.publisher.publish(status);
    for (engine, running) in [(0, 1.0), (1, 2.0), (2, 3.0), (3, 0.0)] {
        let series = format!("vllm:num_requests_running{{model_name=\"tiny\",engine=\"{engine}\"}}");
        assert_eq!(server.metric(&series).await, Some(running));
    }
    assert_eq!(server.metric("vllm:num_requests_waiting{model_name=\"tiny\",engine=\"0\"}").await, Some(5.0));
    assert_eq!(server.get("/load").await.json()["server_load"], 11);
    server.complete(&json!({"prompt": [9, 9, 9]})).await;
    let of = |name: &str| format!("vllm:{name}{{model_name=\"tiny\",engine=\"0\"}}");
    assert_eq!(server.metric(&of("prompt_tokens_total")).await, Some(3.0));
    assert_eq!(server.metric(&of("e2e_request_latency_seconds_count")).await, Some(1.0));
    assert_eq!(server.metric(&of("request_prompt_tokens_sum")).await, Some(3.0));
    server.stop().await;
}
