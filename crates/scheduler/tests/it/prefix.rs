//! The prefix cache through whole worlds, whose workers refuse a block that two requests write.

use paceline_plan::{DpRank, GroupId, LogitsWanted, StepPlan};
use paceline_scheduler::{CacheChange, CacheSecret, Config, Drafter, Policies, RequestId, RequestSpec};

use crate::world::{World, lockstep};

pub(crate) fn cached(mut config: Config) -> Config {
    config.prefix_cache = Some(CacheSecret::new(17, 4));
    config
}

/// The same prompt as another request, or a part of it.
fn again(world: &mut World, first: RequestId, tokens: usize) -> RequestSpec {
    let prompt = world.requests[&first].spec.prompt[..tokens].to_vec();
    RequestSpec { prompt, ..world.spec(1, 4) }
}

fn run(world: &mut World, spec: RequestSpec) -> (RequestId, StepPlan, u32) {
    let id = world.submit_spec(spec).expect("fits");
    let plan = world.step(0).expect("a step");
    let cached = world.scheduler.cached_tokens(id).expect("it has started");
    (id, plan, cached)
}

#[test]
fn d06_a_prompt_that_is_cached_whole_still_computes_a_token() {
    for (tokens, drafter, expected) in [
        (32, Drafter::None, 16),
        (33, Drafter::None, 32),
        (31, Drafter::None, 16),
        (16, Drafter::None, 0),
        (32, Drafter::Model, 16),
        (33, Drafter::Model, 16),
        (16, Drafter::Model, 0),
    ] {
        let mut config = cached(lockstep(1, 4, u32::from(drafter == Drafter::Model)));
        config.drafter = drafter;
        let mut world = World::new(config);
        let first = world.submit(tokens, 4);
        let blocks: Vec<u32> = world.step(0).expect("a step").ranks()[0].block_appends()[0].blocks.to_vec();
        world.drain();
        let spec = again(&mut world, first, tokens as usize);
        let (_, plan, cached) = run(&mut world, spec);
        assert_eq!(cached, expected, "{tokens} tokens with {drafter:?}");
        let part = &plan.ranks()[0];
        let row = part.rows()[0];
        assert_eq!((row.start_max, row.query_len.get()), (expected, tokens - expected));
        assert_eq!(part.admissions()[0].computed, expected);
        let shared = expected as usize / 16;
        let appended: Vec<u32> = part.block_appends()[0].blocks.to_vec();
        assert_eq!(appended[..shared], blocks[..shared], "the shared blocks");
        assert_eq!(row.logits, LogitsWanted::Last);
        world.drain();
        world.assert_drained();
    }
}

#[test]
fn d07_a_hit_is_counted_when_its_request_starts() {
    let mut config = cached(lockstep(1, 8, 0));
    config.limits.num_blocks = 10;
    let mut world = World::new(config);
    let first = world.submit(40, 2);
    world.drain();
    let long = world.submit(64, 30);
    world.step(0).expect("it starts");
    let mut spec = again(&mut world, first, 40);
    spec.prompt.extend(std::iter::repeat_n(7, 80));
    let waiting = world.submit_spec(spec).expect("fits an empty pool");
    for _ in 0..5 {
        world.step(0).expect("the other one runs");
        assert_eq!(world.scheduler.dp_rank_of(waiting), None, "its tail does not fit");
        assert_eq!(world.scheduler.stats().ranks[0].counters.prefix_hit_requests, 0);
    }
    assert!(world.abort(long));
    world.step(0).expect("it starts now");
    assert_eq!(world.scheduler.dp_rank_of(waiting), Some(DpRank::new(0)));
    let counters = world.scheduler.stats().ranks[0].counters.clone();
    assert_eq!((counters.prefix_hit_requests, counters.prefix_hit_blocks, counters.prefix_hit_tokens), (1, 2, 32));
    world.drain();
    world.assert_drained();
}

