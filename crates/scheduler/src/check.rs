//! Assertions on the scheduler's own state, on in release builds: every block is free, rests, or is held by whom the
//! requests say.

use paceline_plan::{Seat, WorkerLimits};

use crate::rank::Rank;
use crate::request::{Place, Requests};

/// Steps of a group between two recounts of who owns every block.
const RECOUNT_STEPS: u64 = 1000;

/// Checks that blocks add up, and every now and then who owns each of them.
///
/// # Panics
/// When they do not: a fault of the scheduler.
pub(crate) fn blocks_add_up(rank: &Rank, requests: &Requests, limits: &WorkerLimits, tick: u64) {
    // An empty seat holds none.
    let running: u64 = rank.seated.iter().map(|seated| u64::from(seated.blocks)).sum();
    let leaving: u64 = rank.leaving.iter().map(|left| left.blocks.len() as u64).sum();
    let held = running + leaving;
    let pool = &rank.blocks;
    assert_eq!(held, pool.references(), "dp_rank {}: blocks in tables, and holders of blocks", rank.dp_rank);
    let (live, free, total) = (pool.held(), pool.free(), pool.total());
    assert_eq!(live + free, total, "dp_rank {}: {live} blocks held and {free} free are not {total}", rank.dp_rank);
    if tick.is_multiple_of(RECOUNT_STEPS) {
        recount(rank, requests, limits);
    }
}

/// Counts the owners of each block anew, and what else is kept as it changes.
///
/// # Panics
/// When a block is in two states, or has other owners than the pool says; when a seat, its request and the sums over
/// them disagree.
pub(crate) fn recount(rank: &Rank, requests: &Requests, limits: &WorkerLimits) {
    recount_seats(rank, requests, limits);
    let pool = &rank.blocks;
    let mut owners = vec![0; pool.total() as usize + 1];
    let running = rank.running.iter().flat_map(|seat| rank.table(*seat));
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

fn recount_seats(rank: &Rank, requests: &Requests, limits: &WorkerLimits) {
    let name = |seat: Seat| format!("dp_rank {}, seat {seat}", rank.dp_rank);
    for seat in &rank.running {
        let seated = rank.on(*seat);
        let request = &requests[seated.slot];
        assert_eq!(request.place, Place::Running { dp_rank: rank.dp_rank, seat: *seat }, "{}", name(*seat));
        assert_eq!(rank.table(*seat).len(), seated.blocks as usize, "{}: blocks", name(*seat));
        let known = (seated.known, seated.end, rank.standing(*seat));
        let recent = rank.recent[seat.index()].count();
        let expected = (request.known() + recent, request.longest_computed() + 1, request.standing());
        assert_eq!(known, expected, "{}: known tokens, end and standing", name(*seat));
    }
    let taken = rank.seated.iter().filter(|seated| seated.is_taken()).count();
    let mut turns = rank.turns.clone();
    let mut running = rank.running.clone();
    turns.sort_unstable();
    running.sort_unstable();
    assert_eq!((running.len(), &running), (taken, &turns), "dp_rank {}: seats that are taken", rank.dp_rank);
    assert_eq!(rank.load(limits), rank.count_load(limits), "dp_rank {}: sums over what runs", rank.dp_rank);
}
