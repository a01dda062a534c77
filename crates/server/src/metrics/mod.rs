//! Every metric of the daemon: names, units, labels and help in one place.
//!
//! Names are `paceline_<thing>_<base unit>`; counters end in `_total`. Labels are `dp_rank`, `cause` and `mode`, with
//! `position` and `part` where nothing else fits. Counts of calls are kept here; what the fleet knows about itself is
//! read from the engine's status at each scrape, so that a rank's series exists even while it has done nothing.

mod calls;
mod fleet;
mod http;
mod requests;
mod vllm;

use paceline_engine::Handle;
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;

use self::calls::CallMetrics;
use self::fleet::FleetCollector;
use self::http::HttpMetrics;
pub(crate) use self::requests::ChoiceTimes;
use self::requests::RequestMetrics;
use self::vllm::VllmCollector;
use crate::traces::Traces;

/// The registry and the counters that handlers write.
pub(crate) struct Metrics {
    registry: Registry,
    pub(crate) calls: CallMetrics,
    pub(crate) requests: RequestMetrics,
    pub(crate) http: HttpMetrics,
}

impl Metrics {
    /// Registers everything.
    pub(crate) fn new(handle: &Handle, model_name: &str, traces: Option<&Traces>) -> Self {
        let mut registry = Registry::default();
        let calls = CallMetrics::register(registry.sub_registry_with_prefix("paceline"));
        if let Some(traces) = traces {
            let help = "Calls whose spans were lost, since the collector was slow or away";
            registry.register("paceline_spans_dropped", help, traces.dropped.clone());
        }
        let requests = RequestMetrics::new();
        let http = HttpMetrics::register(&mut registry);
        let label = |name: &'static str, value: &str| (name.into(), value.to_owned().into());
        let of_model = registry.sub_registry_with_label(label("model_name", model_name));
        requests.register_of_model(of_model);
        let of_engine = of_model.sub_registry_with_label(label("engine", "0"));
        calls.register_as_vllm(of_engine);
        requests.register(of_engine);
        registry.register_collector(Box::new(FleetCollector::new(handle.clone())));
        registry.register_collector(Box::new(VllmCollector::new(handle.clone(), model_name)));
        Self { registry, calls, requests, http }
    }

    /// The OpenMetrics text.
    pub(crate) fn encode(&self) -> Result<String, std::fmt::Error> {
        let mut text = String::new();
        encode(&mut text, &self.registry)?;
        Ok(text)
    }
}
