//! Small worlds one step ahead: a step that was planned while another ran, against everything that can have come of that
//! one. The plan is made once; for every outcome the workers take it, its arrays are checked, and the requests go on.
//!
//! Two ranks of at most two rows. A row in flight is a prompt, a chunk of one, a decode row with 0 to k drafts, one whose
//! request may end there, one whose request does. An outcome of a row is how many of its drafts are right, how many new
//! ones are proposed (0, 1 or all), and whether the last token ends the request. The outcomes of rank 0 are enumerated for
//! every mix on it; its peer has every mix and every outcome in turn.

use paceline_plan::seats::{RowOutcome, SeatTable, StepHeader, WorkerStep};
use paceline_plan::{DpRank, Epoch, GroupId, LogitsWanted, StepPlan, digest, to_bytes};
use paceline_scheduler::{Drafter, RequestId, RequestSpec, Scheduler, ShapeConfig};

use crate::arrays::Arrays;
use crate::checks::check_plan;
use crate::small::config;

const GROUP: GroupId = GroupId::new(0);
const ROWS: u32 = 2;
/// What rows emit.
const TOKEN: u32 = 8;
/// What ends a request.
const STOP: u32 = 9;

/// What a request has in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Prompt,
    Chunk,
    Decode(u32),
    MayEnd(u32),
    Last,
}

impl Kind {
    fn all(k: u32) -> Vec<Self> {
        let mut kinds = vec![Self::Prompt, Self::Chunk, Self::Last];
        kinds.extend((0..=k).map(Self::Decode));
        kinds.extend((1..=k).map(Self::MayEnd));
        kinds
    }

    /// Tokens of the prompt and of the output.
    const fn lengths(self) -> (u32, u32) {
        match self {
            Self::Prompt => (3, 5),
            Self::Chunk => (22, 3),
            Self::Decode(_) => (4, 15),
            Self::MayEnd(drafts) => (4, 2 + drafts),
            Self::Last => (4, 2),
        }
    }

    /// Drafts that are proposed to it for the step in flight; nothing when it starts there.
    const fn proposed(self) -> Option<u32> {
        match self {
            Self::Prompt | Self::Chunk => None,
            Self::Decode(drafts) | Self::MayEnd(drafts) => Some(drafts),
            Self::Last => Some(0),
        }
    }
}

/// What comes of a row.
#[derive(Clone, Copy, Debug)]
struct Came {
    accepted: u32,
    proposed: u32,
    stops: bool,
}

fn outcomes(drafts: u32, k_draft: u32) -> Vec<Came> {
    let mut all = Vec::new();
    for accepted in 0..=drafts {
        let mut proposals = vec![0, 1.min(k_draft), k_draft];
        proposals.dedup();
        all.extend(proposals.into_iter().map(|proposed| Came { accepted, proposed, stops: false }));
        all.push(Came { accepted, proposed: k_draft, stops: true });
    }
    all
}

#[derive(Clone)]
struct Ahead {
    scheduler: Scheduler,
    workers: Vec<SeatTable>,
    next_id: u64,
}

impl Ahead {
    fn new(k: u32, drafter: Drafter, shapes: ShapeConfig) -> Self {
        let mut config = config(2, ROWS, k, drafter, shapes);
        config.depth = 1;
        let dp_ranks = config.groups[0].clone();
        let workers = dp_ranks.iter().map(|dp_rank| {
            let table = SeatTable::new(config.limits, *dp_rank, dp_ranks.clone()).expect("the rank is in its group");
            let mut table = table.with_drafter_layers(config.lookahead()).with_depth(1);
            table.reset(Epoch::new(1));
            table
        });
        Self { workers: workers.collect(), scheduler: Scheduler::new(config).expect("correct"), next_id: 0 }
    }

