//! Tools that a chat may call.

use serde_json::Value;

use super::fields::{Fields, wrong_type};
use crate::api_error::ApiError;
use crate::limits::TOOLS_MAX;

/// What a request says about tools.
#[derive(Debug, Clone, Default)]
pub(crate) struct Tools {
    /// For the template; empty when none may be called.
    pub(crate) definitions: Vec<Value>,
    /// Whether an answer may hold more than one call.
    pub(crate) parallel: bool,
}

impl Tools {
    /// Takes `tools`, `tool_choice` and `parallel_tool_calls`.
    pub(super) fn take(fields: &mut Fields) -> Result<Self, ApiError> {
        let parallel = fields.boolean("parallel_tool_calls")?.unwrap_or(true);
        let definitions = match fields.take("tools") {
            None => Vec::new(),
            Some(Value::Array(tools)) => tools
                .into_iter()
                .enumerate()
                .map(|(index, tool)| definition(tool, &format!("tools[{index}]")))
                .collect::<Result<_, _>>()?,
            Some(other) => return Err(wrong_type("tools", "an array of tools", &other)),
        };
        if definitions.len() > TOOLS_MAX {
            let message = format!("at most {TOOLS_MAX} tools are allowed, got {}", definitions.len());
            return Err(ApiError::invalid("tools", message));
        }
        let choice = fields.take("tool_choice");
        match choice.as_ref().map(|choice| (choice, choice.as_str())) {
            None | Some((_, Some("auto"))) => Ok(Self { definitions, parallel }),
            Some((_, Some("none"))) => Ok(Self { definitions: Vec::new(), parallel }),
            Some((Value::Object(_), _)) | Some((_, Some("required"))) => {
                let message =
                    "a tool_choice that forces a call is not supported by this server; give \"auto\" or \"none\"";
                Err(ApiError::invalid("tool_choice", message))
            }
            Some((other, _)) => Err(wrong_type("tool_choice", "\"auto\" or \"none\"", other)),
        }
    }
}

/// A function with a name; the rest is between the caller and the model.
fn definition(tool: Value, path: &str) -> Result<Value, ApiError> {
    let kind = tool["type"].as_str().unwrap_or_default();
    if kind != "function" {
        let name = format!("{path}.type");
        return Err(ApiError::invalid(
            &*name,
            format!("{name}=\"{kind}\" is not supported by this server; give \"function\""),
        ));
    }
    let name = format!("{path}.function.name");
    match tool["function"]["name"].as_str() {
        Some(text) if !text.is_empty() => Ok(tool),
        _ => Err(ApiError::invalid(name, "a tool needs the name of its function")),
    }
}
