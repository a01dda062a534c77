//! Small worlds as whole plans: a real scheduler is brought to a state and plans the step, every rank's worker takes it,
//! and the arrays that its kernels would get are checked.
//!
//! A world is one mix of rows for each rank, up to the order of rows and of ranks (that permuted ranks give permuted
//! plans is checked on a sample here and on random worlds in `permutations`). A row is a short prompt, a long prompt that
//! the budget cuts, exactly Q tokens of a prompt, exactly Q tokens computed again after a lost epoch, a decode with 0 to
//! k drafts, a decode one token below the model's length, or a request that is held; a rank without any row is idle.
//! [`Kind`] says how each comes about. A rank hears of its peers only what they add to the group, its part: decode rows
//! and drafts, prompt rows and tokens, whether a prompt is cut. S is the most rows of a rank. Enumerated are, for k from
//! 0 to 3 and each of three ladders (1 to S; powers of two, with PIECEWISE sizes; one that ends at S / 2, so that rows
//! are held or the step is EAGER):
//!
//! - 2 ranks of at most 4 rows: every mix beside every part of the other rank;
//! - 3 ranks of at most 3 rows, 4 ranks of at most 2 rows: every multiset of parts; where one has a prompt row, which
//!   rules FULL out on every ladder, on one ladder, in turn.
//!
//! Of the mixes that add the same part one is taken for each world, in turn; every mix is. In about half
//! of the worlds there is no draft model (n-grams where k > 0), in half there is one. `exhaustive` decides the shape for all mixes of all ranks.

use std::collections::BTreeMap;

use paceline_plan::{Mode, PassKind, RankLoad, StepPlan};
use paceline_scheduler::{Drafter, HeldReason, Scheduler, ShapeConfig};

use crate::arrays::Arrays;
use crate::small::{Kind, Mix, Past, Small, config, count};

/// One world in so many is run once more with its ranks in the opposite order.
const PERMUTED_EVERY: u64 = 211;
/// Worlds in which a mix is taken before the next of its part is.
const TURN: usize = 8;

/// Every multiset of at most `rows` kinds.
fn mixes(kinds: &[Kind], rows: u32) -> Vec<Mix> {
    let mut all: Vec<Mix> = vec![Mix::new()];
    let mut newest = all.clone();
    for _ in 0..rows {
        let longer = newest.iter().flat_map(|mix| {
            let at_least = mix.last().copied().unwrap_or(kinds[0]);
            kinds.iter().filter(move |kind| **kind >= at_least).map(|kind| [mix.as_slice(), &[*kind]].concat())
        });
        newest = longer.collect();
        all.extend(newest.iter().cloned());
    }
    // Worlds with the same past are neighbours.
    all.sort_by_key(|mix| (Past::of(mix), mix.clone()));
    all
}

/// What a rank's mix adds to its group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Part {
    decode_rows: u32,
    drafts: u32,
    /// Prompts that end in this step.
    whole_rows: u32,
    whole_tokens: u32,
    is_cut: bool,
}

impl Part {
    const fn has_prompt(&self) -> bool {
        self.whole_rows > 0 || self.is_cut
    }
}

fn part(mix: &[Kind], k: u32) -> Part {
    let mut part = Part { is_cut: count(mix, Kind::Long) > 0, ..Part::default() };
    for kind in mix {
        match kind {
            Kind::Decode(drafts) => (part.decode_rows, part.drafts) = (part.decode_rows + 1, part.drafts + drafts),
            Kind::AtLimit => part.decode_rows += 1,
            Kind::Short => (part.whole_rows, part.whole_tokens) = (part.whole_rows + 1, part.whole_tokens + 2),
            Kind::ChunkOfQ | Kind::RecomputeOfQ => {
                (part.whole_rows, part.whole_tokens) = (part.whole_rows + 1, part.whole_tokens + k + 1);
            }
            Kind::Long | Kind::Held => {}
        }
    }
    part
}

