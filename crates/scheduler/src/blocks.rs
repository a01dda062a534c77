//! The KV blocks of a rank: who holds them, which are free, and which to hand out next.

use crate::cache::PrefixCache;
use crate::keys::BlockKey;
use crate::runs::FreeRuns;

/// Every block is free, held by one or more requests, or rests: it is in the prefix cache and nobody holds it. Free
/// blocks are kept as runs of neighbours, so that a request's blocks can be neighbours too.
#[derive(Clone, Debug)]
pub(crate) struct BlockPool {
    total: u32,
    free: u32,
    runs: FreeRuns,
    /// By block: requests that hold it.
    holders: Vec<u32>,
    /// Blocks that somebody holds.
    live: u32,
    /// All their holders.
    references: u64,
    pub(crate) cache: PrefixCache,
}

impl BlockPool {
    /// Blocks 1 to `total`, all free. Block 0 is the null block and never handed out.
    pub(crate) fn new(total: u32, prefix_cache: bool) -> Self {
        let holders = vec![0; total as usize + 1];
        let cache = PrefixCache::new(prefix_cache, total);
        Self { total, free: total, runs: FreeRuns::new(total), holders, live: 0, references: 0, cache }
    }

    pub(crate) const fn total(&self) -> u32 {
        self.total
    }

    /// Blocks that can be handed out: free ones, and those that rest.
    pub(crate) const fn free(&self) -> u32 {
        self.free + self.cache.idle()
    }

    /// Blocks that requests hold.
    pub(crate) const fn held(&self) -> u32 {
        self.live
    }

    /// How often all of them are held, counted as it changes.
    pub(crate) const fn references(&self) -> u64 {
        self.references
    }

    /// Adds `count` free blocks at the end of `table`: the neighbours of its last block when they are free, else a run that
    /// is long enough, else several. Blocks rest until no free one is left.
    ///
    /// # Panics
    /// When fewer can be handed out.
    pub(crate) fn take(&mut self, count: u32, table: &mut Vec<u32>) {
        assert!(count <= self.free(), "{count} blocks asked for, {} are free", self.free());
        while self.free < count {
            let block = self.cache.evict().expect("what is not free rests");
            self.give_back_run(block, 1);
        }
        self.free -= count;
        self.live += count;
        self.references += u64::from(count);
        let mut left = count;
        while left > 0 {
            let (start, taken) = self.runs.take(left, table.last().copied());
            table.extend(start..start + taken);
            self.holders[start as usize..(start + taken) as usize].fill(1);
            left -= taken;
        }
    }

    /// The first `most` blocks that hold what `keys` name: they are held once more and added to `table`.
    pub(crate) fn share(&mut self, keys: &[BlockKey], table: &mut Vec<u32>) {
        for key in keys {
            let block = self.cache.find(*key).expect("only blocks that were found are shared");
            if self.holders[block as usize] == 0 {
                self.cache.wake(block);
                self.live += 1;
            }
            self.holders[block as usize] += 1;
            self.references += 1;
            table.push(block);
        }
    }

    /// How many leading keys are in the cache, and how many blocks from the first on somebody holds: those cost no
    /// room, and nothing that is given up can cut them off.
    pub(crate) fn matched(&self, keys: &[BlockKey]) -> (u32, u32) {
        self.cache.matched(keys).fold((0, 0), |(all, held), block| {
            (all + 1, held + u32::from(held == all && self.holders[block as usize] > 0))
        })
    }

    /// Takes a request's blocks back, its last one first: a chain is given up from its end.
    ///
    /// # Panics
    /// When nobody holds one of them.
    pub(crate) fn give_back(&mut self, blocks: &[u32]) {
        let mut end = blocks.len();
        while end > 0 {
            let last = blocks[end - 1];
            self.let_go(last);
            end -= 1;
            if self.holders[last as usize] > 0 {
                continue;
            }
            if self.cache.is_keyed(last) {
                self.cache.rest(last);
                continue;
            }
            let mut start = last;
            while end > 0 && blocks[end - 1] + 1 == start && !self.cache.is_keyed(start - 1) {
                self.let_go(start - 1);
                start -= 1;
                end -= 1;
            }
            self.give_back_run(start, last + 1 - start);
        }
    }

    fn let_go(&mut self, block: u32) {
        let holders = self.holders.get_mut(block as usize).filter(|_| block > 0);
        let holders = holders.unwrap_or_else(|| panic!("block {block} is not in 1..={}", self.total));
        *holders = holders.checked_sub(1).unwrap_or_else(|| panic!("block {block} is freed twice"));
        self.live -= u32::from(*holders == 0);
        self.references -= 1;
    }

    fn give_back_run(&mut self, start: u32, len: u32) {
        self.runs.give_back(start, len);
        self.free += len;
    }

    /// Forgets what blocks hold: nothing is shared any more, and what rested is free.
    pub(crate) fn forget(&mut self) {
        for block in self.cache.clear() {
            self.give_back_run(block, 1);
        }
    }

