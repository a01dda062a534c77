//! Ranks of several workers: one plan for all of them, one reply, and the others' word that they did the same.

use paceline_fleet::{
    Action, AnswerBody, Config, Dispatch, Encoded, Input, Join, Loaded, RankState, StepAnswer, TpEcho,
};
use paceline_fleet::{Place, WorkerId};
use paceline_plan::{DpRank, Epoch};

use crate::assembly::forms;
use crate::world::{World, config, failed, join_tp, loaded, respawned_places, spec};

fn shared(dp_size: u32, lockstep: bool) -> Config {
    Config { tp_size: 2, ..config(dp_size, lockstep) }
}

fn worker_at(world: &World, dp_rank: u32, tp_rank: u32) -> WorkerId {
    let place = Place::new(DpRank::new(dp_rank), tp_rank);
    let found = world.tables.keys().find(|worker| world.places[worker] == place);
    *found.expect("a live worker is there")
}

/// Sends a step of a fleet with one request, and gives every worker's answer.
fn answers(world: &mut World) -> (Dispatch, Encoded, Vec<(WorkerId, StepAnswer)>) {
    let (dispatch, encoded) = world.dispatch().expect("work");
    let workers: Vec<WorkerId> = encoded.rank_parts.iter().map(|(worker, _)| *worker).collect();
    let answers = workers.into_iter().map(|worker| (worker, world.answer(&dispatch, &encoded, worker))).collect();
    (dispatch, encoded, answers)
}

fn echo_of(answer: &mut StepAnswer) -> &mut TpEcho {
    match answer.body.as_mut().expect("valid") {
        AnswerBody::Echo(echo) => echo,
        AnswerBody::Rows(reply) => panic!("{reply:?}"),
    }
}

fn delivered(actions: &[Action]) -> usize {
    actions.iter().filter(|action| matches!(action, Action::Tokens { .. })).count()
}

#[test]
fn workers_of_ranks_of_their_own_meet_in_any_order() {
    for order in [[(0, 0), (0, 1), (1, 0), (1, 1)], [(1, 1), (0, 1), (1, 0), (0, 0)]] {
        let mut world = World::new(shared(2, false));
        let mut last = Vec::new();
        for (dp_rank, tp_rank) in order {
            assert!(!world.fleet.is_ready());
            last = world.load_tp(dp_rank, tp_rank).1;
        }
        assert!(world.fleet.is_ready());
        let mut met: Vec<(Place, u32, u32)> =
            forms(&last).iter().map(|(id, size, rank)| (world.places[&WorkerId::new(*id)], *size, *rank)).collect();
        met.sort_unstable();
        let at = |dp_rank, tp_rank| Place::new(DpRank::new(dp_rank), tp_rank);
        assert_eq!(met, [(at(0, 0), 2, 0), (at(0, 1), 2, 1), (at(1, 0), 2, 0), (at(1, 1), 2, 1)]);
        let binds = last.iter().filter(|action| matches!(action, Action::BindStore { .. })).count();
        assert_eq!(binds, 2, "each group has a store of its own");
    }
}

#[test]
fn a_lockstep_group_is_one_world_of_all_workers() {
    let mut world = World::ready(shared(2, true));
    let ranks = world.fleet.ranks();
    assert_eq!(ranks.iter().map(|rank| rank.workers.len()).collect::<Vec<_>>(), [2, 2]);
    let lost = worker_at(&world, 1, 1);
    world.feed(Input::Lost(lost, "gone".to_owned()));
    let mut last = Vec::new();
    for (dp_rank, tp_rank) in [(1, 0), (0, 1), (0, 0), (1, 1)] {
        last = world.load_tp(dp_rank, tp_rank).1;
    }
    let mut met: Vec<(Place, u32, u32)> =
        forms(&last).iter().map(|(id, size, rank)| (world.places[&WorkerId::new(*id)], *size, *rank)).collect();
    met.sort_unstable();
    assert_eq!(met.iter().map(|(_, size, rank)| (*size, *rank)).collect::<Vec<_>>(), [(4, 0), (4, 1), (4, 2), (4, 3)]);
}

