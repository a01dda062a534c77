//! The one model served, as OpenAI lists models.

use axum::Json;
use axum::extract::{Path, State};
use serde_json::{Value, json};

use crate::api_error::ApiError;
use crate::app::App;

/// All models: one.
pub(crate) async fn list(State(app): State<App>) -> Json<Value> {
    Json(json!({"object": "list", "data": [model(&app)]}))
}

/// One model by name.
pub(crate) async fn retrieve(State(app): State<App>, Path(name): Path<String>) -> Result<Json<Value>, ApiError> {
    if name == app.options.model_name {
        return Ok(Json(model(&app)));
    }
    Err(ApiError::unknown_model(&name, &app.options.model_name))
}

fn model(app: &App) -> Value {
    let length = app.handle.limits().max_model_len;
    json!({
        "id": app.options.model_name,
        "object": "model",
        "created": app.started_unix_s,
        "owned_by": "paceline",
        "root": app.options.model_root,
        "parent": null,
        // Known once the workers have loaded.
        "max_model_len": (length > 0).then_some(length),
    })
}
