//! `GET /openapi.json`: the routes and what they take, for clients that generate or check calls.

use axum::Json;
use axum::extract::State;
use serde_json::{Map, Value, json};

use super::LIVENESS;
use crate::app::App;

/// The document. Fields that are not listed are refused by name, so that no schema allows others.
pub(crate) async fn document(State(app): State<App>) -> Json<Value> {
    let mut document = json!({
        "openapi": "3.1.0",
        "info": {"title": "Paceline", "version": env!("CARGO_PKG_VERSION")},
        "paths": paths(app.options.admin),
        "components": {
            "schemas": {"Error": error()},
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    });
    if app.options.api_key.is_some() {
        document["security"] = json!([{"key": []}]);
        document["paths"][LIVENESS]["get"]["security"] = json!([]);
    }
    Json(document)
}

fn paths(admin: bool) -> Value {
    let any = json!({"type": "object"});
    let mut paths = json!({
        "/v1/completions": {"post": post("Complete text", &completion(), true)},
        "/v1/chat/completions": {"post": post("Answer a conversation", &chat(), true)},
        "/v1/responses": {"post": post("Answer, under the newer names", &response(), true)},
        "/tokenize": {"post": post("Tokens of a text or conversation", &tokenize(), false)},
        "/detokenize": {"post": post("Text of tokens", &detokenize(), false)},
        "/tokenizer_info": {"get": get("How prompts are made", &any)},
        "/v1/models": {"get": get("The model served", &any)},
        "/load": {"get": get("Requests in the engine", &any)},
        "/version": {"get": get("The version of this program", &any)},
        "/health": {"get": get("Whether the daemon answers", &any)},
        "/ready": {"get": get("Whether every rank is in service", &any)},
        "/openapi.json": {"get": get("This document", &any)},
        "/metrics": {"get": {
            "summary": "All metrics",
            "responses": {"200": {
                "description": "OpenMetrics text",
                "content": {"application/openmetrics-text": {"schema": {"type": "string"}}},
            }, "401": failure("No key or a wrong one")},
        }},
    });
    if let (true, Value::Object(paths), Value::Object(more)) = (admin, &mut paths, admin_paths()) {
        paths.extend(more);
    }
    paths
}

/// What only a server has that was started for it.
fn admin_paths() -> Value {
    let any = json!({"type": "object"});
    let bare = |summary| json!({"summary": summary, "responses": get(summary, &any)["responses"].clone()});
    let ids = object(&[], &[&[("request_ids", json!({"type": "array", "items": {"type": "string"}}))]]);
    json!({
        "/pause": {"post": bare("Stop every rank, or the one of ?dp_rank=")},
        "/resume": {"post": bare("End a pause or a drain")},
        "/is_paused": {"get": bare("Whether every rank is stopped")},
        "/reset_prefix_cache": {"post": bare("Forget every cached prefix")},
        "/abort_requests": {"post": post("End requests", &ids, false)},
    })
}

fn get(summary: &str, schema: &Value) -> Value {
    let content = json!({"application/json": {"schema": schema}});
    let responses = json!({
        "200": {"description": "Success", "content": content},
        "400": failure("The request cannot be understood"),
        "401": failure("No key or a wrong one"),
        "503": failure("Not now"),
    });
    json!({"summary": summary, "responses": responses})
}

fn post(summary: &str, schema: &Value, streams: bool) -> Value {
    let mut content = json!({"application/json": {"schema": {"type": "object"}}});
    if streams {
        content["text/event-stream"] = json!({"schema": {"type": "string"}});
    }
    let mut responses = json!({
        "200": {"description": "Success", "content": content},
        "400": failure("A field is wrong, named in `param`"),
        "401": failure("No key or a wrong one"),
        "404": failure("There is no such model"),
        "413": failure("The body is too large"),
        "500": failure("A fault of the server's"),
    });
    if streams {
        responses["408"] = failure("The client did not read its answer");
        responses["429"] = failure("Too much waits: come again after Retry-After");
        responses["503"] = failure("No worker for it now: come again after Retry-After");
    }
    json!({
        "summary": summary,
        "requestBody": {"required": true, "content": {"application/json": {"schema": schema}}},
        "responses": responses,
    })
}

fn failure(description: &str) -> Value {
    json!({
        "description": description,
        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}},
    })
}

