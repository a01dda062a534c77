//! Group C of the field cases and rules 9 to 11: drafts, what is accepted, and whose reply it is.

use paceline_plan::{DpRank, Epoch, GroupId, StepId};
use paceline_scheduler::{Error, Finish};

use crate::world::{World, lockstep, next_token};

/// The model's continuation of a prompt.
fn continuation(prompt: &[u32], count: usize) -> Vec<u32> {
    let mut history = prompt.to_vec();
    for _ in 0..count {
        history.push(next_token(&history, 1000));
    }
    history[prompt.len()..].to_vec()
}

#[test]
fn c01_a_stop_token_inside_accepted_drafts_ends_the_request_there() {
    let mut world = World::new(lockstep(1, 2, 5));
    let mut spec = world.spec(6, 100);
    let text = continuation(&spec.prompt, 8);
    assert!(!text[..3].contains(&text[3]));
    spec.stop_token_ids = vec![text[3], 0];
    let id = world.submit_spec(spec).expect("fits");
    world.step(0).expect("the prompt");
    let before = world.scheduler.stats().ranks[0].counters.clone();
    let (plan, pending) = world.launch(GroupId::new(0)).expect("a decode");
    assert_eq!(plan.ranks()[0].rows()[0].drafts, 5);
    let outputs: Vec<_> = pending.into_iter().flat_map(|reply| world.deliver(reply)).collect();
    assert_eq!(outputs[0].tokens[..], text[1..4]);
    assert_eq!(outputs[0].finished, Some(Finish::Stop(text[3])));
    let after = world.scheduler.stats().ranks[0].counters.clone();
    assert_eq!(after.drafts.accepted_tokens - before.drafts.accepted_tokens, 5);
    assert_eq!(after.emitted_tokens - before.emitted_tokens, 3);
    assert!(world.step(0).is_none(), "the next step does not contain the request");
    assert_eq!(world.requests[&id].emitted.len(), 4);
    world.assert_drained();
}

#[test]
fn c05_no_draft_reaches_past_the_models_length() {
    let mut config = lockstep(1, 2, 3);
    config.limits.max_model_len = 64;
    let mut world = World::new(config);
    world.accept_permille = 0;
    world.submit(58, 6);
    let mut drafts = Vec::new();
    while let Some(plan) = world.step(0) {
        let row = plan.ranks()[0].rows()[0];
        if plan.ranks()[0].decode_rows() == 1 {
            drafts.push((row.start_max + 1, row.drafts, row.query_len.get()));
        }
    }
    assert_eq!(drafts, [(59, 3, 4), (60, 3, 4), (61, 2, 4), (62, 1, 4), (63, 0, 4)]);
    world.assert_drained();
}

#[test]
fn c05_drafts_that_were_not_proposed_are_not_verified() {
    let mut world = World::new(lockstep(1, 2, 3));
    world.submit(8, 30);
    world.step(0).expect("the prompt");
    world.propose_permille = 0;
    for _ in 0..6 {
        let seat = world.workers[0].seat(paceline_plan::Seat::new(0)).map_or(0, |seat| seat.drafts().len() as u32);
        let Some(plan) = world.step(0) else { break };
        assert!(plan.ranks()[0].rows()[0].drafts <= seat);
    }
}

#[test]
fn c08_a_victim_leaves_the_step_that_it_was_in() {
    let mut config = lockstep(1, 2, 3);
    config.limits.max_num_batched_tokens = 8;
    config.limits.block_size = 4;
    config.limits.table_width = 1100;
    config.limits.num_blocks = 6;
    let mut world = World::new(config);
    world.accept_permille = 0;
    let mut low = world.spec(2, 16);
    low.priority = 5;
    let low = world.submit_spec(low).expect("fits");
    let high = world.submit(2, 16);
    loop {
        let plan = world.step(0).expect("both run until blocks are short");
        let reasons = world.scheduler.explanation(GroupId::new(0)).expect("a reason");
        if reasons.ranks[0].preempted.is_empty() {
            continue;
        }
        assert_eq!(reasons.ranks[0].preempted, [low]);
        assert_eq!(plan.ranks()[0].rows().len(), 1);
        assert_eq!(plan.ranks()[0].tokens_real().get(), 4);
        break;
    }
    assert_eq!(world.scheduler.dp_rank_of(high), Some(DpRank::new(0)));
    assert_eq!(world.scheduler.dp_rank_of(low), None);
    world.drain();
    world.assert_drained();
}

