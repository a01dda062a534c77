//! `POST /v1/completions`.

use axum::Json;
use axum::body::{Body, Bytes};
use axum::extract::{Extension, State};
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};

use super::front::{RequestId, complete_call, read_body};
use super::sse::{Chunks, chunks_end, gather, stream};
use crate::api_error::ApiError;
use crate::app::{App, unix_s};
use crate::generate::{CallRecord, Delta, Usage, admit};
use crate::openai::{
    Answer, CompletionBody, CompletionChoice, CompletionChunk, CompletionLogprobs, CompletionRequest, Reported,
    StopValue, StreamOptions, TokenNames, UsageBody, finish_reason, prompt_logprobs,
};

/// Answers a completion, streamed or whole.
pub(crate) async fn completions(
    State(app): State<App>,
    Extension(id): Extension<RequestId>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ApiError> {
    let mut record = CallRecord::new(&app);
    let read = async { read(&app, id, &headers, &read_body(&app, body).await?) };
    let request = match read.await {
        Ok(request) => request,
        Err(error) => return Err(record.refuse(error)),
    };
    let call_id = request.call.id.clone();
    let reported = request.reported;
    let mut generation = admit(&app, request.call, record).await?;
    let writer = Writer { id: call_id, created: unix_s(), fingerprint: app.fingerprint(), app, reported };
    if let Some(options) = request.stream {
        return stream(generation, writer.with(options)).await;
    }
    let answers = gather(&mut generation).await?;
    let choices = answers.into_iter().enumerate().map(|(index, answer)| {
        let index = u32::try_from(index).expect("choices are limited");
        writer.choice(index, answer)
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
    reported: Reported,
}

impl Writer {
    fn with(self, options: StreamOptions) -> Streamed {
        Streamed { writer: self, options }
    }

    fn names(&self, top_count: Option<u32>) -> TokenNames<'_> {
        TokenNames {
            tokenizer: &self.app.options.tokenizer,
            as_ids: self.reported.tokens_as_ids,
            top_count: top_count.unwrap_or(0) as usize,
        }
    }

    fn choice(&self, index: u32, answer: Answer) -> CompletionChoice {
        let Reported { logprobs, prompt_logprobs: of_prompt, token_ids, .. } = self.reported;
        let prompt = answer.prompt.as_deref();
        CompletionChoice {
            index,
            text: answer.text,
            logprobs: logprobs.map(|top| CompletionLogprobs::new(&answer.pieces, self.names(Some(top)))),
            finish_reason: answer.finish.as_ref().map(finish_reason),
            stop_reason: StopValue::of(answer.finish.as_ref()),
            token_ids: token_ids.then_some(answer.token_ids),
            prompt_logprobs: prompt
                .filter(|_| of_prompt.is_some())
                .map(|prompt| prompt_logprobs(prompt, self.names(of_prompt))),
            prompt_token_ids: prompt.filter(|_| token_ids).map(|prompt| prompt.token_ids.clone()),
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
        let index = delta.index;
        let choice = self.writer.choice(index, delta.into());
        vec![self.chunk(vec![choice], usage)]
    }

    fn end(&mut self, usage: Usage) -> Vec<String> {
        let wanted = self.options.include_usage;
        chunks_end(wanted.then(|| self.chunk(Vec::new(), Some(Some(usage.into())))))
    }
}
