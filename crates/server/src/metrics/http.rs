//! Counts and times of HTTP requests by route, under the names that vLLM's dashboards have for them.

use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

const SECONDS: [f64; 3] = [0.1, 0.5, 1.0];

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Answered {
    handler: &'static str,
    method: &'static str,
    status: &'static str,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Route {
    handler: &'static str,
    method: &'static str,
}

/// One series per route, so that what clients send makes no new ones.
pub(crate) struct HttpMetrics {
    requests: Family<Answered, Counter>,
    duration: Family<Route, Histogram, fn() -> Histogram>,
}

impl HttpMetrics {
    pub(super) fn register(registry: &mut Registry) -> Self {
        let duration = Family::new_with_constructor((|| Histogram::new(SECONDS)) as fn() -> Histogram);
        let metrics = Self { requests: Family::default(), duration };
        registry.register("http_requests", "HTTP requests by route and kind of answer", metrics.requests.clone());
        registry.register(
            "http_request_duration_seconds",
            "From a request's head to its answer's; a stream's answer has begun by then",
            metrics.duration.clone(),
        );
        metrics
    }

    /// Counts an answer.
    pub(crate) fn answered(&self, path: &str, method: &str, status: u16, took: Duration) {
        let (handler, method) = (handler(path), known_method(method));
        let status = match status {
            200..300 => "2xx",
            300..400 => "3xx",
            400..500 => "4xx",
            _ => "5xx",
        };
        self.requests.get_or_create(&Answered { handler, method, status }).inc();
        self.duration.get_or_create(&Route { handler, method }).observe(took.as_secs_f64());
    }
}

/// The route of a path; `none` for all that there is no route for.
fn handler(path: &str) -> &'static str {
    const ROUTES: [&str; 13] = [
        "/v1/completions",
        "/v1/chat/completions",
        "/v1/responses",
        "/v1/models",
        "/tokenize",
        "/detokenize",
        "/tokenizer_info",
        "/load",
        "/health",
        "/ready",
        "/openapi.json",
        "/version",
        "/metrics",
    ];
    match ROUTES.iter().find(|route| **route == path) {
        Some(route) => route,
        None if path.starts_with("/v1/models/") => "/v1/models/{model}",
        None if path.starts_with("/explain/") => "/explain/{step}",
        None => "none",
    }
}

fn known_method(method: &str) -> &'static str {
    ["GET", "POST", "OPTIONS", "HEAD"].into_iter().find(|known| *known == method).unwrap_or("other")
}
