//! `paceline simulate`: what a load would meet, on virtual time and without a GPU.

use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::Context;
use paceline_scheduler::ShapeConfig;
use paceline_simulator::{Costs, Options, Placing, Progress, Report, Trace, TraceOptions, simulate, svg, text};

use crate::Failure;

/// Between two drawings of the progress bar.
const REDRAW: Duration = Duration::from_millis(100);

/// Characters of the progress bar.
const BAR: usize = 32;

/// Who chooses a request's rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Policy {
    /// The scheduler, when the request can start.
    Paceline,
    /// One rank after the other, at arrival.
    RoundRobin,
}

impl Policy {
    const fn name(self) -> &'static str {
        match self {
            Self::Paceline => "paceline",
            Self::RoundRobin => "round-robin",
        }
    }
}

/// Sizes that stay at their defaults are those of `paceline simulate --help`.
#[derive(Debug, clap::Args)]
pub(crate) struct Simulate {
    /// Trace to play, one JSON object a line; without it one is made up
    #[arg(long, value_name = "FILE.jsonl", help_heading = "Load")]
    trace: Option<PathBuf>,
    /// Write the trace that is played
    #[arg(long, value_name = "FILE.jsonl", help_heading = "Load")]
    save_trace: Option<PathBuf>,
    /// Requests of a made-up trace
    #[arg(long, default_value_t = 2_000, help_heading = "Load")]
    requests: u32,
    /// Median tokens of a prompt
    #[arg(long, default_value_t = 4_096, help_heading = "Load")]
    prompt_tokens_median: u32,
    /// 99th percentile of the tokens of a prompt
    #[arg(long, default_value_t = 32_768, help_heading = "Load")]
    prompt_tokens_p99: u32,
    /// Tokens that every request generates
    #[arg(long, default_value_t = 256, help_heading = "Load")]
    output_tokens: u32,
    /// Arrivals as a share of what the ranks could do at best
    #[arg(long, default_value_t = 0.8, help_heading = "Load")]
    load: f64,
    /// Groups of requests that share a prefix
    #[arg(long, default_value_t = 0, help_heading = "Load")]
    prefix_groups: u32,
    /// Tokens of a shared prefix
    #[arg(long, default_value_t = 1_024, help_heading = "Load")]
    prefix_tokens: u32,
    /// Everything random comes from it
    #[arg(long, default_value_t = 0, help_heading = "Load")]
    seed: u64,

    /// Data-parallel ranks; also -dp N
    #[arg(long, default_value_t = 8, help_heading = "Fleet")]
    data_parallel_size: u32,
    /// Every rank steps at its own pace, as for a dense model
    #[arg(long, help_heading = "Fleet")]
    dense: bool,
    /// S: requests that run at once, per rank
    #[arg(long, default_value_t = 256, help_heading = "Fleet")]
    max_num_seqs: u32,
    /// B: tokens in one step before padding, per rank
    #[arg(long, default_value_t = 8_192, help_heading = "Fleet")]
    max_num_batched_tokens: u32,
    /// L: tokens of one request
    #[arg(long, default_value_t = 131_072, help_heading = "Fleet")]
    max_model_len: u32,
    /// Tokens of a KV block
    #[arg(long, default_value_t = 16, help_heading = "Fleet")]
    block_size: u32,
    /// KV blocks of a rank
    #[arg(long, default_value_t = 120_000, help_heading = "Fleet")]
    num_gpu_blocks_override: u32,
    /// Rows of full steps [default: 1, 2, 4, multiples of 8, S]
    #[arg(long, value_delimiter = ',', help_heading = "Fleet")]
    row_ladder: Option<Vec<u32>>,
    /// k: drafts of a row
    #[arg(long, default_value_t = 0, help_heading = "Fleet")]
    num_speculative_tokens: u32,
    /// How often a draft is right
    #[arg(long, default_value_t = 0.7, help_heading = "Fleet")]
    acceptance: f64,
    /// Steps that are planned ahead
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=1), help_heading = "Fleet")]
    scheduling_depth: u32,
    /// Policies to compare
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [Policy::Paceline, Policy::RoundRobin],
          help_heading = "Fleet")]
    policy: Vec<Policy>,

    /// Milliseconds of any step
    #[arg(long, default_value_t = 20.0, help_heading = "Costs")]
    step_ms: f64,
    /// Milliseconds of a decode row
    #[arg(long, default_value_t = 0.02, help_heading = "Costs")]
    row_ms: f64,
    /// Milliseconds of a prompt token
    #[arg(long, default_value_t = 0.06, help_heading = "Costs")]
    prompt_token_ms: f64,
    /// Milliseconds to plan and send a step, hidden where it is planned ahead
    #[arg(long, default_value_t = 0.0, help_heading = "Costs")]
    host_ms: f64,

    /// Write everything that came of it, by policy
    #[arg(long, value_name = "FILE.json", help_heading = "Output")]
    json: Option<PathBuf>,
    /// Write a plot of the fleet over time
    #[arg(long, value_name = "FILE.svg", help_heading = "Output")]
    plot: Option<PathBuf>,
}

