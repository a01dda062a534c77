//! Requests: taken, refused, aborted, given up.

use paceline_fleet::{Action, Declined, Input};
use paceline_scheduler::RequestId;

use crate::world::{World, config, failed, spec};

fn declined(actions: &[Action]) -> Option<&Declined> {
    actions.iter().find_map(|action| match action {
        Action::Answer { answer: Err(declined), .. } => Some(declined),
        _ => None,
    })
}

#[test]
fn nothing_is_taken_before_a_rank_is_in_service() {
    let mut world = World::new(config(2, false));
    assert!(matches!(declined(&world.feed(spec(1, None))), Some(Declined::Unavailable(_))));
    world.load(0);
    world.load(1);
    assert_eq!(declined(&world.feed(spec(2, None))), None);
    assert!(matches!(declined(&world.feed(spec(3, Some(2)))), Some(Declined::Refused(_))));
    let counters = world.fleet.counters();
    assert_eq!((counters.accepted, counters.refused), (1, 2));
}

#[test]
fn g09_a_pinned_rank_that_is_out_of_service_is_unavailable_and_never_another() {
    let mut world = World::ready(config(2, false));
    let worker = *world.tables.keys().nth(1).expect("two workers");
    world.feed(Input::Lost(worker, "gone".to_owned()));
    let actions = world.feed(spec(1, Some(1)));
    assert_eq!(declined(&actions), Some(&Declined::Unavailable("dp1 is not in service".to_owned())));
    assert_eq!(declined(&world.feed(spec(2, None))), None);
}

#[test]
fn an_aborted_request_is_in_no_later_step() {
    let mut world = World::ready(config(1, false));
    world.feed(spec(1, None));
    world.step().expect("a first step");
    let actions = world.feed(Input::Abort(RequestId(1)));
    assert_eq!(actions, [Action::Aborted { request: RequestId(1) }]);
    assert_eq!(world.feed(Input::Abort(RequestId(1))), []);
    assert!(world.step().is_none());
    let stats = world.fleet.scheduler().expect("ready").stats();
    assert_eq!((stats.ranks[0].running, stats.ranks[0].blocks_used), (0, 0));
}

#[test]
fn an_abort_while_the_step_runs_gives_nothing_to_anyone() {
    let mut world = World::ready(config(1, false));
    world.feed(spec(1, None));
    let (dispatch, encoded) = world.dispatch().expect("work");
    world.feed(Input::Abort(RequestId(1)));
    let worker = *world.tables.keys().next().expect("one worker");
    let answer = world.answer(&dispatch, &encoded, worker);
    assert_eq!(world.feed(Input::Reply(worker, answer)), []);
    assert!(world.step().is_none());
}

#[test]
fn what_waits_for_a_rank_that_stays_away_ends_with_an_error() {
    let mut world = World::ready(config(1, false));
    for id in 0..6 {
        world.feed(spec(id, None));
    }
    world.step();
    let worker = *world.tables.keys().next().expect("one worker");
    // Four run and end at once; two wait.
    assert_eq!(failed(&world.feed(Input::Lost(worker, "gone".to_owned()))).len(), 4);
    for now_ms in (0..=8_000).step_by(1_000) {
        assert_eq!(failed(&world.feed(Input::Tick(now_ms))), []);
    }
    assert_eq!(failed(&world.feed(Input::Tick(8_100))), [4, 5]);
    assert_eq!(world.fleet.scheduler().expect("was ready").stats().waiting, 0);
}

#[test]
fn stopping_ends_every_request_and_every_worker() {
    let mut world = World::ready(config(2, false));
    for id in 0..3 {
        world.feed(spec(id, None));
    }
    world.step();
    let actions = world.feed(Input::Stop("the daemon stops".to_owned()));
    assert_eq!(failed(&actions), [0, 1, 2]);
    let stopped = actions.iter().filter(|action| matches!(action, Action::StopWorker { .. })).count();
    assert_eq!(stopped, 2);
    assert!(matches!(declined(&world.feed(spec(9, None))), Some(Declined::Unavailable(_))));
    assert!(world.dispatch().is_none());
}