    fn submit(&mut self, rank: usize, kind: Kind) -> u64 {
        self.next_id += 1;
        let (prompt_len, max_new_tokens) = kind.lengths();
        let spec = RequestSpec {
            id: RequestId(self.next_id),
            prompt: vec![7; prompt_len as usize],
            max_new_tokens,
            stop_token_ids: vec![STOP],
            sampling: self.next_id.to_le_bytes().to_vec(),
            pinned: Some(DpRank::new(rank as u32)),
            priority: 0,
            history: false,
            prompt_logprobs: false,
            cache_salt: Vec::new(),
            shares_prompt_with: None,
            constrained: false,
        };
        self.scheduler.submit(spec).expect("the request fits");
        self.next_id
    }

    fn plan(&mut self) -> Option<StepPlan> {
        let plan = self.scheduler.plan(GROUP)?;
        check_plan(&plan, &self.scheduler);
        Some(plan)
    }

    /// Every worker takes the plan; what its kernels would get is checked.
    fn begin(&mut self, plan: &StepPlan, arrays: &mut [Arrays]) -> Vec<WorkerStep> {
        let part = to_bytes(plan.group());
        let (epoch, step) = (plan.group().epoch(), plan.group().step());
        let header = StepHeader { group: GROUP, epoch, step, digest: digest(&part) };
        let ranks = plan.ranks().iter().zip(&mut self.workers).zip(arrays);
        let begun = ranks.map(|((rank, worker), arrays)| {
            let begun = worker.begin(header, &part, &to_bytes(rank));
            let begun = begun.unwrap_or_else(|error| panic!("worker {} refuses: {error}", rank.dp_rank()));
            arrays.fill_and_check(worker, &begun);
            begun
        });
        begun.collect()
    }

    /// Every rank answers; `came` says what came of each request's row, by its drafts.
    fn answer(&mut self, steps: &[WorkerStep], came: impl Fn(u64, u32, u32) -> Came) {
        for (rank, step) in steps.iter().enumerate() {
            let rows = step.rank.rows().iter().map(|row| {
                let state = self.workers[rank].seat(row.seat).expect("the row's seat is taken");
                if row.logits == LogitsWanted::None {
                    return RowOutcome::default();
                }
                let id = u64::from_le_bytes(state.sampling().try_into().expect("eight bytes"));
                let came = came(id, state.drafts_of(row).len() as u32, step.group.k_draft());
                let mut emitted = vec![TOKEN; 1 + came.accepted as usize];
                emitted[came.accepted as usize] = if came.stops { STOP } else { TOKEN };
                let proposed = vec![TOKEN; came.proposed as usize];
                RowOutcome { accepted: came.accepted, emitted, proposed, ..RowOutcome::default() }
            });
            let rows: Vec<RowOutcome> = rows.collect();
            let reply = self.workers[rank].commit(step, rows).expect("outcomes fit their rows");
            let (dp_rank, header) = (step.rank.dp_rank(), step.header);
            self.scheduler.commit(dp_rank, header.epoch, header.step, reply).expect("a true reply");
        }
    }
}

/// A scheduler with a step in flight, and what each request of it may come to.
struct Past {
    world: Ahead,
    in_flight: Vec<WorkerStep>,
    /// By rank: requests with a row that samples, and its drafts.
    rows: [Vec<(u64, u32)>; 2],
}

impl Past {
    fn new(mut world: Ahead, mixes: [&[Kind]; 2], arrays: &mut [Arrays]) -> Option<Self> {
        let mut proposals = std::collections::BTreeMap::new();
        for (rank, mix) in mixes.iter().enumerate() {
            for kind in mix.iter().filter(|kind| kind.proposed().is_some()) {
                proposals.insert(world.submit(rank, *kind), kind.proposed().unwrap_or(0));
            }
        }
        if let Some(plan) = world.plan() {
            let steps = world.begin(&plan, arrays);
            world.answer(&steps, |id, _, _| Came { accepted: 0, proposed: proposals[&id], stops: false });
        }
        for (rank, mix) in mixes.iter().enumerate() {
            for kind in mix.iter().filter(|kind| kind.proposed().is_none()) {
                world.submit(rank, *kind);
            }
        }
        let plan = world.plan()?;
        let in_flight = world.begin(&plan, arrays);
        let rows = [0, 1].map(|rank| {
            let rows = in_flight[rank].rank.rows().iter().filter(|row| row.logits != LogitsWanted::None);
            let id = |row: &paceline_plan::Row| {
                let state = world.workers[rank].seat(row.seat).expect("the row's seat is taken");
                u64::from_le_bytes(state.sampling().try_into().expect("eight bytes"))
            };
            rows.map(|row| (id(row), row.drafts)).collect::<Vec<_>>()
        });
        Some(Self { world, in_flight, rows })
    }
}

