//! From what a call says an answer has to be to what its tokens are held to.

use std::sync::{Arc, OnceLock};

use paceline_grammar::{Begins, Compiler, Constraint, Error as GrammarError, Grammar, Limits, Reasoning, Vocabulary};
use paceline_text::{ReasoningFormat, ReasoningStart, Tokenizer};

use super::call::Call;
use crate::api_error::{ApiError, Kind};
use crate::app::App;
use crate::limits::GRAMMAR_TIME_MAX;

/// The grammars of one model. Its tokens are looked at when the first call needs it.
#[derive(Default)]
pub(crate) struct Grammars {
    compiler: OnceLock<Result<Arc<Compiler>, GrammarError>>,
}

impl Grammars {
    fn compiler(&self, tokenizer: &Tokenizer) -> Result<Arc<Compiler>, GrammarError> {
        let make = || {
            let count = u32::try_from(tokenizer.vocab_size()).unwrap_or(u32::MAX);
            let ending = &tokenizer.settings().eos_token_ids;
            let bytes = |token| tokenizer.token_bytes(token);
            let vocabulary = Vocabulary::new(count, bytes, |token| tokenizer.is_special(token), ending)?;
            Compiler::new(vocabulary, Limits::default()).map(Arc::new)
        };
        self.compiler.get_or_init(make).clone()
    }
}

/// What all choices of a call are held to.
pub(super) struct Held {
    compiler: Arc<Compiler>,
    grammar: Option<Grammar>,
    thinking: Option<(ReasoningFormat, Option<u32>)>,
    tokenizer: Tokenizer,
}

impl Held {
    /// The constraint of one choice; the prompt's end says whether the answer begins with reasoning.
    pub(super) fn constraint(&self, prompt: &str) -> Constraint {
        let reasoning = self.thinking.map(|(format, budget)| {
            let (open, close) = format.markers();
            let begins = match format.start(prompt) {
                ReasoningStart::Thinking => Begins::Thinking,
                ReasoningStart::Open { thinks_anyway: true } => Begins::Thinking,
                ReasoningStart::Open { thinks_anyway: false } => Begins::Open,
                ReasoningStart::Answering => Begins::Answering,
            };
            // The tokens of a marker on its own, as the model was shown it.
            let close_tokens = self.tokenizer.encode(close, false).unwrap_or_default();
            Reasoning { begins, open: open.to_owned(), close: close.to_owned(), close_tokens, budget }
        });
        Constraint::new(self.compiler.vocabulary().clone(), self.grammar.as_ref(), reasoning)
    }
}

/// What the answers of a call are held to; nothing for most. Compiles away from the threads that serve.
///
/// # Errors
/// A grammar that cannot be used, by the name of its field, or a budget for reasoning that nothing marks.
pub(super) async fn held(app: &App, call: &Call) -> Result<Option<Held>, ApiError> {
    let thinking = call.thinking;
    if thinking.budget.is_some() && thinking.format.is_none() {
        let message = "thinking_token_budget needs to know how this model marks its reasoning: a chat, and a server that \
                       was started with --reasoning-parser";
        return Err(ApiError::invalid("thinking_token_budget", message));
    }
    if call.structure.is_none() && thinking.budget.is_none() {
        return Ok(None);
    }
    let (shared, structure) = (app.clone(), call.structure.clone());
    let job = move || {
        let field = structure.as_ref().map_or("thinking_token_budget", |structure| structure.field.as_str());
        let invalid = |error: GrammarError| match error {
            GrammarError::Part { field, message } => ApiError::invalid(&*field, format!("{field}: {message}")),
            error => ApiError::invalid(field, format!("{field}: {error}")),
        };
        let tokenizer = shared.options.tokenizer.clone();
        let compiler = shared.grammars.compiler(&tokenizer).map_err(invalid)?;
        let grammar = structure.as_ref().map(|structure| compiler.compile(&structure.source)).transpose();
        let grammar = grammar.map_err(invalid)?;
        let thinking = thinking.format.map(|format| (format, thinking.budget));
        Ok(Held { compiler, grammar, thinking, tokenizer })
    };
    let field = call.structure.as_ref().map_or("thinking_token_budget", |structure| structure.field.as_str());
    match tokio::time::timeout(GRAMMAR_TIME_MAX, tokio::task::spawn_blocking(job)).await {
        Ok(Ok(held)) => held.map(Some),
        Ok(Err(_)) => Err(ApiError::new(Kind::Internal, "the grammar compiler failed on this request")),
        Err(_) => {
            let limit_s = GRAMMAR_TIME_MAX.as_secs();
            Err(ApiError::invalid(field, format!("{field}: it takes longer than {limit_s} s to compile")))
        }
    }
}
