//! Philox4x32-10, the counter-based generator of Salmon et al. (SC 2011): a counter and a key in, four words out.

const MULTIPLIERS: [u32; 2] = [0xD251_1F53, 0xCD9E_8D57];
const WEYL: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];
const ROUNDS: usize = 10;

/// The key of a 64-bit seed: low word, high word.
#[must_use]
#[inline]
pub fn key(seed: u64) -> [u32; 2] {
    [low(seed), high(seed)]
}

/// Ten rounds.
#[must_use]
#[inline]
pub fn philox4x32(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    for round in 0..ROUNDS {
        if round > 0 {
            key = [key[0].wrapping_add(WEYL[0]), key[1].wrapping_add(WEYL[1])];
        }
        let first = u64::from(MULTIPLIERS[0]) * u64::from(counter[0]);
        let second = u64::from(MULTIPLIERS[1]) * u64::from(counter[2]);
        counter = [high(second) ^ counter[1] ^ key[0], low(second), high(first) ^ counter[3] ^ key[1], low(first)];
    }
    counter
}

#[inline]
fn low(value: u64) -> u32 {
    (value & 0xFFFF_FFFF) as u32
}

#[inline]
fn high(value: u64) -> u32 {
    (value >> 32) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The known answers published with Random123 (`kat_vectors`, philox4x32 10).
    const KNOWN_ANSWERS: [([u32; 4], [u32; 2], [u32; 4]); 3] = [
        ([0; 4], [0; 2], [0x6627_E8D5, 0xE169_C58D, 0xBC57_AC4C, 0x9B00_DBD8]),
        ([u32::MAX; 4], [u32::MAX; 2], [0x408F_276D, 0x41C8_3B0E, 0xA20B_C7C6, 0x6D54_51FD]),
        (
            [0x243F_6A88, 0x85A3_08D3, 0x1319_8A2E, 0x0370_7344],
            [0xA409_3822, 0x299F_31D0],
            [0xD16C_FE09, 0x94FD_CCEB, 0x5001_E420, 0x2412_6EA1],
        ),
    ];

    #[test]
    fn known_answers_of_random123() {
        for (counter, key, expected) in KNOWN_ANSWERS {
            assert_eq!(philox4x32(counter, key), expected);
        }
    }

    #[test]
    fn a_key_is_low_word_then_high_word() {
        assert_eq!(key(0x0123_4567_89AB_CDEF), [0x89AB_CDEF, 0x0123_4567]);
    }
}
