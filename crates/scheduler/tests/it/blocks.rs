//! Group D of the field cases: KV blocks, preemption, and decodes beside prompts.

use paceline_plan::{DpRank, GroupId};
use paceline_scheduler::Config;

use crate::world::{World, limits, lockstep};

#[test]
fn d04_a_preempted_request_comes_back_when_all_of_it_fits() {
    let mut config = lockstep(1, 4, 0);
    config.limits.num_blocks = 100;
    let mut world = World::new(config);
    let growing = world.submit(500, 600);
    let second = world.submit(990, 100);
    let mut preemptions = 0;
    let mut waits = false;
    loop {
        let free = 100 - world.scheduler.stats().ranks[0].blocks_used;
        if world.step(0).is_none() {
            break;
        }
        let reasons = &world.scheduler.explanation(GroupId::new(0)).expect("a reason").ranks[0];
        assert!(!reasons.preempted.contains(&growing), "the older request is never evicted");
        if reasons.preempted.contains(&second) {
            preemptions += 1;
            waits = true;
        }
        if waits && reasons.started.iter().any(|started| started.id == second) {
            let known = world.requests[&second].spec.prompt.len() + world.requests[&second].emitted.len();
            assert!(free as usize >= known.div_ceil(16), "{free} blocks were free for {known} tokens");
            waits = false;
        }
    }
    assert!((1..=2).contains(&preemptions), "{preemptions}");
    world.assert_drained();
}

#[test]
fn d15_a_newcomer_that_cannot_fit_evicts_nobody() {
    let mut config = lockstep(1, 8, 0);
    config.limits.num_blocks = 110;
    let mut world = World::new(config);
    for _ in 0..5 {
        world.submit(16 * 20 - 10, 9);
    }
    world.step(0).expect("prompts");
    assert_eq!(world.scheduler.stats().ranks[0].blocks_used, 100);
    let mut newcomer = world.spec(1600, 1);
    newcomer.priority = -1;
    let newcomer = world.submit_spec(newcomer).expect("fits an empty pool");
    let mut waited = 0;
    while world.step(0).is_some() {
        waited += u64::from(world.scheduler.dp_rank_of(newcomer).is_none());
        assert_eq!(world.scheduler.stats().ranks[0].counters.preemptions, 0);
    }
    assert!(waited > 0);
    world.assert_drained();
}

#[test]
fn d16_a_decode_is_in_every_step_beside_endless_prompts() {
    for k in [0, 3] {
        let mut config = lockstep(1, 8, k);
        config.limits.max_model_len = 8192;
        config.limits.table_width = 600;
        let mut world = World::new(config);
        world.trace = Some(Vec::new());
        let decode = world.submit(10, 40 * (1 + k));
        world.step(0);
        for _ in 0..30 {
            world.submit(5000, 1);
            let plan = world.step(0).expect("a step");
            assert!(plan.ranks()[0].tokens_real().get() > 1000, "the budget is used");
        }
        let trace = world.trace.take().expect("kept");
        assert!(trace.iter().all(|step| step.contains(&decode)));
    }
}

#[test]
fn d17_blocked_heads_do_not_stop_a_decode() {
    let mut config = lockstep(2, 4, 0);
    config.limits.num_blocks = 40;
    let mut world = World::new(config);
    world.submit_to(0, 320, 200);
    world.submit_to(1, 320, 200);
    world.step(0).expect("prompts");
    let heads = [world.submit_to(0, 600, 4), world.submit_to(1, 600, 4)];
    for _ in 0..20 {
        let plan = world.step(0).expect("decodes go on");
        assert_eq!(plan.ranks()[1].decode_rows(), 1);
        assert!(heads.iter().all(|id| world.scheduler.dp_rank_of(*id).is_none()));
    }
    world.drain();
    world.assert_drained();
}

#[test]
fn a_head_that_waits_for_blocks_is_not_overtaken() {
    let mut config = lockstep(1, 4, 0);
    config.limits.num_blocks = 40;
    let mut world = World::new(config);
    world.submit(320, 20);
    world.step(0).expect("a prompt");
    let heavy = world.submit(600, 4);
    let light = world.submit(10, 4);
    while world.scheduler.dp_rank_of(heavy).is_none() {
        assert_eq!(world.scheduler.dp_rank_of(light), None);
        world.step(0).expect("a step");
    }
    world.drain();
    world.assert_drained();
}

