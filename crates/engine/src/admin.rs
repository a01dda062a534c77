//! What operators ask of a running engine: gates, aborts, the prefix cache.

use paceline_fleet::{Fleet, Gate};
use paceline_plan::DpRank;
use tokio::sync::oneshot;

use crate::cache_events::CacheSubscription;
use crate::event::Event;
use crate::handle::{Handle, Inner, SubmitError};
use crate::status::FleetStatus;

/// What an operator wants, and where to say that it is done.
pub(crate) enum Admin {
    /// Set a gate, and wait until what it rules has come to rest.
    Gate { dp_rank: Option<u32>, gate: Gate, waits: bool, answer: oneshot::Sender<Result<(), SubmitError>> },
    /// End requests; how many there were.
    Abort { which: Which, answer: oneshot::Sender<u32> },
    /// Forget every cached prefix.
    ResetPrefixCache { answer: oneshot::Sender<()> },
    /// Keep changes of the prefix caches as long as somebody follows them.
    FollowCache { answer: oneshot::Sender<()> },
}

/// Which requests are to end.
pub(crate) enum Which {
    /// Those with one of these names.
    Named(Vec<String>),
    /// Those that run on this rank; all where none is given.
    Rank(Option<u32>),
}

impl Handle {
    /// Sets what a rank, or the whole fleet, does with requests. With `waits`, returns when what the gate rules has come
    /// to rest: no step in flight on a paused rank, nothing running on one that finishes or drains, nothing waiting
    /// either when the whole fleet drains.
    ///
    /// # Errors
    /// A rank that does not exist, an engine that has stopped, or another order that came before the rest.
    pub async fn set_gate(&self, dp_rank: Option<u32>, gate: Gate, waits: bool) -> Result<(), SubmitError> {
        let order = |answer| Admin::Gate { dp_rank, gate, waits, answer };
        let scripted = |status: &mut FleetStatus| {
            let all = dp_rank.is_none();
            status.draining = if all && gate != Gate::Paused { gate == Gate::Draining } else { status.draining };
            let ranks = status.ranks.iter_mut().filter(|rank| dp_rank.is_none_or(|only| only == rank.dp_rank));
            ranks.for_each(|rank| rank.gate = gate);
        };
        self.admin(order, scripted, Ok(())).await?
    }

    /// Ends every request, or those that run on this rank; their streams finish as aborted. How many there were.
    ///
    /// # Errors
    /// An engine that has stopped.
    pub async fn abort_rank(&self, dp_rank: Option<u32>) -> Result<u32, SubmitError> {
        self.admin(|answer| Admin::Abort { which: Which::Rank(dp_rank), answer }, |_| {}, 0).await
    }

    /// Ends the requests that callers gave one of these names; their streams finish as aborted. How many there were.
    ///
    /// # Errors
    /// An engine that has stopped.
    pub async fn abort_named(&self, names: Vec<String>) -> Result<u32, SubmitError> {
        self.admin(|answer| Admin::Abort { which: Which::Named(names), answer }, |_| {}, 0).await
    }

    /// Forgets every cached prefix. Requests that run keep the blocks that they hold.
    ///
    /// # Errors
    /// An engine that has stopped.
    pub async fn reset_prefix_cache(&self) -> Result<(), SubmitError> {
        self.admin(|answer| Admin::ResetPrefixCache { answer }, |_| {}, ()).await
    }

    /// The changes of all prefix caches from now on.
    ///
    /// # Errors
    /// An engine that has stopped.
    pub async fn subscribe_cache(&self) -> Result<CacheSubscription, SubmitError> {
        let subscription = self.publisher.cache().subscribe();
        self.admin(|answer| Admin::FollowCache { answer }, |_| {}, ()).await?;
        Ok(subscription)
    }

    /// Sends an order to the engine and waits for its answer; without an engine, `scripted` is all that happens.
    async fn admin<T>(
        &self,
        order: impl FnOnce(oneshot::Sender<T>) -> Admin,
        scripted: impl FnOnce(&mut FleetStatus),
        answer: T,
    ) -> Result<T, SubmitError> {
        let Inner::Engine { events, .. } = &self.inner else {
            self.publisher.update(scripted);
            return Ok(answer);
        };
        let stopped = || SubmitError::Unavailable { message: "the engine has stopped".to_owned() };
        let (sender, answered) = oneshot::channel();
        events.send(Event::Admin(order(sender))).await.map_err(|_| stopped())?;
        answered.await.map_err(|_| stopped())
    }
}

/// An operator who waits: for one rank or all, at a gate, and where the answer goes.
type Waiting = (Option<u32>, Gate, oneshot::Sender<Result<(), SubmitError>>);

/// Operators who wait until their gate's ranks have come to rest.
#[derive(Default)]
pub(crate) struct Resting {
    waiting: Vec<Waiting>,
}

impl Resting {
    pub(crate) fn push(&mut self, dp_rank: Option<u32>, gate: Gate, answer: oneshot::Sender<Result<(), SubmitError>>) {
        self.waiting.push((dp_rank, gate, answer));
    }

    /// Answers those whose wait is over, one way or the other, and forgets those who left.
    pub(crate) fn answer(&mut self, fleet: &Fleet) {
        for (dp_rank, gate, answer) in std::mem::take(&mut self.waiting) {
            let only = dp_rank.map(DpRank::new);
            let result = if !holds(fleet, only, gate) {
                let message = "another order came before the ranks had come to rest".to_owned();
                Err(SubmitError::Unavailable { message })
            } else if fleet.is_at_rest(only) {
                Ok(())
            } else {
                if !answer.is_closed() {
                    self.waiting.push((dp_rank, gate, answer));
                }
                continue;
            };
            // Whoever left needs no answer.
            let _ = answer.send(result);
        }
    }
}

/// Whether a gate that was set is still so.
fn holds(fleet: &Fleet, only: Option<DpRank>, gate: Gate) -> bool {
    match only {
        Some(dp_rank) => fleet.gate(dp_rank) == gate,
        None if gate == Gate::Draining => fleet.is_draining(),
        None => fleet.ranks().iter().all(|rank| fleet.gate(rank.dp_rank) == gate),
    }
}
