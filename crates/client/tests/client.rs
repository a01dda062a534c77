//! The programs against a server of the test's own, which speaks as much of the API as they need.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use clap::{Args, FromArgMatches};
use paceline_client::{BatchArguments, BenchArguments, ChatArguments, Error, run_batch, run_bench, run_chat};
use serde_json::{Value, json};
use tokio::io::BufReader;

/// Completions that were asked for.
type Asked = Arc<AtomicUsize>;

async fn completions(State(asked): State<Asked>, Json(body): Json<Value>) -> Response {
    let number = asked.fetch_add(1, Ordering::SeqCst);
    if body["prompt"] == "refuse" {
        return (StatusCode::BAD_REQUEST, Json(json!({"error": {"message": "no such thing"}}))).into_response();
    }
    if body["prompt"] == "full" && number == 0 {
        return (StatusCode::TOO_MANY_REQUESTS, Json(json!({"error": {"message": "full"}}))).into_response();
    }
    if body["prompt"] == "stop" {
        return (StatusCode::SERVICE_UNAVAILABLE, Json(json!({"error": {"message": "stopping"}}))).into_response();
    }
    if body["stream"] != true {
        return Json(json!({"id": "cmpl-1", "choices": [{"text": body["prompt"]}]})).into_response();
    }
    let tokens = body["max_tokens"].as_u64().unwrap_or(0);
    let mut events: String = (0..tokens).map(|_| "data: {\"choices\": [{\"text\": \"a\"}]}\n\n").collect();
    if body["prompt"] == "broken" {
        return events.into_response();
    }
    let usage = json!({"choices": [], "usage": {"prompt_tokens": 4, "completion_tokens": tokens}});
    events.push_str(&format!("data: {usage}\n\ndata: [DONE]\n\n"));
    events.into_response()
}

async fn chat(Json(body): Json<Value>) -> String {
    let said: Vec<&str> =
        body["messages"].as_array().expect("messages").iter().filter_map(|m| m["content"].as_str()).collect();
    let chunk = |text: &str| format!("data: {}\n\n", json!({"choices": [{"delta": {"content": text}}]}));
    format!("{}{}data: [DONE]\n\n", chunk("heard: "), chunk(&said.join("|")))
}

async fn serve() -> (String, Asked) {
    let asked = Asked::default();
    let models = || async { Json(json!({"data": [{"id": "tiny"}]})) };
    let routes = Router::new()
        .route("/v1/models", get(models))
        .route("/v1/completions", post(completions))
        .route("/v1/chat/completions", post(chat))
        .with_state(Arc::clone(&asked));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let url = format!("http://{}", listener.local_addr().expect("bound"));
    tokio::spawn(async move { axum::serve(listener, routes).await });
    (url, asked)
}

fn arguments<A: Args + FromArgMatches>(given: &[&str]) -> A {
    let command = A::augment_args(clap::Command::new("test"));
    let matches = command.try_get_matches_from(std::iter::once("test").chain(given.iter().copied())).expect("valid");
    A::from_arg_matches(&matches).expect("valid")
}

/// A folder of this test, emptied.
fn folder(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = std::fs::remove_dir_all(&path);
    std::fs::create_dir_all(&path).expect("a folder");
    path
}

fn batch(url: &str, input: &Path, output: &Path) -> BatchArguments {
    arguments(&["--url", url, &input.display().to_string(), &output.display().to_string()])
}

fn line(custom_id: &str, prompt: &str) -> String {
    json!({"custom_id": custom_id, "method": "POST", "url": "/v1/completions", "body": {"prompt": prompt}}).to_string()
        + "\n"
}

fn answers(path: &Path) -> Vec<(String, u64, Value)> {
    let text = std::fs::read_to_string(path).expect("written");
    let records = text.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
    let mut found: Vec<_> = records
        .map(|record| {
            let status = record["response"]["status_code"].as_u64().expect("a status");
            (record["custom_id"].as_str().expect("an id").to_owned(), status, record["response"]["body"].clone())
        })
        .collect();
    found.sort_by(|a, b| a.0.cmp(&b.0));
    found
}

#[tokio::test]
async fn a_batch_is_answered_line_by_line_and_goes_on_where_it_was_cut() {
    let (url, asked) = serve().await;
    let folder = folder("batch");
    let (input, output) = (folder.join("in.jsonl"), folder.join("out.jsonl"));
    std::fs::write(&input, line("a", "one") + &line("b", "refuse") + "\n" + &line("c", "three")).expect("written");
    run_batch(batch(&url, &input, &output)).await.expect("answered");
    let found = answers(&output);
    assert_eq!(
        found.iter().map(|(id, status, _)| (id.as_str(), *status)).collect::<Vec<_>>(),
        [("a", 200), ("b", 400), ("c", 200)]
    );
    assert_eq!(found[2].2["choices"][0]["text"], "three");
    assert_eq!(found[1].2["error"]["message"], "no such thing");
    assert_eq!(asked.load(Ordering::SeqCst), 3);

    // Cut in the middle of the last answer: only that one is asked for again.
    let text = std::fs::read_to_string(&output).expect("written");
    std::fs::write(&output, &text[..text.len() - 20]).expect("written");
    run_batch(batch(&url, &input, &output)).await.expect("answered");
    assert_eq!(answers(&output).len(), 3);
    assert_eq!(asked.load(Ordering::SeqCst), 4);
}

