//! What came of a simulation.

use paceline_scheduler::Stats;
use serde::Serialize;

use crate::requests::Times;
use crate::timeline::{Timeline, TimelinePoint};

/// Requests and tokens per second of virtual time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Throughput {
    /// Requests that ended.
    pub requests_per_s: f64,
    /// Prompt tokens run, recomputed ones too.
    pub prompt_tokens_per_s: f64,
    /// Tokens generated.
    pub output_tokens_per_s: f64,
}

/// A distribution in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Percentiles {
    /// Values counted.
    pub count: u64,
    /// Arithmetic mean.
    pub mean: f64,
    /// Half are at most this.
    pub p50: f64,
    /// 90% are at most this.
    pub p90: f64,
    /// 99% are at most this.
    pub p99: f64,
    /// The largest.
    pub max: f64,
}

impl Percentiles {
    /// Of values in microseconds.
    pub(crate) fn of_us(mut values: Vec<u64>) -> Self {
        if values.is_empty() {
            return Self::default();
        }
        values.sort_unstable();
        let at = |share: f64| values[((values.len() - 1) as f64 * share).round() as usize] as f64 / 1e3;
        let sum: u64 = values.iter().sum();
        Self {
            count: values.len() as u64,
            mean: sum as f64 / values.len() as f64 / 1e3,
            p50: at(0.5),
            p90: at(0.9),
            p99: at(0.99),
            max: at(1.0),
        }
    }
}

/// Steps of all groups.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Steps {
    /// All.
    pub count: u64,
    /// With a prompt row on some rank.
    pub mixed: u64,
    /// By the mode of the target pass.
    pub full: u64,
    /// See `full`.
    pub piecewise: u64,
    /// See `full`.
    pub eager: u64,
}

/// Tokens that kernels were given beyond real ones, by cause, over all ranks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Padding {
    /// Tokens that requests needed.
    pub real_tokens: u64,
    /// Ranks without rows.
    pub idle_dummy: u64,
    /// Up to the row ladder.
    pub row_ladder: u64,
    /// Up to the token ladder.
    pub token_ladder: u64,
    /// Drafts that were not proposed.
    pub placeholder: u64,
    /// Up to the largest rank.
    pub group_alignment: u64,
}

/// How evenly the ranks were used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Balance {
    /// Sum of means over sum of maxima of real tokens per rank, over all steps.
    pub ratio: f64,
    /// Real tokens of the rank that ran most over the mean.
    pub tokens_max_over_mean: f64,
}

/// Everything that is reported.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Report {
    /// Requests of the trace.
    pub requests: u64,
    /// Requests that were refused.
    pub refused: u64,
    /// Virtual time from the first arrival to the last token, in seconds.
    pub duration_s: f64,
    /// Per second.
    pub throughput: Throughput,
    /// From arrival to the first token.
    pub ttft_ms: Percentiles,
    /// Between one token of a request and its next. Tokens of one step come together.
    pub token_gap_ms: Percentiles,
    /// The same until the last arrival. What comes after it are rows without a prompt among them, as no server in use sees.
    pub arriving_token_gap_ms: Percentiles,
    /// From arrival to the last token.
    pub request_ms: Percentiles,
    /// Steps.
    pub steps: Steps,
    /// Padding of target passes.
    pub padding: Padding,
    /// Balance.
    pub balance: Balance,
    /// Requests sent back to the queue for their blocks.
    pub preemptions: u64,
    /// Drafts verified.
    pub draft_tokens: u64,
    /// Drafts accepted.
    pub accepted_tokens: u64,
    /// Over time.
    pub timeline: Vec<TimelinePoint>,
}

/// What a simulation counts itself.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tally {
    pub(crate) refused: u64,
    pub(crate) steps: Steps,
    pub(crate) timeline: Timeline,
}

impl Report {
    pub(crate) fn new(times: &[Times], stats: &Stats, tally: &Tally) -> Self {
        let ended: Vec<&Times> = times.iter().filter(|times| times.ended).collect();
        let start_us = times.iter().map(|times| times.arrival_us).min().unwrap_or(0);
        let end_us = ended.iter().map(|times| times.last_us).max().unwrap_or(start_us);
        let duration_s = (end_us - start_us) as f64 / 1e6;
        let per_s = |count: u64| if duration_s > 0.0 { count as f64 / duration_s } else { 0.0 };
        let prompt_tokens: u64 = stats.ranks.iter().map(|rank| rank.counters.prompt_tokens).sum();
        let output_tokens: u64 = ended.iter().map(|times| u64::from(times.tokens)).sum();
        let last_arrival_us = times.iter().map(|times| times.arrival_us).max().unwrap_or(0);
        let first = |times: &&Times| times.first_us.map(|first_us| first_us - times.arrival_us);
        let sum = |count: fn(&paceline_scheduler::RankCounters) -> u64| -> u64 {
            stats.ranks.iter().map(|rank| count(&rank.counters)).sum()
        };
        Self {
            requests: times.len() as u64,
            refused: tally.refused,
            duration_s,
            throughput: Throughput {
                requests_per_s: per_s(ended.len() as u64),
                prompt_tokens_per_s: per_s(prompt_tokens),
                output_tokens_per_s: per_s(output_tokens),
            },
            ttft_ms: Percentiles::of_us(ended.iter().filter_map(first).collect()),
            token_gap_ms: Percentiles::of_us(
                ended.iter().flat_map(|times| times.gaps_us.iter().map(|gap| u64::from(*gap))).collect(),
            ),
            arriving_token_gap_ms: Percentiles::of_us(
                ended.iter().flat_map(|times| times.gaps_until(last_arrival_us)).collect(),
            ),
            request_ms: Percentiles::of_us(ended.iter().map(|times| times.last_us - times.arrival_us).collect()),
            steps: tally.steps,
            padding: padding(stats),
            balance: balance(stats),
            preemptions: sum(|counters| counters.preemptions),
            draft_tokens: sum(|counters| counters.drafts.draft_tokens),
            accepted_tokens: sum(|counters| counters.drafts.accepted_tokens),
            timeline: tally.timeline.points().to_vec(),
        }
    }
}

fn padding(stats: &Stats) -> Padding {
    let mut all = Padding::default();
    for rank in &stats.ranks {
        let causes = rank.counters.padding();
        all.real_tokens += rank.counters.real_tokens();
        all.idle_dummy += causes.idle_dummy;
        all.row_ladder += causes.row_ladder;
        all.token_ladder += causes.token_ladder;
        all.placeholder += causes.placeholders;
        all.group_alignment += causes.group_alignment;
    }
    all
}

fn balance(stats: &Stats) -> Balance {
    let ratio = |part: u64, whole: u64| if whole == 0 { 1.0 } else { part as f64 / whole as f64 };
    let tokens: Vec<u64> = stats.ranks.iter().map(|rank| rank.counters.real_tokens()).collect();
    let largest = tokens.iter().max().copied().unwrap_or(0) * tokens.len() as u64;
    Balance {
        ratio: ratio(stats.balance_real_tokens, stats.balance_largest_tokens),
        tokens_max_over_mean: ratio(largest, tokens.iter().sum()),
    }
}
