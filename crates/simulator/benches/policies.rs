//! The reference trace under each policy, on virtual time: what `RESULTS.md` holds.
//!
//! `cargo bench -p paceline-simulator`; with `-- --trace` it prints the reference trace itself.

use paceline_scheduler::{Alignment, Policies};
use paceline_simulator::{Options, Placing, Trace, TraceOptions, simulate};

/// What is compared, by name.
fn policies() -> Vec<(&'static str, Options)> {
    vec![
        ("round robin", Options { placing: Placing::RoundRobin, ..Options::default() }),
        ("late binding", Options::default()),
        ("aligned, 10 steps", aligned(10, 90)),
        ("aligned, 20 steps", aligned(20, 90)),
        ("aligned, 40 steps", aligned(40, 90)),
        ("aligned, 20 steps, 80%", aligned(20, 80)),
        (
            "gaps of 140 ms",
            Options { policies: Policies { gap_tokens: 2_000, ..Policies::default() }, ..Options::default() },
        ),
    ]
}

fn aligned(delay_steps: u32, even_percent: u32) -> Options {
    let alignment = Some(Alignment { delay_steps, even_percent });
    Options { policies: Policies { alignment, ..Policies::default() }, ..Options::default() }
}

fn main() {
    if std::env::args().any(|argument| argument == "--trace") {
        print!("{}", TraceOptions::default().generate().expect("good numbers").to_json_lines());
        return;
    }
    let trace = Trace::from_json_lines(include_str!("../traces/reference.jsonl")).expect("a trace");
    println!(
        "{:<26} {:>7} {:>8} {:>9} {:>9} {:>9} {:>9} {:>12} {:>8} {:>7} {:>7}",
        "policy",
        "balance",
        "requests",
        "ttft p50",
        "ttft p99",
        "gap p50",
        "gap p99",
        "arriving p50",
        "tokens/s",
        "steps",
        "mixed"
    );
    for (name, options) in policies() {
        let report = simulate(&trace, &options, |_| {}).expect("runs to its end");
        println!(
            "{name:<26} {:>7.3} {:>8.2} {:>9.0} {:>9.0} {:>9.1} {:>9.1} {:>12.1} {:>8.0} {:>7} {:>7}",
            report.balance.ratio,
            report.throughput.requests_per_s,
            report.ttft_ms.p50,
            report.ttft_ms.p99,
            report.token_gap_ms.p50,
            report.token_gap_ms.p99,
            report.arriving_token_gap_ms.p50,
            report.throughput.output_tokens_per_s,
            report.steps.count,
            report.steps.mixed,
        );
    }
}
