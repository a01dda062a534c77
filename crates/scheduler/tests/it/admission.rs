//! Who starts, how long their chunks are, and what a first row looks like: behaviours that users know from vLLM, with
//! its numbers where there are some.

use paceline_plan::{GroupId, Mode, StepPlan};
use paceline_scheduler::{Alignment, Config, Pace, Policies, RequestId, RequestSpec};

use crate::prefix::cached;
use crate::world::{World, lockstep};

const GROUP: GroupId = GroupId::new(0);

fn with_budget(max_num_seqs: u32, budget: u32, policies: Policies) -> World {
    let mut config = lockstep(1, max_num_seqs, 0);
    config.limits.max_num_batched_tokens = budget;
    World::new(Config { policies, ..config })
}

/// Tokens of rank 0's rows, decode rows first.
fn lengths(plan: &StepPlan) -> Vec<u32> {
    plan.ranks()[0].rows().iter().map(|row| row.query_len.get()).collect()
}

#[test]
fn small_requests_all_start_in_one_step_with_their_whole_prompts() {
    let mut world = World::new(lockstep(1, 16, 0));
    let prompts: Vec<u32> = (10..20).collect();
    for prompt in &prompts {
        world.submit(*prompt, 5);
    }
    let plan = world.step(0).expect("prompts");
    assert_eq!(lengths(&plan), prompts);
    assert_eq!(world.scheduler.stats().ranks[0].running, 10);
    assert_eq!(lengths(&world.step(0).expect("decodes")), [1; 10]);
    world.drain();
    world.assert_drained();
}

#[test]
fn a_budget_splits_prompts_over_steps_and_is_never_exceeded() {
    let mut world = with_budget(8, 100, Policies::default());
    for _ in 0..4 {
        world.submit(40, 5);
    }
    let steps: Vec<Vec<u32>> = (0..3).map(|_| lengths(&world.step(0).expect("a step"))).collect();
    assert_eq!(steps, [vec![40, 40, 20], vec![1, 1, 20, 40], vec![1, 1, 1, 1]]);
    world.drain();
    world.assert_drained();
}

#[test]
fn concurrent_chunks_share_the_budget() {
    let mut world = with_budget(8, 100, Policies { long_prefill_tokens: 30, ..Policies::default() });
    for _ in 0..3 {
        world.submit(60, 5);
    }
    let steps: Vec<Vec<u32>> = (0..3).map(|_| lengths(&world.step(0).expect("a step"))).collect();
    assert_eq!(steps, [vec![33, 33, 33], vec![27, 27, 27], vec![1, 1, 1]]);
    world.drain();
    world.assert_drained();
}

#[test]
fn admission_stops_at_max_num_seqs_though_seats_are_left() {
    let mut config = lockstep(1, 3, 0);
    config.limits.seats = 8;
    let mut world = World::new(config);
    for _ in 0..5 {
        world.submit(20, 6);
    }
    while world.step(0).is_some() {
        let stats = world.scheduler.stats();
        assert!(stats.ranks[0].running <= 3, "{} run", stats.ranks[0].running);
        let unfinished = world.requests.values().filter(|live| live.finished.is_none()).count();
        assert_eq!(stats.ranks[0].running + stats.waiting, unfinished as u32);
    }
    world.assert_drained();
}

#[test]
fn a_long_prompt_is_cut_beside_others_and_keeps_its_fair_share() {
    // Alone there is no limit; beside ten others it is the threshold; beside one the even share is more.
    for (others, expected) in [(0, 1_000), (10, 100), (1, 500)] {
        let mut world = with_budget(16, 1_000, Policies { long_prefill_tokens: 100, ..Policies::default() });
        world.submit(3_000, 3);
        for _ in 0..others {
            world.submit(10, 50);
        }
        for _ in 0..2 {
            let plan = world.step(0).expect("a step");
            let longest = lengths(&plan).into_iter().max();
            assert_eq!(longest, Some(expected), "beside {others}");
        }
    }
}

