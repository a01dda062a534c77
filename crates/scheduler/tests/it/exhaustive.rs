//! Every small world: all ranks of all row mixes, for every k, ladder and kind of drafter.

use paceline_plan::{Mode, PassKind, RankLoad};
use paceline_scheduler::shape::{Decision, Demand, ShapeRules, decide, padding};
use paceline_scheduler::{Config, Drafter, ShapeConfig};

use crate::world::limits;

const ROWS_MAX: u32 = 4;

/// What a row of each kind adds. A row at the length limit is a decode row without drafts; a held row adds nothing,
/// like an idle rank.
fn row_kinds(k: u32) -> Vec<Demand> {
    let prompt = |tokens, sampled| Demand {
        prompt_rows: 1,
        prompt_tokens: tokens,
        sampled_prompt_rows: sampled,
        ..Demand::default()
    };
    let mut kinds = vec![
        prompt(1, 1),
        prompt(9, 0),
        // Exactly Q tokens: a chunk in the middle of a prompt, and the recompute of a preempted request.
        prompt(1 + k, 0),
        prompt(1 + k, 1),
    ];
    kinds.extend((0..=k).map(|drafts| Demand { decode_rows: 1, drafts, drafts_max: drafts, ..Demand::default() }));
    kinds
}

fn add(a: Demand, b: Demand) -> Demand {
    Demand {
        running: 0,
        decode_rows: a.decode_rows + b.decode_rows,
        drafts: a.drafts + b.drafts,
        drafts_max: a.drafts_max.max(b.drafts_max),
        prompt_rows: a.prompt_rows + b.prompt_rows,
        prompt_tokens: a.prompt_tokens + b.prompt_tokens,
        sampled_prompt_rows: a.sampled_prompt_rows + b.sampled_prompt_rows,
    }
}

/// Every mix of at most `rows` rows; different mixes that want the same count once.
fn mixes(kinds: &[Demand], rows: u32) -> Vec<Demand> {
    let mut all = vec![Demand::default()];
    let mut newest = all.clone();
    for _ in 0..rows {
        newest = newest.iter().flat_map(|mix| kinds.iter().map(|kind| add(*mix, *kind))).collect();
        all.extend(&newest);
    }
    let key = |mix: &Demand| {
        (mix.decode_rows, mix.drafts, mix.drafts_max, mix.prompt_rows, mix.prompt_tokens, mix.sampled_prompt_rows)
    };
    all.sort_by_key(key);
    all.dedup();
    all
}

fn ladders(k: u32) -> [ShapeConfig; 3] {
    [
        ShapeConfig::cpu_default(ROWS_MAX, &[k], ROWS_MAX),
        ShapeConfig::powers_of_two(ROWS_MAX, &[k], ROWS_MAX).with_token_ladder(&[4, 8, 16], &[k]),
        ShapeConfig::from_tokens(&[1, 1 + k, 2 * (1 + k)], ROWS_MAX, &[k]),
    ]
}

fn check(rules: &ShapeRules, shapes: &ShapeConfig, drafter: Drafter, k: u32, demands: &[Demand]) {
    let Some(decision) = decide(rules, demands) else {
        assert!(demands.iter().all(|demand| demand.rows() == 0));
        return;
    };
    assert_eq!(decision.k_verify, k);
    let query_len = 1 + k;
    let target = &decision.passes[0];
    let largest = demands.iter().map(|demand| demand.decode_rows).max().unwrap_or(0);
    let has_prompt = demands.iter().any(|demand| demand.prompt_rows > 0);
    let is_covered = shapes.rows(query_len).iter().any(|entry| *entry >= largest);
    if has_prompt {
        assert_ne!(target.mode(), Mode::Full, "FULL needs decode rows only");
    } else if is_covered {
        let entry = shapes.rows(query_len).iter().find(|entry| **entry >= largest).expect("covered");
        assert_eq!((target.mode(), target.rows_padded().get()), (Mode::Full, *entry));
    }
    for (index, (demand, load)) in demands.iter().zip(target.loads()).enumerate() {
        let run = decision.decode_rows_run[index];
        assert!(run <= demand.decode_rows);
        assert!(run == demand.decode_rows || decision.is_full(), "rows are held for FULL only");
        match load {
            RankLoad::Dummy { query_len: dummy } => {
                assert_eq!((demand.rows(), dummy.get()), (0, query_len));
            }
            RankLoad::Real { rows, tokens } => {
                assert_eq!(rows.get(), run + demand.prompt_rows);
                let expected = if decision.is_full() { rows.get() * query_len } else { demand.tokens() };
                assert_eq!(tokens.get(), expected);
            }
        }
        let real = if decision.is_full() { run } else { demand.tokens() };
        padding(rules, &decision, index, real);
    }
    check_passes(&decision, drafter, k, demands);
}

