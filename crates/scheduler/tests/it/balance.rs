//! Group G of the field cases: which rank a request starts on.

use paceline_plan::DpRank;
use paceline_scheduler::{Config, RequestId};

use crate::world::{World, lockstep};

/// The same ranks as one lockstep group, and each on its own, at every depth.
fn each(ranks: u32, max_num_seqs: u32) -> impl Iterator<Item = World> {
    let groups = [Config::lockstep_groups(ranks), Config::dense_groups(ranks)];
    let pairs = groups.into_iter().flat_map(|groups| [(groups.clone(), 0), (groups, 1)]);
    pairs.map(move |(groups, depth)| World::new(Config { groups, depth, ..lockstep(ranks, max_num_seqs, 0) }))
}

fn running(world: &World) -> Vec<u32> {
    world.scheduler.stats().ranks.iter().map(|rank| rank.running).collect()
}

fn rank_of(world: &World, id: RequestId) -> u32 {
    world.scheduler.dp_rank_of(id).map(DpRank::get).expect("the request runs")
}

#[test]
fn g01_a_first_burst_is_spread() {
    for mut world in each(4, 8) {
        for _ in 0..8 {
            world.submit(20, 50);
        }
        world.round();
        assert_eq!(running(&world), [2, 2, 2, 2]);
    }
}

#[test]
fn g02_equal_requests_alternate() {
    // One after the other with each one gone before the next: ties must not favour a rank.
    for mut world in each(2, 8) {
        let mut counts = [0; 2];
        for _ in 0..10 {
            let id = world.submit(20, 3);
            world.round();
            counts[rank_of(&world, id) as usize] += 1;
            world.drain();
        }
        assert_eq!(counts, [5, 5]);
    }
    // Evenly in time, overlapping.
    for mut world in each(2, 16) {
        let mut counts = [0; 2];
        for _ in 0..10 {
            let id = world.submit(100, 400);
            for _ in 0..4 {
                world.round();
            }
            counts[rank_of(&world, id) as usize] += 1;
        }
        assert_eq!(counts, [5, 5]);
    }
}

#[test]
fn g02_a_long_burst_is_spread_evenly() {
    for mut world in each(8, 80) {
        let mut counts = [0_u32; 8];
        for _ in 0..64 {
            let ids: Vec<_> = (0..8).map(|_| world.submit(30, 200)).collect();
            world.round();
            for id in ids {
                counts[rank_of(&world, id) as usize] += 1;
            }
        }
        assert!(counts.iter().all(|count| (63..=65).contains(count)), "{counts:?}");
    }
}

#[test]
fn g03_load_is_counted_in_tokens() {
    for depth in [0, 1] {
        let mut config = Config { depth, ..lockstep(2, 8, 0) };
        config.limits.max_model_len = 16_384;
        config.limits.table_width = 1024;
        tokens_decide(World::new(config));
    }
}

fn tokens_decide(mut world: World) {
    world.submit_to(0, 10_000, 50);
    world.submit_to(1, 1000, 50);
    world.submit_to(1, 1000, 50);
    world.round();
    for _ in 0..4 {
        let id = world.submit(1000, 50);
        world.round();
        assert_eq!(rank_of(&world, id), 1);
    }
}

#[test]
fn g05_load_equals_a_recount() {
    for depth in [0, 1] {
        recount_of(World::new(Config { depth, ..lockstep(4, 6, 1) }));
    }
}

fn recount_of(mut world: World) {
    world.accept_permille = 500;
    for _ in 0..2000 {
        if world.random.chance(400) {
            let (prompt, output) = (1 + world.random.below(80), 1 + world.random.below(40));
            world.submit(prompt, output);
        }
        world.round();
        for rank in world.scheduler.stats().ranks {
            let on_rank = |id: &RequestId| world.scheduler.dp_rank_of(*id) == Some(rank.dp_rank);
            let live = world.requests.iter().filter(|(id, live)| live.finished.is_none() && on_rank(id));
            let known: u64 = live.map(|(_, live)| (live.spec.prompt.len() + live.emitted.len()) as u64).sum();
            assert!(rank.load_tokens >= known && rank.load_tokens <= 2 * known, "{} for {known}", rank.load_tokens);
        }
    }
    world.drain();
    world.assert_drained();
    let stats = world.scheduler.stats();
    let real: u64 = stats.ranks.iter().map(|rank| rank.counters.real_tokens()).sum();
    assert_eq!(real, stats.balance_real_tokens);
    assert!(stats.balance_largest_tokens >= real);
}

#[test]
fn g09_a_pinned_request_runs_nowhere_else() {
    for mut world in each(4, 2) {
        let ids: Vec<_> = (0..4).map(|_| world.submit_to(3, 20, 10)).collect();
        world.round();
        assert_eq!(running(&world), [0, 0, 0, 2]);
        let free = world.submit(20, 10);
        world.round();
        assert_ne!(rank_of(&world, free), 3, "a request behind pinned ones starts elsewhere");
        world.scheduler.set_available(DpRank::new(3), false);
        world.drain();
        assert_eq!(ids.iter().filter(|id| world.requests[id].finished.is_some()).count(), 2, "the others wait");
        world.scheduler.set_available(DpRank::new(3), true);
        world.drain();
        world.assert_drained();
    }
}

#[test]
fn no_request_waits_while_another_rank_could_start_it() {
    for mut world in each(2, 4) {
        for _ in 0..4 {
            world.submit_to(0, 4, 100);
        }
        world.submit_to(1, 1000, 100);
        world.round();
        let id = world.submit(10, 4);
        world.round();
        assert_eq!(rank_of(&world, id), 1, "rank 0 has less load and no seat");
    }
}

#[test]
fn a_rank_whose_budget_is_taken_does_not_keep_a_request_waiting() {
    for lockstep_groups in [true, false] {
        let mut config = lockstep(2, 4, 0);
        config.limits.max_num_batched_tokens = 8;
        if !lockstep_groups {
            config.groups = Config::dense_groups(2);
        }
        let mut world = World::new(config);
        world.submit_to(0, 200, 50);
        while world.requests.values().all(|live| live.emitted.is_empty()) {
            world.round();
        }
        world.submit_to(1, 60, 4);
        world.round();
        let id = world.submit(4, 20);
        world.round();
        assert_eq!(rank_of(&world, id), 0, "rank 1 has less load, and a prompt that takes its steps");
    }
}

#[test]
fn lower_priority_numbers_start_first() {
    let mut world = World::new(lockstep(1, 1, 0));
    let first = world.submit(4, 4);
    world.round();
    let mut specs: Vec<_> = (0..3).map(|_| world.spec(4, 4)).collect();
    for (spec, priority) in specs.iter_mut().zip([5, 0, -5]) {
        spec.priority = priority;
    }
    let ids: Vec<_> = specs.into_iter().map(|spec| world.submit_spec(spec).expect("fits")).collect();
    let mut order = Vec::new();
    while world.round() {
        let ended: Vec<_> =
            world.requests.iter().filter(|(_, live)| live.finished.is_some()).map(|(id, _)| *id).collect();
        for id in ended {
            if !order.contains(&id) {
                order.push(id);
            }
        }
    }
    assert_eq!(order, [first, ids[2], ids[1], ids[0]]);
}
