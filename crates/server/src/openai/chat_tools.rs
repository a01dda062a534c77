//! Tools that a chat may or must call.

use serde_json::{Value, json};

use super::fields::{Fields, wrong_type};
use crate::api_error::ApiError;
use crate::limits::TOOLS_MAX;

/// Whether tools are called.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) enum ToolChoice {
    /// As the model likes.
    #[default]
    Auto,
    /// At least one call, and nothing else.
    Required,
    /// One call of this function, and nothing else.
    Named(String),
}

/// A function that may be called.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Function {
    pub(crate) name: String,
    /// The JSON schema of its arguments; without one it takes none.
    pub(crate) parameters: Value,
    /// Whether its arguments have to match the schema even where nothing has to be called.
    pub(crate) is_strict: bool,
    /// Its place in the request, for errors.
    pub(crate) field: String,
}

/// What a request says about tools.
#[derive(Debug, Clone, Default)]
pub(crate) struct Tools {
    /// For the template; empty when none may be called.
    pub(crate) definitions: Vec<Value>,
    /// The same tools, read; in the same order.
    pub(crate) functions: Vec<Function>,
    pub(crate) choice: ToolChoice,
    /// Whether an answer may hold more than one call.
    pub(crate) parallel: bool,
}

impl Tools {
    /// Takes `tools`, `tool_choice` and `parallel_tool_calls`.
    pub(super) fn take(fields: &mut Fields) -> Result<Self, ApiError> {
        let parallel = fields.boolean("parallel_tool_calls")?.unwrap_or(true);
        let definitions = match fields.take("tools") {
            None => Vec::new(),
            Some(Value::Array(tools)) => tools,
            Some(other) => return Err(wrong_type("tools", "an array of tools", &other)),
        };
        if definitions.len() > TOOLS_MAX {
            let message = format!("at most {TOOLS_MAX} tools are allowed, got {}", definitions.len());
            return Err(ApiError::invalid("tools", message));
        }
        let functions: Vec<Function> = definitions
            .iter()
            .enumerate()
            .map(|(index, tool)| function(tool, &format!("tools[{index}]")))
            .collect::<Result<_, _>>()?;
        let choice = match fields.take("tool_choice") {
            None => ToolChoice::Auto,
            Some(Value::String(word)) if word == "none" => return Ok(Self { parallel, ..Self::default() }),
            Some(choice) => tool_choice(choice, &functions)?,
        };
        Ok(Self { definitions, functions, choice, parallel })
    }
}

/// Forced calls need something to call.
fn tool_choice(choice: Value, functions: &[Function]) -> Result<ToolChoice, ApiError> {
    const FIELD: &str = "tool_choice";
    const FORMS: &str = "\"none\", \"auto\", \"required\" or {\"type\": \"function\", \"function\": {\"name\": ...}}";
    let required = match &choice {
        Value::String(word) if word == "auto" => return Ok(ToolChoice::Auto),
        Value::String(word) if word == "required" => true,
        Value::Object(_) => false,
        Value::String(word) => {
            return Err(ApiError::invalid(FIELD, format!("{FIELD} must be {FORMS}, got \"{word}\"")));
        }
        other => return Err(wrong_type(FIELD, FORMS, other)),
    };
    if functions.is_empty() {
        return Err(ApiError::invalid(FIELD, format!("{FIELD} forces a call, and there are no tools to call")));
    }
    if required {
        return Ok(ToolChoice::Required);
    }
    let mut fields = Fields::nested(choice, FIELD)?;
    let kind = fields.text("type")?.unwrap_or_default();
    if kind != "function" {
        let name = fields.name("type");
        let message = format!("{name}=\"{kind}\" is not supported by this server; give \"function\"");
        return Err(ApiError::invalid(name, message));
    }
    let within = fields.name("function");
    let named = fields.take("function").ok_or_else(|| ApiError::invalid(&*within, format!("{within} is required")))?;
    fields.finish()?;
    let mut named = Fields::nested(named, &within)?;
    let field = named.name("name");
    let name = named.text("name")?.ok_or_else(|| ApiError::invalid(&*field, format!("{field} is required")))?;
    named.finish()?;
    if functions.iter().any(|function| function.name == name) {
        return Ok(ToolChoice::Named(name));
    }
    let known: Vec<&str> = functions.iter().map(|function| function.name.as_str()).collect();
    let message = format!("{field}=\"{name}\" is none of the tools; there are: {}", known.join(", "));
    Err(ApiError::invalid(field, message))
}

/// A function with a name; its description is between the caller and the model.
fn function(tool: &Value, path: &str) -> Result<Function, ApiError> {
    let kind = tool["type"].as_str().unwrap_or_default();
    if kind != "function" {
        let name = format!("{path}.type");
        return Err(ApiError::invalid(
            &*name,
            format!("{name}=\"{kind}\" is not supported by this server; give \"function\""),
        ));
    }
    let field = format!("{path}.function");
    let described = &tool["function"];
    let name = match described["name"].as_str() {
        Some(text) if !text.is_empty() => text.to_owned(),
        _ => return Err(ApiError::invalid(format!("{field}.name"), "a tool needs the name of its function")),
    };
    let is_strict = match &described["strict"] {
        Value::Null => false,
        Value::Bool(strict) => *strict,
        other => return Err(wrong_type(&format!("{field}.strict"), "true or false", other)),
    };
    let parameters = match &described["parameters"] {
        Value::Null => json!({"type": "object", "properties": {}}),
        parameters => parameters.clone(),
    };
    Ok(Function { name, parameters, is_strict, field })
}
