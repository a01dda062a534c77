//! Cost of a steady decode step without the workers: plan, encode, commit, in microseconds.
//!
//! `cargo bench -p paceline-scheduler --bench step`; numbers of ranks after `--` choose among 1, 8 and 64.

#![expect(clippy::disallowed_types, reason = "a benchmark measures time; the crate itself has no clock")]

mod world;

use std::time::{Duration, Instant};

use paceline_plan::{GroupId, LogitsWanted, RowReply, StepPlan, StepReply, to_bytes};
use paceline_scheduler::Scheduler;
use world::Load;

const STEPS: usize = 300;

fn replies(plan: &StepPlan) -> Vec<StepReply> {
    let k_draft = plan.group().k_draft();
    let reply = |rank: &paceline_plan::RankPart| {
        let rows = rank.rows().iter().map(|row| RowReply {
            seat: row.seat,
            generation: row.generation,
            known: if row.logits == LogitsWanted::Verify {
                row.start_max + 1
            } else {
                row.start_max + row.query_len.get()
            },
            accepted: 0,
            emitted: std::iter::repeat_n(7, usize::from(row.logits != LogitsWanted::None)).collect(),
            proposed: if row.logits == LogitsWanted::None { 0 } else { k_draft },
            logprobs: Vec::new(),
        });
        StepReply { dp_rank: rank.dp_rank(), rows: rows.collect(), passes: 1, collectives: 0, timings_us: [0; 4] }
    };
    plan.ranks().iter().map(reply).collect()
}

/// One step; time of plan, encode, commit.
fn step(scheduler: &mut Scheduler) -> [Duration; 3] {
    let start = Instant::now();
    let plan = scheduler.plan(GroupId::new(0)).expect("requests run");
    let planned = Instant::now();
    let mut bytes = to_bytes(plan.group()).len();
    for rank in plan.ranks() {
        bytes += to_bytes(rank).len();
    }
    std::hint::black_box(bytes);
    let encoded = Instant::now();
    let replies = replies(&plan);
    let replied = Instant::now();
    for reply in replies {
        let (epoch, step) = (plan.group().epoch(), plan.group().step());
        std::hint::black_box(scheduler.commit(reply.dp_rank, epoch, step, reply).expect("a true reply"));
    }
    [planned - start, encoded - planned, replied.elapsed()]
}

fn median(mut values: Vec<Duration>) -> f64 {
    values.sort_unstable();
    values[values.len() / 2].as_secs_f64() * 1e6
}

fn main() {
    println!(
        "{:>5} {:>5} {:>2} {:>7} {:>5} {:>9} {:>9} {:>9} {:>9}",
        "ranks", "rows", "k", "load", "cache", "plan", "encode", "commit", "sum_us"
    );
    let chosen: Vec<u32> = std::env::args().filter_map(|argument| argument.parse().ok()).collect();
    let ranks = [1, 8, 64].into_iter().filter(|ranks| chosen.is_empty() || chosen.contains(ranks));
    for (ranks, rows) in ranks.flat_map(|ranks| [1, 32, 256].map(|rows| (ranks, rows))) {
        for k in [0, 1, 3] {
            for (mixed, cache) in [(false, false), (false, true), (true, true)] {
                measure(Load { ranks, rows, k, mixed, cache });
            }
        }
    }
}

fn measure(load: Load) {
    let mut scheduler = load.scheduler();
    load.warm_up(&mut scheduler, |scheduler| {
        step(scheduler);
    });
    let one = |_| {
        load.top_up(&mut scheduler);
        step(&mut scheduler)
    };
    let times: Vec<_> = (0..STEPS).map(one).collect();
    let part = |index: usize| median(times.iter().map(|time| time[index]).collect());
    let sum = median(times.iter().map(|time| time.iter().sum()).collect());
    let (plan, encode, commit) = (part(0), part(1), part(2));
    let Load { ranks, rows, k, mixed, cache } = load;
    let (mixed, cache) = (if mixed { "mixed" } else { "decode" }, if cache { "on" } else { "off" });
    println!("{ranks:>5} {rows:>5} {k:>2} {mixed:>7} {cache:>5} {plan:>9.1} {encode:>9.1} {commit:>9.1} {sum:>9.1}");
}
