//! Every decision of placement is told with its reason, the reason is true, and each policy can be switched off.

use paceline_plan::{DpRank, GroupId};
use paceline_scheduler::{
    Alignment, Config, HeldReason, LevelReason, Pace, PlacementReason, Policies, RequestId, RequestSpec, Started,
};

use crate::prefix::cached;
use crate::world::{World, lockstep};

const GROUP: GroupId = GroupId::new(0);

/// Two ranks of one group, with the prefix cache.
fn world(policies: Policies) -> World {
    World::new(Config { policies, ..cached(lockstep(2, 8, 0)) })
}

/// The step in which a request starts: its rank, and what is told of it.
fn start(world: &mut World, id: RequestId) -> (u32, Started) {
    for _ in 0..200 {
        world.step(0).expect("a step");
        let explanation = world.scheduler.explanation(GROUP).expect("a step");
        for rank in &explanation.ranks {
            if let Some(started) = rank.started.iter().find(|started| started.id == id) {
                assert_eq!(world.scheduler.dp_rank_of(id), Some(rank.dp_rank), "it is where it is said to be");
                return (rank.dp_rank.get(), *started);
            }
        }
    }
    panic!("request {id} never starts");
}

fn words(world: &World) -> String {
    world.scheduler.explanation(GROUP).expect("a step").words(|id| format!("<{id}>"))
}

fn same_prompt(world: &mut World, first: RequestId) -> RequestId {
    let prompt = world.requests[&first].spec.prompt.clone();
    let spec = RequestSpec { prompt, ..world.spec(1, 4) };
    world.submit_spec(spec).expect("fits")
}

/// Rank 0 has the prompt of 320 tokens cached, and 110 tokens of another request to do; rank 1 has nothing.
fn cached_beside_a_load(policies: Policies) -> (World, RequestId) {
    let mut world = world(policies);
    let first = world.submit_to(0, 320, 2);
    world.drain();
    world.submit_to(0, 10, 100);
    world.step(0);
    (world, first)
}

#[test]
fn a_prefix_is_the_reason_where_it_turns_the_choice_and_only_there() {
    let (mut world, first) = cached_beside_a_load(Policies::default());
    let load = world.scheduler.stats().ranks[0].load_tokens;
    let again = same_prompt(&mut world, first);
    let (dp_rank, started) = start(&mut world, again);
    // 19 of its 20 blocks are read: 16 tokens are left to compute here, all 320 on the idle rank.
    let reason = PlacementReason::Prefix { cached_tokens: 304, load: load + 16, otherwise: 320 };
    assert_eq!((dp_rank, started.reason, started.cached_tokens), (0, reason, 304));
    assert!(words(&world).contains("304 tokens of it are cached here"), "{}", words(&world));

    // Off: the same request goes where the load is least, and that is what is told.
    let (mut world, first) = cached_beside_a_load(Policies { prefix_affinity: false, ..Policies::default() });
    let load = world.scheduler.stats().ranks[0].load_tokens;
    let again = same_prompt(&mut world, first);
    let (dp_rank, started) = start(&mut world, again);
    assert_eq!((dp_rank, started.reason), (1, PlacementReason::Load { load: 0, next: load }));

    // Where the rank would have been chosen in any case, the prefix is no reason.
    let mut world = self::world(Policies::default());
    let first = world.submit_to(0, 320, 2);
    world.submit_to(1, 10, 100);
    while world.requests[&first].finished.is_none() {
        world.step(0);
    }
    let load = world.scheduler.stats().ranks[1].load_tokens;
    let again = same_prompt(&mut world, first);
    let (dp_rank, started) = start(&mut world, again);
    assert_eq!((dp_rank, started.reason), (0, PlacementReason::Load { load: 16, next: load + 320 }));
    assert_eq!(started.cached_tokens, 304);
}