#[test]
fn d09_no_tenant_reads_anothers_blocks() {
    let mut world = World::new(cached(lockstep(1, 4, 0)));
    let mut salted = world.spec(64, 2);
    salted.cache_salt = b"one".to_vec();
    let first = world.submit_spec(salted).expect("fits");
    world.drain();
    for (salt, expected) in [(&b"two"[..], 0), (b"", 0), (b"one", 48)] {
        let mut spec = again(&mut world, first, 64);
        spec.cache_salt = salt.to_vec();
        let (_, _, cached) = run(&mut world, spec);
        assert_eq!(cached, expected, "salt {salt:?}");
        world.drain();
    }
    // The same block after another prefix is another block.
    let mut spec = again(&mut world, first, 64);
    spec.cache_salt = b"one".to_vec();
    spec.prompt[0] = (spec.prompt[0] + 1) % 1000;
    assert_eq!(run(&mut world, spec).2, 0);
}

#[test]
fn d11_cached_blocks_are_not_in_use_and_make_room() {
    let mut config = cached(lockstep(1, 16, 0));
    config.limits.num_blocks = 200;
    let mut world = World::new(config);
    for _ in 0..1_000 {
        world.submit(40, 3);
    }
    world.drain();
    let rank = world.scheduler.stats().ranks[0].clone();
    assert_eq!(rank.blocks_used, 0);
    assert!(rank.blocks_cached > 0 && rank.blocks_cached <= rank.blocks_total, "{rank:?}");
    let whole = world.submit(200 * 16 - 1, 2);
    world.step(0).expect("it starts at once, by eviction");
    assert_eq!(world.scheduler.dp_rank_of(whole), Some(DpRank::new(0)));
    assert_eq!(world.scheduler.stats().ranks[0].blocks_used, 200);
    world.drain();
    world.assert_drained();
}

#[test]
fn d14_a_preempted_request_comes_back_first_and_finds_its_blocks() {
    let mut config = cached(lockstep(1, 4, 0));
    config.limits.num_blocks = 16;
    let mut world = World::new(config);
    world.submit(60, 150);
    let later = world.submit(60, 100);
    let mut waiting = None;
    let mut preempted = None;
    for step in 0..400 {
        if world.step(0).is_none() {
            break;
        }
        let explanation = world.scheduler.explanation(paceline_plan::GroupId::new(0)).expect("a step");
        if preempted.is_none() && explanation.ranks[0].preempted.contains(&later) {
            preempted = Some(step);
            waiting = Some(world.submit(30, 4));
        }
        if let (Some(_), Some(waiting)) = (preempted, waiting)
            && explanation_started(&world, waiting)
        {
            assert!(world.scheduler.dp_rank_of(later).is_some() || world.requests[&later].finished.is_some());
        }
    }
    assert!(preempted.is_some(), "blocks ran out");
    let counters = &world.scheduler.stats().ranks[0].counters;
    assert!(counters.prefix_hit_tokens >= 32, "{counters:?}");
    world.drain();
    world.assert_drained();
}

fn explanation_started(world: &World, id: RequestId) -> bool {
    let explanation = world.scheduler.explanation(paceline_plan::GroupId::new(0)).expect("a step");
    explanation.ranks[0].started.iter().any(|started| started.id == id)
}

#[test]
fn c19_a_hit_leaves_drafts_as_good_as_before() {
    for drafter in [Drafter::Ngram, Drafter::Model] {
        let mut config = cached(lockstep(1, 4, 3));
        config.drafter = drafter;
        let mut world = World::new(config);
        world.accept_permille = 800;
        let acceptance = |world: &World| {
            let drafts = &world.scheduler.stats().ranks[0].counters.drafts;
            (drafts.draft_tokens, drafts.accepted_tokens)
        };
        let mut spec = world.spec(2_000, 1_500);
        let prompt = spec.prompt.clone();
        world.submit_spec(spec).expect("fits");
        world.drain();
        let first = acceptance(&world);
        spec = RequestSpec { prompt, ..world.spec(1, 1_500) };
        let id = world.submit_spec(spec).expect("fits");
        world.step(0).expect("it starts");
        assert!(world.scheduler.cached_tokens(id).is_some_and(|tokens| tokens > 1_900));
        world.drain();
        let both = acceptance(&world);
        let rate = |(drafts, accepted): (u64, u64)| accepted * 1_000 / drafts;
        let second = rate((both.0 - first.0, both.1 - first.1));
        assert!(second * 100 >= rate(first) * 95, "{second} and {}", rate(first));
        world.assert_drained();
    }
}

