//! From a source to a grammar that answers can follow, and the grammars made before.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use llguidance::api::ParserLimits;
use llguidance::{Matcher, ParserFactory};

use crate::error::first_line;
use crate::{Error, Pattern, Source, Vocabulary};

/// What one grammar may cost, and how many are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of a source.
    pub source_bytes: usize,
    /// Symbols in the productions of a grammar.
    pub grammar_symbols: usize,
    /// Grammars that are kept for later answers.
    pub kept: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { source_bytes: 256 << 10, grammar_symbols: 200_000, kept: 128 }
    }
}

/// A grammar at its start. Clones share what was compiled.
#[derive(Clone)]
pub struct Grammar {
    matcher: Arc<Mutex<Matcher>>,
}

impl std::fmt::Debug for Grammar {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Grammar").finish_non_exhaustive()
    }
}

impl Grammar {
    /// A matcher of its own, at the start.
    pub(crate) fn matcher(&self) -> Matcher {
        self.matcher.lock().unwrap_or_else(PoisonError::into_inner).deep_clone()
    }
}

/// Makes grammars for one vocabulary. Compiling takes up to some hundred milliseconds: not for a thread that serves.
pub struct Compiler {
    vocabulary: Vocabulary,
    factory: ParserFactory,
    limits: Limits,
    /// The latest used last.
    kept: Mutex<VecDeque<(String, Grammar)>>,
}

impl std::fmt::Debug for Compiler {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Compiler").field("limits", &self.limits).finish_non_exhaustive()
    }
}

impl Compiler {
    /// A compiler for `vocabulary`. Looks at every token once.
    ///
    /// # Errors
    /// [`Error::Source`] when the vocabulary is unusable.
    pub fn new(vocabulary: Vocabulary, limits: Limits) -> Result<Self, Error> {
        let mut factory = ParserFactory::new_simple(vocabulary.environment())
            .map_err(|error| Error::Source { message: first_line(&error) })?;
        factory.quiet();
        *factory.limits_mut() =
            ParserLimits { max_grammar_size: limits.grammar_symbols, verbose_errors: false, ..ParserLimits::default() };
        Ok(Self { vocabulary, factory, limits, kept: Mutex::new(VecDeque::new()) })
    }

    /// The tokens that grammars are made of.
    #[must_use]
    pub fn vocabulary(&self) -> &Vocabulary {
        &self.vocabulary
    }

    /// The grammar of `source`, compiled now or before.
    ///
    /// # Errors
    /// When the source is too long, is no grammar of its kind, or allows nothing at all.
    pub fn compile(&self, source: &Source) -> Result<Grammar, Error> {
        let key = source.key();
        if key.len() > self.limits.source_bytes {
            return Err(Error::TooLong { most: self.limits.source_bytes, got: key.len() });
        }
        if let Some(grammar) = self.find(&key) {
            return Ok(grammar);
        }
        let parser = self.factory.create_parser(source.grammar(&self.vocabulary)?);
        let parser = parser.map_err(|error| self.blame(source, first_line(&error)))?;
        let mut matcher = Matcher::new(Ok(parser));
        // The first mask is made by every answer, and shows whether there can be one.
        let first = matcher.compute_mask_or_eos().map_err(|error| self.blame(source, first_line(&error)))?;
        if first.is_zero() {
            return Err(Error::Source { message: "no text of this model's tokens satisfies it".to_owned() });
        }
        let grammar = Grammar { matcher: Arc::new(Mutex::new(matcher)) };
        self.keep(key, grammar.clone());
        Ok(grammar)
    }

    /// The error of a source that cannot be used: that of the first of its parts which cannot either.
    fn blame(&self, source: &Source, message: String) -> Error {
        let Source::Pattern(pattern) = source else { return Error::Source { message } };
        let blamed = pattern.parts().into_iter().find_map(|part| {
            let (field, alone) = match part {
                Pattern::Json { field, schema, style } => (field, Source::JsonSchema(schema.clone(), *style)),
                Pattern::Regex { field, expression } => (field, Source::Regex(expression.clone())),
                _ => return None,
            };
            let error = self.compile(&alone).err()?;
            Some(Error::Part { field: field.clone(), message: error.to_string() })
        });
        blamed.unwrap_or(Error::Source { message })
    }

    fn find(&self, key: &str) -> Option<Grammar> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let index = kept.iter().position(|(known, _)| known == key)?;
        let found = kept.remove(index)?;
        let grammar = found.1.clone();
        kept.push_back(found);
        Some(grammar)
    }

    fn keep(&self, key: String, grammar: Grammar) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.push_back((key, grammar));
        while kept.len() > self.limits.kept {
            kept.pop_front();
        }
    }
}
