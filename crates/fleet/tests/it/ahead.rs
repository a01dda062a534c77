//! Steps that are sent before the one before them is answered (rule 16): order, deadlines, and what a fault ends.

use paceline_fleet::{Action, Config, Deadlines, Dispatch, Encoded, Input, WorkerId};
use paceline_plan::{Epoch, StepId};

use crate::world::{World, config, failed, respawned, spec};

fn one_ahead(dp_size: u32) -> Config {
    Config { depth: 1, ..config(dp_size, true) }
}

/// A fleet with a step of prompts and the step after it in flight.
fn two_in_flight(config: Config) -> (World, Vec<(Dispatch, Encoded)>) {
    let dp_size = config.dp_size;
    let mut world = World::ready(config);
    for dp_rank in 0..dp_size {
        world.feed(spec(dp_rank.into(), Some(dp_rank)));
    }
    let sent: Vec<_> = std::iter::from_fn(|| world.dispatch()).collect();
    let steps: Vec<_> = sent.iter().map(|(dispatch, _)| dispatch.plan().group().step().get()).collect();
    assert_eq!(steps, [1, 2], "one step runs, one is ahead, and no more");
    (world, sent)
}

fn workers(world: &World) -> Vec<WorkerId> {
    world.tables.keys().copied().collect()
}

fn tokens(actions: &[Action]) -> Vec<u64> {
    let id = |action: &Action| if let Action::Tokens { request, .. } = action { Some(request.0) } else { None };
    actions.iter().filter_map(id).collect()
}

#[test]
fn ranks_may_answer_the_second_step_before_another_has_answered_the_first() {
    let (mut world, sent) = two_in_flight(one_ahead(2));
    let [first, second] = workers(&world)[..] else { panic!("two workers") };
    for (dispatch, encoded) in &sent {
        let answer = world.answer(dispatch, encoded, first);
        assert_eq!(tokens(&world.feed(Input::Reply(first, answer))), [0]);
        assert!(world.dispatch().is_none(), "two steps are in flight until the other rank has answered one");
    }
    let answer = world.answer(&sent[0].0, &sent[0].1, second);
    assert_eq!(tokens(&world.feed(Input::Reply(second, answer))), [1]);
    let (third, _) = world.dispatch().expect("step 1 is answered");
    assert_eq!(third.plan().group().step(), StepId::new(3));
    assert!(world.dispatch().is_none());
}

#[test]
fn a_worker_that_answers_out_of_turn_is_a_fault() {
    let (mut world, sent) = two_in_flight(one_ahead(2));
    let worker = workers(&world)[0];
    world.answer(&sent[0].0, &sent[0].1, worker);
    let answer = world.answer(&sent[1].0, &sent[1].1, worker);
    let actions = world.feed(Input::Reply(worker, answer));
    assert_eq!(respawned(&actions), [0, 1]);
    assert!(format!("{actions:?}").contains("dp0: false reply to step 1: step: expected 1, got 2"), "{actions:?}");
}

#[test]
fn a_fault_ends_both_steps_and_what_was_answered_of_them_stays() {
    let (mut world, sent) = two_in_flight(one_ahead(2));
    let [first, second] = workers(&world)[..] else { panic!("two workers") };
    let answer = world.answer(&sent[0].0, &sent[0].1, first);
    assert_eq!(tokens(&world.feed(Input::Reply(first, answer))), [0]);
    let late = world.answer(&sent[1].0, &sent[1].1, first);
    let actions = world.feed(Input::Lost(second, "gone".to_owned()));
    assert_eq!((failed(&actions), respawned(&actions)), (vec![0, 1], vec![0, 1]));
    assert_eq!(world.feed(Input::Reply(first, late)), [], "a late reply means nothing");
    for dp_rank in 0..2 {
        world.load(dp_rank);
    }
    world.feed(spec(9, Some(1)));
    let (dispatch, _) = world.dispatch().expect("work");
    assert_eq!((dispatch.plan().group().epoch(), dispatch.plan().group().step()), (Epoch::new(2), StepId::new(1)));
    world.fleet.scheduler().expect("in service").assert_consistent();
}

#[test]
fn a_step_that_was_sent_ahead_has_its_time_from_the_end_of_the_one_before() {
    let deadlines = Deadlines { step_ms: 1_000, step_token_us: 0, heartbeat_ms: u64::MAX, ..Deadlines::default() };
    let (mut world, sent) = two_in_flight(Config { deadlines, ..one_ahead(1) });
    let worker = workers(&world)[0];
    assert_eq!(world.feed(Input::Tick(900)), []);
    let answer = world.answer(&sent[0].0, &sent[0].1, worker);
    world.feed(Input::Reply(worker, answer));
    assert_eq!(world.feed(Input::Tick(1_800)), [], "the second step began when the first had ended");
    let actions = world.feed(Input::Tick(1_950));
    assert_eq!(respawned(&actions), [0]);
    assert!(format!("{actions:?}").contains("no answer to step 2 within its limit"), "{actions:?}");
}

#[test]
fn an_idle_fleet_has_nothing_in_flight_and_a_last_token_is_not_planned_twice() {
    let mut world = World::ready(one_ahead(2));
    world.feed(spec(1, Some(0)));
    let mut steps = 0;
    while world.step().is_some() {
        steps += 1;
    }
    // A prompt of 3 tokens and 20 tokens in all: one step for each, none of them in vain.
    assert_eq!((world.fleet.counters().steps, world.fleet.counters().finished), (20, 1));
    assert!(steps <= 20 && world.dispatch().is_none());
}