impl Simulate {
    fn costs(&self) -> Costs {
        let nanoseconds = |milliseconds: f64| (milliseconds * 1e6).round().max(0.0) as u64;
        Costs {
            step_us: nanoseconds(self.step_ms) / 1_000,
            row_ns: nanoseconds(self.row_ms),
            prompt_token_ns: nanoseconds(self.prompt_token_ms),
            draft_ns: nanoseconds(self.row_ms),
            host_us: nanoseconds(self.host_ms) / 1_000,
            ..Costs::default()
        }
    }

    fn trace(&self) -> Result<Trace, Failure> {
        let usage = |error: paceline_simulator::Error| Failure::Usage(error.to_string());
        if let Some(path) = &self.trace {
            let text = std::fs::read_to_string(path)
                .map_err(|error| Failure::Usage(format!("{}: {error}", path.display())))?;
            return Trace::from_json_lines(&text).map_err(usage);
        }
        let longest = self.max_model_len.saturating_sub(self.output_tokens).max(1);
        let options = TraceOptions {
            requests: self.requests,
            prompt_tokens_median: self.prompt_tokens_median,
            prompt_tokens_p99: self.prompt_tokens_p99,
            prompt_tokens_max: TraceOptions::default().prompt_tokens_max.min(longest),
            output_tokens: self.output_tokens,
            load: self.load,
            prefix_groups: self.prefix_groups,
            prefix_tokens: self.prefix_tokens,
            seed: self.seed,
            dp_size: self.data_parallel_size,
            max_num_seqs: self.max_num_seqs,
            costs: self.costs(),
        };
        options.generate().map_err(usage)
    }

    fn options(&self, policy: Policy) -> Options {
        let (rows, k) = (self.max_num_seqs, self.num_speculative_tokens);
        let shapes = match &self.row_ladder {
            Some(ladder) => {
                let tokens: Vec<u32> = ladder.iter().map(|rows| rows * (1 + k)).collect();
                ShapeConfig::from_tokens(&tokens, rows, &[k])
            }
            None => ShapeConfig::graph_default(rows, &[k], rows),
        };
        Options {
            dp_size: self.data_parallel_size,
            lockstep: !self.dense,
            max_num_seqs: rows,
            max_num_batched_tokens: self.max_num_batched_tokens,
            max_model_len: self.max_model_len,
            block_size: self.block_size,
            num_blocks: self.num_gpu_blocks_override,
            shapes,
            k,
            depth: self.scheduling_depth,
            acceptance_permille: (self.acceptance * 1e3).round().max(0.0) as u32,
            placing: if policy == Policy::RoundRobin { Placing::RoundRobin } else { Placing::Scheduler },
            costs: self.costs(),
            seed: self.seed,
            ..Options::default()
        }
    }
}

/// Runs the command.
///
/// # Errors
/// [`Failure::Usage`] for a trace or sizes that cannot be simulated.
pub(crate) fn run(simulate: &Simulate) -> Result<(), Failure> {
    let trace = simulate.trace()?;
    if let Some(path) = &simulate.save_trace {
        write(path, &trace.to_json_lines())?;
    }
    let mut reports: Vec<(String, Report)> = Vec::new();
    for policy in &simulate.policy {
        let report = run_one(&trace, &simulate.options(*policy), policy.name())?;
        reports.push((policy.name().to_owned(), report));
    }
    if let Some(path) = &simulate.json {
        let by_policy: serde_json::Map<_, _> =
            reports.iter().map(|(name, report)| (name.clone(), serde_json::json!(report))).collect();
        write(path, &(serde_json::to_string_pretty(&by_policy).context("as JSON")? + "\n"))?;
    }
    if let Some(path) = &simulate.plot {
        write(path, &svg(&reports))?;
    }
    print!("{}", told(&reports));
    Ok(())
}

