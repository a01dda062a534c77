//! Tells reasoning, content and tool calls of each choice apart, where a chat has them.

use paceline_text::{AnswerPart, AnswerReader, ReasoningFormat, ToolFormat};

use crate::api_error::ApiError;
use crate::app::App;
use crate::generate::Call;
use crate::openai::{Said, ToolCallBody, Tools};

/// How the answers of one chat are read.
#[derive(Debug, Clone, Copy)]
pub(super) struct ReaderSetup {
    reasoning: Option<ReasoningFormat>,
    tools: Option<ToolFormat>,
    parallel: bool,
    include_reasoning: bool,
}

impl ReaderSetup {
    /// # Errors
    /// Tools are given and nothing says how this model writes calls.
    pub(super) fn new(app: &App, tools: &Tools, include_reasoning: bool) -> Result<Self, ApiError> {
        let chat = app.options.chat;
        let format = if tools.definitions.is_empty() {
            None
        } else {
            let known = chat.tool_format.or(app.options.tokenizer.tool_format());
            let message = "tools are not supported with this model: its chat template shows no known spelling of calls, and the \
                           server was not started with --tool-call-parser";
            Some(known.ok_or_else(|| ApiError::invalid("tools", message))?)
        };
        Ok(Self { reasoning: chat.reasoning, tools: format, parallel: tools.parallel, include_reasoning })
    }

    /// Markers that are special tokens must be seen; what an answer has to be holds behind its reasoning.
    pub(super) fn prepare(self, call: &mut Call) {
        call.thinking.format = self.reasoning;
        let shows_specials =
            self.tools.is_some_and(ToolFormat::uses_special_tokens) || self.reasoning == Some(ReasoningFormat::Mistral);
        if shows_specials {
            call.skip_special_tokens = false;
        }
    }

    /// A reader for one choice.
    pub(super) fn reader(self, prompt: &str) -> ChoiceReader {
        let reader = (self.reasoning.is_some() || self.tools.is_some())
            .then(|| AnswerReader::new(self.reasoning, self.tools, prompt));
        ChoiceReader { reader, setup: self, calls: 0 }
    }
}

/// Reads one choice.
#[derive(Debug, Clone)]
pub(super) struct ChoiceReader {
    reader: Option<AnswerReader>,
    setup: ReaderSetup,
    /// Calls so far.
    calls: usize,
}

impl ChoiceReader {
    /// What `text` says; all that is left when it `is_last`.
    pub(super) fn read(&mut self, text: &str, is_last: bool) -> Said {
        let mut said = Said::default();
        let Some(reader) = &mut self.reader else {
            said.content.push_str(text);
            return said;
        };
        let mut parts = Vec::new();
        reader.push(text, &mut parts);
        if is_last {
            reader.finish(&mut parts);
        }
        for part in parts {
            match part {
                AnswerPart::Content(text) => said.content.push_str(&text),
                AnswerPart::Reasoning(text) if self.setup.include_reasoning => {
                    said.reasoning.get_or_insert_default().push_str(&text);
                }
                AnswerPart::Reasoning(_) => {}
                AnswerPart::Call(call) => {
                    if self.setup.parallel || self.calls == 0 {
                        said.calls.push(ToolCallBody::new(self.calls, call_id(self.setup.tools), call));
                        self.calls += 1;
                    }
                }
            }
        }
        said
    }

    /// Whether any tool was called.
    pub(super) fn has_called(&self) -> bool {
        self.calls > 0
    }
}

/// Mistral's templates take ids of nine letters and digits only.
fn call_id(format: Option<ToolFormat>) -> String {
    let drawn = format!("{:016x}", rand::random::<u64>());
    if format == Some(ToolFormat::Mistral) { drawn[..9].to_owned() } else { format!("call_{drawn}") }
}
