//! Traces: the format, the generator, and the reference trace of the repository.

use paceline_simulator::{Costs, Error, Trace, TraceOptions, saturation_per_second};

const REFERENCE: &str = include_str!("../../traces/reference.jsonl");

#[test]
fn the_reference_trace_is_what_its_numbers_give() {
    let trace = TraceOptions::default().generate().expect("good numbers");
    assert!(trace.to_json_lines() == REFERENCE, "`cargo bench -p paceline-simulator -- --trace` prints it");
    assert!(Trace::from_json_lines(REFERENCE).expect("a trace") == trace);
}

#[test]
fn prompts_and_arrivals_have_the_distribution_that_was_asked_for() {
    let trace = Trace::from_json_lines(REFERENCE).expect("a trace");
    let mut prompts: Vec<u32> = trace.requests.iter().map(|request| request.prompt_tokens).collect();
    prompts.sort_unstable();
    assert_eq!(prompts.len(), 2_000);
    assert!((3_800..4_400).contains(&prompts[1_000]), "median {}", prompts[1_000]);
    assert!((27_000..40_000).contains(&prompts[1_980]), "p99 {}", prompts[1_980]);
    let mean = prompts.iter().map(|tokens| f64::from(*tokens)).sum::<f64>() / 2_000.0;
    let rate = 0.8 * saturation_per_second(&Costs::default(), 8, 256, mean, 256.0);
    let took_s = trace.requests.last().expect("requests").arrival_us as f64 / 1e6;
    assert!((took_s * rate / 2_000.0 - 1.0).abs() < 0.1, "{took_s} s at {rate} a second");
}

#[test]
fn groups_share_a_prefix_and_lines_are_checked() {
    let options = TraceOptions { requests: 50, prefix_groups: 3, prefix_tokens: 100, ..TraceOptions::default() };
    let trace = options.generate().expect("good numbers");
    assert!(trace.requests.iter().all(|request| request.prefix_group.is_some_and(|group| group < 3)));
    assert!(trace.requests.iter().all(|request| request.prompt_tokens > 100));
    assert_eq!(Trace::from_json_lines(&trace.to_json_lines()).expect("a trace"), trace);
    let wrong = "{\"arrival_us\":0,\"prompt_tokens\":1,\"output_tokens\":1}\n\n{\"arrival_us\":0,\"prompt_tokens\":0,\"output_tokens\":1}";
    assert!(matches!(Trace::from_json_lines(wrong), Err(Error::Trace { line: 3, .. })));
    assert!(TraceOptions { load: 0.0, ..TraceOptions::default() }.generate().is_err());
}
