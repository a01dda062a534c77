//! Routes. Every answer that is not a success is an OpenAI error object.

mod admin;
mod chat;
mod chat_reader;
mod completions;
mod cors;
mod explain;
mod front;
mod health;
mod metrics;
mod models;
mod openapi;
mod responses;
mod responses_stream;
mod sse;
mod tokenizer;

pub(crate) use front::{accepts_key, checked_id, dp_rank};

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::middleware::from_fn_with_state;
use axum::routing::{get, post};

use crate::api_error::{ApiError, Kind};
use crate::app::App;

/// The route that asks for no key: a probe that only wants to know whether the daemon answers.
pub(crate) const LIVENESS: &str = "/health";

/// All routes over one shared state.
pub(crate) fn router(app: App) -> Router {
    Router::new()
        .route("/v1/completions", post(completions::completions))
        .route("/v1/chat/completions", post(chat::chat_completions))
        .route("/v1/responses", post(responses::responses))
        .route("/tokenize", post(tokenizer::tokenize))
        .route("/detokenize", post(tokenizer::detokenize))
        .route("/tokenizer_info", get(tokenizer::info))
        .route("/load", get(health::load))
        .route("/pause", post(admin::pause_route))
        .route("/resume", post(admin::resume_route))
        .route("/is_paused", get(admin::is_paused_route))
        .route("/abort_requests", post(admin::abort_requests))
        .route("/reset_prefix_cache", post(admin::reset_prefix_cache))
        .route("/v1/models", get(models::list))
        .route("/v1/models/{*model}", get(models::retrieve))
        .route(LIVENESS, get(health::live))
        .route("/ready", get(health::ready))
        .route("/openapi.json", get(openapi::document))
        .route("/version", get(health::version))
        .route("/metrics", get(metrics::scrape))
        .route("/explain/{step}", get(explain::explain))
        .fallback(async || ApiError::new(Kind::NotFound, "there is no such route"))
        .method_not_allowed_fallback(async || {
            ApiError::new(Kind::MethodNotAllowed, "this route does not take this method")
        })
        // Bodies are read, and limited, by the handlers themselves.
        .layer(DefaultBodyLimit::disable())
        .layer(from_fn_with_state(app.clone(), front::front))
        .layer(from_fn_with_state(app.clone(), cors::cors))
        .with_state(app)
}
