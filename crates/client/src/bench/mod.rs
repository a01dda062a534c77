//! `paceline bench`: a load client. Sends streamed completions at a given rate or concurrency and tells what a client
//! sees: time to first token, time per output token, inter-token latency, throughput and goodput.

mod load;
mod prompts;
mod summary;

use std::io::Write;
use std::path::PathBuf;
use std::time::Instant;

use rand::SeedableRng;
use rand::rngs::StdRng;

pub use summary::Summary;

use crate::bench::load::Plan;
use crate::bench::summary::Goal;
use crate::{Endpoint, EndpointArguments, Error};

/// Arguments of `paceline bench`. Names are those of vLLM's `bench serve`.
#[derive(Clone, Debug, clap::Args)]
pub struct BenchArguments {
    /// Where to send the load.
    #[command(flatten)]
    pub endpoint: EndpointArguments,
    /// Requests in all
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    pub num_prompts: u32,
    /// Requests a second on average, at random times (Poisson) [default: all at once]
    #[arg(long)]
    pub request_rate: Option<f64>,
    /// Requests under way at once at most [default: no limit]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    pub max_concurrency: Option<u32>,
    /// Tokens of each random prompt
    #[arg(long, default_value_t = 128, value_parser = clap::value_parser!(u32).range(1..))]
    pub random_input_len: u32,
    /// Token ids of random prompts, first and last
    #[arg(long, default_values_t = [256, 800], num_args = 2)]
    pub random_token_ids: Vec<u32>,
    /// Texts to send instead: JSON lines with "prompt"
    #[arg(long, value_name = "FILE.jsonl")]
    pub dataset_path: Option<PathBuf>,
    /// Output tokens of each request
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..))]
    pub random_output_len: u32,
    /// Let answers end by themselves, before their length is reached
    #[arg(long)]
    pub stop_at_eos: bool,
    /// 0 is greedy
    #[arg(long, default_value_t = 0.0)]
    pub temperature: f64,
    /// Requests that are sent first, one after the other, and not counted
    #[arg(long, default_value_t = 1)]
    pub num_warmups: u32,
    /// What a good answer keeps to, in milliseconds: ttft:MS tpot:MS itl:MS e2el:MS
    #[arg(long, value_name = "NAME:MS", num_args = 1..)]
    pub goodput: Vec<Goal>,
    /// Percentiles to tell beside mean and median
    #[arg(long, default_values_t = [90.0, 99.0], value_delimiter = ',')]
    pub percentiles: Vec<f64>,
    /// Seed of prompts and times
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// Write all numbers as JSON to this file
    #[arg(long, value_name = "FILE.json")]
    pub result_file: Option<PathBuf>,
}

/// Sends the load, prints the table, writes the file.
///
/// # Errors
/// For arguments that cannot be used, when the server cannot be reached at all, or when every request failed: with the
/// first failure's words. Single failures are counted and told.
pub async fn run(arguments: &BenchArguments, output: &mut impl Write) -> Result<Summary, Error> {
    check(arguments)?;
    let (endpoint, model) = Endpoint::open(&arguments.endpoint).await?;
    let mut chance = StdRng::seed_from_u64(arguments.seed);
    let count = arguments.num_prompts as usize;
    let prompts = match &arguments.dataset_path {
        Some(path) => prompts::from_file(path, count)?,
        None => prompts::random(arguments, count, &mut chance),
    };
    let plan = Plan { endpoint, model, arguments };
    for prompt in prompts.iter().cycle().take(arguments.num_warmups as usize) {
        plan.send(prompt).await?;
    }
    let starts_s = load::starts_s(arguments.request_rate, count, &mut chance);
    let began = Instant::now();
    let outcomes = plan.run(&prompts, &starts_s).await;
    let duration_s = began.elapsed().as_secs_f64();
    let summary = Summary::new(arguments, &outcomes, duration_s);
    if summary.completed() == 0
        && let Some(Err(error)) = outcomes.into_iter().next()
    {
        return Err(error);
    }
    // A closed stdout is the reader's choice.
    let _ = write!(output, "{summary}");
    if let Some(path) = &arguments.result_file {
        let text = serde_json::to_string_pretty(summary.json()).expect("invariant: keys are strings");
        std::fs::write(path, text + "\n").map_err(|error| Error::file(path, error))?;
    }
    Ok(summary)
}

fn check(arguments: &BenchArguments) -> Result<(), Error> {
    if let Some(rate) = arguments.request_rate
        && (rate.is_nan() || rate <= 0.0)
    {
        return Err(Error::Usage(format!("--request-rate is {rate}, must be above 0")));
    }
    if let Some(percentile) = arguments.percentiles.iter().find(|value| !(0.0..=100.0).contains(*value)) {
        return Err(Error::Usage(format!("--percentiles has {percentile}, must be between 0 and 100")));
    }
    let ids = &arguments.random_token_ids;
    if ids[0] > ids[1] {
        return Err(Error::Usage(format!("--random-token-ids goes from {} to {}", ids[0], ids[1])));
    }
    Ok(())
}
