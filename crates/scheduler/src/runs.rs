//! The free blocks of a rank as runs of neighbours: any run is found, cut and joined in a bounded time, without memory
//! beyond what is there from the start.
//!
//! The first and the last block of a run know its length, so that whoever comes to lie beside it finds it. Runs are
//! listed by the power of two that their length reaches.

/// Powers of two that a length can reach.
const CLASSES: usize = 32;

/// Runs that may be too short that are looked at before a longer one is cut.
const LOOKED_AT: usize = 32;

/// No block: the end of a list. Block 0 is never free.
const NONE: u32 = 0;

#[derive(Clone, Debug)]
pub(crate) struct FreeRuns {
    /// By block: the length of the run that begins or ends here; 0 for every other block.
    lens: Vec<u32>,
    /// By first block of a run, its neighbours in the list of its class.
    before: Vec<u32>,
    after: Vec<u32>,
    /// By class, the run that joined last.
    heads: [u32; CLASSES],
    /// Classes that have a run, as bits.
    occupied: u32,
}

const fn class_of(len: u32) -> usize {
    len.ilog2() as usize
}

impl FreeRuns {
    /// One run of the blocks 1 to `total`.
    pub(crate) fn new(total: u32) -> Self {
        let len = total as usize + 2;
        let (lens, before, after) = (vec![0; len], vec![NONE; len], vec![NONE; len]);
        let mut runs = Self { lens, before, after, heads: [NONE; CLASSES], occupied: 0 };
        if total > 0 {
            runs.link(1, total);
        }
        runs
    }

    /// Up to `count` blocks, in one run: those after `last` when they are free, else the shortest run that is surely
    /// long enough, else a long one. Their first block, and how many they are.
    ///
    /// # Panics
    /// When no block is free.
    pub(crate) fn take(&mut self, count: u32, last: Option<u32>) -> (u32, u32) {
        let start = last.map(|last| last + 1).filter(|next| self.begins(*next));
        let start = start.unwrap_or_else(|| self.find(count));
        let len = self.lens[start as usize];
        let taken = len.min(count);
        self.unlink(start, len);
        if taken < len {
            self.link(start + taken, len - taken);
        }
        (start, taken)
    }

    /// Gives the blocks from `start` on back, and joins them with the free ones beside them.
    pub(crate) fn give_back(&mut self, start: u32, len: u32) {
        let (mut start, mut len) = (start, len);
        let next = start + len;
        if self.begins(next) {
            let more = self.lens[next as usize];
            self.unlink(next, more);
            len += more;
        }
        let more = self.lens[start as usize - 1];
        if more > 0 {
            self.unlink(start - more, more);
            start -= more;
            len += more;
        }
        self.link(start, len);
    }

    /// Every free block, going up.
    pub(crate) fn blocks(&self) -> impl Iterator<Item = u32> + '_ {
        self.runs().flat_map(|(start, len)| start..start + len)
    }

    /// First block and length of every run, going up.
    pub(crate) fn runs(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        let mut block = 1;
        std::iter::from_fn(move || {
            while (block as usize) < self.lens.len() {
                let (start, len) = (block, self.lens[block as usize]);
                block += len.max(1);
                if len > 0 {
                    return Some((start, len));
                }
            }
            None
        })
    }

    /// Whether a run begins at a block. A block right after one that is not free begins a run when it is free.
    fn begins(&self, block: u32) -> bool {
        self.lens.get(block as usize).is_some_and(|len| *len > 0)
    }

    fn find(&self, count: u32) -> u32 {
        let surely = class_of(count.next_power_of_two());
        let above = if surely < CLASSES { self.occupied >> surely << surely } else { 0 };
        if above != 0 {
            return self.heads[above.trailing_zeros() as usize];
        }
        let perhaps = std::iter::successors(Some(self.heads[class_of(count)]), |run| Some(self.after[*run as usize]));
        let mut perhaps = perhaps.take_while(|run| *run != NONE).take(LOOKED_AT);
        let found = perhaps.find(|run| self.lens[*run as usize] >= count);
        let longest = self.occupied.checked_ilog2().expect("free blocks are in runs");
        found.unwrap_or(self.heads[longest as usize])
    }

    fn link(&mut self, start: u32, len: u32) {
        self.lens[start as usize] = len;
        self.lens[(start + len - 1) as usize] = len;
        let class = class_of(len);
        let head = self.heads[class];
        self.before[start as usize] = NONE;
        self.after[start as usize] = head;
        self.before[head as usize] = start;
        self.heads[class] = start;
        self.occupied |= 1 << class;
    }

    fn unlink(&mut self, start: u32, len: u32) {
        self.lens[start as usize] = 0;
        self.lens[(start + len - 1) as usize] = 0;
        let (before, after) = (self.before[start as usize], self.after[start as usize]);
        self.before[after as usize] = before;
        if before != NONE {
            self.after[before as usize] = after;
            return;
        }
        let class = class_of(len);
        self.heads[class] = after;
        if after == NONE {
            self.occupied &= !(1 << class);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn a_random_life_keeps_every_block_once_and_runs_apart() {
        let mut state = 1u64;
        let mut below = |end: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize % end
        };
        for total in [1, 2, 3, 7, 64, 65] {
            let mut runs = FreeRuns::new(total);
            let mut free: BTreeSet<u32> = (1..=total).collect();
            let mut held: Vec<(u32, u32)> = Vec::new();
            for _ in 0..2_000 {
                if !free.is_empty() && below(2) == 0 {
                    let last = held.last().map(|(start, len)| start + len - 1);
                    let (start, len) = runs.take(1 + below(free.len()) as u32, last);
                    assert!((start..start + len).all(|block| free.remove(&block)), "{start} and {len} more");
                    held.push((start, len));
                } else if !held.is_empty() {
                    let (start, len) = held.swap_remove(below(held.len()));
                    free.extend(start..start + len);
                    runs.give_back(start, len);
                }
                assert!(runs.blocks().eq(free.iter().copied()));
                let all: Vec<_> = runs.runs().collect();
                assert!(all.windows(2).all(|pair| pair[0].0 + pair[0].1 < pair[1].0), "runs touch: {all:?}");
            }
        }
    }
}
