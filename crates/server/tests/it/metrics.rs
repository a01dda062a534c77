//! The metrics of vLLM: each is there with its type and its labels, or is declined for a reason.

use std::collections::{BTreeMap, BTreeSet};

use crate::common::{Setup, TestServer, ranks, send};
use paceline_engine::{FleetStatus, RankCounters, StepTokens, SubmitError};
use serde_json::json;

/// Metrics that a server of version 0.25.0 showed to its benchmark client: name, type, labels.
const METRICS: &str = include_str!("data/vllm_metrics.txt");

/// Metrics that are not there, and why.
const DECLINED: &[(&str, &str)] = &[
    ("vllm:estimated_flops_per_gpu_total", "nothing here estimates what a model costs"),
    ("vllm:estimated_read_bytes_per_gpu_total", "nothing here estimates what a model costs"),
    ("vllm:estimated_write_bytes_per_gpu_total", "nothing here estimates what a model costs"),
    ("vllm:external_prefix_cache_queries_total", "there is no prefix cache outside the ranks"),
    ("vllm:external_prefix_cache_hits_total", "there is no prefix cache outside the ranks"),
    ("vllm:mm_cache_queries_total", "models take text only"),
    ("vllm:mm_cache_hits_total", "models take text only"),
    ("vllm:engine_sleep_state", "an engine does not sleep"),
    ("http_request_size_bytes", "a summary of sizes tells less than the histograms of prompt tokens"),
    ("http_response_size_bytes", "a summary of sizes tells less than the histograms of output tokens"),
    ("http_request_duration_highr_seconds", "the same as http_request_duration_seconds, without routes"),
];

/// Metrics some of whose labels would say nothing here.
const FEWER_LABELS: &[&str] = &["vllm:cache_config_info"];

type Found = BTreeMap<String, (String, BTreeSet<String>)>;

/// Types and labels in a scrape. Counters are named in two ways, with `_total` and without.
fn read(text: &str) -> Found {
    let mut found = Found::new();
    for line in text.lines() {
        if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' ')) {
            let suffix = if kind == "counter" && !name.ends_with("_total") { "_total" } else { "" };
            found.insert(format!("{name}{suffix}"), (kind.to_owned(), BTreeSet::new()));
        }
        let Some((series, labels)) = line.split_once('{').filter(|_| !line.starts_with('#')) else { continue };
        let name = ["_bucket", "_count", "_sum"].iter().find_map(|end| series.strip_suffix(end)).unwrap_or(series);
        let labels = labels.split("\",").filter_map(|label| label.split_once('=')).map(|(label, _)| label.to_owned());
        let labels = labels.filter(|label| label != "le");
        found.get_mut(name).unwrap_or_else(|| panic!("{name} has no type")).1.extend(labels);
    }
    found
}

#[tokio::test]
async fn every_metric_of_vllm_is_there_or_declined() {
    let server = TestServer::saying_with(Setup::default(), "speak").await;
    let mut both = ranks(&[1, 0]);
    both[0].counters = RankCounters { accepted_per_position: vec![3, 1], ..RankCounters::default() };
    let step_tokens = vec![StepTokens::default()];
    server.publisher.publish(FleetStatus { ready: true, ranks: both, step_tokens, ..FleetStatus::default() });
    assert_eq!(server.complete(&json!({"prompt": "x"})).await.status, 200);
    let found = read(&server.get("/metrics").await.body);
    for line in METRICS.lines() {
        let mut words = line.split(' ');
        let (name, kind) = (words.next().unwrap(), words.next().unwrap());
        let labels: BTreeSet<String> = words.map(str::to_owned).collect();
        let declined = DECLINED.iter().any(|(declined, _)| *declined == name);
        let Some((our_kind, our_labels)) = found.get(name) else {
            assert!(declined, "{name} is neither there nor declined");
            continue;
        };
        assert!(!declined, "{name} is there although it is declined");
        assert_eq!(our_kind, kind, "{name}");
        if FEWER_LABELS.contains(&name) {
            assert!(our_labels.is_subset(&labels), "{name}: {our_labels:?} are not among {labels:?}");
        } else {
            assert_eq!(*our_labels, labels, "{name}");
        }
    }
    for name in ["num_drafts", "num_draft_tokens", "num_accepted_tokens", "num_accepted_tokens_per_pos"] {
        assert!(found.contains_key(&format!("vllm:spec_decode_{name}_total")), "{name}");
    }
    server.stop().await;
}

#[tokio::test]
async fn requests_are_told_by_route_and_those_turned_away_by_limit() {
    let full = |_| Err(SubmitError::QueueFull { waiting: 9, limit: 9, unit: "tokens" });
    let server = TestServer::scripted(Setup::default(), full).await;
    assert_eq!(server.complete(&json!({"prompt": "x"})).await.status, 429);
    for path in ["/nowhere", "/nowhere/else"] {
        assert_eq!(send(server.http, "BREW", path, &[], "").await.status, 404);
    }
    for (series, value) in [
        ("vllm:admission_rejections_total{model_name=\"tiny\",reason=\"max_num_queued_tokens\"}", 1.0),
        ("vllm:admission_rejections_total{model_name=\"tiny\",reason=\"max_num_queued_reqs\"}", 0.0),
        ("http_requests_total{handler=\"/v1/completions\",method=\"POST\",status=\"4xx\"}", 1.0),
        ("http_requests_total{handler=\"none\",method=\"other\",status=\"4xx\"}", 2.0),
    ] {
        assert_eq!(server.metric(series).await, Some(value), "{series}");
    }
    server.stop().await;
}
