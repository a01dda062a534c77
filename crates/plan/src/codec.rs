//! Bytes: msgpack with structs as arrays, and the digest of a group part.

use serde::de::DeserializeOwned;

use crate::Error;

/// A checked type and the plain form in which it travels.
pub trait Coded: Sized {
    /// The plain form, as it is read.
    type Wire: DeserializeOwned;

    /// Adds the bytes of the plain form at the end of a buffer.
    fn append_to(&self, bytes: &mut Vec<u8>);

    /// The checked value.
    ///
    /// # Errors
    /// The broken rule with both numbers.
    fn from_wire(wire: Self::Wire) -> Result<Self, Error>;
}

/// Encodes a part of a plan, or a reply.
pub fn to_bytes<T: Coded>(value: &T) -> Vec<u8> {
    let mut bytes = Vec::new();
    value.append_to(&mut bytes);
    bytes
}

/// Decodes and checks.
///
/// # Errors
/// [`Error::Decode`] for bytes that are no value of `T`; [`Error::Rule`] for a value that breaks a rule.
// Apart from its callers, so that a profile tells what decoding costs.
#[inline(never)]
pub fn from_bytes<T: Coded>(bytes: &[u8]) -> Result<T, Error> {
    let wire = rmp_serde::from_slice(bytes).map_err(|error| Error::Decode { message: error.to_string() })?;
    T::from_wire(wire)
}

/// FNV-1a 64 of the encoded group part: sent with it and echoed by every reply, so that a rank that executed
/// another plan is found at once. Not a defence against an attacker; the transport is.
pub fn digest(bytes: &[u8]) -> u64 {
    digest_more(OFFSET_BASIS, bytes)
}

/// FNV-1a 64 of nothing.
pub(crate) const OFFSET_BASIS: u64 = 0xcbf2_9ce4_8422_2325;

/// The hash of what was hashed before, and these bytes.
pub(crate) fn digest_more(hash: u64, bytes: &[u8]) -> u64 {
    const PRIME: u64 = 0x0000_0100_0000_01b3;
    bytes.iter().fold(hash, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(PRIME))
}
