//! Group B of the field cases: ladders.

use paceline_plan::Mode;
use paceline_scheduler::shape::{Decision, Demand, ShapeRules, decide};
use paceline_scheduler::{Config, Drafter, Error, Scheduler, ShapeConfig, ShapeReason};

use crate::world::{World, limits, lockstep};

fn rules(ranks: u32, max_num_seqs: u32, k: u32, shapes: ShapeConfig) -> ShapeRules {
    let mut config = Config::new(Config::lockstep_groups(ranks), limits(max_num_seqs, k), shapes);
    config.k = k;
    config.drafter = if k > 0 { Drafter::Ngram } else { Drafter::None };
    ShapeRules::new(&config)
}

fn decodes(rows: u32, drafts: u32) -> Demand {
    Demand { decode_rows: rows, drafts: rows * drafts, drafts_max: drafts, ..Demand::default() }
}

fn decided(rules: &ShapeRules, demands: &[Demand]) -> Decision {
    decide(rules, demands).expect("a rank has rows")
}

/// Padded tokens of a FULL step of one rank; nothing outside FULL.
fn full_tokens(rules: &ShapeRules, rows: u32, drafts: u32) -> Option<u32> {
    let decision = decided(rules, &[decodes(rows, drafts)]);
    let target = &decision.passes[0];
    (target.mode() == Mode::Full).then(|| target.tokens_padded().get())
}

fn ladder_tokens(shapes: &ShapeConfig, k: u32) -> Vec<u32> {
    shapes.rows(1 + k).iter().map(|rows| rows * (1 + k)).collect()
}

#[test]
fn b01_the_widest_decode_batch_is_on_the_ladder() {
    for shapes in [ShapeConfig::graph_default(6, &[6], 6), ShapeConfig::powers_of_two(6, &[6], 6)] {
        assert!(ladder_tokens(&shapes, 6).contains(&42));
        assert_eq!(full_tokens(&rules(1, 6, 6, shapes), 6, 6), Some(42));
    }
}

#[test]
fn b02_a_row_limit_off_the_grid_is_on_the_ladder() {
    let rules = rules(1, 100, 0, ShapeConfig::graph_default(100, &[0], 100));
    for rows in [95, 96] {
        assert_eq!(full_tokens(&rules, rows, 0), Some(96));
    }
    for rows in 97..=100 {
        assert_eq!(full_tokens(&rules, rows, 0), Some(100));
    }
}

#[test]
fn b04_an_explicit_list_is_rounded_to_whole_rows() {
    let shapes = ShapeConfig::from_tokens(&[1, 2, 4, 8, 16, 24], 9, &[2]).with_token_ladder(&[4, 8, 16], &[2]);
    assert_eq!(ladder_tokens(&shapes, 2), [3, 6, 9, 18, 24]);
    let rules = rules(1, 9, 2, shapes);
    let sizes: Vec<_> = (1..=8).map(|rows| full_tokens(&rules, rows, 2)).collect();
    assert_eq!(sizes, [3, 6, 9, 18, 18, 18, 24, 24].map(Some), "none goes to a smaller piecewise size");
    assert_eq!(full_tokens(&rules, 9, 2), None);
}

#[test]
fn b06_default_ladders_fit_tiny_and_wide_batches() {
    assert_eq!(ladder_tokens(&ShapeConfig::graph_default(1, &[3], 1), 3), [4]);
    assert_eq!(ladder_tokens(&ShapeConfig::graph_default(2, &[3], 2), 3), [4, 8]);
    let shapes = ShapeConfig::graph_default(128, &[16], 128);
    assert!(ladder_tokens(&shapes, 16).iter().all(|tokens| *tokens <= 512));
    assert_eq!(shapes.without_graph.len(), 1);
    let warning = shapes.without_graph[0].to_string();
    assert!(warning.contains("128 rows") && warning.contains("512 tokens"), "{warning}");
    let rules = rules(1, 128, 16, shapes);
    assert_eq!(full_tokens(&rules, 128, 16), None);
    assert!(matches!(decided(&rules, &[decodes(128, 16)]).reason, ShapeReason::PastLadder { rows: 128, .. }));
}

fn refused(config: Config) -> Error {
    Scheduler::new(config).expect_err("the configuration is refused")
}

#[test]
fn b15_no_padded_size_is_above_what_buffers_hold() {
    let mut config = lockstep(1, 100, 0);
    config.shapes = ShapeConfig::from_tokens(&[50, 112], 100, &[0]);
    let message = refused(config.clone()).to_string();
    assert!(message.contains("112") && message.contains("100"), "{message}");
    config.shapes = ShapeConfig::cpu_default(100, &[0], 100);
    config.limits.row_capacity = 90;
    let message = refused(config).to_string();
    assert!(message.contains("row_capacity is 90") && message.contains("100"), "{message}");
    let shapes = ShapeConfig::graph_default(100, &[0], 96);
    assert_eq!(shapes.rows(1).last(), Some(&96), "no default entry is above the row capacity");
}

