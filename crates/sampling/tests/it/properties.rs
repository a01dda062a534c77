//! Properties: the fast filters and the fast search equal the slow ones, and verification never changes the text.

use paceline_sampling::ngram::{self, NgramLengths};
use paceline_sampling::{Adjustments, Context, Error, Produced, Sampler, SamplingParams, Scratch};
use proptest::prelude::*;

use crate::naive;

/// Rows with many ties, excluded tokens and a wide or narrow range.
fn row(vocab_size: impl Into<prop::collection::SizeRange>) -> impl Strategy<Value = Vec<f32>> {
    let logit = prop_oneof![
        4 => (-12_i16..12).prop_map(|step| f32::from(step) * 0.5),
        4 => -8.0_f32..8.0,
        1 => Just(f32::NEG_INFINITY),
        1 => Just(-0.0_f32),
        1 => -1e-30_f32..1e-30,
    ];
    (prop::collection::vec(logit, vocab_size), 0.0_f32..3.0).prop_map(|(mut logits, first)| {
        logits[0] = first;
        logits
    })
}

fn params() -> impl Strategy<Value = SamplingParams> {
    let temperature = prop_oneof![Just(0.0_f32), Just(1.0), 0.05_f32..4.0, Just(1e-30), Just(1e30)];
    let top_k = prop_oneof![Just(0_u32), 1_u32..12, 1_u32..4000];
    let top_p = prop_oneof![Just(1.0_f32), 0.01_f32..1.0, Just(0.5), Just(1e-6), Just(0.999_999_9)];
    let min_p = prop_oneof![Just(0.0_f32), 0.0_f32..1.0, Just(1.0), Just(1e-20)];
    (temperature, top_k, top_p, min_p, any::<u64>()).prop_map(|(temperature, top_k, top_p, min_p, seed)| {
        SamplingParams { temperature, top_k, top_p, min_p, seed, ..SamplingParams::default() }
    })
}

fn views(rows: &[Vec<f32>]) -> Vec<&[f32]> {
    rows.iter().map(Vec::as_slice).collect()
}

fn sampler(params: SamplingParams) -> Sampler {
    Sampler::new(params).expect("in range")
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]

    #[test]
    fn filters_keep_what_the_plain_ones_keep(logits in row(1..80), params in params()) {
        let mut scratch = Scratch::default();
        let kept = sampler(params.clone()).kept(&logits, &mut scratch);
        prop_assert_eq!(kept, Ok(naive::kept(&params, &logits)));
    }

    #[test]
    fn the_token_is_the_one_of_a_full_search(logits in row(1..80), params in params(), index in any::<u64>()) {
        let mut scratch = Scratch::default();
        let sampler = sampler(params.clone());
        for index in (0..8).map(|step| index.wrapping_add(step)) {
            let token_id = sampler.sample(&logits, index, &mut scratch);
            prop_assert_eq!(token_id, Ok(naive::sample(&params, &logits, index)));
        }
    }

    #[test]
    fn verification_emits_the_tokens_of_sampling_one_by_one(
        rows in prop::collection::vec(row(12), 1..9),
        params in params(),
        first_index in 0_u64..1 << 40,
        wrong_from in 0_usize..9,
        noise in prop::collection::vec(0_u32..12, 8),
    ) {
        let mut scratch = Scratch::default();
        let sampler = sampler(params);
        let mut expected = Vec::new();
        for (logits, index) in rows.iter().zip(first_index..) {
            expected.push(sampler.sample(logits, index, &mut scratch).expect("usable"));
        }
        let drafts: Vec<u32> = (0..rows.len() - 1)
            .map(|position| if position < wrong_from { expected[position] } else { noise[position] })
            .collect();
        let mut emitted = vec![77];
        let accepted = sampler
            .verify(&views(&rows), &drafts, &Context::at(first_index), &mut scratch, &mut emitted)
            .expect("usable");
        prop_assert_eq!(&emitted[..1], &[77]);
        prop_assert_eq!(&emitted[1..], &expected[..=accepted]);
        prop_assert_eq!(&drafts[..accepted], &expected[..accepted]);
        prop_assert!(accepted == drafts.len() || drafts[accepted] != expected[accepted]);
    }
}

