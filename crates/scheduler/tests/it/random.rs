//! Random worlds: requests, aborts, replies in any order, lost groups, ranks that come and go. The world's workers and
//! its model check every step; what is left at the end must be nothing.

use paceline_plan::{DpRank, GroupId};
use paceline_scheduler::{
    Alignment, CacheSecret, Config, Drafter, KByRows, Policies, RankCounters, RequestId, Scheduler, ShapeConfig, Stats,
};
use proptest::prelude::*;

use crate::world::{Pending, Random, World, limits};

/// A configuration that is small in everything, from one number.
fn config(seed: u64, depth: u32) -> Config {
    let mut random = Random(seed);
    let ranks = 1 + random.below(4);
    let max_num_seqs = 1 + random.below(6);
    let k = random.below(5);
    let mut limits = limits(max_num_seqs, k);
    limits.seats = max_num_seqs + random.below(3);
    limits.max_num_batched_tokens = 1 + k + random.below(40);
    limits.max_model_len = 8 + random.below(60);
    limits.block_size = 1 + random.below(8);
    limits.num_blocks = 1 + (limits.max_model_len / limits.block_size) * (1 + random.below(3)) / 2;
    limits.table_width = (limits.max_model_len + k).div_ceil(limits.block_size);
    limits.vocab_size = 50;
    let mut k_values = vec![k];
    if random.chance(300) {
        k_values.push(random.below(k + 1));
    }
    let shapes = match random.below(5) {
        0 => ShapeConfig::eager(),
        1 => ShapeConfig::powers_of_two(max_num_seqs, &k_values, max_num_seqs),
        2 => ShapeConfig::from_tokens(&[1, 2 * (1 + k)], max_num_seqs.max(2), &k_values),
        3 => ShapeConfig::cpu_default(max_num_seqs, &k_values, max_num_seqs).with_token_ladder(&[8, 16, 32], &k_values),
        _ => ShapeConfig::cpu_default(max_num_seqs, &k_values, max_num_seqs),
    };
    let groups = match random.below(3) {
        0 => Config::dense_groups(ranks),
        1 if ranks > 2 => {
            let all: Vec<DpRank> = (0..ranks).map(DpRank::new).collect();
            let (one, other) = all.split_at(2);
            vec![one.to_vec(), other.to_vec()]
        }
        _ => Config::lockstep_groups(ranks),
    };
    let mut config = Config::new(groups, limits, shapes);
    config.k = k;
    config.k_verify_values = k_values;
    config.drafter = match random.below(2) {
        _ if k == 0 => Drafter::None,
        0 => Drafter::Ngram,
        _ => Drafter::Model,
    };
    config.drafter_layers = 1 + random.below(2);
    config.depth = depth;
    if random.chance(300) {
        let entry = |rows_most| KByRows { rows_most, k: random.below(k + 1) };
        config.k_by_rows = (1..=max_num_seqs).map(entry).collect();
    }
    choose_policies(&mut config, &mut random);
    config
}

/// Half of the worlds cache prefixes, and each policy is on in some.
fn choose_policies(config: &mut Config, random: &mut Random) {
    config.prefix_cache = random.chance(500).then(|| CacheSecret::new(random.next(), random.next()));
    let some = |random: &mut Random, end: u32| if random.chance(300) { 1 + random.below(end) } else { 0 };
    config.policies = Policies {
        priority: random.chance(800),
        priority_preempts: random.chance(300),
        preemptions_free: random.below(3),
        watermark_blocks: some(random, 3),
        skips_max: some(random, 3),
        prefix_affinity: random.chance(700),
        load_in_tokens: random.chance(700),
        long_prefill_tokens: some(random, 20),
        gap_tokens: some(random, 20),
        alignment: random
            .chance(300)
            .then(|| Alignment { delay_steps: random.below(4), even_percent: 50 + random.below(51) }),
    };
}

struct Run {
    world: World,
    pending: Vec<Pending>,
    late: Vec<Pending>,
    pins: bool,
    shares: bool,
}

impl Run {
    fn event(&mut self) {
        let groups = self.world.scheduler.config().groups.len() as u32;
        match self.world.random.below(100) {
            0..20 => self.submit(),
            20..50 => {
                let group = GroupId::new(self.world.random.below(groups));
                if let Some((_, pending)) = self.world.launch(group) {
                    self.pending.extend(pending);
                }
            }
            50..88 => self.deliver_one(),
            88..93 => self.abort(),
            93..95 => self.late_reply(),
            95..96 => self.void(groups),
            96..97 => {
                let dp_rank = DpRank::new(self.world.random.below(self.world.workers.len() as u32));
                let available = self.world.random.chance(600);
                self.world.scheduler.set_available(dp_rank, available);
            }
            97..98 => {
                let dp_rank = DpRank::new(self.world.random.below(self.world.workers.len() as u32));
                let paused = self.world.random.chance(300);
                self.world.scheduler.set_paused(dp_rank, paused);
            }
            _ => self.whole_round(),
        }
    }

