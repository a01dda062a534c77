//! Changes of the prefix caches, for any number of readers. The step loop never waits for one: a reader that is too slow
//! misses some, and its subscription says how many.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use paceline_fleet::CacheChanges;
use paceline_scheduler::CacheChange;
use tokio::sync::broadcast;
use tokio::sync::broadcast::error::RecvError;

/// Batches that are kept for a slow reader; one is what a step did to the cache of one rank.
const BATCHES_KEPT: usize = 256;

/// Some changes of a rank's prefix cache, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheEvents {
    /// Which rank.
    pub dp_rank: u32,
    /// Number of the first change; each change of a rank has the next number.
    pub first_sequence: u64,
    /// What happened.
    pub changes: Vec<CacheChange>,
}

/// Where the step loop leaves changes.
#[derive(Debug)]
pub(crate) struct CacheHub {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// Gone once the engine has ended.
    sender: Option<broadcast::Sender<Arc<CacheEvents>>>,
    /// The next number, by rank.
    next: BTreeMap<u32, u64>,
}

impl Default for CacheHub {
    fn default() -> Self {
        let sender = Some(broadcast::Sender::new(BATCHES_KEPT));
        Self { state: Mutex::new(State { sender, next: BTreeMap::new() }) }
    }
}

impl CacheHub {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether anybody listens.
    pub(crate) fn is_followed(&self) -> bool {
        self.state().sender.as_ref().is_some_and(|sender| sender.receiver_count() > 0)
    }

    /// Gives changes to all readers.
    pub(crate) fn send(&self, changes: CacheChanges) {
        let CacheChanges { dp_rank, changes, missed } = changes;
        let dp_rank = dp_rank.get();
        let mut state = self.state();
        let next = state.next.entry(dp_rank).or_default();
        let first_sequence = *next;
        *next += changes.len() as u64 + missed;
        if let Some(sender) = state.sender.as_ref().filter(|_| !changes.is_empty()) {
            // Nobody listens any more: then nobody misses it.
            let _ = sender.send(Arc::new(CacheEvents { dp_rank, first_sequence, changes }));
        }
    }

    /// Ends every subscription.
    pub(crate) fn close(&self) {
        self.state().sender = None;
    }

    pub(crate) fn subscribe(&self) -> CacheSubscription {
        let state = self.state();
        let receiver = state.sender.as_ref().map(broadcast::Sender::subscribe);
        CacheSubscription { receiver, next: state.next.clone() }
    }
}

/// The changes of all ranks from the moment of the subscription on.
#[derive(Debug)]
pub struct CacheSubscription {
    receiver: Option<broadcast::Receiver<Arc<CacheEvents>>>,
    /// The number that comes next, by rank.
    next: BTreeMap<u32, u64>,
}

impl CacheSubscription {
    /// What comes next, and how many changes of its rank this reader missed right before it; nothing once the engine has
    /// ended.
    pub async fn next(&mut self) -> Option<(u64, Arc<CacheEvents>)> {
        loop {
            match self.receiver.as_mut()?.recv().await {
                Ok(events) => {
                    let expected = self.next.entry(events.dp_rank).or_default();
                    let missed = events.first_sequence - *expected;
                    *expected = events.first_sequence + events.changes.len() as u64;
                    return Some((missed, events));
                }
                // How many is told by the numbers of what comes next.
                Err(RecvError::Lagged(_)) => {}
                Err(RecvError::Closed) => return None,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use paceline_plan::DpRank;

    fn cleared(dp_rank: u32, count: usize, missed: u64) -> CacheChanges {
        CacheChanges { dp_rank: DpRank::new(dp_rank), changes: vec![CacheChange::Cleared; count], missed }
    }

    #[tokio::test]
    async fn a_slow_reader_is_told_how_much_it_missed_of_each_rank() {
        let hub = CacheHub::default();
        assert!(!hub.is_followed());
        hub.send(cleared(0, 7, 0));
        let (mut slow, mut quick) = (hub.subscribe(), hub.subscribe());
        assert!(hub.is_followed());
        hub.send(cleared(1, 3, 5));
        hub.send(cleared(1, 1, 0));
        for expected in [0, 5] {
            let (missed, events) = quick.next().await.expect("sent");
            assert_eq!((missed, events.dp_rank), (expected, 1));
        }
        for _ in 0..BATCHES_KEPT {
            hub.send(cleared(0, 2, 0));
            let (missed, events) = quick.next().await.expect("sent");
            assert_eq!((missed, events.changes.len()), (0, 2));
        }
        hub.send(cleared(1, 1, 0));
        let (missed, events) = slow.next().await.expect("sent");
        assert_eq!((missed, events.dp_rank, events.first_sequence), (2, 0, 9), "the first batch of rank 0 is gone");
        let mut last = None;
        hub.close();
        while let Some(next) = slow.next().await {
            last = Some(next);
        }
        let (missed, events) = last.expect("the rest was kept");
        assert_eq!((missed, events.dp_rank, events.first_sequence), (9, 1, 9), "3, 5 that nobody got, and 1");
        assert!(!hub.is_followed());
    }
}