#[test]
fn c12_drafts_are_trimmed_to_the_blocks_that_are_left() {
    let mut config = lockstep(1, 2, 7);
    config.limits.block_size = 4;
    config.limits.table_width = 1100;
    config.limits.num_blocks = 5;
    let mut world = World::new(config);
    let id = world.submit(4, 16);
    world.submit(9, 3);
    world.step(0).expect("prompts");
    assert_eq!(world.scheduler.stats().ranks[0].blocks_used, 4);
    let plan = world.step(0).expect("decodes");
    let row = plan.ranks()[0].rows()[0];
    assert_eq!((row.start_max, row.drafts, row.blocks), (4, 3, 2));
    assert_eq!(world.scheduler.stats().ranks[0].counters.drafts_trimmed, 4);
    assert_eq!(world.scheduler.stats().ranks[0].counters.preemptions, 0);
    world.drain();
    assert_eq!(world.requests[&id].emitted.len(), 16);
    world.assert_drained();
}

#[test]
fn drafts_take_no_block_that_a_prompt_was_promised() {
    let mut config = lockstep(1, 2, 3);
    config.limits.block_size = 4;
    config.limits.table_width = 1100;
    config.limits.max_num_batched_tokens = 12;
    config.limits.num_blocks = 13;
    let mut world = World::new(config);
    world.accept_permille = 0;
    world.submit(6, 10);
    let prompt = world.submit(40, 2);
    while world.requests[&prompt].emitted.is_empty() {
        world.step(0).expect("a step");
    }
    let counters = &world.scheduler.stats().ranks[0].counters;
    assert!(counters.drafts_trimmed > 0);
    assert_eq!((counters.held_by_blocks, counters.preemptions), (0, 0));
    world.drain();
    world.assert_drained();
}

#[test]
fn budget_of_a_victim_goes_to_a_row_that_waits() {
    // Three decode rows under a budget for two; the lowest one has waited longest, so it is first in the step in which
    // it is evicted, and the third takes its place.
    let mut config = lockstep(1, 3, 3);
    config.limits.max_num_batched_tokens = 8;
    config.limits.block_size = 4;
    config.limits.table_width = 1100;
    config.limits.num_blocks = 6;
    let mut world = World::new(config);
    world.propose_permille = 0;
    for priority in [0, 3, 5] {
        let mut spec = world.spec(1, 20);
        spec.priority = priority;
        world.submit_spec(spec).expect("fits");
    }
    let mut replaced = 0;
    while let Some(plan) = world.step(0) {
        let reasons = &world.scheduler.explanation(GroupId::new(0)).expect("a reason").ranks[0];
        replaced += usize::from(!reasons.preempted.is_empty() && plan.ranks()[0].decode_rows() == 2);
    }
    assert!(replaced > 0);
    world.assert_drained();
}

#[test]
fn an_ngram_drafter_keeps_the_history_of_every_request() {
    for (k, history) in [(0, false), (2, true)] {
        let mut world = World::new(lockstep(1, 1, k));
        let mut spec = world.spec(4, 2);
        spec.history = false;
        world.submit_spec(spec).expect("fits");
        let plan = world.step(0).expect("a prompt");
        assert_eq!(plan.ranks()[0].admissions()[0].history, history);
    }
}

#[test]
fn c18_drafts_are_counted_as_drafts_only() {
    let mut world = World::new(lockstep(2, 2, 3));
    world.submit_to(0, 4, 1 + 40 + 2);
    world.step(0).expect("the prompt");
    let counters = |world: &World| world.scheduler.stats().ranks[0].counters.drafts.clone();
    assert_eq!(counters(&world).draft_tokens, 0);
    for _ in 0..10 {
        world.step(0).expect("a decode");
    }
    let drafts = counters(&world);
    assert_eq!((drafts.drafts, drafts.draft_tokens, drafts.accepted_tokens), (10, 30, 30));
    assert_eq!(drafts.accepted_per_position, [10, 10, 10]);
    world.step(0).expect("the last decode");
    let drafts = counters(&world);
    assert_eq!((drafts.drafts, drafts.draft_tokens, drafts.accepted_per_position[0]), (11, 31, 11));
    let idle = &world.scheduler.stats().ranks[1].counters;
    assert_eq!((idle.drafts.draft_tokens, idle.emitted_tokens, idle.dummy_steps), (0, 0, 12));
    world.assert_drained();
}