    fn submit(&mut self) {
        let longest = self.world.scheduler.config().limits.max_model_len;
        let (prompt, output) = (1 + self.world.random.below(longest), 1 + self.world.random.below(longest / 2));
        let mut spec = self.world.spec(prompt, output);
        // Some prompts begin like others.
        if self.world.random.chance(600) {
            let family = self.world.random.below(3);
            spec.prompt = (0..prompt).map(|index| (index * 7 + index / 5 + family) % 50).collect();
        }
        spec.prompt_logprobs = self.world.random.chance(100);
        if self.shares && self.world.random.chance(200) {
            spec.shares_prompt_with = self.live().last().copied();
        }
        spec.priority = self.world.random.below(3).cast_signed() - 1;
        if self.world.random.chance(300) {
            spec.stop_token_ids = vec![3, 1];
        }
        if self.pins && self.world.random.chance(200) {
            spec.pinned = Some(DpRank::new(self.world.random.below(self.world.workers.len() as u32)));
        }
        if let Err(refusal) = self.world.submit_spec(spec) {
            assert!(!refusal.is_load(), "{refusal}");
        }
    }

    fn deliver_one(&mut self) {
        if self.pending.is_empty() {
            return;
        }
        // A worker answers its steps in order; ranks answer in any.
        let chosen = self.pending[self.world.random.below(self.pending.len() as u32) as usize].dp_rank;
        let index = self.pending.iter().position(|pending| pending.dp_rank == chosen).expect("the chosen one");
        let pending = self.pending.remove(index);
        if self.world.random.chance(50) {
            let (header, reply, dp_rank) = (pending.header, pending.reply.clone(), pending.dp_rank);
            self.late.push(Pending { dp_rank, header, reply });
        }
        self.world.deliver(pending);
    }

    fn abort(&mut self) {
        let live: Vec<RequestId> = self.live();
        if !live.is_empty() {
            let id = live[self.world.random.below(live.len() as u32) as usize];
            assert!(self.world.abort(id));
        }
    }

    fn live(&self) -> Vec<RequestId> {
        let live = self.world.requests.iter().filter(|(_, live)| live.finished.is_none() && !live.aborted);
        live.map(|(id, _)| *id).collect()
    }

    fn late_reply(&mut self) {
        if let Some(late) = self.late.pop() {
            assert!(self.world.deliver(late).is_empty(), "a late reply touches nothing");
        }
    }

    fn void(&mut self, groups: u32) {
        let group = GroupId::new(self.world.random.below(groups));
        let (void, kept) = self.pending.drain(..).partition(|pending| pending.header.group == group);
        self.pending = kept;
        self.late.extend::<Vec<_>>(void);
        let lost = self.world.scheduler.void_group(group);
        let epoch = self.world.scheduler.epoch(group).expect("the group exists");
        for dp_rank in self.world.scheduler.config().groups[group.get() as usize].clone() {
            self.world.workers[dp_rank.index()].reset(epoch);
        }
        for id in lost {
            if self.world.random.chance(700) {
                assert!(self.world.scheduler.requeue(id));
            } else {
                assert!(self.world.abort(id));
            }
        }
    }

    fn deliver_all(&mut self) {
        while !self.pending.is_empty() {
            self.deliver_one();
        }
    }

    /// Everything ends, and nothing is left.
    fn end(&mut self) {
        self.whole_round();
        let pending = std::mem::take(&mut self.pending);
        self.world.drain_ahead(pending);
        self.world.assert_drained();
    }

    fn preemptions(&self) -> u64 {
        self.world.scheduler.stats().ranks.iter().map(|rank| rank.counters.preemptions).sum()
    }

    /// Rule 12: once every group was planned, no rank is idle while a request waits that may start there.
    fn whole_round(&mut self) {
        self.deliver_all();
        let groups = self.world.scheduler.config().groups.len() as u32;
        let ranks = self.world.workers.len() as u32;
        for dp_rank in (0..ranks).map(DpRank::new) {
            self.world.scheduler.set_available(dp_rank, true);
            self.world.scheduler.set_paused(dp_rank, false);
        }
        let preempted = self.preemptions();
        for group in 0..groups {
            if let Some((_, pending)) = self.world.launch(GroupId::new(group)) {
                self.pending.extend(pending);
            }
        }
        let stats = self.world.scheduler.stats();
        // What a later group preempts has come too late for an earlier one that is in flight by now.
        let aligned = self.world.scheduler.config().policies.alignment.is_some();
        if stats.waiting > 0 && !self.pins && !self.shares && !aligned && self.preemptions() == preempted {
            for rank in &stats.ranks {
                assert!(rank.running > 0, "dp_rank {} is idle while {} wait", rank.dp_rank, stats.waiting);
            }
        }
        self.world.scheduler.assert_consistent();
    }
}

