//! One step ahead (rule 16): what is planned while a step runs, what of it counts, and when blocks are free.

use std::collections::VecDeque;

use paceline_plan::{GroupId, Mode, StepPlan};
use paceline_scheduler::{Config, Drafter, Error, Finish, RequestId, ShapeConfig};

use crate::world::{Pending, World, limits, lockstep, next_token};

const GROUP: GroupId = GroupId::new(0);

fn ahead(ranks: u32, max_num_seqs: u32, k: u32) -> Config {
    Config { depth: 1, ..lockstep(ranks, max_num_seqs, k) }
}

fn launch(world: &mut World) -> (StepPlan, Vec<Pending>) {
    world.launch(GROUP).expect("a step")
}

fn deliver(world: &mut World, pending: Vec<Pending>) -> usize {
    pending.into_iter().map(|reply| world.deliver(reply).len()).sum()
}

/// What the model says after the request's prompt.
fn text(world: &World, id: RequestId, count: usize) -> Vec<u32> {
    let vocab_size = world.scheduler.config().limits.vocab_size;
    let mut tokens = world.requests[&id].spec.prompt.clone();
    let prompt_len = tokens.len();
    for _ in 0..count {
        tokens.push(next_token(&tokens, vocab_size));
    }
    tokens.split_off(prompt_len)
}

#[test]
fn one_step_runs_and_one_is_ahead() {
    let mut world = World::new(ahead(2, 4, 0));
    world.submit(20, 5);
    let (_, first) = launch(&mut world);
    let (second_plan, second) = launch(&mut world);
    assert_eq!(second_plan.group().depth(), 1);
    assert_eq!(second_plan.ranks()[0].rows()[0].start_max, 20, "after the prompt in flight");
    assert!(world.launch(GROUP).is_none());
    assert_eq!(world.scheduler.in_flight(GROUP).map(paceline_plan::StepId::get).collect::<Vec<_>>(), [1, 2]);
    deliver(&mut world, first);
    let (_, third) = launch(&mut world);
    world.drain_ahead(second.into_iter().chain(third).collect());
    world.assert_drained();
    assert_eq!(world.steps, 5, "one for each token, none in vain");
}

/// With drafts in flight the next row counts with all of them, and the reply brings it back.
#[test]
fn the_start_is_at_most_what_drafts_in_flight_allow() {
    let mut world = World::new(ahead(1, 1, 3));
    world.accept_permille = 0;
    world.submit(20, 100);
    let mut pending = Vec::new();
    let mut starts = Vec::new();
    for _ in 0..6 {
        let (plan, replies) = launch(&mut world);
        let row = plan.ranks()[0].rows()[0];
        starts.push((row.start_max, row.drafts));
        pending.extend(replies);
        if pending.len() > 1 {
            world.deliver(pending.remove(0));
        }
    }
    // No draft is ever right: each row gives a token, and is planned as if the 3 before it had been right.
    let ngram_knows_after_a_step = [(0, 0), (20, 0), (21, 3), (25, 3), (26, 3), (27, 3)];
    assert_eq!(starts, ngram_knows_after_a_step);
}

/// EOS among accepted drafts ends the text, and the row that was planned before that was known is dropped.
#[test]
fn c01_a_stop_token_ends_a_request_whose_next_row_is_in_flight() {
    let mut world = World::new(ahead(1, 2, 5));
    let mut spec = world.spec(8, 64);
    let id = spec.id;
    let mut tokens = spec.prompt.clone();
    let vocab_size = world.scheduler.config().limits.vocab_size;
    while tokens.len() < 8 + 11 {
        tokens.push(next_token(&tokens, vocab_size));
    }
    spec.stop_token_ids = vec![tokens[8 + 9]];
    world.submit_spec(spec).expect("it fits");
    let mut pending = Vec::new();
    let mut in_flight_at_the_end = 0;
    while let Some((_, replies)) = world.launch(GROUP) {
        pending.extend(replies);
        if pending.len() > 1 {
            world.deliver(pending.remove(0));
        }
        if world.requests[&id].finished.is_some() {
            in_flight_at_the_end = pending.len();
            break;
        }
    }
    let live = &world.requests[&id];
    assert_eq!((live.emitted.len(), live.finished), (10, Some(Finish::Stop(tokens[8 + 9]))));
    assert_eq!(in_flight_at_the_end, 1, "the step after it was planned before");
    let stats = world.scheduler.stats();
    assert!(stats.ranks[0].running == 0 && stats.ranks[0].blocks_used > 0, "blocks are in use until the reply");
    assert!(world.launch(GROUP).is_none(), "nothing more is planned for it");
    assert_eq!(deliver(&mut world, pending), 0, "no text after the stop token");
    world.assert_drained();
}

