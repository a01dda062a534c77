//! What the server holds of the engine: submit a request, read its tokens, see the fleet's state.
//!
//! A handle decides nothing and never blocks the step loop: tokens wait in a slot that the reader empties, and a
//! dropped [`TokenStream`] aborts its request. [`Handle::scripted`] makes a handle without an engine, for tests of
//! what stands in front of one.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::{mpsc, oneshot};

use paceline_grammar::Constraint;
pub use paceline_sampling::{SamplingParams, TokenLogprobs};

use crate::event::{Event, Submission};
use crate::ledger::{ExplainQuery, ExplainedStep, NotKept};
use crate::slot::{Abandoned, Life, Slot, TokenSink};
use crate::status::{FleetStatus, ModelLimits, Publisher};

/// One request as the engine takes it: token ids in, token ids out.
#[derive(Clone, Debug)]
pub struct GenerateRequest {
    /// The caller's name for it, in logs only; two live requests may share one.
    pub request_id: String,
    /// At least one token.
    pub prompt_token_ids: Vec<u32>,
    /// Most tokens to produce, at least 1; prompt and output together fit `max_model_len`.
    pub max_new_tokens: u32,
    /// Tokens that end the output; the end-of-sequence tokens are among them unless they are to be ignored.
    pub stop_token_ids: Vec<u32>,
    /// How tokens are chosen.
    pub sampling: SamplingParams,
    /// Which tokens may be chosen, by what came before.
    pub constraint: Option<Constraint>,
    /// Run on this rank only.
    pub dp_rank: Option<u32>,
    /// Lower runs first; 0 is normal.
    pub priority: i32,
    /// Cached prefixes are shared only among requests of the same salt.
    pub cache_salt: Vec<u8>,
    /// A request with the same prompt that was submitted before: this one waits until that one's prompt is computed
    /// and reads it from the prefix cache. Of no meaning when the cache is off.
    pub shares_prompt_with: Option<RequestKey>,
}

/// One submitted request, for others to refer to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestKey(pub(crate) u64);

/// One produced token.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenOutput {
    /// The token.
    pub token_id: u32,
    /// Its log-probabilities, where the request wants them.
    pub logprobs: Option<TokenLogprobs>,
}

/// What happens to a request after it was accepted.
#[derive(Clone, Debug, PartialEq)]
pub enum StreamEvent {
    /// Log-probabilities of prompt tokens, where the request wants them: all of them, from the second token on, come
    /// before the first token of the output.
    PromptLogprobs {
        /// In order, at least one.
        logprobs: Vec<TokenLogprobs>,
    },
    /// New tokens, at least one; more follow.
    Tokens {
        /// In order.
        tokens: Vec<TokenOutput>,
    },
    /// The last tokens, perhaps none, and why there are no more.
    Finished {
        /// In order. A stop token is the last of them.
        tokens: Vec<TokenOutput>,
        /// Why the request ended.
        reason: FinishReason,
    },
    /// The request ended without finishing. Tokens delivered before stay valid.
    Failed {
        /// Whose fault, for the status code.
        kind: FailureKind,
        /// One line for people.
        message: String,
    },
}

/// Why a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// A stop token came; which one.
    Stop(Option<u32>),
    /// `max_new_tokens` were produced.
    Length,
    /// The request was aborted from inside the daemon.
    Aborted,
}

/// Why a request failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureKind {
    /// The worker that ran it went away: 503.
    WorkerLost,
    /// A fault of ours: 500.
    Internal,
    /// Its reader left tokens waiting for too long: 408.
    SlowReader,
    /// What the caller holds the answer to allows no further token: 400.
    Stuck,
}

/// Why a request was not accepted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SubmitError {
    /// The caller's mistake: 400.
    #[error("{field}: {message}")]
    Invalid {
        /// The field at fault: `prompt`, `max_tokens`, `stop_token_ids`, `sampling`, `dp_rank`, ...
        field: &'static str,
        /// What is wrong, with the numbers.
        message: String,
    },
    /// Too much waits already: 429.
    #[error("the queue is full: {waiting} {unit} wait, {limit} may")]
    QueueFull {
        /// What waits.
        waiting: u64,
        /// What may.
        limit: u64,
        /// `requests` or `tokens`.
        unit: &'static str,
    },
    /// Not now: 503.
    #[error("{message}")]
    Unavailable {
        /// One line for people.
        message: String,
    },
}

