//! From a call to a running generation: everything that can be refused is refused here.

use std::sync::Arc;

use paceline_engine::{GenerateRequest, ModelLimits, SamplingParams, SubmitError};
use paceline_sampling::choice_seed;
use paceline_text::{ReasoningCounter, SpecialTokens, Tokenizer};

use super::call::{Call, MaxTokens, Stopping};
use super::generation::Generation;
use super::place::OpenPlace;
use super::prompt::{PromptPart, TokenizedPrompt};
use super::record::CallRecord;
use super::sampling::sampling_params;
use super::sequence::{Sequence, SequenceOptions};
use super::structure::held;
use super::tokenize::tokenize;
use crate::api_error::{ApiError, Kind};
use crate::app::App;
use crate::limits::{CHOICES_MAX, PROMPTS_MAX, STOP_STRING_BYTES_MAX, STOP_TOKEN_IDS_MAX};

/// Checks `call` against the model, tokenizes it and submits every choice. `record` counts what becomes of it; a
/// refusal is counted here.
///
/// # Errors
/// What the caller got wrong, or that there is no room or no worker.
pub(crate) async fn admit(app: &App, call: Call, record: CallRecord) -> Result<Generation, ApiError> {
    let mut record = record;
    record.trace(&call);
    match try_admit(app, call, &mut record).await {
        Ok(admitted) => Ok(Generation::new(admitted, record)),
        Err(error) => Err(record.refuse(error)),
    }
}

/// The running choices of a call and what is kept of its prompts.
pub(super) struct Admitted {
    pub(super) sequences: Vec<Sequence>,
    pub(super) prompt_tokens: usize,
    /// What the first prompt reads, where it is text.
    pub(super) prompt_text: String,
    /// Whether answers are read for reasoning.
    pub(super) reasons: bool,
    /// Among the open calls.
    pub(super) place: OpenPlace,
}

async fn try_admit(app: &App, call: Call, record: &mut CallRecord) -> Result<Admitted, ApiError> {
    let limits = known_limits(app)?;
    let place = OpenPlace::take(app)?;
    let vocab_size = vocab_size(&limits, &app.options.tokenizer);
    let sampling = sampling_params(app, &call, vocab_size)?;
    check_counts(&call)?;
    check_stopping(&call.stopping, call.echo, app.options.limits.stop_strings, vocab_size)?;
    if let Some(dp_rank) = call.dp_rank.filter(|rank| *rank >= limits.dp_size) {
        let message = format!("there is no rank {dp_rank}; ranks are 0 to {}", limits.dp_size.saturating_sub(1));
        return Err(ApiError::invalid("X-data-parallel-rank", message));
    }
    let held = held(app, &call).await?;
    let (call, prompts) = tokenize(app.options.tokenizer.clone(), call, limits.max_model_len).await?;
    let mut requests = Vec::with_capacity(prompts.len() * call.choices as usize);
    let mut prompt_tokens = 0;
    let prompt_text = prompts.first().and_then(|prompt| prompt.text.clone()).unwrap_or_default();
    for prompt in prompts {
        check_prompt(&prompt.ids, &call, app.options.limits.prompt_tokens, vocab_size)?;
        prompt_tokens += prompt.ids.len();
        let prompt = Arc::new(prompt);
        let max_new_tokens = max_new_tokens(&call, prompt.ids.len(), &limits)?;
        check_min_tokens(call.sampling.min_tokens, max_new_tokens)?;
        let seed = call.sampling.seed.unwrap_or_else(rand::random);
        if call.sampling.seed.is_none() {
            tracing::debug!(request_id = call.id, seed, "seed drawn");
        }
        for choice in 0..call.choices {
            let seed = choice_seed(seed, choice, call.choices);
            let request = GenerateRequest {
                request_id: call.id.clone(),
                prompt_token_ids: prompt.ids.clone(),
                max_new_tokens: max_new_tokens.max(1),
                stop_token_ids: stop_token_ids(&call.stopping, app),
                sampling: SamplingParams { seed, ..sampling.clone() },
                constraint: held.as_ref().map(|held| held.constraint(prompt.text.as_deref().unwrap_or_default())),
                dp_rank: call.dp_rank,
                priority: call.priority,
                cache_salt: call.cache_salt.clone().unwrap_or_default().into_bytes(),
                shares_prompt_with: None,
            };
            requests.push((Arc::clone(&prompt), request));
        }
    }
    let max_tokens = requests.iter().map(|(_, request)| request.max_new_tokens).max().unwrap_or(0);
    record.submitted(requests.len(), call.choices, max_tokens, prompt_tokens);
    let sequences = submit(app, &call, requests).await?;
    let reasons = call.thinking.format.is_some();
    Ok(Admitted { sequences, prompt_tokens, prompt_text, reasons, place })
}

