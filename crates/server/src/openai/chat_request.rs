//! The body of `POST /v1/chat/completions`.

use paceline_text::ChatInput;
use serde_json::{Map, Value};

use super::chat_messages::messages;
use super::chat_tools::Tools;
use super::common::{Common, Reported, StreamOptions};
use super::fields::{Fields, wrong_type};
use super::neutral;
use crate::api_error::ApiError;
use crate::generate::{Call, MaxTokens, Prompt};

/// A chat request, read and typed.
#[derive(Debug)]
pub(crate) struct ChatRequest {
    pub(crate) model: Option<String>,
    pub(crate) request_id: Option<String>,
    pub(crate) stream: Option<StreamOptions>,
    pub(crate) reported: Reported,
    pub(crate) tools: Tools,
    /// Whether reasoning is told at all.
    pub(crate) include_reasoning: bool,
    /// `call.id` is still empty.
    pub(crate) call: Call,
}

impl ChatRequest {
    /// Reads a body.
    pub(crate) fn from_body(body: &[u8]) -> Result<Self, ApiError> {
        Self::from_fields(Fields::from_body(body)?)
    }

    /// Reads the fields of a chat, all of them.
    pub(super) fn from_fields(mut fields: Fields) -> Result<Self, ApiError> {
        let mut common = Common::take(&mut fields)?;
        common.sampling.logprobs = logprobs(&mut fields)?;
        common.reported.logprobs = common.sampling.logprobs;
        let max_tokens = max_tokens(&mut fields)?;
        let tools = Tools::take(&mut fields)?;
        let input = chat_input(&mut fields, &tools)?;
        let add_special_tokens = fields.boolean("add_special_tokens")?.unwrap_or(false);
        let include_reasoning = fields.boolean("include_reasoning")?.unwrap_or(true);
        neutral::accept(&mut fields, neutral::CHAT)?;
        fields.finish()?;
        let call = common.call(vec![Prompt::Chat { input, add_special_tokens }], "messages", max_tokens);
        Ok(Self {
            model: common.model,
            request_id: common.request_id,
            stream: common.stream,
            reported: common.reported,
            tools,
            include_reasoning,
            call,
        })
    }
}

/// What the template is rendered with.
pub(super) fn chat_input(fields: &mut Fields, tools: &Tools) -> Result<ChatInput, ApiError> {
    let mut variables = template_variables(fields)?;
    if !tools.definitions.is_empty() {
        variables.insert("tools".to_owned(), Value::Array(tools.definitions.clone()));
    }
    if let Some(effort) = fields.text("reasoning_effort")? {
        variables.entry("reasoning_effort").or_insert(Value::from(effort));
    }
    let continue_final_message = fields.boolean("continue_final_message")?.unwrap_or(false);
    let add_generation_prompt = fields.boolean("add_generation_prompt")?;
    if continue_final_message && add_generation_prompt == Some(true) {
        let message = "continue_final_message and add_generation_prompt exclude each other";
        return Err(ApiError::invalid("continue_final_message", message));
    }
    Ok(ChatInput {
        messages: messages(fields)?,
        add_generation_prompt: add_generation_prompt.unwrap_or(!continue_final_message),
        continue_final_message,
        variables,
    })
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::openai::ToolChoice;

    fn read(rest: &str) -> Result<ChatRequest, ApiError> {
        ChatRequest::from_body(
            format!("{{\"messages\": [{{\"role\": \"user\", \"content\": \"x\"}}]{rest}}}").as_bytes(),
        )
    }

    fn contents(body: &str) -> Result<Vec<String>, ApiError> {
        let request = ChatRequest::from_body(body.as_bytes())?;
        let Prompt::Chat { input, .. } = &request.call.prompts[0] else { panic!("a chat has a chat prompt") };
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
    fn tools_and_calls_are_read_for_the_template() {
        let tool = r#"{"type": "function", "function": {"name": "get", "parameters": {}}}"#;
        let request =
            read(&format!(r#", "tools": [{tool}], "tool_choice": "auto", "parallel_tool_calls": false"#)).unwrap();
        let Prompt::Chat { input, .. } = &request.call.prompts[0] else { panic!("a chat has a chat prompt") };
        assert_eq!(input.variables["tools"][0]["function"]["name"], "get");
        assert!(!request.tools.parallel);
        let none = read(&format!(r#", "tools": [{tool}], "tool_choice": "none""#)).unwrap();
        assert!(none.tools.definitions.is_empty());
        let named = |name| {
            format!(r#", "tools": [{tool}], "tool_choice": {{"type": "function", "function": {{"name": "{name}"}}}}"#)
        };
        assert_eq!(read(&named("get")).unwrap().tools.choice, ToolChoice::Named("get".to_owned()));
        let unknown = read(&named("set")).unwrap_err().message;
        assert!(unknown.contains("\"set\"") && unknown.ends_with("there are: get"), "{unknown}");
        let required = read(&format!(r#", "tools": [{tool}], "tool_choice": "required""#)).unwrap();
        assert_eq!(required.tools.choice, ToolChoice::Required);
        let calls = r#"{"messages": [{"role": "assistant", "content": null, "tool_calls": [{"id": "c1", "type": "function",
            "function": {"name": "get", "arguments": "{\"a\": 1}"}}]}, {"role": "tool", "tool_call_id": "c1", "content": "2"}]}"#;
        let request = ChatRequest::from_body(calls.as_bytes()).unwrap();
        let Prompt::Chat { input, .. } = &request.call.prompts[0] else { panic!("a chat has a chat prompt") };
        assert_eq!(input.messages[0]["tool_calls"][0]["function"]["arguments"]["a"], 1);
        for (body, param) in [
            (r#", "tools": [{"type": "web_search"}]"#, "tools[0].type"),
            (r#", "tools": [{"type": "function", "function": {}}]"#, "tools[0].function.name"),
            (r#", "tool_choice": "required""#, "tool_choice"),
            (r#", "tool_choice": {"type": "function"}"#, "tool_choice"),
            (&format!(r#", "tools": [{tool}], "tool_choice": "any""#), "tool_choice"),
            (&format!(r#", "tools": [{tool}], "tool_choice": {{"type": "function"}}"#), "tool_choice.function"),
            (&named("set"), "tool_choice.function.name"),
            (
                r#", "tools": [{"type": "function", "function": {"name": "x", "strict": 1}}]"#,
                "tools[0].function.strict",
            ),
            (r#", "tool_choice": 7"#, "tool_choice"),
            (r#", "continue_final_message": true, "add_generation_prompt": true"#, "continue_final_message"),
        ] {
            assert_eq!(read(body).unwrap_err().param.as_deref(), Some(param), "{body}");
        }
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