fn ladders(rows: u32, k: u32) -> [ShapeConfig; 3] {
    let query_len = 1 + k;
    let below: Vec<u32> = (1..=rows / 2).map(|rows| rows * query_len).collect();
    [
        ShapeConfig::cpu_default(rows, &[k], rows),
        ShapeConfig::powers_of_two(rows, &[k], rows).with_token_ladder(&[4, 8, 16], &[k]),
        ShapeConfig::from_tokens(&below, rows, &[k]),
    ]
}

/// The plan against what the mixes ask for.
fn check_world(plan: &StepPlan, scheduler: &Scheduler, mixes: &[&Mix], parts: &[Part]) {
    let k = scheduler.config().k;
    let group = plan.group();
    assert_eq!(group.k_verify(), k);
    let target = group.target();
    let has_prompt = parts.iter().any(Part::has_prompt);
    let ladder = scheduler.config().shapes.rows(1 + k);
    let largest = parts.iter().map(|part| part.decode_rows).max().unwrap_or(0);
    let entry = ladder.iter().find(|entry| **entry >= largest).copied();
    let top = ladder.last().copied().expect("every ladder has an entry");
    let past: u32 = parts.iter().map(|part| part.decode_rows.saturating_sub(top)).sum();
    let fitting: u32 = parts.iter().map(|part| part.decode_rows).filter(|rows| *rows <= top).sum();
    let full_rows = if has_prompt { None } else { entry.or((past < fitting).then_some(top)) };
    match full_rows {
        Some(rows) => {
            assert_eq!((target.mode(), target.rows_padded().get()), (Mode::Full, rows));
            assert_eq!(target.tokens_padded().get(), rows * (1 + k));
        }
        None => assert_ne!(target.mode(), Mode::Full),
    }
    let explanation = scheduler.explanation(group.group()).expect("a planned step is explained");
    let mut sampled = Vec::with_capacity(mixes.len());
    for (index, (rank, mix)) in plan.ranks().iter().zip(mixes).enumerate() {
        let part = &parts[index];
        let decode_rows = part.decode_rows.min(full_rows.unwrap_or(u32::MAX));
        assert_eq!(rank.decode_rows(), decode_rows);
        assert_eq!(rank.rows_real().get(), decode_rows + part.whole_rows + u32::from(part.is_cut));
        let held = &explanation.ranks[index].held;
        assert_eq!(held.len() as u32, part.decode_rows - decode_rows);
        assert!(held.iter().all(|(_, reason)| *reason == HeldReason::Ladder));
        let (decodes, prompts) = rank.rows().split_at(decode_rows as usize);
        if decode_rows == part.decode_rows {
            assert_eq!(decodes.iter().map(|row| row.drafts).sum::<u32>(), part.drafts);
        }
        let of_q = count(mix, Kind::ChunkOfQ) + count(mix, Kind::RecomputeOfQ);
        assert!(prompts.iter().filter(|row| row.query_len.get() == 1 + k).count() as u32 >= of_q);
        let load = target.loads()[index];
        assert_eq!(load.is_dummy(), rank.is_dummy());
        assert_eq!(load.tokens_run(), if rank.is_dummy() { 1 + k } else { rank.tokens_real().get() });
        sampled.push(decode_rows + part.whole_rows);
    }
    check_passes(plan, scheduler.config().drafter, &sampled);
}

/// The drafter's passes: as many on idle ranks, one token for each row that samples.
fn check_passes(plan: &StepPlan, drafter: Drafter, sampled: &[u32]) {
    let group = plan.group();
    let k_draft = if sampled.iter().any(|rows| *rows > 0) && drafter != Drafter::None { group.k_verify() } else { 0 };
    assert_eq!(group.k_draft(), k_draft);
    let passes = if drafter == Drafter::Model { 1 + k_draft.max(1) } else { 1 };
    assert_eq!(group.passes().len() as u32, passes);
    for pass in &group.passes()[1..] {
        if pass.kind() == PassKind::Extend {
            assert_eq!((pass.shape(), pass.loads()), (group.target().shape(), group.target().loads()));
            continue;
        }
        for (load, rows) in pass.loads().iter().zip(sampled) {
            match load {
                RankLoad::Dummy { query_len } => assert_eq!((*rows, query_len.get()), (0, 1)),
                RankLoad::Real { rows: got, tokens } => assert_eq!((got.get(), tokens.get()), (*rows, *rows)),
            }
        }
    }
}

