//! Integer arrays as they travel: msgpack `bin` of little-endian u32.

use serde::de::{Error as _, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// An array of u32 that encodes as one msgpack `bin`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Words(pub Vec<u32>);

impl Words {
    /// How many words.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// True when there is no word.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds one word.
    pub fn push(&mut self, word: u32) {
        self.0.push(word);
    }
}

impl std::ops::Deref for Words {
    type Target = [u32];

    fn deref(&self) -> &[u32] {
        &self.0
    }
}

impl From<Vec<u32>> for Words {
    fn from(words: Vec<u32>) -> Self {
        Self(words)
    }
}

impl FromIterator<u32> for Words {
    fn from_iter<I: IntoIterator<Item = u32>>(words: I) -> Self {
        Self(words.into_iter().collect())
    }
}

impl Serialize for Words {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut bytes = vec![0; self.0.len() * 4];
        for (to, word) in bytes.as_chunks_mut::<4>().0.iter_mut().zip(&self.0) {
            *to = word.to_le_bytes();
        }
        serializer.serialize_bytes(&bytes)
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
    use serde::{Deserializer, Serializer};

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

    pub(crate) fn serialize<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(bytes)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
        deserializer.deserialize_byte_buf(BlobVisitor)
    }
}
