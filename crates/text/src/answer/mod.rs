//! What a chat model's text says: reasoning, content and tool calls, told apart while the text streams.
//!
//! Text is held back no longer than it may be the start of a marker; a tool call is given whole once it is complete.
//! Text that looks like a call and is none is given as content: nothing a model writes is lost.

mod count;
mod reasoning;
mod spelling;
mod tools;

use serde_json::Value;

pub use count::ReasoningCounter;
pub use reasoning::{ReasoningFormat, ReasoningStart};
pub use spelling::{CallPiece, CallSpelling};
pub use tools::ToolFormat;

use self::reasoning::ReasoningSplitter;
use self::tools::ToolReader;
use crate::python_json;

/// A call of a tool that the model asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolCall {
    /// The tool's name.
    pub name: String,
    /// Its arguments, a JSON object as text.
    pub arguments: String,
}

impl ToolCall {
    /// A call from the object that models write; `None` when it is no call.
    fn from_object(value: &Value) -> Option<Self> {
        let name = value.get("name")?.as_str().filter(|name| !name.is_empty())?;
        let arguments = value.get("arguments").or_else(|| value.get("parameters"));
        let arguments = match arguments {
            None | Some(Value::Null) => "{}".to_owned(),
            Some(Value::String(text)) => text.clone(),
            Some(arguments) => python_json::dumps(arguments, &python_json::Style::new(None)),
        };
        Some(Self { name: name.to_owned(), arguments })
    }
}

/// A part of an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AnswerPart {
    /// What the model thought.
    Reasoning(String),
    /// What it says.
    Content(String),
    /// What it wants called.
    Call(ToolCall),
}

/// Reads one answer as it streams.
#[derive(Debug, Clone)]
pub struct AnswerReader {
    reasoning: Option<ReasoningSplitter>,
    tools: Option<ToolReader>,
}

impl AnswerReader {
    /// A reader for an answer to `prompt`, whose end says whether the answer begins with reasoning.
    #[must_use]
    pub fn new(reasoning: Option<ReasoningFormat>, tools: Option<ToolFormat>, prompt: &str) -> Self {
        Self {
            reasoning: reasoning.map(|format| ReasoningSplitter::new(format, prompt)),
            tools: tools.map(ToolReader::new),
        }
    }

    /// Takes more text and appends the parts that became certain.
    pub fn push(&mut self, text: &str, parts: &mut Vec<AnswerPart>) {
        let content = match &mut self.reasoning {
            Some(splitter) => splitter.push(text, parts),
            None => text.to_owned(),
        };
        self.content(&content, parts);
    }

    /// Appends what was held back: no more text comes.
    pub fn finish(&mut self, parts: &mut Vec<AnswerPart>) {
        if let Some(splitter) = &mut self.reasoning {
            let content = splitter.finish(parts);
            self.content(&content, parts);
        }
        if let Some(reader) = &mut self.tools {
            reader.finish(parts);
        }
    }

    fn content(&mut self, text: &str, parts: &mut Vec<AnswerPart>) {
        match &mut self.tools {
            Some(reader) => reader.push(text, parts),
            None => content(text, parts),
        }
    }
}

/// Appends content, joined to content right before it.
fn content(text: &str, parts: &mut Vec<AnswerPart>) {
    match parts.last_mut() {
        _ if text.is_empty() => {}
        Some(AnswerPart::Content(before)) => before.push_str(text),
        _ => parts.push(AnswerPart::Content(text.to_owned())),
    }
}

