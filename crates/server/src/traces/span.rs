//! What became of a call, and the spans that tell it: one for the call, and below it the queue, the prefill and the decode
//! of each of its choices.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use paceline_engine::Life;
use rand::Rng;

use super::context::TraceContext;
use super::otlp::{KeyValue, Span, SpanStatus, Value};
use crate::generate::Call;

/// Choices of a call that have spans of their own. A call may have thousands.
pub(crate) const CHOICES_TOLD_MAX: usize = 8;

/// As the protocol numbers them.
const INTERNAL: i32 = 1;
const SERVER: i32 = 2;
const STATUS_ERROR: i32 = 2;

/// What became of a call, with all that its spans tell.
#[derive(Debug, Clone)]
pub(crate) struct CallSpan {
    /// The trace that its caller wants it in.
    pub(crate) context: Option<TraceContext>,
    pub(crate) request_id: String,
    pub(crate) model: String,
    pub(crate) arrived: Instant,
    /// When its choices were handed to the engine.
    pub(crate) submitted: Option<Instant>,
    pub(crate) ended: Instant,
    /// The first [`CHOICES_TOLD_MAX`] of all its prompts' choices, in order.
    pub(crate) choices: Vec<ChoiceSpan>,
    /// How many these are without that limit.
    pub(crate) sequences: usize,
    /// Choices of each prompt.
    pub(crate) choices_asked: u32,
    pub(crate) max_tokens: u32,
    /// Of all prompts.
    pub(crate) prompt_tokens: usize,
    /// Of all choices.
    pub(crate) completion_tokens: usize,
    pub(crate) temperature: Option<f32>,
    pub(crate) top_p: Option<f32>,
    /// Why it failed, if it did.
    pub(crate) failure: Option<String>,
}

/// What became of one choice.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct ChoiceSpan {
    pub(crate) life: Life,
    pub(crate) first_token: Option<Instant>,
    pub(crate) last_token: Option<Instant>,
    pub(crate) tokens: usize,
}

/// Turns instants into times of day.
#[derive(Debug, Clone, Copy)]
pub(super) struct Clock {
    instant: Instant,
    unix: Duration,
}

impl Clock {
    pub(super) fn now() -> Self {
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self { instant: Instant::now(), unix }
    }

    /// Nanoseconds since 1970, for instants before and after this clock was made.
    fn nanos(self, at: Instant) -> u64 {
        let before = self.instant.saturating_duration_since(at);
        let after = at.saturating_duration_since(self.instant);
        let unix = (self.unix + after).saturating_sub(before);
        u64::try_from(unix.as_nanos()).unwrap_or(u64::MAX)
    }
}

impl CallSpan {
    /// Of a call that arrived then; what becomes of it is still to come.
    pub(crate) fn begin(call: &Call, model: &str, arrived: Instant) -> Self {
        Self {
            context: call.trace,
            request_id: call.id.clone(),
            model: model.to_owned(),
            arrived,
            submitted: None,
            ended: arrived,
            choices: Vec::new(),
            sequences: 0,
            choices_asked: call.choices,
            max_tokens: 0,
            prompt_tokens: 0,
            completion_tokens: 0,
            temperature: call.sampling.temperature,
            top_p: call.sampling.top_p,
            failure: None,
        }
    }

