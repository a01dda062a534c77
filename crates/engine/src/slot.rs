//! Where the tokens of one request wait for their reader.
//!
//! A slot is bounded by the request's `max_new_tokens`, so the step loop never waits for a slow reader and nothing
//! grows without limit. Abandoned requests are listed beside the event channel, so that an abort is never lost to a
//! full channel nor waits behind one; the list is bounded by the number of live requests.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{Notify, mpsc};

use crate::event::Event;
use crate::handle::{FailureKind, FinishReason, StreamEvent, TokenLogprobs, TokenOutput};

#[derive(Debug)]
enum End {
    Finished(FinishReason),
    Failed(FailureKind, String),
}

#[derive(Debug, Default)]
struct Waiting {
    prompt_logprobs: Vec<TokenLogprobs>,
    tokens: Vec<TokenOutput>,
    end: Option<End>,
    closed: bool,
    /// Since when something waits.
    since: Option<Instant>,
    life: Life,
}

/// What the engine did with a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Life {
    /// When it first got a seat; never, if it ended in the queue.
    pub started: Option<Instant>,
    /// The rank that it has, or had last.
    pub dp_rank: Option<u32>,
    /// Times that it lost its blocks and began again.
    pub preemptions: u32,
}

/// The place shared by the engine and the reader of one request.
#[derive(Debug)]
pub(crate) struct Slot {
    id: u64,
    cached_tokens: AtomicU32,
    waiting: Mutex<Waiting>,
    filled: Notify,
    abandoned: AtomicBool,
    left: Notify,
    list: Option<Arc<Abandoned>>,
}

impl Slot {
    pub(crate) fn new(id: u64, list: Option<Arc<Abandoned>>) -> Arc<Self> {
        Arc::new(Self {
            id,
            cached_tokens: AtomicU32::new(0),
            waiting: Mutex::new(Waiting::default()),
            filled: Notify::new(),
            abandoned: AtomicBool::new(false),
            left: Notify::new(),
            list,
        })
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes what waits, unless the request has ended: then false.
    fn change(&self, change: impl FnOnce(&mut Waiting)) -> bool {
        let mut waiting = self.waiting();
        if waiting.closed {
            return false;
        }
        change(&mut waiting);
        waiting.since.get_or_insert_with(Instant::now);
        true
    }

    /// Changes what waits, unless the request has ended, and wakes the reader.
    fn update(&self, change: impl FnOnce(&mut Waiting)) {
        if self.change(change) {
            self.filled.notify_one();
        }
    }

    /// What the reader gets now: nothing yet, an event, or (`Some(None)`) nothing ever again.
    fn take(&self) -> Option<Option<StreamEvent>> {
        let mut waiting = self.waiting();
        waiting.since = None;
        if !waiting.prompt_logprobs.is_empty() {
            let logprobs = std::mem::take(&mut waiting.prompt_logprobs);
            return Some(Some(StreamEvent::PromptLogprobs { logprobs }));
        }
        let tokens = std::mem::take(&mut waiting.tokens);
        match waiting.end.take() {
            // What was produced before a failure is delivered before it.
            Some(end @ End::Failed(..)) if !tokens.is_empty() => {
                waiting.end = Some(end);
                Some(Some(StreamEvent::Tokens { tokens }))
            }
            Some(End::Failed(kind, message)) => Some(Some(StreamEvent::Failed { kind, message })),
            Some(End::Finished(reason)) => Some(Some(StreamEvent::Finished { tokens, reason })),
            None if !tokens.is_empty() => Some(Some(StreamEvent::Tokens { tokens })),
            None if waiting.closed => Some(None),
            None => None,
        }
    }

    /// What the engine has done with the request so far.
    pub(crate) fn life(&self) -> Life {
        self.waiting().life
    }

    pub(crate) async fn next(&self) -> Option<StreamEvent> {
        loop {
            if let Some(event) = self.take() {
                return event;
            }
            self.filled.notified().await;
        }
    }

    pub(crate) const fn id(&self) -> u64 {
        self.id
    }

    pub(crate) fn cached_tokens(&self) -> u32 {
        self.cached_tokens.load(Ordering::Relaxed)
    }

    /// The reader is gone: the request is listed for the step loop unless it has ended.
    pub(crate) fn abandon(&self) {
        self.abandoned.store(true, Ordering::SeqCst);
        self.left.notify_waiters();
        let ended = self.waiting().closed;
        if let Some(list) = &self.list
            && !ended
        {
            list.push(self.id);
        }
    }
}

/// The engine's end of a request's slot. Dropped before the end, it fails the request, so that no reader waits for
/// ever.
#[derive(Debug)]
pub struct TokenSink {
    slot: Arc<Slot>,
}

impl TokenSink {
    pub(crate) const fn new(slot: Arc<Slot>) -> Self {
        Self { slot }
    }

