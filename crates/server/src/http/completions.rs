//! `POST /v1/completions`.

use axum::Json;
use axum::body::{Body, Bytes};
use axum::extract::{Extension, State};
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};

use super::front::{RequestId, complete_call, read_body};
use super::sse::{Chunks, gather, stream};
use crate::api_error::ApiError;
use crate::app::{App, unix_s};
use crate::generate::{CallRecord, Delta, Finish, TokenPiece, Usage, admit};
use crate::openai::{
    CompletionBody, CompletionChoice, CompletionChunk, CompletionLogprobs, CompletionRequest, StopValue, StreamOptions,
    UsageBody, finish_reason,
};

/// Answers a completion, streamed or whole.
pub(crate) async fn completions(
    State(app): State<App>,
    Extension(id): Extension<RequestId>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ApiError> {
    let mut record = CallRecord::new(&app);
    let read = async { read(&app, id, &headers, &read_body(body).await?) };
    let request = match read.await {
        Ok(request) => request,
        Err(error) => return Err(record.refuse(error)),
    };
    let call_id = request.call.id.clone();
    let logprobs = request.call.sampling.logprobs.is_some();
    let mut generation = admit(&app, request.call, record).await?;
    let writer = Writer { id: call_id, created: unix_s(), fingerprint: app.fingerprint(), app, logprobs };
    if let Some(options) = request.stream {
        return stream(generation, writer.with(options)).await;
    }
    let answers = gather(&mut generation).await?;
    let choices = answers.into_iter().enumerate().map(|(index, answer)| {
        let index = u32::try_from(index).expect("choices are limited");
        writer.choice(index, answer.text, &answer.pieces, answer.finish.as_ref())
    });
    let body = CompletionBody {
        id: &writer.id,
        object: "text_completion",
        created: writer.created,
        model: &writer.app.options.model_name,
        choices: choices.collect(),
        service_tier: None,
        system_fingerprint: writer.fingerprint.clone(),
        usage: UsageBody::from(generation.usage()),
    };
    Ok(Json(body).into_response())
}

fn read(app: &App, id: RequestId, headers: &HeaderMap, body: &Bytes) -> Result<CompletionRequest, ApiError> {
    let mut request = CompletionRequest::from_body(body)?;
    let named = (request.model.as_deref(), request.request_id.take());
    complete_call(app, &mut request.call, "cmpl", (id, headers), named)?;
    Ok(request)
}

/// What all chunks of one answer share.
struct Writer {
    app: App,
    id: String,
    created: u64,
    fingerprint: String,
    logprobs: bool,
}

impl Writer {
    fn with(self, options: StreamOptions) -> Streamed {
        Streamed { writer: self, options }
    }

    fn choice(&self, index: u32, text: String, pieces: &[TokenPiece], finish: Option<&Finish>) -> CompletionChoice {
        CompletionChoice {
            index,
            text,
            logprobs: self.logprobs.then(|| CompletionLogprobs::new(pieces, &self.app.options.tokenizer)),
            finish_reason: finish.map(finish_reason),
            stop_reason: StopValue::of(finish),
            token_ids: None,
            prompt_logprobs: None,
            prompt_token_ids: None,
        }
    }
}

struct Streamed {
    writer: Writer,
    options: StreamOptions,
}

impl Streamed {
    fn chunk(&self, choices: Vec<CompletionChoice>, usage: Option<Option<UsageBody>>) -> String {
        let chunk = CompletionChunk {
            id: &self.writer.id,
            object: "text_completion",
            created: self.writer.created,
            model: &self.writer.app.options.model_name,
            choices,
            usage,
            system_fingerprint: &self.writer.fingerprint,
        };
        serde_json::to_string(&chunk).expect("chunks have string keys only")
    }
}

impl Chunks for Streamed {
    fn options(&self) -> StreamOptions {
        self.options
    }

    fn delta(&mut self, delta: Delta, usage: Option<Option<UsageBody>>) -> Vec<String> {
        let choice = self.writer.choice(delta.index, delta.text, &delta.pieces, delta.finish.as_ref());
        vec![self.chunk(vec![choice], usage)]
    }

    fn usage(&mut self, usage: Usage) -> String {
        self.chunk(Vec::new(), Some(Some(usage.into())))
    }
}
