//! Group A of the field cases: idle ranks, dummies, and what all ranks must agree on.

use paceline_plan::{GroupId, Mode, PassKind, RankLoad, StepPlan};
use paceline_scheduler::{Config, Drafter, ShapeConfig};

use crate::world::{World, lockstep};

/// Requests on rank 0 that all decode with the same number of drafts from the second step on.
fn decoding(mut world: World, rows: u32) -> (World, StepPlan) {
    for _ in 0..rows {
        world.submit_to(0, 4, 200);
    }
    world.step(0).expect("prompts");
    let plan = world.step(0).expect("decodes");
    (world, plan)
}

fn tokens_config(ranks: u32, max_num_seqs: u32, k: u32, tokens: &[u32]) -> Config {
    let mut config = lockstep(ranks, max_num_seqs, k);
    config.shapes = ShapeConfig::from_tokens(tokens, max_num_seqs, &[k]);
    config
}

#[test]
fn a01_an_idle_ranks_dummy_is_as_long_as_a_verify_row() {
    let (_, plan) = decoding(World::new(tokens_config(2, 8, 3, &[4, 8, 16, 32])), 3);
    let target = plan.group().target();
    assert_eq!(target.mode(), Mode::Full);
    assert_eq!((target.rows_padded().get(), target.tokens_padded().get()), (4, 16));
    let real = target.loads()[0];
    assert_eq!((real.rows().get(), real.tokens().get()), (3, 12));
    let dummy = target.loads()[1];
    assert!(dummy.is_dummy());
    assert_eq!((dummy.rows_run(), dummy.tokens_run()), (1, 4));
    for k in 0..=7 {
        let (_, plan) = decoding(World::new(lockstep(2, 8, k)), 3);
        let RankLoad::Dummy { query_len } = plan.group().target().loads()[1] else { panic!("rank 1 is idle") };
        assert_eq!(query_len.get(), 1 + k);
    }
}

#[test]
fn a02_rows_and_tokens_are_padded_together() {
    let (_, plan) = decoding(World::new(tokens_config(2, 8, 0, &[1, 2, 4, 8])), 8);
    let target = plan.group().target();
    assert_eq!(target.query_len().map(paceline_plan::QueryLen::get), Some(1));
    assert_eq!((target.rows_padded().get(), target.tokens_padded().get()), (8, 8));
    assert_eq!(target.loads()[1].rows_run(), 1);
}

#[test]
fn a03_an_idle_rank_is_padded_to_its_peers_rows() {
    let (_, plan) = decoding(World::new(lockstep(8, 32, 0)), 32);
    let target = plan.group().target();
    assert_eq!((target.rows_padded().get(), target.tokens_padded().get()), (32, 32));
    assert!(target.loads()[3].is_dummy());
    assert_eq!(target.query_len().map(paceline_plan::QueryLen::get), Some(1));
}

#[test]
fn a04_idle_ranks_never_make_a_decode_eager() {
    let (mut world, plan) = decoding(World::new(lockstep(8, 4, 0)), 1);
    assert_eq!(plan.ranks().len(), 8);
    let before = world.scheduler.stats();
    let mut plans = 0;
    for _ in 0..100 {
        let plan = world.step(0).expect("a decode");
        let target = plan.group().target();
        assert_eq!((target.mode(), target.rows_padded().get()), (Mode::Full, 1));
        plans += plan.ranks().len();
    }
    assert_eq!(plans, 800);
    for (rank, before) in world.scheduler.stats().ranks.iter().zip(&before.ranks) {
        let [full, _, eager] = rank.counters.steps_by_mode;
        assert_eq!((full - before.counters.steps_by_mode[0], eager - before.counters.steps_by_mode[2]), (100, 0));
    }
}

fn kinds(plan: &StepPlan) -> Vec<PassKind> {
    plan.group().passes().iter().map(paceline_plan::Pass::kind).collect()
}

