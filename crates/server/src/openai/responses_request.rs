//! The body of `POST /v1/responses`, read as a chat.

use serde_json::{Map, Value, json};

use super::chat_request::ChatRequest;
use super::fields::{Fields, wrong_type};
use super::neutral::{self, Neutral};
use super::structured;
use crate::api_error::ApiError;

/// Fields of responses that ask for what is not there: stored answers, hosted tools, media.
const RESPONSES: &[(&str, Neutral)] = &[
    ("previous_response_id", Neutral::Nothing),
    ("conversation", Neutral::Nothing),
    ("background", Neutral::Boolean(false)),
    ("include", Neutral::Empty),
    ("prompt", Neutral::Nothing),
    ("truncation", Neutral::Texts(&["disabled"])),
    ("max_tool_calls", Neutral::Nothing),
    ("stream_options", Neutral::Nothing),
    // Nothing is kept either way.
    ("store", Neutral::Anything),
    ("metadata", Neutral::Anything),
];

/// A request for a response.
#[derive(Debug)]
pub(crate) struct ResponsesRequest {
    pub(crate) chat: ChatRequest,
    pub(crate) is_streamed: bool,
    /// Fields that the answer repeats.
    pub(crate) repeated: Map<String, Value>,
}

impl ResponsesRequest {
    /// Reads a body.
    pub(crate) fn from_body(body: &[u8]) -> Result<Self, ApiError> {
        let mut fields = Fields::from_body(body)?;
        let is_streamed = fields.boolean("stream")?.unwrap_or(false);
        let mut repeated = Map::new();
        for (field, otherwise) in [
            ("instructions", Value::Null),
            ("metadata", json!({})),
            ("temperature", Value::Null),
            ("top_p", Value::Null),
            ("tools", json!([])),
            ("tool_choice", json!("auto")),
            ("parallel_tool_calls", json!(true)),
            ("text", json!({"format": {"type": "text"}})),
            ("max_output_tokens", Value::Null),
        ] {
            repeated.insert(field.to_owned(), fields.peek(field).cloned().unwrap_or(otherwise));
        }
        let mut chat = Map::new();
        let instructions = fields.text("instructions")?;
        let mut messages: Vec<Value> =
            instructions.into_iter().map(|text| json!({"role": "system", "content": text})).collect();
        messages.extend(input(&mut fields)?);
        chat.insert("messages".to_owned(), Value::Array(messages));
        if let Some(tokens) = fields.count("max_output_tokens", 1)? {
            chat.insert("max_completion_tokens".to_owned(), Value::from(tokens));
        }
        if let Some(tools) = fields.take("tools") {
            chat.insert("tools".to_owned(), tools_of_chat(tools)?);
        }
        if let Some(choice) = fields.take("tool_choice") {
            chat.insert("tool_choice".to_owned(), deeper(choice));
        }
        let mut structure = None;
        if let Some(text) = fields.take("text") {
            let mut text = Fields::nested(text, "text")?;
            structure = structured::response_format(&mut text, "format")?;
            neutral::accept(&mut text, &[("verbosity", Neutral::Texts(&["medium"]))])?;
            text.finish()?;
        }
        if let Some(reasoning) = fields.take("reasoning") {
            let mut reasoning = Fields::nested(reasoning, "reasoning")?;
            if let Some(effort) = reasoning.text("effort")? {
                chat.insert("reasoning_effort".to_owned(), Value::from(effort));
            }
            reasoning.take("summary");
            reasoning.finish()?;
        }
        neutral::accept(&mut fields, RESPONSES)?;
        let mut chat = ChatRequest::from_fields(fields.with(chat)).map_err(Self::in_its_words)?;
        for function in &mut chat.tools.functions {
            function.field = flat(&function.field);
        }
        if let Some(structure) = structure {
            if let Some(other) = &chat.call.structure {
                let message = format!("{} and {} exclude each other", structure.field, other.field);
                return Err(ApiError::invalid(other.field.clone(), message));
            }
            chat.call.structure = Some(structure);
        }
        if chat.call.choices > 1 {
            return Err(ApiError::invalid("n", "n must be 1: a response is one answer"));
        }
        Ok(Self { chat, is_streamed, repeated })
    }

    /// An error under the names that fields have here, where they differ from those of a chat.
    pub(crate) fn in_its_words(mut error: ApiError) -> ApiError {
        let Some(param) = error.param.take() else { return error };
        let own = if param == "max_completion_tokens" {
            "max_output_tokens".to_owned()
        } else if param.starts_with("messages") {
            error.param = Some("input".to_owned());
            return error;
        } else if param.starts_with("tools[") || param.starts_with("tool_choice.") {
            flat(&param)
        } else {
            param.clone()
        };
        error.message = error.message.replace(&param, &own);
        error.param = Some(own);
        error
    }
}