#[test]
fn a_prefix_attracts_against_a_load_in_tokens_and_not_more() {
    let mut config = cached(lockstep(2, 8, 0));
    config.policies = Policies::default();
    let mut world = World::new(config);
    let first = world.submit_to(0, 320, 2);
    world.drain();
    let rank_of = |world: &World, id| world.scheduler.dp_rank_of(id).expect("it runs").get();
    // Rank 0 has 200 tokens to do: fewer than the 304 that the cache saves.
    world.submit_to(0, 100, 50);
    world.step(0);
    let spec = again(&mut world, first, 320);
    let (near, ..) = run(&mut world, spec);
    assert_eq!(rank_of(&world, near), 0);
    // Now it has more than another 304 would save.
    let spec = again(&mut world, first, 320);
    let (far, ..) = run(&mut world, spec);
    assert_eq!(rank_of(&world, far), 1);
    world.drain();
    world.scheduler.reset_prefix_cache();
    assert_eq!(world.scheduler.stats().ranks[0].blocks_cached, 0);
    world.assert_drained();
}

/// Rule 12 over ranks with steps of their own: the empty rank 1 starts at once what rank 0 has cached, unless rank 0 is
/// free to start it too.
#[test]
fn an_empty_rank_waits_for_no_prefix_of_a_rank_whose_step_is_not_done() {
    for is_in_flight in [true, false] {
        let mut config = cached(lockstep(2, 8, 0));
        config.groups = Config::dense_groups(2);
        let mut world = World::new(config);
        let first = world.submit_to(0, 320, 2);
        world.drain();
        let busy = is_in_flight.then(|| {
            world.submit_to(0, 10, 50);
            world.launch(GroupId::new(0)).expect("a step of rank 0")
        });
        let spec = again(&mut world, first, 320);
        let id = world.submit_spec(spec).expect("fits");
        let at_once = world.launch(GroupId::new(1));
        assert_eq!(at_once.is_some(), is_in_flight, "rank 1 starts it only where rank 0 cannot");
        let near = world.launch(GroupId::new(0));
        assert_eq!(near.is_some(), !is_in_flight);
        assert_eq!(world.scheduler.dp_rank_of(id), Some(DpRank::new(u32::from(is_in_flight))));
        for (_, pending) in [busy, at_once, near].into_iter().flatten() {
            pending.into_iter().for_each(|pending| drop(world.deliver(pending)));
        }
        world.drain();
        world.assert_drained();
    }
}

/// The same while no step is in flight: rank 0 has rows, whose next tokens may take the blocks that it seems to have.
#[test]
fn an_empty_rank_waits_for_no_prefix_of_a_rank_with_rows() {
    let mut config = cached(lockstep(2, 8, 0));
    config.groups = Config::dense_groups(2);
    let mut world = World::new(config);
    let first = world.submit_to(0, 320, 2);
    world.drain();
    world.submit_to(0, 10, 50);
    let (_, busy) = world.launch(GroupId::new(0)).expect("a step of rank 0");
    busy.into_iter().for_each(|pending| drop(world.deliver(pending)));
    let spec = again(&mut world, first, 320);
    let id = world.submit_spec(spec).expect("fits");
    let (_, at_once) = world.launch(GroupId::new(1)).expect("a step of rank 1");
    assert_eq!(world.scheduler.dp_rank_of(id), Some(DpRank::new(1)));
    at_once.into_iter().for_each(|pending| drop(world.deliver(pending)));
    world.drain();
    world.assert_drained();
}

