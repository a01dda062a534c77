//! Drafting with a model that has KV (rule 18): lookahead, wanted blocks, k by load. Every step of these worlds fills and
//! checks the arrays of all passes (`drafting`).

use std::collections::BTreeSet;

use paceline_plan::{LogitsWanted, Mode, PassKind, StepPlan};
use paceline_scheduler::{Config, Drafter, KByRows, ShapeConfig};

use crate::world::{World, lockstep};

fn model(ranks: u32, max_num_seqs: u32, k: u32, layers: u32) -> Config {
    let mut config = lockstep(ranks, max_num_seqs, k);
    (config.drafter, config.drafter_layers) = (Drafter::Model, layers);
    config
}

/// k = 3 of one request, 1 of two, 0 of three, 3 of more.
fn by_load(mut config: Config) -> Config {
    let rows = config.limits.max_num_seqs;
    config.k_by_rows = [(1, 3), (2, 1), (3, 0), (4, 3)].map(|(rows_most, k)| KByRows { rows_most, k }).to_vec();
    config.shapes = ShapeConfig::cpu_default(rows, &[0, 1, 3], rows);
    config
}

fn fed(plan: &StepPlan, rank: usize) -> Vec<(u32, usize)> {
    plan.ranks()[rank].feeds().iter().map(|feed| (feed.start, feed.tokens.len())).collect()
}

fn drafts(plan: &StepPlan, rank: usize) -> Vec<u32> {
    plan.ranks()[rank].rows().iter().map(|row| row.drafts).collect()
}

#[test]
fn a_chunk_comes_with_as_many_tokens_as_the_drafter_has_layers() {
    for (layers, expected) in [(1, [(0, 9), (9, 8), (17, 3)]), (2, [(0, 10), (10, 8), (18, 2)])] {
        let mut config = model(1, 2, 3, layers);
        config.limits.max_num_batched_tokens = 8;
        let mut world = World::new(config);
        world.submit(20, 4);
        for fed_tokens in expected {
            let plan = world.step(0).expect("a chunk");
            assert_eq!(fed(&plan, 0), [fed_tokens], "layers: {layers}");
        }
        world.drain();
        world.assert_drained();
    }
}

#[test]
fn the_last_chunk_has_nothing_left_to_be_fed() {
    let mut config = model(1, 2, 3, 1);
    config.limits.max_num_batched_tokens = 8;
    let mut world = World::new(config);
    world.submit(9, 4);
    assert_eq!(fed(&world.step(0).expect("a chunk"), 0), [(0, 9)]);
    let last = world.step(0).expect("the last token");
    assert_eq!((fed(&last, 0), last.ranks()[0].rows()[0].logits), (vec![], LogitsWanted::Last));
    world.drain();
    world.assert_drained();
}

/// vLLM #47930: acceptance fell when the drafter's own context was never filled.
#[test]
fn c19_a_resumed_request_fills_the_drafters_context_again() {
    let mut config = model(1, 3, 3, 1);
    config.limits.block_size = 4;
    config.limits.table_width = 1100;
    config.limits.num_blocks = 12;
    config.limits.max_num_batched_tokens = 16;
    let mut world = World::new(config);
    for _ in 0..3 {
        world.submit(9, 24);
    }
    world.drain();
    world.assert_drained();
    let counters = &world.scheduler.stats().ranks[0].counters;
    assert!(counters.preemptions > 0, "somebody was preempted and resumed");
    assert_eq!(counters.drafts.accepted_tokens, counters.drafts.draft_tokens, "every draft was right");
}

#[test]
fn c05_a_model_drafter_stops_at_the_length_limit() {
    let mut config = model(1, 1, 3, 1);
    config.limits.max_model_len = 64;
    config.limits.block_size = 4;
    config.limits.table_width = 17;
    let mut world = World::new(config);
    world.accept_permille = 0;
    world.submit(58, 6);
    let mut seen = Vec::new();
    while let Some(plan) = world.step(0) {
        let row = plan.ranks()[0].rows()[0];
        if row.logits == LogitsWanted::Verify {
            seen.push((row.start_max + 1, row.drafts));
        }
        assert_eq!(plan.group().passes().len(), 4, "the drafter runs to the end");
        assert!(world.arrays[0].slots.iter().all(|slot| *slot < 17 * 4), "no slot of a position at the limit");
    }
    assert_eq!(seen, [(59, 3), (60, 3), (61, 2), (62, 1), (63, 0)]);
    assert!(world.drafting[0].unwritten > 0, "single passes past the limit write nothing");
    world.assert_drained();
}

