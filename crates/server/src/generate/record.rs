//! What becomes of one call, counted exactly once.

use std::time::Instant;

use super::sequence::{Delta, FinishCause};
use crate::api_error::{ApiError, Kind};
use crate::app::App;

/// Follows a call from its arrival. Dropped before an end was reported, it counts the call as aborted: the client left.
pub(crate) struct CallRecord {
    app: App,
    arrived: Instant,
    /// When each choice last produced tokens.
    latest: Vec<Option<Instant>>,
    /// Tokens of each choice.
    produced: Vec<usize>,
    /// The last end seen of a choice.
    cause: FinishCause,
    concluded: bool,
    prompt_counted: bool,
}

impl CallRecord {
    /// A call that has just arrived.
    pub(crate) fn new(app: &App) -> Self {
        Self {
            app: app.clone(),
            arrived: Instant::now(),
            latest: Vec::new(),
            produced: Vec::new(),
            cause: FinishCause::Stop,
            concluded: false,
            prompt_counted: false,
        }
    }

    /// The call was refused before it reached the engine, or by it.
    pub(crate) fn refuse(&mut self, error: ApiError) -> ApiError {
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
        if !self.concluded {
            self.concluded = true;
            tracing::warn!(error = error.message, "a running call failed");
            let cause = if error.kind == Kind::Unavailable { "worker_lost" } else { "internal" };
            self.app.metrics.calls.failed(cause);
        }
        error
    }

    pub(crate) fn submitted(&mut self, choices: usize) {
        self.latest = vec![None; choices];
        self.produced = vec![0; choices];
    }

    /// Counts the tokens of `delta` and their times. The prompt counts once its first output is there.
    pub(crate) fn progress(&mut self, delta: &Delta, prompt_tokens: usize) {
        if let Some(finish) = &delta.finish {
            self.cause = finish.cause;
        }
        if delta.token_ids.is_empty() {
            return;
        }
        let calls = &self.app.metrics.calls;
        self.produced[delta.index as usize] += delta.token_ids.len();
        if !self.prompt_counted {
            self.prompt_counted = true;
            calls.prompt_tokens.inc_by(prompt_tokens as u64);
            calls.prompt_length.observe(prompt_tokens as f64);
        }
        calls.generation_tokens.inc_by(delta.token_ids.len() as u64);
        let now = Instant::now();
        match self.latest[delta.index as usize].replace(now) {
            None => calls.time_to_first_token.observe((now - self.arrived).as_secs_f64()),
            Some(before) => calls.inter_token.observe((now - before).as_secs_f64()),
        }
    }

    /// Every choice has ended.
    pub(crate) fn succeed(&mut self) {
        if self.concluded {
            return;
        }
        self.concluded = true;
        let calls = &self.app.metrics.calls;
        match self.cause {
            FinishCause::Stop => calls.succeeded("stop"),
            FinishCause::Length => calls.succeeded("length"),
            FinishCause::Abort => return calls.aborted("server"),
        }
        calls.end_to_end.observe(self.arrived.elapsed().as_secs_f64());
        self.produced.iter().for_each(|tokens| calls.output_length.observe(*tokens as f64));
    }
}

impl Drop for CallRecord {
    fn drop(&mut self) {
        if !self.concluded {
            self.app.metrics.calls.aborted("disconnect");
        }
    }
}
