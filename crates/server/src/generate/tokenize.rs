//! From the prompts of a call to token ids.

use paceline_text::{SpecialTokens, Tokenizer};

use super::call::{Call, MaxTokens, Prompt, Truncate};
use super::prompt::TokenizedPrompt;
use crate::api_error::{ApiError, Kind};

/// Tokenizes every text of the call, away from the threads that serve sockets. `length` is the model's context.
pub(super) async fn tokenize(
    tokenizer: Tokenizer,
    mut call: Call,
    length: u32,
) -> Result<(Call, Vec<TokenizedPrompt>), ApiError> {
    let prompts = std::mem::take(&mut call.prompts);
    let field = call.prompt_field;
    let keep = tokens_kept(&call, length);
    let job = move || {
        let prompt =
            |prompt| token_ids(&tokenizer, prompt, field, length).and_then(|ids| truncate(&tokenizer, ids, keep));
        prompts.into_iter().map(prompt).collect::<Result<Vec<_>, _>>()
    };
    match tokio::task::spawn_blocking(job).await {
        Ok(prompts) => Ok((call, prompts?)),
        Err(_) => Err(ApiError::new(Kind::Internal, "the tokenizer failed on this prompt")),
    }
}

/// Tokenizes one prompt that is not to be run: its length is not limited by the model's context.
pub(crate) async fn tokenize_alone(
    tokenizer: Tokenizer,
    prompt: Prompt,
    field: &'static str,
) -> Result<TokenizedPrompt, ApiError> {
    match tokio::task::spawn_blocking(move || token_ids(&tokenizer, prompt, field, u32::MAX)).await {
        Ok(prompt) => prompt,
        Err(_) => Err(ApiError::new(Kind::Internal, "the tokenizer failed on this prompt")),
    }
}

/// The text of tokens, special ones included.
pub(crate) async fn detokenize(
    tokenizer: &Tokenizer,
    token_ids: Vec<u32>,
    field: &'static str,
) -> Result<String, ApiError> {
    let vocab_size = tokenizer.vocab_size();
    if let Some(id) = token_ids.iter().find(|id| **id as usize >= vocab_size) {
        let message = format!("token id {id} is outside the vocabulary of {vocab_size} tokens");
        return Err(ApiError::invalid(field, message));
    }
    let tokenizer = tokenizer.clone();
    match tokio::task::spawn_blocking(move || tokenizer.decode(&token_ids, SpecialTokens::Show)).await {
        Ok(text) => text.map_err(|error| ApiError::invalid(field, error.to_string())),
        Err(_) => Err(ApiError::new(Kind::Internal, "the tokenizer failed on these tokens")),
    }
}

/// How many tokens of a prompt are kept; all when nothing is said.
fn tokens_kept(call: &Call, length: u32) -> Option<usize> {
    let tokens = match call.truncate? {
        Truncate::Tokens(tokens) => tokens,
        Truncate::ToFit => {
            let produced = match call.stopping.max_tokens {
                MaxTokens::Asked { tokens, .. } | MaxTokens::UpTo(tokens) => tokens.max(1),
                MaxTokens::AsFits => 1,
            };
            length.saturating_sub(produced).max(1)
        }
    };
    Some(tokens as usize)
}

/// Keeps the end of a prompt. What is left of a text is told by its tokens.
fn truncate(
    tokenizer: &Tokenizer,
    mut prompt: TokenizedPrompt,
    keep: Option<usize>,
) -> Result<TokenizedPrompt, ApiError> {
    if let Some(keep) = keep.filter(|keep| *keep < prompt.ids.len()) {
        prompt.ids.drain(..prompt.ids.len() - keep);
        if prompt.text.is_some() {
            let text = tokenizer.decode(&prompt.ids, SpecialTokens::Show);
            prompt.text = Some(text.map_err(|error| ApiError::new(Kind::Internal, error.to_string()))?);
        }
    }
    Ok(prompt)
}

fn token_ids(tokenizer: &Tokenizer, prompt: Prompt, field: &str, length: u32) -> Result<TokenizedPrompt, ApiError> {
    let invalid = |error: paceline_text::Error| ApiError::invalid(field, error.to_string());
    let (text, add_special_tokens) = match prompt {
        Prompt::Tokens(ids) => return Ok(TokenizedPrompt { ids, text: None }),
        Prompt::Text { text, add_special_tokens } => (text, add_special_tokens),
        Prompt::Chat { input, add_special_tokens } => {
            (tokenizer.render_chat(&input).map_err(invalid)?, add_special_tokens)
        }
    };
    // Far too long a text is refused without the time it takes to tokenize it.
    let bytes_max = tokenizer.longest_token_bytes().saturating_mul(length as usize);
    if text.len() > bytes_max {
        let message = format!("a prompt of {} bytes cannot fit this model's context of {length} tokens", text.len());
        return Err(ApiError::invalid(field, message));
    }
    let ids = tokenizer.encode(&text, add_special_tokens).map_err(invalid)?;
    Ok(TokenizedPrompt { ids, text: Some(text) })
}
