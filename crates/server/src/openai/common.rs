//! Fields that completions and chats share.

use serde_json::Value;

use super::fields::{Fields, token_id, wrong_type};
use super::{neutral, structured};
use crate::api_error::ApiError;
use crate::generate::{Call, MaxTokens, Prompt, SamplingFields, Stopping, Structure, Thinking, Truncate};
use crate::limits::CHOICES_MAX;

/// How a stream reports usage.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct StreamOptions {
    /// A last chunk without choices carries the usage; `null` stands in the others.
    pub(crate) include_usage: bool,
    /// Every chunk carries the usage so far.
    pub(crate) continuous_usage: bool,
}

/// What is reported of tokens beside the text.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Reported {
    /// Likeliest tokens with each token of the answer.
    pub(crate) logprobs: Option<u32>,
    /// Likeliest tokens with each token of the prompt.
    pub(crate) prompt_logprobs: Option<u32>,
    /// Token ids of prompt and answer.
    pub(crate) token_ids: bool,
    /// Tokens in log-probabilities are written as ids.
    pub(crate) tokens_as_ids: bool,
}

/// The part that completions and chats share.
#[derive(Debug)]
pub(crate) struct Common {
    pub(crate) model: Option<String>,
    pub(crate) sampling: SamplingFields,
    pub(crate) stop: Vec<String>,
    pub(crate) stop_token_ids: Vec<u32>,
    pub(crate) ignore_eos: bool,
    pub(crate) include_stop: bool,
    pub(crate) skip_special_tokens: bool,
    /// `logprobs` stays with the caller.
    pub(crate) reported: Reported,
    pub(crate) truncate: Option<Truncate>,
    /// What the answer has to be.
    pub(crate) structure: Option<Structure>,
    /// Tokens of reasoning at most.
    pub(crate) thinking_budget: Option<u32>,
    pub(crate) choices: u32,
    pub(crate) priority: i32,
    pub(crate) cache_salt: Option<String>,
    /// The caller's own id for the call; one in the header counts for more.
    pub(crate) request_id: Option<String>,
    /// `Some` when the answer is to be streamed.
    pub(crate) stream: Option<StreamOptions>,
}

impl Common {
    /// Takes the shared fields, the ones not built yet included. `sampling.logprobs` stays with the caller.
    pub(crate) fn take(fields: &mut Fields) -> Result<Self, ApiError> {
        let model = fields.text("model")?;
        let sampling = SamplingFields {
            temperature: fields.number("temperature")?,
            top_p: fields.number("top_p")?,
            top_k: top_k(fields)?,
            min_p: fields.number("min_p")?,
            seed: seed(fields)?,
            logprobs: None,
            prompt_logprobs: fields.count("prompt_logprobs", 0)?,
            presence_penalty: fields.number("presence_penalty")?,
            frequency_penalty: fields.number("frequency_penalty")?,
            repetition_penalty: fields.number("repetition_penalty")?,
            logit_bias: logit_bias(fields)?,
            allowed_token_ids: token_ids(fields, "allowed_token_ids")?,
            bad_words: texts(fields, "bad_words")?,
            min_tokens: fields.count("min_tokens", 0)?.unwrap_or(0),
        };
        let reported = Reported {
            logprobs: None,
            prompt_logprobs: sampling.prompt_logprobs,
            token_ids: fields.boolean("return_token_ids")?.unwrap_or(false),
            tokens_as_ids: fields.boolean("return_tokens_as_token_ids")?.unwrap_or(false),
        };
        let common = Self {
            model,
            sampling,
            reported,
            truncate: truncate(fields)?,
            structure: structured::take(fields)?,
            thinking_budget: thinking_budget(fields)?,
            stop: texts(fields, "stop")?,
            stop_token_ids: token_ids(fields, "stop_token_ids")?.unwrap_or_default(),
            ignore_eos: fields.boolean("ignore_eos")?.unwrap_or(false),
            include_stop: fields.boolean("include_stop_str_in_output")?.unwrap_or(false),
            skip_special_tokens: fields.boolean("skip_special_tokens")?.unwrap_or(true),
            choices: choices(fields)?,
            priority: priority(fields)?,
            cache_salt: fields.text("cache_salt")?,
            request_id: fields.text("request_id")?,
            stream: stream(fields)?,
        };
        neutral::accept(fields, neutral::COMMON)?;
        Ok(common)
    }

    /// A call with these parts; its id, rank and whatever only one kind of request has stay to be filled in.
    pub(crate) fn call(&self, prompts: Vec<Prompt>, prompt_field: &'static str, max_tokens: MaxTokens) -> Call {
        Call {
            id: String::new(),
            prompts,
            prompt_field,
            choices: self.choices,
            stopping: self.stopping(max_tokens),
            sampling: self.sampling.clone(),
            skip_special_tokens: self.skip_special_tokens,
            echo: false,
            return_token_ids: self.reported.token_ids,
            truncate: self.truncate,
            structure: self.structure.clone(),
            thinking: Thinking { budget: self.thinking_budget, ..Thinking::default() },
            priority: self.priority,
            cache_salt: self.cache_salt.clone(),
            dp_rank: None,
            trace: None,
        }
    }

