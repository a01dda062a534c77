//! All choices of one call, merged as they come.

use futures_util::StreamExt;
use futures_util::stream::{BoxStream, SelectAll, unfold};

use super::record::CallRecord;
use super::sequence::{Delta, Sequence};
use crate::api_error::ApiError;

/// Tokens a call used so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    /// Each prompt once, however many choices it has.
    pub(crate) prompt_tokens: usize,
    /// Over all choices.
    pub(crate) completion_tokens: usize,
}

/// The running choices of one call. Dropping it aborts them and counts the call as aborted.
pub(crate) struct Generation {
    sequences: SelectAll<BoxStream<'static, Result<Delta, ApiError>>>,
    choices: usize,
    open: usize,
    usage: Usage,
    record: CallRecord,
}

impl Generation {
    pub(crate) fn new(sequences: Vec<Sequence>, prompt_tokens: usize, record: CallRecord) -> Self {
        let choices = sequences.len();
        let sequences = sequences
            .into_iter()
            .map(|sequence| unfold(sequence, async |mut sequence| Some((sequence.next().await?, sequence))).boxed())
            .collect();
        let usage = Usage { prompt_tokens, completion_tokens: 0 };
        Self { sequences, choices, open: choices, usage, record }
    }

    /// What comes next from any choice; `None` when all have ended. After an error nothing follows.
    pub(crate) async fn next(&mut self) -> Option<Result<Delta, ApiError>> {
        match self.sequences.next().await? {
            Ok(delta) => {
                self.usage.completion_tokens += delta.token_ids.len();
                self.record.progress(&delta, self.usage.prompt_tokens);
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
