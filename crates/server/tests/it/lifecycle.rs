//! What happens around a call: keys, ids, ranks, load, failures, clients that leave, metrics.

use crate::common::{MODEL, Setup, Submitted, TestServer, limits, open, output, ranks, read_until, send};
use paceline_engine::{
    FailureKind, FleetCounters, FleetStatus, ModeTokens, ModelLimits, PaddingCounters, RankCounters, RankState,
    RankStatus, SubmitError,
};
use serde_json::json;
use tokio::io::AsyncReadExt;

const STREAM: &str = r#"{"prompt": "x", "max_tokens": 50, "stream": true}"#;
const WHOLE: &str = r#"{"prompt": "x", "max_tokens": 50}"#;

#[tokio::test]
async fn a_key_is_asked_for_on_every_route_but_liveness() {
    let server = TestServer::saying_with(Setup { api_key: Some("secret"), ..Setup::default() }, "hi").await;
    assert_eq!(server.get("/health").await.status, 200);
    for path in ["/ready", "/metrics", "/version", "/v1/models", "/explain/last", "/nowhere"] {
        assert_eq!(server.get(path).await.status, 401, "{path}");
    }
    for wrong in ["Bearer secre", "Bearer secret2", "Bearer terces", "secret", "Bearer "] {
        let reply = send(server.http, "POST", "/v1/completions", &[("authorization", wrong)], WHOLE).await;
        assert_eq!(reply.status, 401, "{wrong}");
        assert_eq!(reply.json()["error"]["code"], 401);
    }
    let reply = send(server.http, "POST", "/v1/completions", &[("authorization", "Bearer secret")], WHOLE).await;
    assert_eq!(reply.status, 200);
    server.stop().await;
}

#[tokio::test]
async fn e11_content_type_and_size_have_their_own_answers() {
    let server = TestServer::saying("hi").await;
    let headers = [("content-type", "text/plain")];
    assert_eq!(send(server.http, "POST", "/v1/completions", &headers, WHOLE).await.status, 200);
    let expect = [("content-type", "application/json; charset=latin-1")];
    assert_eq!(send(server.http, "POST", "/v1/chat/completions", &expect, "{\"messages\": 1}").await.status, 400);
    let reply = send(server.http, "DELETE", "/v1/models", &[], "").await;
    assert_eq!((reply.status, reply.json()["error"]["type"].as_str()), (405, Some("MethodNotAllowedError")));
    server.stop().await;
}

#[tokio::test]
async fn models_and_version_describe_the_server() {
    let server = TestServer::saying("hi").await;
    let models = server.get("/v1/models").await.json();
    assert_eq!(models["object"], "list");
    assert_eq!((&models["data"][0]["id"], &models["data"][0]["max_model_len"]), (&json!(MODEL), &json!(128)));
    assert_eq!(server.get("/v1/models/tiny").await.json()["id"], MODEL);
    assert_eq!(server.get("/v1/models/org/other").await.refusal(), (404, "model".to_owned()));
    assert_eq!(server.get("/version").await.json()["version"], env!("CARGO_PKG_VERSION"));
    server.stop().await;
}

#[tokio::test]
async fn f05_readiness_waits_for_every_rank_while_liveness_does_not() {
    let nothing_known = Setup { limits: Some(ModelLimits::default()), ..Setup::default() };
    let server = TestServer::saying_with(nothing_known, "hi").await;
    let mut loading = ranks(&[0, 0]);
    loading[1].state = RankState::Loading;
    server.publisher.publish(FleetStatus { ready: false, ranks: loading, ..FleetStatus::default() });
    assert_eq!(server.get("/health").await.status, 200);
    let reply = server.get("/ready").await;
    assert_eq!(reply.status, 503);
    assert_eq!(reply.json()["ranks"][1]["state"], "loading");
    let reply = server.complete(&json!({"prompt": "x"})).await;
    assert_eq!(reply.status, 503);
    assert!(reply.header("retry-after").is_some() && reply.body.contains("rank 1 loading"), "{}", reply.body);
    server.publisher.set_limits(limits());
    server.publisher.publish(FleetStatus { ready: true, ranks: ranks(&[0, 0]), ..FleetStatus::default() });
    assert_eq!(server.get("/ready").await.status, 200);
    assert_eq!(server.complete(&json!({"prompt": "x"})).await.status, 200);
    server.stop().await;
}

