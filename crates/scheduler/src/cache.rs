//! The prefix cache of a rank: which blocks hold what, and which of them to give up first.
//!
//! A block with a key may be held by several requests. When nobody holds it any more it stays until its room is needed;
//! whoever was given up longest ago goes first, and within a request the end of its chain before the start.

use crate::keys::BlockKey;
use crate::table::KeyTable;

/// A change of a prefix cache, for whoever routes requests or watches the cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CacheChange {
    /// A block is in the cache.
    Stored {
        /// What it holds.
        key: BlockKey,
        /// What comes before it; nothing for the first block of a request.
        parent: Option<BlockKey>,
        /// Its tokens.
        tokens: Vec<u32>,
    },
    /// A block's room was needed.
    Removed {
        /// What it held.
        key: BlockKey,
    },
    /// Every block is gone: the group's epoch ended, or the cache was reset.
    Cleared,
}

/// Most changes kept until they are fetched; when there are more, the subscriber is told that it missed some.
const CHANGES_MAX: usize = 65_536;

/// Changes that nobody fetched yet.
#[derive(Clone, Debug, Default)]
pub(crate) struct ChangeLog {
    wanted: bool,
    changes: Vec<CacheChange>,
    missed: u64,
}

impl ChangeLog {
    /// Whether changes are kept from now on. Those that nobody fetched before are forgotten when they are not.
    pub(crate) fn follow(&mut self, wanted: bool) {
        self.wanted = wanted;
        if !wanted {
            self.take();
        }
    }

    fn push(&mut self, change: impl FnOnce() -> CacheChange) {
        if !self.wanted {
            return;
        }
        if self.changes.len() < CHANGES_MAX {
            self.changes.push(change());
        } else {
            self.missed += 1;
        }
    }

    /// What happened since the last call, and how many changes were missed.
    pub(crate) fn take(&mut self) -> (Vec<CacheChange>, u64) {
        (std::mem::take(&mut self.changes), std::mem::take(&mut self.missed))
    }
}

/// No block: the end of a list.
const NONE: u32 = 0;

/// Keys of blocks, and the order of those that nobody holds.
#[derive(Clone, Debug)]
pub(crate) struct PrefixCache {
    /// By block; [`BlockKey::NONE`] where the contents have no name. Empty when the cache is off.
    keys: Vec<BlockKey>,
    index: KeyTable,
    /// A ring through block 0 of the blocks that nobody holds: `after[0]` goes first.
    before: Vec<u32>,
    after: Vec<u32>,
    idle: u32,
    pub(crate) evicted: u64,
    pub(crate) log: ChangeLog,
}

impl PrefixCache {
    pub(crate) fn new(enabled: bool, total: u32) -> Self {
        let len = if enabled { total as usize + 1 } else { 0 };
        Self {
            keys: vec![BlockKey::NONE; len],
            index: KeyTable::new(len),
            before: vec![NONE; len],
            after: vec![NONE; len],
            idle: 0,
            evicted: 0,
            log: ChangeLog::default(),
        }
    }

    /// Blocks that are kept though nobody holds them.
    pub(crate) const fn idle(&self) -> u32 {
        self.idle
    }

    pub(crate) fn is_keyed(&self, block: u32) -> bool {
        self.keys.get(block as usize).is_some_and(|key| *key != BlockKey::NONE)
    }

    pub(crate) fn find(&self, key: BlockKey) -> Option<u32> {
        self.index.find(key, &self.keys)
    }

    /// How many of these keys, from the first on, are in the cache.
    pub(crate) fn matched<'a>(&'a self, keys: &'a [BlockKey]) -> impl Iterator<Item = u32> + 'a {
        keys.iter().map_while(|key| self.find(*key))
    }

    /// The same number by looking at few of the keys. Chains are given up from their end, so it is nearly always right.
    pub(crate) fn matched_about(&self, keys: &[BlockKey]) -> usize {
        if self.index.len() == 0 { 0 } else { keys.partition_point(|key| self.find(*key).is_some()) }
    }

    /// Names a block that somebody holds. Nothing changes when another block has that name: one of them is enough.
    pub(crate) fn publish(&mut self, block: u32, key: BlockKey, parent: Option<BlockKey>, tokens: &[u32]) {
        if self.keys.is_empty() || self.is_keyed(block) || self.find(key).is_some() {
            return;
        }
        self.keys[block as usize] = key;
        self.index.insert(block, &self.keys);
        self.log.push(|| CacheChange::Stored { key, parent, tokens: tokens.to_vec() });
    }

    /// A named block that nobody holds any more: it goes after all others.
    pub(crate) fn rest(&mut self, block: u32) {
        let last = self.before[0];
        self.before[block as usize] = last;
        self.after[block as usize] = NONE;
        self.after[last as usize] = block;
        self.before[0] = block;
        self.idle += 1;
    }

    /// A resting block is held again.
    pub(crate) fn wake(&mut self, block: u32) {
        let (before, after) = (self.before[block as usize], self.after[block as usize]);
        self.after[before as usize] = after;
        self.before[after as usize] = before;
        self.idle -= 1;
    }

    /// Gives up the block that goes first.
    pub(crate) fn evict(&mut self) -> Option<u32> {
        let block = *self.after.first().filter(|block| **block != NONE)?;
        self.wake(block);
        self.forget(block);
        self.evicted += 1;
        Some(block)
    }

    fn forget(&mut self, block: u32) {
        self.index.remove(block, &self.keys);
        let key = std::mem::take(&mut self.keys[block as usize]);
        self.log.push(|| CacheChange::Removed { key });
    }

    /// Forgets every name; the blocks that rested are returned.
    pub(crate) fn clear(&mut self) -> Vec<u32> {
        let mut resting = Vec::with_capacity(self.idle as usize);
        while let Some(block) = self.after.first().copied().filter(|block| *block != NONE) {
            self.wake(block);
            resting.push(block);
        }
        self.keys.fill(BlockKey::NONE);
        self.index.clear();
        self.log.push(|| CacheChange::Cleared);
        resting
    }

    /// The blocks that nobody holds, the one that goes first first.
    pub(crate) fn resting(&self) -> impl Iterator<Item = u32> + '_ {
        let first = self.after.first().copied().filter(|block| *block != NONE);
        std::iter::successors(first, |block| Some(self.after[*block as usize]).filter(|next| *next != NONE))
    }

    #[cfg(test)]
    /// Named blocks, held or not.
    pub(crate) fn named(&self) -> usize {
        self.index.len()
    }
}