#[test]
fn affinity_can_be_switched_off() {
    let mut config = cached(lockstep(2, 8, 0));
    config.policies.prefix_affinity = false;
    let mut world = World::new(config);
    let first = world.submit_to(0, 320, 2);
    world.drain();
    world.submit_to(0, 10, 50);
    world.step(0);
    let spec = again(&mut world, first, 320);
    let (id, _, cached) = run(&mut world, spec);
    assert_eq!((world.scheduler.dp_rank_of(id), cached), (Some(DpRank::new(1)), 0));
}

#[test]
fn choices_of_one_call_compute_their_prompt_once() {
    let mut world = World::new(cached(lockstep(1, 8, 0)));
    let first = world.submit(321, 5);
    for _ in 0..3 {
        let spec = again(&mut world, first, 321);
        world.submit_spec(RequestSpec { shares_prompt_with: Some(first), ..spec }).expect("fits");
    }
    assert_eq!(world.step(0).expect("a step").ranks()[0].rows().len(), 1, "the others wait for the prompt");
    assert_eq!(world.step(0).expect("a step").ranks()[0].rows().len(), 4);
    let counters = world.scheduler.stats().ranks[0].counters.clone();
    assert_eq!((counters.prefix_hit_tokens, counters.prompt_tokens), (3 * 320, 321 + 3));
    assert_eq!(world.scheduler.stats().ranks[0].blocks_used, 20 + 4);
    world.drain();
    world.assert_drained();
}

#[test]
fn a_request_that_wants_every_position_reads_no_cache() {
    let mut world = World::new(cached(lockstep(1, 4, 0)));
    let first = world.submit(100, 3);
    world.drain();
    let spec = again(&mut world, first, 100);
    let (_, plan, cached) = run(&mut world, RequestSpec { prompt_logprobs: true, ..spec });
    assert_eq!((cached, plan.ranks()[0].rows()[0].query_len.get()), (0, 100));
}

#[test]
fn changes_of_the_cache_can_be_followed() {
    let mut config = cached(lockstep(1, 4, 0));
    config.limits.num_blocks = 4;
    let mut world = World::new(config);
    world.scheduler.follow_cache(true);
    world.submit(48, 2);
    world.drain();
    let (changes, missed) = world.scheduler.take_cache_changes(DpRank::new(0)).expect("the rank exists");
    let keys: Vec<_> = changes
        .iter()
        .filter_map(
            |change| if let CacheChange::Stored { key, parent, .. } = change { Some((*key, *parent)) } else { None },
        )
        .collect();
    assert_eq!((keys.len(), changes.len(), missed), (3, 3, 0));
    assert_eq!(keys.iter().map(|(_, parent)| *parent).collect::<Vec<_>>(), [None, Some(keys[0].0), Some(keys[1].0)]);
    world.submit(40, 2);
    world.drain();
    let (changes, _) = world.scheduler.take_cache_changes(DpRank::new(0)).expect("the rank exists");
    assert!(changes.contains(&CacheChange::Removed { key: keys[2].0 }), "{changes:?}");
    world.scheduler.reset_prefix_cache();
    let (changes, _) = world.scheduler.take_cache_changes(DpRank::new(0)).expect("the rank exists");
    assert_eq!(changes, [CacheChange::Cleared]);
}

#[test]
fn a_prompt_whose_every_position_is_wanted_runs_in_chunks_beside_a_drafter() {
    let mut config = cached(lockstep(2, 4, 3));
    config.drafter = Drafter::Model;
    config.limits.max_num_batched_tokens = 32;
    let mut world = World::new(config);
    world.submit_to(0, 10, 50);
    world.step(0);
    let spec = world.spec(70, 6);
    world.submit_spec(RequestSpec { prompt_logprobs: true, pinned: Some(DpRank::new(0)), ..spec }).expect("fits");
    let plan = world.step(0).expect("a step");
    assert_eq!(plan.ranks()[0].rows()[1].logits, LogitsWanted::All);
    assert_eq!(plan.group().passes()[2].loads()[0].rows().get(), 1, "drafts for the row that samples only");
    world.drain();
    world.assert_drained();
}
