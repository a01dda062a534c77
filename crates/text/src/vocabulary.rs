//! The bytes behind every token id, computed once when a tokenizer is loaded.

use std::collections::HashMap;

/// Bytes and kind of each token, in one flat table indexed by id.
#[derive(Debug)]
pub(crate) struct Vocabulary {
    bytes: Vec<u8>,
    /// `ends[id]` is where the token's bytes end; they begin where the previous token's end.
    ends: Vec<usize>,
    special: Vec<bool>,
    byte_level: bool,
}

impl Vocabulary {
    /// Builds the table for ids `0..count`. `token` gives an id's string (`None` for a hole), `special` says which are.
    pub(crate) fn build(
        count: u32,
        byte_level: bool,
        token: impl Fn(u32) -> Option<String>,
        special: impl Fn(u32) -> bool,
    ) -> Self {
        let alphabet = byte_level_alphabet();
        let mut table = Self { bytes: Vec::new(), ends: Vec::new(), special: Vec::new(), byte_level };
        for id in 0..count {
            if let Some(text) = token(id) {
                let bytes = if byte_level { byte_level_bytes(&text, &alphabet) } else { sentencepiece_bytes(&text) };
                table.bytes.extend_from_slice(&bytes);
            }
            table.ends.push(table.bytes.len());
            table.special.push(special(id));
        }
        table
    }

    /// Ids known: `0..len`.
    pub(crate) fn len(&self) -> usize {
        self.ends.len()
    }

    /// Bytes of the longest token.
    pub(crate) fn longest_bytes(&self) -> usize {
        let starts = std::iter::once(&0).chain(&self.ends);
        self.ends.iter().zip(starts).map(|(end, start)| end - start).max().unwrap_or(0)
    }

    /// Whether concatenating these bytes gives exactly the decoded text.
    pub(crate) fn is_byte_level(&self) -> bool {
        self.byte_level
    }

    /// The token's bytes; empty for an unknown id.
    pub(crate) fn bytes(&self, id: u32) -> &[u8] {
        let id = id as usize;
        let Some(end) = self.ends.get(id) else {
            return &[];
        };
        let start = if id == 0 { 0 } else { self.ends[id - 1] };
        &self.bytes[start..*end]
    }

    /// Whether the token is one of the tokenizer's special ones.
    pub(crate) fn is_special(&self, id: u32) -> bool {
        self.special.get(id as usize).copied().unwrap_or(false)
    }
}

/// GPT-2's mapping of printable characters to bytes: printable bytes stand for themselves, the rest sit from U+0100 up.
fn byte_level_alphabet() -> HashMap<char, u8> {
    let mut alphabet = HashMap::with_capacity(256);
    let mut stand_in = 0x100_u32;
    for byte in 0..=u8::MAX {
        let printable = matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF);
        let character = if printable {
            char::from(byte)
        } else {
            let character = char::from_u32(stand_in).expect("the 68 code points from U+0100 up are characters");
            stand_in += 1;
            character
        };
        alphabet.insert(character, byte);
    }
    alphabet
}

/// A token outside the alphabet (added tokens with a blank, for one) stands for its own UTF-8 bytes.
fn byte_level_bytes(token: &str, alphabet: &HashMap<char, u8>) -> Vec<u8> {
    token
        .chars()
        .map(|character| alphabet.get(&character).copied())
        .collect::<Option<Vec<u8>>>()
        .unwrap_or_else(|| token.as_bytes().to_vec())
}

fn sentencepiece_bytes(token: &str) -> Vec<u8> {
    let fallback = token
        .strip_prefix("<0x")
        .and_then(|rest| rest.strip_suffix('>'))
        .filter(|digits| digits.len() == 2)
        .and_then(|digits| u8::from_str_radix(digits, 16).ok());
    match fallback {
        Some(byte) => vec![byte],
        None => token.replace('\u{2581}', " ").into_bytes(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_alphabet_covers_every_byte_once() {
        let alphabet = byte_level_alphabet();
        let mut bytes: Vec<u8> = alphabet.values().copied().collect();
        bytes.sort_unstable();
        assert_eq!(bytes, (0..=u8::MAX).collect::<Vec<u8>>());
        assert_eq!(alphabet[&'Ġ'], b' ');
        assert_eq!(alphabet[&'Ċ'], b'\n');
        assert_eq!(alphabet[&'Ń'], 0xAD);
    }

    #[test]
    fn sentencepiece_tokens_show_blanks_and_raw_bytes() {
        assert_eq!(sentencepiece_bytes("▁the"), b" the");
        assert_eq!(sentencepiece_bytes("<0xE2>"), [0xE2]);
        assert_eq!(sentencepiece_bytes("<0xZZ>"), b"<0xZZ>");
    }
}
