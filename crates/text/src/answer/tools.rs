//! Tool calls in the spellings that families of models were trained on.

use serde_json::Value;

use super::{AnswerPart, ToolCall, content, held_back};

/// How a family of models writes tool calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ToolFormat {
    /// `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`: Hermes, Qwen.
    Hermes,
    /// `{"name": ..., "parameters": {...}}` as the whole answer, several joined by `;`: Llama 3.
    Llama3Json,
    /// `[TOOL_CALLS][{...}, ...]` or `[TOOL_CALLS]name[ARGS]{...}`.
    Mistral,
    /// `<｜tool▁call▁begin｜>...<｜tool▁sep｜>...<｜tool▁call▁end｜>`: DeepSeek V3 and V3.1.
    DeepSeekV3,
}

const DEEPSEEK_CALL: &str = "<｜tool▁call▁begin｜>";
const DEEPSEEK_SEPARATOR: &str = "<｜tool▁sep｜>";
const DEEPSEEK_CALL_END: &str = "<｜tool▁call▁end｜>";
/// What the older spelling writes before arguments.
const DEEPSEEK_FENCE: &str = "```json";
const DEEPSEEK_END: &str = "<｜tool▁calls▁end｜>";
const HERMES_END: &str = "</tool_call>";

impl ToolFormat {
    /// The format of this name: `hermes`, `llama3_json`, `mistral` or `deepseek_v3` (also `deepseek_v31`).
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        match name {
            "hermes" | "qwen" => Some(Self::Hermes),
            "llama3_json" => Some(Self::Llama3Json),
            "mistral" => Some(Self::Mistral),
            "deepseek_v3" | "deepseek_v31" => Some(Self::DeepSeekV3),
            _ => None,
        }
    }

    /// Every name that [`Self::from_name`] knows.
    pub const NAMES: [&'static str; 6] = ["deepseek_v3", "deepseek_v31", "hermes", "llama3_json", "mistral", "qwen"];

    /// The format that a chat template teaches, by the markers in its source.
    #[must_use]
    pub fn of_template(source: &str) -> Option<Self> {
        let marks = [
            ("<｜tool▁calls▁begin｜>", Self::DeepSeekV3),
            ("[TOOL_CALLS]", Self::Mistral),
            ("<tool_call>", Self::Hermes),
            ("<|python_tag|>", Self::Llama3Json),
        ];
        marks.into_iter().find(|(mark, _)| source.contains(mark)).map(|(_, format)| format)
    }

    /// Whether its markers are special tokens, which must then be shown to be seen.
    #[must_use]
    pub const fn uses_special_tokens(self) -> bool {
        !matches!(self, Self::Hermes)
    }

    /// What begins calls.
    #[must_use]
    pub const fn open(self) -> &'static str {
        match self {
            Self::Hermes => "<tool_call>",
            Self::Llama3Json => "<|python_tag|>",
            Self::Mistral => "[TOOL_CALLS]",
            Self::DeepSeekV3 => "<｜tool▁calls▁begin｜>",
        }
    }

    /// What comes next in the text after the opening marker. `is_last` when no more text comes.
    fn next(self, text: &str, is_last: bool) -> Next {
        match self {
            Self::Hermes => hermes(text, is_last),
            Self::Llama3Json => llama(text),
            Self::Mistral => mistral(text),
            Self::DeepSeekV3 => deepseek(text),
        }
    }
}

/// What was found at the start of a text; lengths are in bytes.
#[derive(Debug)]
enum Next {
    More,
    /// Calls, and whether more may follow without another opening marker.
    Calls {
        calls: Vec<ToolCall>,
        length: usize,
        goes_on: bool,
    },
    /// The end of the calls.
    End {
        length: usize,
    },
    /// No call.
    Broken,
}

fn one(call: Option<ToolCall>, length: usize, goes_on: bool) -> Next {
    call.map_or(Next::Broken, |call| Next::Calls { calls: vec![call], length, goes_on })
}

