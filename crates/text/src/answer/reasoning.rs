//! Reasoning before the answer, between markers.

use super::{AnswerPart, held_back};

/// How a family of models marks its reasoning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReasoningFormat {
    /// `<think>` to `</think>`; the answer begins with reasoning even where the first marker is left out.
    DeepSeekR1,
    /// `<think>` to `</think>`, both written.
    Qwen3,
    /// `[THINK]` to `[/THINK]`.
    Mistral,
}

impl ReasoningFormat {
    /// The format of this name: `deepseek_r1`, `qwen3` (also `deepseek_v3`, `glm45`) or `mistral`.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        match name {
            "deepseek_r1" => Some(Self::DeepSeekR1),
            "qwen3" | "deepseek_v3" | "glm45" => Some(Self::Qwen3),
            "mistral" => Some(Self::Mistral),
            _ => None,
        }
    }

    /// Every name that [`Self::from_name`] knows.
    pub const NAMES: [&'static str; 5] = ["deepseek_r1", "deepseek_v3", "glm45", "mistral", "qwen3"];

    /// What opens and what closes reasoning.
    #[must_use]
    pub const fn markers(self) -> (&'static str, &'static str) {
        match self {
            Self::DeepSeekR1 | Self::Qwen3 => ("<think>", "</think>"),
            Self::Mistral => ("[THINK]", "[/THINK]"),
        }
    }
}

/// How an answer begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReasoningStart {
    /// In reasoning that the prompt opened.
    Thinking,
    /// After reasoning.
    Answering,
    /// The opening marker may come.
    Open {
        /// Whether it begins with reasoning even where that is left out.
        thinks_anyway: bool,
    },
}

impl ReasoningFormat {
    /// How the answer to a prompt begins.
    #[must_use]
    pub fn start(self, prompt: &str) -> ReasoningStart {
        let (open, close) = self.markers();
        let prompt = prompt.trim_end();
        if prompt.ends_with(open) {
            ReasoningStart::Thinking
        } else if prompt.ends_with(close) {
            ReasoningStart::Answering
        } else {
            ReasoningStart::Open { thinks_anyway: self == Self::DeepSeekR1 }
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// The first marker may come; some models think without it.
    Start {
        thinks_anyway: bool,
    },
    Thinking,
    Answering,
}

/// Tells reasoning from what follows it.
#[derive(Debug, Clone)]
pub(super) struct ReasoningSplitter {
    open: &'static str,
    close: &'static str,
    state: State,
    waiting: String,
}

impl ReasoningSplitter {
    pub(super) fn new(format: ReasoningFormat, prompt: &str) -> Self {
        let (open, close) = format.markers();
        let state = match format.start(prompt) {
            ReasoningStart::Thinking => State::Thinking,
            ReasoningStart::Answering => State::Answering,
            ReasoningStart::Open { thinks_anyway } => State::Start { thinks_anyway },
        };
        Self { open, close, state, waiting: String::new() }
    }

    /// Appends reasoning to `parts` and gives what belongs to the answer.
    pub(super) fn push(&mut self, text: &str, parts: &mut Vec<AnswerPart>) -> String {
        self.waiting.push_str(text);
        if let State::Start { thinks_anyway } = self.state {
            let begun = self.waiting.trim_start();
            if begun.len() < self.open.len() && self.open.starts_with(begun) {
                return String::new();
            }
            if let Some(rest) = begun.strip_prefix(self.open) {
                self.waiting = rest.to_owned();
                self.state = State::Thinking;
            } else {
                self.state = if thinks_anyway { State::Thinking } else { State::Answering };
            }
        }
        if self.state == State::Thinking {
            if let Some(end) = self.waiting.find(self.close) {
                thought(&self.waiting[..end], parts);
                self.waiting.drain(..end + self.close.len());
                self.state = State::Answering;
            } else {
                let certain = self.waiting.len() - held_back(&self.waiting, self.close);
                thought(&self.waiting[..certain], parts);
                self.waiting.drain(..certain);
                return String::new();
            }
        }
        std::mem::take(&mut self.waiting)
    }

    /// Whether all that comes belongs to the answer.
    pub(super) fn is_answering(&self) -> bool {
        self.state == State::Answering
    }

    /// Whether what comes is reasoning, up to the marker.
    pub(super) fn is_thinking(&self) -> bool {
        self.state == State::Thinking
    }

    /// Bytes that are held back.
    pub(super) const fn waiting_bytes(&self) -> usize {
        self.waiting.len()
    }

    /// Bytes of the closing marker.
    pub(super) const fn close_bytes(&self) -> usize {
        self.close.len()
    }

    /// No more text comes.
    pub(super) fn finish(&mut self, parts: &mut Vec<AnswerPart>) -> String {
        let rest = std::mem::take(&mut self.waiting);
        match self.state {
            State::Thinking | State::Start { thinks_anyway: true } => {
                thought(&rest, parts);
                String::new()
            }
            State::Answering | State::Start { thinks_anyway: false } => rest,
        }
    }
}

fn thought(text: &str, parts: &mut Vec<AnswerPart>) {
    if !text.is_empty() {
        parts.push(AnswerPart::Reasoning(text.to_owned()));
    }
}
