//! The body of `POST /v1/chat/completions`.

use paceline_text::ChatInput;
use serde_json::{Map, Value};

use super::common::{Common, StreamOptions};
use super::fields::{Fields, wrong_type};
use super::neutral::{self, Neutral};
use crate::api_error::ApiError;
use crate::generate::{Call, MaxTokens, Prompt};

/// Parts of a message that clients send back from earlier answers and that hold nothing without tools or media.
const MESSAGE_NEUTRAL: &[(&str, Neutral)] = &[
    ("refusal", Neutral::Empty),
    ("annotations", Neutral::Empty),
    ("audio", Neutral::Nothing),
    ("function_call", Neutral::Nothing),
    ("tool_calls", Neutral::Empty),
    ("reasoning", Neutral::Empty),
    ("reasoning_content", Neutral::Empty),
];

/// A chat request, read and typed.
#[derive(Debug)]
pub(crate) struct ChatRequest {
    pub(crate) model: Option<String>,
    pub(crate) request_id: Option<String>,
    pub(crate) stream: Option<StreamOptions>,
    /// `call.id` is still empty.
    pub(crate) call: Call,
}

impl ChatRequest {
    /// Reads a body.
    pub(crate) fn from_body(body: &[u8]) -> Result<Self, ApiError> {
        let mut fields = Fields::from_body(body)?;
        let mut common = Common::take(&mut fields)?;
        common.sampling.logprobs = logprobs(&mut fields)?;
        let max_tokens = max_tokens(&mut fields)?;
        let input = ChatInput {
            messages: messages(&mut fields)?,
            add_generation_prompt: fields.boolean("add_generation_prompt")?.unwrap_or(true),
            variables: template_variables(&mut fields)?,
        };
        neutral::accept(&mut fields, neutral::CHAT)?;
        fields.finish()?;
        let call = Call {
            id: String::new(),
            prompts: vec![Prompt::Chat(input)],
            prompt_field: "messages",
            choices: common.choices,
            stopping: common.stopping(max_tokens),
            sampling: common.sampling,
            skip_special_tokens: common.skip_special_tokens,
            priority: common.priority,
            dp_rank: None,
        };
        Ok(Self { model: common.model, request_id: common.request_id, stream: common.stream, call })
    }
}

fn logprobs(fields: &mut Fields) -> Result<Option<u32>, ApiError> {
    let wanted = fields.boolean("logprobs")?.unwrap_or(false);
    let top = fields.count("top_logprobs", 0)?;
    match (wanted, top) {
        (true, top) => Ok(Some(top.unwrap_or(0))),
        (false, None | Some(0)) => Ok(None),
        (false, Some(_)) => Err(ApiError::invalid("top_logprobs", "top_logprobs needs logprobs=true")),
    }
}

/// `max_completion_tokens` is the newer name; where both are given they must agree.
fn max_tokens(fields: &mut Fields) -> Result<MaxTokens, ApiError> {
    let old = fields.count("max_tokens", 0)?;
    let new = fields.count("max_completion_tokens", 0)?;
    match (new, old) {
        (Some(new), Some(old)) if new != old => {
            let message = format!("max_completion_tokens={new} and max_tokens={old} differ; give one of them");
            Err(ApiError::invalid("max_completion_tokens", message))
        }
        (Some(tokens), _) => Ok(MaxTokens::Asked { tokens, field: "max_completion_tokens" }),
        (None, Some(tokens)) => Ok(MaxTokens::Asked { tokens, field: "max_tokens" }),
        (None, None) => Ok(MaxTokens::AsFits),
    }
}

fn template_variables(fields: &mut Fields) -> Result<Map<String, Value>, ApiError> {
    match fields.take("chat_template_kwargs") {
        None => Ok(Map::new()),
        Some(Value::Object(variables)) => match variables.keys().find(|name| *name == "messages") {
            None => Ok(variables),
            Some(_) => {
                Err(ApiError::invalid("chat_template_kwargs", "chat_template_kwargs must not replace the messages"))
            }
        },
        Some(other) => Err(wrong_type("chat_template_kwargs", "an object", &other)),
    }
}

fn messages(fields: &mut Fields) -> Result<Vec<Value>, ApiError> {
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
    for field in ["name", "tool_call_id"] {
        if let Some(text) = fields.text(field)? {
            message.insert(field.to_owned(), Value::from(text));
        }
    }
    neutral::accept(&mut fields, MESSAGE_NEUTRAL)?;
    fields.finish()?;
    Ok(Value::Object(message))
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
        if kind != "text" {
            let name = fields.name("type");
            let message = format!("{name}=\"{kind}\" is not supported by this server; parts must be of type \"text\"");
            return Err(ApiError::invalid(name, message));
        }
        let name = fields.name("text");
        texts.push(fields.text("text")?.ok_or_else(|| ApiError::invalid(name, "a text part needs its text"))?);
        fields.finish()?;
    }
    Ok(texts.join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(rest: &str) -> Result<ChatRequest, ApiError> {
        ChatRequest::from_body(
            format!("{{\"messages\": [{{\"role\": \"user\", \"content\": \"x\"}}]{rest}}}").as_bytes(),
        )
    }

    fn contents(body: &str) -> Result<Vec<String>, ApiError> {
        let request = ChatRequest::from_body(body.as_bytes())?;
        let Prompt::Chat(input) = &request.call.prompts[0] else { panic!("a chat has a chat prompt") };
        Ok(input.messages.iter().map(|message| message["content"].as_str().unwrap().to_owned()).collect())
    }

    #[test]
    fn content_is_text_or_parts_of_text() {
        let body = r#"{"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
            {"role": "assistant", "content": null, "refusal": null, "tool_calls": null, "annotations": []}]}"#;
        assert_eq!(contents(body).unwrap(), ["a\nb", ""]);
        let image = r#"{"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]}"#;
        assert_eq!(contents(image).unwrap_err().param.as_deref(), Some("messages[0].content[0].type"));
    }

    #[test]
    fn e12_messages_must_be_there() {
        for (body, param) in [
            ("{}", "messages"),
            (r#"{"messages": []}"#, "messages"),
            (r#"{"messages": "hi"}"#, "messages"),
            (r#"{"messages": [{"content": "hi"}]}"#, "messages[0].role"),
            (r#"{"messages": [{"role": "user"}]}"#, "messages[0].content"),
            (r#"{"messages": [{"role": "user", "content": "", "colour": 1}]}"#, "messages[0].colour"),
        ] {
            assert_eq!(ChatRequest::from_body(body.as_bytes()).unwrap_err().param.as_deref(), Some(param), "{body}");
        }
    }

    #[test]
    fn token_limits_and_log_probabilities_have_their_rules() {
        assert_eq!(read("").unwrap().call.stopping.max_tokens, MaxTokens::AsFits);
        let asked = read(r#", "max_completion_tokens": 5, "max_tokens": 5"#).unwrap().call.stopping.max_tokens;
        assert_eq!(asked, MaxTokens::Asked { tokens: 5, field: "max_completion_tokens" });
        assert!(read(r#", "max_completion_tokens": 5, "max_tokens": 6"#).is_err());
        assert_eq!(read(r#", "logprobs": true, "top_logprobs": 2"#).unwrap().call.sampling.logprobs, Some(2));
        assert_eq!(read(r#", "logprobs": true"#).unwrap().call.sampling.logprobs, Some(0));
        assert_eq!(read(r#", "top_logprobs": 2"#).unwrap_err().param.as_deref(), Some("top_logprobs"));
        assert_eq!(read(r#", "logprobs": 2"#).unwrap_err().param.as_deref(), Some("logprobs"));
    }
}
