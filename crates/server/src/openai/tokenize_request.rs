//! The bodies of `/tokenize` and `/detokenize`.

use serde_json::Value;

use super::chat_request::chat_input;
use super::chat_tools::Tools;
use super::fields::{Fields, token_id, wrong_type};
use super::neutral::{self, Neutral};
use crate::api_error::ApiError;
use crate::generate::Prompt;

/// A text or a chat whose tokens are asked for.
#[derive(Debug)]
pub(crate) struct TokenizeRequest {
    pub(crate) model: Option<String>,
    pub(crate) prompt: Prompt,
    /// The field that the prompt came in.
    pub(crate) prompt_field: &'static str,
    /// Whether each token's text is wanted too.
    pub(crate) token_strings: bool,
}

impl TokenizeRequest {
    /// Reads a body: `prompt`, or `messages` with what templates take.
    pub(crate) fn from_body(body: &[u8]) -> Result<Self, ApiError> {
        let mut fields = Fields::from_body(body)?;
        let model = fields.text("model")?;
        let token_strings = fields.boolean("return_token_strs")?.unwrap_or(false);
        let add_special_tokens = fields.boolean("add_special_tokens")?;
        let (prompt, prompt_field) = match fields.text("prompt")? {
            Some(text) => {
                let add_special_tokens = add_special_tokens.unwrap_or(true);
                (Prompt::Text { text, add_special_tokens }, "prompt")
            }
            None => {
                let tools = Tools::take(&mut fields)?;
                let input = chat_input(&mut fields, &tools)?;
                neutral::accept(&mut fields, &[("chat_template", Neutral::Nothing), ("documents", Neutral::Empty)])?;
                (Prompt::Chat { input, add_special_tokens: add_special_tokens.unwrap_or(false) }, "messages")
            }
        };
        fields.finish()?;
        Ok(Self { model, prompt, prompt_field, token_strings })
    }
}

/// Tokens whose text is asked for.
#[derive(Debug)]
pub(crate) struct DetokenizeRequest {
    pub(crate) model: Option<String>,
    pub(crate) tokens: Vec<u32>,
}

impl DetokenizeRequest {
    /// Reads a body.
    pub(crate) fn from_body(body: &[u8]) -> Result<Self, ApiError> {
        let mut fields = Fields::from_body(body)?;
        let model = fields.text("model")?;
        let tokens = match fields.take("tokens") {
            Some(Value::Array(ids)) => ids.iter().map(|id| token_id(id, "tokens")).collect::<Result<_, _>>()?,
            Some(other) => return Err(wrong_type("tokens", "an array of token ids", &other)),
            None => return Err(ApiError::invalid("tokens", "tokens is required")),
        };
        fields.finish()?;
        Ok(Self { model, tokens })
    }
}