#[tokio::test]
async fn g09_a_rank_can_be_asked_for_if_it_exists() {
    let (server, mut requests) = TestServer::held(Setup::default()).await;
    let seen = tokio::spawn(async move {
        let submitted = requests.recv().await.unwrap();
        let dp_rank = submitted.request.dp_rank;
        submitted.produce(&[300, 2]);
        dp_rank
    });
    for bad in ["2", "-1", "x", "", "4294967296"] {
        let reply = send(server.http, "POST", "/v1/completions", &[("X-data-parallel-rank", bad)], WHOLE).await;
        assert_eq!(reply.refusal(), (400, "X-data-parallel-rank".to_owned()), "{bad}");
    }
    let reply = send(server.http, "POST", "/v1/completions", &[("X-data-parallel-rank", "1")], WHOLE).await;
    assert_eq!((reply.status, seen.await.unwrap()), (200, Some(1)));
    server.stop().await;
}

#[tokio::test]
async fn d21_one_client_id_may_be_used_by_several_calls() {
    let (server, mut requests) = TestServer::held(Setup::default()).await;
    let headers = [("x-request-id", "mine")];
    let mut first = open(server.http, "POST", "/v1/completions", &headers, STREAM).await;
    let first_request = requests.recv().await.unwrap();
    let http = server.http;
    let second =
        tokio::spawn(async move { send(http, "POST", "/v1/completions", &[("x-request-id", "mine")], WHOLE).await });
    let second_request = requests.recv().await.unwrap();
    first_request.sink.tokens(vec![output(300, None)]);
    read_until(&mut first, "data: ").await;
    drop(first);
    first_request.sink.abandoned().await;
    assert!(!second_request.sink.is_abandoned());
    second_request.produce(&[301, 2]);
    let reply = second.await.unwrap();
    assert_eq!(reply.json()["id"], "cmpl-mine");
    assert_eq!(reply.json()["choices"][0]["text"], server.tokenizer.token_text(301));
    assert_eq!(reply.header("x-request-id"), Some("mine"));
    let too_long = "i".repeat(300);
    let reply = send(server.http, "GET", "/version", &[("x-request-id", &too_long)], "").await;
    assert_eq!(reply.status, 400);
    server.stop().await;
}

