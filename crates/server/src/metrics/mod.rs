//! Every metric of the daemon: names, units, labels and help in one place.
//!
//! Names are `paceline_<thing>_<base unit>`; counters end in `_total`. Labels are `dp_rank`, `cause` and `mode`, with
//! `position` and `part` where nothing else fits. Counts of calls are kept here; what the fleet knows about itself is
//! read from the engine's status at each scrape, so that a rank's series exists even while it has done nothing.

mod calls;
mod fleet;
mod vllm;

use paceline_engine::Handle;
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;

use self::calls::CallMetrics;
use self::fleet::FleetCollector;
use self::vllm::VllmCollector;

/// The registry and the counters that handlers write.
pub(crate) struct Metrics {
    registry: Registry,
    pub(crate) calls: CallMetrics,
}

impl Metrics {
    /// Registers everything.
    pub(crate) fn new(handle: &Handle, model_name: &str) -> Self {
        let mut registry = Registry::default();
        let calls = CallMetrics::register(registry.sub_registry_with_prefix("paceline"));
        let labels = [("model_name", model_name), ("engine", "0")];
        let labels = labels.map(|(name, value)| (name.into(), value.to_owned().into()));
        calls.register_as_vllm(registry.sub_registry_with_labels(labels.into_iter()));
        registry.register_collector(Box::new(FleetCollector::new(handle.clone())));
        registry.register_collector(Box::new(VllmCollector::new(handle.clone(), model_name)));
        Self { registry, calls }
    }

    /// The OpenMetrics text.
    pub(crate) fn encode(&self) -> Result<String, std::fmt::Error> {
        let mut text = String::new();
        encode(&mut text, &self.registry)?;
        Ok(text)
    }
}
