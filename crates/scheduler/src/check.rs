//! Assertions on the scheduler's own state, on in release builds: every block is free or held by one request.

use crate::rank::Rank;
use crate::request::Requests;

/// Steps of a group between two recounts of who owns every block.
const RECOUNT_STEPS: u64 = 1000;

/// Checks that blocks add up, and every now and then that no block has two owners.
///
/// # Panics
/// When they do not: a fault of the scheduler.
pub(crate) fn blocks_add_up(rank: &Rank, requests: &Requests, tick: u64) {
    let held: u32 = rank.running.iter().map(|slot| requests[*slot].on_seat().blocks.len() as u32).sum();
    let (free, total) = (rank.blocks.free(), rank.blocks.total());
    assert_eq!(held + free, total, "dp_rank {}: {held} blocks held and {free} free are not {total}", rank.dp_rank);
    if tick.is_multiple_of(RECOUNT_STEPS) {
        recount(rank, requests);
    }
}

/// Checks that each block has exactly one owner.
///
/// # Panics
/// When one does not.
pub(crate) fn recount(rank: &Rank, requests: &Requests) {
    let held = rank.running.iter().flat_map(|slot| requests[*slot].on_seat().blocks.iter().copied());
    let mut owned: Vec<u32> = held.chain(rank.blocks.free_blocks()).collect();
    owned.sort_unstable();
    let all: Vec<u32> = (1..=rank.blocks.total()).collect();
    assert_eq!(owned, all, "dp_rank {}: each block has one owner", rank.dp_rank);
}