fn hermes(text: &str, is_last: bool) -> Next {
    let begun = text.trim_start();
    let skipped = text.len() - begun.len();
    let (value, length) = match json_value(begun) {
        Ok(None) if is_last => return Next::Broken,
        Ok(None) => return Next::More,
        Ok(Some((value, length))) => (value, skipped + length),
        Err(_) => return Next::Broken,
    };
    // What the arguments hold may look like the marker: it counts behind them only.
    let rest = &text[length..];
    let blanks = rest.len() - rest.trim_start().len();
    let length = length + blanks;
    match &rest[blanks..] {
        rest if rest.starts_with(HERMES_END) => one(ToolCall::from_object(&value), length + HERMES_END.len(), false),
        "" if is_last => one(ToolCall::from_object(&value), length, false),
        rest if HERMES_END.starts_with(rest) && !is_last => Next::More,
        _ => Next::Broken,
    }
}

/// The first JSON value of a text and where it ends; `None` in place of a value while it is incomplete.
fn json_value(text: &str) -> Result<Option<(Value, usize)>, serde_json::Error> {
    let mut values = serde_json::Deserializer::from_str(text).into_iter::<Value>();
    match values.next() {
        None => Ok(None),
        Some(Ok(value)) => Ok(Some((value, values.byte_offset()))),
        Some(Err(error)) if error.is_eof() => Ok(None),
        Some(Err(error)) => Err(error),
    }
}

fn llama(text: &str) -> Next {
    let begun = text.trim_start_matches([' ', '\n', '\t', ';', ',']);
    let skipped = text.len() - begun.len();
    if begun.is_empty() {
        return Next::More;
    }
    match json_value(begun) {
        Ok(None) => Next::More,
        Ok(Some((value, length))) => one(ToolCall::from_object(&value), skipped + length, true),
        Err(_) => Next::Broken,
    }
}

fn mistral(text: &str) -> Next {
    let begun = text.trim_start();
    let skipped = text.len() - begun.len();
    if begun.is_empty() {
        return Next::More;
    }
    if begun.starts_with('[') {
        return match json_value(begun) {
            Ok(None) => Next::More,
            Ok(Some((Value::Array(items), length))) => {
                match items.iter().map(ToolCall::from_object).collect::<Option<Vec<_>>>() {
                    Some(calls) => Next::Calls { calls, length: skipped + length, goes_on: false },
                    None => Next::Broken,
                }
            }
            _ => Next::Broken,
        };
    }
    let Some(brace) = begun.find('{') else {
        // A name is one word: whatever else stands here is text.
        let name = begun.split("[ARGS]").next().unwrap_or_default();
        return if name.contains(char::is_whitespace) { Next::Broken } else { Next::More };
    };
    let name = begun[..brace].trim().trim_end_matches("[ARGS]").trim();
    match json_value(&begun[brace..]) {
        Ok(None) => Next::More,
        Ok(Some((_, length))) => {
            let arguments = begun[brace..brace + length].to_owned();
            let call = (!name.is_empty()).then(|| ToolCall { name: name.to_owned(), arguments });
            one(call, skipped + brace + length, false)
        }
        Err(_) => Next::Broken,
    }
}

fn deepseek(text: &str) -> Next {
    let begun = text.trim_start();
    let skipped = text.len() - begun.len();
    if begun.starts_with(DEEPSEEK_END) {
        return Next::End { length: skipped + DEEPSEEK_END.len() };
    }
    let Some(inner) = begun.strip_prefix(DEEPSEEK_CALL) else {
        let possible = [DEEPSEEK_CALL, DEEPSEEK_END].iter().any(|marker| marker.starts_with(begun));
        return if possible { Next::More } else { Next::Broken };
    };
    let Some((before, after)) = inner.split_once(DEEPSEEK_SEPARATOR) else {
        return if inner.contains(DEEPSEEK_CALL_END) { Next::Broken } else { Next::More };
    };
    // The older spelling has the kind of tool before the separator, then the name and fences around the arguments.
    let is_plain = after.trim_start().is_empty() || after.trim_start().starts_with('{');
    let (name, arguments) = match after.split_once(DEEPSEEK_FENCE).filter(|_| !is_plain) {
        Some((name, rest)) => (name, rest),
        None if is_plain => (before, after),
        None if after.contains(DEEPSEEK_CALL_END) => return Next::Broken,
        None => return Next::More,
    };
    let name = name.trim();
    let begun = arguments.trim_start();
    let length = match json_value(begun) {
        Ok(None) => return Next::More,
        Ok(Some((_, length))) => length,
        Err(_) => return Next::Broken,
    };
    let (arguments, rest) = begun.split_at(length);
    let end = rest.trim_start();
    let end = end.strip_prefix("```").map_or(end, str::trim_start);
    let Some(left) = end.strip_prefix(DEEPSEEK_CALL_END) else {
        let is_possible = DEEPSEEK_CALL_END.starts_with(end) || "```".starts_with(end);
        return if is_possible { Next::More } else { Next::Broken };
    };
    let call = ToolCall { name: name.to_owned(), arguments: arguments.to_owned() };
    one((!name.is_empty()).then_some(call), text.len() - left.len(), true)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Nothing but blanks so far.
    Start,
    Text,
    Calls,
}