#[test]
fn a06_drafter_passes_are_as_many_on_idle_ranks() {
    let mut config = lockstep(2, 4, 3);
    config.drafter = Drafter::Model;
    let mut world = World::new(config);
    world.submit_to(0, 4, 40);
    let expected = [PassKind::Target, PassKind::Extend, PassKind::Single { index: 2 }, PassKind::Single { index: 3 }];
    let prompt = world.step(0).expect("a prompt");
    assert_eq!(kinds(&prompt), expected);
    assert_eq!(prompt.group().target().mode(), Mode::Eager);
    assert_eq!(prompt.group().passes()[2].mode(), Mode::Full, "single passes of a mixed step stay FULL");
    let decode = world.step(0).expect("a decode");
    assert_eq!(kinds(&decode), expected);
    for pass in decode.group().passes() {
        assert_eq!(pass.loads().len(), 2);
        assert!(pass.loads()[1].is_dummy());
        assert_eq!(pass.mode(), Mode::Full);
    }
    assert_eq!(decode.group().passes()[1].loads()[1].tokens_run(), 4);
    assert_eq!(decode.group().passes()[2].loads()[1].tokens_run(), 1);
}

#[test]
fn a06_a_chunk_in_the_middle_of_a_prompt_runs_the_extend_pass_only() {
    let mut config = lockstep(2, 4, 3);
    config.drafter = Drafter::Model;
    config.limits.max_num_batched_tokens = 16;
    let mut world = World::new(config);
    world.submit_to(0, 40, 4);
    let plan = world.step(0).expect("a chunk");
    assert_eq!(kinds(&plan), [PassKind::Target, PassKind::Extend]);
    assert_eq!(plan.group().k_draft(), 0);
    world.drain();
    world.assert_drained();
}

#[test]
fn a06_a_thousand_random_steps_with_a_draft_model() {
    let mut config = lockstep(3, 6, 3);
    config.drafter = Drafter::Model;
    config.limits.max_num_batched_tokens = 32;
    let mut world = World::new(config);
    world.accept_permille = 600;
    while world.steps < 1000 {
        if world.random.chance(300) {
            let (prompt, output) = (1 + world.random.below(60), 1 + world.random.below(30));
            world.submit(prompt, output);
        }
        world.step(0);
    }
    world.drain();
    world.assert_drained();
}

#[test]
fn a10_a_dummy_needs_no_block_and_no_seat() {
    let mut config = lockstep(2, 1, 1);
    config.limits.num_blocks = 16;
    let mut world = World::new(config);
    // Rank 1 may start nothing although a request waits for it; rank 0 decodes.
    world.submit_to(0, 4, 150);
    world.scheduler.set_available(paceline_plan::DpRank::new(1), false);
    world.submit_to(1, 4, 4);
    world.step(0).expect("a prompt");
    for _ in 0..60 {
        let plan = world.step(0).expect("a decode");
        assert!(plan.ranks()[1].is_dummy());
        assert_eq!(plan.group().target().mode(), Mode::Full);
        let rank = &world.scheduler.stats().ranks[1];
        assert_eq!((rank.blocks_used, rank.running), (0, 0), "a dummy takes no block");
    }
}

#[test]
fn a11_no_step_without_a_row() {
    let mut world = World::new(lockstep(4, 4, 1));
    assert!(world.step(0).is_none(), "an idle group runs no forward");
    let id = world.submit_to(2, 4, 5);
    let mut steps = 0;
    while world.step(0).is_some() {
        steps += 1;
    }
    assert!(world.requests[&id].finished.is_some());
    let counted = world.scheduler.stats().ranks[0].counters.dummy_steps;
    assert_eq!(counted, steps);
    for _ in 0..10 {
        assert!(world.step(0).is_none());
    }
    assert_eq!(world.scheduler.stats().ranks[0].counters.dummy_steps, counted);
}

#[test]
fn a14_the_first_request_reaches_every_rank() {
    for dp_rank in 0..4 {
        let mut world = World::new(lockstep(4, 4, 0));
        world.submit_to(dp_rank, 4, 1);
        let plan = world.step(0).expect("the first step");
        assert_eq!(plan.ranks().len(), 4);
        assert_eq!(plan.group().step().get(), 1);
        assert!(world.step(0).is_none());
    }
}