/// `turned` is the same world with the ranks in the opposite order.
fn check_turned(plan: &StepPlan, turned: &StepPlan) {
    assert_eq!(
        (plan.group().k_verify(), plan.group().k_draft()),
        (turned.group().k_verify(), turned.group().k_draft())
    );
    assert_eq!(plan.group().passes().len(), turned.group().passes().len());
    for (pass, turned) in plan.group().passes().iter().zip(turned.group().passes()) {
        assert_eq!((pass.kind(), pass.shape()), (turned.kind(), turned.shape()));
        assert!(pass.loads().iter().eq(turned.loads().iter().rev()));
    }
    for (rank, turned) in plan.ranks().iter().zip(turned.ranks().iter().rev()) {
        assert_eq!((rank.rows(), rank.decode_rows()), (turned.rows(), turned.decode_rows()));
        assert_eq!((rank.feeds(), rank.block_appends()), (turned.feeds(), turned.block_appends()));
        assert_eq!(rank.releases(), turned.releases());
    }
}

struct Worlds {
    ranks: usize,
    rows: u32,
    k: u32,
    shapes: ShapeConfig,
    /// Which of the three ladders `shapes` is.
    ladder: usize,
    pasts: BTreeMap<Vec<Past>, (usize, Small)>,
    arrays: Vec<Arrays>,
    count: u64,
    permuted: u64,
    by_mode: [u64; 3],
    held: u64,
}

impl Worlds {
    fn new(ranks: usize, rows: u32, k: u32, shapes: ShapeConfig, ladder: usize) -> Self {
        let limits = config(ranks, rows, k, Drafter::None, shapes.clone()).limits;
        let arrays = vec![Arrays::new(&limits); ranks];
        let pasts = BTreeMap::new();
        Self { ranks, rows, k, shapes, ladder, pasts, arrays, count: 0, permuted: 0, by_mode: [0; 3], held: 0 }
    }

    fn past(&self, pasts: &[Past], number: usize) -> Small {
        let without = if self.k == 0 { Drafter::None } else { Drafter::Ngram };
        let drafter = if (number + self.ladder + self.k as usize).is_multiple_of(2) { without } else { Drafter::Model };
        Small::with_past(config(self.ranks, self.rows, self.k, drafter, self.shapes.clone()), pasts)
    }

    fn run(&mut self, mixes: &[&Mix]) {
        let pasts: Vec<Past> = mixes.iter().map(|mix| Past::of(mix)).collect();
        let number = self.pasts.len();
        if !self.pasts.contains_key(&pasts) {
            let past = (number, self.past(&pasts, number));
            self.pasts.insert(pasts.clone(), past);
        }
        let (number, past) = &self.pasts[&pasts];
        let (number, mut small) = (*number, past.clone());
        let parts: Vec<Part> = mixes.iter().map(|mix| part(mix, self.k)).collect();
        let plan = small.next_step(mixes, &mut self.arrays);
        self.count += 1;
        let Some(plan) = plan else {
            assert!(parts.iter().all(|part| *part == Part::default()), "nothing runs where rows could: {mixes:?}");
            return;
        };
        check_world(&plan, &small.scheduler, mixes, &parts);
        self.by_mode[plan.group().target().mode() as usize] += 1;
        self.held +=
            u64::from(plan.ranks().iter().zip(&parts).any(|(rank, part)| rank.decode_rows() < part.decode_rows));
        if self.count.is_multiple_of(PERMUTED_EVERY) {
            let turned: Vec<&Mix> = mixes.iter().rev().copied().collect();
            let pasts: Vec<Past> = turned.iter().map(|mix| Past::of(mix)).collect();
            let turned = self.past(&pasts, number).next_step(&turned, &mut self.arrays);
            check_turned(&plan, &turned.expect("the same world has a step"));
            self.permuted += 1;
        }
    }
}