/// Submits all requests or none: when one is refused the streams of the others are dropped, which takes them back.
async fn submit(
    app: &App,
    call: &Call,
    requests: Vec<(Arc<TokenizedPrompt>, GenerateRequest)>,
) -> Result<Vec<Sequence>, ApiError> {
    let stops: Arc<[String]> = call.stopping.stop.clone().into();
    let special = if call.skip_special_tokens { SpecialTokens::Skip } else { SpecialTokens::Show };
    let mut sequences = Vec::with_capacity(requests.len());
    let mut first = None;
    for (index, (prompt, mut request)) in requests.into_iter().enumerate() {
        let is_first = index % call.choices as usize == 0;
        let begun = prompt.text.as_deref().unwrap_or_default();
        request.shares_prompt_with = first.filter(|_| !is_first);
        let options = SequenceOptions {
            index: u32::try_from(index).expect("prompts and choices are limited"),
            stops: Arc::clone(&stops),
            stop_token_ids: call.stopping.stop_token_ids.clone(),
            include_stop: call.stopping.include_stop,
            logprobs: call.sampling.logprobs.is_some(),
            echo: call.echo,
            is_first,
            hide_output: call.stopping.max_tokens.is_zero(),
            min_tokens: call.sampling.min_tokens,
            reasoning: call.thinking.format.map(|format| ReasoningCounter::new(format, begun)),
        };
        let tokenizer = &app.options.tokenizer;
        let decoder = tokenizer.decoder(special, &request.prompt_token_ids);
        let before = if call.echo { &[] } else { request.prompt_token_ids.as_slice() };
        let pieces = tokenizer.decoder(SpecialTokens::Show, before);
        let wants_logprobs = request.sampling.prompt_logprobs.is_some();
        let part = (call.echo || call.return_token_ids || wants_logprobs)
            .then(|| PromptPart::new(prompt, tokenizer.clone(), call.echo, wants_logprobs));
        let stream = app.handle.submit(request).await.map_err(|error| {
            if let SubmitError::QueueFull { unit, .. } = &error {
                app.metrics.requests.turned_away(unit);
            }
            submit_error(error.into(), call)
        })?;
        first = if is_first { Some(stream.key()) } else { first };
        sequences.push(Sequence::new(stream, decoder, pieces, part, options));
    }
    Ok(sequences)
}

/// The engine names its own fields; clients know theirs.
fn submit_error(mut error: ApiError, call: &Call) -> ApiError {
    match error.param.as_deref() {
        Some("prompt" | "prompt_token_ids") => error.param = Some(call.prompt_field.to_owned()),
        Some("max_tokens" | "max_new_tokens") => {
            error.param = Some(match call.stopping.max_tokens {
                MaxTokens::Asked { field, .. } => field.to_owned(),
                MaxTokens::UpTo(_) | MaxTokens::AsFits => call.prompt_field.to_owned(),
            });
        }
        Some("dp_rank") => error.param = Some("X-data-parallel-rank".to_owned()),
        _ => {}
    }
    error
}

fn known_limits(app: &App) -> Result<ModelLimits, ApiError> {
    let limits = app.handle.limits();
    if limits.max_model_len > 0 {
        return Ok(limits);
    }
    let states: Vec<String> =
        app.handle.status().ranks.iter().map(|rank| format!("rank {} {}", rank.dp_rank, rank.state.name())).collect();
    let states = if states.is_empty() { "no worker yet".to_owned() } else { states.join(", ") };
    Err(ApiError::new(Kind::Unavailable, format!("the model is not loaded yet: {states}")))
}

/// Ids must exist for the tokenizer and for the model: rows that only pad the embedding table belong to neither.
fn vocab_size(limits: &ModelLimits, tokenizer: &Tokenizer) -> u32 {
    let tokenizer = u32::try_from(tokenizer.vocab_size()).unwrap_or(u32::MAX);
    if limits.vocab_size == 0 { tokenizer } else { limits.vocab_size.min(tokenizer) }
}

fn check_counts(call: &Call) -> Result<(), ApiError> {
    let prompts = call.prompts.len();
    if prompts == 0 || prompts > PROMPTS_MAX {
        let message = format!("a call takes 1 to {PROMPTS_MAX} prompts, got {prompts}");
        return Err(ApiError::invalid(call.prompt_field, message));
    }
    if call.choices == 0 || call.choices > CHOICES_MAX {
        return Err(ApiError::invalid("n", format!("n must be between 1 and {CHOICES_MAX}, got {}", call.choices)));
    }
    if call.cache_salt.as_ref().is_some_and(String::is_empty) {
        return Err(ApiError::invalid("cache_salt", "cache_salt must not be empty: leave it out to share with all"));
    }
    Ok(())
}

