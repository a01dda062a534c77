//! Tells reasoning, content and tool calls of each choice apart, where a chat has them.

use paceline_text::{AnswerPart, AnswerReader, ReasoningFormat, ToolFormat};

use crate::api_error::ApiError;
use crate::app::App;
use crate::generate::{Call, Finish, FinishCause};
use crate::openai::{Said, ToolCallBody, ToolChoice, Tools, finish_reason, held_to_calls};

/// How the answers of one chat are read.
#[derive(Debug, Clone, Copy)]
pub(super) struct ReaderSetup {
    reasoning: Option<ReasoningFormat>,
    tools: Option<ToolFormat>,
    parallel: bool,
    /// Whether the answer is a call of a function that the caller named.
    is_named: bool,
    include_reasoning: bool,
}

impl ReaderSetup {
    /// Prepares `call` for being read: markers that are special tokens must be seen, what an answer has to be holds
    /// behind its reasoning, and calls that are forced or strict are held to their schemas.
    ///
    /// # Errors
    /// Tools are given and nothing says how this model writes calls, or they cannot be called as asked.
    pub(super) fn prepare(
        app: &App,
        tools: &Tools,
        include_reasoning: bool,
        call: &mut Call,
    ) -> Result<Self, ApiError> {
        let (chat, tokenizer) = (app.options.chat, &app.options.tokenizer);
        let mut format = None;
        if !tools.definitions.is_empty() {
            let known = chat.tool_format.or(tokenizer.tool_format());
            let message = "tools are not supported with this model: its chat template shows no known spelling of calls, and the \
                           server was not started with --tool-call-parser";
            let known = known.ok_or_else(|| ApiError::invalid("tools", message))?;
            let spelling = known.spelling(tokenizer.chat_template().unwrap_or_default());
            call.structure = held_to_calls(tools, spelling, call.structure.take())?;
            format = Some(known);
        }
        call.thinking.format = chat.reasoning;
        let is_special = |mark: &str| {
            let tokens = tokenizer.encode(mark, false).unwrap_or_default();
            matches!(tokens.as_slice(), [token] if tokenizer.is_special(*token))
        };
        let shows_specials = format.is_some_and(|format| format.uses_special_tokens() || is_special(format.open()))
            || chat.reasoning.is_some_and(|format| is_special(format.markers().1));
        if shows_specials {
            call.skip_special_tokens = false;
        }
        Ok(Self {
            reasoning: chat.reasoning,
            tools: format,
            parallel: tools.parallel,
            is_named: matches!(tools.choice, ToolChoice::Named(_)),
            include_reasoning,
        })
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
                // Blanks behind a call are its layout.
                AnswerPart::Content(text) if self.calls > 0 && text.trim().is_empty() => {}
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

    /// Why the choice ended. Calls are a reason of their own where the model, or "required", asked for them; a call of the
    /// function that the caller named ends with "stop", as with OpenAI and vLLM.
    pub(super) fn finish_reason(&self, finish: &Finish) -> &'static str {
        let ends_for_calls = self.calls > 0 && !self.setup.is_named && finish.cause == FinishCause::Stop;
        if ends_for_calls { "tool_calls" } else { finish_reason(finish) }
    }
}

/// Mistral's templates take ids of nine letters and digits only.
fn call_id(format: Option<ToolFormat>) -> String {
    let drawn = format!("{:016x}", rand::random::<u64>());
    if format == Some(ToolFormat::Mistral) { drawn[..9].to_owned() } else { format!("call_{drawn}") }
}