#[test]
fn a_request_that_ends_in_flight_has_no_further_row() {
    let mut world = World::new(ahead(1, 1, 0));
    let id = world.submit(4, 2);
    let (_, first) = launch(&mut world);
    let (_, second) = launch(&mut world);
    deliver(&mut world, first);
    assert!(world.launch(GROUP).is_none(), "its last token is in flight");
    deliver(&mut world, second);
    assert_eq!(world.requests[&id].emitted, text(&world, id, 2));
    world.assert_drained();
}

/// With drafts in flight it is not known whether a request has ended: it gets a row without drafts, within its blocks.
#[test]
fn a_request_that_may_have_ended_gets_one_row_and_no_block() {
    for (accept_permille, rows) in [(1000, 2), (0, 4)] {
        let mut config = ahead(1, 1, 3);
        config.limits = limits(1, 3);
        let mut world = World::new(config);
        world.accept_permille = accept_permille;
        // 12 known after the prompt's step; drafts reach 16 tokens, the last position of a block.
        let id = world.submit(11, 5);
        let (_, first) = launch(&mut world);
        deliver(&mut world, first);
        let (plan, second) = launch(&mut world);
        assert_eq!(plan.ranks()[0].rows()[0].drafts, 3);
        let (plan, third) = launch(&mut world);
        let row = plan.ranks()[0].rows()[0];
        assert_eq!((row.start_max, row.drafts, row.blocks), (15, 0, 1));
        world.drain_ahead(second.into_iter().chain(third).collect());
        world.assert_drained();
        assert_eq!(world.requests[&id].emitted, text(&world, id, 5));
        assert!(world.steps >= rows, "{} steps", world.steps);
    }
}

/// At most the step that is ahead already follows an abort, and everything is free when it is answered.
#[test]
fn a23_an_aborted_request_has_no_more_than_the_steps_in_flight() {
    let mut world = World::new(ahead(2, 4, 0));
    let id = world.submit(20, 100);
    let (_, first) = launch(&mut world);
    let (_, second) = launch(&mut world);
    assert!(world.abort(id));
    assert!(world.launch(GROUP).is_none(), "no further step");
    let used = |world: &World| (world.scheduler.stats().ranks[0].running, world.scheduler.stats().ranks[0].blocks_used);
    assert_eq!(used(&world), (0, 2));
    assert_eq!(deliver(&mut world, first), 0);
    assert_eq!(used(&world), (0, 2), "the second step may still write");
    assert_eq!(deliver(&mut world, second), 0);
    world.assert_drained();
}

/// Rule 11: a row in flight is preempted, its reply is dropped whole, its blocks are free with that reply, and while they
/// are coming nobody else has to leave.
#[test]
fn blocks_of_a_preempted_row_in_flight_are_coming() {
    let mut config = ahead(1, 3, 0);
    (config.limits.block_size, config.limits.num_blocks, config.limits.table_width) = (4, 6, 1_024);
    let mut world = World::new(config);
    let ids: Vec<RequestId> = (0..3).map(|_| world.submit(7, 12)).collect();
    let preemptions = |world: &World| world.scheduler.stats().ranks[0].counters.preemptions;
    let mut pending: Vec<Pending> = Vec::new();
    let mut coming = 0;
    loop {
        let before = preemptions(&world);
        let launched = world.launch(GROUP);
        let more = preemptions(&world) - before;
        assert!(more <= 1, "the blocks of one are enough");
        if more == 1 && !pending.is_empty() {
            coming += 1;
            let stats = world.scheduler.stats();
            assert!(stats.ranks[0].blocks_used > 0, "what the victim held is in use until its step is answered");
            assert!(world.launch(GROUP).is_none() && preemptions(&world) == before + 1, "nobody else leaves meanwhile");
        }
        let is_idle = launched.is_none();
        pending.extend(launched.into_iter().flat_map(|(_, replies)| replies));
        world.scheduler.assert_consistent();
        if pending.len() > 1 || is_idle {
            if pending.is_empty() {
                break;
            }
            world.deliver(pending.remove(0));
        }
    }
    assert!(coming > 0, "somebody was sent back in flight");
    world.assert_drained();
    for id in ids {
        assert_eq!(world.requests[&id].emitted, text(&world, id, 12));
    }
}

