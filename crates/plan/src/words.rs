//! Integer arrays as they travel: msgpack `bin` of little-endian u32.

use serde::de::{Error as _, Visitor};
use serde::{Deserialize, Deserializer};

/// Words that need no memory of their own: a step's tokens of a row, or its new blocks, in all usual cases.
const IN_PLACE: usize = 7;

/// An array of u32 that encodes as one msgpack `bin`. A short one is kept in place.
#[derive(Clone)]
pub struct Words(Store);

#[derive(Clone)]
enum Store {
    InPlace { len: u8, words: [u32; IN_PLACE] },
    Apart(Vec<u32>),
}

impl Words {
    /// No word.
    pub const EMPTY: Self = Self(Store::InPlace { len: 0, words: [0; IN_PLACE] });

    /// One word.
    #[inline]
    pub const fn one(word: u32) -> Self {
        Self(Store::InPlace { len: 1, words: [word, 0, 0, 0, 0, 0, 0] })
    }

    /// The word, when there is one and only one.
    #[inline]
    pub const fn only(&self) -> Option<u32> {
        match self.0 {
            Store::InPlace { len: 1, words: [word, ..] } => Some(word),
            Store::InPlace { .. } | Store::Apart(_) => None,
        }
    }

    fn several(slice: &[u32]) -> Self {
        if slice.len() > IN_PLACE {
            return Self(Store::Apart(slice.to_vec()));
        }
        let mut words = [0; IN_PLACE];
        words[..slice.len()].copy_from_slice(slice);
        Self(Store::InPlace { len: slice.len() as u8, words })
    }

    /// Adds one word.
    #[inline]
    pub fn push(&mut self, word: u32) {
        match &mut self.0 {
            Store::InPlace { len, words } if (*len as usize) < IN_PLACE => {
                words[*len as usize] = word;
                *len += 1;
            }
            Store::InPlace { .. } => {
                let mut words = Vec::with_capacity(4 * IN_PLACE);
                words.extend_from_slice(self);
                words.push(word);
                self.0 = Store::Apart(words);
            }
            Store::Apart(words) => words.push(word),
        }
    }

    /// Adds these words.
    pub fn extend_from_slice(&mut self, more: &[u32]) {
        if let Store::Apart(words) = &mut self.0 {
            words.extend_from_slice(more);
        } else if self.len() + more.len() <= IN_PLACE {
            more.iter().for_each(|word| self.push(*word));
        } else {
            self.0 = Store::Apart([&self[..], more].concat());
        }
    }

    /// Keeps the first `most` words.
    pub fn truncate(&mut self, most: usize) {
        match &mut self.0 {
            Store::InPlace { len, .. } => *len = (*len).min(u8::try_from(most).unwrap_or(u8::MAX)),
            Store::Apart(words) => words.truncate(most),
        }
    }
}

impl std::ops::Deref for Words {
    type Target = [u32];

    #[inline]
    fn deref(&self) -> &[u32] {
        match &self.0 {
            Store::InPlace { len, words } => &words[..*len as usize],
            Store::Apart(words) => words,
        }
    }
}

impl std::ops::DerefMut for Words {
    fn deref_mut(&mut self) -> &mut [u32] {
        match &mut self.0 {
            Store::InPlace { len, words } => &mut words[..*len as usize],
            Store::Apart(words) => words,
        }
    }
}

impl Default for Words {
    fn default() -> Self {
        Self::EMPTY
    }
}

impl std::fmt::Debug for Words {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        (**self).fmt(formatter)
    }
}

impl PartialEq for Words {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl Eq for Words {}

impl From<&[u32]> for Words {
    #[inline]
    fn from(slice: &[u32]) -> Self {
        match slice {
            [word] => Self::one(*word),
            _ => Self::several(slice),
        }
    }
}

impl From<Vec<u32>> for Words {
    fn from(words: Vec<u32>) -> Self {
        if words.len() <= IN_PLACE { Self::from(&words[..]) } else { Self(Store::Apart(words)) }
    }
}

impl FromIterator<u32> for Words {
    fn from_iter<I: IntoIterator<Item = u32>>(words: I) -> Self {
        let words = words.into_iter();
        if words.size_hint().0 > IN_PLACE {
            return Self(Store::Apart(words.collect()));
        }
        words.fold(Self::EMPTY, |mut all, word| {
            all.push(word);
            all
        })
    }
}

struct WordsVisitor;

impl Visitor<'_> for WordsVisitor {
    type Value = Words;

    fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("a bin of little-endian u32")
    }

    fn visit_bytes<E: serde::de::Error>(self, bytes: &[u8]) -> Result<Words, E> {
        let (words, rest) = bytes.as_chunks::<4>();
        if !rest.is_empty() {
            return Err(E::custom(format_args!("{} bytes are no whole number of u32", bytes.len())));
        }
        Ok(words.iter().map(|word| u32::from_le_bytes(*word)).collect())
    }

    fn visit_byte_buf<E: serde::de::Error>(self, bytes: Vec<u8>) -> Result<Words, E> {
        self.visit_bytes(&bytes)
    }
}

impl<'de> Deserialize<'de> for Words {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_bytes(WordsVisitor).map_err(D::Error::custom)
    }
}

/// Opaque bytes that encode as one msgpack `bin`.
pub(crate) mod blob {
    use serde::Deserializer;

    struct BlobVisitor;

    impl serde::de::Visitor<'_> for BlobVisitor {
        type Value = Vec<u8>;

        fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            formatter.write_str("a bin")
        }

        fn visit_bytes<E: serde::de::Error>(self, bytes: &[u8]) -> Result<Vec<u8>, E> {
            Ok(bytes.to_vec())
        }

        fn visit_byte_buf<E: serde::de::Error>(self, bytes: Vec<u8>) -> Result<Vec<u8>, E> {
            Ok(bytes)
        }
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
        deserializer.deserialize_byte_buf(BlobVisitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_and_long_ones_are_alike() {
        for len in 0..20 {
            let all: Vec<u32> = (1..=len).collect();
            let mut pushed = Words::default();
            all.iter().for_each(|word| pushed.push(*word));
            let mut extended = Words::from(&all[..all.len() / 2]);
            extended.extend_from_slice(&all[all.len() / 2..]);
            let collected: Words = all.iter().copied().filter(|_| true).collect();
            for words in [&pushed, &extended, &collected, &Words::from(all.clone()), &Words::from(&all[..])] {
                assert_eq!(words[..], all[..]);
                assert_eq!(*words, pushed);
            }
            extended.truncate(5);
            assert_eq!(extended[..], all[..all.len().min(5)]);
        }
        assert_eq!(Words::one(3)[..], [3]);
        assert_eq!(size_of::<Words>(), 32, "as large as a vector and a word");
    }
}