fn error() -> Value {
    json!({
        "type": "object",
        "required": ["error"],
        "properties": {"error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": "integer"},
            },
        }},
    })
}

/// An object of these fields and no others. Every field may be null, which is as if it were absent.
fn object(required: &[&str], fields: &[&[(&str, Value)]]) -> Value {
    let mut properties = Map::new();
    for (name, schema) in fields.iter().copied().flatten() {
        let schema =
            if required.contains(name) { schema.clone() } else { json!({"anyOf": [schema, {"type": "null"}]}) };
        properties.insert((*name).to_owned(), schema);
    }
    json!({"type": "object", "required": required, "properties": properties, "additionalProperties": false})
}

fn number(low: f64, high: f64) -> Value {
    json!({"type": "number", "minimum": low, "maximum": high})
}

fn integer(low: i64) -> Value {
    json!({"type": "integer", "minimum": low, "maximum": u32::MAX})
}

fn token_ids() -> Value {
    json!({"type": "array", "items": integer(0)})
}

fn texts() -> Value {
    json!({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]})
}

/// What the answer has to be, by OpenAI's names; a response has the schema one level higher.
fn response_format() -> Value {
    let schema = json!({"type": "object"});
    json!({
        "type": "object",
        "required": ["type"],
        "properties": {
            "type": {"enum": ["text", "json_object", "json_schema"]},
            "json_schema": {"type": "object", "required": ["schema"], "properties": {"schema": schema}},
        },
    })
}

/// The same by vLLM's names: one of them, and how JSON is laid out.
fn structured_outputs() -> Value {
    let flag = json!({"type": "boolean"});
    let schema = json!({"anyOf": [{"type": "object"}, {"type": "string"}]});
    let own = [
        ("json", schema),
        ("regex", json!({"type": "string"})),
        ("choice", json!({"type": "array", "items": {"type": "string"}, "minItems": 1})),
        ("grammar", json!({"type": "string"})),
        ("json_object", flag.clone()),
        ("disable_any_whitespace", flag.clone()),
        ("disable_additional_properties", flag),
    ];
    object(&[], &[&own])
}

/// Fields of completions and chats.
fn common() -> Vec<(&'static str, Value)> {
    let flag = json!({"type": "boolean"});
    let text = json!({"type": "string"});
    let stream_options = object(&[], &[&[("include_usage", flag.clone()), ("continuous_usage_stats", flag.clone())]]);
    vec![
        ("model", text.clone()),
        ("user", text.clone()),
        ("request_id", text),
        ("stream", flag.clone()),
        ("stream_options", stream_options),
        ("n", json!({"type": "integer", "minimum": 1, "maximum": 128})),
        ("max_tokens", integer(0)),
        ("min_tokens", integer(0)),
        ("temperature", json!({"type": "number", "minimum": 0})),
        ("top_p", json!({"type": "number", "exclusiveMinimum": 0, "maximum": 1})),
        ("top_k", json!({"type": "integer", "minimum": -1})),
        ("min_p", number(0.0, 1.0)),
        ("seed", json!({"type": "integer"})),
        ("presence_penalty", number(-2.0, 2.0)),
        ("frequency_penalty", number(-2.0, 2.0)),
        ("repetition_penalty", number(0.001, 1_000.0)),
        ("logit_bias", json!({"type": "object", "additionalProperties": number(-100.0, 100.0)})),
        ("allowed_token_ids", token_ids()),
        ("bad_words", texts()),
        ("stop", texts()),
        ("stop_token_ids", token_ids()),
        ("ignore_eos", flag.clone()),
        ("include_stop_str_in_output", flag.clone()),
        ("skip_special_tokens", flag.clone()),
        ("add_special_tokens", flag.clone()),
        ("priority", json!({"type": "integer"})),
        ("cache_salt", json!({"type": "string", "minLength": 1})),
        ("prompt_logprobs", integer(0)),
        ("truncate_prompt_tokens", integer(-1)),
        ("return_token_ids", flag.clone()),
        ("return_tokens_as_token_ids", flag),
        ("response_format", response_format()),
        ("structured_outputs", structured_outputs()),
        ("thinking_token_budget", integer(-1)),
    ]
}

