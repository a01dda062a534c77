//! `POST /v1/responses`: a chat under the newer names. Nothing is stored.

use axum::Json;
use axum::body::{Body, Bytes};
use axum::extract::{Extension, State};
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use serde_json::{Map, Value, json};

use super::chat_reader::ReaderSetup;
use super::front::{RequestId, complete_call, read_body};
use super::responses_stream::Streamed;
use super::sse::{gather, stream};
use crate::api_error::ApiError;
use crate::app::{App, unix_s};
use crate::generate::{CallRecord, FinishCause, Usage, admit};
use crate::openai::{ResponsesRequest, Said, ToolCallBody, UsageBody};

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
        return stream(generation, Streamed::new(writer, reader)).await;
    }
    let answers = gather(&mut generation).await?;
    let answer = answers.into_iter().next().unwrap_or_default();
    let items = items(reader.read(&answer.text, true));
    let cut = answer.finish.is_some_and(|finish| finish.cause == FinishCause::Length);
    Ok(Json(writer.body(&items, cut, Some(generation.usage()))).into_response())
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
    let setup = ReaderSetup::prepare(app, &chat.tools, true, &mut chat.call);
    let setup = setup.map_err(ResponsesRequest::in_its_words)?;
    Ok((request, setup))
}

/// One item of the output.
#[derive(Debug, Clone)]
pub(super) enum Item {
    Reasoning(String),
    Message(String),
    Call(ToolCallBody),
}

/// The items of a whole answer.
fn items(said: Said) -> Vec<Item> {
    let mut items: Vec<Item> = said.reasoning.into_iter().map(Item::Reasoning).collect();
    if !said.content.is_empty() || said.calls.is_empty() {
        items.push(Item::Message(said.content));
    }
    items.extend(said.calls.into_iter().map(Item::Call));
    items
}

/// What all parts of one response share.
pub(super) struct Writer {
    id: String,
    created: u64,
    model: String,
    repeated: Map<String, Value>,
}

impl Writer {
    /// The whole response; without usage it has only begun.
    pub(super) fn body(&self, items: &[Item], cut: bool, usage: Option<Usage>) -> Value {
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
            "output": items.iter().map(|item| self.item(item, status)).collect::<Vec<_>>(),
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

    /// An item as it is now.
    pub(super) fn item(&self, item: &Item, status: &str) -> Value {
        let id = self.item_id(item);
        match item {
            Item::Reasoning(text) => {
                let content = json!([{"type": "reasoning_text", "text": text}]);
                json!({"type": "reasoning", "id": id, "summary": [], "content": content, "status": status})
            }
            Item::Message(text) => json!({
                "type": "message", "id": id, "role": "assistant", "status": status, "content": [Self::part(text)],
            }),
            Item::Call(call) => json!({
                "type": "function_call", "id": id, "call_id": call.id, "name": call.name(),
                "arguments": call.arguments(), "status": status,
            }),
        }
    }

    /// An item that has just begun: what it will hold comes in later events.
    pub(super) fn begun(&self, item: &Item) -> Value {
        let mut shown = self.item(item, "in_progress");
        match item {
            Item::Reasoning(_) | Item::Message(_) => shown["content"] = json!([]),
            Item::Call(_) => shown["arguments"] = json!(""),
        }
        shown
    }

    /// An item's id.
    pub(super) fn item_id(&self, item: &Item) -> String {
        match item {
            Item::Reasoning(_) => format!("rs-{}", self.id),
            Item::Message(_) => format!("msg-{}", self.id),
            Item::Call(call) => format!("fc-{}", call.id),
        }
    }

    /// Text of a message.
    pub(super) fn part(text: &str) -> Value {
        json!({"type": "output_text", "text": text, "annotations": [], "logprobs": []})
    }
}