/// A place in the tools of a chat, where functions lie one level deeper.
fn flat(field: &str) -> String {
    field.replacen(".function", "", 1)
}

/// A function as a chat has it.
fn deeper(value: Value) -> Value {
    match value {
        Value::Object(mut function) if function.get("function").is_none() && function.get("name").is_some() => {
            let kind = function.remove("type").unwrap_or_default();
            json!({"type": kind, "function": function})
        }
        value => value,
    }
}

/// Functions lie flat here, and one level deeper in a chat.
fn tools_of_chat(tools: Value) -> Result<Value, ApiError> {
    let Value::Array(tools) = tools else { return Err(wrong_type("tools", "an array of tools", &tools)) };
    Ok(Value::Array(tools.into_iter().map(deeper).collect()))
}

fn input(fields: &mut Fields) -> Result<Vec<Value>, ApiError> {
    match fields.take("input") {
        Some(Value::String(text)) => Ok(vec![json!({"role": "user", "content": text})]),
        Some(Value::Array(items)) => {
            let mut messages: Vec<Value> = Vec::with_capacity(items.len());
            for (index, item) in items.into_iter().enumerate() {
                append_item(item, &format!("input[{index}]"), &mut messages)?;
            }
            Ok(messages)
        }
        Some(other) => Err(wrong_type("input", "a string or an array of items", &other)),
        None => Err(ApiError::invalid("input", "input is required")),
    }
}

/// Adds an item of the input: a message, or a call and its result.
fn append_item(item: Value, path: &str, messages: &mut Vec<Value>) -> Result<(), ApiError> {
    let Value::Object(mut item) = item else { return Err(wrong_type(path, "an object", &item)) };
    for field in ["id", "status"] {
        item.remove(field);
    }
    match item.remove("type").as_ref().and_then(Value::as_str).unwrap_or("message") {
        "message" => messages.push(Value::Object(item)),
        // What was thought before is not said again.
        "reasoning" => {}
        "function_call" => {
            let function = json!({"name": item.remove("name"), "arguments": item.remove("arguments")});
            let call = json!({"id": item.remove("call_id"), "type": "function", "function": function});
            match messages.last_mut().filter(|last| last["role"] == "assistant" && last.get("tool_calls").is_some()) {
                Some(last) => last["tool_calls"].as_array_mut().expect("written below as an array").push(call),
                None => messages.push(json!({"role": "assistant", "content": "", "tool_calls": [call]})),
            }
        }
        "function_call_output" => {
            messages.push(json!({
                "role": "tool",
                "tool_call_id": item.remove("call_id"),
                "content": item.remove("output"),
            }));
        }
        other => {
            let name = format!("{path}.type");
            return Err(ApiError::invalid(&*name, format!("{name}=\"{other}\" is not supported by this server")));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generate::Prompt;

    fn read(body: &Value) -> Result<ResponsesRequest, ApiError> {
        ResponsesRequest::from_body(body.to_string().as_bytes())
    }

    #[test]
    fn items_become_messages() {
        let body = json!({"instructions": "Be brief.", "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "Weather?"}]},
            {"type": "reasoning", "summary": []},
            {"type": "function_call", "call_id": "c1", "name": "get", "arguments": "{}"},
            {"type": "function_call", "call_id": "c2", "name": "now", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c1", "output": "rain"},
        ], "tools": [{"type": "function", "name": "get", "parameters": {}}], "max_output_tokens": 9});
        let request = read(&body).unwrap();
        let Prompt::Chat { input, .. } = &request.chat.call.prompts[0] else { panic!("a chat has a chat prompt") };
        let roles: Vec<&str> = input.messages.iter().map(|message| message["role"].as_str().unwrap()).collect();
        assert_eq!(roles, ["system", "user", "assistant", "tool"]);
        assert_eq!(input.messages[2]["tool_calls"].as_array().unwrap().len(), 2);
        assert_eq!(input.variables["tools"][0]["function"]["name"], "get");
        assert_eq!(request.repeated["max_output_tokens"], 9);
    }

    #[test]
    fn what_is_not_there_is_refused_by_name() {
        for (field, value) in [
            ("previous_response_id", json!("r")),
            ("background", json!(true)),
            ("text", json!({"format": {"type": "xml"}})),
            ("max_output_tokens", json!(0)),
            ("n", json!(2)),
            ("colour", json!(1)),
        ] {
            let error = read(&json!({"input": "x", field: value})).unwrap_err();
            assert!(error.param.as_deref().is_some_and(|param| param.starts_with(field)), "{error:?}");
        }
        assert_eq!(read(&json!({})).unwrap_err().param.as_deref(), Some("input"));
        assert_eq!(read(&json!({"input": []})).unwrap_err().param.as_deref(), Some("input"));
    }
}
