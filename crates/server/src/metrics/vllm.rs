//! The same numbers under vLLM's names, so that its dashboards, its benchmark client and gateways find them.

use std::fmt;

use paceline_engine::{Handle, RankStatus};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric};
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
struct CacheConfig {
    block_size: u32,
    num_gpu_blocks: u32,
    engine: u32,
}

impl VllmCollector {
    fn label(&self, engine: u32) -> Engine {
        Engine { model_name: self.model_name.clone(), engine }
    }

    fn gauges(
        &self,
        encoder: &mut DescriptorEncoder<'_>,
        (name, help): (&str, &str),
        series: impl Iterator<Item = (u32, f64)>,
    ) -> fmt::Result {
        let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for (engine, value) in series {
            ConstGauge::new(value).encode(metric.encode_family(&self.label(engine))?)?;
        }
        Ok(())
    }

    fn counters(
        &self,
        encoder: &mut DescriptorEncoder<'_>,
        (name, help): (&str, &str),
        series: impl Iterator<Item = (u32, u64)>,
    ) -> fmt::Result {
        let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
        for (engine, value) in series {
            ConstCounter::new(value).encode(metric.encode_family(&self.label(engine))?)?;
        }
        Ok(())
    }
}

impl Collector for VllmCollector {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), fmt::Error> {
        let status = self.handle.status();
        let limits = self.handle.limits();
        let ranks = || status.ranks.iter();
        self.gauges(
            &mut encoder,
            ("vllm:num_requests_running", "Requests that have a seat on the rank"),
            ranks().map(|rank| (rank.dp_rank, rank.running as f64)),
        )?;
        // One queue for all ranks: its length stands at the first.
        let waiting = |rank: &RankStatus| if rank.dp_rank == 0 { status.waiting as f64 } else { 0.0 };
        self.gauges(
            &mut encoder,
            ("vllm:num_requests_waiting", "Requests that no rank has started; one queue, told at engine 0"),
            ranks().map(|rank| (rank.dp_rank, waiting(rank))),
        )?;
        let used = |rank: &RankStatus| f64::from(rank.kv_blocks_used) / f64::from(rank.kv_blocks_total.max(1));
        self.gauges(
            &mut encoder,
            ("vllm:kv_cache_usage_perc", "Share of KV blocks that requests hold, 0 to 1"),
            ranks().map(|rank| (rank.dp_rank, used(rank))),
        )?;
        self.counters(
            &mut encoder,
            ("vllm:num_preemptions", "Requests that lost their blocks and began again"),
            ranks().map(|rank| (rank.dp_rank, rank.counters.preemptions)),
        )?;
        self.counters(
            &mut encoder,
            ("vllm:prefix_cache_queries", "Tokens of requests that started, looked up in the prefix cache"),
            ranks().map(|rank| (rank.dp_rank, rank.counters.prefix_queried_tokens)),
        )?;
        self.counters(
            &mut encoder,
            ("vllm:prefix_cache_hits", "Tokens that these requests read from the prefix cache"),
            ranks().map(|rank| (rank.dp_rank, rank.counters.prefix_hit_tokens)),
        )?;
        let mut config = encoder.encode_descriptor(
            "vllm:cache_config_info",
            "The KV cache of each rank",
            None,
            MetricType::Gauge,
        )?;
        for rank in ranks() {
            let label =
                CacheConfig { block_size: limits.block_size, num_gpu_blocks: limits.kv_blocks, engine: rank.dp_rank };
            ConstGauge::new(1.0).encode(config.encode_family(&label)?)?;
        }
        Ok(())
    }
}
