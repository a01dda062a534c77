//! What operators may ask, the same for HTTP and gRPC.

use paceline_engine::Gate;

use crate::api_error::{ApiError, Kind};
use crate::app::App;

/// Prefixes that the ids of calls have, by the kind of the call.
const ID_PREFIXES: [&str; 4] = ["", "cmpl-", "chatcmpl-", "resp-"];

/// What becomes of requests in a pause.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pause {
    /// They keep their seats and KV blocks and go on afterwards.
    Keep,
    /// Those that run go on to their end first.
    Wait,
    /// They end at once.
    Abort,
}

/// Refuses where the server was not started for it: these calls stop other people's requests and show their tokens.
pub(crate) fn allowed(app: &App) -> Result<(), ApiError> {
    if app.options.admin {
        return Ok(());
    }
    Err(ApiError::new(Kind::Forbidden, "this server was started without --enable-admin"))
}

/// Refuses a rank that does not exist.
pub(crate) fn known_rank(app: &App, dp_rank: Option<u32>) -> Result<(), ApiError> {
    let ranks = app.handle.status().ranks.len();
    match dp_rank.filter(|dp_rank| *dp_rank as usize >= ranks) {
        Some(dp_rank) => {
            let message = format!("there is no rank {dp_rank}; ranks are 0 to {}", ranks.saturating_sub(1));
            Err(ApiError::invalid("dp_rank", message))
        }
        None => Ok(()),
    }
}

/// Stops ranks, and is done when they have come to rest.
pub(crate) async fn pause(app: &App, dp_rank: Option<u32>, mode: Pause, clear_cache: bool) -> Result<(), ApiError> {
    allowed(app)?;
    known_rank(app, dp_rank)?;
    let gate = if mode == Pause::Wait { Gate::Finishing } else { Gate::Paused };
    app.handle.set_gate(dp_rank, gate, true).await?;
    if mode == Pause::Abort {
        app.handle.abort_rank(dp_rank).await?;
    }
    if clear_cache {
        app.handle.reset_prefix_cache().await?;
    }
    Ok(())
}

/// Ends a pause or a drain.
pub(crate) async fn resume(app: &App, dp_rank: Option<u32>) -> Result<(), ApiError> {
    allowed(app)?;
    known_rank(app, dp_rank)?;
    Ok(app.handle.set_gate(dp_rank, Gate::Open, false).await?)
}

/// Ends the requests of these ids, or all; how many there were.
pub(crate) async fn abort(app: &App, ids: Option<Vec<String>>) -> Result<u32, ApiError> {
    allowed(app)?;
    let Some(ids) = ids else { return Ok(app.handle.abort_rank(None).await?) };
    let names = ids.iter().flat_map(|id| ID_PREFIXES.iter().map(move |prefix| format!("{prefix}{id}")));
    Ok(app.handle.abort_named(names.collect()).await?)
}

/// Whether nothing starts on any rank until someone resumes it.
pub(crate) fn is_paused(app: &App) -> bool {
    let status = app.handle.status();
    !status.ranks.is_empty() && status.ranks.iter().all(|rank| matches!(rank.gate, Gate::Paused | Gate::Finishing))
}
