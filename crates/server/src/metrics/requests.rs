//! What vLLM tells of each request and we would not tell otherwise, under its names and with its buckets.

use std::time::{Duration, Instant};

use paceline_engine::Life;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

/// Seconds in a queue, in prompts and in output.
const PHASE_BUCKETS_S: [f64; 21] = [
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0,
    1_920.0, 7_680.0,
];

/// Seconds between tokens.
const TOKEN_BUCKETS_S: [f64; 19] =
    [0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0];

const TOKENS_BUCKETS: [f64; 12] = [1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1_000.0, 2_000.0, 5_000.0];

const CHOICES_BUCKETS: [f64; 5] = [1.0, 2.0, 5.0, 10.0, 20.0];

const PREEMPTIONS_BUCKETS: [f64; 6] = [0.0, 1.0, 2.0, 5.0, 10.0, 20.0];

/// The times of one choice that ended.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ChoiceTimes {
    /// When the engine was given it.
    pub(crate) submitted: Instant,
    /// When its first tokens came.
    pub(crate) first: Instant,
    /// When its last tokens came.
    pub(crate) last: Instant,
    /// Its tokens.
    pub(crate) tokens: usize,
    /// What the engine did with it.
    pub(crate) life: Life,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Reason {
    reason: &'static str,
}

/// Histograms of requests, and what the queue's limits turned away.
pub(crate) struct RequestMetrics {
    queue: Histogram,
    prefill: Histogram,
    decode: Histogram,
    inference: Histogram,
    per_token: Histogram,
    preemptions: Histogram,
    /// Of each call: tokens of its longest choice, choices of a prompt, tokens asked for, and prompt tokens computed.
    longest: Histogram,
    choices: Histogram,
    max_tokens: Histogram,
    computed: Histogram,
    turned_away: Family<Reason, Counter>,
}

impl RequestMetrics {
    pub(super) fn new() -> Self {
        let turned_away = Family::default();
        for reason in ["max_num_queued_reqs", "max_num_queued_tokens"] {
            turned_away.get_or_create_owned(&Reason { reason });
        }
        Self {
            queue: Histogram::new(PHASE_BUCKETS_S),
            prefill: Histogram::new(PHASE_BUCKETS_S),
            decode: Histogram::new(PHASE_BUCKETS_S),
            inference: Histogram::new(PHASE_BUCKETS_S),
            per_token: Histogram::new(TOKEN_BUCKETS_S),
            preemptions: Histogram::new(PREEMPTIONS_BUCKETS),
            longest: Histogram::new(TOKENS_BUCKETS),
            choices: Histogram::new(CHOICES_BUCKETS),
            max_tokens: Histogram::new(TOKENS_BUCKETS),
            computed: Histogram::new(TOKENS_BUCKETS),
            turned_away,
        }
    }

    /// Registers what has the labels of an engine.
    pub(super) fn register(&self, registry: &mut Registry) {
        for (name, help, histogram) in [
            ("request_queue_time_seconds", "From submission to the first seat", &self.queue),
            ("request_prefill_time_seconds", "From the first seat to the first token", &self.prefill),
            ("request_decode_time_seconds", "From the first token to the last", &self.decode),
            ("request_inference_time_seconds", "From the first seat to the last token", &self.inference),
            ("request_time_per_output_token_seconds", "Between tokens, the mean of a choice", &self.per_token),
            ("request_num_preemptions", "Times that a choice lost its blocks", &self.preemptions),
            ("request_max_num_generation_tokens", "Tokens of a call's longest choice", &self.longest),
            ("request_params_n", "Choices that calls asked for", &self.choices),
            ("request_params_max_tokens", "Tokens that choices were allowed", &self.max_tokens),
            ("request_prefill_kv_computed_tokens", "Prompt tokens that were not cached", &self.computed),
        ] {
            registry.register(format!("vllm:{name}"), help, histogram.clone());
        }
    }

    /// Registers what has the model's label only.
    pub(super) fn register_of_model(&self, registry: &mut Registry) {
        let help = "Requests that the limits of the queue turned away";
        registry.register("vllm:admission_rejections", help, self.turned_away.clone());
    }

    /// A choice came to its end.
    pub(crate) fn choice_ended(&self, times: &ChoiceTimes) {
        let ChoiceTimes { submitted, first, last, tokens, life } = *times;
        let seconds = |from: Instant, to: Instant| to.saturating_duration_since(from).as_secs_f64();
        // A scripted engine gives no seats.
        let started = life.started.unwrap_or(submitted);
        self.queue.observe(seconds(submitted, started));
        self.prefill.observe(seconds(started, first));
        self.decode.observe(seconds(first, last));
        self.inference.observe(seconds(started, last));
        let gaps = u32::try_from(tokens.saturating_sub(1)).unwrap_or(u32::MAX);
        let per_token = last.saturating_duration_since(first).checked_div(gaps).unwrap_or(Duration::ZERO);
        self.per_token.observe(per_token.as_secs_f64());
        self.preemptions.observe(f64::from(life.preemptions));
    }

    /// All choices of a call came to their ends.
    pub(crate) fn call_ended(&self, choices: u32, max_tokens: u32, longest: usize, computed: usize) {
        self.computed.observe(computed as f64);
        self.choices.observe(f64::from(choices));
        self.max_tokens.observe(f64::from(max_tokens));
        self.longest.observe(longest as f64);
    }

    /// The queue's limit on `unit` turned a request away.
    pub(crate) fn turned_away(&self, unit: &str) {
        let reason = if unit == "tokens" { "max_num_queued_tokens" } else { "max_num_queued_reqs" };
        self.turned_away.get_or_create(&Reason { reason }).inc();
    }
}