/// Finds tool calls in content.
#[derive(Debug, Clone)]
pub(super) struct ToolReader {
    format: ToolFormat,
    state: State,
    /// In `Calls`, what follows the opening marker or the last call.
    waiting: String,
    /// What to show if what waits is no call: the opening marker, unless a call followed it.
    marker: &'static str,
}

impl ToolReader {
    pub(super) const fn new(format: ToolFormat) -> Self {
        Self { format, state: State::Start, waiting: String::new(), marker: "" }
    }

    pub(super) fn push(&mut self, text: &str, parts: &mut Vec<AnswerPart>) {
        self.waiting.push_str(text);
        self.advance(false, parts);
    }

    pub(super) fn finish(&mut self, parts: &mut Vec<AnswerPart>) {
        self.advance(true, parts);
        if self.state == State::Calls && !self.waiting.trim().is_empty() {
            content(self.marker, parts);
            content(&self.waiting, parts);
        } else if self.state != State::Calls {
            content(&self.waiting, parts);
        } else {
            content(self.marker, parts);
        }
        self.waiting.clear();
    }

    fn advance(&mut self, is_last: bool, parts: &mut Vec<AnswerPart>) {
        while match self.state {
            State::Start | State::Text => self.find_open(parts),
            State::Calls => self.read_calls(is_last, parts),
        } {}
    }

    /// Shows text up to an opening marker; true when there is one.
    fn find_open(&mut self, parts: &mut Vec<AnswerPart>) -> bool {
        let open = self.format.open();
        let begun = self.waiting.trim_start();
        if self.state == State::Start && self.format == ToolFormat::Llama3Json {
            if begun.is_empty() {
                return false;
            }
            if begun.starts_with('{') {
                self.begin_calls(self.waiting.len() - begun.len(), "");
                return true;
            }
        }
        if let Some(start) = self.waiting.find(open) {
            content(&self.waiting[..start], parts);
            self.begin_calls(start + open.len(), open);
            return true;
        }
        let certain = self.waiting.len() - held_back(&self.waiting, open);
        if certain > 0 {
            content(&self.waiting[..certain], parts);
            self.waiting.drain(..certain);
            self.state = State::Text;
        }
        false
    }

    fn begin_calls(&mut self, start: usize, marker: &'static str) {
        self.waiting.drain(..start);
        self.state = State::Calls;
        self.marker = marker;
    }

    /// Reads what stands at the start; true when it was taken.
    fn read_calls(&mut self, is_last: bool, parts: &mut Vec<AnswerPart>) -> bool {
        if self.waiting.is_empty() {
            return false;
        }
        match self.format.next(&self.waiting, is_last) {
            Next::More => return false,
            Next::Calls { calls, length, goes_on } => {
                parts.extend(calls.into_iter().map(AnswerPart::Call));
                self.waiting.drain(..length);
                self.marker = "";
                if !goes_on {
                    self.state = State::Text;
                }
            }
            Next::End { length } => {
                self.waiting.drain(..length);
                self.state = State::Text;
            }
            Next::Broken => {
                content(self.marker, parts);
                // What waits is text up to the next marker.
                self.state = State::Text;
            }
        }
        true
    }
}