#[tokio::test]
async fn e13_a_client_that_leaves_drops_its_request() {
    for (path, body, streams, started) in [
        ("/v1/completions", STREAM, 1, true),
        ("/v1/completions", STREAM, 1, false),
        ("/v1/completions", WHOLE, 1, true),
        ("/v1/completions", WHOLE, 1, false),
        ("/v1/completions", r#"{"prompt": "x", "n": 4, "max_tokens": 50, "stream": true}"#, 4, true),
        ("/v1/chat/completions", r#"{"messages": [{"role": "user", "content": "x"}], "stream": true}"#, 1, true),
    ] {
        let (server, mut requests) = TestServer::held(Setup::default()).await;
        let mut client = open(server.http, "POST", path, &[], body).await;
        let mut held: Vec<Submitted> = Vec::new();
        while held.len() < streams {
            held.push(requests.recv().await.unwrap());
        }
        if started {
            for submitted in &held {
                submitted.sink.tokens(vec![output(300, None)]);
            }
            if body.contains("stream") {
                read_until(&mut client, "data: ").await;
            }
        }
        drop(client);
        for submitted in &held {
            submitted.sink.abandoned().await;
        }
        until_metric(&server, "paceline_request_abort_total{cause=\"disconnect\"}", 1.0).await;
        server.stop().await;
    }
}

/// The count is written a moment after the stream is dropped: by the same task, in the same drop.
async fn until_metric(server: &TestServer, series: &str, value: f64) {
    while server.metric(series).await != Some(value) {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn e14_a_full_queue_is_429_and_no_choice_stays_behind() {
    let room = std::sync::atomic::AtomicI64::new(3);
    let (sender, mut kept) = tokio::sync::mpsc::unbounded_channel();
    let server = TestServer::scripted(Setup::default(), move |submitted| {
        if room.fetch_sub(1, std::sync::atomic::Ordering::SeqCst) <= 0 {
            return Err(SubmitError::QueueFull { waiting: 3, limit: 3, unit: "requests" });
        }
        sender.send(submitted).map_err(|_| SubmitError::Unavailable { message: "over".to_owned() })
    })
    .await;
    let reply = server.complete(&json!({"prompt": "x", "n": 4})).await;
    assert_eq!((reply.status, reply.header("retry-after")), (429, Some("1")));
    assert_eq!(reply.json()["error"]["type"], "RateLimitError");
    for _ in 0..3 {
        kept.recv().await.unwrap().sink.abandoned().await;
    }
    assert_eq!(server.metric("paceline_request_reject_total{cause=\"queue_full\"}").await, Some(1.0));
    server.stop().await;
}

#[tokio::test]
async fn e19_every_form_of_request_meets_the_same_limit() {
    let full = || SubmitError::QueueFull { waiting: 3, limit: 3, unit: "requests" };
    let server = TestServer::scripted(Setup::default(), move |_| Err(full())).await;
    for body in [json!({"prompt": "a"}), json!({"prompt": ["a"]})] {
        assert_eq!(server.complete(&body).await.status, 429);
    }
    let chat = json!({"messages": [{"role": "user", "content": "x"}], "stream": true});
    assert_eq!(server.chat(&chat).await.status, 429);
    assert_eq!(server.metric("paceline_request_reject_total{cause=\"queue_full\"}").await, Some(3.0));
    server.stop().await;
}

#[tokio::test]
async fn the_engines_refusals_name_the_clients_fields() {
    let server = TestServer::scripted(Setup::default(), |_| {
        Err(SubmitError::Invalid { field: "prompt", message: "1010 tokens exceed the cache of 1008".to_owned() })
    })
    .await;
    let reply = server.complete(&json!({"prompt": "x"})).await;
    assert_eq!(reply.refusal(), (400, "prompt".to_owned()));
    assert!(reply.body.contains("1008"));
    let reply = server.chat(&json!({"messages": [{"role": "user", "content": "x"}]})).await;
    assert_eq!(reply.refusal(), (400, "messages".to_owned()));
    server.stop().await;
}

#[tokio::test]
async fn e16_a_failure_is_never_a_success() {
    for (kind, status, name) in
        [(FailureKind::Internal, 500, "internal"), (FailureKind::WorkerLost, 503, "worker_lost")]
    {
        let server = TestServer::scripted(Setup::default(), move |submitted| {
            submitted.sink.fail(kind, "rank 1 is gone");
            Ok(())
        })
        .await;
        for body in [STREAM, WHOLE] {
            let reply = send(server.http, "POST", "/v1/completions", &[], body).await;
            assert_eq!((reply.status, reply.json()["error"]["code"].as_u64()), (status, Some(u64::from(status))));
        }
        let series = format!("paceline_request_error_total{{cause=\"{name}\"}}");
        assert_eq!(server.metric(&series).await, Some(2.0));
        assert_eq!(server.metric("paceline_generation_tokens_total").await, Some(0.0));
        server.stop().await;
    }
}

#[tokio::test]
async fn e16_after_the_first_token_a_stream_ends_with_an_error_event() {
    let (server, mut requests) = TestServer::held(Setup::default()).await;
    for path in ["/v1/completions", "/v1/chat/completions"] {
        let body = r#"{"stream": true, "max_tokens": 9, "#.to_owned()
            + if path.contains("chat") {
                r#""messages": [{"role": "user", "content": "x"}]}"#
            } else {
                r#""prompt": "x"}"#
            };
        let mut client = open(server.http, "POST", path, &[], &body).await;
        let submitted = requests.recv().await.unwrap();
        submitted.sink.tokens(vec![output(300, None)]);
        read_until(&mut client, &server.tokenizer.token_text(300)).await;
        submitted.sink.fail(FailureKind::WorkerLost, "rank 1 is gone");
        let mut rest = Vec::new();
        client.read_to_end(&mut rest).await.unwrap();
        let rest = String::from_utf8(rest).unwrap();
        assert!(rest.contains("data: {\"error\":{\"message\":\"rank 1 is gone\""), "{rest}");
        assert!(!rest.contains("[DONE]"), "{rest}");
    }
    server.stop().await;
}

#[tokio::test]
async fn e18_every_call_is_counted_once() {
    let (server, mut requests) = TestServer::held(Setup::default()).await;
    for _ in 0..5 {
        let http = server.http;
        let call = tokio::spawn(async move { send(http, "POST", "/v1/completions", &[], WHOLE).await });
        requests.recv().await.unwrap().produce(&[300, 301, 2]);
        assert_eq!(call.await.unwrap().status, 200);
    }
    for queued in [true, false, false] {
        let client = open(server.http, "POST", "/v1/completions", &[], WHOLE).await;
        let submitted = requests.recv().await.unwrap();
        if !queued {
            submitted.sink.tokens(vec![output(300, None)]);
        }
        drop(client);
        submitted.sink.abandoned().await;
    }
    until_metric(&server, "paceline_request_abort_total{cause=\"disconnect\"}", 3.0).await;
    for _ in 0..2 {
        assert_eq!(server.complete(&json!({"prompt": "x", "top_p": 2})).await.status, 400);
    }
    assert_eq!(server.metric("paceline_request_success_total{cause=\"stop\"}").await, Some(5.0));
    assert_eq!(server.metric("paceline_request_reject_total{cause=\"invalid\"}").await, Some(2.0));
    // Only answers that were whole have a length in time.
    assert_eq!(server.metric("paceline_request_latency_seconds_count").await, Some(5.0));
    server.stop().await;
}

#[tokio::test]
async fn f08_every_rank_has_its_series() {
    let server = TestServer::saying("hi").await;
    let mut four: Vec<RankStatus> = ranks(&[1, 2, 3, 4]);
    let padding = PaddingCounters { idle_dummy: 4, row_ladder: 3, attention: 7, ..PaddingCounters::default() };
    let full = ModeTokens { real: 30, padding };
    let eager = ModeTokens { real: 10, ..ModeTokens::default() };
    four[3].counters = RankCounters {
        tokens_by_mode: [full, ModeTokens::default(), eager],
        steps_by_mode: [9, 0, 1],
        dummy_tokens: 4,
        ..RankCounters::default()
    };
    let counters = FleetCounters { balance_real_tokens: 50, balance_largest_tokens: 80, ..FleetCounters::default() };
    server.publisher.publish(FleetStatus { ready: true, ranks: four, waiting: 6, counters, ..FleetStatus::default() });
    for rank in 0..4 {
        let series = format!("paceline_requests_running{{dp_rank=\"{rank}\"}}");
        assert_eq!(server.metric(&series).await, Some(f64::from(rank) + 1.0));
    }
    for (series, value) in [
        ("paceline_requests_waiting", 6.0),
        ("paceline_real_tokens_total{dp_rank=\"3\",mode=\"full\"}", 30.0),
        ("paceline_real_tokens_total{dp_rank=\"3\",mode=\"eager\"}", 10.0),
        ("paceline_real_tokens_total{dp_rank=\"0\",mode=\"full\"}", 0.0),
        ("paceline_padded_tokens_total{dp_rank=\"3\",cause=\"row_ladder\",mode=\"full\"}", 3.0),
        ("paceline_padded_tokens_total{dp_rank=\"3\",cause=\"row_ladder\",mode=\"eager\"}", 0.0),
        ("paceline_attention_padded_tokens_total{dp_rank=\"3\",mode=\"full\"}", 7.0),
        ("paceline_dummy_tokens_total{dp_rank=\"3\"}", 4.0),
        ("paceline_balance_ratio", 0.625),
        ("paceline_rank_steps_total{dp_rank=\"3\",mode=\"full\"}", 9.0),
        ("vllm:spec_decode_num_drafts_total{model_name=\"tiny\",engine=\"3\"}", 0.0),
    ] {
        assert_eq!(server.metric(series).await, Some(value), "{series}");
    }
    let text = server.get("/metrics").await.body;
    assert!(text.ends_with("# EOF\n"));
    server.stop().await;
}

#[tokio::test]
async fn f09_a_port_in_use_is_known_before_anything_is_loaded() {
    let server = TestServer::saying("hi").await;
    let error = paceline_server::Listeners::bind(server.http, None).await.unwrap_err();
    assert!(error.to_string().starts_with(&format!("cannot listen on {}", server.http)), "{error}");
    server.stop().await;
}

#[tokio::test]
async fn stopping_does_not_wait_for_idle_connections() {
    let server = TestServer::saying("hi").await;
    let idle = tokio::net::TcpStream::connect(server.http).await.unwrap();
    server.stop().await;
    drop(idle);
}
