//! How the tp workers of a rank share its tokens (rule 6).

/// The tokens of tp worker `tp_rank` of `tp_size`: (first, count). Parts are contiguous and `ceil(tokens / tp_size)`
/// long, the last ones shorter or empty, so that parts of that one size, laid side by side, are the tokens in order
/// with padding at the end only. A `tp_size` of 0 counts as 1; a `tp_rank` outside it has no tokens.
pub const fn tp_share(tokens: u32, tp_size: u32, tp_rank: u32) -> (u32, u32) {
    let part = tokens.div_ceil(if tp_size == 0 { 1 } else { tp_size });
    let first = part.saturating_mul(tp_rank);
    if first >= tokens {
        return (tokens, 0);
    }
    let rest = tokens - first;
    (first, if rest < part { rest } else { part })
}

#[cfg(test)]
mod tests {
    use super::tp_share;

    #[test]
    fn shares_cover_the_tokens_once_and_in_order() {
        for tokens in 0..40 {
            for tp_size in 1..9 {
                let mut next = 0;
                for tp_rank in 0..tp_size {
                    let (first, count) = tp_share(tokens, tp_size, tp_rank);
                    assert_eq!(first, next, "{tokens} tokens, worker {tp_rank} of {tp_size}");
                    assert!(count <= tokens.div_ceil(tp_size));
                    next += count;
                }
                assert_eq!(next, tokens);
                assert_eq!(tp_share(tokens, tp_size, tp_size).1, 0);
            }
        }
    }

    #[test]
    fn a_part_before_the_last_token_is_whole() {
        assert_eq!([0, 1, 2, 3].map(|tp_rank| tp_share(5, 4, tp_rank)), [(0, 2), (2, 2), (4, 1), (5, 0)]);
        assert_eq!(tp_share(u32::MAX, 1, 0), (0, u32::MAX));
    }
}
