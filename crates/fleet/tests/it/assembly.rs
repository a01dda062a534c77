//! Joining, loading, meeting.

use paceline_fleet::{Action, Contract, Input, Join, Loaded, Place, RankState};
use paceline_plan::{DpRank, Epoch};

use crate::world::{World, config, join, loaded};

pub(crate) fn forms(actions: &[Action]) -> Vec<(u64, u32, u32)> {
    let form = |action: &Action| match action {
        Action::Form { worker, world_size, world_rank, .. } => Some((worker.get(), *world_size, *world_rank)),
        _ => None,
    };
    actions.iter().filter_map(form).collect()
}

#[test]
fn ranks_of_their_own_wait_for_the_sizes_of_all() {
    let mut world = World::new(config(2, false));
    let (_, first) = world.load(1);
    assert_eq!(forms(&first), []);
    assert_eq!(
        world.fleet.ranks().iter().map(|rank| rank.state).collect::<Vec<_>>(),
        [RankState::Absent, RankState::Loaded]
    );
    let (_, second) = world.load(0);
    assert_eq!(forms(&second), [(2, 1, 0), (1, 1, 0)]);
    assert!(second.contains(&Action::Sized) && world.fleet.is_ready());
}

#[test]
fn a_lockstep_group_meets_where_its_first_worker_says() {
    let mut world = World::new(config(3, true));
    world.load(2);
    world.load(0);
    let (_, last) = world.load(1);
    let bound: Vec<u64> = last
        .iter()
        .filter_map(|action| if let Action::BindStore { worker, .. } = action { Some(worker.get()) } else { None })
        .collect();
    // Workers 1, 2 and 3 are ranks 2, 0 and 1.
    assert_eq!(bound, [2]);
    assert_eq!(forms(&last), [(2, 3, 0), (3, 3, 1), (1, 3, 2)]);
    assert!(world.fleet.is_ready());
}

#[test]
fn a_worker_without_its_steps_stream_is_not_counted() {
    let mut world = World::new(config(1, false));
    let worker = world.worker_id();
    world.feed(Input::Join(worker, join(0)));
    world.feed(Input::Loaded(worker, loaded()));
    assert!(!world.fleet.is_ready());
    world.feed(Input::Attached(worker));
    assert!(world.fleet.is_ready());
}

#[test]
fn who_differs_is_refused_with_the_field_and_both_values() {
    let mut world = World::new(config(2, false));
    world.load(0);
    let cases: [(Join, &str); 8] = [
        (Join { join_token: "guess".to_owned(), ..join(1) }, "join_token"),
        (Join { protocol_hash: "old".to_owned(), ..join(1) }, "protocol_hash"),
        (Join { tp_rank: 1, ..join(1) }, "tp_rank"),
        (Join { checkpoint_digest: "others".to_owned(), ..join(1) }, "checkpoint_digest"),
        (Join { tokenizer_digest: "others".to_owned(), ..join(1) }, "tokenizer_digest"),
        (Join { dp_rank: 2, ..join(1) }, "dp_rank"),
        (Join { dp_rank: u32::MAX, ..join(1) }, "dp_rank"),
        (join(0), "dp_rank"),
    ];
    for (wrong, expected_field) in cases {
        let worker = world.worker_id();
        let actions = world.feed(Input::Join(worker, wrong));
        let rejected = actions.iter().find_map(|action| match action {
            Action::RejectJoin { worker: who, field, expected, got } if *who == worker => Some((*field, expected, got)),
            _ => None,
        });
        let (field, expected, got) = rejected.unwrap_or_else(|| panic!("{expected_field}: {actions:?}"));
        assert_eq!(field, expected_field);
        assert_ne!(expected, got);
        assert!(!expected.contains("secret") && !got.contains("guess"), "the token is repeated");
    }
    world.load(1);
    assert!(world.fleet.is_ready());
}

