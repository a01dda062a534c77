//! What every handler shares.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use paceline_engine::Handle;
use tokio::sync::Semaphore;

use crate::Options;
use crate::generate::Grammars;
use crate::metrics::Metrics;

/// Shared state of all handlers; clones are cheap.
pub(crate) type App = Arc<Shared>;

/// One per server.
pub(crate) struct Shared {
    pub(crate) options: Options,
    pub(crate) handle: Handle,
    pub(crate) metrics: Metrics,
    /// What answers can be held to.
    pub(crate) grammars: Grammars,
    /// Places for calls that run or wait.
    pub(crate) open_calls: Arc<Semaphore>,
    /// Seconds since 1970 when the server was built: `created` of the model.
    pub(crate) started_unix_s: u64,
}

impl Shared {
    pub(crate) fn new(options: Options, handle: Handle) -> App {
        let metrics = Metrics::new(&handle, &options.model_name, options.traces.as_ref());
        let open_calls = Arc::new(Semaphore::new(options.limits.open_calls.min(Semaphore::MAX_PERMITS)));
        Arc::new(Self { options, handle, metrics, grammars: Grammars::default(), open_calls, started_unix_s: unix_s() })
    }

    /// Names the program and its layout in responses: results repeat only within one of them.
    pub(crate) fn fingerprint(&self) -> String {
        format!("paceline-{}-dp{}", env!("CARGO_PKG_VERSION"), self.handle.limits().dp_size)
    }
}

/// Seconds since 1970.
pub(crate) fn unix_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}
