//! The body of `POST /v1/completions`.

use serde_json::Value;

use super::common::{Common, Reported, StreamOptions};
use super::fields::{Fields, token_id, wrong_type};
use super::neutral;
use crate::api_error::ApiError;
use crate::generate::{Call, MaxTokens, Prompt};
use crate::limits::COMPLETION_TOKENS_DEFAULT;

const PROMPT_FORMS: &str = "a string, an array of token ids, or an array of either";

/// A completion request, read and typed.
#[derive(Debug)]
pub(crate) struct CompletionRequest {
    pub(crate) model: Option<String>,
    pub(crate) request_id: Option<String>,
    pub(crate) stream: Option<StreamOptions>,
    pub(crate) reported: Reported,
    /// `call.id` is still empty.
    pub(crate) call: Call,
}

impl CompletionRequest {
    /// Reads a body.
    pub(crate) fn from_body(body: &[u8]) -> Result<Self, ApiError> {
        let mut fields = Fields::from_body(body)?;
        let mut common = Common::take(&mut fields)?;
        common.sampling.logprobs = fields.count("logprobs", 0)?;
        common.reported.logprobs = common.sampling.logprobs;
        let echo = fields.boolean("echo")?.unwrap_or(false);
        if echo {
            // An echoed prompt is reported as the output is.
            let of_prompt = common.sampling.prompt_logprobs.max(common.sampling.logprobs);
            common.sampling.prompt_logprobs = of_prompt;
            common.reported.prompt_logprobs = common.reported.prompt_logprobs.or(of_prompt);
        }
        let max_tokens = match fields.count("max_tokens", 0)? {
            Some(tokens) => MaxTokens::Asked { tokens, field: "max_tokens" },
            None => MaxTokens::UpTo(COMPLETION_TOKENS_DEFAULT),
        };
        // Answering with the best of more choices than asked for is not built; the same number is no wish.
        if let Some(best_of) = fields.count("best_of", 1)?.filter(|best_of| *best_of != common.choices) {
            let message = format!("best_of={best_of} is not supported by this server; leave it out or give n");
            return Err(ApiError::invalid("best_of", message));
        }
        let add_special_tokens = fields.boolean("add_special_tokens")?.unwrap_or(true);
        let prompt = fields.take("prompt").ok_or_else(|| ApiError::invalid("prompt", "prompt is required"))?;
        neutral::accept(&mut fields, neutral::COMPLETION)?;
        fields.finish()?;
        let call = Call { echo, ..common.call(prompts(prompt, add_special_tokens)?, "prompt", max_tokens) };
        Ok(Self {
            model: common.model,
            request_id: common.request_id,
            stream: common.stream,
            reported: common.reported,
            call,
        })
    }
}

/// The four forms of a prompt: text, ids, and arrays of one kind of either.
fn prompts(value: Value, add_special_tokens: bool) -> Result<Vec<Prompt>, ApiError> {
    let items = match value {
        Value::String(text) => return Ok(vec![Prompt::Text { text, add_special_tokens }]),
        Value::Array(items) => items,
        other => return Err(wrong_type("prompt", PROMPT_FORMS, &other)),
    };
    match items.first() {
        None => Err(ApiError::invalid("prompt", "the prompt is empty")),
        Some(Value::Number(_)) => Ok(vec![Prompt::Tokens(ids(&items)?)]),
        Some(Value::String(_)) => items
            .into_iter()
            .map(|item| match item {
                Value::String(text) => Ok(Prompt::Text { text, add_special_tokens }),
                other => Err(wrong_type("prompt", "strings only or token ids only", &other)),
            })
            .collect(),
        Some(Value::Array(_)) => items
            .iter()
            .map(|item| match item {
                Value::Array(item) => Ok(Prompt::Tokens(ids(item)?)),
                other => Err(wrong_type("prompt", "strings only or token ids only", other)),
            })
            .collect(),
        Some(other) => Err(wrong_type("prompt", PROMPT_FORMS, other)),
    }
}

fn ids(items: &[Value]) -> Result<Vec<u32>, ApiError> {
    items.iter().map(|item| token_id(item, "prompt")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(body: &str) -> Result<CompletionRequest, ApiError> {
        CompletionRequest::from_body(body.as_bytes())
    }

    #[test]
    fn e07_prompts_come_in_four_forms_and_do_not_mix() {
        let count = |prompt: &str| read(&format!("{{\"prompt\": {prompt}}}")).map(|request| request.call.prompts.len());
        assert_eq!(count("\"a\""), Ok(1));
        assert_eq!(count("[1, 2, 3]"), Ok(1));
        assert_eq!(count("[\"a\", \"b\"]"), Ok(2));
        assert_eq!(count("[[1, 2], [3, 4]]"), Ok(2));
        for mixed in
            ["[\"a\", [1]]", "[[1], \"a\"]", "[1, \"a\"]", "[\"a\", 1]", "[]", "{}", "7", "[true]", "[[\"a\"]]"]
        {
            assert_eq!(count(mixed).unwrap_err().param.as_deref(), Some("prompt"), "{mixed}");
        }
        assert_eq!(read("{}").unwrap_err().param.as_deref(), Some("prompt"));
    }

    #[test]
    fn what_a_benchmark_client_sends_is_accepted() {
        let request = read(
            r#"{"model": "m", "prompt": "x", "repetition_penalty": 1.0, "max_tokens": 16, "logprobs": null,
                "stream": true, "stream_options": {"include_usage": true}, "ignore_eos": true, "temperature": 0.0}"#,
        )
        .unwrap();
        assert_eq!(request.stream, Some(StreamOptions { include_usage: true, continuous_usage: false }));
        assert!(request.call.stopping.ignore_eos);
        assert_eq!(request.call.stopping.max_tokens, MaxTokens::Asked { tokens: 16, field: "max_tokens" });
    }

    #[test]
    fn seeds_and_top_k_take_their_usual_extremes() {
        let request = read(r#"{"prompt": "x", "seed": -1, "top_k": -1}"#).unwrap();
        assert_eq!(request.call.sampling.seed, Some(u64::MAX));
        assert_eq!(request.call.sampling.top_k, Some(0));
        assert_eq!(read(r#"{"prompt": "x", "top_k": -2}"#).unwrap_err().param.as_deref(), Some("top_k"));
    }
}
