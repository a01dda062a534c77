//! What becomes of one call, counted exactly once.

use std::time::Instant;

use super::call::Call;
use super::sequence::{Delta, FinishCause};
use crate::api_error::{ApiError, Kind};
use crate::app::App;
use crate::metrics::ChoiceTimes;
use crate::traces::{CHOICES_TOLD_MAX, CallSpan, ChoiceSpan, Traces};

/// Follows a call from its arrival. Dropped before an end was reported, it counts the call as aborted: the client left.
pub(crate) struct CallRecord {
    app: App,
    arrived: Instant,
    submitted: Instant,
    choices: Vec<ChoiceSpan>,
    /// Choices of each prompt.
    choices_asked: u32,
    /// Tokens that each choice may have.
    max_tokens: u32,
    /// Tokens of all prompts that were not read from the prefix cache.
    computed: usize,
    /// The last end seen of a choice.
    cause: FinishCause,
    concluded: bool,
    prompt_counted: bool,
    /// Tokens of all prompts.
    prompt_tokens: usize,
    /// Where its spans go and what they tell beside all that; nothing where it is not traced.
    traced: Option<(Traces, Box<CallSpan>)>,
}

impl CallRecord {
    /// A call that has just arrived.
    pub(crate) fn new(app: &App) -> Self {
        Self {
            app: app.clone(),
            arrived: Instant::now(),
            submitted: Instant::now(),
            choices: Vec::new(),
            choices_asked: 0,
            max_tokens: 0,
            computed: 0,
            cause: FinishCause::Stop,
            concluded: false,
            prompt_counted: false,
            prompt_tokens: 0,
            traced: None,
        }
    }

    /// What the call asks for is known: from now on it has spans, if its caller wants them and somebody takes them.
    pub(crate) fn trace(&mut self, call: &Call) {
        let Some(traces) = &self.app.options.traces else { return };
        if call.trace.is_some_and(|context| !context.sampled) {
            return;
        }
        let span = CallSpan::begin(call, &self.app.options.model_name, self.arrived);
        self.traced = Some((traces.clone(), Box::new(span)));
    }

    fn note_failure(&mut self, message: &str) {
        if let Some((_, span)) = &mut self.traced {
            span.failure.get_or_insert_with(|| message.to_owned());
        }
    }

    /// Sends the spans of a call that is over.
    fn send_spans(&mut self) {
        let Some((traces, mut span)) = self.traced.take() else { return };
        span.ended = Instant::now();
        span.submitted = (!self.choices.is_empty()).then_some(self.submitted);
        span.sequences = self.choices.len();
        span.max_tokens = self.max_tokens;
        span.prompt_tokens = self.prompt_tokens;
        span.completion_tokens = self.choices.iter().map(|choice| choice.tokens).sum();
        span.choices = self.choices.iter().take(CHOICES_TOLD_MAX).copied().collect();
        traces.send(span);
    }

    /// The call was refused before it reached the engine, or by it.
    pub(crate) fn refuse(&mut self, error: ApiError) -> ApiError {
        self.note_failure(&error.message);
        if !self.concluded {
            self.concluded = true;
            let calls = &self.app.metrics.calls;
            match error.kind {
                Kind::QueueFull => calls.rejected("queue_full"),
                Kind::Unavailable => calls.rejected("unavailable"),
                Kind::Internal => {
                    tracing::error!(error = error.message, "a call failed before it ran");
                    calls.failed("internal");
                }
                _ => calls.rejected("invalid"),
            }
        }
        error
    }

    /// The call failed after it was accepted.
    pub(crate) fn fail(&mut self, error: ApiError) -> ApiError {
        self.note_failure(&error.message);
        if !self.concluded {
            self.concluded = true;
            tracing::warn!(error = error.message, "a running call failed");
            let calls = &self.app.metrics.calls;
            match error.kind {
                Kind::SlowReader => calls.aborted("slow_reader"),
                Kind::Unavailable => calls.failed("worker_lost"),
                _ => calls.failed("internal"),
            }
        }
        error
    }

    /// The call is about to reach the engine: as so many requests, each of which may have so many tokens; its prompts have
    /// `prompt_tokens` together.
    pub(crate) fn submitted(&mut self, requests: usize, choices_asked: u32, max_tokens: u32, prompt_tokens: usize) {
        self.submitted = Instant::now();
        self.choices = vec![ChoiceSpan::default(); requests];
        self.choices_asked = choices_asked;
        self.max_tokens = max_tokens;
        self.prompt_tokens = prompt_tokens;
    }

    /// Counts the tokens of `delta` and their times. The prompt counts once its first output is there.
    pub(crate) fn progress(&mut self, delta: &Delta) {
        if let Some(finish) = &delta.finish {
            self.cause = finish.cause;
        }
        let choice = &mut self.choices[delta.index as usize];
        choice.life = delta.life;
        if delta.token_ids.is_empty() {
            return;
        }
        let calls = &self.app.metrics.calls;
        let now = Instant::now();
        choice.tokens += delta.token_ids.len();
        if !self.prompt_counted {
            self.prompt_counted = true;
            self.computed = self.prompt_tokens;
            calls.prompt_tokens.inc_by(self.prompt_tokens as u64);
            calls.prompt_length.observe(self.prompt_tokens as f64);
        }
        self.computed = self.computed.saturating_sub(delta.cached_tokens as usize);
        calls.generation_tokens.inc_by(delta.token_ids.len() as u64);
        match choice.last_token.replace(now) {
            None => {
                choice.first_token = Some(now);
                calls.time_to_first_token.observe((now - self.arrived).as_secs_f64());
            }
            Some(before) => calls.inter_token.observe((now - before).as_secs_f64()),
        }
        if let (Some(finish), Some(first)) = (&delta.finish, choice.first_token)
            && finish.cause != FinishCause::Abort
        {
            let (submitted, tokens) = (self.submitted, choice.tokens);
            let times = ChoiceTimes { submitted, first, last: now, tokens, life: delta.life };
            self.app.metrics.requests.choice_ended(&times);
        }
    }

    /// Every choice has ended.
    pub(crate) fn succeed(&mut self) {
        if self.concluded {
            return;
        }
        self.concluded = true;
        if self.cause == FinishCause::Abort {
            self.note_failure("ended by an operator");
        }
        let calls = &self.app.metrics.calls;
        match self.cause {
            FinishCause::Stop => calls.succeeded("stop"),
            FinishCause::Length => calls.succeeded("length"),
            FinishCause::Abort => return calls.aborted("server"),
        }
        calls.end_to_end.observe(self.arrived.elapsed().as_secs_f64());
        self.choices.iter().for_each(|choice| calls.output_length.observe(choice.tokens as f64));
        let longest = self.choices.iter().map(|choice| choice.tokens).max().unwrap_or(0);
        self.app.metrics.requests.call_ended(self.choices_asked, self.max_tokens, longest, self.computed);
    }
}

impl Drop for CallRecord {
    fn drop(&mut self) {
        if !self.concluded {
            self.app.metrics.calls.aborted("disconnect");
            self.note_failure("the client left");
        }
        self.send_spans();
    }
}
