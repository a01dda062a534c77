//! Requests on their way: when each starts, and when each of its chunks came.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use indicatif::{ProgressBar, ProgressStyle};
use rand::Rng;
use rand::rngs::StdRng;
use serde_json::{Value, json};
use tokio::sync::Semaphore;

use crate::bench::BenchArguments;
use crate::{Endpoint, Error};

/// What came of one request.
#[derive(Clone, Debug, Default)]
pub(crate) struct Outcome {
    /// From the request to its first token.
    pub(crate) ttft_s: f64,
    /// From the request to the end of the stream.
    pub(crate) latency_s: f64,
    /// Between chunks that carry tokens.
    pub(crate) gaps_s: Vec<f64>,
    pub(crate) prompt_tokens: u64,
    pub(crate) output_tokens: u64,
}

/// What is sent where.
pub(crate) struct Plan<'a> {
    pub(crate) endpoint: Endpoint,
    pub(crate) model: String,
    pub(crate) arguments: &'a BenchArguments,
}

/// When each request starts, counted from the first: at random times with the given mean rate, or all at once.
pub(crate) fn starts_s(rate: Option<f64>, count: usize, chance: &mut StdRng) -> Vec<f64> {
    let mut now_s = 0.0;
    let gap_s = |chance: &mut StdRng| rate.map_or(0.0, |rate| -(1.0 - chance.random::<f64>()).ln() / rate);
    let start_s = |_| {
        let start_s = now_s;
        now_s += gap_s(chance);
        start_s
    };
    (0..count).map(start_s).collect()
}

impl Plan<'_> {
    /// Sends every prompt at its time, as many at once as are allowed; outcomes in the order of the prompts.
    pub(crate) async fn run(&self, prompts: &[Value], starts_s: &[f64]) -> Vec<Result<Outcome, Error>> {
        let most = self.arguments.max_concurrency.map_or(Semaphore::MAX_PERMITS, |most| most as usize);
        let permits = Arc::new(Semaphore::new(most));
        let style = ProgressStyle::with_template("{bar:40} {pos}/{len} requests, {elapsed} of about {duration}");
        let bar = ProgressBar::new(prompts.len() as u64).with_style(style.expect("invariant: the template is valid"));
        let began = tokio::time::Instant::now();
        let mut under_way = FuturesUnordered::new();
        for (index, (prompt, start_s)) in prompts.iter().zip(starts_s).enumerate() {
            let permits = Arc::clone(&permits);
            under_way.push(async move {
                tokio::time::sleep_until(began + Duration::from_secs_f64(*start_s)).await;
                let _permit = permits.acquire().await;
                (index, self.send(prompt).await)
            });
        }
        let mut outcomes: Vec<Option<Result<Outcome, Error>>> = prompts.iter().map(|_| None).collect();
        while let Some((index, outcome)) = under_way.next().await {
            outcomes[index] = Some(outcome);
            bar.inc(1);
        }
        bar.finish_and_clear();
        outcomes.into_iter().flatten().collect()
    }

    /// Sends one prompt and reads its answer to the end.
    pub(crate) async fn send(&self, prompt: &Value) -> Result<Outcome, Error> {
        let BenchArguments { random_output_len, stop_at_eos, temperature, .. } = self.arguments;
        let body = json!({
            "model": self.model,
            "prompt": prompt,
            "max_tokens": random_output_len,
            "temperature": temperature,
            "ignore_eos": !stop_at_eos,
            "stream": true,
            "stream_options": {"include_usage": true},
        });
        let began = Instant::now();
        let mut stream = self.endpoint.stream("/v1/completions", &body).await?;
        let mut outcome = Outcome::default();
        let mut last: Option<Instant> = None;
        while let Some(chunk) = stream.next().await? {
            let now = Instant::now();
            if chunk["choices"][0]["text"].as_str().is_some_and(|text| !text.is_empty()) {
                match last {
                    Some(last) => outcome.gaps_s.push((now - last).as_secs_f64()),
                    None => outcome.ttft_s = (now - began).as_secs_f64(),
                }
                last = Some(now);
            }
            if let Some(tokens) = chunk["usage"]["completion_tokens"].as_u64() {
                outcome.output_tokens = tokens;
                outcome.prompt_tokens = chunk["usage"]["prompt_tokens"].as_u64().unwrap_or(0);
            }
        }
        outcome.latency_s = began.elapsed().as_secs_f64();
        if last.is_none() {
            // A text of special tokens only: its first token came at the end at the latest.
            outcome.ttft_s = outcome.latency_s;
        }
        Ok(outcome)
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;

    use super::*;

    #[test]
    fn starts_have_the_rate_that_was_asked_for() {
        let mut chance = StdRng::seed_from_u64(1);
        let starts = starts_s(Some(50.0), 20_000, &mut chance);
        assert!(starts.is_sorted() && starts[0] == 0.0);
        let rate = 19_999.0 / starts[19_999];
        assert!((48.0..52.0).contains(&rate), "{rate}");
        assert!(starts_s(None, 3, &mut chance).iter().all(|start_s| *start_s == 0.0));
    }
}