fn run_one(trace: &Trace, options: &Options, name: &str) -> Result<Report, Failure> {
    let drawn = std::io::stderr().is_terminal();
    let mut next = Instant::now();
    let report = simulate(trace, options, |progress| {
        if drawn && Instant::now() >= next {
            next = Instant::now() + REDRAW;
            eprint!("\r{}", bar(name, progress));
            // A terminal that is gone is nothing to stop for.
            let _ = std::io::stderr().flush();
        }
    });
    if drawn {
        eprint!("\r\x1b[2K");
    }
    report.map_err(|error| Failure::Usage(error.to_string()))
}

fn bar(name: &str, progress: Progress) -> String {
    let Progress { requests, ended, clock_us } = progress;
    let done = (ended as usize * BAR) / (requests as usize).max(1);
    let (full, rest) = ("#".repeat(done), ".".repeat(BAR - done));
    format!("{name:<12} [{full}{rest}] {ended}/{requests} requests, {:.0} s of virtual time", clock_us as f64 / 1e6)
}

fn write(path: &PathBuf, text: &str) -> Result<(), Failure> {
    std::fs::write(path, text).with_context(|| format!("writing {}", path.display()))?;
    Ok(())
}

/// A table of the policies, and the first one over time.
fn told(reports: &[(String, Report)]) -> String {
    type Value = fn(&Report) -> String;
    let lines: [(&str, Value); 16] = [
        ("requests/s", |report| format!("{:.2}", report.throughput.requests_per_s)),
        ("prompt tokens/s", |report| format!("{:.0}", report.throughput.prompt_tokens_per_s)),
        ("output tokens/s", |report| format!("{:.0}", report.throughput.output_tokens_per_s)),
        ("first token p50, ms", |report| format!("{:.0}", report.ttft_ms.p50)),
        ("first token p99, ms", |report| format!("{:.0}", report.ttft_ms.p99)),
        ("token gap p50, ms", |report| format!("{:.1}", report.token_gap_ms.p50)),
        ("token gap p99, ms", |report| format!("{:.1}", report.token_gap_ms.p99)),
        ("p50 till last arrival", |report| format!("{:.1}", report.arriving_token_gap_ms.p50)),
        ("steps", |report| report.steps.count.to_string()),
        ("steps with prompts", |report| report.steps.mixed.to_string()),
        ("balance ratio", |report| format!("{:.3}", report.balance.ratio)),
        ("real tokens", |report| report.padding.real_tokens.to_string()),
        ("padding: idle ranks", |report| report.padding.idle_dummy.to_string()),
        ("padding: ladders", |report| (report.padding.row_ladder + report.padding.token_ladder).to_string()),
        ("padding: alignment", |report| report.padding.group_alignment.to_string()),
        ("preemptions", |report| report.preemptions.to_string()),
    ];
    let mut out = format!("{:<22}", "");
    for (name, _) in reports {
        out += &format!("{name:>14}");
    }
    out.push('\n');
    for (name, value) in lines {
        out += &format!("{name:<22}");
        for (_, report) in reports {
            out += &format!("{:>14}", value(report));
        }
        out.push('\n');
    }
    if let Some((name, report)) = reports.first() {
        out += &format!("\n{name} over time\n{}", text(report));
    }
    out
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        simulate: Simulate,
    }

    #[test]
    fn policies_are_compared_on_the_same_trace() {
        let arguments = ["simulate", "--requests", "20", "--data-parallel-size", "2", "--output-tokens", "8"];
        let simulate = Command::parse_from(arguments).simulate;
        let trace = simulate.trace().expect("good numbers");
        let report = |policy| run_one(&trace, &simulate.options(policy), "").expect("runs to its end");
        let reports = [Policy::Paceline, Policy::RoundRobin].map(|policy| (policy.name().to_owned(), report(policy)));
        let told = told(&reports);
        assert!(told.contains("balance ratio") && told.contains("paceline   round-robin"), "{told}");
        assert_eq!(reports[0].1.requests, 20);
    }

    #[test]
    fn numbers_that_cannot_be_are_usage_errors() {
        let simulate = Command::parse_from(["simulate", "--load", "0"]).simulate;
        assert!(matches!(run(&simulate), Err(Failure::Usage(line)) if line.contains("load")));
        let simulate = Command::parse_from(["simulate", "--requests", "1", "--max-num-batched-tokens", "0"]).simulate;
        assert!(matches!(run(&simulate), Err(Failure::Usage(line)) if line.contains("max_num_batched_tokens")));
    }
}