    /// The part about ending, with the token limit of the caller's kind of request.
    fn stopping(&self, max_tokens: MaxTokens) -> Stopping {
        Stopping {
            max_tokens,
            stop: self.stop.clone(),
            stop_token_ids: self.stop_token_ids.clone(),
            ignore_eos: self.ignore_eos,
            include_stop: self.include_stop,
        }
    }
}

/// As vLLM names it; -1 sets no limit.
fn thinking_budget(fields: &mut Fields) -> Result<Option<u32>, ApiError> {
    let budget = fields.integer("thinking_token_budget", -1..=i128::from(u32::MAX))?;
    Ok(budget.and_then(|budget| u32::try_from(budget).ok()))
}

/// -1 keeps as many tokens as fit.
fn truncate(fields: &mut Fields) -> Result<Option<Truncate>, ApiError> {
    match fields.integer("truncate_prompt_tokens", -1..=i128::from(u32::MAX))? {
        None => Ok(None),
        Some(-1) => Ok(Some(Truncate::ToFit)),
        Some(0) => Err(ApiError::invalid("truncate_prompt_tokens", "truncate_prompt_tokens must be -1 or at least 1")),
        Some(tokens) => Ok(Some(Truncate::Tokens(u32::try_from(tokens).expect("checked against the range")))),
    }
}

/// -1 and 0 both keep all.
fn top_k(fields: &mut Fields) -> Result<Option<u32>, ApiError> {
    let top_k = fields.integer("top_k", -1..=i128::from(i64::MAX))?;
    Ok(top_k.map(|top_k| u32::try_from(top_k.max(0)).unwrap_or(u32::MAX)))
}

/// Signed and unsigned 64-bit seeds are both in use; each bit pattern is a seed of its own.
fn seed(fields: &mut Fields) -> Result<Option<u64>, ApiError> {
    let seed = fields.integer("seed", i128::from(i64::MIN)..=i128::from(u64::MAX))?;
    Ok(seed.map(|seed| seed as u64))
}

fn choices(fields: &mut Fields) -> Result<u32, ApiError> {
    let choices = fields.integer("n", 1..=i128::from(CHOICES_MAX))?.unwrap_or(1);
    Ok(u32::try_from(choices).expect("checked against the range"))
}

fn priority(fields: &mut Fields) -> Result<i32, ApiError> {
    let priority = fields.integer("priority", i128::from(i32::MIN)..=i128::from(i32::MAX))?.unwrap_or(0);
    Ok(i32::try_from(priority).expect("checked against the range"))
}

/// One text or an array of them.
pub(crate) fn texts(fields: &mut Fields, field: &'static str) -> Result<Vec<String>, ApiError> {
    const FORMS: &str = "a string or an array of strings";
    match fields.take(field) {
        None => Ok(Vec::new()),
        Some(Value::String(text)) => Ok(vec![text]),
        Some(Value::Array(texts)) => texts
            .into_iter()
            .map(|text| match text {
                Value::String(text) => Ok(text),
                other => Err(wrong_type(field, FORMS, &other)),
            })
            .collect(),
        Some(other) => Err(wrong_type(field, FORMS, &other)),
    }
}

fn token_ids(fields: &mut Fields, field: &'static str) -> Result<Option<Vec<u32>>, ApiError> {
    match fields.take(field) {
        None => Ok(None),
        Some(Value::Array(ids)) => ids.iter().map(|id| token_id(id, field)).collect::<Result<_, _>>().map(Some),
        Some(other) => Err(wrong_type(field, "an array of token ids", &other)),
    }
}

/// JSON has string keys only: each is a token id in digits.
fn logit_bias(fields: &mut Fields) -> Result<Vec<(u32, f32)>, ApiError> {
    const FIELD: &str = "logit_bias";
    let entries = match fields.take(FIELD) {
        None => return Ok(Vec::new()),
        Some(Value::Object(entries)) => entries,
        Some(other) => return Err(wrong_type(FIELD, "an object of token ids and biases", &other)),
    };
    let mut biases = Vec::with_capacity(entries.len());
    for (key, value) in entries {
        let token_id = key.parse().map_err(|_| {
            let shown: String = key.chars().take(40).collect();
            ApiError::invalid(FIELD, format!("the key \"{shown}\" of logit_bias is not a token id of the vocabulary"))
        })?;
        let bias = value.as_f64().ok_or_else(|| wrong_type(FIELD, "an object of numbers", &value))?;
        biases.push((token_id, bias as f32));
    }
    Ok(biases)
}

fn stream(fields: &mut Fields) -> Result<Option<StreamOptions>, ApiError> {
    let streamed = fields.boolean("stream")?.unwrap_or(false);
    let mut options = StreamOptions::default();
    if let Some(value) = fields.take("stream_options") {
        if !streamed {
            return Err(ApiError::invalid("stream_options", "stream_options needs stream=true"));
        }
        let mut nested = Fields::nested(value, "stream_options")?;
        options.include_usage = nested.boolean("include_usage")?.unwrap_or(false);
        options.continuous_usage = nested.boolean("continuous_usage_stats")?.unwrap_or(false);
        neutral::accept(&mut nested, &[("include_obfuscation", neutral::Neutral::Boolean(false))])?;
        nested.finish()?;
    }
    Ok(streamed.then_some(options))
}
