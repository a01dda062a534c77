//! Traces by numbers: log-normal prompts, equal outputs, Poisson arrivals at a share of what the ranks could do.

use crate::random::Random;
use crate::{Costs, Error, Trace, TraceRequest};

/// z of the 99th percentile of a standard normal.
const Z_P99: f64 = 2.326_347_874;

/// What a trace is made by.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TraceOptions {
    /// How many requests.
    pub requests: u32,
    /// Median tokens of a prompt.
    pub prompt_tokens_median: u32,
    /// 99th percentile of the tokens of a prompt.
    pub prompt_tokens_p99: u32,
    /// Longest prompt; longer ones are cut.
    pub prompt_tokens_max: u32,
    /// Tokens that every request generates.
    pub output_tokens: u32,
    /// Arrivals as a share of [`saturation_per_second`].
    pub load: f64,
    /// Groups of requests that share a prefix; 0 for none. A request is in a random one.
    pub prefix_groups: u32,
    /// Tokens of a shared prefix; it comes before the request's own tokens.
    pub prefix_tokens: u32,
    /// Everything random comes from this.
    pub seed: u64,
    /// Ranks that the load is meant for.
    pub dp_size: u32,
    /// S of those ranks.
    pub max_num_seqs: u32,
    /// Their costs.
    pub costs: Costs,
}

impl Default for TraceOptions {
    /// 2,000 requests, prompts with median 4k and p99 32k, outputs of 256, at 80% of what 8 ranks could do, seed 0.
    fn default() -> Self {
        Self {
            requests: 2_000,
            prompt_tokens_median: 4_096,
            prompt_tokens_p99: 32_768,
            prompt_tokens_max: 130_000,
            output_tokens: 256,
            load: 0.8,
            prefix_groups: 0,
            prefix_tokens: 0,
            seed: 0,
            dp_size: 8,
            max_num_seqs: 256,
            costs: Costs::default(),
        }
    }
}

/// Requests per second that ranks could do at best: no padding, perfect balance, every step with a full batch of
/// `max_num_seqs` rows.
pub fn saturation_per_second(
    costs: &Costs,
    dp_size: u32,
    max_num_seqs: u32,
    prompt_mean: f64,
    output_mean: f64,
) -> f64 {
    let row_us = costs.row_ns as f64 / 1e3 + costs.step_us as f64 / f64::from(max_num_seqs);
    let request_us = prompt_mean * costs.prompt_token_ns as f64 / 1e3 + output_mean * row_us;
    f64::from(dp_size) * 1e6 / request_us
}

impl TraceOptions {
    /// Makes the trace. The same numbers give the same trace on every machine.
    ///
    /// # Errors
    /// [`Error::Value`] for numbers that describe no load.
    pub fn generate(&self) -> Result<Trace, Error> {
        self.check()?;
        let mut random = Random::new(self.seed);
        let sigma = (f64::from(self.prompt_tokens_p99) / f64::from(self.prompt_tokens_median)).ln() / Z_P99;
        let mut requests = Vec::with_capacity(self.requests as usize);
        for _ in 0..self.requests {
            let own = f64::from(self.prompt_tokens_median) * (sigma * random.normal()).exp();
            let own = (own.round() as u32).clamp(1, self.prompt_tokens_max);
            let prefix_group = (self.prefix_groups > 0).then(|| random.below(self.prefix_groups));
            let prefix_tokens = if prefix_group.is_some() { self.prefix_tokens } else { 0 };
            requests.push(TraceRequest {
                arrival_us: 0,
                prompt_tokens: own + prefix_tokens,
                output_tokens: self.output_tokens,
                prefix_group,
                prefix_tokens,
                priority: 0,
            });
        }
        let prompts: f64 = requests.iter().map(|request| f64::from(request.prompt_tokens)).sum();
        let prompt_mean = prompts / f64::from(self.requests);
        let (ranks, rows, output) = (self.dp_size, self.max_num_seqs, f64::from(self.output_tokens));
        let rate = self.load * saturation_per_second(&self.costs, ranks, rows, prompt_mean, output);
        let mut clock_us = 0.0;
        for request in &mut requests {
            clock_us += random.exponential(1e6 / rate);
            request.arrival_us = clock_us.round() as u64;
        }
        Ok(Trace { requests })
    }

    fn check(&self) -> Result<(), Error> {
        for (field, value) in [
            ("requests", self.requests),
            ("prompt_tokens_median", self.prompt_tokens_median),
            ("output_tokens", self.output_tokens),
            ("data_parallel_size", self.dp_size),
            ("max_num_seqs", self.max_num_seqs),
        ] {
            if value == 0 {
                return Err(Error::Value { field, expected: "at least 1", got: value.to_string() });
            }
        }
        if self.prompt_tokens_p99 < self.prompt_tokens_median {
            let got = self.prompt_tokens_p99.to_string();
            return Err(Error::Value { field: "prompt_tokens_p99", expected: "at least the median", got });
        }
        if !(self.load.is_finite() && self.load > 0.0) {
            return Err(Error::Value { field: "load", expected: "a positive number", got: self.load.to_string() });
        }
        Ok(())
    }
}
