//! Liveness, readiness and version.

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use crate::app::App;
use crate::limits::RETRY_AFTER_UNAVAILABLE_S;

/// 200 as long as the daemon answers at all.
pub(crate) async fn live() -> Json<Value> {
    Json(json!({"status": "alive"}))
}

/// 200 only when every rank is in service and new requests are taken, else 503; either way with the state of each.
pub(crate) async fn ready(State(app): State<App>) -> Response {
    let status = app.handle.status();
    let ranks: Vec<Value> = status
        .ranks
        .iter()
        .map(|rank| {
            json!({
                "dp_rank": rank.dp_rank,
                "state": rank.state.name(),
                "gate": rank.gate.name(),
                "running": rank.running,
            })
        })
        .collect();
    let body = json!({
        "ready": status.ready,
        "draining": status.draining,
        "ranks": ranks,
        "waiting": status.waiting,
    });
    let body = Json(body);
    if status.ready {
        return body.into_response();
    }
    let retry_after = [(header::RETRY_AFTER, HeaderValue::from(RETRY_AFTER_UNAVAILABLE_S))];
    (StatusCode::SERVICE_UNAVAILABLE, retry_after, body).into_response()
}

/// Requests in the engine, waiting and running, as other servers tell their load; and those of each rank.
pub(crate) async fn load(State(app): State<App>) -> Json<Value> {
    let status = app.handle.status();
    let running: usize = status.ranks.iter().map(|rank| rank.running).sum();
    let ranks: Vec<Value> = status
        .ranks
        .iter()
        .map(|rank| {
            json!({
                "dp_rank": rank.dp_rank,
                "running": rank.running,
                "load_tokens": rank.load_tokens,
                "kv_blocks_used": rank.kv_blocks_used,
                "kv_blocks_cached": rank.kv_blocks_cached,
                "kv_blocks": rank.kv_blocks_total,
            })
        })
        .collect();
    Json(json!({"server_load": running + status.waiting, "waiting": status.waiting, "ranks": ranks}))
}

/// The version of this program.
pub(crate) async fn version() -> Json<Value> {
    Json(json!({"version": env!("CARGO_PKG_VERSION")}))
}