#[test]
fn a_rank_answers_its_steps_in_order() {
    let mut world = World::new(ahead(2, 4, 0));
    world.submit_to(0, 20, 5);
    world.submit_to(1, 20, 5);
    let (_, first) = launch(&mut world);
    let (_, mut second) = launch(&mut world);
    let late = second.pop().expect("two ranks");
    let (dp_rank, header, reply) = (late.dp_rank, late.header, late.reply.clone());
    let error = world.scheduler.commit(dp_rank, header.epoch, header.step, reply).expect_err("step 1 comes first");
    assert!(matches!(error, Error::Reply { field: "step", expected: 1, got: 2, .. }), "{error}");
    // Nothing of it was applied; the other rank may be further.
    let [one, other] = <[Pending; 2]>::try_from(first).unwrap_or_else(|_| panic!("two ranks"));
    deliver(&mut world, vec![one]);
    deliver(&mut world, second);
    deliver(&mut world, vec![other, late]);
    world.drain_ahead(Vec::new());
    world.assert_drained();
}

/// A prefix enters the cache by answered steps only, and what a step in flight computes is found once it is answered.
#[test]
fn only_answered_tokens_are_cached() {
    let mut config = ahead(1, 2, 0);
    config.prefix_cache = Some(paceline_scheduler::CacheSecret::new(1, 2));
    config.limits.max_num_batched_tokens = 32;
    let mut world = World::new(config);
    let first = world.submit(64, 4);
    let (_, chunk) = launch(&mut world);
    let (_, rest) = launch(&mut world);
    let mut again = world.spec(64, 4);
    again.prompt = world.requests[&first].spec.prompt.clone();
    let again = world.submit_spec(again).expect("it fits");
    deliver(&mut world, chunk);
    let (plan, third) = launch(&mut world);
    assert_eq!(plan.ranks()[0].admissions()[0].computed, 32, "two blocks of the answered chunk, not of the other");
    assert_eq!(world.scheduler.cached_tokens(again), Some(32));
    world.drain_ahead(rest.into_iter().chain(third).collect());
    world.assert_drained();
}

/// A rank whose blocks are all in use by a request that has left runs its dummy beside its peer all the same.
#[test]
fn a10_a_dummy_runs_where_all_blocks_are_of_a_request_that_leaves() {
    let mut config = ahead(2, 4, 1);
    (config.limits.block_size, config.limits.num_blocks) = (128, 4);
    let mut world = World::new(config);
    world.accept_permille = 0;
    for _ in 0..4 {
        world.submit_to(0, 4, 125);
    }
    let filling = world.submit_to(1, 385, 128);
    let (_, first) = launch(&mut world);
    let (_, second) = launch(&mut world);
    let used = |world: &World| world.scheduler.stats().ranks[1].blocks_used;
    assert!(world.abort(filling));
    deliver(&mut world, first);
    assert_eq!(used(&world), 4, "no block is free");
    let (plan, third) = launch(&mut world);
    assert!(plan.ranks()[1].is_dummy() && used(&world) == 4);
    assert_eq!(plan.group().target().mode(), Mode::Full);
    deliver(&mut world, second);
    assert_eq!(used(&world), 0);
    world.drain_ahead(third);
    world.assert_drained();
}

/// Drafts that are not proposed yet are trimmed to the blocks that are left, like those that are.
#[test]
fn c12_drafts_in_flight_are_trimmed_to_the_blocks_that_are_left() {
    let mut config = ahead(1, 2, 7);
    config.drafter = Drafter::Model;
    config.shapes = ShapeConfig::cpu_default(2, &[0, 7], 2);
    (config.limits.block_size, config.limits.num_blocks, config.limits.table_width) = (4, 5, 1_100);
    let mut world = World::new(config);
    let id = world.submit(4, 16);
    world.submit(9, 3);
    let (_, first) = launch(&mut world);
    let (plan, second) = launch(&mut world);
    let row = plan.ranks()[0].rows()[0];
    assert_eq!((row.start_max, row.drafts, row.blocks), (4, 3, 2));
    assert_eq!(world.scheduler.stats().ranks[0].counters.preemptions, 0);
    world.drain_ahead(first.into_iter().chain(second).collect());
    assert_eq!(world.requests[&id].emitted, text(&world, id, 16));
    world.assert_drained();
}

