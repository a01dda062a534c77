//! The same numbers under vLLM's names, so that its dashboards, its benchmark client and gateways find them.

use std::fmt;

use paceline_engine::{Handle, RankStatus, STEP_TOKENS_BOUNDS, StepTokens};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

/// Encodes what is known of each rank.
pub(super) struct VllmCollector {
    handle: Handle,
    model_name: String,
}

impl VllmCollector {
    pub(super) fn new(handle: Handle, model_name: &str) -> Self {
        Self { handle, model_name: model_name.to_owned() }
    }
}

impl fmt::Debug for VllmCollector {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("VllmCollector").finish_non_exhaustive()
    }
}

/// vLLM calls a rank an engine.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Engine {
    model_name: String,
    engine: u32,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Source {
    model_name: String,
    engine: u32,
    source: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Reason {
    model_name: String,
    engine: u32,
    reason: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Position {
    model_name: String,
    engine: u32,
    position: u32,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CacheConfig {
    block_size: u32,
    num_gpu_blocks: u32,
    engine: u32,
}

/// Writes one metric with all its series at a time.
struct Writer<'e, 'a> {
    encoder: DescriptorEncoder<'e>,
    model_name: &'a str,
    ranks: &'a [RankStatus],
}

impl Writer<'_, '_> {
    fn engine(&self, engine: u32) -> Engine {
        Engine { model_name: self.model_name.to_owned(), engine }
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

    /// A gauge of each rank.
    fn rank_gauges(&mut self, name: &str, help: &str, value: impl Fn(&RankStatus) -> f64) -> fmt::Result {
        let series: Vec<_> = self.ranks.iter().map(|rank| (self.engine(rank.dp_rank), value(rank))).collect();
        self.gauges(name, help, series)
    }

    /// A counter of each rank.
    fn rank_counters(&mut self, name: &str, help: &str, value: impl Fn(&RankStatus) -> u64) -> fmt::Result {
        let series: Vec<_> = self.ranks.iter().map(|rank| (self.engine(rank.dp_rank), value(rank))).collect();
        self.counters(name, help, series)
    }

    /// Counters of each rank by where something came from.
    fn sources(&mut self, name: &str, help: &str, values: &[(&'static str, Count)]) -> fmt::Result {
        let model_name = self.model_name.to_owned();
        let of = |rank: &RankStatus, (source, count): &(&'static str, Count)| {
            (Source { model_name: model_name.clone(), engine: rank.dp_rank, source }, count(rank))
        };
        let of_rank = |rank| values.iter().map(move |value| (rank, value));
        let series: Vec<_> = self.ranks.iter().flat_map(of_rank).map(|(rank, value)| of(rank, value)).collect();
        self.counters(name, help, series)
    }

    fn occupancy(&mut self, waiting: usize) -> fmt::Result {
        self.rank_gauges("vllm:num_requests_running", "Requests that have a seat on the rank", |rank| {
            rank.running as f64
        })?;
        // One queue for all ranks: its length stands at the first.
        let waits = |rank: &RankStatus| if rank.dp_rank == 0 { waiting as f64 } else { 0.0 };
        let help = "Requests that no rank has started; one queue, told at engine 0";
        self.rank_gauges("vllm:num_requests_waiting", help, waits)?;
        let label =
            |rank: &RankStatus, reason| Reason { model_name: self.model_name.to_owned(), engine: rank.dp_rank, reason };
        let by_reason = |rank| [(label(rank, "capacity"), waits(rank)), (label(rank, "deferred"), 0.0)];
        let series: Vec<_> = self.ranks.iter().flat_map(by_reason).collect();
        self.gauges("vllm:num_requests_waiting_by_reason", "The same by what they wait for", series)?;
        self.rank_gauges("vllm:kv_cache_usage_perc", "Share of KV blocks that requests hold, 0 to 1", |rank| {
            f64::from(rank.kv_blocks_used) / f64::from(rank.kv_blocks_total.max(1))
        })?;
        self.rank_counters("vllm:num_preemptions", "Requests that lost their blocks and began again", |rank| {
            rank.counters.preemptions
        })
    }

    fn prompts(&mut self) -> fmt::Result {
        let (computed, hit): (Count, Count) =
            (|rank| rank.counters.prompt_tokens, |rank| rank.counters.prefix_hit_tokens);
        let help = "Tokens looked up in the prefix cache";
        self.rank_counters("vllm:prefix_cache_queries", help, |rank| rank.counters.prefix_queried_tokens)?;
        self.rank_counters("vllm:prefix_cache_hits", "Tokens found in the prefix cache", hit)?;
        self.sources(
            "vllm:prompt_tokens_by_source",
            "Prompt tokens by where their KV came from",
            &[("local_compute", computed), ("local_cache_hit", hit), ("external_kv_transfer", |_| 0)],
        )?;
        self.rank_counters("vllm:prompt_tokens_cached", "Prompt tokens that were not computed", hit)?;
        self.sources(
            "vllm:prompt_tokens_cached_by_source",
            "Prompt tokens that were not computed, by where their KV was",
            &[("device", hit)],
        )
    }

    fn speculation(&mut self) -> fmt::Result {
        self.rank_counters("vllm:spec_decode_num_drafts", "Rows that had drafts", |rank| rank.counters.drafts)?;
        self.rank_counters("vllm:spec_decode_num_draft_tokens", "Draft tokens verified", |rank| {
            rank.counters.draft_tokens
        })?;
        self.rank_counters(
            "vllm:spec_decode_num_accepted_tokens",
            "Draft tokens that the target agreed with",
            |rank| rank.counters.accepted_tokens,
        )?;
        let mut series = Vec::new();
        for rank in self.ranks {
            for (position, count) in (0_u32..).zip(&rank.counters.accepted_per_position) {
                let model_name = self.model_name.to_owned();
                series.push((Position { model_name, engine: rank.dp_rank, position }, *count));
            }
        }
        self.counters("vllm:spec_decode_num_accepted_tokens_per_pos", "Accepted draft tokens by position", series)
    }

    fn steps(&mut self, steps: &[StepTokens]) -> fmt::Result {
        let help = "Tokens of a rank's step, dummies left out";
        let labels: Vec<Engine> = steps.iter().map(|of_rank| self.engine(of_rank.dp_rank)).collect();
        let mut metric =
            self.encoder.encode_descriptor("vllm:iteration_tokens_total", help, None, MetricType::Histogram)?;
        let bounds = STEP_TOKENS_BOUNDS.iter().map(|bound| f64::from(*bound)).chain([f64::MAX]);
        for (of_rank, labels) in steps.iter().zip(labels) {
            let buckets: Vec<(f64, u64)> = bounds.clone().zip(of_rank.steps).collect();
            let count = of_rank.steps.iter().sum();
            metric.encode_family(&labels)?.encode_histogram::<NoLabelSet>(
                of_rank.tokens as f64,
                count,
                &buckets,
                None,
            )?;
        }
        Ok(())
    }
}

/// Reads a count of a rank.
type Count = fn(&RankStatus) -> u64;

impl Collector for VllmCollector {
    fn encode(&self, encoder: DescriptorEncoder) -> Result<(), fmt::Error> {
        let status = self.handle.status();
        let limits = self.handle.limits();
        let mut writer = Writer { encoder, model_name: &self.model_name, ranks: &status.ranks };
        writer.occupancy(status.waiting)?;
        writer.prompts()?;
        writer.speculation()?;
        writer.steps(&status.step_tokens)?;
        let config = |rank: &RankStatus| CacheConfig {
            block_size: limits.block_size,
            num_gpu_blocks: limits.kv_blocks,
            engine: rank.dp_rank,
        };
        let series: Vec<_> = status.ranks.iter().map(|rank| (config(rank), 1.0)).collect();
        writer.gauges("vllm:cache_config_info", "The KV cache of each rank", series)
    }
}