#[test]
fn the_sizes_are_the_least_and_bind_who_comes_later() {
    let mut world = World::new(config(2, false));
    world.load(0);
    let worker = world.worker_id();
    world.feed(Input::Join(worker, join(1)));
    world.feed(Input::Attached(worker));
    world.feed(Input::Loaded(worker, Loaded { num_blocks: 20, ..loaded() }));
    assert_eq!(world.fleet.limits().map(|limits| limits.num_blocks), Some(20));
    assert!(world.fleet.is_ready());

    world.feed(Input::Lost(worker, "gone".to_owned()));
    let smaller = world.worker_id();
    world.feed(Input::Join(smaller, join(1)));
    let actions = world.feed(Input::Loaded(smaller, Loaded { num_blocks: 19, ..loaded() }));
    let stopped = actions.iter().find_map(|action| match action {
        Action::StopWorker { worker, reason } if *worker == smaller => Some(reason.clone()),
        _ => None,
    });
    let reason = stopped.expect("it cannot serve");
    assert!(reason.contains("num_blocks: expected at least 20, got 19"), "{reason}");
    world.load(1);
    assert!(world.fleet.is_ready());
}

#[test]
fn different_vocabularies_are_fatal() {
    let mut world = World::new(config(2, false));
    world.load(0);
    let worker = world.worker_id();
    world.feed(Input::Join(worker, join(1)));
    world.feed(Input::Attached(worker));
    let actions = world.feed(Input::Loaded(worker, Loaded { vocab_size: 51, ..loaded() }));
    assert!(matches!(actions.last(), Some(Action::Fatal { message }) if message.contains("vocab_size: 50 and 51")));
}

#[test]
fn f05_a_start_that_takes_too_long_names_the_ranks() {
    let mut slow = config(3, false);
    slow.deadlines.start_ms = 5_000;
    let mut world = World::new(slow);
    world.load(1);
    assert!(world.feed(Input::Tick(5_000)).is_empty());
    let actions = world.feed(Input::Tick(5_001));
    match actions.as_slice() {
        [Action::Fatal { message }] => assert!(message.starts_with("dp0, dp1, dp2: not in service"), "{message}"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_loss_while_assembling_replaces_that_worker_only() {
    let mut world = World::new(config(2, true));
    let (first, _) = world.load(0);
    let worker = world.worker_id();
    world.feed(Input::Join(worker, join(1)));
    let actions = world.feed(Input::Lost(worker, "gone".to_owned()));
    assert!(actions.contains(&Action::Respawn { place: Place::new(DpRank::new(1), 0) }), "{actions:?}");
    assert!(!actions.iter().any(|action| matches!(action, Action::StopWorker { worker, .. } if *worker == first)));
    let (_, actions) = world.load(1);
    assert!(world.fleet.is_ready());
    assert!(actions.iter().any(|action| matches!(action, Action::Form { epoch, .. } if *epoch == Epoch::new(1))));
}

#[test]
fn a_contract_that_the_plans_would_break_is_refused_with_both_values() {
    let trtllm = Contract {
        name: "trtllm-mla".to_owned(),
        uniform_query_len_max: 32,
        block_sizes: vec![32, 64],
        table_alignment: 4,
    };
    let cases = [
        (Contract { block_sizes: vec![], ..trtllm.clone() }, None),
        (trtllm.clone(), Some("attention contract trtllm-mla: block_size: expected one of [32, 64], got 16")),
        (Contract { block_sizes: vec![], table_alignment: 3, ..trtllm }, Some("expected a multiple of 3, got 8")),
    ];
    for (contract, expected) in cases {
        let mut world = World::new(config(1, false));
        let worker = world.worker_id();
        world.feed(Input::Join(worker, join(0)));
        world.feed(Input::Attached(worker));
        let actions = world.feed(Input::Loaded(worker, Loaded { contract, ..loaded() }));
        assert_eq!(world.fleet.is_ready(), expected.is_none());
        assert!(expected.is_none_or(|expected| format!("{actions:?}").contains(expected)), "{actions:?}");
    }
}
