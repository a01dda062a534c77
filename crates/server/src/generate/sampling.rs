//! From the sampling fields of a call to the parameters that the engine takes.

use paceline_engine::SamplingParams;
use paceline_sampling::Adjustments;
use paceline_text::Tokenizer;

use super::admission::stop_token_ids;
use super::call::Call;
use crate::api_error::{ApiError, Kind};
use crate::app::App;

/// The parameters of a call, all but the seed: its own fields, else the model's defaults.
///
/// # Errors
/// The first field out of range or that names a token outside `vocab_size`.
pub(super) fn sampling_params(app: &App, call: &Call, vocab_size: u32) -> Result<SamplingParams, ApiError> {
    let fields = &call.sampling;
    let model = &app.options.sampling_defaults;
    let neutral = SamplingParams::default();
    let mut params = SamplingParams {
        temperature: fields.temperature.or(model.temperature).unwrap_or(neutral.temperature),
        top_p: fields.top_p.or(model.top_p).unwrap_or(neutral.top_p),
        top_k: fields.top_k.or(model.top_k).unwrap_or(neutral.top_k),
        min_p: fields.min_p.or(model.min_p).unwrap_or(neutral.min_p),
        seed: neutral.seed,
        logprobs: fields.logprobs,
        prompt_logprobs: fields.prompt_logprobs,
        adjust: Adjustments {
            presence_penalty: fields.presence_penalty.unwrap_or(0.0),
            frequency_penalty: fields.frequency_penalty.unwrap_or(0.0),
            repetition_penalty: fields.repetition_penalty.or(model.repetition_penalty).unwrap_or(1.0),
            logit_bias: fields.logit_bias.clone(),
            allowed_token_ids: fields.allowed_token_ids.clone(),
            bad_words: bad_words(&app.options.tokenizer, &fields.bad_words)?,
            min_tokens: fields.min_tokens,
            ending_token_ids: Vec::new(),
        },
    };
    if fields.min_tokens > 0 {
        params.adjust.ending_token_ids = stop_token_ids(&call.stopping, app);
    }
    let checked = params.validate().and_then(|()| params.check_vocabulary(vocab_size as usize));
    checked.map_err(|error| ApiError {
        kind: Kind::Invalid,
        message: error.to_string(),
        param: error.field().map(str::to_owned),
    })?;
    Ok(params)
}

/// The tokens of each word, as it reads at the start of a text and after a blank.
fn bad_words(tokenizer: &Tokenizer, words: &[String]) -> Result<Vec<Vec<u32>>, ApiError> {
    let mut spelled = Vec::with_capacity(words.len() * 2);
    for word in words {
        let word = word.trim_start();
        if word.is_empty() {
            return Err(ApiError::invalid("bad_words", "a bad word must not be empty"));
        }
        for text in [word.to_owned(), format!(" {word}")] {
            let ids =
                tokenizer.encode(&text, false).map_err(|error| ApiError::invalid("bad_words", error.to_string()))?;
            if !ids.is_empty() && !spelled.contains(&ids) {
                spelled.push(ids);
            }
        }
    }
    Ok(spelled)
}