fn completion() -> Value {
    let prompt = json!({"anyOf": [
        {"type": "string"},
        {"type": "array", "items": {"type": "string"}, "minItems": 1},
        {"type": "array", "items": integer(0), "minItems": 1},
        {"type": "array", "items": token_ids(), "minItems": 1},
    ]});
    let own = [("prompt", prompt), ("logprobs", integer(0)), ("echo", json!({"type": "boolean"}))];
    object(&["prompt"], &[&common(), &own])
}

/// A function is named in a member of its own in chats, and by its name in responses.
fn tool_choice(names: &str) -> Value {
    let named = json!({"type": "object", "required": ["type", names], "properties": {"type": {"const": "function"}}});
    json!({"anyOf": [{"enum": ["none", "auto", "required"]}, named]})
}

/// What a template is rendered with.
fn conversation() -> Vec<(&'static str, Value)> {
    let part = json!({
        "type": "object",
        "required": ["type", "text"],
        "properties": {"type": {"const": "text"}, "text": {"type": "string"}},
    });
    let message = json!({
        "type": "object",
        "required": ["role", "content"],
        "properties": {
            "role": {"type": "string", "minLength": 1},
            "content": {"anyOf": [{"type": "string"}, {"type": "array", "items": part}]},
            "tool_calls": {"type": ["array", "null"], "items": {"type": "object"}},
            "tool_call_id": {"type": ["string", "null"]},
            "name": {"type": ["string", "null"]},
        },
    });
    vec![
        ("messages", json!({"type": "array", "items": message, "minItems": 1})),
        ("add_generation_prompt", json!({"type": "boolean"})),
        ("continue_final_message", json!({"type": "boolean"})),
        ("chat_template_kwargs", json!({"type": "object"})),
        ("reasoning_effort", json!({"type": "string"})),
        ("tools", json!({"type": "array", "items": {"type": "object"}})),
        ("tool_choice", tool_choice("function")),
        ("parallel_tool_calls", json!({"type": "boolean"})),
    ]
}

fn chat() -> Value {
    let own = [
        ("max_completion_tokens", integer(0)),
        ("logprobs", json!({"type": "boolean"})),
        ("top_logprobs", integer(0)),
        ("include_reasoning", json!({"type": "boolean"})),
    ];
    object(&["messages"], &[&common(), &conversation(), &own])
}

fn response() -> Value {
    let input = json!({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "object"}, "minItems": 1}]});
    let own = [
        ("input", input),
        ("model", json!({"type": "string"})),
        ("instructions", json!({"type": "string"})),
        ("max_output_tokens", integer(1)),
        ("temperature", json!({"type": "number", "minimum": 0})),
        ("top_p", json!({"type": "number", "exclusiveMinimum": 0, "maximum": 1})),
        ("stream", json!({"type": "boolean"})),
        ("tools", json!({"type": "array", "items": {"type": "object"}})),
        ("tool_choice", tool_choice("name")),
        ("metadata", json!({"type": "object"})),
        ("store", json!({"type": "boolean"})),
        ("text", json!({"type": "object"})),
    ];
    object(&["input"], &[&own])
}

fn tokenize() -> Value {
    let own = [
        ("model", json!({"type": "string"})),
        ("prompt", json!({"type": "string"})),
        ("add_special_tokens", json!({"type": "boolean"})),
        ("return_token_strs", json!({"type": "boolean"})),
    ];
    object(&[], &[&own, &conversation()])
}

fn detokenize() -> Value {
    object(&["tokens"], &[&[("model", json!({"type": "string"})), ("tokens", token_ids())]])
}
