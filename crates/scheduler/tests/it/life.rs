//! Requests that are aborted, and groups that are lost.

use paceline_plan::{DpRank, GroupId};
use paceline_scheduler::{Config, RequestId};

use crate::world::{World, lockstep};

const GROUP: GroupId = GroupId::new(0);

#[test]
fn a23_the_last_request_is_gone_one_step_after_its_abort() {
    let mut world = World::new(lockstep(2, 4, 0));
    let id = world.submit(20, 100);
    world.step(0).expect("the prompt");
    let (_, pending) = world.launch(GROUP).expect("a decode");
    assert!(world.abort(id));
    assert!(!world.abort(id), "once");
    let stats = world.scheduler.stats();
    assert_eq!((stats.ranks[0].running, stats.ranks[0].blocks_used), (0, 2), "blocks are in use until the reply");
    assert!(world.scheduler.plan(GROUP).is_none());
    for reply in pending {
        assert!(world.deliver(reply).is_empty(), "the late reply is dropped whole");
    }
    assert!(world.step(0).is_none(), "no further step");
    world.assert_drained();
    assert_eq!(world.scheduler.stats().aborted, 1);
}

#[test]
fn an_abort_between_steps_frees_at_once() {
    let mut world = World::new(lockstep(1, 4, 0));
    let first = world.submit(20, 100);
    let waiting = (0..4).map(|_| world.submit(20, 100)).last().expect("four");
    world.step(0).expect("prompts");
    assert!(world.abort(waiting), "still in the queue");
    assert!(world.abort(first));
    assert_eq!(world.scheduler.stats().ranks[0].blocks_used, 6);
    assert!(!world.scheduler.abort(RequestId(999)));
    let plan = world.step(0).expect("the others go on");
    assert_eq!(plan.ranks()[0].releases().len(), 1, "the worker is told with the next step");
    world.drain();
    world.assert_drained();
}

#[test]
fn a_seat_is_used_again_with_a_new_generation() {
    let mut world = World::new(lockstep(1, 1, 0));
    world.submit(4, 2);
    world.submit(4, 2);
    let mut admitted = Vec::new();
    while let Some(plan) = world.step(0) {
        admitted.extend(plan.ranks()[0].admissions().iter().map(|one| (one.seat.get(), one.generation.get())));
    }
    assert_eq!(admitted, [(0, 1), (0, 2)]);
}

#[test]
fn a_lost_group_gives_its_requests_back_and_the_others_go_on() {
    let mut config = lockstep(2, 4, 1);
    config.groups = Config::dense_groups(2);
    let mut world = World::new(config);
    let ids: Vec<_> = (0..4).map(|_| world.submit(20, 40)).collect();
    for _ in 0..3 {
        world.round();
    }
    let (_, late) = world.launch(GROUP).expect("a step of group 0");
    let lost = world.scheduler.void_group(GROUP);
    assert_eq!(lost.len(), 2);
    world.workers[0].reset(world.scheduler.epoch(GROUP).expect("the group exists"));
    assert_eq!(world.scheduler.stats().void, 2);
    let tokens_before = world.requests[&lost[0]].emitted.len();
    assert!(world.scheduler.requeue(lost[0]));
    assert!(!world.scheduler.requeue(lost[0]), "once");
    assert!(world.abort(lost[1]));
    for reply in late {
        assert!(world.deliver(reply).is_empty());
    }
    let plan = world.step(0).expect("step 1 of the next epoch");
    assert_eq!((plan.group().epoch().get(), plan.group().step().get()), (2, 1));
    world.drain();
    world.assert_drained();
    assert!(tokens_before > 0);
    for id in ids {
        assert_eq!(world.requests[&id].finished.is_some(), id != lost[1]);
    }
}

#[test]
fn what_was_aborted_in_a_lost_step_is_not_given_back() {
    let mut world = World::new(lockstep(2, 4, 0));
    let ids: Vec<_> = (0..2).map(|_| world.submit(20, 40)).collect();
    world.step(0).expect("prompts");
    world.launch(GROUP).expect("decodes");
    assert!(world.abort(ids[0]));
    assert_eq!(world.scheduler.void_group(GROUP), [ids[1]]);
    assert!(world.abort(ids[1]));
    world.assert_drained();
    assert!(world.scheduler.void_group(GroupId::new(7)).is_empty(), "no such group");
}

#[test]
fn nothing_starts_on_an_unavailable_rank_and_what_runs_goes_on() {
    let mut world = World::new(lockstep(2, 4, 0));
    let running = world.submit_to(1, 4, 10);
    world.step(0).expect("a prompt");
    world.scheduler.set_available(DpRank::new(1), false);
    let ids: Vec<_> = (0..4).map(|_| world.submit(4, 4)).collect();
    world.step(0).expect("a step");
    assert!(ids.iter().all(|id| world.scheduler.dp_rank_of(*id) == Some(DpRank::new(0))));
    world.drain();
    assert!(world.requests[&running].finished.is_some());
}
