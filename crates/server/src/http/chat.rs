//! `POST /v1/chat/completions`.

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
    Answer, ChatBody, ChatChoice, ChatChunk, ChatChunkChoice, ChatDelta, ChatLogprobs, ChatMessage, ChatRequest,
    StopValue, StreamOptions, UsageBody, finish_reason,
};

/// Answers a conversation, streamed or whole.
pub(crate) async fn chat_completions(
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
        let begun = vec![false; generation.choices()];
        return stream(generation, Streamed { writer, options, begun }).await;
    }
    let answers = gather(&mut generation).await?;
    let choices = answers.into_iter().enumerate().map(|(index, answer)| writer.choice(index, answer));
    let body = ChatBody {
        id: &writer.id,
        object: "chat.completion",
        created: writer.created,
        model: &writer.app.options.model_name,
        choices: choices.collect(),
        service_tier: None,
        system_fingerprint: writer.fingerprint.clone(),
        usage: UsageBody::from(generation.usage()),
        prompt_logprobs: None,
        prompt_token_ids: None,
    };
    Ok(Json(body).into_response())
}

fn read(app: &App, id: RequestId, headers: &HeaderMap, body: &Bytes) -> Result<ChatRequest, ApiError> {
    let mut request = ChatRequest::from_body(body)?;
    let named = (request.model.as_deref(), request.request_id.take());
    complete_call(app, &mut request.call, "chatcmpl", (id, headers), named)?;
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
    fn logprobs(&self, pieces: &[TokenPiece]) -> Option<ChatLogprobs> {
        self.logprobs.then(|| ChatLogprobs::new(pieces, &self.app.options.tokenizer))
    }

    fn choice(&self, index: usize, answer: Answer) -> ChatChoice {
        ChatChoice {
            index: u32::try_from(index).expect("choices are limited"),
            message: ChatMessage::assistant(answer.text),
            logprobs: self.logprobs(&answer.pieces),
            finish_reason: answer.finish.as_ref().map(finish_reason),
            stop_reason: StopValue::of(answer.finish.as_ref()),
            token_ids: None,
        }
    }
}

struct Streamed {
    writer: Writer,
    options: StreamOptions,
    /// Choices whose role was sent.
    begun: Vec<bool>,
}

impl Streamed {
    fn chunk(&self, choices: Vec<ChatChunkChoice>, usage: Option<Option<UsageBody>>) -> String {
        let chunk = ChatChunk {
            id: &self.writer.id,
            object: "chat.completion.chunk",
            created: self.writer.created,
            model: &self.writer.app.options.model_name,
            choices,
            usage,
            system_fingerprint: &self.writer.fingerprint,
        };
        serde_json::to_string(&chunk).expect("chunks have string keys only")
    }
}

fn choice(index: u32, delta: ChatDelta, logprobs: Option<ChatLogprobs>, finish: Option<&Finish>) -> ChatChunkChoice {
    ChatChunkChoice {
        index,
        delta,
        logprobs,
        finish_reason: finish.map(finish_reason),
        stop_reason: StopValue::of(finish),
        token_ids: None,
    }
}

impl Chunks for Streamed {
    fn options(&self) -> StreamOptions {
        self.options
    }

    fn delta(&mut self, delta: Delta, usage: Option<Option<UsageBody>>) -> Vec<String> {
        let mut chunks = Vec::with_capacity(2);
        // A choice begins by saying who speaks.
        if !std::mem::replace(&mut self.begun[delta.index as usize], true) {
            let role = ChatDelta { role: Some("assistant"), content: Some(String::new()) };
            chunks.push(self.chunk(vec![choice(delta.index, role, None, None)], usage));
        }
        let content = ChatDelta { role: None, content: Some(delta.text) };
        let logprobs = self.writer.logprobs(&delta.pieces);
        chunks.push(self.chunk(vec![choice(delta.index, content, logprobs, delta.finish.as_ref())], usage));
        chunks
    }

    fn usage(&mut self, usage: Usage) -> String {
        self.chunk(Vec::new(), Some(Some(usage.into())))
    }
}
