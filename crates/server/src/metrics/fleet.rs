//! What the fleet knows about itself, read from the engine's status at each scrape.

use std::fmt;

use paceline_engine::{FleetStatus, Handle, MODES, ModeTokens, RankState, RankStatus, Spread};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

/// Encodes the engine's status.
pub(super) struct FleetCollector {
    handle: Handle,
}

impl FleetCollector {
    pub(super) fn new(handle: Handle) -> Self {
        Self { handle }
    }
}

impl fmt::Debug for FleetCollector {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("FleetCollector").finish_non_exhaustive()
    }
}

impl Collector for FleetCollector {
    fn encode(&self, encoder: DescriptorEncoder) -> Result<(), fmt::Error> {
        let status = self.handle.status();
        let mut writer = Writer { encoder };
        ranks(&mut writer, &status.ranks)?;
        ledger(&mut writer, &status.ranks)?;
        fleet(&mut writer, &status)?;
        prefix_cache(&mut writer, &status.ranks)?;
        timings(&mut writer, &status)?;
        speculation(&mut writer, &status.ranks)
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Rank {
    dp_rank: u32,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RankCause {
    dp_rank: u32,
    cause: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RankMode {
    dp_rank: u32,
    mode: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RankCauseMode {
    dp_rank: u32,
    cause: &'static str,
    mode: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RankPosition {
    dp_rank: u32,
    position: u32,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Part {
    part: &'static str,
    quantile: &'static str,
}

/// One metric with all its series at a time.
struct Writer<'a> {
    encoder: DescriptorEncoder<'a>,
}

impl Writer<'_> {
    fn counters<L: EncodeLabelSet>(
        &mut self,
        name: &str,
        help: &str,
        series: impl IntoIterator<Item = (L, u64)>,
    ) -> fmt::Result {
        let mut metric = self.encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
        for (labels, value) in series {
            ConstCounter::new(value).encode(metric.encode_family(&labels)?)?;
        }
        Ok(())
    }

    fn gauges<L: EncodeLabelSet>(
        &mut self,
        name: &str,
        help: &str,
        series: impl IntoIterator<Item = (L, f64)>,
    ) -> fmt::Result {
        let mut metric = self.encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for (labels, value) in series {
            ConstGauge::new(value).encode(metric.encode_family(&labels)?)?;
        }
        Ok(())
    }

    fn counter(&mut self, name: &str, help: &str, value: u64) -> fmt::Result {
        ConstCounter::new(value).encode(self.encoder.encode_descriptor(name, help, None, MetricType::Counter)?)
    }

    fn gauge(&mut self, name: &str, help: &str, value: f64) -> fmt::Result {
        ConstGauge::new(value).encode(self.encoder.encode_descriptor(name, help, None, MetricType::Gauge)?)
    }
}

fn by_rank<'a>(
    ranks: &'a [RankStatus],
    value: impl Fn(&RankStatus) -> u64 + 'a,
) -> impl Iterator<Item = (Rank, u64)> + 'a {
    ranks.iter().map(move |rank| (Rank { dp_rank: rank.dp_rank }, value(rank)))
}

fn by_rank_gauge<'a>(
    ranks: &'a [RankStatus],
    value: impl Fn(&RankStatus) -> f64 + 'a,
) -> impl Iterator<Item = (Rank, f64)> + 'a {
    ranks.iter().map(move |rank| (Rank { dp_rank: rank.dp_rank }, value(rank)))
}

fn by_cause<'a>(
    ranks: &'a [RankStatus],
    values: impl Fn(&'a RankStatus) -> &'a [(&'static str, u64)] + 'a,
) -> impl Iterator<Item = (RankCause, u64)> + 'a {
    ranks.iter().flat_map(move |rank| {
        values(rank).iter().map(|(cause, value)| (RankCause { dp_rank: rank.dp_rank, cause }, *value))
    })
}

/// Pairs each mode's counter with its labels.
fn by_mode<'a, T: Copy + 'a>(
    ranks: &'a [RankStatus],
    values: impl Fn(&RankStatus) -> [T; MODES.len()] + 'a,
) -> impl Iterator<Item = (RankMode, T)> + 'a {
    ranks.iter().flat_map(move |rank| {
        let label = |mode| RankMode { dp_rank: rank.dp_rank, mode };
        MODES.map(label).into_iter().zip(values(rank))
    })
}

fn ranks(writer: &mut Writer, ranks: &[RankStatus]) -> fmt::Result {
    writer.gauges(
        "paceline_rank_ready",
        "1 while the rank is in service",
        by_rank_gauge(ranks, |rank| f64::from(u8::from(rank.state == RankState::Ready))),
    )?;
    writer.gauges(
        "paceline_requests_running",
        "Requests that have a seat on the rank",
        by_rank_gauge(ranks, |rank| rank.running as f64),
    )?;
    writer.gauges(
        "paceline_kv_blocks_used",
        "KV blocks that requests hold",
        by_rank_gauge(ranks, |rank| f64::from(rank.kv_blocks_used)),
    )?;
    writer.gauges(
        "paceline_kv_blocks",
        "KV blocks of the rank's pool",
        by_rank_gauge(ranks, |rank| f64::from(rank.kv_blocks_total)),
    )?;
    writer.counters(
        "paceline_preemptions",
        "Requests that lost their blocks and began again",
        by_rank(ranks, |rank| rank.counters.preemptions),
    )?;
    writer.counters(
        "paceline_worker_restarts",
        "Workers that took the rank's place after the first",
        by_rank(ranks, |rank| rank.restarts),
    )
}

/// How much of prompts was computed before.
fn prefix_cache(writer: &mut Writer, ranks: &[RankStatus]) -> fmt::Result {
    writer.gauges(
        "paceline_kv_blocks_cached",
        "KV blocks that only the prefix cache holds, given up when their room is needed",
        by_rank_gauge(ranks, |rank| f64::from(rank.kv_blocks_cached)),
    )?;
    writer.counters(
        "paceline_prefix_cache_queried_tokens",
        "Tokens of requests that started, looked up in the prefix cache",
        by_rank(ranks, |rank| rank.counters.prefix_queried_tokens),
    )?;
    writer.counters(
        "paceline_prefix_cache_hit_tokens",
        "Tokens that these requests read from the prefix cache",
        by_rank(ranks, |rank| rank.counters.prefix_hit_tokens),
    )?;
    writer.counters(
        "paceline_prefix_cache_hit_requests",
        "Requests that read something from the prefix cache",
        by_rank(ranks, |rank| rank.counters.prefix_hit_requests),
    )?;
    writer.counters(
        "paceline_prefix_cache_evicted_blocks",
        "Cached KV blocks whose room was needed",
        by_rank(ranks, |rank| rank.counters.blocks_evicted),
    )
}

/// What target passes ran: real tokens, padding by cause and mode, dummies, downgrades.
fn ledger(writer: &mut Writer, ranks: &[RankStatus]) -> fmt::Result {
    let tokens = || by_mode(ranks, |rank| rank.counters.tokens_by_mode);
    writer.counters(
        "paceline_real_tokens",
        "Tokens that requests needed, by mode of the target pass",
        tokens().map(|(label, tokens)| (label, tokens.real)),
    )?;
    let causes = |(RankMode { dp_rank, mode }, tokens): (RankMode, ModeTokens)| {
        let label = move |cause| RankCauseMode { dp_rank, cause, mode };
        tokens.padding.by_cause().map(|(cause, tokens)| (label(cause), tokens))
    };
    writer.counters(
        "paceline_padded_tokens",
        "Tokens that kernels were given beyond real ones, by cause and mode; real and padded tokens are all there were",
        tokens().flat_map(causes),
    )?;
    writer.counters(
        "paceline_attention_padded_tokens",
        "Those of the padded tokens that attention was given too, by mode",
        tokens().map(|(label, tokens)| (label, tokens.padding.attention)),
    )?;
    writer.counters(
        "paceline_dummy_steps",
        "Steps in which the rank had nothing of its own to run",
        by_rank(ranks, |rank| rank.counters.dummy_steps),
    )?;
    writer.counters(
        "paceline_dummy_tokens",
        "Tokens of dummies, one row per step; neither prompt nor generation tokens",
        by_rank(ranks, |rank| rank.counters.dummy_tokens),
    )?;
    let steps = by_mode(ranks, |rank| rank.counters.steps_by_mode);
    writer.counters("paceline_rank_steps", "Steps by mode of the target pass, dummies included", steps)?;
    writer.counters(
        "paceline_downgrades",
        "Steps of the group that were not full because of this rank, by reason",
        by_cause(ranks, |rank| &rank.counters.downgrades),
    )
}

fn fleet(writer: &mut Writer, status: &FleetStatus) -> fmt::Result {
    let counters = &status.counters;
    let ready = f64::from(u8::from(status.ready));
    writer.gauge("paceline_ready", "1 while every rank is in service", ready)?;
    writer.gauge("paceline_requests_waiting", "Requests that no rank has started", status.waiting as f64)?;
    writer.gauge("paceline_requests_known", "Requests that the engine knows anything of", status.known as f64)?;
    writer.counter(
        "paceline_slow_readers",
        "Requests that were ended because nobody read their answers",
        status.slow_readers,
    )?;
    writer.counter("paceline_steps", "Steps of all groups", counters.steps)?;
    writer.gauge(
        "paceline_balance_ratio",
        "Real tokens of all ranks, over those of each step's largest rank times its group's ranks; 1 is even",
        counters.balance_ratio(),
    )?;
    writer.counter(
        "paceline_balance_largest_tokens",
        "Real tokens of each step's largest rank times the ranks of its group: what the balance ratio divides by",
        counters.balance_largest_tokens,
    )?;
    writer.counter("paceline_engine_accepted", "Requests that the engine accepted", counters.accepted)?;
    writer.counter("paceline_engine_refused", "Requests that the engine refused", counters.refused)?;
    writer.counter("paceline_engine_finished", "Requests that ended by stop or length", counters.finished)?;
    writer.counter("paceline_engine_aborted", "Requests whose reader left first", counters.aborted)?;
    writer.counter("paceline_engine_failed", "Requests that ended with an error", counters.failed)?;
    writer.counter("paceline_refused_plans", "Plans that a worker refused", counters.refused_plans)
}

fn timings(writer: &mut Writer, status: &FleetStatus) -> fmt::Result {
    let timings = &status.timings;
    let parts: [(&'static str, Spread); 8] = [
        ("plan", timings.plan),
        ("encode", timings.encode),
        ("wire", timings.wire),
        ("worker_decode", timings.worker_decode),
        ("worker_fill", timings.worker_fill),
        ("worker_forward", timings.worker_forward),
        ("worker_sample", timings.worker_sample),
        ("commit", timings.commit),
    ];
    let seconds = |microseconds: u32| f64::from(microseconds) / 1e6;
    let series = parts.into_iter().flat_map(|(part, spread)| {
        [
            (Part { part, quantile: "0.5" }, seconds(spread.median_us)),
            (Part { part, quantile: "0.99" }, seconds(spread.p99_us)),
        ]
    });
    writer.gauges("paceline_step_part_seconds", "Where the time of the latest steps went", series)
}

fn by_position(
    ranks: &[RankStatus],
    values: fn(&RankStatus) -> &Vec<u64>,
) -> impl Iterator<Item = (RankPosition, u64)> {
    ranks.iter().flat_map(move |rank| {
        let dp_rank = rank.dp_rank;
        (0_u32..).zip(values(rank)).map(move |(position, value)| (RankPosition { dp_rank, position }, *value))
    })
}

/// The counters of drafts.
fn speculation(writer: &mut Writer, ranks: &[RankStatus]) -> fmt::Result {
    writer.counters("paceline_drafts", "Rows that had drafts", by_rank(ranks, |rank| rank.counters.drafts))?;
    writer.counters(
        "paceline_draft_tokens",
        "Draft tokens verified",
        by_rank(ranks, |rank| rank.counters.draft_tokens),
    )?;
    writer.counters(
        "paceline_accepted_tokens",
        "Draft tokens that the target agreed with",
        by_rank(ranks, |rank| rank.counters.accepted_tokens),
    )?;
    writer.counters(
        "paceline_draft_tokens_per_position",
        "Verified draft tokens by position in the row",
        by_position(ranks, |rank| &rank.counters.verified_per_position),
    )?;
    writer.counters(
        "paceline_accepted_tokens_per_position",
        "Accepted draft tokens by position in the row",
        by_position(ranks, |rank| &rank.counters.accepted_per_position),
    )?;
    writer.counters(
        "paceline_draft_blocks_missing",
        "KV blocks that drafts after the first would have used and that were not free",
        by_rank(ranks, |rank| rank.counters.wanted_blocks_missing),
    )
}