/// Drafts that were planned and not proposed are no drafts: all that were proposed are right, and the rate is 1.
#[test]
fn c18_drafts_that_never_came_are_not_counted() {
    let mut config = ahead(2, 2, 3);
    config.drafter = Drafter::Model;
    config.shapes = ShapeConfig::cpu_default(2, &[0, 3], 2);
    let mut world = World::new(config);
    world.propose_permille = 300;
    world.submit_to(0, 4, 200);
    world.drain_ahead(Vec::new());
    world.assert_drained();
    let stats = world.scheduler.stats();
    let drafts = &stats.ranks[0].counters.drafts;
    assert!(drafts.draft_tokens > 30 && drafts.draft_tokens < 3 * drafts.drafts, "{drafts:?}");
    assert_eq!(drafts.draft_tokens, drafts.accepted_tokens);
    assert_eq!(drafts.verified_per_position, drafts.accepted_per_position);
    assert_eq!(stats.ranks[1].counters.drafts.draft_tokens, 0, "dummies draft nothing");
}

#[test]
fn c21_no_block_is_kept_for_drafts_of_steps_in_flight_after_the_end() {
    let mut config = ahead(2, 8, 3);
    config.limits.block_size = 64;
    let mut world = World::new(config);
    world.accept_permille = 500;
    let mut pending = Vec::new();
    for index in 0..100 {
        let (prompt, output) = (1 + world.random.below(200), 1 + world.random.below(100));
        let mut spec = world.spec(prompt, output);
        spec.stop_token_ids = (0..10).collect();
        let id = world.submit_spec(spec).expect("fits");
        if index % 7 == 0 {
            pending.extend(world.launch(GROUP).into_iter().flat_map(|(_, replies)| replies));
            world.abort(id);
        }
    }
    world.drain_ahead(pending);
    world.assert_drained();
}

/// The same as at depth 0, but for the blocks: a step in flight writes them, so they come a step later, and while they are
/// coming nobody else leaves.
#[test]
fn c08_a_victim_in_flight_leaves_the_plan_and_its_blocks_come_later() {
    let mut config = ahead(1, 2, 3);
    config.limits.max_num_batched_tokens = 8;
    (config.limits.block_size, config.limits.num_blocks, config.limits.table_width) = (4, 6, 1_100);
    let mut world = World::new(config);
    world.accept_permille = 0;
    world.trace = Some(Vec::new());
    let mut spec = world.spec(2, 16);
    spec.priority = 5;
    let low = world.submit_spec(spec).expect("fits");
    let high = world.submit(2, 16);
    let rank = |world: &World| world.scheduler.stats().ranks[0].clone();
    let mut pending = VecDeque::new();
    let plan = loop {
        let launched = world.launch(GROUP);
        if rank(&world).counters.preemptions > 0 {
            break launched;
        }
        match launched {
            Some((_, replies)) => pending.extend(replies),
            None => drop(world.deliver(pending.pop_front().expect("one of the two can go on"))),
        }
    };
    assert_eq!((world.scheduler.dp_rank_of(low), rank(&world).running), (None, 1));
    if let Some((plan, replies)) = plan {
        let rows: Vec<RequestId> = world.trace.iter().flatten().last().expect("a step").iter().copied().collect();
        assert_eq!((rows, plan.ranks()[0].tokens_real().get()), (vec![high], 4));
        pending.extend(replies);
    }
    let used = rank(&world).blocks_used;
    assert!(!pending.is_empty() && used == 6, "{used} blocks: the victim's are in use until its row is answered");
    world.deliver(pending.pop_front().expect("a step is in flight"));
    if pending.is_empty() {
        pending.extend(launch(&mut world).1);
        let told = &world.scheduler.explanation(GROUP).expect("a step").ranks[0].preempted;
        assert_eq!(told[..], [low], "told with the next step, for there was none when it left");
    }
    world.drain_ahead(pending.into());
    assert!(rank(&world).counters.preemptions <= 2);
    assert_eq!(world.requests[&low].emitted, text(&world, low, 16));
    world.assert_drained();
}
