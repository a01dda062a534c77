//! The prompt's part of an answer: its text, its tokens and their log-probabilities, where they are asked for.

use std::sync::Arc;

use paceline_engine::TokenLogprobs;
use paceline_text::{IncrementalDecoder, SpecialTokens, Tokenizer};

use super::sequence::TokenPiece;
use crate::api_error::{ApiError, Kind};

/// One prompt, as the tokenizer made it.
#[derive(Debug, Clone)]
pub(crate) struct TokenizedPrompt {
    pub(crate) ids: Vec<u32>,
    /// What the caller wrote, where it is text of one whole.
    pub(crate) text: Option<String>,
}

/// What is reported of a prompt, once, with the first piece of a choice.
#[derive(Debug, Clone, Default)]
pub(crate) struct PromptReport {
    /// The prompt's tokens.
    pub(crate) token_ids: Vec<u32>,
    /// Of each token from the second on; empty where they are not wanted.
    pub(crate) logprobs: Vec<TokenLogprobs>,
}

/// Collects a prompt's log-probabilities and makes its pieces.
#[derive(Debug)]
pub(crate) struct PromptPart {
    prompt: Arc<TokenizedPrompt>,
    tokenizer: Tokenizer,
    /// Whether the answer begins with the prompt.
    echo: bool,
    /// Whether log-probabilities come from the engine.
    wants_logprobs: bool,
    logprobs: Vec<TokenLogprobs>,
}

impl PromptPart {
    pub(crate) fn new(prompt: Arc<TokenizedPrompt>, tokenizer: Tokenizer, echo: bool, wants_logprobs: bool) -> Self {
        Self { prompt, tokenizer, echo, wants_logprobs, logprobs: Vec::new() }
    }

    /// Takes what the engine reports.
    pub(crate) fn extend(&mut self, logprobs: Vec<TokenLogprobs>) {
        self.logprobs.extend(logprobs);
    }

    /// The text that an answer begins with.
    pub(crate) fn text(&self) -> Result<String, ApiError> {
        match (&self.prompt.text, self.echo) {
            (_, false) => Ok(String::new()),
            (Some(text), true) => Ok(text.clone()),
            (None, true) => {
                self.tokenizer.decode(&self.prompt.ids, SpecialTokens::Show).map_err(|error| internal(&error))
            }
        }
    }

    /// The prompt's tokens as pieces of an echoed answer, with `decoder` and `text_offset` left at their end. A special
    /// token that the tokenizer put before the caller's text has no place in it.
    pub(crate) fn pieces(
        &self,
        decoder: &mut IncrementalDecoder,
        text_offset: &mut usize,
    ) -> Result<Vec<TokenPiece>, ApiError> {
        let mut pieces = Vec::with_capacity(self.prompt.ids.len());
        let mut before_text = self.prompt.text.as_deref();
        for (index, token_id) in self.prompt.ids.iter().enumerate() {
            let mut text = String::new();
            decoder.push(*token_id, &mut text).map_err(|error| internal(&error))?;
            let found = index.checked_sub(1).and_then(|index| self.logprobs.get(index));
            pieces.push(TokenPiece {
                token_id: *token_id,
                text_offset: *text_offset,
                logprob: found.map(|found| found.sampled),
                top: found.map(|found| found.top.clone()).unwrap_or_default(),
                text: text.clone(),
            });
            before_text = before_text.filter(|given| !given.starts_with(&text));
            if before_text.is_none() {
                *text_offset += text.chars().count();
            }
        }
        Ok(pieces)
    }

    /// What is reported of the prompt.
    ///
    /// # Errors
    /// The engine left out log-probabilities.
    pub(crate) fn report(&self) -> Result<PromptReport, ApiError> {
        let expected = if self.wants_logprobs { self.prompt.ids.len() - 1 } else { 0 };
        if self.logprobs.len() != expected {
            let message = format!("the engine gave {} of {expected} prompt log-probabilities", self.logprobs.len());
            return Err(ApiError::new(Kind::Internal, message));
        }
        Ok(PromptReport { token_ids: self.prompt.ids.clone(), logprobs: self.logprobs.clone() })
    }
}

fn internal(error: &paceline_text::Error) -> ApiError {
    ApiError::new(Kind::Internal, error.to_string())
}