#[test]
fn c18_a_model_drafters_drafts_are_counted_by_their_place() {
    let mut world = World::new(model(2, 2, 3, 1));
    world.submit_to(0, 5, 43);
    world.drain();
    let stats = world.scheduler.stats();
    let drafts = &stats.ranks[0].counters.drafts;
    assert_eq!((drafts.drafts, drafts.draft_tokens, drafts.accepted_tokens), (11, 31, 31));
    assert_eq!(drafts.verified_per_position, [11, 10, 10], "the last step had room for one draft");
    assert_eq!(drafts.accepted_per_position, drafts.verified_per_position);
    let idle = &stats.ranks[1].counters.drafts;
    assert_eq!((idle.drafts, idle.draft_tokens, idle.accepted_tokens), (0, 0, 0), "dummies draft nothing");
}

/// TensorRT-LLM #13278: padding rows of other draft lengths aliased live slots.
#[test]
fn b19_k_changes_from_step_to_step_beside_parked_requests() {
    let mut config = by_load(model(2, 4, 3, 1));
    config.limits.max_num_batched_tokens = 12;
    config.shapes = ShapeConfig::powers_of_two(4, &[0, 1, 3], 4);
    let mut world = World::new(config);
    world.accept_permille = 300;
    let (mut widths, mut parked, mut padded) = (BTreeSet::new(), 0, 0);
    for round in 0..400 {
        if round % 3 == 0 {
            let (rank, output) = (world.random.below(2), 20 + world.random.below(30));
            world.submit_to(rank, 3, output);
        }
        let Some(plan) = world.step(0) else { continue };
        widths.insert(plan.group().k_verify());
        let explanation = world.scheduler.explanation(plan.group().group()).expect("a planned step is explained");
        let target = plan.group().target();
        for (rank, explained) in explanation.ranks.iter().enumerate() {
            let is_parked = !explained.held.is_empty();
            let is_padded =
                target.mode() == Mode::Full && plan.ranks()[rank].rows_real().get() < target.rows_padded().get();
            parked += u32::from(is_parked);
            padded += u32::from(is_padded && is_parked);
            let real = target.loads()[rank].tokens().get() as usize;
            let slots = &world.arrays[rank].slots[real..target.tokens_padded().as_usize()];
            assert!(slots.iter().all(|slot| *slot == -1), "no padding row has a slot");
        }
    }
    assert_eq!(widths, BTreeSet::from([0, 1, 3]));
    assert!(parked > 20, "{parked} ranks with parked requests");
    assert!(padded > 0, "a padded rank had parked requests");
    world.drain();
    world.assert_drained();
}

#[test]
fn drafts_beyond_the_k_of_a_step_are_not_verified() {
    let mut world = World::new(by_load(model(1, 4, 3, 1)));
    world.submit(4, 60);
    let first = world.step(0).expect("a prompt");
    assert_eq!((first.group().k_draft(), first.group().passes().len()), (3, 4));
    world.submit(4, 60);
    let second = world.step(0).expect("a decode beside a prompt");
    assert_eq!(drafts(&second, 0), [3, 0], "one request ran when the step was planned");
    assert_eq!((second.group().k_draft(), second.group().passes().len()), (1, 2), "two run after it");
    assert_eq!(drafts(&world.step(0).expect("decodes"), 0), [1, 1]);
    world.submit(4, 60);
    let third = world.step(0).expect("decodes beside a prompt");
    assert_eq!((third.group().k_draft(), third.group().passes().len()), (0, 2), "the extend pass runs all the same");
    let fourth = world.step(0).expect("decodes");
    assert_eq!((drafts(&fourth, 0), fourth.group().k_verify()), (vec![0, 0, 0], 0));
    world.submit(4, 60);
    world.step(0).expect("decodes beside a prompt");
    assert_eq!(drafts(&world.step(0).expect("decodes"), 0), [3, 3, 3, 3]);
    world.drain();
    world.assert_drained();
}