#[test]
fn c21_no_block_is_kept_for_drafts_after_the_end() {
    let mut config = lockstep(2, 8, 3);
    config.limits.block_size = 64;
    let mut world = World::new(config);
    world.accept_permille = 500;
    for index in 0..100 {
        let (prompt, output) = (1 + world.random.below(200), 1 + world.random.below(100));
        let mut spec = world.spec(prompt, output);
        spec.stop_token_ids = (0..10).collect();
        let id = world.submit_spec(spec).expect("fits");
        if index % 7 == 0 {
            world.step(0);
            world.abort(id);
        }
    }
    world.drain();
    world.assert_drained();
}

#[test]
fn late_and_doubled_replies_touch_nothing() {
    let mut world = World::new(lockstep(2, 2, 0));
    world.submit_to(0, 4, 3);
    let (_, pending) = world.launch(GroupId::new(0)).expect("a step");
    let (epoch, step) = (pending[0].header.epoch, pending[0].header.step);
    let reply = pending[0].reply.clone();
    for reply in pending {
        world.deliver(reply);
    }
    let rank = DpRank::new(0);
    assert_eq!(world.scheduler.commit(rank, epoch, step, reply.clone()), Ok(Vec::new()));
    world.launch(GroupId::new(0)).expect("the next step");
    assert_eq!(world.scheduler.commit(rank, epoch, step, reply.clone()), Ok(Vec::new()), "an earlier step");
    world.scheduler.void_group(GroupId::new(0));
    assert_eq!(world.scheduler.commit(rank, epoch, step.next(), reply.clone()), Ok(Vec::new()), "an earlier epoch");
    assert_eq!(world.scheduler.stats().ranks[0].counters.stale_replies, 3);
    let error = world.scheduler.commit(rank, Epoch::new(2), StepId::new(1), reply.clone());
    assert!(matches!(error, Err(Error::UnknownStep { .. })), "a step that was never sent: {error:?}");
    let unknown = DpRank::new(9);
    let error = world.scheduler.commit(unknown, epoch, step, reply);
    assert_eq!(error, Err(Error::UnknownRank { dp_rank: unknown }));
}

#[test]
fn a_reply_that_contradicts_its_plan_is_refused_whole() {
    let mut world = World::new(lockstep(1, 2, 2));
    world.submit(4, 20);
    world.step(0).expect("the prompt");
    let (_, mut pending) = world.launch(GroupId::new(0)).expect("a decode");
    let pending = pending.remove(0);
    let mut check = |field: &str, change: &dyn Fn(&mut paceline_plan::StepReply)| {
        let mut reply = pending.reply.clone();
        change(&mut reply);
        let result = world.scheduler.commit(pending.dp_rank, pending.header.epoch, pending.header.step, reply);
        let Err(Error::Reply { field: got, step, .. }) = result else { panic!("{field}: {result:?}") };
        assert_eq!((got, step), (field, pending.header.step));
    };
    check("rows", &|reply| reply.rows.clear());
    check("dp_rank", &|reply| reply.dp_rank = DpRank::new(1));
    check("seat", &|reply| reply.rows[0].seat = paceline_plan::Seat::new(1));
    check("generation", &|reply| reply.rows[0].generation = reply.rows[0].generation.next());
    check("known", &|reply| reply.rows[0].known += 1);
    check("accepted", &|reply| reply.rows[0].accepted = 3);
    check("emitted", &|reply| reply.rows[0].emitted.push(1));
    check("proposed", &|reply| reply.rows[0].proposed = 3);
    check("token id", &|reply| reply.rows[0].emitted[1] = 1000);
    check("logprobs", &|reply| reply.rows[0].logprobs = vec![paceline_plan::TokenLogprobs::default()].into());
    world.deliver(pending);
    world.drain();
    world.assert_drained();
}
