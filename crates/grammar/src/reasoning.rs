//! Reasoning before an answer: where it ends, and how long it may be.

use crate::Vocabulary;

/// How an answer begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Begins {
    /// With reasoning; an opening marker may come first.
    Thinking,
    /// With the answer, unless the opening marker comes first.
    Open,
    /// With the answer.
    Answering,
}

/// How reasoning is marked in an answer, and how long it may be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reasoning {
    /// How the answer begins.
    pub begins: Begins,
    /// What opens reasoning.
    pub open: String,
    /// What closes it.
    pub close: String,
    /// The tokens of `close`, for closing it by force; at least one.
    pub close_tokens: Vec<u32>,
    /// Tokens of reasoning at most, markers not counted.
    pub budget: Option<u32>,
}

/// Where in its reasoning an answer stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Nothing but what may be the start of the opening marker.
    Start,
    /// In reasoning, which has so many tokens.
    Thinking { tokens: u32 },
    /// In reasoning that is being closed: so many tokens of the marker have come.
    Closing { tokens: usize },
    /// After it.
    Answering,
}

/// Follows an answer up to the end of its reasoning.
#[derive(Clone, Debug)]
pub(crate) struct Thought {
    pub(crate) phase: Phase,
    /// The end of what came: what may be the start of a marker.
    tail: Vec<u8>,
}

impl Thought {
    pub(crate) fn new(reasoning: Option<&Reasoning>) -> Self {
        let phase = match reasoning.map(|reasoning| reasoning.begins) {
            None | Some(Begins::Answering) => Phase::Answering,
            Some(Begins::Open) => Phase::Start,
            Some(Begins::Thinking) => Phase::Thinking { tokens: 0 },
        };
        let mut thought = Self { phase, tail: Vec::new() };
        if let Some(reasoning) = reasoning {
            thought.close_when_spent(reasoning);
        }
        thought
    }

    /// The only token that may come, while reasoning is closed by force.
    pub(crate) fn forced(&self, reasoning: &Reasoning) -> Option<u32> {
        match self.phase {
            Phase::Closing { tokens } => reasoning.close_tokens.get(tokens).copied(),
            _ => None,
        }
    }

    /// Takes a token before the answer.
    pub(crate) fn take(&mut self, token: u32, reasoning: &Reasoning, vocabulary: &Vocabulary) {
        let bytes = vocabulary.bytes(token);
        self.tail.extend_from_slice(bytes);
        match &mut self.phase {
            Phase::Answering => {}
            Phase::Start => self.open(reasoning),
            Phase::Thinking { tokens } => {
                *tokens += 1;
                // A marker that opens what is open already counts as no token.
                if *tokens == 1 && self.tail.trim_ascii() == reasoning.open.as_bytes() {
                    *tokens = 0;
                    self.tail.clear();
                }
                self.find_close(reasoning);
            }
            Phase::Closing { tokens } => {
                *tokens += 1;
                if *tokens >= reasoning.close_tokens.len() {
                    self.phase = Phase::Answering;
                }
                self.find_close(reasoning);
            }
        }
        self.close_when_spent(reasoning);
    }

    fn open(&mut self, reasoning: &Reasoning) {
        let begun = self.tail.trim_ascii_start();
        let open = reasoning.open.as_bytes();
        if begun.starts_with(open) {
            self.tail = begun[open.len()..].to_vec();
            self.phase = Phase::Thinking { tokens: 0 };
            self.find_close(reasoning);
        } else if !open.starts_with(begun) {
            self.phase = Phase::Answering;
        }
    }

    fn find_close(&mut self, reasoning: &Reasoning) {
        let close = reasoning.close.as_bytes();
        if self.tail.windows(close.len()).any(|window| window == close) {
            self.phase = Phase::Answering;
        }
        let kept = self.tail.len().saturating_sub(close.len().saturating_sub(1));
        self.tail.drain(..kept);
    }

    fn close_when_spent(&mut self, reasoning: &Reasoning) {
        if let (Phase::Thinking { tokens }, Some(budget)) = (&self.phase, reasoning.budget)
            && *tokens >= budget
        {
            self.phase = Phase::Closing { tokens: 0 };
            self.tail.clear();
        }
    }
}