#[test]
fn a20_a_rank_that_finishes_early_goes_on_as_a_dummy() {
    let mut world = World::new(lockstep(2, 4, 0));
    let short = world.submit_to(0, 4, 5);
    let long = world.submit_to(1, 4, 500);
    let rounds = world.drain();
    assert_eq!(rounds, 500);
    let stats = world.scheduler.stats();
    assert_eq!(stats.ranks[0].counters.steps, 5);
    assert_eq!(stats.ranks[0].counters.dummy_steps, 495);
    assert_eq!(stats.ranks[1].counters.dummy_steps, 0);
    assert_eq!((world.requests[&short].emitted.len(), world.requests[&long].emitted.len()), (5, 500));
}

#[test]
fn a24_a_dummy_beside_a_long_chunk_is_a_verify_row() {
    let mut config = lockstep(2, 4, 1);
    config.limits.max_model_len = 16384;
    config.limits.table_width = 1025;
    let mut world = World::new(config);
    world.submit_to(0, 10_000, 4);
    let plan = world.step(0).expect("a chunk");
    let target = plan.group().target();
    assert_eq!(target.mode(), Mode::Eager);
    assert_eq!(target.loads()[0].tokens_run(), 8192);
    assert_eq!(target.loads()[1].tokens_run(), 2);
    let counters = &world.scheduler.stats().ranks[1].counters;
    assert_eq!(counters.dummy_tokens, 2);
    assert_eq!((counters.prompt_tokens, counters.emitted_tokens, counters.real_tokens()), (0, 0, 0));
}

#[test]
fn b18_mode_and_size_are_one_decision() {
    let config = |ranks| tokens_config(ranks, 32, 0, &[4, 8, 16, 32]);
    let mut world = World::new(config(2));
    for index in 0..23 {
        world.submit_to(u32::from(index >= 20), 4, 50);
    }
    world.step(0).expect("prompts");
    let plan = world.step(0).expect("decodes");
    assert_eq!((plan.group().target().mode(), plan.group().target().rows_padded().get()), (Mode::Full, 32));

    let mut world = World::new(config(4));
    for index in 0..20 {
        world.submit_to(u32::from(index >= 17), 4, 50);
    }
    world.step(0).expect("prompts");
    world.submit_to(2, 50, 1);
    let plan = world.step(0).expect("a mixed step");
    assert_eq!(plan.group().target().mode(), Mode::Eager);
    assert_eq!(world.scheduler.stats().ranks[2].counters.downgrades_prompt_row, 1, "blame names the rank");
    let plan = world.step(0).expect("decodes");
    assert_eq!((plan.group().target().mode(), plan.group().target().rows_padded().get()), (Mode::Full, 32));
    let words = world.scheduler.explanation(GroupId::new(0)).expect("a reason").to_string();
    assert!(words.contains("the largest rank has 17 decode rows, the ladder's entry is 32"), "{words}");
}

#[test]
fn a_prompt_chunk_or_a_recompute_of_exactly_q_is_no_decode_row() {
    let mut config = lockstep(2, 4, 3);
    config.limits.max_num_batched_tokens = 8;
    let mut world = World::new(config);
    world.submit_to(0, 12, 4);
    world.step(0).expect("eight tokens");
    let plan = world.step(0).expect("exactly Q tokens");
    let part = &plan.ranks()[0];
    assert_eq!((part.rows()[0].query_len.get(), part.decode_rows()), (4, 0));
    assert_eq!(plan.group().target().mode(), Mode::Eager);
    world.drain();

    let id = world.submit_to(0, 3, 20);
    world.step(0).expect("the prompt");
    let group = GroupId::new(0);
    assert_eq!(world.scheduler.void_group(group), [id]);
    assert!(world.scheduler.requeue(id));
    let epoch = world.scheduler.epoch(group).expect("the group exists");
    world.workers.iter_mut().for_each(|worker| worker.reset(epoch));
    let plan = world.step(0).expect("a recompute of exactly Q tokens");
    let part = &plan.ranks()[0];
    assert_eq!((part.rows()[0].query_len.get(), part.decode_rows(), part.rows()[0].drafts), (4, 0, 0));
    assert_eq!(plan.group().target().mode(), Mode::Eager);
    world.drain();
    world.assert_drained();
}
