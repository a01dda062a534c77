//! What operators ask, under the names that vLLM has for it.

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::Uri;
use serde_json::{Value, json};

use super::front::read_body;
use crate::admin::{Pause, abort, allowed, is_paused, pause, resume};
use crate::api_error::ApiError;
use crate::app::App;
use crate::openai::{Fields, texts};

/// `POST /pause?mode=abort|wait|keep&clear_cache=true&dp_rank=0`: answers when the ranks have come to rest.
pub(crate) async fn pause_route(State(app): State<App>, uri: Uri) -> Result<Json<Value>, ApiError> {
    let query = Query::read(&uri, &["mode", "clear_cache", "dp_rank", "wait_for_inflight_requests"])?;
    let waits = query.boolean("wait_for_inflight_requests")?.unwrap_or(false);
    let mode = match query.text("mode") {
        None if waits => Pause::Wait,
        None | Some("abort") => Pause::Abort,
        Some("wait") => Pause::Wait,
        Some("keep") => Pause::Keep,
        Some(other) => {
            return Err(ApiError::invalid("mode", format!("mode must be abort, wait or keep, got \"{other}\"")));
        }
    };
    pause(&app, query.dp_rank()?, mode, query.boolean("clear_cache")?.unwrap_or(true)).await?;
    Ok(Json(json!({"status": "paused"})))
}

/// `POST /resume?dp_rank=0`.
pub(crate) async fn resume_route(State(app): State<App>, uri: Uri) -> Result<Json<Value>, ApiError> {
    resume(&app, Query::read(&uri, &["dp_rank"])?.dp_rank()?).await?;
    Ok(Json(json!({"status": "resumed"})))
}

/// `GET /is_paused`.
pub(crate) async fn is_paused_route(State(app): State<App>) -> Result<Json<Value>, ApiError> {
    allowed(&app)?;
    Ok(Json(json!({"is_paused": is_paused(&app)})))
}

/// `POST /reset_prefix_cache`.
pub(crate) async fn reset_prefix_cache(State(app): State<App>) -> Result<Json<Value>, ApiError> {
    allowed(&app)?;
    app.handle.reset_prefix_cache().await?;
    Ok(Json(json!({"status": "reset"})))
}

/// `POST /abort_requests {"request_ids": [...]}`: without ids, every request.
pub(crate) async fn abort_requests(State(app): State<App>, body: Body) -> Result<Json<Value>, ApiError> {
    let body = read_body(&app, body).await?;
    let mut ids = Vec::new();
    if !body.is_empty() {
        let mut fields = Fields::from_body(&body)?;
        ids = texts(&mut fields, "request_ids")?;
        fields.finish()?;
    }
    let aborted = abort(&app, (!ids.is_empty()).then_some(ids)).await?;
    Ok(Json(json!({"status": "aborted", "aborted": aborted})))
}

/// The query of a request line: plain words, nothing that is escaped.
struct Query<'a>(Vec<(&'a str, &'a str)>);

impl<'a> Query<'a> {
    fn read(uri: &'a Uri, known: &[&str]) -> Result<Self, ApiError> {
        let pairs = uri.query().unwrap_or_default().split('&').filter(|pair| !pair.is_empty());
        let pairs: Vec<(&str, &str)> = pairs.map(|pair| pair.split_once('=').unwrap_or((pair, ""))).collect();
        match pairs.iter().find(|(name, _)| !known.contains(name)) {
            Some((name, _)) => Err(ApiError::invalid(*name, format!("unknown query parameter `{name}`"))),
            None => Ok(Self(pairs)),
        }
    }

    fn text(&self, name: &str) -> Option<&'a str> {
        self.0.iter().rfind(|(other, _)| *other == name).map(|(_, value)| *value)
    }

    fn boolean(&self, name: &str) -> Result<Option<bool>, ApiError> {
        match self.text(name) {
            None => Ok(None),
            Some("true" | "True" | "1") => Ok(Some(true)),
            Some("false" | "False" | "0") => Ok(Some(false)),
            Some(other) => Err(ApiError::invalid(name, format!("{name} must be true or false, got \"{other}\""))),
        }
    }

    fn dp_rank(&self) -> Result<Option<u32>, ApiError> {
        let wrong = |text| ApiError::invalid("dp_rank", format!("dp_rank must be a rank's number, got \"{text}\""));
        self.text("dp_rank").map(|text| text.parse().map_err(|_| wrong(text))).transpose()
    }
}