#[test]
fn places_are_taken_once_and_have_to_exist() {
    let mut world = World::new(shared(1, false));
    world.load_tp(0, 0);
    let refused = |world: &mut World, join: Join| {
        let worker = world.worker_id();
        let actions = world.feed(Input::Join(worker, join));
        actions.into_iter().find_map(|action| match action {
            Action::RejectJoin { field, expected, got, .. } => Some(format!("{field}: {expected}, {got}")),
            _ => None,
        })
    };
    assert_eq!(refused(&mut world, join_tp(0, 2)).as_deref(), Some("tp_rank: below 2, 2"));
    let taken = "tp_rank: a rank without a worker, dp0 tp0, taken by process 1000";
    assert_eq!(refused(&mut world, join_tp(0, 0)).as_deref(), Some(taken));
    assert_eq!(refused(&mut world, join_tp(0, 1)), None);
}

#[test]
fn the_capacity_is_the_least_of_all_workers() {
    let mut world = World::new(shared(1, false));
    world.load_tp(0, 0);
    let worker = world.worker_id();
    world.feed(Input::Join(worker, join_tp(0, 1)));
    world.feed(Input::Attached(worker));
    let states: Vec<RankState> = world.fleet.ranks()[0].workers.iter().map(|worker| worker.state).collect();
    assert_eq!(
        (states, world.fleet.ranks()[0].state),
        (vec![RankState::Loaded, RankState::Loading], RankState::Loading)
    );
    world.feed(Input::Loaded(worker, Loaded { num_blocks: 11, ..loaded() }));
    assert_eq!(world.fleet.limits().map(|limits| limits.num_blocks), Some(11));
    assert!(world.fleet.is_ready());
}

#[test]
fn every_worker_of_a_rank_gets_the_same_bytes_and_tokens_wait_for_the_last() {
    for last in 0..4 {
        let mut world = World::ready(shared(2, true));
        world.feed(spec(1, Some(0)));
        let (_, encoded, mut answers) = answers(&mut world);
        assert_eq!(encoded.rank_parts[0].1, encoded.rank_parts[1].1);
        assert_eq!(encoded.rank_parts[2].1, encoded.rank_parts[3].1);
        let (late, late_answer) = answers.remove(last);
        let mut tokens = 0;
        for (worker, answer) in answers {
            tokens += delivered(&world.feed(Input::Reply(worker, answer)));
        }
        // The idle rank 1 holds up nobody's tokens, the other worker of rank 0 does.
        assert_eq!(tokens, usize::from(last >= 2));
        assert!(world.dispatch().is_none(), "a worker is still at it");
        tokens += delivered(&world.feed(Input::Reply(late, late_answer)));
        assert_eq!(tokens, 1);
        assert!(world.dispatch().is_some());
    }
}

#[test]
fn workers_that_sample_different_tokens_are_a_fault_that_names_both_digests() {
    for reversed in [false, true] {
        let mut world = World::ready(shared(1, false));
        world.feed(spec(1, None));
        let (_, _, mut answers) = answers(&mut world);
        let expected = echo_of(&mut answers[1].1).tokens_digest;
        echo_of(&mut answers[1].1).tokens_digest = 7;
        if reversed {
            answers.reverse();
        }
        let mut actions = Vec::new();
        for (worker, answer) in answers {
            actions.extend(world.feed(Input::Reply(worker, answer)));
        }
        assert_eq!((failed(&actions), delivered(&actions)), (vec![1], 0));
        assert_eq!(respawned_places(&actions), [(0, 0), (0, 1)]);
        let told = format!("dp0 tp1: false reply to step 1: tokens digest: expected {expected}, got 7");
        assert!(format!("{actions:?}").contains(&told), "{actions:?}");
    }
}

#[test]
fn passes_and_collectives_are_equal_on_all_workers() {
    for (change, expected) in [
        ((|echo| echo.passes = 2) as fn(&mut TpEcho), "dp0 tp1: false reply to step 1: passes: expected 1, got 2"),
        (|echo| echo.collectives = 5, "dp0 tp1: false reply to step 1: collectives: expected 0, got 5"),
    ] {
        let mut world = World::ready(shared(1, false));
        world.feed(spec(1, None));
        let (_, _, mut answers) = answers(&mut world);
        change(echo_of(&mut answers[1].1));
        let mut actions = Vec::new();
        for (worker, answer) in answers {
            actions.extend(world.feed(Input::Reply(worker, answer)));
        }
        assert!(format!("{actions:?}").contains(expected), "{actions:?}");
    }
}

