//! Many requests to one HTTP server over connections that are kept open, with the time of each.
//!
//! Nothing but sockets and bytes, so that the client costs little beside a server on the same machine. What it cannot
//! read is counted as an error and not looked into.

mod connection;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use connection::{Connection, Leave};

/// What is sent.
#[derive(Clone, Debug, clap::Args)]
pub struct Load {
    /// The server, HOST:PORT.
    #[arg(long)]
    pub address: String,
    /// Requests in all.
    #[arg(long, default_value_t = 10_000)]
    pub requests: u64,
    /// Requests under way at once; each has a connection of its own.
    #[arg(long, default_value_t = 64)]
    pub concurrency: u64,
    /// Requests a second, evenly; a request's time counts from when it should have been sent. 0 sends when there is room.
    #[arg(long, default_value_t = 0)]
    pub rate: u64,
    /// Tokens of each prompt, as ids.
    #[arg(long, default_value_t = 16)]
    pub prompt_tokens: u64,
    /// Words of each prompt, as text for the server to tokenize, in place of ids.
    #[arg(long, default_value_t = 0)]
    pub prompt_words: u64,
    /// Tokens of each answer.
    #[arg(long, default_value_t = 1)]
    pub max_tokens: u64,
    /// Ask for a stream.
    #[arg(long)]
    pub stream: bool,
    /// Of 100 requests, so many are given up: half of them at once, half after the first part of their answer.
    #[arg(long, default_value_t = 0)]
    pub cancel_percent: u64,
    /// Of 100 requests, so many are refused for a bad value.
    #[arg(long, default_value_t = 0)]
    pub refuse_percent: u64,
}

/// Tokens of an answer that is given up: more than it will get to see.
const CANCELLED_TOKENS: u64 = 500;

/// What became of a load.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Requests by what they ended with: a status, `cancelled` or `broken`.
    pub ends: BTreeMap<String, u64>,
    /// Seconds from the first request to the last answer.
    pub wall_s: f64,
    /// Microseconds of every answer with status 200, in order of size.
    pub latencies_us: Vec<u64>,
}

impl Outcome {
    /// The time that so many percent of the answers do not pass, in microseconds.
    pub fn percentile_us(&self, percent: u64) -> u64 {
        let last = self.latencies_us.len().saturating_sub(1) as u64;
        let at = usize::try_from(last * percent / 100).unwrap_or(0);
        self.latencies_us.get(at).copied().unwrap_or(0)
    }

    /// One line of JSON.
    pub fn json(&self) -> String {
        let ends: Vec<String> = self.ends.iter().map(|(end, count)| format!("\"{end}\": {count}")).collect();
        let [p50, p90, p99, most] = [50, 90, 99, 100].map(|percent| self.percentile_us(percent));
        let rate = self.latencies_us.len() as f64 / self.wall_s.max(f64::MIN_POSITIVE);
        format!(
            "{{\"ends\": {{{}}}, \"wall_s\": {:.3}, \"answers_per_s\": {rate:.1}, \"p50_us\": {p50}, \"p90_us\": {p90}, \
             \"p99_us\": {p99}, \"max_us\": {most}}}",
            ends.join(", "),
            self.wall_s,
        )
    }
}

/// Sends the whole load and waits for its end.
///
/// # Errors
/// When a connection cannot be made.
pub async fn run(load: Load) -> std::io::Result<Outcome> {
    let load = Arc::new(load);
    let next = Arc::new(AtomicU64::new(0));
    let began = Instant::now();
    let mut callers = tokio::task::JoinSet::new();
    for _ in 0..load.concurrency {
        callers.spawn(caller(Arc::clone(&load), Arc::clone(&next), began));
    }
    let mut outcome = Outcome::default();
    while let Some(part) = callers.join_next().await {
        let part = part.map_err(std::io::Error::other)??;
        for (end, count) in part.ends {
            *outcome.ends.entry(end).or_default() += count;
        }
        outcome.latencies_us.extend(part.latencies_us);
    }
    outcome.wall_s = began.elapsed().as_secs_f64();
    outcome.latencies_us.sort_unstable();
    Ok(outcome)
}

/// Sends one request after the other until all are sent.
async fn caller(load: Arc<Load>, next: Arc<AtomicU64>, began: Instant) -> std::io::Result<Outcome> {
    let mut outcome = Outcome::default();
    let mut connection = None;
    loop {
        let number = next.fetch_add(1, Ordering::Relaxed);
        if number >= load.requests {
            return Ok(outcome);
        }
        let mut due = Instant::now();
        if let Some(wait_us) = (number * 1_000_000).checked_div(load.rate) {
            due = began + Duration::from_micros(wait_us);
            tokio::time::sleep_until(due.into()).await;
        }
        let mut open = match connection.take() {
            Some(open) => open,
            None => Connection::open(&load.address).await?,
        };
        let (body, leave) = request(&load, number);
        let end = match open.post("/v1/completions", &body, leave).await {
            Ok(Some(status)) => {
                connection = Some(open);
                if status == 200 {
                    outcome.latencies_us.push(u64::try_from(due.elapsed().as_micros()).unwrap_or(u64::MAX));
                }
                status.to_string()
            }
            Ok(None) => "cancelled".to_owned(),
            Err(_) => "broken".to_owned(),
        };
        *outcome.ends.entry(end).or_default() += 1;
    }
}

/// The body of a request, and when its client leaves.
fn request(load: &Load, number: u64) -> (String, Leave) {
    let place = number % 100;
    let is_cancelled = place < load.cancel_percent;
    let is_refused = (50..50 + load.refuse_percent).contains(&place);
    let leave = match (is_cancelled, place % 2) {
        (false, _) => Leave::Never,
        (true, 0) => Leave::AtOnce,
        (true, _) => Leave::AfterFirstPart,
    };
    let max_tokens = if is_cancelled { CANCELLED_TOKENS } else { load.max_tokens };
    let top_p = if is_refused { 2 } else { 1 };
    let stream = load.stream || leave == Leave::AfterFirstPart;
    let body = format!(
        "{{\"prompt\": {}, \"max_tokens\": {max_tokens}, \"top_p\": {top_p}, \"temperature\": 0, \"ignore_eos\": true, \
         \"stream\": {stream}}}",
        prompt(load, number),
    );
    (body, leave)
}

fn prompt(load: &Load, number: u64) -> String {
    const WORDS: [&str; 8] = ["the", "river", "bank", "was", "wide", "and", "green", "again"];
    if load.prompt_words > 0 {
        let word = |at: u64| WORDS[usize::try_from((number + at * at) % 8).expect("invariant: below 8")];
        let words: Vec<&str> = (0..load.prompt_words).map(word).collect();
        return format!("\"{}\"", words.join(" "));
    }
    let ids: Vec<String> = (0..load.prompt_tokens).map(|at| ((number * 7 + at * 13) % 250 + 3).to_string()).collect();
    format!("[{}]", ids.join(","))
}
