//! `POST /v1/responses`: a chat under the newer names. Nothing is stored.

use axum::Json;
use axum::body::{Body, Bytes};
use axum::extract::{Extension, State};
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use serde_json::{Map, Value, json};

use super::chat_reader::{ChoiceReader, ReaderSetup};
use super::front::{RequestId, complete_call, read_body};
use super::sse::{Chunks, gather, stream};
use crate::api_error::ApiError;
use crate::app::{App, unix_s};
use crate::generate::{CallRecord, Delta, FinishCause, Usage, admit};
use crate::openai::{ResponsesRequest, Said, StreamOptions, UsageBody};

/// Answers, streamed or whole.
pub(crate) async fn responses(
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
    let ResponsesRequest { chat, is_streamed, repeated } = request;
    let call_id = chat.call.id.clone();
    let mut generation = admit(&app, chat.call, record).await?;
    let mut reader = setup.reader(generation.prompt_text());
    let writer = Writer { id: call_id, created: unix_s(), model: app.options.model_name.clone(), repeated };
    if is_streamed {
        let streamed = Streamed { writer, reader, said: Said::default(), cut: false, number: 0, open: false };
        return stream(generation, streamed).await;
    }
    let answers = gather(&mut generation).await?;
    let answer = answers.into_iter().next().unwrap_or_default();
    let said = reader.read(&answer.text, true);
    let cut = answer.finish.is_some_and(|finish| finish.cause == FinishCause::Length);
    Ok(Json(writer.body(&said, cut, Some(generation.usage()))).into_response())
}

fn read(
    app: &App,
    id: RequestId,
    headers: &HeaderMap,
    body: &Bytes,
) -> Result<(ResponsesRequest, ReaderSetup), ApiError> {
    let mut request = ResponsesRequest::from_body(body)?;
    let chat = &mut request.chat;
    let named = (chat.model.as_deref(), chat.request_id.take());
    complete_call(app, &mut chat.call, "resp", (id, headers), named)?;
    let setup = ReaderSetup::new(app, &chat.tools, true)?;
    setup.prepare(&mut chat.call);
    Ok((request, setup))
}

struct Writer {
    id: String,
    created: u64,
    model: String,
    repeated: Map<String, Value>,
}

impl Writer {
    /// The whole response; without usage it has only begun.
    fn body(&self, said: &Said, cut: bool, usage: Option<Usage>) -> Value {
        let status = match (&usage, cut) {
            (None, _) => "in_progress",
            (Some(_), true) => "incomplete",
            (Some(_), false) => "completed",
        };
        let mut body = json!({
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "model": self.model,
            "status": status,
            "error": null,
            "incomplete_details": cut.then(|| json!({"reason": "max_output_tokens"})),
            "output": if usage.is_some() { self.output(said, status) } else { Vec::new() },
            "parallel_tool_calls": true,
            "previous_response_id": null,
            "store": false,
            "background": false,
            "truncation": "disabled",
            "usage": usage.map(|usage| UsageBody::from(usage).as_response()),
        });
        if let Value::Object(fields) = &mut body {
            fields.extend(self.repeated.clone());
        }
        body
    }

    fn output(&self, said: &Said, status: &str) -> Vec<Value> {
        let mut output = Vec::new();
        if let Some(reasoning) = &said.reasoning {
            let content = json!([{"type": "reasoning_text", "text": reasoning}]);
            output.push(json!({
                "type": "reasoning", "id": self.item("rs"), "summary": [], "content": content, "status": status,
            }));
        }
        if !said.content.is_empty() || said.calls.is_empty() {
            output.push(self.message(&said.content, status));
        }
        for call in &said.calls {
            output.push(json!({
                "type": "function_call", "id": format!("fc-{}", call.id), "call_id": call.id, "name": call.name(),
                "arguments": call.arguments(), "status": status,
            }));
        }
        output
    }

    fn message(&self, text: &str, status: &str) -> Value {
        json!({
            "type": "message", "id": self.item("msg"), "role": "assistant", "status": status, "content": [part(text)],
        })
    }

    fn item(&self, prefix: &str) -> String {
        format!("{prefix}-{}", self.id)
    }
}

fn part(text: &str) -> Value {
    json!({"type": "output_text", "text": text, "annotations": [], "logprobs": []})
}

/// A response as events. Content is streamed as it comes; reasoning and calls are in the last event, whole.
struct Streamed {
    writer: Writer,
    reader: ChoiceReader,
    said: Said,
    cut: bool,
    /// Of the next event.
    number: u64,
    /// Whether the message was begun.
    open: bool,
}

impl Streamed {
    fn event(&mut self, kind: &str, fields: Value) -> String {
        let mut event = json!({"type": kind, "sequence_number": self.number});
        self.number += 1;
        if let (Value::Object(event), Value::Object(fields)) = (&mut event, fields) {
            event.extend(fields);
        }
        event.to_string()
    }

    fn of_message(&mut self, kind: &str, fields: Value) -> String {
        let mut all = json!({"item_id": self.writer.item("msg"), "output_index": 0, "content_index": 0});
        if let (Value::Object(all), Value::Object(fields)) = (&mut all, fields) {
            all.extend(fields);
        }
        self.event(kind, all)
    }

    fn begin(&mut self) -> Vec<String> {
        let body = self.writer.body(&Said::default(), false, None);
        vec![
            self.event("response.created", json!({"response": body})),
            self.event("response.in_progress", json!({"response": body})),
        ]
    }

    fn begin_message(&mut self) -> Vec<String> {
        self.open = true;
        let mut item = self.writer.message("", "in_progress");
        item["content"] = json!([]);
        vec![
            self.event("response.output_item.added", json!({"output_index": 0, "item": item})),
            self.of_message("response.content_part.added", json!({"part": part("")})),
        ]
    }
}

impl Chunks for Streamed {
    const ARE_NAMED: bool = true;

    fn options(&self) -> StreamOptions {
        StreamOptions::default()
    }

    fn delta(&mut self, delta: Delta, _usage: Option<Option<UsageBody>>) -> Vec<String> {
        let mut events = if self.number == 0 { self.begin() } else { Vec::new() };
        self.cut |= delta.finish.as_ref().is_some_and(|finish| finish.cause == FinishCause::Length);
        let read = self.reader.read(&delta.text, delta.finish.is_some());
        if let Some(reasoning) = read.reasoning {
            self.said.reasoning.get_or_insert_default().push_str(&reasoning);
        }
        self.said.calls.extend(read.calls);
        if !read.content.is_empty() {
            if !self.open {
                events.extend(self.begin_message());
            }
            self.said.content.push_str(&read.content);
            events.push(self.of_message("response.output_text.delta", json!({"delta": read.content, "logprobs": []})));
        }
        events
    }

    fn end(&mut self, usage: Usage) -> Vec<String> {
        let mut events = if self.number == 0 { self.begin() } else { Vec::new() };
        let text = self.said.content.clone();
        if self.open {
            let status = if self.cut { "incomplete" } else { "completed" };
            let item = self.writer.message(&text, status);
            events.push(self.of_message("response.output_text.done", json!({"text": text, "logprobs": []})));
            events.push(self.of_message("response.content_part.done", json!({"part": part(&text)})));
            events.push(self.event("response.output_item.done", json!({"output_index": 0, "item": item})));
        }
        let body = self.writer.body(&self.said, self.cut, Some(usage));
        let kind = if self.cut { "response.incomplete" } else { "response.completed" };
        events.push(self.event(kind, json!({"response": body})));
        events
    }
}
