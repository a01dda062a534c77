//! The KV blocks of a rank: which are free, and which to hand out next.

use std::collections::BTreeMap;

/// Free blocks as runs of neighbours, so that a request's blocks can be neighbours too.
#[derive(Clone, Debug)]
pub(crate) struct BlockPool {
    total: u32,
    free: u32,
    /// First block of each run to its length; runs never touch.
    runs: BTreeMap<u32, u32>,
}

/// Runs that are looked at for one that is long enough, so that a scattered pool costs no more than a bound.
const RUNS_LOOKED_AT: usize = 32;

impl BlockPool {
    /// Blocks 1 to `total`, all free. Block 0 is the null block and never handed out.
    pub(crate) fn new(total: u32) -> Self {
        Self { total, free: total, runs: BTreeMap::from([(1, total)]) }
    }

    pub(crate) const fn total(&self) -> u32 {
        self.total
    }

    pub(crate) const fn free(&self) -> u32 {
        self.free
    }

    /// Adds `count` free blocks at the end of `table`: the neighbours of its last block when they are free, else the
    /// first run that is long enough, else what is found first.
    ///
    /// # Panics
    /// When fewer are free.
    pub(crate) fn take(&mut self, count: u32, table: &mut Vec<u32>) {
        assert!(count <= self.free, "{count} blocks asked for, {} are free", self.free);
        self.free -= count;
        let mut left = count;
        while left > 0 {
            let start = self.next_run(left, table.last().copied());
            let len = self.runs.remove(&start).expect("the chosen run is free");
            let taken = len.min(left);
            table.extend(start..start + taken);
            if taken < len {
                self.runs.insert(start + taken, len - taken);
            }
            left -= taken;
        }
    }

    fn next_run(&self, count: u32, last: Option<u32>) -> u32 {
        if let Some(last) = last
            && self.runs.contains_key(&(last + 1))
        {
            return last + 1;
        }
        let long_enough = self.runs.iter().take(RUNS_LOOKED_AT).find(|(_, len)| **len >= count);
        let (start, _) = long_enough.or_else(|| self.runs.first_key_value()).expect("free blocks are in runs");
        *start
    }

    /// Takes blocks back.
    ///
    /// # Panics
    /// When a block is no block of the pool or free already.
    pub(crate) fn give_back(&mut self, blocks: &[u32]) {
        let mut index = 0;
        while index < blocks.len() {
            let start = blocks[index];
            let mut len = 1;
            while blocks.get(index + len as usize) == Some(&(start + len)) {
                len += 1;
            }
            self.give_back_run(start, len);
            index += len as usize;
        }
    }

    fn give_back_run(&mut self, start: u32, len: u32) {
        let end = start + len;
        assert!(start >= 1 && end - 1 <= self.total, "blocks {start}..{end} are not in 1..={}", self.total);
        let mut run = (start, len);
        if let Some((next, next_len)) = self.runs.range(start..).next().map(|(next, len)| (*next, *len)) {
            assert!(next >= end, "block {next} is freed twice");
            if next == end {
                self.runs.remove(&next);
                run.1 += next_len;
            }
        }
        if let Some((before, before_len)) = self.runs.range(..start).next_back().map(|(before, len)| (*before, *len)) {
            assert!(before + before_len <= start, "block {start} is freed twice");
            if before + before_len == start {
                run = (before, before_len + run.1);
            }
        }
        self.runs.insert(run.0, run.1);
        self.free += len;
    }

    /// Every free block, going up.
    pub(crate) fn free_blocks(&self) -> impl Iterator<Item = u32> + '_ {
        self.runs.iter().flat_map(|(start, len)| *start..*start + *len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_start_at_one_and_are_neighbours() {
        let mut pool = BlockPool::new(8);
        let (mut first, mut second) = (Vec::new(), Vec::new());
        pool.take(2, &mut first);
        pool.take(2, &mut second);
        assert_eq!((&first[..], &second[..]), (&[1, 2][..], &[3, 4][..]));
        pool.take(1, &mut second);
        assert_eq!(second, [3, 4, 5]);
        pool.give_back(&first);
        let mut third = Vec::new();
        pool.take(3, &mut third);
        assert_eq!(third, [6, 7, 8], "a run that is long enough comes before the first run");
        assert_eq!(pool.free(), 2);
    }

    #[test]
    fn a_request_grows_into_its_neighbours() {
        let mut pool = BlockPool::new(9);
        let mut tables = [const { Vec::new() }; 3];
        tables.iter_mut().for_each(|table| pool.take(2, table));
        pool.give_back(&tables[1]);
        pool.take(1, &mut tables[2]);
        assert_eq!(tables[2], [5, 6, 7], "not block 3, which is free too");
    }

    #[test]
    fn scattered_blocks_are_all_handed_out() {
        let mut pool = BlockPool::new(6);
        let mut all = Vec::new();
        pool.take(6, &mut all);
        for block in [1, 3, 5, 4] {
            pool.give_back(&[block]);
        }
        let mut table = Vec::new();
        pool.take(4, &mut table);
        table.sort_unstable();
        assert_eq!(table, [1, 3, 4, 5]);
        pool.give_back(&[6, 5, 4, 3, 2, 1]);
        assert_eq!((pool.free(), pool.runs.len()), (6, 1));
    }

    #[test]
    #[should_panic(expected = "freed twice")]
    fn a_block_is_freed_once() {
        let mut pool = BlockPool::new(4);
        let mut table = Vec::new();
        pool.take(2, &mut table);
        pool.give_back(&[1]);
        pool.give_back(&[1]);
    }
}
