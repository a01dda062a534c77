//! The one waiting queue: by priority, then what ran before, then in order of arrival.

use std::collections::BTreeMap;

use crate::request::{Place, Request, Slot};

/// Place in the queue: priority, fresh after resuming, arrival.
type Key = (i32, bool, u64);

#[derive(Clone, Debug, Default)]
pub(crate) struct Queue {
    waiting: BTreeMap<Key, Slot>,
    /// Known tokens of everything that waits.
    tokens: u64,
}

fn key(request: &Request) -> Key {
    let resumes = matches!(request.place, Place::Waiting { resumes: true });
    (request.priority, !resumes, request.arrival)
}

impl Queue {
    /// Takes in a request whose place is already `Waiting`.
    pub(crate) fn push(&mut self, slot: Slot, request: &Request) {
        self.tokens += u64::from(request.known());
        let before = self.waiting.insert(key(request), slot);
        assert!(before.is_none(), "arrival numbers are unique");
    }

    /// Takes out a request whose place is still `Waiting`.
    pub(crate) fn remove(&mut self, request: &Request) {
        self.tokens -= u64::from(request.known());
        let removed = self.waiting.remove(&key(request));
        assert!(removed.is_some(), "a waiting request is in the queue");
    }

    pub(crate) fn len(&self) -> usize {
        self.waiting.len()
    }

    pub(crate) const fn tokens(&self) -> u64 {
        self.tokens
    }

    /// In the order in which they start.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Slot> + '_ {
        self.waiting.values().copied()
    }
}