    /// Adds log-probabilities of prompt tokens. They are dropped after the end.
    pub fn prompt_logprobs(&self, mut logprobs: Vec<TokenLogprobs>) {
        self.slot.update(|waiting| waiting.prompt_logprobs.append(&mut logprobs));
    }

    /// Tokens of the prompt that were read from the prefix cache: told before the first token of the output.
    pub fn cached_tokens(&self, tokens: u32) {
        self.slot.cached_tokens.store(tokens, Ordering::Relaxed);
    }

    /// Adds tokens. They are dropped after the end.
    pub fn tokens(&self, tokens: Vec<TokenOutput>) {
        self.fill(tokens, None).iter().for_each(Filled::tell);
    }

    /// Adds the last tokens and ends the request.
    pub fn finish(&self, tokens: Vec<TokenOutput>, reason: FinishReason) {
        self.fill(tokens, Some(reason)).iter().for_each(Filled::tell);
    }

    /// Adds tokens, the last ones if there is a reason, and leaves it to the caller to wake the reader. Nothing after
    /// the end.
    pub(crate) fn fill(&self, mut tokens: Vec<TokenOutput>, end: Option<FinishReason>) -> Option<Filled> {
        let is_new = self.slot.change(|waiting| {
            waiting.tokens.append(&mut tokens);
            if let Some(reason) = end {
                waiting.end = Some(End::Finished(reason));
                waiting.closed = true;
            }
        });
        is_new.then(|| Filled(Arc::clone(&self.slot)))
    }

    /// Ends the request with an error.
    pub fn fail(&self, kind: FailureKind, message: impl Into<String>) {
        self.slot.update(|waiting| {
            waiting.end = Some(End::Failed(kind, message.into()));
            waiting.closed = true;
        });
    }

    /// Notes that the request has a seat on this rank.
    pub fn start(&self, dp_rank: u32) {
        let life = &mut self.slot.waiting().life;
        life.started.get_or_insert_with(Instant::now);
        life.dp_rank = Some(dp_rank);
    }

    /// Notes that the request has lost its blocks.
    pub fn preempt(&self) {
        self.slot.waiting().life.preemptions += 1;
    }

    /// How long something has waited for the reader.
    pub(crate) fn unread_for(&self) -> Duration {
        self.slot.waiting().since.map_or(Duration::ZERO, |since| since.elapsed())
    }

    /// True once the reader has dropped its stream.
    pub fn is_abandoned(&self) -> bool {
        self.slot.abandoned.load(Ordering::SeqCst)
    }

    /// Waits until the reader has dropped its stream.
    pub async fn abandoned(&self) {
        loop {
            let left = self.slot.left.notified();
            tokio::pin!(left);
            left.as_mut().enable();
            if self.is_abandoned() {
                return;
            }
            left.await;
        }
    }
}

impl Drop for TokenSink {
    fn drop(&mut self) {
        self.fail(FailureKind::Internal, "the engine let go of the request");
    }
}

/// A slot with something new in it, whose reader sleeps until it is told.
#[derive(Debug)]
pub(crate) struct Filled(Arc<Slot>);

impl Filled {
    /// Wakes the reader.
    pub(crate) fn tell(&self) {
        self.0.filled.notify_one();
    }
}

/// Requests whose readers have left, for the step loop.
#[derive(Debug)]
pub(crate) struct Abandoned {
    ids: Mutex<Vec<u64>>,
    wake: mpsc::Sender<Event>,
}

impl Abandoned {
    pub(crate) fn new(wake: mpsc::Sender<Event>) -> Arc<Self> {
        Arc::new(Self { ids: Mutex::new(Vec::new()), wake })
    }

    fn push(&self, id: u64) {
        self.ids.lock().unwrap_or_else(PoisonError::into_inner).push(id);
        // A full channel means that the loop is about to run, and it looks here each time.
        let _ = self.wake.try_send(Event::Wake);
    }

    pub(crate) fn take(&self) -> Vec<u64> {
        std::mem::take(&mut *self.ids.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