#[test]
fn the_oldest_request_always_goes_on() {
    let mut config = lockstep(1, 6, 2);
    config.limits.num_blocks = 12;
    config.limits.block_size = 4;
    config.limits.table_width = 1100;
    config.limits.max_num_batched_tokens = 24;
    let mut world = World::new(config);
    world.accept_permille = 300;
    for _ in 0..12 {
        let (prompt, output) = (1 + world.random.below(16), 1 + world.random.below(30));
        world.submit(prompt, output);
    }
    world.trace = Some(Vec::new());
    world.drain();
    world.assert_drained();
    assert!(world.scheduler.stats().ranks[0].counters.preemptions > 0, "the pool is small enough to preempt");
}

fn small_blocks(num_blocks: u32) -> World {
    let mut config = lockstep(1, 4, 0);
    config.limits.block_size = 4;
    config.limits.table_width = 1100;
    config.limits.num_blocks = num_blocks;
    World::new(config)
}

#[test]
fn the_newest_request_is_evicted_first() {
    let mut world = small_blocks(6);
    let ids: Vec<_> = (0..3).map(|_| world.submit(4, 12)).collect();
    let mut evicted = Vec::new();
    while world.step(0).is_some() {
        let reasons = &world.scheduler.explanation(GroupId::new(0)).expect("a reason").ranks[0];
        evicted.extend_from_slice(&reasons.preempted);
    }
    assert_eq!(evicted, [ids[2], ids[1]]);
    world.assert_drained();
}

#[test]
fn a_request_starts_only_where_the_running_ones_have_room_to_grow() {
    for later in [false, true] {
        let mut world = small_blocks(2);
        let growing = world.submit(4, 4);
        if later {
            world.step(0).expect("a prompt");
        }
        let second = world.submit(4, 2);
        while world.requests[&growing].finished.is_none() {
            world.step(0).expect("a step");
            assert!(world.requests[&second].emitted.is_empty(), "the free block is the first one's next");
        }
        world.drain();
        assert_eq!(world.scheduler.stats().ranks[0].counters.preemptions, 0);
        world.assert_drained();
    }

    let mut world = small_blocks(2);
    world.submit(2, 2);
    world.submit(2, 2);
    world.step(0).expect("prompts");
    assert_eq!(world.scheduler.stats().ranks[0].running, 2, "neither grows past its block");
}

#[test]
fn what_ran_before_resumes_before_what_never_ran() {
    let mut config = lockstep(2, 1, 0);
    config.groups = Config::dense_groups(2);
    let mut world = World::new(config);
    world.submit_to(0, 4, 10);
    let fresh = world.submit_to(0, 4, 4);
    let resumed = world.submit(4, 4);
    world.round();
    assert_eq!(world.scheduler.dp_rank_of(resumed), Some(DpRank::new(1)));
    let group = GroupId::new(1);
    assert_eq!(world.scheduler.void_group(group), [resumed]);
    assert!(world.scheduler.requeue(resumed));
    world.scheduler.set_available(DpRank::new(1), false);
    while world.scheduler.dp_rank_of(resumed).is_none() {
        assert_eq!(world.scheduler.dp_rank_of(fresh), None, "it arrived first but has never run");
        assert!(world.round());
    }
    world.drain();
    world.assert_drained();
}

#[test]
fn blocks_of_a_request_are_neighbours_where_they_can_be() {
    let mut config =
        Config::new(Config::dense_groups(1), limits(4, 0), paceline_scheduler::ShapeConfig::cpu_default(4, &[0], 4));
    config.limits.num_blocks = 64;
    let mut world = World::new(config);
    world.submit(100, 100);
    let plan = world.step(0).expect("a prompt");
    assert_eq!(&plan.ranks()[0].block_appends()[0].blocks[..], [1, 2, 3, 4, 5, 6, 7]);
    let mut appended = Vec::new();
    while let Some(plan) = world.step(0) {
        appended.extend(plan.ranks()[0].block_appends().iter().flat_map(|append| append.blocks.iter().copied()));
    }
    assert_eq!(appended, (8..=13).collect::<Vec<_>>());
}

#[test]
fn a_full_rank_does_not_keep_another_from_starting() {
    let mut config = lockstep(2, 2, 0);
    config.limits.num_blocks = 30;
    let mut world = World::new(config);
    world.submit_to(0, 400, 60);
    world.step(0).expect("a prompt");
    let id = world.submit(300, 4);
    world.step(0).expect("a step");
    assert_eq!(world.scheduler.dp_rank_of(id), Some(DpRank::new(1)));
}
