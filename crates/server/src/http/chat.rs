//! `POST /v1/chat/completions`.

use axum::Json;
use axum::body::{Body, Bytes};
use axum::extract::{Extension, State};
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};

use super::chat_reader::{ChoiceReader, ReaderSetup};
use super::front::{RequestId, complete_call, read_body};
use super::sse::{Chunks, chunks_end, gather, stream};
use crate::api_error::ApiError;
use crate::app::{App, unix_s};
use crate::generate::{CallRecord, Delta, TokenPiece, Usage, admit};
use crate::openai::{
    Answer, ChatBody, ChatChoice, ChatChunk, ChatChunkChoice, ChatDelta, ChatLogprobs, ChatMessage, ChatRequest,
    Reported, Said, StopValue, StreamOptions, TokenNames, UsageBody, prompt_logprobs,
};

/// Answers a conversation, streamed or whole.
pub(crate) async fn chat_completions(
    State(app): State<App>,
    Extension(id): Extension<RequestId>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ApiError> {
    let mut record = CallRecord::new(&app);
    let read = async { read(&app, id, &headers, &read_body(&app, body).await?) };
    let (request, setup) = match read.await {
        Ok(request) => request,
        Err(error) => return Err(record.refuse(error)),
    };
    let ChatRequest { stream: streamed, reported, call, .. } = request;
    let call_id = call.id.clone();
    let mut generation = admit(&app, call, record).await?;
    let readers = (0..generation.choices()).map(|_| setup.reader(generation.prompt_text())).collect();
    let writer = Writer { id: call_id, created: unix_s(), fingerprint: app.fingerprint(), app, reported };
    if let Some(options) = streamed {
        let begun = vec![false; generation.choices()];
        return stream(generation, Streamed { writer, options, begun, readers }).await;
    }
    let answers = gather(&mut generation).await?;
    let prompt = answers.first().and_then(|answer| answer.prompt.clone());
    let choices = answers
        .into_iter()
        .zip(readers)
        .enumerate()
        .map(|(index, (answer, reader))| writer.choice(index, answer, reader));
    let body = ChatBody {
        id: &writer.id,
        object: "chat.completion",
        created: writer.created,
        model: &writer.app.options.model_name,
        choices: choices.collect(),
        service_tier: None,
        system_fingerprint: writer.fingerprint.clone(),
        usage: UsageBody::from(generation.usage()),
        prompt_logprobs: prompt
            .as_ref()
            .filter(|_| reported.prompt_logprobs.is_some())
            .map(|prompt| prompt_logprobs(prompt, writer.names(reported.prompt_logprobs))),
        prompt_token_ids: prompt.filter(|_| reported.token_ids).map(|prompt| prompt.token_ids),
    };
    Ok(Json(body).into_response())
}

fn read(app: &App, id: RequestId, headers: &HeaderMap, body: &Bytes) -> Result<(ChatRequest, ReaderSetup), ApiError> {
    let mut request = ChatRequest::from_body(body)?;
    let named = (request.model.as_deref(), request.request_id.take());
    complete_call(app, &mut request.call, "chatcmpl", (id, headers), named)?;
    let setup = ReaderSetup::prepare(app, &request.tools, request.include_reasoning, &mut request.call)?;
    Ok((request, setup))
}

/// What all chunks of one answer share.
struct Writer {
    app: App,
    id: String,
    created: u64,
    fingerprint: String,
    reported: Reported,
}

impl Writer {
    fn names(&self, top_count: Option<u32>) -> TokenNames<'_> {
        TokenNames {
            tokenizer: &self.app.options.tokenizer,
            as_ids: self.reported.tokens_as_ids,
            top_count: top_count.unwrap_or(0) as usize,
        }
    }

    fn logprobs(&self, pieces: &[TokenPiece]) -> Option<ChatLogprobs> {
        self.reported.logprobs.map(|top| ChatLogprobs::new(pieces, self.names(Some(top))))
    }

    fn choice(&self, index: usize, answer: Answer, mut reader: ChoiceReader) -> ChatChoice {
        let said = reader.read(&answer.text, true);
        ChatChoice {
            index: u32::try_from(index).expect("choices are limited"),
            logprobs: self.logprobs(&answer.pieces),
            finish_reason: answer.finish.as_ref().map(|finish| reader.finish_reason(finish)),
            message: ChatMessage::assistant(said),
            stop_reason: StopValue::of(answer.finish.as_ref()),
            token_ids: self.reported.token_ids.then_some(answer.token_ids),
        }
    }
}

struct Streamed {
    writer: Writer,
    options: StreamOptions,
    /// Choices whose role was sent.
    begun: Vec<bool>,
    readers: Vec<ChoiceReader>,
}

impl Streamed {
    fn chunk(
        &self,
        choices: Vec<ChatChunkChoice>,
        usage: Option<Option<UsageBody>>,
        prompt_token_ids: Option<Vec<u32>>,
    ) -> String {
        let chunk = ChatChunk {
            id: &self.writer.id,
            object: "chat.completion.chunk",
            created: self.writer.created,
            model: &self.writer.app.options.model_name,
            choices,
            usage,
            system_fingerprint: &self.writer.fingerprint,
            prompt_token_ids,
        };
        serde_json::to_string(&chunk).expect("chunks have string keys only")
    }
}

fn choice(index: u32, delta: ChatDelta) -> ChatChunkChoice {
    ChatChunkChoice { index, delta, logprobs: None, finish_reason: None, stop_reason: None, token_ids: None }
}

/// A piece of what is said. Content stands even when it is empty, unless something else is said.
fn said(said: Said) -> ChatDelta {
    let Said { content, reasoning, calls } = said;
    ChatDelta {
        role: None,
        content: (!content.is_empty() || (reasoning.is_none() && calls.is_empty())).then_some(content),
        reasoning_content: reasoning.clone(),
        reasoning,
        tool_calls: calls,
    }
}

impl Chunks for Streamed {
    fn options(&self) -> StreamOptions {
        self.options
    }

    fn delta(&mut self, delta: Delta, usage: Option<Option<UsageBody>>) -> Vec<String> {
        let mut chunks = Vec::with_capacity(2);
        let Delta { index, text, token_ids, pieces, finish, prompt, .. } = delta;
        let returns_ids = self.writer.reported.token_ids;
        // A choice begins by saying who speaks.
        if !std::mem::replace(&mut self.begun[index as usize], true) {
            let role = ChatDelta { role: Some("assistant"), content: Some(String::new()), ..ChatDelta::default() };
            let prompt_token_ids = prompt.filter(|_| returns_ids).map(|prompt| prompt.token_ids);
            chunks.push(self.chunk(vec![choice(index, role)], usage, prompt_token_ids));
        }
        let reader = &mut self.readers[index as usize];
        let read = reader.read(&text, finish.is_some());
        let held_back = !text.is_empty() && read.is_empty();
        let finish_reason = finish.as_ref().map(|finish| reader.finish_reason(finish));
        if held_back && pieces.is_empty() && finish.is_none() && !returns_ids {
            return chunks;
        }
        let said = ChatChunkChoice {
            logprobs: self.writer.logprobs(&pieces),
            finish_reason,
            stop_reason: StopValue::of(finish.as_ref()),
            token_ids: returns_ids.then_some(token_ids),
            ..choice(index, said(read))
        };
        chunks.push(self.chunk(vec![said], usage, None));
        chunks
    }

    fn end(&mut self, usage: Usage) -> Vec<String> {
        let wanted = self.options.include_usage;
        chunks_end(wanted.then(|| self.chunk(Vec::new(), Some(Some(usage.into())), None)))
    }
}