pub(crate) type Script = dyn Fn(GenerateRequest, TokenSink) -> Result<(), SubmitError> + Send + Sync;

#[derive(Clone)]
pub(crate) enum Inner {
    Engine { events: mpsc::Sender<Event>, abandoned: Arc<Abandoned> },
    Scripted(Arc<Script>),
}

/// Access to a running engine. Cheap to clone.
#[derive(Clone)]
pub struct Handle {
    pub(crate) inner: Inner,
    next_id: Arc<AtomicU64>,
    pub(crate) publisher: Publisher,
}

impl Handle {
    pub(crate) fn new(events: mpsc::Sender<Event>, abandoned: Arc<Abandoned>, publisher: Publisher) -> Self {
        Self { inner: Inner::Engine { events, abandoned }, next_id: Arc::new(AtomicU64::new(1)), publisher }
    }

    /// A handle without an engine: `script` gets every submitted request and a sink for its events, which it may
    /// fill at once or move to a task. The fleet is reported ready with `limits` until the returned [`Publisher`] says
    /// otherwise.
    ///
    /// ```
    /// use paceline_engine::{FinishReason, Handle, ModelLimits, TokenOutput};
    ///
    /// let (handle, _publisher) = Handle::scripted(ModelLimits::default(), |request, sink| {
    ///     let tokens = request.prompt_token_ids.iter().map(|id| TokenOutput { token_id: *id, logprobs: None });
    ///     sink.finish(tokens.collect(), FinishReason::Length);
    ///     Ok(())
    /// });
    /// assert!(handle.status().ready);
    /// ```
    pub fn scripted(
        limits: ModelLimits,
        script: impl Fn(GenerateRequest, TokenSink) -> Result<(), SubmitError> + Send + Sync + 'static,
    ) -> (Self, Publisher) {
        let publisher = Publisher::default();
        publisher.set_limits(limits);
        publisher.publish(FleetStatus { ready: true, ..FleetStatus::default() });
        let inner = Inner::Scripted(Arc::new(script));
        (Self { inner, next_id: Arc::new(AtomicU64::new(1)), publisher: publisher.clone() }, publisher)
    }

    /// Hands a request to the scheduler and waits for its yes or no. Dropping the future or the stream aborts it.
    ///
    /// # Errors
    /// What the caller did wrong, or that there is no room or no worker for it.
    pub async fn submit(&self, request: GenerateRequest) -> Result<TokenStream, SubmitError> {
        request.sampling.validate().map_err(|error| SubmitError::Invalid {
            field: error.field().unwrap_or("sampling"),
            message: error.to_string(),
        })?;
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        match &self.inner {
            Inner::Scripted(script) => {
                let slot = Slot::new(id, None);
                let stream = TokenStream { slot: Arc::clone(&slot) };
                script(request, TokenSink::new(slot))?;
                Ok(stream)
            }
            Inner::Engine { events, abandoned } => {
                let slot = Slot::new(id, Some(Arc::clone(abandoned)));
                let stream = TokenStream { slot: Arc::clone(&slot) };
                let (answer, answered) = oneshot::channel();
                let submission = Box::new(Submission { id, request, sink: TokenSink::new(slot), answer });
                let stopped = || SubmitError::Unavailable { message: "the engine has stopped".to_owned() };
                events.send(Event::Submit(submission)).await.map_err(|_| stopped())?;
                answered.await.map_err(|_| stopped())??;
                Ok(stream)
            }
        }
    }

    /// The fleet as of the last step or change.
    pub fn status(&self) -> FleetStatus {
        self.publisher.status()
    }

    /// Why one of the latest steps is what it is; one answer per group that has such a step.
    ///
    /// # Errors
    /// When no such step is kept, with the numbers of the first and the last that are.
    pub fn explain(&self, query: ExplainQuery) -> Result<Vec<ExplainedStep>, NotKept> {
        self.publisher.explained(query)
    }

