//! Assertions on the scheduler's own state, on in release builds: every block is free, rests, or is held by whom the
//! requests say.

use crate::rank::Rank;
use crate::request::Requests;

/// Steps of a group between two recounts of who owns every block.
const RECOUNT_STEPS: u64 = 1000;

/// Checks that blocks add up, and every now and then who owns each of them.
///
/// # Panics
/// When they do not: a fault of the scheduler.
pub(crate) fn blocks_add_up(rank: &Rank, requests: &Requests, tick: u64) {
    let running: u64 = rank.running.iter().map(|slot| requests[*slot].on_seat().blocks.len() as u64).sum();
    let leaving: u64 = rank.leaving.iter().map(|left| left.blocks.len() as u64).sum();
    let held = running + leaving;
    let pool = &rank.blocks;
    assert_eq!(held, pool.references(), "dp_rank {}: blocks in tables, and holders of blocks", rank.dp_rank);
    let (live, free, total) = (pool.held(), pool.free(), pool.total());
    assert_eq!(live + free, total, "dp_rank {}: {live} blocks held and {free} free are not {total}", rank.dp_rank);
    if tick.is_multiple_of(RECOUNT_STEPS) {
        recount(rank, requests);
    }
}

/// Counts the owners of each block anew.
///
/// # Panics
/// When a block is in two states, or has other owners than the pool says.
pub(crate) fn recount(rank: &Rank, requests: &Requests) {
    let pool = &rank.blocks;
    let mut owners = vec![0; pool.total() as usize + 1];
    let running = rank.running.iter().flat_map(|slot| &requests[*slot].on_seat().blocks);
    for block in running.chain(rank.leaving.iter().flat_map(|left| &left.blocks)) {
        owners[*block as usize] += 1;
    }
    let mut states: Vec<u32> = owners.iter().map(|owners| u32::from(*owners > 0)).collect();
    for block in pool.free_blocks() {
        states[block as usize] += 1;
        assert!(!pool.cache.is_keyed(block), "dp_rank {}: free block {block} has a name", rank.dp_rank);
    }
    for block in pool.cache.resting() {
        states[block as usize] += 1;
        assert!(pool.cache.is_keyed(block), "dp_rank {}: block {block} rests without a name", rank.dp_rank);
    }
    assert_eq!(pool.cache.resting().count() as u32, pool.cache.idle(), "dp_rank {}: resting blocks", rank.dp_rank);
    for block in 1..=pool.total() {
        let (owners, state) = (owners[block as usize], states[block as usize]);
        assert_eq!(owners, pool.holders(block), "dp_rank {}: owners of block {block}", rank.dp_rank);
        assert_eq!(state, 1, "dp_rank {}: block {block} is free, rests or is held", rank.dp_rank);
    }
}
