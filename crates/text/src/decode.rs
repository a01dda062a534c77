//! Incremental decoding: one request's tokens in, text out, never half a character.
//!
//! For byte-level vocabularies the text is the concatenation of the tokens' bytes, so a token costs its own length and
//! the result equals a decode of the whole sequence. Other vocabularies (SentencePiece style) decode a short window of
//! tokens, because a token's text depends on its neighbours.

use crate::vocabulary::Vocabulary;
use crate::{Error, Tokenizer};

/// A run of undecodable tokens longer than this is shown as it is: no character is spread over more.
const WINDOW_TOKENS_MAX: usize = 8;

/// Prompt tokens that give the first output token of a SentencePiece vocabulary its context.
pub(crate) const CONTEXT_TOKENS: usize = 4;

/// What to do with special tokens (`<|im_end|>`, ...).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SpecialTokens {
    /// Leave them out of the text.
    Skip,
    /// Show them as themselves.
    Show,
}

/// Decoder state of one request.
#[derive(Debug, Clone)]
pub struct IncrementalDecoder {
    tokenizer: Tokenizer,
    special: SpecialTokens,
    state: State,
}

#[derive(Debug, Clone)]
enum State {
    /// Bytes of a character that is not complete yet: at most three.
    Bytes(Vec<u8>),
    Window(Window),
}

/// Tokens `..read` were shown (and are kept as context), the rest wait.
#[derive(Debug, Clone)]
struct Window {
    ids: Vec<u32>,
    read: usize,
}

impl IncrementalDecoder {
    /// A decoder for text that follows `prompt`. See [`Tokenizer::decoder`].
    pub(crate) fn new(tokenizer: Tokenizer, special: SpecialTokens, prompt: &[u32]) -> Self {
        let state = if tokenizer.vocabulary().is_byte_level() {
            State::Bytes(Vec::new())
        } else {
            let ids = context(tokenizer.vocabulary(), special, prompt);
            State::Window(Window { read: ids.len(), ids })
        };
        Self { tokenizer, special, state }
    }

    /// Takes the next token and appends the text that became certain to `out`.
    ///
    /// # Errors
    /// [`Error::Decode`] when the tokenizer's own decoder fails.
    pub fn push(&mut self, token_id: u32, out: &mut String) -> Result<(), Error> {
        let vocabulary = self.tokenizer.vocabulary();
        if self.special == SpecialTokens::Skip && vocabulary.is_special(token_id) {
            return Ok(());
        }
        match &mut self.state {
            State::Bytes(pending) => {
                pending.extend_from_slice(vocabulary.bytes(token_id));
                drain_complete(pending, out);
                Ok(())
            }
            State::Window(window) => window.push(&self.tokenizer, token_id, out),
        }
    }

    /// Appends what is still held back; an incomplete character becomes U+FFFD.
    ///
    /// # Errors
    /// [`Error::Decode`] when the tokenizer's own decoder fails.
    pub fn finish(&mut self, out: &mut String) -> Result<(), Error> {
        match &mut self.state {
            State::Bytes(pending) => {
                out.push_str(&String::from_utf8_lossy(pending));
                pending.clear();
                Ok(())
            }
            State::Window(window) => window.flush(&self.tokenizer, out),
        }
    }
}

/// The end of a prompt that the first token of the output is read with. What is not shown is no context either: after
/// BOS alone, a text begins without the blank that its first token has. And no context begins within a character: a run
/// of bytes that is not whole would be unreadable to its end.
fn context(vocabulary: &Vocabulary, special: SpecialTokens, prompt: &[u32]) -> Vec<u32> {
    let mut ids = Vec::with_capacity(CONTEXT_TOKENS);
    for id in prompt.iter().rev() {
        if special == SpecialTokens::Skip && vocabulary.is_special(*id) {
            continue;
        }
        let goes_on = |id: &u32| matches!(vocabulary.bytes(*id), [0x80..=0xBF]);
        if ids.len() >= CONTEXT_TOKENS && !ids.last().is_some_and(goes_on) {
            break;
        }
        ids.push(*id);
    }
    ids.reverse();
    ids
}

impl Window {
    fn push(&mut self, tokenizer: &Tokenizer, token_id: u32, out: &mut String) -> Result<(), Error> {
        self.ids.push(token_id);
        let Some(text) = self.fresh_text(tokenizer)? else {
            return Ok(());
        };
        let certain = !text.is_empty() && !text.ends_with(char::REPLACEMENT_CHARACTER);
        if certain || self.ids.len() - self.read > WINDOW_TOKENS_MAX {
            out.push_str(&text);
            self.advance();
        }
        Ok(())
    }

    fn flush(&mut self, tokenizer: &Tokenizer, out: &mut String) -> Result<(), Error> {
        if self.read < self.ids.len() {
            out.push_str(&self.fresh_text(tokenizer)?.unwrap_or_default());
            self.advance();
        }
        Ok(())
    }

    /// The text the waiting tokens add to their context; `None` while it cannot be told apart.
    fn fresh_text(&self, tokenizer: &Tokenizer) -> Result<Option<String>, Error> {
        let context = tokenizer.decode(&self.ids[..self.read], SpecialTokens::Show)?;
        let whole = tokenizer.decode(&self.ids, SpecialTokens::Show)?;
        Ok(whole.get(context.len()..).map(str::to_owned))
    }

    /// What waited becomes the context of what follows; older context is no longer needed.
    fn advance(&mut self) {
        let fresh = self.ids.split_off(self.read);
        self.ids = fresh;
        self.read = self.ids.len();
    }
}

/// Moves the complete characters of `pending` to `out`; bytes that can never be one become U+FFFD, exactly as
/// `String::from_utf8_lossy` over the whole sequence would have it.
fn drain_complete(pending: &mut Vec<u8>, out: &mut String) {
    let mut done = 0;
    loop {
        match std::str::from_utf8(&pending[done..]) {
            Ok(text) => {
                out.push_str(text);
                done = pending.len();
                break;
            }
            Err(error) => {
                let valid = &pending[done..done + error.valid_up_to()];
                out.push_str(std::str::from_utf8(valid).expect("checked as valid up to here"));
                done += error.valid_up_to();
                let Some(broken) = error.error_len() else {
                    break;
                };
                out.push(char::REPLACEMENT_CHARACTER);
                done += broken;
            }
        }
    }
    pending.drain(..done);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_character_appears_with_its_last_byte() {
        let mut pending = Vec::new();
        let mut out = String::new();
        for byte in "é😀".bytes() {
            pending.push(byte);
            drain_complete(&mut pending, &mut out);
            assert!(!out.contains(char::REPLACEMENT_CHARACTER));
        }
        assert_eq!(out, "é😀");
        assert!(pending.is_empty());
    }

    #[test]
    fn broken_bytes_are_replaced_as_in_a_whole_decode() {
        let bytes = b"a\xE2\x28\xA1\xF0\x9F\x98z\xFF\xEF\xBF\xBD\xE2\x82";
        let mut pending = Vec::new();
        let mut out = String::new();
        for byte in bytes {
            pending.push(*byte);
            drain_complete(&mut pending, &mut out);
        }
        out.push_str(&String::from_utf8_lossy(&pending));
        assert_eq!(out, String::from_utf8_lossy(bytes));
    }
}
