//! Counts and times of calls, as clients see them. A call is one HTTP request or gRPC call, however many choices it has.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

/// Seconds; from one step of a small model to a long queue.
const LATENCY_BUCKETS_S: [f64; 18] =
    [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0];

/// Tokens.
const LENGTH_BUCKETS: [f64; 16] = [
    1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1_000.0, 2_000.0, 5_000.0, 10_000.0, 20_000.0, 50_000.0,
    100_000.0,
];

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EncodeLabelSet)]
struct FinishedReason {
    finished_reason: &'static str,
}

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
    /// As `success` and `abort`, under the label that vLLM gives the cause.
    finished: Family<FinishedReason, Counter>,
    /// Calls that were let in and have not ended.
    pub(crate) open: Gauge,
    pub(crate) prompt_tokens: Counter,
    pub(crate) generation_tokens: Counter,
    pub(crate) time_to_first_token: Histogram,
    pub(crate) inter_token: Histogram,
    pub(crate) end_to_end: Histogram,
    /// Of each call.
    pub(crate) prompt_length: Histogram,
    /// Of each choice.
    pub(crate) output_length: Histogram,
}

impl CallMetrics {
    pub(super) fn register(registry: &mut Registry) -> Self {
        let metrics = Self {
            success: Family::default(),
            abort: Family::default(),
            reject: Family::default(),
            error: Family::default(),
            finished: Family::default(),
            open: Gauge::default(),
            prompt_tokens: Counter::default(),
            generation_tokens: Counter::default(),
            time_to_first_token: Histogram::new(LATENCY_BUCKETS_S),
            inter_token: Histogram::new(LATENCY_BUCKETS_S),
            end_to_end: Histogram::new(LATENCY_BUCKETS_S),
            prompt_length: Histogram::new(LENGTH_BUCKETS),
            output_length: Histogram::new(LENGTH_BUCKETS),
        };
        registry.register(
            "request_success",
            "Calls answered whole, by why the last choice ended",
            metrics.success.clone(),
        );
        registry.register("request_abort", "Calls given up before their end, by who did", metrics.abort.clone());
        registry.register("request_reject", "Calls refused, by reason", metrics.reject.clone());
        registry.register("request_error", "Calls that failed after they were accepted", metrics.error.clone());
        registry.register("calls_open", "Calls that were let in and have not ended", metrics.open.clone());
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
        for cause in ["disconnect", "slow_reader"] {
            metrics.abort.get_or_create_owned(&Cause { cause });
        }
        for cause in ["invalid", "queue_full", "unavailable"] {
            metrics.reject.get_or_create_owned(&Cause { cause });
        }
        for cause in ["worker_lost", "internal"] {
            metrics.error.get_or_create_owned(&Cause { cause });
        }
        metrics
    }

    /// The same numbers under vLLM's names.
    pub(super) fn register_as_vllm(&self, registry: &mut Registry) {
        for finished_reason in ["stop", "length", "abort", "error"] {
            self.finished.get_or_create_owned(&FinishedReason { finished_reason });
        }
        let finished = self.finished.clone();
        registry.register("vllm:request_success", "Calls that ended, by why", finished);
        registry.register(
            "vllm:prompt_tokens",
            "Prompt tokens of calls that produced output",
            self.prompt_tokens.clone(),
        );
        registry.register("vllm:generation_tokens", "Tokens produced for clients", self.generation_tokens.clone());
        let histograms = [
            ("vllm:time_to_first_token_seconds", "To the first token of each choice", &self.time_to_first_token),
            ("vllm:inter_token_latency_seconds", "Between two deliveries of tokens", &self.inter_token),
            ("vllm:e2e_request_latency_seconds", "To the end of the last choice", &self.end_to_end),
            ("vllm:request_prompt_tokens", "Prompt tokens of a call", &self.prompt_length),
            ("vllm:request_generation_tokens", "Tokens of a choice", &self.output_length),
        ];
        for (name, help, histogram) in histograms {
            registry.register(name, help, histogram.clone());
        }
    }

    pub(crate) fn succeeded(&self, cause: &'static str) {
        self.success.get_or_create(&Cause { cause }).inc();
        self.finished.get_or_create(&FinishedReason { finished_reason: cause }).inc();
    }

    pub(crate) fn aborted(&self, cause: &'static str) {
        self.abort.get_or_create(&Cause { cause }).inc();
        self.finished.get_or_create(&FinishedReason { finished_reason: "abort" }).inc();
    }

    pub(crate) fn rejected(&self, cause: &'static str) {
        self.reject.get_or_create(&Cause { cause }).inc();
    }

    pub(crate) fn failed(&self, cause: &'static str) {
        self.error.get_or_create(&Cause { cause }).inc();
        self.finished.get_or_create(&FinishedReason { finished_reason: "error" }).inc();
    }
}