#[tokio::test]
async fn a_full_server_is_asked_again_and_a_stopping_one_ends_the_batch() {
    let (url, asked) = serve().await;
    let folder = folder("full");
    let (input, output) = (folder.join("in.jsonl"), folder.join("out.jsonl"));
    std::fs::write(&input, line("a", "full")).expect("written");
    run_batch(batch(&url, &input, &output)).await.expect("answered");
    assert_eq!((answers(&output)[0].1, asked.load(Ordering::SeqCst)), (200, 2));
    std::fs::write(&input, line("a", "full") + &line("b", "stop")).expect("written");
    let error = run_batch(batch(&url, &input, &output)).await.expect_err("stops");
    assert!(matches!(&error, Error::Status { status: 503, message, .. } if message == "stopping"), "{error}");
    assert_eq!(answers(&output).len(), 1, "what was answered stays");
}

#[tokio::test]
async fn unusable_lines_are_named_before_anything_is_asked() {
    let (url, asked) = serve().await;
    let folder = folder("lines");
    let (input, output) = (folder.join("in.jsonl"), folder.join("out.jsonl"));
    let good = line("a", "one");
    for (bad, named) in [
        (good.clone(), "custom_id \"a\" is there twice"),
        (good.replace("\"a\"", "\"b\"").replace("POST", "GET"), "method is \"GET\""),
        (good.replace("\"a\"", "\"b\"").replace("/v1/completions", "/v1/embeddings"), "url is \"/v1/embeddings\""),
        ("{\"custom_id\": \"b\"}\n".to_owned(), "missing field"),
        ("nothing\n".to_owned(), "expected"),
    ] {
        std::fs::write(&input, good.clone() + &bad).expect("written");
        let error = run_batch(batch(&url, &input, &output)).await.expect_err("refused").to_string();
        assert!(error.contains("line 2") && error.contains(named), "{error}");
    }
    assert_eq!(asked.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn a_load_is_counted_and_timed() {
    let (url, asked) = serve().await;
    let result = folder("bench").join("result.json");
    let given = ["--url", &url, "--num-prompts", "20", "--max-concurrency", "4", "--random-output-len", "8"];
    let more = ["--goodput", "ttft:60000", "--result-file", &result.display().to_string()];
    let mut printed = Vec::new();
    let summary =
        run_bench(&arguments::<BenchArguments>(&[&given[..], &more[..]].concat()), &mut printed).await.expect("run");
    assert_eq!((summary.completed(), asked.load(Ordering::SeqCst)), (20, 21), "and one to warm up");
    let written: Value = serde_json::from_slice(&std::fs::read(&result).expect("written")).expect("JSON");
    assert_eq!(
        (written["total_output_tokens"].as_u64(), written["total_input_tokens"].as_u64()),
        (Some(160), Some(80))
    );
    assert_eq!(written["request_goodput"], written["request_throughput"]);
    for key in ["mean_ttft_ms", "median_tpot_ms", "p99_itl_ms", "p90_e2el_ms"] {
        assert!(written[key].as_f64().is_some(), "{key}");
    }
    assert!(String::from_utf8(printed).expect("text").contains("time to first token"));
}

#[tokio::test]
async fn a_load_that_fails_says_how() {
    let (url, _) = serve().await;
    let path = folder("failing").join("prompts.jsonl");
    std::fs::write(&path, "{\"prompt\": \"broken\"}\n{\"prompt\": \"fine\"}\n").expect("written");
    let path = path.display().to_string();
    let given = ["--url", &url, "--num-prompts", "4", "--dataset-path", &path, "--num-warmups", "0"];
    let mut printed = Vec::new();
    let summary = run_bench(&arguments::<BenchArguments>(&given), &mut printed).await.expect("half of it");
    assert_eq!((summary.completed(), summary.json()["failed"].as_u64()), (2, Some(2)));
    assert!(String::from_utf8(printed).expect("text").contains("without [DONE]"));

    let error = run_bench(&arguments::<BenchArguments>(&["--url", "http://127.0.0.1:1"]), &mut Vec::new()).await;
    assert!(matches!(error, Err(Error::Connection { .. })), "{error:?}");
    for bad in [["--request-rate", "0"], ["--percentiles", "101"]] {
        let error =
            run_bench(&arguments::<BenchArguments>(&[&["--url", &url], &bad[..]].concat()), &mut Vec::new()).await;
        assert!(matches!(&error, Err(Error::Usage(line)) if line.contains(bad[0])), "{error:?}");
    }
}

#[tokio::test]
async fn a_chat_remembers_forgets_and_ends() {
    let (url, _) = serve().await;
    let given = ["--url", &url, "--system", "be brief"];
    let input = BufReader::new(&b"hello\n\nagain\n/reset\nnew\n/quit\nnever\n"[..]);
    let mut printed = Vec::new();
    run_chat(arguments::<ChatArguments>(&given), input, &mut printed).await.expect("talked");
    let printed = String::from_utf8(printed).expect("text");
    assert!(printed.contains("heard: be brief|hello\n"), "{printed}");
    assert!(printed.contains("heard: be brief|hello|heard: be brief|hello|again\n"), "{printed}");
    assert!(printed.contains("heard: be brief|new\n") && !printed.contains("never"), "{printed}");

    let mut printed = Vec::new();
    run_chat(arguments::<ChatArguments>(&["--url", &url, "just this"]), BufReader::new(&b""[..]), &mut printed)
        .await
        .expect("said");
    assert_eq!(String::from_utf8(printed).expect("text"), "heard: just this\n");
}