    /// Its spans, the call's own first.
    pub(super) fn spans(&self, clock: Clock) -> Vec<Span> {
        let context = self.context.unwrap_or_else(TraceContext::begin);
        let own_id = rand::rng().random::<[u8; 8]>();
        let span = |name: &str, from: Instant, to: Instant| Span {
            trace_id: context.trace_id.to_vec(),
            span_id: rand::rng().random::<[u8; 8]>().to_vec(),
            parent_span_id: own_id.to_vec(),
            name: name.to_owned(),
            kind: INTERNAL,
            start_time_unix_nano: clock.nanos(from),
            end_time_unix_nano: clock.nanos(to.max(from)),
            ..Span::default()
        };
        let is_root = context.parent == [0; 8];
        let own = Span {
            span_id: own_id.to_vec(),
            parent_span_id: if is_root { Vec::new() } else { context.parent.to_vec() },
            kind: SERVER,
            attributes: self.attributes(),
            status: self.failure.clone().map(|message| SpanStatus { message, code: STATUS_ERROR }),
            ..span("llm_request", self.arrived, self.ended)
        };
        let mut spans = vec![own];
        for (index, choice) in self.choices.iter().enumerate() {
            let parts = [
                ("queue", self.submitted, choice.life.started),
                ("prefill", choice.life.started, choice.first_token),
                ("decode", choice.first_token, choice.last_token),
            ];
            for (name, from, to) in parts {
                if let (Some(from), Some(to)) = (from, to) {
                    spans.push(Span { attributes: choice.attributes(index), ..span(name, from, to) });
                }
            }
        }
        spans
    }

    /// Names are vLLM's, which are those of OpenTelemetry's convention for generative models where it has them.
    fn attributes(&self) -> Vec<KeyValue> {
        let mut all = vec![
            KeyValue::new("gen_ai.response.model", Value::Text(self.model.clone())),
            KeyValue::new("gen_ai.request.id", Value::Text(self.request_id.clone())),
            integer("gen_ai.request.n", self.choices_asked as usize),
            integer("gen_ai.request.max_tokens", self.max_tokens as usize),
            integer("gen_ai.usage.num_sequences", self.sequences),
            integer("gen_ai.usage.prompt_tokens", self.prompt_tokens),
            integer("gen_ai.usage.completion_tokens", self.completion_tokens),
        ];
        // Choices may run on several ranks: each tells its own below.
        let mut ranks = self.choices.iter().filter_map(|choice| choice.life.dp_rank);
        if let Some(dp_rank) = ranks.next().filter(|first| ranks.all(|other| other == *first)) {
            all.push(integer("paceline.dp_rank", dp_rank as usize));
        }
        let asked = [("gen_ai.request.temperature", self.temperature), ("gen_ai.request.top_p", self.top_p)];
        all.extend(asked.into_iter().filter_map(|(key, value)| Some(number(key, f64::from(value?)))));
        let started = self.choices.iter().filter_map(|choice| choice.life.started).min();
        let first = self.choices.iter().filter_map(|choice| choice.first_token).min();
        let last = self.choices.iter().filter_map(|choice| choice.last_token).max();
        let times = [
            ("gen_ai.latency.time_in_queue", self.submitted, started),
            ("gen_ai.latency.time_to_first_token", Some(self.arrived), first),
            ("gen_ai.latency.e2e", Some(self.arrived), Some(self.ended)),
            ("gen_ai.latency.time_in_model_prefill", started, first),
            ("gen_ai.latency.time_in_model_decode", first, last),
            ("gen_ai.latency.time_in_model_inference", started, last),
        ];
        let seconds = |(key, from, to): (&str, Option<Instant>, Option<Instant>)| {
            Some(number(key, to?.saturating_duration_since(from?).as_secs_f64()))
        };
        all.extend(times.into_iter().filter_map(seconds));
        all
    }
}

impl ChoiceSpan {
    fn attributes(&self, index: usize) -> Vec<KeyValue> {
        let mut all = vec![
            integer("paceline.choice", index),
            integer("paceline.preemptions", self.life.preemptions as usize),
            integer("gen_ai.usage.completion_tokens", self.tokens),
        ];
        all.extend(self.life.dp_rank.map(|dp_rank| integer("paceline.dp_rank", dp_rank as usize)));
        all
    }
}

fn integer(key: &str, value: usize) -> KeyValue {
    KeyValue::new(key, Value::Integer(i64::try_from(value).unwrap_or(i64::MAX)))
}

fn number(key: &str, value: f64) -> KeyValue {
    KeyValue::new(key, Value::Number(value))
}
