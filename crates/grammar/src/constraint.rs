//! One answer on its way: what it accepted, and what may come next.

use llguidance::Matcher;

use crate::error::first_line;
use crate::reasoning::{Phase, Thought};
use crate::{Error, Grammar, Reasoning, Vocabulary};

/// Which tokens may be chosen at one position.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TokenMask {
    /// All.
    Neutral,
    /// Those whose bit is set: token t is bit `t % 32` of word `t / 32`.
    Only(Vec<u32>),
}

impl TokenMask {
    fn one(token: u32) -> Self {
        let mut words = vec![0; token as usize / 32 + 1];
        words[token as usize / 32] |= 1 << (token % 32);
        Self::Only(words)
    }

    /// Whether the token may be chosen.
    #[must_use]
    pub fn allows(&self, token: u32) -> bool {
        match self {
            Self::Neutral => true,
            Self::Only(words) => words.get(token as usize / 32).is_some_and(|word| word >> (token % 32) & 1 == 1),
        }
    }
}

/// What holds for one answer: first its reasoning, then its grammar. Moves by accepted tokens only.
pub struct Constraint {
    vocabulary: Vocabulary,
    reasoning: Option<Reasoning>,
    thought: Thought,
    /// The token that opens reasoning.
    open_token: Option<u32>,
    matcher: Option<Matcher>,
}

impl std::fmt::Debug for Constraint {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Constraint").field("phase", &self.thought.phase).finish_non_exhaustive()
    }
}

impl Clone for Constraint {
    /// A copy that shares nothing which threads would wait for.
    fn clone(&self) -> Self {
        Self {
            vocabulary: self.vocabulary.clone(),
            reasoning: self.reasoning.clone(),
            thought: self.thought.clone(),
            open_token: self.open_token,
            matcher: self.matcher.as_ref().map(Matcher::deep_clone),
        }
    }
}

impl Constraint {
    /// The constraint of a new answer. Without a grammar only the reasoning is limited.
    #[must_use]
    pub fn new(vocabulary: Vocabulary, grammar: Option<&Grammar>, reasoning: Option<Reasoning>) -> Self {
        let thought = Thought::new(reasoning.as_ref());
        let open_token = reasoning.as_ref().and_then(|reasoning| vocabulary.token_of(&reasoning.open));
        Self { vocabulary, reasoning, thought, open_token, matcher: grammar.map(Grammar::matcher) }
    }

    /// Takes tokens that are part of the answer now.
    ///
    /// # Errors
    /// [`Error::Refused`] for a token that no mask allowed.
    pub fn accept(&mut self, tokens: &[u32]) -> Result<(), Error> {
        tokens.iter().try_for_each(|token| self.take(*token).map(drop))
    }

    /// One mask for the next token and one after each draft. After the first draft that is refused they are neutral:
    /// those positions do not count.
    ///
    /// # Errors
    /// [`Error::Stuck`] where no token may come.
    pub fn masks(&mut self, drafts: &[u32]) -> Result<Vec<TokenMask>, Error> {
        let before = self.thought.clone();
        let mut parsed = 0;
        let masks = self.masks_ahead(drafts, &mut parsed);
        self.thought = before;
        if let Some(matcher) = &mut self.matcher {
            matcher.rollback(parsed).map_err(|error| Error::Stuck { message: first_line(&error) })?;
        }
        masks
    }

    fn masks_ahead(&mut self, drafts: &[u32], parsed: &mut usize) -> Result<Vec<TokenMask>, Error> {
        let mut masks = Vec::with_capacity(drafts.len() + 1);
        masks.push(self.mask()?);
        for draft in drafts {
            if !masks.last().is_some_and(|mask| mask.allows(*draft)) {
                break;
            }
            *parsed += usize::from(self.take(*draft)?);
            masks.push(self.mask()?);
        }
        masks.resize(drafts.len() + 1, TokenMask::Neutral);
        Ok(masks)
    }

    /// Moves on by one token; true when the grammar took it.
    fn take(&mut self, token: u32) -> Result<bool, Error> {
        if let (Some(reasoning), false) = (&self.reasoning, self.thought.phase == Phase::Answering) {
            if self.matcher.is_some() && self.thought.phase == Phase::Start && Some(token) != self.open_token {
                // What opens no reasoning is part of the answer.
                self.thought.phase = Phase::Answering;
            } else {
                self.thought.take(token, reasoning, &self.vocabulary);
                return Ok(false);
            }
        }
        let Some(matcher) = &mut self.matcher else { return Ok(false) };
        if matcher.is_stopped() && !matcher.is_error() {
            // Whatever comes after the end does not count.
            return Ok(false);
        }
        matcher.consume_token(token).map_err(|error| Error::Refused { token, message: first_line(&error) })?;
        Ok(true)
    }

    fn mask(&mut self) -> Result<TokenMask, Error> {
        let mut opening = None;
        if let Some(reasoning) = &self.reasoning {
            match self.thought.phase {
                // Whoever owes an answer does not end before it.
                Phase::Thinking { .. } if self.matcher.is_some() => {
                    return Ok(TokenMask::Only(self.vocabulary.going_on().to_vec()));
                }
                Phase::Thinking { .. } => return Ok(TokenMask::Neutral),
                Phase::Closing { .. } => {
                    return Ok(self.thought.forced(reasoning).map_or(TokenMask::Neutral, TokenMask::one));
                }
                Phase::Start => opening = self.open_token,
                Phase::Answering => {}
            }
        }
        let Some(matcher) = &mut self.matcher else { return Ok(TokenMask::Neutral) };
        let stuck = |message: String| Error::Stuck { message };
        let mut allowed = matcher.compute_mask_or_eos().map_err(|error| stuck(first_line(&error)))?;
        if let Some(token) = opening {
            allowed.allow_token(token);
        }
        if allowed.is_zero() {
            return Err(stuck("the grammar allows none of the model's tokens here".to_owned()));
        }
        Ok(TokenMask::Only(allowed.as_slice().to_vec()))
    }
}