/// Every choice of one outcome for each row of rank 0, with outcomes of rank 1 in turn.
fn choices(rows: &[Vec<(u64, u32)>; 2], k_draft: u32) -> Vec<Vec<(u64, Came)>> {
    let mut chosen: Vec<Vec<(u64, Came)>> = vec![Vec::new()];
    for (id, drafts) in &rows[0] {
        let longer = chosen.iter().flat_map(|choice| {
            outcomes(*drafts, k_draft).into_iter().map(|came| [choice.as_slice(), &[(*id, came)]].concat())
        });
        chosen = longer.collect();
    }
    for (index, choice) in chosen.iter_mut().enumerate() {
        for (place, (id, drafts)) in rows[1].iter().enumerate() {
            let all = outcomes(*drafts, k_draft);
            choice.push((*id, all[(index / (1 + 2 * place)) % all.len()]));
        }
    }
    chosen
}

/// Plans the next step before anything is known of the one in flight, and tries all that can come of that. How many.
fn every_outcome(past: &mut Past, arrays: &mut [Arrays]) -> u64 {
    let ahead = past.world.plan();
    let k_draft = past.in_flight[0].group.k_draft();
    let all = choices(&past.rows, k_draft);
    for choice in &all {
        let mut world = past.world.clone();
        world.answer(&past.in_flight, |id, _, _| choice.iter().find(|(other, _)| *other == id).expect("a row").1);
        let mut next = ahead.clone();
        for _ in 0..3 {
            let Some(plan) = next else { break };
            let steps = world.begin(&plan, arrays);
            // Nobody waits for replies: the step after it is planned before it is answered.
            next = world.plan();
            world.answer(&steps, |_, drafts, k_draft| Came { accepted: drafts, proposed: k_draft, stops: false });
        }
        world.scheduler.assert_consistent();
    }
    all.len() as u64
}

fn mixes(k: u32) -> Vec<Vec<Kind>> {
    let kinds = Kind::all(k);
    let mut all: Vec<Vec<Kind>> = vec![Vec::new()];
    all.extend(kinds.iter().map(|kind| vec![*kind]));
    for first in &kinds {
        all.extend(kinds.iter().filter(|second| *second >= first).map(|second| vec![*first, *second]));
    }
    all
}

fn worlds(k: u32, drafter: Drafter, shapes: &ShapeConfig) -> u64 {
    let limits = config(2, ROWS, k, drafter, shapes.clone()).limits;
    let mut arrays = vec![Arrays::new(&limits); 2];
    let mixes = mixes(k);
    let mut count = 0;
    for (index, mix) in mixes.iter().enumerate() {
        for turn in 0..3 {
            let peer = &mixes[(7 * index + turn * 11) % mixes.len()];
            let world = Ahead::new(k, drafter, shapes.clone());
            if let Some(mut past) = Past::new(world, [mix, peer], &mut arrays) {
                count += every_outcome(&mut past, &mut arrays);
            }
        }
    }
    count
}

#[test]
fn a_plan_made_ahead_suits_everything_that_can_come_of_the_step_before() {
    let mut count = 0;
    for k in 0..=3 {
        let without = if k == 0 { Drafter::None } else { Drafter::Ngram };
        for (drafter, widths) in [(without, vec![k]), (Drafter::Model, vec![0, k])] {
            if k == 0 && drafter == Drafter::Model {
                continue;
            }
            for shapes in [ShapeConfig::cpu_default(ROWS, &widths, ROWS), ShapeConfig::eager()] {
                count += worlds(k, drafter, &shapes);
            }
        }
    }
    println!("{count} outcomes");
    assert!(count > 10_000, "{count}");
}
