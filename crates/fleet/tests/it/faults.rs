//! Losses, refusals, lies, silence; and the way back.

use paceline_fleet::{Action, FailureKind, Input, Place, PlanRefusal, RankState, StepAnswer};
use paceline_plan::{DpRank, Epoch, Error, StepId};

use crate::world::{World, config, failed, join, reply_of, respawned, spec};

#[test]
fn a_lost_rank_of_its_own_takes_only_its_requests() {
    let mut world = World::ready(config(2, false));
    for id in 0..4 {
        world.feed(spec(id, Some((id % 2) as u32)));
    }
    world.step();
    world.step();
    let worker = *world.tables.keys().nth(1).expect("two workers");
    let actions = world.feed(Input::Lost(worker, "its stream broke".to_owned()));
    assert_eq!(failed(&actions), [1, 3]);
    assert_eq!(respawned(&actions), [1]);
    let states: Vec<_> = world.fleet.ranks().iter().map(|rank| rank.state).collect();
    assert_eq!(states, [RankState::Ready, RankState::Recovering]);
    let text = format!("{actions:?}");
    assert!(text.contains("dp1: worker lost: its stream broke"), "{text}");
    while world.step().is_some() {}
    assert_eq!(world.fleet.counters().finished, 2);
    let (_, actions) = world.load(1);
    assert!(world.fleet.is_ready());
    assert!(actions.iter().any(|action| matches!(action, Action::Form { epoch, .. } if *epoch == Epoch::new(2))));
    assert_eq!(world.fleet.ranks()[1].restarts, 1);
}

#[test]
fn a_lockstep_group_ends_and_comes_back_as_one() {
    let mut world = World::ready(config(3, true));
    for id in 0..3 {
        world.feed(spec(id, None));
    }
    let (dispatch, encoded) = world.dispatch().expect("work");
    let workers: Vec<_> = world.tables.keys().copied().collect();
    let late = world.answer(&dispatch, &encoded, workers[2]);
    let actions = world.feed(Input::Lost(workers[0], "gone".to_owned()));
    let mut ended = failed(&actions);
    ended.sort_unstable();
    assert_eq!(ended, [0, 1, 2]);
    assert_eq!(respawned(&actions), [0, 1, 2]);
    // What a worker that was let go of still says means nothing.
    assert_eq!(world.feed(Input::Reply(workers[2], late)), []);
    assert_eq!(world.feed(Input::Lost(workers[1], "gone too".to_owned())), []);
    for dp_rank in 0..3 {
        assert!(!world.fleet.is_ready());
        world.load(dp_rank);
    }
    world.feed(spec(9, Some(2)));
    let (dispatch, _) = world.dispatch().expect("work");
    assert_eq!((dispatch.plan().group().epoch(), dispatch.plan().group().step()), (Epoch::new(2), StepId::new(1)));
}

fn false_reply(change: impl Fn(&mut StepAnswer)) -> String {
    let mut world = World::ready(config(2, true));
    world.feed(spec(1, Some(0)));
    let (dispatch, encoded) = world.dispatch().expect("work");
    let workers: Vec<_> = world.tables.keys().copied().collect();
    let mut answer = world.answer(&dispatch, &encoded, workers[1]);
    change(&mut answer);
    let actions = world.feed(Input::Reply(workers[1], answer));
    assert_eq!(respawned(&actions), [0, 1]);
    let message = actions.iter().find_map(|action| match action {
        Action::Fail { kind: FailureKind::Internal, message, .. } => Some(message.clone()),
        _ => None,
    });
    message.expect("the request fails")
}

#[test]
fn a_false_reply_is_a_fault_that_names_the_rank_the_step_and_both_values() {
    for (change, expected) in [
        ((|answer| answer.digest ^= 1) as fn(&mut StepAnswer), "digest"),
        (|answer| answer.step = StepId::new(2), "step: expected 1, got 2"),
        (|answer| answer.epoch = Epoch::new(7), "epoch: expected 1, got 7"),
        (|answer| reply_of(answer).passes = 3, "passes: expected 1, got 3"),
        (|answer| reply_of(answer).dp_rank = DpRank::new(0), "dp_rank: expected 1, got 0"),
        (|answer| answer.body = Err(Error::Decode { message: "cut".to_owned() }), "decode: cut"),
    ] {
        let message = false_reply(change);
        assert!(message.starts_with("dp1: false reply to step 1: ") && message.contains(expected), "{message}");
    }
}

#[test]
fn ranks_that_enter_different_numbers_of_collectives_are_a_fault() {
    let mut world = World::ready(config(2, true));
    world.feed(spec(1, Some(0)));
    let (dispatch, encoded) = world.dispatch().expect("work");
    let workers: Vec<_> = world.tables.keys().copied().collect();
    let mut answers: Vec<StepAnswer> =
        workers.iter().map(|worker| world.answer(&dispatch, &encoded, *worker)).collect();
    reply_of(&mut answers[1]).collectives = 4;
    let second = answers.pop().expect("two");
    assert_eq!(failed(&world.feed(Input::Reply(workers[0], answers.remove(0)))), []);
    let actions = world.feed(Input::Reply(workers[1], second));
    assert_eq!(failed(&actions), [1]);
    assert!(format!("{actions:?}").contains("collectives: expected 0, got 4"));
}