/// Mixes that add the same to the group, and how often one of them was taken.
struct Peers {
    mixes: Vec<Mix>,
    taken: usize,
}

impl Peers {
    /// The next in turn. Worlds that follow each other often share one, and with it a past.
    fn take(&mut self) -> Mix {
        self.taken += 1;
        self.mixes[(self.taken - 1) / TURN % self.mixes.len()].clone()
    }

    fn of(mixes: &[Mix], k: u32) -> Vec<Self> {
        let mut groups: BTreeMap<Part, Vec<Mix>> = BTreeMap::new();
        mixes.iter().for_each(|mix| groups.entry(part(mix, k)).or_default().push(mix.clone()));
        groups.into_values().map(|mixes| Self { mixes, taken: 0 }).collect()
    }
}

/// Every mix on the first rank, every part on the second.
fn pairs(worlds: &mut Worlds, mixes: &[Mix]) {
    let mut peers = Peers::of(mixes, worlds.k);
    for mix in mixes {
        for peer in &mut peers {
            worlds.run(&[mix, &peer.take()]);
        }
    }
    assert!(peers.iter().all(|peers| peers.taken >= peers.mixes.len() * TURN), "every mix has had its turn");
}

/// Every multiset of parts; with prompt rows on one ladder in turn.
fn multisets(worlds: &mut Worlds, mixes: &[Mix]) {
    let mut peers = Peers::of(mixes, worlds.k);
    let mut chosen = vec![0; worlds.ranks];
    let mut number = 0;
    loop {
        number += 1;
        let has_prompt = chosen.iter().any(|index| part(&peers[*index].mixes[0], worlds.k).has_prompt());
        if has_prompt && number % 3 != worlds.ladder {
            if advance(&mut chosen, peers.len()) {
                continue;
            }
            break;
        }
        let mixes: Vec<Mix> = chosen.iter().map(|index| peers[*index].take()).collect();
        worlds.run(&mixes.iter().collect::<Vec<_>>());
        if !advance(&mut chosen, peers.len()) {
            break;
        }
    }
    assert!(peers.iter().all(|peers| peers.taken >= peers.mixes.len() * TURN), "every mix has had its turn");
}

/// The next multiset, as indices that never go down.
fn advance(chosen: &mut [usize], count: usize) -> bool {
    let Some(position) = chosen.iter().rposition(|index| index + 1 < count) else { return false };
    let next = chosen[position] + 1;
    chosen[position..].fill(next);
    true
}

fn worlds(ranks: usize, rows: u32, enumerate: impl Fn(&mut Worlds, &[Mix])) {
    let (mut count, mut permuted, mut held, mut by_mode) = (0, 0, 0, [0; 3]);
    for k in 0..=3 {
        let mixes = mixes(&Kind::all(k), rows);
        for (index, shapes) in ladders(rows, k).into_iter().enumerate() {
            let mut run = Worlds::new(ranks, rows, k, shapes, index);
            enumerate(&mut run, &mixes);
            count += run.count;
            permuted += run.permuted;
            held += run.held;
            (0..3).for_each(|mode| by_mode[mode] += run.by_mode[mode]);
        }
    }
    println!(
        "{ranks} ranks of at most {rows} rows: {count} worlds, {permuted} of them permuted too; FULL {}, PIECEWISE {}, \
         EAGER {}; rows held in {held}",
        by_mode[0], by_mode[1], by_mode[2]
    );
    assert!(by_mode.iter().all(|count| *count > 0) && permuted > 0 && held > 0);
}

#[test]
fn plans_of_two_ranks_of_four_rows() {
    worlds(2, 4, pairs);
}

#[test]
fn plans_of_three_ranks_of_three_rows() {
    worlds(3, 3, multisets);
}

#[test]
fn plans_of_four_ranks_of_two_rows() {
    worlds(4, 2, multisets);
}
