//! A response as events: its items as they come, each with its own beginning and end.

use serde_json::{Value, json};

use super::chat_reader::ChoiceReader;
use super::responses::{Item, Writer};
use super::sse::Chunks;
use crate::generate::{Delta, FinishCause, Usage};
use crate::openai::{StreamOptions, UsageBody};

/// Content and reasoning are streamed as they come, calls whole.
pub(super) struct Streamed {
    writer: Writer,
    reader: ChoiceReader,
    /// In the order in which they began; that is their place in the output.
    items: Vec<Item>,
    cut: bool,
    /// Whether reasoning goes on.
    thinking: bool,
    /// Of the next event.
    number: u64,
}

impl Streamed {
    pub(super) fn new(writer: Writer, reader: ChoiceReader) -> Self {
        Self { writer, reader, items: Vec::new(), cut: false, thinking: false, number: 0 }
    }

    fn event(&mut self, kind: &str, fields: Value) -> String {
        let mut event = json!({"type": kind, "sequence_number": self.number});
        self.number += 1;
        if let (Value::Object(event), Value::Object(fields)) = (&mut event, fields) {
            event.extend(fields);
        }
        event.to_string()
    }

    /// An event about the item at `index`.
    fn about(&mut self, index: usize, kind: &str, fields: Value) -> String {
        let mut all = json!({"item_id": self.writer.item_id(&self.items[index]), "output_index": index});
        if !matches!(self.items[index], Item::Call(_)) {
            all["content_index"] = json!(0);
        }
        if let (Value::Object(all), Value::Object(fields)) = (&mut all, fields) {
            all.extend(fields);
        }
        self.event(kind, all)
    }

    fn begin(&mut self) -> Vec<String> {
        let body = self.writer.body(&[], false, None);
        vec![
            self.event("response.created", json!({"response": body})),
            self.event("response.in_progress", json!({"response": body})),
        ]
    }

    fn begin_item(&mut self, item: Item) -> String {
        let shown = self.writer.begun(&item);
        self.items.push(item);
        self.event("response.output_item.added", json!({"output_index": self.items.len() - 1, "item": shown}))
    }

    fn end_item(&mut self, index: usize) -> String {
        let status = if self.cut { "incomplete" } else { "completed" };
        let item = self.writer.item(&self.items[index], status);
        self.event("response.output_item.done", json!({"output_index": index, "item": item}))
    }

    /// Adds reasoning; it comes first, if at all.
    fn think(&mut self, text: &str, events: &mut Vec<String>) {
        if !std::mem::replace(&mut self.thinking, true) {
            events.push(self.begin_item(Item::Reasoning(String::new())));
        }
        if let Some(Item::Reasoning(all)) = self.items.first_mut() {
            all.push_str(text);
        }
        events.push(self.about(0, "response.reasoning_text.delta", json!({"delta": text})));
    }

    /// Ends the reasoning before what follows it.
    fn end_thinking(&mut self, events: &mut Vec<String>) {
        if !std::mem::replace(&mut self.thinking, false) {
            return;
        }
        if let Some(Item::Reasoning(text)) = self.items.first().cloned() {
            events.push(self.about(0, "response.reasoning_text.done", json!({"text": text})));
            events.push(self.end_item(0));
        }
    }

    /// Adds content; all of it is one message.
    fn speak(&mut self, text: &str, events: &mut Vec<String>) {
        let index = self.items.iter().position(|item| matches!(item, Item::Message(_))).unwrap_or_else(|| {
            let begun = self.begin_item(Item::Message(String::new()));
            events.push(begun);
            let index = self.items.len() - 1;
            let part = self.about(index, "response.content_part.added", json!({"part": Writer::part("")}));
            events.push(part);
            index
        });
        if let Item::Message(all) = &mut self.items[index] {
            all.push_str(text);
        }
        if !text.is_empty() {
            events.push(self.about(index, "response.output_text.delta", json!({"delta": text, "logprobs": []})));
        }
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
            self.think(&reasoning, &mut events);
        }
        if !read.content.is_empty() || !read.calls.is_empty() {
            self.end_thinking(&mut events);
        }
        if !read.content.is_empty() {
            self.speak(&read.content, &mut events);
        }
        for call in read.calls {
            let arguments = call.arguments().to_owned();
            let begun = self.begin_item(Item::Call(call));
            let index = self.items.len() - 1;
            let delta = self.about(index, "response.function_call_arguments.delta", json!({"delta": arguments}));
            let done = self.about(index, "response.function_call_arguments.done", json!({"arguments": arguments}));
            events.extend([begun, delta, done, self.end_item(index)]);
        }
        events
    }

    fn end(&mut self, usage: Usage) -> Vec<String> {
        let mut events = if self.number == 0 { self.begin() } else { Vec::new() };
        self.end_thinking(&mut events);
        // An answer that says nothing is a message without text.
        if !self.items.iter().any(|item| matches!(item, Item::Message(_) | Item::Call(_))) {
            self.speak("", &mut events);
        }
        for index in 0..self.items.len() {
            // Reasoning has ended, and a call ends when it comes.
            let Item::Message(text) = self.items[index].clone() else { continue };
            let fields = json!({"text": text, "logprobs": []});
            events.push(self.about(index, "response.output_text.done", fields));
            let part = json!({"part": Writer::part(&text)});
            events.push(self.about(index, "response.content_part.done", part));
            events.push(self.end_item(index));
        }
        let body = self.writer.body(&self.items, self.cut, Some(usage));
        let kind = if self.cut { "response.incomplete" } else { "response.completed" };
        events.push(self.event(kind, json!({"response": body})));
        events
    }
}