    /// Every free block, going up.
    pub(crate) fn free_blocks(&self) -> impl Iterator<Item = u32> + '_ {
        self.runs.blocks()
    }

    /// How many requests hold a block.
    pub(crate) fn holders(&self, block: u32) -> u32 {
        self.holders[block as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_start_at_one_and_are_neighbours() {
        let mut pool = BlockPool::new(8, false);
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
        let mut pool = BlockPool::new(9, false);
        let mut tables = [const { Vec::new() }; 3];
        tables.iter_mut().for_each(|table| pool.take(2, table));
        pool.give_back(&tables[1]);
        pool.take(1, &mut tables[2]);
        assert_eq!(tables[2], [5, 6, 7], "not block 3, which is free too");
    }

    #[test]
    fn scattered_blocks_are_all_handed_out() {
        let mut pool = BlockPool::new(6, false);
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
        assert_eq!((pool.free(), pool.runs.runs().count()), (6, 1));
    }

    #[test]
    #[should_panic(expected = "freed twice")]
    fn a_block_is_freed_once() {
        let mut pool = BlockPool::new(4, false);
        let mut table = Vec::new();
        pool.take(2, &mut table);
        pool.give_back(&[1]);
        pool.give_back(&[1]);
    }

    fn keys(count: u128) -> Vec<BlockKey> {
        (1..=count).map(BlockKey).collect()
    }

    fn publish(pool: &mut BlockPool, table: &[u32], keys: &[BlockKey]) {
        for (index, (block, key)) in table.iter().zip(keys).enumerate() {
            pool.cache.publish(*block, *key, index.checked_sub(1).map(|before| keys[before]), &[]);
        }
    }

    #[test]
    fn d24_a_chain_is_given_up_from_its_end() {
        let mut pool = BlockPool::new(4, true);
        let mut table = Vec::new();
        pool.take(4, &mut table);
        let keys = keys(4);
        publish(&mut pool, &table, &keys);
        pool.give_back(&table);
        assert_eq!((pool.free(), pool.held(), pool.cache.idle()), (4, 0, 4));
        let mut other = Vec::new();
        pool.take(2, &mut other);
        assert_eq!(other, [3, 4], "the last two");
        assert_eq!((pool.matched(&keys), pool.cache.evicted), ((2, 0), 2));
    }

    #[test]
    fn blocks_are_shared_and_rest_when_the_last_holder_goes() {
        let mut pool = BlockPool::new(6, true);
        let (mut first, mut second) = (Vec::new(), Vec::new());
        let keys = keys(2);
        pool.take(3, &mut first);
        publish(&mut pool, &first, &keys);
        pool.share(&keys, &mut second);
        pool.take(1, &mut second);
        assert_eq!((&first[..], &second[..], pool.held()), (&[1, 2, 3][..], &[1, 2, 4][..], 4));
        pool.give_back(&first);
        assert_eq!((pool.held(), pool.matched(&keys)), (3, (2, 2)), "block 3 had no name and is free");
        pool.give_back(&second);
        assert_eq!((pool.held(), pool.cache.idle(), pool.matched(&keys)), (0, 2, (2, 0)));
        let mut all = Vec::new();
        pool.take(6, &mut all);
        assert_eq!((pool.held(), pool.cache.named()), (6, 0));
    }

    #[test]
    fn one_of_two_blocks_with_the_same_contents_is_enough() {
        let mut pool = BlockPool::new(4, true);
        let (mut first, mut second) = (Vec::new(), Vec::new());
        pool.take(1, &mut first);
        pool.take(1, &mut second);
        publish(&mut pool, &first, &keys(1));
        publish(&mut pool, &second, &keys(1));
        pool.give_back(&second);
        assert_eq!((pool.cache.idle(), pool.free(), pool.matched(&keys(1))), (0, 3, (1, 1)));
    }

    #[test]
    fn whoever_was_given_up_longest_ago_goes_first_and_use_counts_anew() {
        let mut pool = BlockPool::new(3, true);
        pool.cache.log.follow(true);
        let mut tables = [const { Vec::new() }; 3];
        for (table, key) in tables.iter_mut().zip(keys(3)) {
            pool.take(1, table);
            publish(&mut pool, table, &[key]);
        }
        tables.iter().for_each(|table| pool.give_back(table));
        let mut again = Vec::new();
        pool.share(&keys(1), &mut again);
        pool.give_back(&again);
        assert_eq!(pool.cache.resting().collect::<Vec<_>>(), [2, 3, 1]);
        let mut new = Vec::new();
        pool.take(1, &mut new);
        assert_eq!(new, [2]);
        pool.give_back(&new);
        pool.forget();
        assert_eq!((pool.free, pool.cache.named(), pool.runs.runs().count()), (3, 0, 1));
        let (changes, missed) = pool.cache.log.take();
        assert_eq!((changes.len(), missed), (5, 0));
        assert_eq!(changes[3], crate::CacheChange::Removed { key: BlockKey(2) });
    }
}
