//! Who runs when: overtaking, priorities, long prompts, prompts of a group that run together.

use paceline_plan::{DpRank, GroupId, LogitsWanted};
use paceline_scheduler::{Alignment, Config, HeldReason, Pace, Policies, RequestId, RequestSpec};

use crate::world::{World, lockstep};

fn with(mut config: Config, policies: Policies) -> World {
    config.policies = policies;
    World::new(config)
}

fn preemptions(world: &World) -> u64 {
    world.scheduler.stats().ranks.iter().map(|rank| rank.counters.preemptions).sum()
}

fn runs(world: &World, id: RequestId) -> bool {
    world.scheduler.dp_rank_of(id).is_some()
}

#[test]
fn d03_a_heavy_head_is_overtaken_a_bounded_number_of_times() {
    let mut config = lockstep(1, 16, 0);
    config.limits.num_blocks = 1_050;
    config.limits.max_model_len = 17_000;
    config.limits.max_num_batched_tokens = 1_000;
    config.limits.table_width = 17_000 / 16 + 1;
    let mut world = with(config, Policies { skips_max: 3, ..Policies::default() });
    let decodes: Vec<RequestId> = (0..3).map(|_| world.submit(330 * 16, 200)).collect();
    for _ in 0..30 {
        world.step(0).expect("prompts");
    }
    let heavy = world.submit(1_000 * 16, 3);
    let light: Vec<RequestId> = (0..6).map(|_| world.submit(10, 3)).collect();
    let plan = world.step(0).expect("a step");
    assert_eq!(plan.ranks()[0].decode_rows(), 3, "the decodes are in the step");
    assert_eq!(light.iter().filter(|id| runs(&world, **id)).count(), 3, "three may go first");
    assert!(!runs(&world, heavy));
    let mut started = false;
    for _ in 0..2_000 {
        let decoding: Vec<usize> = decodes.iter().map(|id| world.requests[id].emitted.len()).collect();
        if world.step(0).is_none() {
            break;
        }
        for (id, before) in decodes.iter().zip(decoding) {
            let live = &world.requests[id];
            assert!(live.emitted.len() > before || live.emitted.len() == 200, "a token in every step");
        }
        if !started {
            started = runs(&world, heavy);
            let late = light[3..].iter().filter(|id| runs(&world, **id)).count();
            assert!(started || late == 0, "nobody else goes first");
        }
    }
    assert!(started);
    world.drain();
    world.assert_drained();
}

#[test]
fn without_skips_nobody_is_overtaken() {
    let mut config = lockstep(1, 8, 0);
    config.limits.num_blocks = 20;
    let mut world = World::new(config);
    world.submit(200, 60);
    world.step(0);
    let (heavy, light) = (world.submit(300, 2), world.submit(10, 2));
    for _ in 0..5 {
        world.step(0);
        assert!(!runs(&world, heavy) && !runs(&world, light));
    }
    world.drain();
    world.assert_drained();
}

fn prioritised(world: &mut World, priority: i32, prompt: u32, output: u32) -> RequestId {
    let spec = world.spec(prompt, output);
    world.submit_spec(RequestSpec { priority, ..spec }).expect("fits")
}

#[test]
fn d13_a_high_priority_takes_the_seat_of_the_newest_low_one() {
    let preempting = Policies { priority_preempts: true, ..Policies::default() };
    let mut world = with(lockstep(1, 2, 0), preempting);
    let (old, new) = (prioritised(&mut world, 10, 50, 100), prioritised(&mut world, 10, 50, 100));
    world.step(0);
    world.step(0);
    let high = prioritised(&mut world, 0, 50, 10);
    world.step(0);
    assert!(runs(&world, high) && runs(&world, old) && !runs(&world, new));
    assert_eq!(preemptions(&world), 1);
    world.drain();
    world.assert_drained();

    for (policies, priority) in [
        (preempting, 10),
        (Policies::default(), 0),
        (Policies { priority: false, priority_preempts: true, ..Policies::default() }, 0),
    ] {
        let mut world = with(lockstep(1, 2, 0), policies);
        prioritised(&mut world, 10, 50, 100);
        prioritised(&mut world, 10, 50, 100);
        world.step(0);
        let third = prioritised(&mut world, priority, 50, 10);
        for _ in 0..20 {
            world.step(0);
        }
        assert!(!runs(&world, third) && preemptions(&world) == 0, "{policies:?}");
    }
}

