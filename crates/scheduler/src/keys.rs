//! Names of KV blocks by what is in them: a chained keyed hash, so that equal names mean equal tokens from the start of
//! the request, and nobody without the key can make two that collide.

use std::hash::Hasher;

use siphasher::sip128::{Hasher128, SipHasher24};

/// The secret that block keys are made with: 128 random bits from outside, drawn anew with every start.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct CacheSecret(u64, u64);

impl CacheSecret {
    /// Wraps the two halves.
    pub const fn new(first: u64, second: u64) -> Self {
        Self(first, second)
    }

    fn hasher(self) -> SipHasher24 {
        SipHasher24::new_with_keys(self.0, self.1)
    }

    /// The key before the first block: requests with another salt share nothing.
    pub(crate) fn root(self, salt: &[u8]) -> BlockKey {
        let mut hasher = self.hasher();
        hasher.write(b"root");
        hasher.write(salt);
        finish(&hasher)
    }

    /// The key of a block from the key before it and the block's tokens.
    pub(crate) fn next(self, before: BlockKey, tokens: &[u32]) -> BlockKey {
        let mut hasher = self.hasher();
        hasher.write(&before.0.to_le_bytes());
        let mut bytes = [0; 64];
        for some in tokens.chunks(bytes.len() / 4) {
            for (place, token) in bytes.chunks_exact_mut(4).zip(some) {
                place.copy_from_slice(&token.to_le_bytes());
            }
            hasher.write(&bytes[..some.len() * 4]);
        }
        finish(&hasher)
    }
}

impl std::fmt::Debug for CacheSecret {
    /// Never shows the secret.
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("CacheSecret(..)")
    }
}

fn finish(hasher: &SipHasher24) -> BlockKey {
    // 0 is no key; no tokens are known that hash to it.
    BlockKey(hasher.finish128().as_u128().max(1))
}

/// What a full block holds: the hash of all tokens from the request's start to the block's end, and of the salt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockKey(pub(crate) u128);

impl BlockKey {
    /// No key: the block's contents are known to its owner only.
    pub(crate) const NONE: Self = Self(0);

    /// The number.
    pub const fn get(self) -> u128 {
        self.0
    }
}

/// The keys of a request's full blocks, as far as they were needed.
#[derive(Clone, Debug, Default)]
pub(crate) struct KeyChain {
    root: BlockKey,
    keys: Vec<BlockKey>,
}

impl KeyChain {
    pub(crate) fn new(secret: CacheSecret, salt: &[u8]) -> Self {
        Self { root: secret.root(salt), keys: Vec::new() }
    }

    /// Names every block that `tokens` fill.
    pub(crate) fn extend(&mut self, secret: CacheSecret, tokens: &[u32], block_size: u32) {
        let size = block_size as usize;
        for block in tokens.chunks_exact(size).skip(self.keys.len()) {
            let before = self.keys.last().copied().unwrap_or(self.root);
            self.keys.push(secret.next(before, block));
        }
    }

    /// Room for the names of so many blocks.
    pub(crate) fn make_room(&mut self, blocks: usize) {
        self.keys.reserve(blocks.saturating_sub(self.keys.len()));
    }

    pub(crate) fn keys(&self) -> &[BlockKey] {
        &self.keys
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(secret: CacheSecret, salt: &[u8], tokens: &[u32]) -> Vec<BlockKey> {
        let mut chain = KeyChain::new(secret, salt);
        chain.extend(secret, tokens, 2);
        chain.keys().to_vec()
    }

    #[test]
    fn a_key_depends_on_everything_before_it_on_the_salt_and_on_the_secret() {
        let secret = CacheSecret::new(1, 2);
        let all = keys(secret, b"", &[1, 2, 3, 4, 5]);
        assert_eq!(all.len(), 2, "a block that is not full has no key");
        assert_eq!(all, keys(secret, b"", &[1, 2, 3, 4]));
        assert_ne!(all[1], keys(secret, b"", &[9, 2, 3, 4])[1], "the same block after another prefix");
        assert_ne!(all[1], keys(secret, b"", &[3, 4])[0], "the same block elsewhere");
        assert_ne!(all[0], keys(secret, b"tenant", &[1, 2])[0]);
        assert_ne!(all[0], keys(CacheSecret::new(1, 3), b"", &[1, 2])[0]);
        assert!(!format!("{secret:?}").contains('2'), "{secret:?}");
    }

    #[test]
    fn keys_grow_with_the_tokens() {
        let secret = CacheSecret::new(5, 6);
        let tokens: Vec<u32> = (0..400).collect();
        let mut chain = KeyChain::new(secret, b"");
        for len in 0..=tokens.len() {
            chain.extend(secret, &tokens[..len], 100);
            assert_eq!(chain.keys().len(), len / 100);
        }
        let mut whole = KeyChain::new(secret, b"");
        whole.extend(secret, &tokens, 100);
        assert_eq!(whole.keys(), chain.keys());
    }
}