fn adjustments() -> impl Strategy<Value = Adjustments> {
    let penalty = || prop_oneof![Just(0.0_f32), -2.0_f32..2.0];
    let token = || 0_u32..12;
    (
        (penalty(), penalty(), prop_oneof![Just(1.0_f32), 0.5_f32..2.0]),
        prop::collection::vec((token(), -5.0_f32..5.0), 0..3),
        prop::option::of(prop::collection::vec(token(), 1..8)),
        prop::collection::vec(prop::collection::vec(token(), 1..3), 0..4),
        (0_u32..12, prop::collection::vec(token(), 0..3)),
    )
        .prop_map(
            |((presence_penalty, frequency_penalty, repetition_penalty), logit_bias, allowed, words, ending)| {
                Adjustments {
                    presence_penalty,
                    frequency_penalty,
                    repetition_penalty,
                    logit_bias,
                    allowed_token_ids: allowed,
                    bad_words: words,
                    min_tokens: ending.0,
                    ending_token_ids: ending.1,
                }
            },
        )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]

    /// However many drafts are verified at once, and wherever the prompt ends: the tokens are those of a plain loop
    /// that adjusts each row by everything before it.
    #[test]
    fn c15_adjusted_text_is_the_same_with_and_without_drafts(
        rows in prop::collection::vec(prop::collection::vec(-4.0_f32..4.0, 12), 1..12),
        params in params(),
        adjust in adjustments(),
        prompt in prop::collection::vec(0_u32..12, 1..6),
        widths in prop::collection::vec(0_usize..5, 12),
        right in prop::collection::vec(any::<bool>(), 12),
    ) {
        let params = SamplingParams { adjust, ..params };
        let mut tokens = prompt.clone();
        for logits in &rows {
            let adjusted = naive::adjusted(&params.adjust, logits, &prompt, &tokens[prompt.len()..]);
            tokens.push(naive::sample(&params, &adjusted, tokens.len() as u64));
        }
        let sampler = sampler(params);
        let (mut scratch, mut known, mut widths) = (Scratch::default(), prompt.clone(), widths.into_iter());
        while known.len() < tokens.len() {
            let step = known.len() - prompt.len();
            let width = widths.next().unwrap_or(0).min(rows.len() - step - 1);
            let drafts: Vec<u32> = (known.len()..known.len() + width)
                .map(|place| if right[place - prompt.len()] { tokens[place] } else { (tokens[place] + 1) % 12 })
                .collect();
            let context = Context { prompt_len: prompt.len() as u64, index: known.len() as u64, tokens: &known };
            let wanted = views(&rows[step..=step + width]);
            let produced = sampler.produce(&wanted, &drafts, &context, &mut scratch).expect("usable");
            known.extend(produced.emitted);
        }
        prop_assert_eq!(known, tokens);
    }

    #[test]
    fn the_bytes_of_adjustments_read_back(params in params(), adjust in adjustments()) {
        let params = SamplingParams { adjust, ..params };
        prop_assert_eq!(SamplingParams::from_bytes(&params.to_bytes()), Ok(params));
    }

    #[test]
    fn drafts_are_those_of_the_plain_lookup(
        history in prop::collection::vec(0_u32..4, 0..40),
        count in 0_usize..6,
        shortest in 1_usize..4,
        more in 0_usize..4,
    ) {
        let lengths = NgramLengths { max: shortest + more, min: shortest };
        let mut drafts = Vec::new();
        ngram::propose(&history, count, lengths, &mut drafts);
        prop_assert_eq!(drafts, naive::propose(&history, count, lengths.max, lengths.min));
    }

    #[test]
    fn the_bytes_of_valid_parameters_read_back(params in params()) {
        prop_assert_eq!(SamplingParams::from_bytes(&params.to_bytes()), Ok(params));
    }

    #[test]
    fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
        if let Ok(params) = SamplingParams::from_bytes(&bytes) {
            prop_assert_eq!(params.validate(), Ok(()));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn long_rows_too(logits in row(2000..6000), params in params(), index in any::<u64>()) {
        let mut scratch = Scratch::default();
        let sampler = sampler(params.clone());
        prop_assert_eq!(sampler.kept(&logits, &mut scratch), Ok(naive::kept(&params, &logits)));
        let token_id = sampler.sample(&logits, index, &mut scratch);
        prop_assert_eq!(token_id, Ok(naive::sample(&params, &logits, index)));
    }
}

#[test]
fn frequencies_follow_the_probabilities() {
    let probabilities = [0.5_f32, 0.25, 0.125, 0.125];
    let logits = probabilities.map(f32::ln);
    let sampler = sampler(SamplingParams { seed: 5, ..SamplingParams::default() });
    let mut scratch = Scratch::default();
    let draws = 40_000_u32;
    let mut counts = [0_u32; 4];
    for index in 0..u64::from(draws) {
        let token_id = sampler.sample(&logits, index, &mut scratch).expect("usable");
        counts[usize::try_from(token_id).expect("small")] += 1;
    }
    for (count, probability) in counts.into_iter().zip(probabilities) {
        let deviation = (f64::from(count) / f64::from(draws) - f64::from(probability)).abs();
        assert!(deviation < 0.01, "{counts:?}");
    }
}

#[test]
fn verify_refuses_another_number_of_rows() {
    let sampler = sampler(SamplingParams::greedy());
    let (mut scratch, mut emitted) = (Scratch::default(), Vec::new());
    let row: &[f32] = &[0.0; 4];
    let error = sampler.verify(&[row, row], &[1, 2], &Context::at(0), &mut scratch, &mut emitted);
    assert_eq!(error, Err(Error::LogitsRows { expected: 3, got: 2 }));
    assert!(emitted.is_empty());
}

#[test]
fn logprobs_with_drafts_are_those_without() {
    let params = SamplingParams { temperature: 0.5, logprobs: Some(5), seed: 3, ..SamplingParams::default() };
    let sampler = sampler(params);
    let mut scratch = Scratch::default();
    let rows: Vec<Vec<f32>> =
        (0..4_u16).map(|row| (0..32_u16).map(|id| f32::from((id * 7 + row * 11) % 13) / 3.0).collect()).collect();
    let one_by_one: Vec<Produced> = rows
        .iter()
        .zip(40..)
        .map(|(row, index)| sampler.produce(&[row], &[], &Context::at(index), &mut scratch).expect("usable"))
        .collect();
    let drafts: Vec<u32> = one_by_one[..3].iter().map(|produced| produced.emitted[0]).collect();
    let together = sampler.produce(&views(&rows), &drafts, &Context::at(40), &mut scratch).expect("usable");
    assert_eq!(together.accepted, 3);
    assert_eq!(together.emitted, one_by_one.iter().map(|produced| produced.emitted[0]).collect::<Vec<_>>());
    assert_eq!(together.logprobs, one_by_one.iter().map(|produced| produced.logprobs[0].clone()).collect::<Vec<_>>());
    assert!(together.logprobs.iter().all(|found| found.sampled < 0.0 && found.top.len() == 5));
}
