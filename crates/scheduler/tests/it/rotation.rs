//! Rule 10: who waits under a budget or a ladder that is too small, and for how long at most.

use std::collections::BTreeMap;

use paceline_scheduler::{Drafter, RequestId, ShapeConfig};

use crate::world::{World, lockstep};

/// The longest gap in steps between two turns of a request, over all requests that are still running at the end.
fn longest_gap(world: &World) -> u64 {
    let trace = world.trace.as_ref().expect("the trace is kept");
    let mut last: BTreeMap<RequestId, u64> = BTreeMap::new();
    let mut longest = 0;
    for (step, rows) in trace.iter().enumerate() {
        for id in rows {
            if let Some(before) = last.insert(*id, step as u64) {
                longest = longest.max(step as u64 - before);
            }
        }
    }
    let running = last.iter().filter(|(id, _)| world.requests[id].finished.is_none());
    longest.max(running.map(|(_, step)| trace.len() as u64 - step).max().unwrap_or(0))
}

#[test]
fn rows_take_turns_under_a_small_budget() {
    for (budget, rows) in [(4, 4), (8, 8), (12, 7), (16, 16), (9, 9)] {
        let mut config = lockstep(1, rows, 3);
        config.limits.max_num_batched_tokens = budget;
        let mut world = World::new(config);
        world.accept_permille = 300;
        for _ in 0..rows {
            world.submit(1, 300);
        }
        while world.scheduler.stats().waiting > 0 && world.steps < 20 {
            world.step(0);
        }
        let running = u64::from(world.scheduler.stats().ranks[0].running);
        assert!(running * 4 > budget.into(), "more rows run than the budget covers");
        world.trace = Some(Vec::new());
        for _ in 0..40 {
            world.step(0).expect("a step");
        }
        let bound = running.div_ceil(u64::from(budget / 4));
        assert!(longest_gap(&world) <= bound, "{} > {bound} with a budget of {budget}", longest_gap(&world));
        assert!(world.scheduler.stats().ranks[0].counters.held_by_budget > 0);
        world.drain();
        world.assert_drained();
    }
}

#[test]
fn rows_past_the_ladder_take_turns() {
    let mut config = lockstep(2, 8, 0);
    config.shapes = ShapeConfig::from_tokens(&[1, 2, 4], 8, &[0]);
    let mut world = World::new(config);
    for index in 0..10 {
        world.submit_to(u32::from(index >= 6), 4, 100);
    }
    world.step(0).expect("prompts");
    world.trace = Some(Vec::new());
    for _ in 0..20 {
        let plan = world.step(0).expect("decodes");
        assert_eq!(plan.group().target().rows_padded().get(), 4);
    }
    assert!(longest_gap(&world) <= 2);
    let stats = world.scheduler.stats();
    assert_eq!(stats.ranks[0].counters.held_by_ladder, 40);
    assert_eq!(stats.ranks[1].counters.held_by_ladder, 0);
    world.drain();
    world.assert_drained();
}

#[test]
fn a_prompt_is_not_starved_by_decodes() {
    let mut config = lockstep(1, 6, 3);
    config.drafter = Drafter::Ngram;
    config.limits.max_num_batched_tokens = 8;
    let mut world = World::new(config);
    // Short prompts that all start in one step, then more decode rows than the budget covers beside a long prompt.
    world.submit(1, 200);
    world.submit(1, 200);
    let long = world.submit(60, 10);
    world.trace = Some(Vec::new());
    while world.requests[&long].emitted.is_empty() {
        world.step(0).expect("a step");
        assert!(world.steps < 60, "the prompt comes to its end");
    }
    assert!(longest_gap(&world) <= 3);
    world.drain();
    world.assert_drained();
}