#[test]
fn a_body_comes_from_the_first_worker_and_only_from_it() {
    for (first, second, expected) in [(0, 1, "dp0 tp0"), (1, 0, "dp0 tp1")] {
        let mut world = World::ready(shared(1, false));
        world.feed(spec(1, None));
        let (_, _, answers) = answers(&mut world);
        let swapped = StepAnswer { body: answers[second].1.body.clone(), ..answers[first].1.clone() };
        let actions = world.feed(Input::Reply(answers[first].0, swapped));
        let told = format!("{expected}: false reply to step 1: body");
        assert!(format!("{actions:?}").contains(&told), "{actions:?}");
    }
}

#[test]
fn losing_one_worker_loses_its_rank_and_its_rank_only() {
    let mut world = World::ready(shared(2, false));
    world.feed(spec(0, Some(0)));
    world.feed(spec(1, Some(1)));
    world.step();
    let lost = worker_at(&world, 1, 1);
    let other = worker_at(&world, 1, 0);
    let actions = world.feed(Input::Lost(lost, "its stream broke".to_owned()));
    assert_eq!(failed(&actions), [1]);
    assert_eq!(respawned_places(&actions), [(1, 0), (1, 1)]);
    assert!(actions.iter().any(|action| matches!(action, Action::StopWorker { worker, .. } if *worker == other)));
    assert!(format!("{actions:?}").contains("dp1 tp1: worker lost: its stream broke"));
    while world.step().is_some() {}
    assert_eq!(world.fleet.counters().finished, 1);
    world.load_tp(1, 1);
    assert!(!world.fleet.is_ready());
    let (_, actions) = world.load_tp(1, 0);
    assert!(world.fleet.is_ready());
    assert!(actions.iter().any(|action| matches!(action, Action::Form { epoch, .. } if *epoch == Epoch::new(2))));
    assert_eq!(world.fleet.ranks()[1].restarts, 1);
}

#[test]
fn a_loss_before_the_workers_meet_replaces_that_worker_only() {
    let mut world = World::new(shared(1, false));
    world.load_tp(0, 0);
    let worker = world.worker_id();
    world.feed(Input::Join(worker, join_tp(0, 1)));
    let place = Place::new(DpRank::new(0), 1);
    let actions = world.feed(Input::Exited(place, join_tp(0, 1).process_id, "its process ended".to_owned()));
    assert_eq!(respawned_places(&actions), [(0, 1)]);
    world.load_tp(0, 1);
    assert!(world.fleet.is_ready());
}

#[test]
fn silence_and_slow_steps_name_the_worker() {
    let mut slow = shared(1, false);
    (slow.deadlines.step_ms, slow.deadlines.step_token_us) = (1_000, 0);
    let mut world = World::ready(slow);
    world.feed(spec(1, None));
    let (_, _, answers) = answers(&mut world);
    world.feed(Input::Reply(answers[0].0, answers[0].1.clone()));
    assert_eq!(world.feed(Input::Tick(1_000)), []);
    let actions = world.feed(Input::Tick(1_001));
    assert!(format!("{actions:?}").contains("dp0 tp1: worker lost: no answer to step 1"), "{actions:?}");
}

#[test]
fn a_worker_that_does_not_meet_its_peers_in_time_is_lost() {
    let mut config = shared(1, false);
    config.deadlines.start_ms = 60_000;
    let mut world = World::ready(config);
    let lost = worker_at(&world, 0, 0);
    world.feed(Input::Lost(lost, "gone".to_owned()));
    let (mut first, mut forming) = (None, Vec::new());
    for tp_rank in 0..2 {
        let worker = world.worker_id();
        world.fleet.handle(Input::Join(worker, join_tp(0, tp_rank)));
        world.fleet.handle(Input::Attached(worker));
        forming = world.fleet.handle(Input::Loaded(worker, loaded()));
        first.get_or_insert(worker);
    }
    let first = first.expect("two workers");
    assert!(matches!(forming.last(), Some(Action::BindStore { worker, .. }) if *worker == first), "{forming:?}");
    let address = paceline_fleet::StoreAddress { host: "here".to_owned(), port: 7 };
    world.fleet.handle(Input::StoreBound(first, Epoch::new(2), address));
    world.fleet.handle(Input::Formed(first, Epoch::new(2)));
    for now_ms in (0..=60_000).step_by(1_000) {
        assert_eq!(world.fleet.handle(Input::Tick(now_ms)), []);
    }
    let actions = world.fleet.handle(Input::Tick(60_001));
    assert!(format!("{actions:?}").contains("dp0 tp1: worker lost: did not meet its peers within 60 s"), "{actions:?}");
    assert_eq!(respawned_places(&actions), [(0, 0), (0, 1)]);
}