/// Runs a world; what its ranks counted, or nothing when its configuration is refused.
fn run(seed: u64, depth: u32, events: u32) -> Option<Stats> {
    let config = config(seed, depth);
    Scheduler::new(config.clone()).ok()?;
    let mut world = World::new(config);
    world.random = Random(seed ^ 0xabcd);
    world.accept_permille = world.random.below(1001);
    world.propose_permille = world.random.below(1001);
    let pins = world.random.chance(300);
    let shares = world.random.chance(300);
    let mut run = Run { world, pending: Vec::new(), late: Vec::new(), pins, shares };
    for _ in 0..events {
        run.event();
    }
    run.end();
    Some(run.world.scheduler.stats())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_random_world_holds_the_rules(seed in any::<u64>()) {
        run(seed, (seed % 3) as u32, 300);
    }
}

/// A request whose prefix a rank of another group has cached waited beside an empty rank: for a step in flight to end, and
/// for blocks that the other rank's own rows took.
#[test]
fn worlds_that_broke_a_rule_once_hold_the_rules() {
    run(10_565_702_297_107_185_243, 0, 300);
    run(17_183_824_781_268_367_838, 2, 300);
}

type Count = fn(&RankCounters) -> u64;

/// The same, long enough that everything that can happen to a request happens.
#[test]
fn long_random_worlds_hold_the_rules_and_meet_everything() {
    long_worlds(0);
}

#[test]
fn long_random_worlds_one_step_ahead_hold_the_rules_and_meet_everything() {
    long_worlds(1);
}

fn long_worlds(depth: u32) {
    let worlds: Vec<Stats> = (0..24).filter_map(|seed| run(seed, depth, 3_000)).collect();
    assert!(worlds.len() > 12, "most configurations are correct: {}", worlds.len());
    let total =
        |count: Count| -> u64 { worlds.iter().flat_map(|stats| &stats.ranks).map(|rank| count(&rank.counters)).sum() };
    let met: [(&str, Count); 14] = [
        ("dummy steps", |rank| rank.dummy_steps),
        ("full steps", |rank| rank.steps_by_mode[0]),
        ("piecewise steps", |rank| rank.steps_by_mode[1]),
        ("eager steps", |rank| rank.steps_by_mode[2]),
        ("preemptions", |rank| rank.preemptions),
        ("held by budget", |rank| rank.held_by_budget),
        ("held by blocks", |rank| rank.held_by_blocks),
        ("held by ladder", |rank| rank.held_by_ladder),
        ("trimmed drafts", |rank| rank.drafts_trimmed),
        ("wanted blocks that were missing", |rank| rank.wanted_blocks_missing),
        ("accepted drafts", |rank| rank.drafts.accepted_tokens),
        ("stale replies", |rank| rank.stale_replies),
        ("placeholders", |rank| rank.padding().placeholders),
        ("downgrades by ladder", |rank| rank.downgrades_ladder),
    ];
    for (name, count) in met {
        assert!(total(count) > 0, "no world met {name}");
    }
    for stats in &worlds {
        for rank in &stats.ranks {
            let counters = &rank.counters;
            assert_eq!(counters.real_tokens() + counters.padding().total(), counters.padded_tokens);
            let real = counters.tokens_by_mode.map(|tokens| tokens.real);
            assert_eq!(real.iter().sum::<u64>(), counters.real_tokens());
            let [full, ..] = counters.tokens_by_mode;
            assert_eq!(full.padding.attention, full.padding.total(), "in FULL attention runs all padding");
            let not_full = counters.padding().attention - full.padding.attention;
            assert_eq!(not_full, counters.padding().idle_dummy - full.padding.idle_dummy, "elsewhere the dummies only");
        }
    }
}

/// A million events over fifty worlds, every other one planned one step ahead: after each step the numbers of the rules,
/// every thousand events a recount.
#[test]
fn g05_a_million_random_events_hold_every_number() {
    let (mut events, mut seed) = (0, 1_000_000);
    while events < 1_000_000 {
        seed += 1;
        let config = config(seed, (seed % 2) as u32);
        if Scheduler::new(config.clone()).is_err() {
            continue;
        }
        let mut world = World::new(config);
        world.random = Random(seed);
        world.accept_permille = world.random.below(1001);
        world.propose_permille = world.random.below(1001);
        let mut run = Run { world, pending: Vec::new(), late: Vec::new(), pins: false, shares: seed % 3 == 0 };
        for _ in 0..20 {
            for _ in 0..1_000 {
                run.event();
            }
            events += 1_000;
            run.world.scheduler.assert_consistent();
            run.deliver_all();
            run.world.requests.retain(|_, live| live.finished.is_none() && !live.aborted);
        }
        run.end();
    }
}