fn check_passes(decision: &Decision, drafter: Drafter, k: u32, demands: &[Demand]) {
    let sampled = |index: usize| decision.decode_rows_run[index] + demands[index].sampled_prompt_rows;
    let any_sampled = (0..demands.len()).any(|index| sampled(index) > 0);
    let k_draft = if drafter != Drafter::None && any_sampled { k } else { 0 };
    assert_eq!(decision.k_draft, k_draft);
    let singles = if drafter == Drafter::Model { k_draft.saturating_sub(1) } else { 0 };
    let extends = u32::from(drafter == Drafter::Model);
    assert_eq!(decision.passes.len() as u32, 1 + extends + singles);
    for pass in &decision.passes[1..] {
        if pass.kind() == PassKind::Extend {
            assert_eq!((pass.shape(), pass.loads()), (decision.passes[0].shape(), decision.passes[0].loads()));
            continue;
        }
        for (index, load) in pass.loads().iter().enumerate() {
            assert_eq!(load.is_dummy(), sampled(index) == 0);
            assert_eq!(load.tokens_run(), sampled(index).max(1));
        }
    }
}

/// Every multiset of `ranks` mixes, each in two orders that must give the same decision turned round.
fn worlds(ranks: usize, rows: u32) {
    for k in 0..=3 {
        let mixes = mixes(&row_kinds(k), rows);
        for drafter in [Drafter::None, Drafter::Ngram, Drafter::Model] {
            if (drafter == Drafter::None) != (k == 0) {
                continue;
            }
            for shapes in ladders(k) {
                let mut config =
                    Config::new(Config::lockstep_groups(ranks as u32), limits(ROWS_MAX, k), shapes.clone());
                (config.k, config.drafter) = (k, drafter);
                let rules = ShapeRules::new(&config);
                let mut chosen = vec![0; ranks];
                loop {
                    let demands: Vec<Demand> = chosen.iter().map(|index| mixes[*index]).collect();
                    check(&rules, &shapes, drafter, k, &demands);
                    check_turned(&rules, &demands);
                    if !advance(&mut chosen, mixes.len()) {
                        break;
                    }
                }
            }
        }
    }
}

fn check_turned(rules: &ShapeRules, demands: &[Demand]) {
    let turned: Vec<Demand> = demands.iter().rev().copied().collect();
    if turned == demands {
        return;
    }
    let (Some(one), Some(other)) = (decide(rules, demands), decide(rules, &turned)) else { return };
    assert_eq!((one.k_verify, one.k_draft), (other.k_verify, other.k_draft));
    for (pass, turned) in one.passes.iter().zip(&other.passes) {
        assert_eq!(pass.shape(), turned.shape());
        assert!(pass.loads().iter().eq(turned.loads().iter().rev()));
    }
}

/// The next multiset, as indices that never go down.
fn advance(chosen: &mut [usize], count: usize) -> bool {
    let Some(position) = chosen.iter().rposition(|index| index + 1 < count) else { return false };
    let next = chosen[position] + 1;
    chosen[position..].fill(next);
    true
}

#[test]
fn two_ranks_of_four_rows() {
    worlds(2, 4);
}

#[test]
fn three_ranks_of_three_rows() {
    worlds(3, 3);
}

#[test]
fn four_ranks_of_two_rows() {
    worlds(4, 2);
}
