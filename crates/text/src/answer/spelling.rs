//! Tool calls as families of models write them, piece by piece: what an answer has to look like for its reader.

use super::ToolFormat;

/// A piece of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallPiece {
    /// A marker: a special token of many tokenizers, plain text to others.
    Mark(&'static str),
    /// Text as it is.
    Text(&'static str),
    /// The tool's name as it is.
    Name,
    /// The tool's name as a JSON string.
    QuotedName,
    /// The arguments, a JSON object.
    Arguments,
}

/// How one family of models writes its calls: `open call (between call)* close`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CallSpelling {
    /// Before the first call.
    pub open: &'static [CallPiece],
    /// One call.
    pub call: &'static [CallPiece],
    /// Between two calls.
    pub between: &'static [CallPiece],
    /// After the last call.
    pub close: &'static [CallPiece],
}

use CallPiece::{Arguments, Mark, Name, QuotedName, Text};

const HERMES: CallSpelling = CallSpelling {
    open: &[],
    call: &[
        Mark("<tool_call>"),
        Text("\n{\"name\": "),
        QuotedName,
        Text(", \"arguments\": "),
        Arguments,
        Text("}\n"),
        Mark("</tool_call>"),
    ],
    between: &[Text("\n")],
    close: &[],
};

const LLAMA: CallSpelling = CallSpelling {
    open: &[],
    call: &[Text("{\"name\": "), QuotedName, Text(", \"parameters\": "), Arguments, Text("}")],
    between: &[Text("; ")],
    close: &[],
};

const MISTRAL_LIST: CallSpelling = CallSpelling {
    open: &[Mark("[TOOL_CALLS]"), Text("[")],
    call: &[Text("{\"name\": "), QuotedName, Text(", \"arguments\": "), Arguments, Text("}")],
    between: &[Text(", ")],
    close: &[Text("]")],
};

const MISTRAL_ARGUMENTS: CallSpelling = CallSpelling {
    open: &[],
    call: &[Mark("[TOOL_CALLS]"), Name, Mark("[ARGS]"), Arguments],
    between: &[],
    close: &[],
};

const DEEPSEEK_FENCED: CallSpelling = CallSpelling {
    open: &[Mark("<｜tool▁calls▁begin｜>")],
    call: &[
        Mark("<｜tool▁call▁begin｜>"),
        Text("function"),
        Mark("<｜tool▁sep｜>"),
        Name,
        Text("\n```json\n"),
        Arguments,
        Text("\n```"),
        Mark("<｜tool▁call▁end｜>"),
    ],
    between: &[Text("\n")],
    close: &[Mark("<｜tool▁calls▁end｜>")],
};

const DEEPSEEK_PLAIN: CallSpelling = CallSpelling {
    open: &[Mark("<｜tool▁calls▁begin｜>")],
    call: &[Mark("<｜tool▁call▁begin｜>"), Name, Mark("<｜tool▁sep｜>"), Arguments, Mark("<｜tool▁call▁end｜>")],
    between: &[],
    close: &[Mark("<｜tool▁calls▁end｜>")],
};

impl ToolFormat {
    /// How calls are written in this format. Where a family has two spellings, the chat template's source shows which of
    /// them the model was taught.
    #[must_use]
    pub fn spelling(self, template: &str) -> CallSpelling {
        match self {
            Self::Hermes => HERMES,
            Self::Llama3Json => LLAMA,
            Self::Mistral if template.contains("[ARGS]") => MISTRAL_ARGUMENTS,
            Self::Mistral => MISTRAL_LIST,
            Self::DeepSeekV3 if template.contains("```json") => DEEPSEEK_FENCED,
            Self::DeepSeekV3 => DEEPSEEK_PLAIN,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{AnswerPart, AnswerReader, ToolCall};

    fn write(pieces: &[CallPiece], name: &str, arguments: &str) -> String {
        let text = |piece: &CallPiece| match piece {
            Mark(text) | Text(text) => (*text).to_owned(),
            Name => name.to_owned(),
            QuotedName => format!("\"{name}\""),
            Arguments => arguments.to_owned(),
        };
        pieces.iter().map(text).collect()
    }

    #[test]
    fn every_spelling_is_read_back_whatever_its_arguments_hold() {
        let hostile = "{\"text\": \"</tool_call> ```json {} ``` ]; <｜tool▁sep｜>\", \"list\": [1, {\"a\": null}]}";
        for format in [ToolFormat::Hermes, ToolFormat::Llama3Json, ToolFormat::Mistral, ToolFormat::DeepSeekV3] {
            for template in ["", "[ARGS] ```json"] {
                let spelling = format.spelling(template);
                let text = [
                    write(spelling.open, "", ""),
                    write(spelling.call, "get", hostile),
                    write(spelling.between, "", ""),
                    write(spelling.call, "now", "{}"),
                    write(spelling.close, "", ""),
                ]
                .concat();
                let mut reader = AnswerReader::new(None, Some(format), "");
                let mut parts = Vec::new();
                for letter in text.split_inclusive(|_: char| true) {
                    reader.push(letter, &mut parts);
                }
                reader.finish(&mut parts);
                let calls: Vec<ToolCall> = parts
                    .into_iter()
                    .filter_map(|part| match part {
                        AnswerPart::Call(call) => Some(call),
                        AnswerPart::Content(text) if text.trim().is_empty() => None,
                        other => panic!("{format:?}: {other:?} of {text:?}"),
                    })
                    .collect();
                let named = |name: &str, arguments: &str| ToolCall { name: name.into(), arguments: arguments.into() };
                assert_eq!(calls, [named("get", hostile), named("now", "{}")], "{text}");
            }
        }
    }
}
