//! Which tokens of a row may be chosen at all, said from outside.

/// Excludes every token whose bit is not set in `allowed`, or that has none. False when none is left.
pub(crate) fn keep_allowed(row: &mut [f32], allowed: &[u32]) -> bool {
    let mut left = false;
    let mut words = allowed.iter();
    for logits in row.chunks_mut(32) {
        let word = words.next().copied().unwrap_or(0);
        if word == 0 {
            logits.fill(f32::NEG_INFINITY);
            continue;
        }
        for (bit, logit) in logits.iter_mut().enumerate() {
            if word >> bit & 1 == 0 {
                *logit = f32::NEG_INFINITY;
            }
            left |= *logit != f32::NEG_INFINITY;
        }
    }
    left
}

#[cfg(test)]
mod tests {
    use crate::{Adjustments, Context, Sampler, SamplingParams, Scratch};

    fn greedy(adjust: Adjustments) -> Sampler {
        Sampler::new(SamplingParams { adjust, ..SamplingParams::greedy() }).expect("in range")
    }

    fn chosen(sampler: &Sampler, logits: &[f32], allowed: &[u32]) -> u32 {
        let mut scratch = Scratch::default();
        // Twice: nothing of the first use may show in the second.
        let mut choose =
            || sampler.choose_allowed(logits, &Context::at(5), &[], allowed, &mut scratch).expect("one is left");
        let first = choose();
        assert_eq!(choose(), first);
        first
    }

    #[test]
    fn only_allowed_tokens_are_chosen() {
        let logits: Vec<f32> = (0..70).map(|id| id as f32).collect();
        let sampler = greedy(Adjustments::default());
        assert_eq!(chosen(&sampler, &logits, &[1 << 3 | 1 << 31, 1, 0]), 32);
        assert_eq!(chosen(&sampler, &logits, &[1 << 3, 0, 1 << 5]), 69);
        // A mask that ends early excludes the rest.
        assert_eq!(chosen(&sampler, &logits, &[u32::MAX]), 31);
    }

    #[test]
    fn what_is_allowed_counts_for_more_than_adjustments() {
        let adjust = Adjustments { min_tokens: 9, ending_token_ids: vec![2], ..Adjustments::default() };
        assert_eq!(chosen(&greedy(adjust.clone()), &[1.0, 0.5, 2.0], &[0b110]), 1);
        assert_eq!(chosen(&greedy(adjust), &[1.0, 0.5, 2.0], &[0b100]), 2);
        let adjust = Adjustments { allowed_token_ids: Some(vec![0]), ..Adjustments::default() };
        assert_eq!(chosen(&greedy(adjust), &[1.0, 0.5, 2.0], &[0b110]), 2);
    }

    #[test]
    fn c15_verified_drafts_and_log_probabilities_are_those_of_masked_sampling_one_by_one() {
        let params =
            SamplingParams { temperature: 0.7, top_k: 5, seed: 11, logprobs: Some(2), ..SamplingParams::default() };
        let sampler = Sampler::new(params).expect("in range");
        let mut scratch = Scratch::default();
        let rows: Vec<Vec<f32>> =
            (0..4_u32).map(|row| (0..40_u32).map(|id| ((id * 7 + row * 13) % 11) as f32).collect()).collect();
        let masks: [&[u32]; 4] = [&[0xF0F0, 0], &[0xFFFF_0000, 3], &[0x11, 0xFF], &[u32::MAX, 0xFF]];
        let mut one_by_one = Vec::new();
        for (index, (row, mask)) in rows.iter().zip(masks).enumerate() {
            let context = Context::at(20 + index as u64);
            let produced = sampler.produce_allowed(&[row], &[Some(mask)], &[], &context, &mut scratch).expect("usable");
            let token = produced.emitted[0];
            assert_eq!(mask[token as usize / 32] >> (token % 32) & 1, 1);
            let raw = crate::token_logprobs(row, token, 2, &mut scratch).expect("usable");
            assert_eq!(produced.logprobs, std::slice::from_ref(&raw));
            one_by_one.push((token, raw));
        }
        let drafts: Vec<u32> = one_by_one[..3].iter().map(|(token, _)| *token).collect();
        let views: Vec<&[f32]> = rows.iter().map(Vec::as_slice).collect();
        let all = masks.map(Some);
        let together = sampler.produce_allowed(&views, &all, &drafts, &Context::at(20), &mut scratch).expect("usable");
        let found: Vec<_> = together.emitted.into_iter().zip(together.logprobs).collect();
        assert_eq!((together.accepted, found), (3, one_by_one));
    }
}
