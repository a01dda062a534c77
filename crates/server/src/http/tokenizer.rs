//! `/tokenize`, `/detokenize` and `/tokenizer_info`: the model's tokenizer for clients that have none.

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use serde_json::{Map, Value, json};

use super::front::read_body;
use crate::api_error::ApiError;
use crate::app::App;
use crate::generate::{detokenize as text_of, tokenize_alone};
use crate::openai::{DetokenizeRequest, TokenizeRequest};

/// The tokens of a text or of a rendered chat.
pub(crate) async fn tokenize(State(app): State<App>, body: Body) -> Result<Json<Value>, ApiError> {
    let request = TokenizeRequest::from_body(&read_body(&app, body).await?)?;
    check_model(&app, request.model.as_deref())?;
    let length = app.handle.limits().max_model_len;
    let field = request.prompt_field;
    let prompt = tokenize_alone(app.options.tokenizer.clone(), request.prompt, field).await?;
    let tokenizer = &app.options.tokenizer;
    let strings: Option<Vec<String>> =
        request.token_strings.then(|| prompt.ids.iter().map(|id| tokenizer.token_text(*id)).collect());
    Ok(Json(json!({
        "count": prompt.ids.len(),
        "max_model_len": length,
        "tokens": prompt.ids,
        "token_strs": strings,
    })))
}

/// The text of tokens, special ones included.
pub(crate) async fn detokenize(State(app): State<App>, body: Body) -> Result<Json<Value>, ApiError> {
    let request = DetokenizeRequest::from_body(&read_body(&app, body).await?)?;
    check_model(&app, request.model.as_deref())?;
    let prompt = text_of(&app.options.tokenizer, request.tokens, "tokens").await?;
    Ok(Json(json!({"prompt": prompt})))
}

/// What a client needs to make prompts as this server does.
pub(crate) async fn info(State(app): State<App>) -> Json<Value> {
    let tokenizer = &app.options.tokenizer;
    let settings = tokenizer.settings();
    let named = settings.special_tokens.iter().map(|(name, token)| (name.clone(), Value::from(token.as_str())));
    let mut info: Map<String, Value> = named.collect();
    info.insert("tokenizer_class".to_owned(), Value::from("PreTrainedTokenizerFast"));
    info.insert("vocab_size".to_owned(), Value::from(tokenizer.vocab_size()));
    info.insert("model_max_length".to_owned(), Value::from(app.handle.limits().max_model_len));
    info.insert("eos_token_ids".to_owned(), Value::from(settings.eos_token_ids.clone()));
    info.insert("bos_token_id".to_owned(), Value::from(settings.bos_token_id));
    info.insert("chat_template".to_owned(), Value::from(tokenizer.chat_template()));
    Json(Value::Object(info))
}

fn check_model(app: &App, asked: Option<&str>) -> Result<(), ApiError> {
    let served = &app.options.model_name;
    match asked.filter(|model| model != served) {
        Some(model) => Err(ApiError::unknown_model(model, served)),
        None => Ok(()),
    }
}