/// Rank 0 runs one request of 1,000 tokens, rank 1 two of 100.
fn long_beside_two_short(policies: Policies) -> (u32, PlacementReason, Vec<u64>) {
    let mut world = world(policies);
    for (dp_rank, prompt) in [(0, 1_000), (1, 100), (1, 100)] {
        world.submit_to(dp_rank, prompt, 50);
    }
    world.step(0);
    let loads = world.scheduler.stats().ranks.iter().map(|rank| rank.load_tokens).collect();
    let id = world.submit(40, 4);
    let (dp_rank, started) = start(&mut world, id);
    (dp_rank, started.reason, loads)
}

#[test]
fn the_load_that_is_told_is_the_load_that_was_compared() {
    let (dp_rank, reason, loads) = long_beside_two_short(Policies::default());
    assert_eq!((dp_rank, reason), (1, PlacementReason::Load { load: loads[1] + 40, next: loads[0] + 40 }));
    assert!((1_000..1_010).contains(&loads[0]) && (200..210).contains(&loads[1]), "{loads:?}");
    // Off: requests are counted, one against two.
    let (dp_rank, reason, _) = long_beside_two_short(Policies { load_in_tokens: false, ..Policies::default() });
    assert_eq!((dp_rank, reason), (0, PlacementReason::Load { load: 1 + 40, next: 2 + 40 }));
}

#[test]
fn a_pinned_request_says_so_and_a_rank_without_a_choice_too() {
    let mut world = world(Policies::default());
    let pinned = world.submit_to(1, 40, 50);
    assert_eq!(start(&mut world, pinned).1.reason, PlacementReason::Pinned);
    assert!(words(&world).contains("it may run on no other rank"));
    // Equal loads on both ranks: whoever waited longer.
    let mut world = self::world(Policies::default());
    let first = world.submit(40, 50);
    assert_eq!(start(&mut world, first).1.reason, PlacementReason::Turn);
    world.scheduler.set_available(DpRank::new(0), false);
    let second = world.submit(40, 50);
    let (dp_rank, started) = start(&mut world, second);
    assert_eq!((dp_rank, started.reason), (1, PlacementReason::OnlyRank));
    assert!(words(&world).contains("no other rank could start it"));
}

/// Rank 0 is too small for what runs there: its later request leaves. Rank 1 ends what it has.
#[test]
fn a_request_that_moves_to_another_rank_says_where_it_was() {
    let mut config = lockstep(2, 4, 0);
    config.limits.num_blocks = 10;
    let mut world = World::new(config);
    let blocker = world.submit_to(1, 150, 5);
    world.submit_to(0, 60, 95);
    let later = world.spec(60, 60);
    let later = world.submit_spec(later).expect("fits");
    let (dp_rank, started) = start(&mut world, later);
    assert_eq!((dp_rank, started.ran_on), (0, None), "rank 1 is full");
    while world.scheduler.stats().ranks[0].counters.preemptions == 0 {
        world.step(0).expect("blocks run out");
    }
    assert!(world.requests[&blocker].finished.is_some());
    let told = world.scheduler.explanation(GROUP).expect("a step");
    let moved = told.ranks[1].started.iter().find(|started| started.id == later).copied();
    let (dp_rank, started) = moved.map_or_else(|| start(&mut world, later), |started| (1, started));
    assert_eq!((dp_rank, started.ran_on, started.id), (1, Some(DpRank::new(0)), later));
    assert!(words(&world).contains("started again, moved from dp_rank 0"), "{}", words(&world));
    world.drain();
    world.assert_drained();
}

#[test]
fn victims_of_a_priority_are_told_and_can_be_spared() {
    for preempts in [true, false] {
        let mut config = lockstep(1, 2, 0);
        config.policies = Policies { priority_preempts: preempts, ..Policies::default() };
        let mut world = World::new(config);
        for _ in 0..2 {
            let spec = world.spec(20, 30);
            world.submit_spec(RequestSpec { priority: 5, ..spec }).expect("fits");
        }
        world.step(0);
        let urgent = world.submit(20, 4);
        let (_, started) = start(&mut world, urgent);
        let preemptions = world.scheduler.stats().ranks[0].counters.preemptions;
        if preempts {
            assert_eq!((started.reason, preemptions), (PlacementReason::Priority { victims: 1 }, 1));
            assert!(words(&world).contains("1 request of lower priority made room"));
        } else {
            assert_eq!((started.reason, preemptions), (PlacementReason::OnlyRank, 0), "it waited for a seat");
        }
        world.drain();
        world.assert_drained();
    }
}

