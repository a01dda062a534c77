//! What is refused, when it is submitted or configured, with its numbers.

use paceline_plan::DpRank;
use paceline_scheduler::{Config, Error, QueueLimits, Refusal, Scheduler, ShapeConfig};

use crate::world::{World, limits, lockstep};

#[test]
fn d01_a_prompt_that_no_pool_holds_is_refused_and_the_next_request_runs() {
    let mut config = lockstep(1, 4, 0);
    config.limits.num_blocks = 63;
    config.limits.max_model_len = 1024;
    let mut world = World::new(config);
    let spec = world.spec(1010, 1);
    let refusal = world.submit_spec(spec).expect_err("1,008 tokens fit");
    assert_eq!(refusal, Refusal::NeverFits { most: 1008, got: 1010, blocks: 63, block_size: 16 });
    assert!(refusal.to_string().contains("1008") && refusal.to_string().contains("1010"));
    assert_eq!((refusal.field(), refusal.is_load()), ("prompt", false));
    let spec = world.spec(1000, 20);
    assert!(matches!(world.submit_spec(spec), Err(Refusal::NeverFits { most: 1008, got: 1019, .. })));
    world.submit(1008, 1);
    world.submit(10, 4);
    world.drain();
    world.assert_drained();
    assert_eq!(world.scheduler.stats().refused, 2);
}

#[test]
fn d19_a_prompt_at_the_limit() {
    let mut config = lockstep(1, 4, 1);
    config.limits.max_model_len = 128;
    let mut world = World::new(config);
    for (prompt, output, fits) in [(128, 1, false), (129, 1, false), (127, 1, true), (127, 5, false), (120, 8, true)] {
        let spec = world.spec(prompt, output);
        let result = world.submit_spec(spec);
        assert_eq!(result.is_ok(), fits, "{prompt} + {output}: {result:?}");
        if let Err(refusal) = result {
            let message = refusal.to_string();
            let most = if prompt >= 128 { "127" } else { "128" };
            assert!(message.contains(&prompt.to_string()) && message.contains(most), "{message}");
        }
    }
    world.drain();
    world.assert_drained();
}

#[test]
fn what_no_model_can_take_is_refused() {
    let mut world = World::new(lockstep(2, 4, 0));
    let mut bad = |change: &dyn Fn(&mut paceline_scheduler::RequestSpec)| {
        let mut spec = world.spec(4, 4);
        change(&mut spec);
        world.submit_spec(spec).expect_err("refused")
    };
    assert_eq!(bad(&|spec| spec.prompt.clear()), Refusal::EmptyPrompt);
    assert_eq!(bad(&|spec| spec.max_new_tokens = 0), Refusal::NothingToGenerate);
    let expected = |field, index| Refusal::TokenId { field, index, vocab_size: 1000, got: 1000 };
    assert_eq!(bad(&|spec| spec.prompt[2] = 1000), expected("prompt", 2));
    assert_eq!(bad(&|spec| spec.stop_token_ids = vec![999, 1000]), expected("stop_token_ids", 1));
    let refusal = bad(&|spec| spec.pinned = Some(DpRank::new(2)));
    assert_eq!(refusal, Refusal::UnknownRank { ranks: 2, got: DpRank::new(2) });
    assert_eq!(refusal.field(), "dp_rank");
    let first = world.spec(4, 4);
    let id = world.submit_spec(first.clone()).expect("fits");
    assert_eq!(world.submit_spec(first), Err(Refusal::DuplicateId { id }));
    world.drain();
    world.assert_drained();
}

#[test]
fn e14_a_full_queue_refuses_what_cannot_start() {
    let mut config = lockstep(1, 2, 0);
    config.queue = QueueLimits { requests: Some(4), tokens: None };
    let mut world = World::new(config.clone());
    let results: Vec<_> = (0..10)
        .map(|_| {
            let spec = world.spec(50, 20);
            world.submit_spec(spec)
        })
        .collect();
    assert_eq!(results.iter().filter(|result| result.is_ok()).count(), 6, "two run, four wait");
    assert_eq!(results[6], Err(Refusal::QueueFullRequests { most: 4, waiting: 4 }));
    assert!(results[9].as_ref().is_err_and(Refusal::is_load));
    world.drain();
    world.assert_drained();

    config.queue = QueueLimits { requests: None, tokens: Some(6000) };
    let mut world = World::new(config);
    for _ in 0..2 {
        world.submit(10, 20);
    }
    world.step(0);
    world.submit(2500, 1);
    world.submit(2500, 1);
    let spec = world.spec(2500, 1);
    let expected = Refusal::QueueFullTokens { most: 6000, waiting: 5000, got: 2500 };
    assert_eq!(world.submit_spec(spec), Err(expected));
}

fn refused(change: impl Fn(&mut Config)) -> Error {
    let mut config = lockstep(2, 4, 3);
    change(&mut config);
    Scheduler::new(config).expect_err("the configuration is refused")
}

#[test]
fn configurations_without_a_correct_plan_are_refused() {
    let error = refused(|config| config.limits.max_num_batched_tokens = 3);
    assert!(matches!(error, Error::TooSmall { field: "max_num_batched_tokens", least: 4, got: 3, .. }), "{error}");
    let error = refused(|config| config.limits.seats = 3);
    assert!(matches!(error, Error::TooSmall { field: "seats", least: 4, got: 3, .. }), "{error}");
    let error = refused(|config| config.limits.table_width = 256);
    assert!(matches!(error, Error::TooSmall { least: 4099, got: 4096, .. }), "{error}");
    let error = refused(|config| config.limits.token_capacity = 100);
    assert!(matches!(error, Error::TooSmall { field: "token_capacity", .. }), "{error}");
    let error = refused(|config| config.k = 4);
    assert!(matches!(error, Error::TooLarge { field: "k", most: 3, got: 4, .. }), "{error}");
    let error = refused(|config| config.drafter = paceline_scheduler::Drafter::None);
    assert!(matches!(error, Error::TooLarge { field: "k", most: 0, got: 3, .. }), "{error}");
    let error = refused(|config| config.k_verify_values = vec![5]);
    assert!(matches!(error, Error::TooLarge { field: "k_verify_values", most: 3, got: 5, .. }), "{error}");
    let error = refused(|config| config.groups = vec![vec![DpRank::new(0)], vec![DpRank::new(0)]]);
    assert!(matches!(error, Error::Groups { got: 2, .. }), "{error}");
    let error = refused(|config| config.groups = vec![vec![DpRank::new(1)]]);
    assert!(matches!(error, Error::Groups { got: 0, .. }), "{error}");
    let error = refused(|config| config.groups = Vec::new());
    assert!(matches!(error, Error::TooSmall { field: "groups", .. }), "{error}");
    let error = refused(|config| {
        config.shapes.row_ladders.insert(4, vec![2, 2]);
    });
    assert!(matches!(error, Error::LadderOrder { previous: 2, got: 2, .. }), "{error}");
    let error = refused(|config| {
        config.shapes.token_ladders.insert(4, vec![6]);
    });
    assert!(error.to_string().contains("multiples of Q"), "{error}");
}

#[test]
fn a_budget_of_exactly_one_row_is_enough() {
    let mut config = Config::new(Config::dense_groups(1), limits(2, 3), ShapeConfig::cpu_default(2, &[3], 2));
    config.k = 3;
    config.drafter = paceline_scheduler::Drafter::Ngram;
    config.limits.max_num_batched_tokens = 4;
    let mut world = World::new(config);
    world.submit(9, 20);
    world.submit(2, 20);
    world.drain();
    world.assert_drained();
}
