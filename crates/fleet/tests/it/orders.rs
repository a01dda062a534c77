//! What operators ask: pause, resume, drain.

use paceline_fleet::{Action, Declined, Gate, Input, Order};
use paceline_plan::DpRank;
use paceline_scheduler::RequestId;

use crate::world::{World, config, failed, spec};

fn gate(world: &mut World, only: Option<u32>, gate: Gate) {
    world.feed(Input::Order(Order::Gate(only.map(DpRank::new), gate)));
}

fn refusal(actions: &[Action]) -> Option<String> {
    actions.iter().find_map(|action| match action {
        Action::Answer { answer: Err(Declined::Unavailable(message)), .. } => Some(message.clone()),
        _ => None,
    })
}

fn finished(world: &World) -> u64 {
    world.fleet.counters().finished
}

fn run(world: &mut World) -> u32 {
    let mut steps = 0;
    while world.step().is_some() {
        steps += 1;
    }
    steps
}

#[test]
fn a11_a_pause_of_an_idle_fleet_runs_nothing_and_is_done_at_once() {
    let mut world = World::ready(config(4, true));
    for state in [Gate::Paused, Gate::Finishing] {
        gate(&mut world, None, state);
        assert!(world.fleet.is_at_rest(None));
        assert_eq!(run(&mut world), 0);
    }
}

#[test]
fn a13_nothing_runs_between_a_pause_and_its_end_in_any_order() {
    for order in 0..6 {
        let mut world = World::ready(config(2, true));
        let mut events = vec!["pause", "request", "another"];
        events.rotate_left(order % 3);
        if order >= 3 {
            events.swap(0, 1);
        }
        let mut steps = 0;
        for event in events {
            match event {
                "pause" => {
                    gate(&mut world, None, Gate::Paused);
                    assert!(world.fleet.is_at_rest(None), "every step is answered here");
                }
                "request" => assert_eq!(refusal(&world.feed(spec(1, Some(0)))), None, "it waits"),
                _ => assert_eq!(refusal(&world.feed(spec(2, None))), None, "it waits"),
            }
            let is_paused = world.fleet.gate(DpRank::new(0)) == Gate::Paused;
            steps += u32::from(world.step().is_some());
            assert!(!is_paused || world.step().is_none(), "{order}");
        }
        assert!(steps < 3 && finished(&world) == 0);
        gate(&mut world, None, Gate::Open);
        run(&mut world);
        assert_eq!(finished(&world), 2);
    }
}

#[test]
fn a13_a_pause_has_come_to_rest_when_the_step_in_flight_is_answered() {
    let mut world = World::ready(config(2, true));
    world.feed(spec(1, None));
    let (dispatch, encoded) = world.dispatch().expect("work");
    gate(&mut world, None, Gate::Paused);
    assert!(!world.fleet.is_at_rest(None));
    let workers: Vec<_> = world.tables.keys().copied().collect();
    for worker in workers {
        let answer = world.answer(&dispatch, &encoded, worker);
        world.feed(Input::Reply(worker, answer));
    }
    assert!(world.fleet.is_at_rest(None) && world.step().is_none());
}

#[test]
fn a16_a_second_resume_beside_a_request_changes_nothing() {
    for order in 0..3 {
        let mut world = World::ready(config(2, true));
        gate(&mut world, None, Gate::Paused);
        for index in 0..3 {
            if index == order {
                world.feed(spec(1, None));
            } else {
                gate(&mut world, None, Gate::Open);
            }
            world.step();
        }
        run(&mut world);
        assert_eq!(finished(&world), 1);
    }
}

#[test]
fn a_rank_that_finishes_ends_what_it_runs_and_lets_new_requests_wait() {
    let mut world = World::ready(config(2, false));
    world.feed(spec(1, Some(0)));
    world.step().expect("a first step");
    gate(&mut world, Some(0), Gate::Finishing);
    assert!(!world.fleet.is_at_rest(Some(DpRank::new(0))) && world.fleet.is_at_rest(Some(DpRank::new(1))));
    world.feed(spec(2, Some(0)));
    world.feed(spec(3, None));
    run(&mut world);
    assert!(world.fleet.is_at_rest(Some(DpRank::new(0))));
    assert_eq!(finished(&world), 2, "the second waits");
    gate(&mut world, Some(0), Gate::Open);
    run(&mut world);
    assert_eq!(finished(&world), 3);
}

#[test]
fn f01_a_fleet_that_drains_ends_what_it_took_and_takes_nothing_more() {
    let mut world = World::ready(config(2, true));
    // More than have seats.
    for id in 0..12 {
        world.feed(spec(id, None));
    }
    world.step().expect("a first step");
    gate(&mut world, None, Gate::Draining);
    assert!(world.fleet.is_draining() && !world.fleet.is_at_rest(None));
    let message = refusal(&world.feed(spec(12, None))).expect("refused");
    assert!(message.contains("drains"), "{message}");
    run(&mut world);
    assert_eq!(finished(&world), 12);
    assert!(world.fleet.is_at_rest(None));
    gate(&mut world, None, Gate::Open);
    assert_eq!(refusal(&world.feed(spec(13, None))), None);
}

#[test]
fn g09_a_request_pinned_to_a_rank_that_drains_is_refused_and_not_moved() {
    let mut world = World::ready(config(2, false));
    for id in 0..6 {
        world.feed(spec(id, Some(1)));
    }
    world.step().expect("four of them start");
    world.step();
    let actions = world.feed(Input::Order(Order::Gate(Some(DpRank::new(1)), Gate::Draining)));
    assert_eq!(failed(&actions), [4, 5], "they waited for this rank only");
    assert_eq!(refusal(&world.feed(spec(6, Some(1)))), Some("dp1 drains: it takes no new request".to_owned()));
    assert_eq!(refusal(&world.feed(spec(7, None))), None);
    world.step();
    assert_eq!(world.fleet.scheduler().expect("ready").dp_rank_of(RequestId(7)), Some(DpRank::new(0)));
    run(&mut world);
    assert_eq!(finished(&world), 5);
    gate(&mut world, Some(0), Gate::Draining);
    assert!(refusal(&world.feed(spec(8, None))).is_some_and(|message| message.contains("every rank")));
}

#[test]
fn a_gate_outlives_the_recovery_of_its_rank() {
    let mut world = World::ready(config(1, false));
    gate(&mut world, None, Gate::Paused);
    let worker = *world.tables.keys().next().expect("one worker");
    world.feed(Input::Lost(worker, "gone".to_owned()));
    world.load(0);
    assert_eq!(refusal(&world.feed(spec(1, None))), None);
    assert_eq!(run(&mut world), 0);
    gate(&mut world, None, Gate::Open);
    assert!(run(&mut world) > 0);
}