#[test]
fn a_call_that_gives_no_step_does_not_count_as_waiting() {
    let mut config = lockstep(2, 8, 0);
    config.limits.max_num_batched_tokens = 400;
    config.policies.alignment = Some(Alignment { delay_steps: 5, even_percent: 90 });
    let mut world = World::new(config);
    world.submit_to(0, 10, 100);
    world.step(0);
    world.submit_to(1, 100, 3);
    for steps in 1..=5 {
        let (_, pending) = world.launch(GROUP).expect("a decode");
        for _ in 0..10 {
            assert!(world.scheduler.plan(GROUP).is_none(), "a step is in flight");
        }
        assert_eq!(world.scheduler.explanation(GROUP).expect("a step").pace, Pace::Held { steps, most: 5 });
        for reply in pending {
            world.deliver(reply);
        }
    }
    world.step(0);
    assert!(matches!(world.scheduler.explanation(GROUP).expect("a step").pace, Pace::Level { .. }));
}

#[test]
fn held_prompts_never_leave_a_group_without_a_step() {
    let mut config = lockstep(3, 4, 0);
    config.limits.max_num_batched_tokens = 64;
    config.policies.alignment = Some(Alignment { delay_steps: 20, even_percent: 90 });
    let mut world = World::new(config);
    for _ in 0..300 {
        if world.random.chance(300) {
            let (prompt, output) = (1 + world.random.below(200), 1 + world.random.below(20));
            world.submit(prompt, output);
        }
        let is_work = world.requests.values().any(|live| live.finished.is_none());
        assert_eq!(world.step(0).is_some(), is_work, "a step whenever there is something to do");
    }
    world.drain();
    world.assert_drained();
}

/// Before anything was proposed a decode row is as long as all others, filled with placeholders; beside a prompt, where
/// rows need not be alike, it is one token, and comes first.
#[test]
fn a_first_decode_is_filled_with_placeholders_unless_a_prompt_is_beside_it() {
    let mut world = World::new(lockstep(1, 4, 3));
    world.propose_permille = 0;
    world.submit(8, 30);
    world.step(0).expect("the prompt");
    let plan = world.step(0).expect("a decode");
    let row = plan.ranks()[0].rows()[0];
    assert_eq!((row.query_len.get(), row.drafts, row.placeholders()), (4, 0, 3));
    assert_eq!(plan.group().target().mode(), Mode::Full);
    world.submit(20, 4);
    let plan = world.step(0).expect("a decode beside a prompt");
    assert_eq!((lengths(&plan), plan.ranks()[0].decode_rows()), (vec![1, 20], 1));
    assert_eq!(plan.group().target().mode(), Mode::Eager);
    assert_eq!(world.scheduler.stats().ranks[0].counters.drafts.draft_tokens, 0);
    world.drain();
    world.assert_drained();
}

#[test]
fn a_resumed_request_is_looked_up_in_the_cache_again() {
    let mut config = cached(lockstep(1, 4, 0));
    config.limits.num_blocks = 16;
    let mut world = World::new(config);
    world.submit(60, 150);
    let later = world.submit(60, 100);
    let mut known = Vec::new();
    while known.len() < 2 {
        let tokens = 60 + world.requests[&later].emitted.len() as u64;
        world.step(0).expect("a step");
        let started = &world.scheduler.explanation(GROUP).expect("a step").ranks[0].started;
        known.extend(started.iter().filter(|started| started.id == later).map(|_| tokens));
    }
    let counters = &world.scheduler.stats().ranks[0].counters;
    assert_eq!((known[0], counters.preemptions), (60, 1));
    assert!(known[1] > 60 && counters.prefix_hit_requests == 1, "{known:?}");
    assert_eq!(counters.prefix_queried_tokens, 60 + known.iter().sum::<u64>());
    world.drain();
    world.assert_drained();
}

#[test]
fn blocks_that_a_request_holds_are_found_and_never_given_up() {
    let mut config = cached(lockstep(1, 4, 0));
    config.limits.num_blocks = 12;
    let mut world = World::new(config);
    let holder = world.submit(64, 60);
    world.step(0);
    // Others come and go, and take each other's blocks.
    for _ in 0..6 {
        let passing: RequestId = world.submit(40, 2);
        while world.requests[&passing].finished.is_none() {
            world.step(0).expect("a step");
        }
    }
    assert!(world.scheduler.stats().ranks[0].counters.blocks_evicted > 0);
    let prompt = world.requests[&holder].spec.prompt.clone();
    let spec = RequestSpec { prompt, ..world.spec(1, 2) };
    let twin = world.submit_spec(spec).expect("fits");
    world.step(0);
    assert_eq!(world.scheduler.cached_tokens(twin), Some(48), "all whole blocks but the one that a token is owed for");
    world.drain();
    world.assert_drained();
}
