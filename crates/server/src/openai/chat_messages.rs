//! The messages of a chat, as templates read them.

use serde_json::{Map, Value};

use super::fields::{Fields, wrong_type};
use super::neutral::{self, Neutral};
use crate::api_error::ApiError;

/// Parts of a message that clients send back from earlier answers and that hold nothing without media.
const MESSAGE_NEUTRAL: &[(&str, Neutral)] = &[
    ("refusal", Neutral::Empty),
    ("annotations", Neutral::Empty),
    ("audio", Neutral::Nothing),
    ("function_call", Neutral::Nothing),
];

/// Takes the conversation, at least one message.
pub(super) fn messages(fields: &mut Fields) -> Result<Vec<Value>, ApiError> {
    let messages = match fields.take("messages") {
        None => return Err(ApiError::invalid("messages", "messages is required")),
        Some(Value::Array(messages)) => messages,
        Some(other) => return Err(wrong_type("messages", "an array of messages", &other)),
    };
    if messages.is_empty() {
        return Err(ApiError::invalid("messages", "messages must not be empty"));
    }
    messages.into_iter().enumerate().map(|(index, value)| message(value, &format!("messages[{index}]"))).collect()
}

/// One message as templates read it: role, content as one string, and the names tools and people go by.
fn message(value: Value, path: &str) -> Result<Value, ApiError> {
    let mut fields = Fields::nested(value, path)?;
    let role_name = fields.name("role");
    let role = fields.text("role")?.ok_or_else(|| ApiError::invalid(role_name.clone(), "a message needs a role"))?;
    if role.is_empty() {
        return Err(ApiError::invalid(role_name, "the role is empty"));
    }
    let content_name = fields.name("content");
    let content = match fields.take("content") {
        Some(content) => content_text(content, &content_name)?,
        // An assistant's turn may have had no text.
        None if role == "assistant" => String::new(),
        None => return Err(ApiError::invalid(content_name, "a message needs content")),
    };
    let mut message = Map::new();
    message.insert("role".to_owned(), Value::from(role));
    message.insert("content".to_owned(), Value::from(content));
    for field in ["name", "tool_call_id", "reasoning", "reasoning_content"] {
        if let Some(text) = fields.text(field)? {
            message.insert(field.to_owned(), Value::from(text));
        }
    }
    let calls_name = fields.name("tool_calls");
    if let Some(calls) = fields.take("tool_calls") {
        let calls = tool_calls(calls, &calls_name)?;
        if !calls.is_empty() {
            message.insert("tool_calls".to_owned(), Value::Array(calls));
        }
    }
    neutral::accept(&mut fields, MESSAGE_NEUTRAL)?;
    fields.finish()?;
    Ok(Value::Object(message))
}

/// Calls that the assistant made before. Clients send arguments as text; templates read them as an object.
fn tool_calls(calls: Value, path: &str) -> Result<Vec<Value>, ApiError> {
    let Value::Array(calls) = calls else { return Err(wrong_type(path, "an array of tool calls", &calls)) };
    let read = |(index, call): (usize, Value)| {
        let mut fields = Fields::nested(call, &format!("{path}[{index}]"))?;
        let id = fields.text("id")?;
        let kind = fields.text("type")?.unwrap_or_else(|| "function".to_owned());
        fields.take("index");
        let name = fields.name("function");
        let function =
            fields.take("function").ok_or_else(|| ApiError::invalid(&*name, "a tool call needs a function"))?;
        fields.finish()?;
        let mut function = Fields::nested(function, &name)?;
        let name = function.name("name");
        let called = function.text("name")?.ok_or_else(|| ApiError::invalid(name, "a function needs a name"))?;
        let place = function.name("arguments");
        let arguments = match function.take("arguments") {
            None => Value::Object(Map::new()),
            Some(Value::String(text)) if text.trim().is_empty() => Value::Object(Map::new()),
            Some(Value::String(text)) => serde_json::from_str(&text)
                .map_err(|error| ApiError::invalid(&*place, format!("{place} must be JSON as text: {error}")))?,
            Some(object @ Value::Object(_)) => object,
            Some(other) => return Err(wrong_type(&place, "JSON as text", &other)),
        };
        function.finish()?;
        let function = serde_json::json!({"name": called, "arguments": arguments});
        Ok(serde_json::json!({"id": id, "type": kind, "function": function}))
    };
    calls.into_iter().enumerate().map(read).collect()
}

/// Text, or parts of text: templates expect one string, so parts are joined by line breaks.
fn content_text(content: Value, path: &str) -> Result<String, ApiError> {
    let parts = match content {
        Value::String(text) => return Ok(text),
        Value::Array(parts) => parts,
        other => return Err(wrong_type(path, "a string or an array of text parts", &other)),
    };
    let mut texts = Vec::with_capacity(parts.len());
    for (index, part) in parts.into_iter().enumerate() {
        let mut fields = Fields::nested(part, &format!("{path}[{index}]"))?;
        let kind = fields.text("type")?.unwrap_or_default();
        if !matches!(kind.as_str(), "text" | "input_text" | "output_text") {
            let name = fields.name("type");
            let message = format!("{name}=\"{kind}\" is not supported by this server; parts must be of type \"text\"");
            return Err(ApiError::invalid(name, message));
        }
        let name = fields.name("text");
        texts.push(fields.text("text")?.ok_or_else(|| ApiError::invalid(name, "a text part needs its text"))?);
        neutral::accept(&mut fields, &[("annotations", Neutral::Empty), ("logprobs", Neutral::Empty)])?;
        fields.finish()?;
    }
    Ok(texts.join("\n"))
}