    /// What the model and the fleet can take. All zero until the workers have loaded.
    pub fn limits(&self) -> ModelLimits {
        self.publisher.limits()
    }
}

/// The events of one request. Dropping it aborts the request.
#[derive(Debug)]
pub struct TokenStream {
    slot: Arc<Slot>,
}

impl TokenStream {
    /// The next event; nothing after `Finished` or `Failed`. Tokens of several steps come together when the reader
    /// was slower than the engine.
    pub async fn next(&mut self) -> Option<StreamEvent> {
        self.slot.next().await
    }

    /// The request.
    pub fn key(&self) -> RequestKey {
        RequestKey(self.slot.id())
    }

    /// Tokens of the prompt that were read from the prefix cache; 0 until the first token came.
    pub fn cached_tokens(&self) -> u32 {
        self.slot.cached_tokens()
    }

    /// What the engine has done with the request so far.
    pub fn life(&self) -> Life {
        self.slot.life()
    }
}

impl Drop for TokenStream {
    fn drop(&mut self) {
        self.slot.abandon();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(max_new_tokens: u32) -> GenerateRequest {
        GenerateRequest {
            request_id: "r".to_owned(),
            prompt_token_ids: vec![1, 2, 3],
            max_new_tokens,
            stop_token_ids: Vec::new(),
            sampling: SamplingParams::greedy(),
            constraint: None,
            dp_rank: None,
            priority: 0,
            cache_salt: Vec::new(),
            shares_prompt_with: None,
        }
    }

    fn output(token_id: u32) -> TokenOutput {
        TokenOutput { token_id, logprobs: None }
    }

    #[tokio::test]
    async fn tokens_that_waited_come_together_and_nothing_follows_the_end() {
        let (handle, _publisher) = Handle::scripted(ModelLimits::default(), |_, sink| {
            sink.tokens(vec![output(7)]);
            sink.tokens(vec![output(8)]);
            sink.finish(vec![output(9)], FinishReason::Length);
            sink.tokens(vec![output(10)]);
            Ok(())
        });
        let mut stream = handle.submit(request(3)).await.expect("the script accepts");
        let tokens = vec![output(7), output(8), output(9)];
        assert_eq!(stream.next().await, Some(StreamEvent::Finished { tokens, reason: FinishReason::Length }));
        assert_eq!(stream.next().await, None);
        assert_eq!(stream.next().await, None);
    }

    #[tokio::test]
    async fn tokens_before_a_failure_are_delivered_before_it() {
        let (handle, _publisher) = Handle::scripted(ModelLimits::default(), |_, sink| {
            sink.tokens(vec![output(7)]);
            sink.fail(FailureKind::WorkerLost, "rank 1 is gone");
            Ok(())
        });
        let mut stream = handle.submit(request(3)).await.expect("the script accepts");
        assert_eq!(stream.next().await, Some(StreamEvent::Tokens { tokens: vec![output(7)] }));
        let message = "rank 1 is gone".to_owned();
        assert_eq!(stream.next().await, Some(StreamEvent::Failed { kind: FailureKind::WorkerLost, message }));
        assert_eq!(stream.next().await, None);
    }

    #[tokio::test]
    async fn a_dropped_sink_ends_its_stream() {
        let (handle, _publisher) = Handle::scripted(ModelLimits::default(), |_, _| Ok(()));
        let mut stream = handle.submit(request(3)).await.expect("the script accepts");
        assert!(matches!(stream.next().await, Some(StreamEvent::Failed { kind: FailureKind::Internal, .. })));
    }

    #[tokio::test]
    async fn a_dropped_stream_is_seen_by_its_sink() {
        let (sinks, mut received) = mpsc::unbounded_channel();
        let (handle, _publisher) = Handle::scripted(ModelLimits::default(), move |_, sink| {
            sinks.send(sink).expect("the test receives");
            Ok(())
        });
        let stream = handle.submit(request(3)).await.expect("the script accepts");
        let sink = received.recv().await.expect("sent by the script");
        assert!(!sink.is_abandoned());
        let waiter = tokio::spawn(async move { sink.abandoned().await });
        drop(stream);
        waiter.await.expect("the waiter ends");
    }
}
