//! Places for calls that run or wait: as many as are configured, and no more.

use std::sync::Arc;

use prometheus_client::metrics::gauge::Gauge;
use tokio::sync::OwnedSemaphorePermit;

use crate::api_error::{ApiError, Kind};
use crate::app::App;

/// A call's place, given back when it is dropped.
pub(super) struct OpenPlace {
    _permit: OwnedSemaphorePermit,
    open: Gauge,
}

impl OpenPlace {
    /// Takes a place for one more call.
    ///
    /// # Errors
    /// 429 when there is none.
    pub(super) fn take(app: &App) -> Result<Self, ApiError> {
        let permit = Arc::clone(&app.open_calls).try_acquire_owned().map_err(|_| {
            let most = app.options.limits.open_calls;
            ApiError::new(Kind::QueueFull, format!("{most} calls are open, and no more may be"))
        })?;
        let open = app.metrics.calls.open.clone();
        open.inc();
        Ok(Self { _permit: permit, open })
    }
}

impl Drop for OpenPlace {
    fn drop(&mut self) {
        self.open.dec();
    }
}