/// Rank 0 decodes, a prompt of 300 tokens comes for rank 1, whose budget is 400.
fn a_lonely_prompt(policies: Policies) -> (World, RequestId) {
    let mut config = lockstep(2, 8, 0);
    config.limits.max_num_batched_tokens = 400;
    let mut world = World::new(Config { policies, ..config });
    world.submit_to(0, 10, 100);
    world.step(0);
    let prompt = world.submit_to(1, 300, 3);
    (world, prompt)
}

#[test]
fn alignment_tells_how_long_prompts_are_held_and_can_be_switched_off() {
    let alignment = Some(Alignment { delay_steps: 3, even_percent: 90 });
    let (mut world, prompt) = a_lonely_prompt(Policies { alignment, ..Policies::default() });
    for steps in 1..=3 {
        world.step(0);
        assert_eq!(world.scheduler.explanation(GROUP).expect("a step").pace, Pace::Held { steps, most: 3 });
        assert!(words(&world).contains(&format!("held until they run on several ranks, step {steps} of at most 3")));
        assert_eq!(world.scheduler.dp_rank_of(prompt), None);
    }
    world.step(0);
    let explanation = world.scheduler.explanation(GROUP).expect("a step");
    assert_eq!(explanation.pace, Pace::Level { tokens: 50, reason: LevelReason::Waited });
    assert_eq!(explanation.ranks[1].real_tokens, 50);
    // What runs now and is held later is named.
    world.step(0);
    let explanation = world.scheduler.explanation(GROUP).expect("a step");
    assert_eq!(explanation.ranks[1].held, [(prompt, HeldReason::Alignment)]);

    let (mut world, prompt) = a_lonely_prompt(Policies::default());
    world.step(0);
    let explanation = world.scheduler.explanation(GROUP).expect("a step");
    assert_eq!((explanation.pace, explanation.ranks[1].real_tokens), (Pace::Free, 300));
    assert!(world.scheduler.dp_rank_of(prompt).is_some() && !words(&world).contains("prompts:"));
}

#[test]
fn aligned_prompts_go_to_the_rank_with_the_fewest_and_say_so() {
    for (alignment, expected) in [(Some(Alignment { delay_steps: 3, even_percent: 90 }), 1), (None, 0)] {
        let mut world = world(Policies { alignment, ..Policies::default() });
        // Rank 1 has more to do in all, rank 0 a prompt that is running.
        for _ in 0..4 {
            world.submit_to(1, 2_000, 50);
        }
        world.step(0);
        world.step(0);
        let prompt = world.submit_to(0, 3_000, 50);
        let id = world.submit(3_000, 50);
        let (dp_rank, started) = start(&mut world, id);
        assert_eq!(dp_rank, expected);
        let is_told = matches!(started.reason, PlacementReason::Prompts { tokens: 0, next: 3_000 });
        assert_eq!(is_told, alignment.is_some(), "{started:?} beside {prompt}");
    }
}

#[test]
fn a_chunk_that_is_cut_for_anothers_decode_says_so_and_can_be_whole() {
    for (gap_tokens, expected) in [(64, 64), (0, 300)] {
        let (mut world, _) = a_lonely_prompt(Policies { gap_tokens, ..Policies::default() });
        world.step(0);
        let explanation = world.scheduler.explanation(GROUP).expect("a step");
        assert_eq!(explanation.ranks[1].real_tokens, expected);
        let told = Pace::Level { tokens: 64, reason: LevelReason::Gap };
        assert_eq!(explanation.pace, if gap_tokens > 0 { told } else { Pace::Free });
        let cut = words(&world).contains("prompts: at most 64 tokens of a rank, for another rank decodes");
        assert_eq!(cut, gap_tokens > 0);
    }
}