#[test]
fn k_follows_the_largest_rank_of_the_group() {
    let mut world = World::new(by_load(model(2, 4, 3, 1)));
    world.submit_to(0, 4, 30);
    world.submit_to(1, 4, 30);
    world.submit_to(1, 4, 30);
    assert_eq!(world.step(0).expect("prompts").group().k_draft(), 1);
    let plan = world.step(0).expect("decodes");
    assert_eq!((drafts(&plan, 0), drafts(&plan, 1)), (vec![1], vec![1, 1]));
    world.drain();
    world.assert_drained();
}

#[test]
fn a_drafter_of_two_layers_proposes_for_both_at_any_load() {
    let mut world = World::new(by_load(model(2, 4, 3, 2)));
    world.accept_permille = 600;
    let mut widths = BTreeSet::new();
    for round in 0..300 {
        if round % 2 == 0 {
            let (prompt, output) = (1 + world.random.below(20), 1 + world.random.below(12));
            world.submit(prompt, output);
        }
        let Some(plan) = world.step(0) else { continue };
        let samples = plan.ranks().iter().flat_map(paceline_plan::RankPart::rows).any(|row| row.logits_count() > 0);
        assert_eq!(samples, plan.group().k_draft() >= 2);
        widths.insert((plan.group().k_verify(), plan.group().k_draft()));
    }
    assert!(widths.contains(&(1, 2)) && widths.contains(&(3, 3)), "{widths:?}");
    world.drain();
    world.assert_drained();
}

#[test]
fn a_wanted_block_is_counted_and_preempts_nobody() {
    let mut config = model(1, 2, 3, 1);
    config.limits.block_size = 4;
    config.limits.table_width = 1100;
    config.limits.num_blocks = 3;
    let mut world = World::new(config);
    world.submit(3, 6);
    world.submit(3, 6);
    let plan = world.step(0).expect("both prompts");
    assert_eq!(plan.ranks()[0].rows_real().get(), 2);
    let held: u32 = plan.ranks()[0].rows().iter().map(|row| row.blocks).sum();
    assert_eq!(held, 3, "one of the prompts got the block that it wants");
    let counters = world.scheduler.stats().ranks[0].counters.clone();
    assert_eq!((counters.wanted_blocks_missing, counters.preemptions), (1, 0));
    assert_eq!(world.drafting[0].unwritten, 1, "position 4 of the other is not written");
    world.drain();
    world.assert_drained();
}

#[test]
fn no_block_is_wanted_past_the_end_of_a_request() {
    let mut config = model(1, 1, 3, 1);
    config.limits.block_size = 4;
    config.limits.table_width = 1100;
    let mut world = World::new(config);
    world.submit(3, 2);
    let plan = world.step(0).expect("a prompt");
    assert_eq!(plan.ranks()[0].rows()[0].blocks, 1, "4 positions are all that it can compute");
    world.drain();
    assert_eq!(world.scheduler.stats().ranks[0].counters.wanted_blocks_missing, 0);
    world.assert_drained();
}

#[test]
fn a06_passes_are_as_many_on_all_ranks_while_k_changes() {
    let mut config = by_load(model(3, 6, 3, 1));
    config.limits.max_num_batched_tokens = 24;
    let mut world = World::new(config);
    world.accept_permille = 500;
    let mut passes = BTreeSet::new();
    while world.steps < 1000 {
        if world.random.chance(250) {
            let (prompt, output) = (1 + world.random.below(60), 1 + world.random.below(20));
            world.submit(prompt, output);
        }
        let Some(plan) = world.step(0) else { continue };
        let group = plan.group();
        assert_eq!(group.passes().len() as u32, 2 + group.k_draft().saturating_sub(1));
        assert!(group.passes().iter().all(|pass| pass.loads().len() == 3));
        assert_eq!(group.passes()[1].kind(), PassKind::Extend);
        passes.insert(group.passes().len());
    }
    assert_eq!(passes, BTreeSet::from([2, 4]));
    world.drain();
    world.assert_drained();
}
