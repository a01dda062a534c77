//! A model's tokens as grammars see them.

use std::sync::Arc;

use llguidance::toktrie::{ApproximateTokEnv, TokEnv, TokRxInfo, TokTrie};

use crate::Error;

/// Tokens by their bytes, special ones apart from text. Clones share one copy.
#[derive(Clone)]
pub struct Vocabulary {
    environment: TokEnv,
    /// A mask of all tokens but those that end an answer.
    going_on: Arc<[u32]>,
}

impl std::fmt::Debug for Vocabulary {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Vocabulary").field("len", &self.len()).finish_non_exhaustive()
    }
}

impl Vocabulary {
    /// Builds the table for ids `0..count`. `bytes` gives a token's share of the text, or a special token's name; a hole
    /// is empty. `ending` are the tokens that end an answer.
    ///
    /// # Errors
    /// [`Error::NoEnd`] when none of `ending` is a token.
    pub fn new<'a>(
        count: u32,
        bytes: impl Fn(u32) -> &'a [u8],
        is_special: impl Fn(u32) -> bool,
        ending: &[u32],
    ) -> Result<Self, Error> {
        let mut ending: Vec<u32> = ending.iter().copied().filter(|token| *token < count).collect();
        ending.dedup();
        let first = *ending.first().ok_or(Error::NoEnd)?;
        let word = |token: u32| {
            let bytes = bytes(token);
            // Special tokens are no text: a grammar meets them by their ids only.
            if is_special(token) || ending.contains(&token) {
                [&[TokTrie::SPECIAL_TOKEN_MARKER], bytes].concat()
            } else {
                bytes.to_vec()
            }
        };
        let words: Vec<Vec<u8>> = (0..count).map(word).collect();
        let trie = TokTrie::from(&TokRxInfo::new(count, first), &words).with_eos_tokens(&ending);
        let goes_on = |token: u32| token < count && !ending.contains(&token);
        let word = |index: u32| (0..32).fold(0, |word, bit| word | u32::from(goes_on(index * 32 + bit)) << bit);
        let going_on = (0..count.div_ceil(32)).map(word).collect();
        Ok(Self { environment: Arc::new(ApproximateTokEnv::new(trie)), going_on })
    }

    /// Ids known: `0..len`.
    #[must_use]
    pub fn len(&self) -> usize {
        self.trie().vocab_size()
    }

    /// Whether there is no token at all.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The token's bytes as they were given; empty for an unknown id.
    #[must_use]
    pub fn bytes(&self, token: u32) -> &[u8] {
        if token as usize >= self.len() {
            return &[];
        }
        let bytes = self.trie().token(token);
        bytes.strip_prefix(&[TokTrie::SPECIAL_TOKEN_MARKER]).unwrap_or(bytes)
    }

    /// The token that reads `text` on its own, special or not.
    #[must_use]
    pub fn token_of(&self, text: &str) -> Option<u32> {
        self.special(text).or_else(|| self.trie().token_id_at_bytes(text.as_bytes()))
    }

    /// The special token of this name.
    #[must_use]
    pub fn special(&self, name: &str) -> Option<u32> {
        self.trie().token_id_at_bytes(&[&[TokTrie::SPECIAL_TOKEN_MARKER], name.as_bytes()].concat())
    }

    pub(crate) fn going_on(&self) -> &[u32] {
        &self.going_on
    }

    pub(crate) fn environment(&self) -> &TokEnv {
        &self.environment
    }

    fn trie(&self) -> &TokTrie {
        self.environment.tok_trie()
    }
}
