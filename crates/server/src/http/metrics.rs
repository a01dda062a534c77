//! `GET /metrics`.

use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};

use crate::api_error::{ApiError, Kind};
use crate::app::App;

const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Every metric, as of now.
pub(crate) async fn scrape(State(app): State<App>) -> Result<Response, ApiError> {
    let text =
        app.metrics.encode().map_err(|_| ApiError::new(Kind::Internal, "the metrics cannot be written as text"))?;
    Ok(([(header::CONTENT_TYPE, CONTENT_TYPE)], text).into_response())
}