#[test]
fn a_second_reply_to_one_step_is_a_fault() {
    let mut world = World::ready(config(2, true));
    world.feed(spec(1, Some(0)));
    let (dispatch, encoded) = world.dispatch().expect("work");
    let worker = *world.tables.keys().next().expect("two workers");
    let answer = world.answer(&dispatch, &encoded, worker);
    world.feed(Input::Reply(worker, answer.clone()));
    assert_eq!(respawned(&world.feed(Input::Reply(worker, answer))), [0, 1]);
}

#[test]
fn a_refused_plan_is_logged_with_rule_rank_step_and_both_numbers() {
    let mut world = World::ready(config(1, false));
    world.feed(spec(1, None));
    world.dispatch().expect("work");
    let worker = *world.tables.keys().next().expect("one worker");
    let refusal = PlanRefusal {
        epoch: Epoch::new(1),
        step: StepId::new(1),
        rule: "rule 4".to_owned(),
        field: "rows_padded".to_owned(),
        expected: 4,
        got: 3,
    };
    let actions = world.feed(Input::Refused(worker, refusal));
    assert_eq!(failed(&actions), [1]);
    let line = "dp0: refused the plan of step 1: rule 4: rows_padded: expected 4, got 3";
    assert!(actions.iter().any(|action| matches!(action, Action::Log { message, .. } if message.starts_with(line))));
    assert_eq!(world.fleet.counters().refused_plans, 1);
}

#[test]
fn silence_is_a_loss_but_our_own_absence_is_not() {
    let mut world = World::ready(config(2, false));
    let workers: Vec<_> = world.tables.keys().copied().collect();
    for now_ms in (0..=5_000).step_by(100) {
        assert_eq!(world.feed(Input::Tick(now_ms)), []);
        world.feed(Input::Heartbeat(workers[0]));
    }
    let actions = world.feed(Input::Tick(5_100));
    assert_eq!(respawned(&actions), [1]);
    assert!(format!("{actions:?}").contains("dp1: worker lost: no heartbeat for 5000 ms"));
    world.load(1);
    // Ten seconds without a tick: this process stood still, not the workers.
    assert_eq!(world.feed(Input::Tick(15_100)), []);
    assert!(world.fleet.is_ready());
}

#[test]
fn a_step_past_its_limit_blames_who_has_not_answered() {
    let mut config = config(2, true);
    (config.deadlines.step_ms, config.deadlines.step_token_us) = (1_000, 1_000);
    let mut world = World::ready(config);
    world.feed(spec(1, Some(0)));
    let (dispatch, encoded) = world.dispatch().expect("work");
    let worker = *world.tables.keys().next().expect("two workers");
    let answer = world.answer(&dispatch, &encoded, worker);
    world.feed(Input::Reply(worker, answer));
    // Three prompt tokens: 3 ms more.
    assert_eq!(world.feed(Input::Tick(1_003)), []);
    let actions = world.feed(Input::Tick(1_004));
    assert!(format!("{actions:?}").contains("dp1: worker lost: no answer to step 1 within its limit"), "{actions:?}");
}

#[test]
fn an_ended_process_is_reported_once() {
    let mut world = World::ready(config(1, false));
    let worker = *world.tables.keys().next().expect("one worker");
    let place = Place::new(DpRank::new(0), 0);
    let exited = |process_id| Input::Exited(place, process_id, "its process ended (signal: 9)".to_owned());
    // Another process of the same rank is not this worker.
    assert_eq!(world.feed(exited(1)), []);
    assert_eq!(respawned(&world.feed(exited(join(0).process_id))), [0]);
    assert_eq!(world.feed(Input::Lost(worker, "broken".to_owned())), []);
    assert_eq!(world.feed(exited(join(0).process_id)), []);
    // The next one ends before it joins.
    assert_eq!(respawned(&world.feed(exited(2))), [0]);
}

#[test]
fn a_worker_that_ends_while_the_fleet_starts_is_fatal_where_we_start_workers() {
    for joins in [false, true] {
        let mut world = World::new(paceline_fleet::Config { fatal_start: true, ..config(2, true) });
        world.load(0);
        if joins {
            let worker = world.worker_id();
            world.feed(Input::Join(worker, join(1)));
        }
        let how = "its process ended (exit status: 1)".to_owned();
        let actions = world.feed(Input::Exited(Place::new(DpRank::new(1), 0), join(1).process_id, how));
        let fatal = actions.iter().find_map(|action| match action {
            Action::Fatal { message } => Some(message),
            _ => None,
        });
        let message = fatal.expect("fatal");
        assert!(message.starts_with("dp1: ") && message.contains("exit status: 1"), "{message}");
    }
}