/// How many bytes at the end of `text` may be the start of `marker`.
fn held_back(text: &str, marker: &str) -> usize {
    let longest = text.len().min(marker.len().saturating_sub(1));
    (1..=longest)
        .rev()
        .find(|length| text.is_char_boundary(text.len() - length) && marker.starts_with(&text[text.len() - length..]))
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The parts of `text`, the same whether it comes whole or letter by letter.
    fn parts(
        reasoning: Option<ReasoningFormat>,
        tools: Option<ToolFormat>,
        prompt: &str,
        text: &str,
    ) -> Vec<AnswerPart> {
        let read = |pieces: &[&str]| {
            let mut reader = AnswerReader::new(reasoning, tools, prompt);
            let mut found = Vec::new();
            for piece in pieces {
                reader.push(piece, &mut found);
            }
            reader.finish(&mut found);
            let mut joined: Vec<AnswerPart> = Vec::new();
            for part in found {
                match (joined.last_mut(), part) {
                    (Some(AnswerPart::Reasoning(before)), AnswerPart::Reasoning(more)) => before.push_str(&more),
                    (Some(AnswerPart::Content(before)), AnswerPart::Content(more)) => before.push_str(&more),
                    (_, part) => joined.push(part),
                }
            }
            joined
        };
        let letters: Vec<&str> = text.split_inclusive(|_: char| true).collect();
        let whole = read(&[text]);
        assert_eq!(read(&letters), whole, "letter by letter");
        whole
    }

    fn said(text: &str) -> AnswerPart {
        AnswerPart::Content(text.to_owned())
    }

    fn thought(text: &str) -> AnswerPart {
        AnswerPart::Reasoning(text.to_owned())
    }

    fn call(name: &str, arguments: &str) -> AnswerPart {
        AnswerPart::Call(ToolCall { name: name.to_owned(), arguments: arguments.to_owned() })
    }

    #[test]
    fn reasoning_ends_at_its_marker_and_begins_where_the_format_says() {
        let r1 = Some(ReasoningFormat::DeepSeekR1);
        let qwen = Some(ReasoningFormat::Qwen3);
        assert_eq!(parts(r1, None, "", "so 1<2</think>two"), [thought("so 1<2"), said("two")]);
        assert_eq!(parts(r1, None, "", "<think>so</think>two"), [thought("so"), said("two")]);
        assert_eq!(parts(qwen, None, "", "<think>so</think>two"), [thought("so"), said("two")]);
        assert_eq!(parts(qwen, None, "", "two <b>"), [said("two <b>")]);
        assert_eq!(parts(qwen, None, "...<think>\n", "so</think>two"), [thought("so"), said("two")]);
        assert_eq!(parts(r1, None, "<think>\n\n</think>\n\n", "two"), [said("two")]);
        assert_eq!(parts(r1, None, "", "never done </thi"), [thought("never done </thi")]);
        let mistral = Some(ReasoningFormat::Mistral);
        assert_eq!(parts(mistral, None, "", "[THINK]so[/THINK]two"), [thought("so"), said("two")]);
    }

    #[test]
    fn hermes_calls_stand_between_tags() {
        let hermes = Some(ToolFormat::Hermes);
        let text = "Let me look. <tool_call>\n{\"name\": \"get\", \"arguments\": {\"city\": \"Zürich\"}}\n</tool_call>\n\
                    <tool_call>{\"name\":\"now\"}</tool_call>";
        let expected = [said("Let me look. "), call("get", "{\"city\": \"Zürich\"}"), said("\n"), call("now", "{}")];
        assert_eq!(parts(None, hermes, "", text), expected);
        assert_eq!(parts(None, hermes, "", "a <tool_cal"), [said("a <tool_cal")]);
        assert_eq!(
            parts(None, hermes, "", "<tool_call>not json</tool_call> b"),
            [said("<tool_call>not json</tool_call> b")]
        );
        let unclosed = "<tool_call>\n{\"name\": \"get\", \"arguments\": {}}";
        assert_eq!(parts(None, hermes, "", unclosed), [call("get", "{}")]);
    }

    #[test]
    fn llama_calls_are_the_whole_answer() {
        let llama = Some(ToolFormat::Llama3Json);
        let text = "{\"name\": \"get\", \"parameters\": {\"a\": [1, \"}\"]}}; {\"name\": \"now\", \"parameters\": {}}";
        assert_eq!(parts(None, llama, "", text), [call("get", "{\"a\": [1, \"}\"]}"), call("now", "{}")]);
        let tagged = "<|python_tag|>{\"name\": \"get\", \"parameters\": {}}";
        assert_eq!(parts(None, llama, "", tagged), [call("get", "{}")]);
        assert_eq!(parts(None, llama, "", "{\"answer\": 1}"), [said("{\"answer\": 1}")]);
        assert_eq!(parts(None, llama, "", "See {\"name\": \"x\"}"), [said("See {\"name\": \"x\"}")]);
        assert_eq!(parts(None, llama, "", "{\"name\": "), [said("{\"name\": ")]);
    }

    #[test]
    fn mistral_calls_come_as_a_list_or_one_by_one() {
        let mistral = Some(ToolFormat::Mistral);
        let list =
            "[TOOL_CALLS][{\"name\": \"get\", \"arguments\": {\"a\": 1}}, {\"name\": \"now\", \"arguments\": {}}]";
        assert_eq!(parts(None, mistral, "", list), [call("get", "{\"a\": 1}"), call("now", "{}")]);
        let single = "ok[TOOL_CALLS]get[ARGS]{\"a\": 1}[TOOL_CALLS]now{}";
        assert_eq!(parts(None, mistral, "", single), [said("ok"), call("get", "{\"a\": 1}"), call("now", "{}")]);
        assert_eq!(parts(None, mistral, "", "[TOOL_CALLS][{\"name\""), [said("[TOOL_CALLS][{\"name\"")]);
    }

    #[test]
    fn deepseek_calls_come_in_two_spellings() {
        let deepseek = Some(ToolFormat::DeepSeekV3);
        let old = "hm<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get\n\
                   ```json\n{\"a\": 1}\n```<｜tool▁call▁end｜>\n\
                   <｜tool▁call▁begin｜>function<｜tool▁sep｜>now\n```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>";
        assert_eq!(parts(None, deepseek, "", old), [said("hm"), call("get", "{\"a\": 1}"), call("now", "{}")]);
        let new = "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get<｜tool▁sep｜>{\"a\": 1}<｜tool▁call▁end｜><｜tool▁calls▁end｜>";
        assert_eq!(parts(None, deepseek, "", new), [call("get", "{\"a\": 1}")]);
    }

    #[test]
    fn thinking_about_a_call_is_no_call() {
        let text = "<think>maybe <tool_call>{}</tool_call></think><tool_call>{\"name\": \"get\"}</tool_call>";
        let found = parts(Some(ReasoningFormat::Qwen3), Some(ToolFormat::Hermes), "", text);
        assert_eq!(found, [thought("maybe <tool_call>{}</tool_call>"), call("get", "{}")]);
    }
}
