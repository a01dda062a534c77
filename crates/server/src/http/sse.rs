//! Answers from a generation: gathered whole, or streamed as server-sent events.

use std::collections::VecDeque;
use std::convert::Infallible;

use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::stream::unfold;

use crate::api_error::ApiError;
use crate::generate::{Delta, Generation, Usage};
use crate::limits::STREAM_KEEP_ALIVE;
use crate::openai::{Answer, StreamOptions, UsageBody};

/// Writes the chunks of one kind of answer as JSON.
pub(crate) trait Chunks: Send + 'static {
    /// How usage is reported.
    fn options(&self) -> StreamOptions;

    /// The chunks for what is new; `usage` goes into each of them.
    fn delta(&mut self, delta: Delta, usage: Option<Option<UsageBody>>) -> Vec<String>;

    /// Whether each event goes by the name in its `type`.
    const ARE_NAMED: bool = false;

    /// What closes the stream.
    fn end(&mut self, usage: Usage) -> Vec<String>;
}

/// Waits for every choice to end.
pub(crate) async fn gather(generation: &mut Generation) -> Result<Vec<Answer>, ApiError> {
    let mut answers: Vec<Answer> = (0..generation.choices()).map(|_| Answer::default()).collect();
    while let Some(delta) = generation.next().await {
        let delta = delta?;
        let answer = &mut answers[delta.index as usize];
        answer.text.push_str(&delta.text);
        answer.token_ids.extend(delta.token_ids);
        answer.pieces.extend(delta.pieces);
        answer.finish = delta.finish;
        answer.prompt = answer.prompt.take().or(delta.prompt);
    }
    Ok(answers)
}

/// Streams chunks, then `[DONE]`. What fails before the first chunk is an error response; what fails later is an error
/// event, after which the stream ends without `[DONE]`.
pub(crate) async fn stream<C: Chunks>(generation: Generation, chunks: C) -> Result<Response, ApiError> {
    let mut state = Streaming { generation, chunks, waiting: VecDeque::new(), ended: false };
    while state.waiting.is_empty() {
        state.advance().await?;
    }
    let events = unfold(state, async |mut state| {
        loop {
            if let Some(data) = state.waiting.pop_front() {
                return Some((Ok::<_, Infallible>(event::<C>(data)), state));
            }
            if state.ended {
                return None;
            }
            if let Err(error) = state.advance().await {
                state.waiting.push_back(error.body().to_string());
                state.ended = true;
            }
        }
    });
    let keep_alive = KeepAlive::new().interval(STREAM_KEEP_ALIVE);
    Ok(Sse::new(events).keep_alive(keep_alive).into_response())
}

/// One event; a name is the first value of its data.
fn event<C: Chunks>(data: String) -> Event {
    let name = data.strip_prefix("{\"type\":\"").and_then(|rest| rest.split('"').next());
    match name.filter(|_| C::ARE_NAMED) {
        Some(name) => Event::default().event(name).data(&data),
        None => Event::default().data(data),
    }
}

/// What closes a stream of chunks: the usage where it is asked for, then the mark that clients wait for.
pub(crate) fn chunks_end(usage: Option<String>) -> Vec<String> {
    usage.into_iter().chain(std::iter::once("[DONE]".to_owned())).collect()
}

struct Streaming<C> {
    generation: Generation,
    chunks: C,
    /// Chunks not sent yet.
    waiting: VecDeque<String>,
    /// Nothing follows what waits.
    ended: bool,
}

impl<C: Chunks> Streaming<C> {
    /// Reads the next piece of any choice and writes its chunks.
    async fn advance(&mut self) -> Result<(), ApiError> {
        let options = self.chunks.options();
        let Some(delta) = self.generation.next().await.transpose()? else {
            self.waiting.extend(self.chunks.end(self.generation.usage()));
            self.ended = true;
            return Ok(());
        };
        // Text that is held back makes no chunk, unless log-probabilities must not be late.
        if delta.is_silent() {
            return Ok(());
        }
        let usage = if options.continuous_usage {
            Some(Some(self.generation.usage().into()))
        } else {
            options.include_usage.then_some(None)
        };
        self.waiting.extend(self.chunks.delta(delta, usage));
        Ok(())
    }
}
