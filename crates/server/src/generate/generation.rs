//! All choices of one call, merged as they come.

use futures_util::StreamExt;
use futures_util::stream::{BoxStream, SelectAll, unfold};

use super::admission::Admitted;
use super::place::OpenPlace;
use super::record::CallRecord;
use super::sequence::Delta;
use crate::api_error::ApiError;

/// Tokens a call used so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    /// Each prompt once, however many choices it has.
    pub(crate) prompt_tokens: usize,
    /// Of these, read from the prefix cache.
    pub(crate) cached_tokens: usize,
    /// Over all choices.
    pub(crate) completion_tokens: usize,
    /// Of these, reasoning; nothing where answers are not read for it.
    pub(crate) reasoning_tokens: Option<usize>,
}

/// The running choices of one call. Dropping it aborts them and counts the call as aborted.
pub(crate) struct Generation {
    sequences: SelectAll<BoxStream<'static, Result<Delta, ApiError>>>,
    choices: usize,
    open: usize,
    usage: Usage,
    /// What the first prompt reads, where it is text.
    prompt_text: String,
    record: CallRecord,
    _place: OpenPlace,
}

impl Generation {
    pub(super) fn new(admitted: Admitted, record: CallRecord) -> Self {
        let Admitted { sequences, prompt_tokens, prompt_text, reasons, place } = admitted;
        let choices = sequences.len();
        let sequences = sequences
            .into_iter()
            .map(|sequence| unfold(sequence, async |mut sequence| Some((sequence.next().await?, sequence))).boxed())
            .collect();
        let usage = Usage { prompt_tokens, reasoning_tokens: reasons.then_some(0), ..Usage::default() };
        Self { sequences, choices, open: choices, usage, prompt_text, record, _place: place }
    }

    /// What comes next from any choice; `None` when all have ended. After an error nothing follows.
    pub(crate) async fn next(&mut self) -> Option<Result<Delta, ApiError>> {
        match self.sequences.next().await? {
            Ok(delta) => {
                self.usage.completion_tokens += delta.token_ids.len();
                self.usage.cached_tokens += delta.cached_tokens as usize;
                if let Some(tokens) = &mut self.usage.reasoning_tokens {
                    *tokens += delta.reasoning_tokens;
                }
                self.record.progress(&delta);
                if delta.finish.is_some() {
                    self.open -= 1;
                }
                if self.open == 0 {
                    self.record.succeed();
                }
                Some(Ok(delta))
            }
            Err(error) => {
                self.sequences.clear();
                Some(Err(self.record.fail(error)))
            }
        }
    }

    /// What the first prompt reads; empty where it came as tokens.
    pub(crate) fn prompt_text(&self) -> &str {
        &self.prompt_text
    }

    /// Choices of the call.
    pub(crate) fn choices(&self) -> usize {
        self.choices
    }

    /// Whether every choice has ended.
    pub(crate) fn is_done(&self) -> bool {
        self.open == 0
    }

    /// Tokens so far.
    pub(crate) fn usage(&self) -> Usage {
        self.usage
    }
}
