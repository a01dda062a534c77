//! One choice: tokens from the engine in, text that may be shown out.

use std::sync::Arc;

use paceline_engine::{FinishReason, Life, StreamEvent, TokenOutput, TokenStream};
use paceline_text::{IncrementalDecoder, ReasoningCounter, StopMatcher};

use super::prompt::{PromptPart, PromptReport};
use crate::api_error::{ApiError, Kind};

/// One token's share of the log-probabilities.
#[derive(Debug, Clone)]
pub(crate) struct TokenPiece {
    pub(crate) token_id: u32,
    /// Text that became complete with this token; joined over all tokens it is the whole text, specials included.
    pub(crate) text: String,
    /// Characters of the choice's text before this token.
    pub(crate) text_offset: usize,
    /// Nothing for the first token of a prompt.
    pub(crate) logprob: Option<f32>,
    /// The likeliest tokens, likeliest first.
    pub(crate) top: Vec<(u32, f32)>,
}

/// What stopped a choice beyond an end-of-sequence token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum StopReason {
    Text(String),
    Token(u32),
}

/// Why a choice ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FinishCause {
    Stop,
    Length,
    Abort,
}

/// The end of a choice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Finish {
    pub(crate) cause: FinishCause,
    pub(crate) stop_reason: Option<StopReason>,
}

/// What is new about one choice.
#[derive(Debug, Clone, Default)]
pub(crate) struct Delta {
    /// Prompt index times choices per prompt, plus the choice.
    pub(crate) index: u32,
    /// May be empty while a character or a possible stop string is incomplete.
    pub(crate) text: String,
    pub(crate) token_ids: Vec<u32>,
    /// One per token where log-probabilities were asked for, else empty.
    pub(crate) pieces: Vec<TokenPiece>,
    pub(crate) finish: Option<Finish>,
    /// With the first piece of a prompt's first choice: tokens of the prompt that were read from the prefix cache.
    pub(crate) cached_tokens: u32,
    /// Tokens of reasoning that were found since the last piece.
    pub(crate) reasoning_tokens: usize,
    /// With the first piece of a choice, where something is asked for about its prompt.
    pub(crate) prompt: Option<Box<PromptReport>>,
    /// What the engine has done with the choice so far.
    pub(crate) life: Life,
}

impl Delta {
    /// Whether it holds nothing to show or report.
    pub(crate) fn is_silent(&self) -> bool {
        self.text.is_empty() && self.pieces.is_empty() && self.finish.is_none() && self.prompt.is_none()
    }
}

/// The fixed part of a choice.
#[derive(Debug)]
pub(crate) struct SequenceOptions {
    pub(crate) index: u32,
    pub(crate) stops: Arc<[String]>,
    /// Those the caller named, without the model's own end-of-sequence tokens.
    pub(crate) stop_token_ids: Vec<u32>,
    pub(crate) include_stop: bool,
    pub(crate) logprobs: bool,
    /// Whether the answer begins with the prompt.
    pub(crate) echo: bool,
    /// Whether it is the first choice of its prompt: what others read from the cache is what this one computed.
    pub(crate) is_first: bool,
    /// Stop strings count only in what follows this many tokens.
    pub(crate) min_tokens: u32,
    /// Whether what is produced stays unseen: nothing was to be produced.
    pub(crate) hide_output: bool,
    /// Where answers are read for reasoning.
    pub(crate) reasoning: Option<ReasoningCounter>,
}

/// A running choice. Dropping it aborts its request.
pub(crate) struct Sequence {
    /// Gone once the choice has ended.
    stream: Option<TokenStream>,
    decoder: IncrementalDecoder,
    stops: StopMatcher,
    /// Decodes each token's own text, for log-probabilities.
    pieces: IncrementalDecoder,
    text_offset: usize,
    /// Tokens decoded so far.
    decoded: u32,
    has_begun: bool,
    /// Gone once the choice has begun.
    prompt: Option<PromptPart>,
    reasoning: Option<ReasoningCounter>,
    /// Tokens of reasoning that were reported.
    reasoning_reported: usize,
    options: SequenceOptions,
}

impl Sequence {
    pub(crate) fn new(
        stream: TokenStream,
        decoder: IncrementalDecoder,
        pieces: IncrementalDecoder,
        prompt: Option<PromptPart>,
        mut options: SequenceOptions,
    ) -> Self {
        let stops = StopMatcher::new(&options.stops, options.include_stop);
        Self {
            stream: Some(stream),
            decoder,
            stops,
            pieces,
            text_offset: 0,
            decoded: 0,
            has_begun: false,
            prompt,
            reasoning: options.reasoning.take(),
            reasoning_reported: 0,
            options,
        }
    }

    /// What comes next; `None` after the end.
    pub(crate) async fn next(&mut self) -> Option<Result<Delta, ApiError>> {
        let event = loop {
            match self.stream.as_mut()?.next().await {
                Some(StreamEvent::PromptLogprobs { logprobs }) => {
                    if let Some(prompt) = &mut self.prompt {
                        prompt.extend(logprobs);
                    }
                }
                event => break event,
            }
        };
        let delta = match event {
            Some(StreamEvent::PromptLogprobs { .. }) => unreachable!("taken by the loop"),
            Some(StreamEvent::Tokens { tokens }) => self.read(tokens, None),
            Some(StreamEvent::Finished { tokens, reason }) => self.read(tokens, Some(reason)),
            Some(StreamEvent::Failed { kind, message }) => Err(ApiError::failed(kind, message)),
            None => Err(ApiError::new(Kind::Internal, "the engine ended a request without a result")),
        };
        if !matches!(&delta, Ok(Delta { finish: None, .. })) {
            self.stream = None;
        }
        let tokens = self.reasoning.as_ref().map_or(0, ReasoningCounter::tokens);
        let reasoning_tokens = tokens - std::mem::replace(&mut self.reasoning_reported, tokens);
        Some(delta.map(|delta| Delta { reasoning_tokens, ..delta }))
    }

