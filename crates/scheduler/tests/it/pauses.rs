//! A rank that rests: its requests keep what they have and run nothing, while its peers go on.

use paceline_plan::{DpRank, Mode};
use paceline_scheduler::{CacheSecret, HeldReason};

use crate::world::{World, lockstep};

/// Fills rank 1 with requests, pauses it, and lets rank 0 decode beside it.
fn a_paused_rank_runs_dummies(max_num_seqs: u32) {
    let mut config = lockstep(2, max_num_seqs, 0);
    config.limits.num_blocks = 8 * max_num_seqs;
    let mut world = World::new(config);
    for _ in 0..max_num_seqs {
        world.submit_to(1, 120, 9);
    }
    while world.requests.values().any(|live| live.emitted.is_empty()) {
        world.step(0).expect("prompts");
    }
    let dp_ranks = [DpRank::new(0), DpRank::new(1)];
    let before = world.scheduler.stats().ranks[1].clone();
    assert_eq!((before.running, before.blocks_used), (max_num_seqs, 8 * max_num_seqs), "no block is free");
    world.scheduler.set_paused(dp_ranks[1], true);
    assert!(world.step(0).is_none(), "nobody has a row");
    let decode = world.submit_to(0, 10, 101);
    let late = world.submit_to(1, 10, 1);
    world.step(0).expect("a prompt");
    for _ in 0..100 {
        let plan = world.step(0).expect("a decode");
        assert_eq!(plan.group().target().mode(), Mode::Full);
        assert!(plan.ranks()[1].is_dummy());
        assert_eq!(world.scheduler.stats().ranks[1].blocks_used, before.blocks_used);
    }
    assert!(world.requests[&decode].finished.is_some() && world.requests[&late].emitted.is_empty());
    let held = &world.scheduler.explanation(group()).expect("a step").ranks[1].held;
    assert!(held.len() == max_num_seqs as usize && held.iter().all(|(_, reason)| *reason == HeldReason::Paused));
    assert!(world.step(0).is_none());
    world.scheduler.set_paused(dp_ranks[1], false);
    world.drain();
    world.assert_drained();
    assert!(world.requests.values().all(|live| live.finished.is_some()));
    assert_eq!(world.scheduler.stats().ranks[1].counters.preemptions, 0, "they kept their blocks");
}

fn group() -> paceline_plan::GroupId {
    paceline_plan::GroupId::new(0)
}

#[test]
fn a10_a_paused_rank_holds_its_blocks_and_runs_dummies() {
    a_paused_rank_runs_dummies(3);
}

#[test]
fn a10_a_paused_rank_with_one_seat_runs_dummies() {
    a_paused_rank_runs_dummies(1);
}

#[test]
fn a_rank_rests_when_what_was_in_flight_is_answered() {
    let mut config = lockstep(1, 4, 0);
    config.prefix_cache = Some(CacheSecret::new(1, 2));
    let mut world = World::new(config);
    let (rank, first) = (DpRank::new(0), world.submit(20, 4));
    let (_, pending) = world.launch(group()).expect("a step");
    world.scheduler.set_paused(rank, true);
    assert!(world.scheduler.is_stepping(rank) && world.scheduler.is_running(rank));
    for reply in pending {
        world.deliver(reply);
    }
    assert!(!world.scheduler.is_stepping(rank) && world.scheduler.is_running(rank));
    assert_eq!(world.requests[&first].emitted.len(), 1, "what was in flight counts");
    assert!(world.step(0).is_none());
    world.abort(first);
    assert!(!world.scheduler.is_running(rank));
    world.assert_drained();
}