#[test]
fn d15_nobody_leaves_for_a_priority_that_still_would_not_fit() {
    let mut config = lockstep(1, 8, 0);
    config.limits.num_blocks = 100;
    let mut world = with(config, Policies { priority_preempts: true, ..Policies::default() });
    prioritised(&mut world, 0, 600, 100);
    prioritised(&mut world, 10, 600, 100);
    world.step(0);
    // 100 blocks are needed: those of the low one and the free ones are 62, the high one's stay.
    let newcomer = prioritised(&mut world, 5, 1_590, 5);
    for _ in 0..20 {
        world.step(0);
        assert_eq!((preemptions(&world), runs(&world, newcomer)), (0, false));
    }
    world.drain();
    world.assert_drained();
}

#[test]
fn a_preempted_request_starts_again_where_it_can_end() {
    let mut config = lockstep(1, 4, 0);
    config.limits.num_blocks = 100;
    let mut world = with(config, Policies { preemptions_free: 0, ..Policies::default() });
    world.submit(400, 700);
    let later = world.submit(700, 500);
    let mut times = 0;
    while world.round() {
        let explanation = world.scheduler.explanation(GroupId::new(0)).expect("a step");
        times += explanation.ranks[0].preempted.iter().filter(|id| **id == later).count();
    }
    assert_eq!(times, 1, "it came back once, for good");
    world.assert_drained();
}

#[test]
fn long_prompts_leave_room_for_others_and_none_when_alone() {
    let policies = Policies { long_prefill_tokens: 100, ..Policies::default() };
    let mut config = lockstep(1, 8, 0);
    config.limits.max_num_batched_tokens = 1_000;
    let mut world = with(config.clone(), policies);
    let long = world.submit(3_000, 3);
    let chunk = |plan: &paceline_plan::StepPlan| plan.ranks()[0].rows().iter().map(|row| row.query_len.get()).max();
    assert_eq!(chunk(&world.step(0).expect("a step")), Some(1_000), "alone");
    world.submit(200, 3);
    world.step(0).expect("the other one starts");
    let plan = world.step(0).expect("a step");
    assert!(chunk(&plan).is_some_and(|chunk| chunk <= 500), "an even share at most");
    assert!(runs(&world, long));
    world.drain();
    world.assert_drained();
}

fn aligned(ranks: u32, delay_steps: u32) -> World {
    let mut config = lockstep(ranks, 8, 0);
    config.limits.max_num_batched_tokens = 400;
    with(config, Policies { alignment: Some(Alignment { delay_steps, even_percent: 90 }), ..Policies::default() })
}

#[test]
fn prompts_of_a_group_wait_for_each_other() {
    let mut world = aligned(2, 5);
    world.submit_to(0, 10, 100);
    world.step(0).expect("nobody decodes: it starts at once");
    let one = world.submit_to(1, 390, 3);
    for steps in 1..=3 {
        let plan = world.step(0).expect("a decode");
        assert_eq!(plan.ranks()[0].decode_rows(), 1);
        let explanation = world.scheduler.explanation(GroupId::new(0)).expect("a step");
        assert_eq!(explanation.pace, Pace::Held { steps, most: 5 });
        assert!(!runs(&world, one));
    }
    let other = world.submit_to(0, 395, 3);
    world.step(0).expect("both");
    assert!(runs(&world, one) && runs(&world, other));
    // Alone it waits as long as it may, then runs.
    world.drain();
    world.submit_to(0, 10, 100);
    world.step(0);
    let lonely = world.submit_to(1, 100, 3);
    for _ in 0..5 {
        world.step(0);
        assert!(!runs(&world, lonely));
    }
    world.step(0);
    assert!(runs(&world, lonely));
    world.drain();
    world.assert_drained();
}

#[test]
fn a_running_prompt_that_waits_is_told() {
    let mut world = aligned(2, 5);
    let long = world.submit_to(1, 1_000, 3);
    world.step(0).expect("nobody decodes: it starts at once");
    world.submit_to(0, 10, 100);
    world.step(0).expect("both run together");
    world.step(0).expect("a decode");
    let explanation = world.scheduler.explanation(GroupId::new(0)).expect("a step");
    assert_eq!(explanation.ranks[1].held, [(long, HeldReason::Alignment)]);
    assert!(explanation.words(|id| id.to_string()).contains("held by the alignment of prompts"));
    world.drain();
    world.assert_drained();
}