    fn read(&mut self, tokens: Vec<TokenOutput>, reason: Option<FinishReason>) -> Result<Delta, ApiError> {
        let mut delta = self.begin()?;
        if self.options.hide_output {
            delta.finish = reason.map(|_| Finish { cause: FinishCause::Length, stop_reason: None });
            return self.close(delta);
        }
        let stop_token = match reason {
            Some(FinishReason::Stop(Some(token_id))) => Some(token_id),
            _ => None,
        };
        let last = tokens.len().saturating_sub(1);
        for (position, token) in tokens.into_iter().enumerate() {
            let hidden = position == last && stop_token == Some(token.token_id) && !self.options.include_stop;
            let token_id = token.token_id;
            delta.token_ids.push(token_id);
            if self.options.logprobs {
                let piece = self.piece(token)?;
                delta.pieces.push(piece);
            }
            if hidden {
                continue;
            }
            self.decoded += 1;
            let mut fresh = String::new();
            self.decoder.push(token_id, &mut fresh).map_err(|error| decode_error(&error))?;
            if let Some(reasoning) = &mut self.reasoning {
                reasoning.push(&fresh);
            }
            if self.decoded <= self.options.min_tokens {
                delta.text.push_str(&fresh);
                continue;
            }
            // What follows a stop string in the same step was never asked for.
            if self.find_stop(&fresh, &mut delta) {
                return self.close(delta);
            }
        }
        let Some(reason) = reason else { return Ok(delta) };
        let mut tail = String::new();
        self.decoder.finish(&mut tail).map_err(|error| decode_error(&error))?;
        if !self.find_stop(&tail, &mut delta) {
            self.stops.finish(&mut delta.text);
            delta.finish = Some(self.finish(reason));
        }
        self.close(delta)
    }

    /// An empty piece, or one that holds the prompt's part when it is the first.
    fn begin(&mut self) -> Result<Delta, ApiError> {
        let life = self.stream.as_ref().map(TokenStream::life).unwrap_or_default();
        let mut delta = Delta { index: self.options.index, life, ..Delta::default() };
        if !std::mem::replace(&mut self.has_begun, true) && self.options.is_first {
            delta.cached_tokens = self.stream.as_ref().map_or(0, TokenStream::cached_tokens);
        }
        if let Some(prompt) = self.prompt.take() {
            delta.prompt = Some(Box::new(prompt.report()?));
            delta.text = prompt.text()?;
            if self.options.echo && self.options.logprobs {
                delta.pieces = prompt.pieces(&mut self.pieces, &mut self.text_offset)?;
            }
        }
        Ok(delta)
    }

    /// Shows what `fresh` lets be shown; true when it completed a stop string.
    fn find_stop(&mut self, fresh: &str, delta: &mut Delta) -> bool {
        let Some(found) = self.stops.push(fresh, &mut delta.text) else { return false };
        let stop_reason = StopReason::Text(self.options.stops[found.stop_index].clone());
        delta.finish = Some(Finish { cause: FinishCause::Stop, stop_reason: Some(stop_reason) });
        true
    }

    /// The last token's piece takes the bytes of a character that will never be complete.
    fn close(&mut self, mut delta: Delta) -> Result<Delta, ApiError> {
        if let Some(reasoning) = &mut self.reasoning {
            reasoning.finish();
        }
        if let Some(piece) = delta.pieces.last_mut() {
            self.pieces.finish(&mut piece.text).map_err(|error| decode_error(&error))?;
        }
        Ok(delta)
    }

    fn piece(&mut self, token: TokenOutput) -> Result<TokenPiece, ApiError> {
        let Some(logprobs) = token.logprobs else {
            return Err(ApiError::new(Kind::Internal, "the engine left out log-probabilities that were asked for"));
        };
        let mut text = String::new();
        self.pieces.push(token.token_id, &mut text).map_err(|error| decode_error(&error))?;
        let text_offset = self.text_offset;
        self.text_offset += text.chars().count();
        Ok(TokenPiece {
            token_id: token.token_id,
            text,
            text_offset,
            logprob: Some(logprobs.sampled),
            top: logprobs.top,
        })
    }

    fn finish(&self, reason: FinishReason) -> Finish {
        match reason {
            FinishReason::Stop(token_id) => Finish {
                cause: FinishCause::Stop,
                stop_reason: token_id
                    .filter(|token_id| self.options.stop_token_ids.contains(token_id))
                    .map(StopReason::Token),
            },
            FinishReason::Length => Finish { cause: FinishCause::Length, stop_reason: None },
            FinishReason::Aborted => Finish { cause: FinishCause::Abort, stop_reason: None },
        }
    }
}

fn decode_error(error: &paceline_text::Error) -> ApiError {
    ApiError::new(Kind::Internal, error.to_string())
}