#[test]
fn b15_a_burst_past_the_ladder_completes() {
    let mut config = lockstep(1, 30, 0);
    config.shapes = ShapeConfig::from_tokens(&[1, 2, 4, 8, 16], 30, &[0]);
    let mut world = World::new(config);
    for _ in 0..30 {
        world.submit(6, 12);
    }
    world.drain();
    world.assert_drained();
    assert!(world.scheduler.stats().ranks[0].counters.downgrades_ladder > 0);
}

#[test]
fn a_few_rows_past_the_ladder_wait_rather_than_slow_every_rank() {
    let rules = rules(2, 32, 0, ShapeConfig::from_tokens(&[8, 16], 32, &[0]));
    let decision = decided(&rules, &[decodes(18, 0), decodes(10, 0)]);
    assert_eq!(decision.reason, ShapeReason::Held { rows: 2, fitting: 10, entry: 16 });
    assert_eq!(decision.decode_rows_run, [16, 10]);
    assert_eq!(decision.passes[0].rows_padded().get(), 16);
    let decision = decided(&rules, &[decodes(30, 0), decodes(10, 0)]);
    assert_eq!(decision.reason, ShapeReason::PastLadder { index: 0, rows: 30, entry: 16 });
    assert_eq!(decision.passes[0].mode(), Mode::Eager);
}

#[test]
fn the_verify_width_follows_the_drafts_among_the_allowed_values() {
    let mut config =
        Config::new(Config::lockstep_groups(2), limits(8, 3), ShapeConfig::powers_of_two(8, &[0, 1, 3], 8));
    config.k = 3;
    config.k_verify_values = vec![0, 1];
    config.drafter = Drafter::Ngram;
    let rules = ShapeRules::new(&config);
    for (drafts, k_verify) in [(0, 0), (1, 1), (2, 3), (3, 3)] {
        let decision = decided(&rules, &[decodes(3, drafts), Demand::default()]);
        assert_eq!((decision.k_verify, decision.k_draft), (k_verify, 3));
        let target = &decision.passes[0];
        assert_eq!(target.tokens_padded().get(), 4 * (1 + k_verify));
        assert_eq!(target.loads()[1].tokens_run(), 1 + k_verify);
    }
}

#[test]
fn k_changes_from_step_to_step_and_the_text_stays() {
    let mut config = lockstep(2, 6, 3);
    config.shapes = ShapeConfig::cpu_default(6, &[0, 1, 3], 6);
    config.k_verify_values = vec![0, 1];
    let mut world = World::new(config);
    world.accept_permille = 500;
    world.propose_permille = 200;
    for index in 0..12 {
        world.submit(3 + index, 30);
    }
    let mut seen = std::collections::BTreeSet::new();
    while let Some(plan) = world.step(0) {
        seen.insert(plan.group().k_verify());
    }
    assert_eq!(seen.into_iter().collect::<Vec<_>>(), [0, 1, 3]);
    world.assert_drained();
}

#[test]
fn graphs_off_is_eager_everywhere() {
    let mut config = lockstep(2, 4, 1);
    config.shapes = ShapeConfig::eager();
    let mut world = World::new(config);
    world.submit(4, 10);
    while let Some(plan) = world.step(0) {
        assert_eq!(plan.group().target().mode(), Mode::Eager);
    }
    world.assert_drained();
}

#[test]
fn workers_warm_up_what_plans_can_use() {
    let mut config = lockstep(1, 4, 3);
    assert_eq!(config.row_ladders_used().keys().copied().collect::<Vec<_>>(), [4], "n-gram drafts need no single pass");
    assert_eq!(config.tokens_padded_max(), 16);
    config.drafter = Drafter::Model;
    assert_eq!(config.row_ladders_used().keys().copied().collect::<Vec<_>>(), [1, 4]);
    config.shapes = config.shapes.limited_to_query_len(3);
    assert_eq!(config.row_ladders_used().keys().copied().collect::<Vec<_>>(), [1]);
    let rules = ShapeRules::new(&config);
    let decision = decided(&rules, &[decodes(2, 3)]);
    assert_eq!(decision.reason, ShapeReason::NoLadder { query_len: 4 });
    assert_eq!(decision.passes[0].mode(), Mode::Eager);
    config.shapes = ShapeConfig::eager();
    assert!(config.row_ladders_used().is_empty());

    let mut config = lockstep(1, 1024, 3);
    assert_eq!(config.without_graph().count(), 1, "Q = 1 is not used");
    config.shapes.full = false;
    assert_eq!(config.tokens_padded_max(), 0);
}