fn check_stopping(stopping: &Stopping, echo: bool, strings_max: usize, vocab_size: u32) -> Result<(), ApiError> {
    let strings = stopping.stop.len();
    if strings > strings_max {
        let message = format!("at most {strings_max} stop strings are allowed, got {strings}");
        return Err(ApiError::invalid("stop", message));
    }
    for stop in &stopping.stop {
        if stop.is_empty() {
            return Err(ApiError::invalid("stop", "a stop string must not be empty"));
        }
        if stop.len() > STOP_STRING_BYTES_MAX {
            let message = format!("a stop string has at most {STOP_STRING_BYTES_MAX} bytes, got {}", stop.len());
            return Err(ApiError::invalid("stop", message));
        }
    }
    let ids = stopping.stop_token_ids.len();
    if ids > STOP_TOKEN_IDS_MAX {
        let message = format!("at most {STOP_TOKEN_IDS_MAX} stop token ids are allowed, got {ids}");
        return Err(ApiError::invalid("stop_token_ids", message));
    }
    check_ids(&stopping.stop_token_ids, "stop_token_ids", vocab_size)?;
    match stopping.max_tokens {
        MaxTokens::Asked { tokens: 0, field } if !echo => {
            Err(ApiError::invalid(field, format!("{field} must be at least 1, got 0: only with echo may it be 0")))
        }
        _ => Ok(()),
    }
}

/// No choice can be held open for longer than it may run.
fn check_min_tokens(min_tokens: u32, max_new_tokens: u32) -> Result<(), ApiError> {
    if min_tokens <= max_new_tokens {
        return Ok(());
    }
    let message = format!("min_tokens={min_tokens} is more than the {max_new_tokens} tokens that may be produced");
    Err(ApiError::invalid("min_tokens", message))
}

fn check_prompt(prompt: &[u32], call: &Call, tokens_max: Option<u32>, vocab_size: u32) -> Result<(), ApiError> {
    let field = call.prompt_field;
    if let Some(most) = tokens_max.filter(|most| prompt.len() > *most as usize) {
        let message = format!("the prompt has {} tokens; this server takes at most {most}", prompt.len());
        return Err(ApiError::invalid(field, message));
    }
    if prompt.is_empty() {
        return Err(ApiError::invalid(field, "the prompt has no token: this tokenizer adds none of its own"));
    }
    check_ids(prompt, field, vocab_size)
}

fn check_ids(ids: &[u32], field: &'static str, vocab_size: u32) -> Result<(), ApiError> {
    match ids.iter().find(|id| **id >= vocab_size) {
        Some(id) => {
            let message = format!("token id {id} is outside the vocabulary of {vocab_size} tokens");
            Err(ApiError::invalid(field, message))
        }
        None => Ok(()),
    }
}

/// How many tokens may follow a prompt of `prompt_tokens`. Prompt and output share `max_model_len` positions.
fn max_new_tokens(call: &Call, prompt_tokens: usize, limits: &ModelLimits) -> Result<u32, ApiError> {
    let length = limits.max_model_len;
    let room = match u32::try_from(prompt_tokens).ok().and_then(|prompt| length.checked_sub(prompt)) {
        Some(room) if room > 0 => room,
        _ => {
            let message = format!(
                "the prompt has {prompt_tokens} tokens; this model's context of {length} tokens leaves no room for output"
            );
            return Err(ApiError::invalid(call.prompt_field, message));
        }
    };
    // Without a limit from the caller the output may also not outgrow the KV cache of one rank.
    let pool = limits.block_size.saturating_mul(limits.kv_blocks);
    let fits = match u32::try_from(prompt_tokens).ok().and_then(|prompt| pool.checked_sub(prompt)) {
        Some(tokens) if tokens > 0 => room.min(tokens),
        _ => room,
    };
    match call.stopping.max_tokens {
        MaxTokens::Asked { tokens, field } if tokens > room => {
            let message = format!(
                "{field}={tokens} and a prompt of {prompt_tokens} tokens exceed this model's context of {length} tokens"
            );
            Err(ApiError::invalid(field, message))
        }
        MaxTokens::Asked { tokens, .. } => Ok(tokens),
        MaxTokens::UpTo(tokens) => Ok(tokens.min(fits)),
        MaxTokens::AsFits => Ok(fits),
    }
}

pub(super) fn stop_token_ids(stopping: &Stopping, app: &App) -> Vec<u32> {
    let mut ids = stopping.stop_token_ids.clone();
    if !stopping.ignore_eos {
        ids.extend_from_slice(&app.options.tokenizer.settings().eos_token_ids);
    }
    ids.sort_unstable();
    ids.dedup();
    ids
}
