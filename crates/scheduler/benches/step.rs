//! Cost of a steady decode step without the workers: plan, encode, commit, in microseconds.
//!
//! `cargo bench -p paceline-scheduler --bench step`; numbers of ranks after `--` choose among 1, 8 and 64, and
//! `--case RANKS ROWS K decode|mixed on|off` is one line alone.

#![expect(clippy::disallowed_types, reason = "a benchmark measures time; the crate itself has no clock")]

mod world;

use std::time::{Duration, Instant};

use paceline_plan::{Coded, GroupId, LogitsWanted, Logprobs, RowReply, StepPlan, StepReply};
use paceline_scheduler::{Output, Scheduler};
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
            logprobs: Logprobs::NONE,
        });
        StepReply {
            dp_rank: rank.dp_rank(),
            rows: rows.collect(),
            drafts: Vec::new(),
            passes: 1,
            collectives: 0,
            timings_us: [0; 4],
        }
    };
    plan.ranks().iter().map(reply).collect()
}

/// What a caller keeps from step to step.
#[derive(Default)]
struct Buffers {
    bytes: Vec<u8>,
    outputs: Vec<Output>,
}

/// One step; time of plan, encode, commit.
fn step(scheduler: &mut Scheduler, buffers: &mut Buffers) -> [Duration; 3] {
    let start = Instant::now();
    let plan = scheduler.plan(GroupId::new(0)).expect("requests run");
    let planned = Instant::now();
    buffers.bytes.clear();
    plan.group().append_to(&mut buffers.bytes);
    plan.ranks().iter().for_each(|rank| rank.append_to(&mut buffers.bytes));
    std::hint::black_box(&buffers.bytes);
    let encoded = Instant::now();
    let replies = replies(&plan);
    let (epoch, number) = (plan.group().epoch(), plan.group().step());
    let replied = Instant::now();
    scheduler.recycle(plan);
    for reply in replies {
        buffers.outputs.clear();
        let rank = reply.dp_rank;
        scheduler.commit_into(rank, epoch, number, reply, &mut buffers.outputs).expect("a true reply");
        std::hint::black_box(&buffers.outputs);
    }
    [planned - start, encoded - planned, replied.elapsed()]
}

fn median(mut values: Vec<Duration>) -> f64 {
    values.sort_unstable();
    values[values.len() / 2].as_secs_f64() * 1e6
}

fn main() {
    let arguments: Vec<String> = std::env::args().filter(|argument| argument != "--bench").skip(1).collect();
    if let [flag, ranks, rows, k, load, cache] = &arguments[..]
        && flag == "--case"
    {
        let number = |text: &str| text.parse().expect("a number");
        let (mixed, cache) = (load == "mixed", cache == "on");
        return measure(Load { ranks: number(ranks), rows: number(rows), k: number(k), mixed, cache });
    }
    println!(
        "{:>5} {:>5} {:>2} {:>7} {:>5} {:>9} {:>9} {:>9} {:>9}",
        "ranks", "rows", "k", "load", "cache", "plan", "encode", "commit", "sum_us"
    );
    let chosen: Vec<u32> = arguments.iter().filter_map(|argument| argument.parse().ok()).collect();
    let ranks = [1, 8, 64].into_iter().filter(|ranks| chosen.is_empty() || chosen.contains(ranks));
    for (ranks, rows) in ranks.flat_map(|ranks| [1, 32, 256].map(|rows| (ranks, rows))) {
        for k in [0, 1, 3] {
            for (mixed, cache) in [(false, false), (false, true), (true, false), (true, true)] {
                measure(Load { ranks, rows, k, mixed, cache });
            }
        }
    }
}

fn measure(load: Load) {
    let (mut scheduler, mut buffers) = (load.scheduler(), Buffers::default());
    load.warm_up(&mut scheduler, |scheduler| {
        step(scheduler, &mut buffers);
    });
    let one = |_| {
        load.top_up(&mut scheduler);
        step(&mut scheduler, &mut buffers)
    };
    let times: Vec<_> = (0..STEPS).map(one).collect();
    let part = |index: usize| median(times.iter().map(|time| time[index]).collect());
    let sum = median(times.iter().map(|time| time.iter().sum()).collect());
    let (plan, encode, commit) = (part(0), part(1), part(2));
    let Load { ranks, rows, k, mixed, cache } = load;
    let (mixed, cache) = (if mixed { "mixed" } else { "decode" }, if cache { "on" } else { "off" });
    println!("{ranks:>5} {rows:>5} {k:>2} {mixed:>7} {cache:>5} {plan:>9.1} {encode:>9.1} {commit:>9.1} {sum:>9.1}");
}
