//! Counts and times of calls, as clients see them. A call is one HTTP request or gRPC call, however many choices it has.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

/// Seconds; from one step of a small model to a long queue.
const LATENCY_BUCKETS_S: [f64; 18] =
    [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0];

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Cause {
    cause: &'static str,
}

/// What became of calls, and how long it took.
pub(crate) struct CallMetrics {
    success: Family<Cause, Counter>,
    abort: Family<Cause, Counter>,
    reject: Family<Cause, Counter>,
    error: Family<Cause, Counter>,
    pub(crate) prompt_tokens: Counter,
    pub(crate) generation_tokens: Counter,
    pub(crate) time_to_first_token: Histogram,
    pub(crate) inter_token: Histogram,
    pub(crate) end_to_end: Histogram,
}

impl CallMetrics {
    pub(super) fn register(registry: &mut Registry) -> Self {
        let metrics = Self {
            success: Family::default(),
            abort: Family::default(),
            reject: Family::default(),
            error: Family::default(),
            prompt_tokens: Counter::default(),
            generation_tokens: Counter::default(),
            time_to_first_token: Histogram::new(LATENCY_BUCKETS_S),
            inter_token: Histogram::new(LATENCY_BUCKETS_S),
            end_to_end: Histogram::new(LATENCY_BUCKETS_S),
        };
        registry.register(
            "request_success",
            "Calls answered whole, by why the last choice ended",
            metrics.success.clone(),
        );
        registry.register("request_abort", "Calls given up before their end, by who did", metrics.abort.clone());
        registry.register("request_reject", "Calls refused, by reason", metrics.reject.clone());
        registry.register("request_error", "Calls that failed after they were accepted", metrics.error.clone());
        registry.register(
            "prompt_tokens",
            "Prompt tokens of calls that produced output",
            metrics.prompt_tokens.clone(),
        );
        registry.register("generation_tokens", "Tokens produced for clients", metrics.generation_tokens.clone());
        registry.register(
            "time_to_first_token_seconds",
            "From a call's arrival to the first token of each choice",
            metrics.time_to_first_token.clone(),
        );
        registry.register(
            "inter_token_latency_seconds",
            "Between two deliveries of tokens to one choice",
            metrics.inter_token.clone(),
        );
        registry.register(
            "request_latency_seconds",
            "From arrival to the end of the last choice, calls answered whole",
            metrics.end_to_end.clone(),
        );
        // Series that a dashboard asks for exist from the start.
        for cause in ["stop", "length"] {
            metrics.success.get_or_create_owned(&Cause { cause });
        }
        metrics.abort.get_or_create_owned(&Cause { cause: "disconnect" });
        for cause in ["invalid", "queue_full", "unavailable"] {
            metrics.reject.get_or_create_owned(&Cause { cause });
        }
        for cause in ["worker_lost", "internal"] {
            metrics.error.get_or_create_owned(&Cause { cause });
        }
        metrics
    }

    pub(crate) fn succeeded(&self, cause: &'static str) {
        self.success.get_or_create(&Cause { cause }).inc();
    }

    pub(crate) fn aborted(&self, cause: &'static str) {
        self.abort.get_or_create(&Cause { cause }).inc();
    }

    pub(crate) fn rejected(&self, cause: &'static str) {
        self.reject.get_or_create(&Cause { cause }).inc();
    }

    pub(crate) fn failed(&self, cause: &'static str) {
        self.error.get_or_create(&Cause { cause }).inc();
    }
}