/// Rank 1 has a prompt of 300,000 tokens; rank 0 decodes with drafts.
fn long_prompt_world(policies: Policies, depth: u32) -> (World, RequestId, RequestId) {
    let mut config = Config { depth, ..lockstep(2, 4, 3) };
    config.limits.max_model_len = 310_000;
    config.limits.num_blocks = 20_000;
    config.limits.table_width = 310_003_u32.div_ceil(16);
    let mut world = with(config, policies);
    let decode = world.submit_to(0, 16, 3_000);
    world.step(0).expect("a prompt");
    let prefill = world.submit_to(1, 300_000, 3);
    (world, decode, prefill)
}

#[test]
fn g08_a_decode_goes_on_beside_a_prompt_of_300_000_tokens() {
    for depth in [0, 1] {
        let (mut world, decode, prefill) = long_prompt_world(Policies::default(), depth);
        for step in 1..=37 {
            assert!(world.requests[&prefill].emitted.is_empty());
            let before = world.requests[&decode].emitted.len();
            let plan = world.step(0).expect("a step");
            assert!(world.requests[&decode].emitted.len() > before, "a token in every step");
            assert_eq!((plan.ranks()[0].decode_rows(), plan.ranks()[1].decode_rows()), (1, 0), "step {step}");
        }
        for _ in 0..depth {
            world.step(0).expect("a step");
        }
        assert_eq!(world.requests[&prefill].emitted.len(), 1, "depth {depth}: 37 steps, and those that are ahead");
    }
}

#[test]
fn g08_chunks_beside_anothers_decode_are_as_short_as_the_bound_says() {
    for depth in [0, 1] {
        // 100 ms at 20 ms a step and 0.06 ms a token are 1,333 tokens.
        let (mut world, decode, prefill) =
            long_prompt_world(Policies { gap_tokens: 1_333, ..Policies::default() }, depth);
        for _ in 0..50 {
            let before = world.requests[&decode].emitted.len();
            let plan = world.step(0).expect("a step");
            assert!(world.requests[&decode].emitted.len() > before);
            let prompts = &plan.ranks()[1].rows()[plan.ranks()[1].decode_rows() as usize..];
            assert!(prompts.iter().map(|row| row.query_len.get()).sum::<u32>() <= 1_333);
            assert!(prompts.iter().all(|row| row.logits == LogitsWanted::None));
        }
        // With nobody to wait for, the whole budget.
        assert!(world.abort(decode));
        world.step(0);
        let plan = world.step(0).expect("a step");
        assert_eq!(plan.ranks()[1].rows()[0].query_len.get(), 8_192);
        assert!(world.abort(prefill));
    }
}

#[test]
fn g11_tokens_are_balanced_at_admission() {
    let spread = |policies: Policies, depth: u32| {
        let mut config = Config { depth, ..lockstep(8, 64, 0) };
        config.limits.max_model_len = 70_000;
        config.limits.num_blocks = 60_000;
        config.limits.table_width = 70_000_u32.div_ceil(16);
        config.limits.max_num_batched_tokens = 1 << 20;
        config.limits.token_capacity = 1 << 20;
        let mut world = with(config, policies);
        for _ in 0..64 {
            // Contexts of 1k to 64k, a quarter of them long.
            let is_long = world.random.chance(250);
            let tokens = if is_long { 32_000 + world.random.below(32_000) } else { 1_000 + world.random.below(3_000) };
            world.submit(tokens, 5);
        }
        world.step(0).expect("all start");
        let stats = world.scheduler.stats();
        assert_eq!(stats.waiting, 0);
        let used: Vec<u64> = stats.ranks.iter().map(|rank| u64::from(rank.blocks_used)).collect();
        let most = used.iter().max().copied().expect("ranks");
        most * 8 * 100 / used.iter().sum::<u64>()
    };
    for depth in [0, 1] {
        let by_tokens = spread(Policies::default(), depth);
        let by_requests = spread(Policies { load_in_tokens: false, ..Policies::default() }, depth);
        assert!(by_tokens <= 120, "{by_tokens}");
        assert!(by_requests > 150, "{by_requests}");
    }
}

#[test]
fn a_watermark_keeps_blocks_for_those_that_run() {
    let mut config = lockstep(1, 8, 0);
    config.limits.num_blocks = 30;
    let mut world = with(config, Policies { watermark_blocks: 10, ..Policies::default() });
    world.submit(160, 100);
    world.step(0);
    let second = world.submit(160, 10);
    world.step(0);
    assert!(!runs(&world, second), "19 blocks are left of which 10 are kept");
    world.drain();
    world.assert_drained();
    let alone = world.submit(29 * 16, 2);
    world.step(0);
    assert_eq!(world.scheduler.dp_rank_of(alone), Some(DpRank::new(0)), "nobody runs there that could grow");
}
