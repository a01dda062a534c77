//! The model of a scripted worker: a token is a function of the tokens before it, and of nothing else.
//!
//! So the text of a request is known in advance, whatever the batches, the ranks, preemptions and drafts were.

use paceline_plan::Words;

const OFFSET_BASIS: u64 = 0xcbf2_9ce4_8422_2325;
const PRIME: u64 = 0x0000_0100_0000_01b3;

fn mix(hash: u64, word: u32) -> u64 {
    word.to_le_bytes().iter().fold(hash, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(PRIME))
}

/// The token that follows `tokens`, prompt and output, of a vocabulary of `vocab_size`.
pub fn next_token(tokens: &[u32], vocab_size: u32) -> u32 {
    let hash = tokens.iter().fold(OFFSET_BASIS, |hash, token| mix(hash, *token));
    let folded = (hash ^ (hash >> 32)) & u64::from(u32::MAX);
    (folded % u64::from(vocab_size.max(1))) as u32
}

/// The token that follows `tokens` where only some may: the model's own, else the next higher one that is allowed,
/// counted round.
pub fn masked_token(tokens: &[u32], vocab_size: u32, mask: Option<&Option<Words>>) -> u32 {
    let own = next_token(tokens, vocab_size);
    let Some(Some(mask)) = mask else { return own };
    let allows = |token: &u32| mask[*token as usize / 32] >> (token % 32) & 1 == 1;
    (0..vocab_size).map(|step| (own + step) % vocab_size).find(allows).unwrap_or(own)
}

/// The `count` tokens that follow `prompt`.
pub fn continuation(prompt: &[u32], count: usize, vocab_size: u32) -> Vec<u32> {
    let mut tokens = prompt.to_vec();
    for _ in 0..count {
        tokens.push(next_token(&tokens, vocab_size));
    }
    tokens.split_off(prompt.len())
}

/// Up to `count` drafts for what follows `tokens`: each is right with `accept_percent`, by a hash of the tokens.
pub fn drafts(tokens: &[u32], count: u32, accept_percent: u32, vocab_size: u32) -> Vec<u32> {
    let mut known = tokens.to_vec();
    for index in 0..count {
        let token = next_token(&known, vocab_size);
        let right = mix(mix(OFFSET_BASIS, token), known.len() as u32 ^ index) >> 16;
        known.push(if right % 100 < u64::from(accept_percent) { token } else { (token + 1) % vocab_size.max(1) });
    }
    known.split_off(tokens.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_is_a_function_of_the_prompt() {
        let whole = continuation(&[1, 2, 3], 10, 1000);
        let mut prompt = vec![1, 2, 3];
        prompt.extend_from_slice(&whole[..4]);
        assert_eq!(continuation(&prompt, 6, 1000), whole[4..]);
        assert_ne!(continuation(&[1, 2, 4], 10, 1000), whole);
    }

    #[test]
    fn drafts_are_right_as_often_as_asked() {
        let prompt: Vec<u32> = (0..50).collect();
        let truth = continuation(&prompt, 5, 500);
        assert_eq!(drafts(&prompt, 5, 100, 500), truth);
        assert_ne!(drafts(&prompt, 5, 0, 500)[0], truth[0]);
    }
}
