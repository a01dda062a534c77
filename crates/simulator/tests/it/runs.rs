//! Simulations of small loads.

use paceline_scheduler::{QueueLimits, ShapeConfig};
use paceline_simulator::{Options, Placing, Report, Trace, TraceOptions, TraceRequest, simulate, svg, text};

pub(crate) fn one(arrival_us: u64, prompt_tokens: u32, output_tokens: u32) -> TraceRequest {
    TraceRequest { arrival_us, prompt_tokens, output_tokens, prefix_group: None, prefix_tokens: 0, priority: 0 }
}

fn small() -> Options {
    Options { dp_size: 2, max_num_seqs: 8, shapes: ShapeConfig::graph_default(8, &[0], 8), ..Options::default() }
}

fn run(trace: &Trace, options: &Options) -> Report {
    simulate(trace, options, |_| {}).expect("runs to its end")
}

#[test]
fn one_request_takes_what_the_costs_say() {
    let trace = Trace { requests: vec![one(5_000, 100, 3)] };
    let report = run(&trace, &small());
    // The prompt is one step of 20 ms and 100 tokens of 60 us; each decode step 20 ms and one row of 20 us.
    assert!((report.ttft_ms.p50 - 26.0).abs() < 1e-9, "{:?}", report.ttft_ms);
    assert!((report.token_gap_ms.max - 20.02).abs() < 1e-9, "{:?}", report.token_gap_ms);
    assert_eq!((report.steps.count, report.steps.mixed, report.steps.full), (3, 1, 2));
    assert_eq!((report.requests, report.refused, report.token_gap_ms.count), (1, 0, 2));
}

#[test]
fn gaps_count_as_under_load_until_the_last_arrival() {
    // The first request's tokens come after 26 ms and every 20.02 ms then: one gap has ended when the second arrives.
    let report = run(&Trace { requests: vec![one(0, 100, 5), one(50_000, 100, 3)] }, &small());
    assert_eq!((report.token_gap_ms.count, report.arriving_token_gap_ms.count), (6, 1));
    assert!((report.arriving_token_gap_ms.p50 - 20.02).abs() < 1e-9, "{:?}", report.arriving_token_gap_ms);
}

#[test]
fn the_same_trace_gives_the_same_report() {
    let options = TraceOptions { requests: 60, dp_size: 2, max_num_seqs: 8, ..TraceOptions::default() };
    let trace = options.generate().expect("good numbers");
    let drafts = Options { k: 3, shapes: ShapeConfig::graph_default(8, &[3], 8), ..small() };
    for options in [small(), Options { lockstep: false, ..small() }, drafts] {
        let first = run(&trace, &options);
        assert_eq!(first, run(&trace, &options));
        assert!((first.throughput.output_tokens_per_s * first.duration_s - 60.0 * 256.0).abs() < 1.0);
        assert!(first.balance.ratio > 0.0 && first.balance.ratio <= 1.0);
    }
}

#[test]
fn drafts_make_fewer_steps() {
    let trace = Trace { requests: vec![one(0, 10, 200)] };
    let without = run(&trace, &small());
    let options =
        Options { k: 3, acceptance_permille: 1_000, shapes: ShapeConfig::graph_default(8, &[3], 8), ..small() };
    let with = run(&trace, &options);
    assert_eq!(with.draft_tokens, with.accepted_tokens);
    assert!(with.steps.count * 3 < without.steps.count, "{} and {}", with.steps.count, without.steps.count);
}

#[test]
fn refused_requests_are_counted_and_the_rest_ends() {
    let requests = (0..40).map(|_| one(0, 1_000, 20)).collect();
    let queue = QueueLimits { requests: Some(4), tokens: None };
    let report = run(&Trace { requests }, &Options { queue, ..small() });
    assert_eq!((report.requests, report.refused), (40, 20), "2 ranks of 8 seats, and 4 may wait");
}

#[test]
fn round_robin_pins_before_anything_is_known() {
    // Every second request is long: round robin gives all of them to one rank.
    let requests = (0..16).map(|index| one(index, if index % 2 == 0 { 8_000 } else { 10 }, 20)).collect();
    let trace = Trace { requests };
    let even = run(&trace, &small());
    let robin = run(&trace, &Options { placing: Placing::RoundRobin, ..small() });
    assert!(robin.balance.tokens_max_over_mean > 1.9, "{:?}", robin.balance);
    assert!(even.balance.tokens_max_over_mean < 1.1, "{:?}", even.balance);
    assert!(robin.duration_s > even.duration_s);
}

#[test]
fn plots_hold_every_report_and_curve() {
    let report = run(&Trace { requests: vec![one(0, 100, 30)] }, &small());
    let picture = svg(&[("one <policy>".to_owned(), report.clone()), ("two".to_owned(), report.clone())]);
    assert_eq!(picture.matches("<polyline").count(), 8);
    assert!(picture.contains("one &lt;policy>") && picture.ends_with("</svg>\n"));
    assert_eq!(text(&report).lines().count(), 4);
}
