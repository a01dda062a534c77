//! Golden vectors: `tests/vectors/sampling.json`, which every implementation of the rules must reproduce.
//!
//! The test compares; `UPDATE_VECTORS=1 cargo test -p paceline-sampling` rewrites. Floats are compared to within
//! rounding of the machine's logarithm, everything else exactly.

use std::path::{Path, PathBuf};

use paceline_sampling::ngram::{self, NgramLengths};
use paceline_sampling::noise::NoiseSource;
use paceline_sampling::{Adjustments, Context, Sampler, SamplingParams, Scratch, choice_seed, philox, token_logprobs};
use serde_json::{Value, json};

/// One rounding of an f32: log-probabilities are f32.
const RELATIVE_DIFFERENCE_MAX: f64 = 1.2e-7;

#[test]
fn golden_vectors() {
    let path = path();
    let made = vectors();
    if std::env::var_os("UPDATE_VECTORS").is_some() {
        let text = serde_json::to_string_pretty(&made).expect("encodes");
        std::fs::write(&path, compact_arrays(&text) + "\n").expect("the vectors can be written");
        return;
    }
    let text = std::fs::read_to_string(&path).expect("the vectors are committed");
    let kept: Value = serde_json::from_str(&text).expect("the vectors are JSON");
    assert_same(&kept, &made, "$");
}

fn path() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/vectors/sampling.json")
}

fn vectors() -> Value {
    let rows = rows();
    json!({
        "philox4x32_10": philox_vectors(),
        "noise": noise_vectors(),
        "choice_seeds": choice_seeds(),
        "rows": rows.iter().map(|(name, logits)| json!({"name": name, "logits": printable(logits)})).collect::<Vec<_>>(),
        "samples": rows.iter().flat_map(|(name, logits)| samples(name, logits)).collect::<Vec<_>>(),
        "verifications": verifications(&rows),
        "adjusted": adjusted(&rows),
        "logprobs": rows.iter().map(|(name, logits)| logprobs(name, logits)).collect::<Vec<_>>(),
        "ngrams": ngrams(),
    })
}

fn choice_seeds() -> Vec<Value> {
    [(7, 0, 1), (7, 0, 2), (7, 1, 2), (u64::MAX, 127, 128)]
        .map(|(seed, index, count)| {
            let of_choice = choice_seed(seed, index, count);
            json!({"seed": seed, "index": index, "count": count, "choice_seed": of_choice})
        })
        .to_vec()
}

fn philox_vectors() -> Vec<Value> {
    let pi = ([0x243F_6A88, 0x85A3_08D3, 0x1319_8A2E, 0x0370_7344], [0xA409_3822, 0x299F_31D0]);
    [([0; 4], [0; 2]), ([u32::MAX; 4], [u32::MAX; 2]), pi, ([5, 1, 49_151, 0], [7, 0])]
        .map(|(counter, key)| json!({"counter": counter, "key": key, "words": philox::philox4x32(counter, key)}))
        .to_vec()
}

fn noise_vectors() -> Vec<Value> {
    let token_ids = [0, 1, 2, 13, 49_151, 151_935, u32::MAX];
    [(0, 0), (42, 17), (u64::MAX, 1 << 33), (0x0123_4567_89AB_CDEF, 8_191)]
        .map(|(seed, index): (u64, u64)| {
            let source = NoiseSource::new(seed, index);
            let noise = token_ids.map(|token_id| source.of(token_id));
            json!({"seed": seed, "index": index, "token_ids": token_ids, "noise": noise})
        })
        .to_vec()
}

/// Rows whose values are exact in binary, so that they print and read back unchanged.
fn rows() -> Vec<(&'static str, Vec<f32>)> {
    let spread = NoiseSource::new(2026, 0);
    let eighths = |id: u32, range: u32| (spread.word(id) % range) as f32 / 8.0 - 4.0;
    let mut excluded: Vec<f32> = (0..24).map(|id| eighths(id + 300, 64)).collect();
    for id in [0, 5, 6, 23] {
        excluded[id] = f32::NEG_INFINITY;
    }
    let peaked = (0..48).map(|id| if id == 31 { 9.0 } else { eighths(id + 500, 40) }).collect();
    vec![
        ("spread", (0..64).map(|id| eighths(id, 120)).collect()),
        ("ties", (0..32).map(|id| (spread.word(id + 100) % 4) as f32 / 2.0).collect()),
        ("flat", vec![0.0; 16]),
        ("excluded", excluded),
        ("peaked", peaked),
    ]
}

fn printable(logits: &[f32]) -> Vec<Value> {
    logits.iter().map(|logit| if logit.is_finite() { json!(logit) } else { json!("-inf") }).collect()
}

fn parameter_sets() -> Vec<SamplingParams> {
    let base = SamplingParams { seed: 1234, ..SamplingParams::default() };
    vec![
        SamplingParams::greedy(),
        base.clone(),
        SamplingParams { temperature: 0.8, seed: u64::MAX - 5, ..base.clone() },
        SamplingParams { temperature: 2.5, ..base.clone() },
        SamplingParams { top_k: 1, ..base.clone() },
        SamplingParams { top_k: 5, ..base.clone() },
        SamplingParams { top_p: 0.5, temperature: 0.7, ..base.clone() },
        SamplingParams { top_p: 0.9, ..base.clone() },
        SamplingParams { min_p: 0.1, temperature: 1.5, ..base.clone() },
        SamplingParams { top_k: 10, top_p: 0.8, min_p: 0.05, temperature: 1.3, seed: 99, ..base.clone() },
    ]
}

fn described(params: &SamplingParams) -> Value {
    let hex: String = params.to_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
    json!({
        "temperature": params.temperature,
        "top_k": params.top_k,
        "top_p": params.top_p,
        "min_p": params.min_p,
        "seed": params.seed,
        "logprobs": params.logprobs,
        "bytes": hex,
    })
}

fn samples(name: &str, logits: &[f32]) -> Vec<Value> {
    let mut scratch = Scratch::default();
    let sample = |params: SamplingParams| {
        let sampler = Sampler::new(params.clone()).expect("in range");
        let kept = sampler.kept(logits, &mut scratch).expect("usable");
        let mut at = |index| sampler.sample(logits, index, &mut scratch).expect("usable");
        let token_ids: Vec<u32> = (0..12).map(&mut at).collect();
        let far = at(1 << 34);
        json!({
            "row": name,
            "params": described(&params),
            "kept": kept,
            "token_ids_from_index_0": token_ids,
            "token_id_at_index_2_to_34": far,
        })
    };
    parameter_sets().into_iter().map(sample).collect()
}

/// One row name per position; drafts are right up to one place.
fn verifications(rows: &[(&'static str, Vec<f32>)]) -> Vec<Value> {
    let (name, logits) = &rows[0];
    let params = SamplingParams { temperature: 0.9, top_k: 20, seed: 77, ..SamplingParams::default() };
    let sampler = Sampler::new(params.clone()).expect("in range");
    let mut scratch = Scratch::default();
    let first_index = 250;
    let plain: Vec<u32> = (first_index..first_index + 4)
        .map(|index| sampler.sample(logits, index, &mut scratch).expect("usable"))
        .collect();
    let wrong = |place: usize| {
        let mut drafts = plain[..3].to_vec();
        if let Some(draft) = drafts.get_mut(place) {
            *draft = (*draft + 1) % 64;
        }
        drafts
    };
    let mut verify = |drafts: Vec<u32>| {
        let positions = drafts.len() + 1;
        let mut emitted = Vec::new();
        let accepted = sampler
            .verify(&vec![&logits[..]; positions], &drafts, &Context::at(first_index), &mut scratch, &mut emitted)
            .expect("usable");
        json!({
            "row_at_every_position": name,
            "params": described(&params),
            "first_index": first_index,
            "drafts": drafts,
            "accepted": accepted,
            "emitted": emitted,
        })
    };
    let mut all: Vec<Value> = (0..4).map(|place| verify(wrong(place))).collect();
    all.push(verify(Vec::new()));
    all
}

/// Rows whose logits are adjusted by what came before, with drafts that are right up to the second.
fn adjusted(rows: &[(&'static str, Vec<f32>)]) -> Vec<Value> {
    let (name, logits) = &rows[0];
    let (prompt, output) = ([3_u32, 9, 9, 14, 27], [14_u32, 27, 27, 50]);
    let tokens = [&prompt[..], &output[..]].concat();
    let context = Context { prompt_len: prompt.len() as u64, index: tokens.len() as u64, tokens: &tokens };
    let neutral = Adjustments::default;
    let sets = [
        Adjustments { repetition_penalty: 1.5, ..neutral() },
        Adjustments { presence_penalty: 1.25, frequency_penalty: -0.5, ..neutral() },
        Adjustments { logit_bias: vec![(14, 6.5), (27, -100.0)], ..neutral() },
        Adjustments { allowed_token_ids: Some(vec![5, 14, 27, 50, 61]), ..neutral() },
        Adjustments { bad_words: vec![vec![50, 14], vec![27, 14, 5], vec![61], vec![9, 3]], ..neutral() },
        Adjustments { min_tokens: 6, ending_token_ids: vec![14, 27, 50, 61], ..neutral() },
        Adjustments {
            presence_penalty: 0.5,
            frequency_penalty: 0.75,
            repetition_penalty: 0.75,
            logit_bias: vec![(5, 4.0)],
            allowed_token_ids: Some(vec![5, 14, 27, 50]),
            bad_words: vec![vec![5, 5]],
            min_tokens: 5,
            ending_token_ids: vec![14],
        },
        Adjustments { allowed_token_ids: Some(vec![14]), min_tokens: 9, ending_token_ids: vec![14], ..neutral() },
    ];
    let mut cases = Vec::new();
    for adjust in sets {
        for temperature in [0.0, 1.0] {
            let params =
                SamplingParams { temperature, seed: 4321, adjust: adjust.clone(), ..SamplingParams::default() };
            let sampler = Sampler::new(params.clone()).expect("in range");
            let mut scratch = Scratch::default();
            let mut produce = |drafts: &[u32]| {
                let wanted = vec![&logits[..]; drafts.len() + 1];
                sampler.produce(&wanted, drafts, &context, &mut scratch).expect("usable").emitted
            };
            let first = produce(&[]);
            let second = produce(&[first[0], 0]);
            let drafts = [second[0], second[1], 63];
            let emitted = produce(&drafts);
            cases.push(json!({
                "row_at_every_position": name,
                "params": described(&params),
                "presence_penalty": adjust.presence_penalty,
                "frequency_penalty": adjust.frequency_penalty,
                "repetition_penalty": adjust.repetition_penalty,
                "logit_bias": adjust.logit_bias,
                "allowed_token_ids": adjust.allowed_token_ids,
                "bad_words": adjust.bad_words,
                "min_tokens": adjust.min_tokens,
                "ending_token_ids": adjust.ending_token_ids,
                "prompt": prompt,
                "output": output,
                "drafts": drafts,
                "emitted": emitted,
            }));
        }
    }
    cases
}

fn logprobs(name: &str, logits: &[f32]) -> Value {
    let token_id = 1;
    let found = token_logprobs(logits, token_id, 5, &mut Scratch::default()).expect("usable");
    json!({
        "row": name,
        "token_id": token_id,
        "sampled": found.sampled,
        "top": found.top.iter().map(|(id, logprob)| json!([id, logprob])).collect::<Vec<_>>(),
    })
}

fn ngrams() -> Vec<Value> {
    let histories: [&[u32]; 6] = [
        &[1, 2, 3, 4, 5, 6, 9, 1, 2, 3, 4],
        &[1, 2, 3, 70, 8, 3, 80, 2, 3],
        &[1, 2, 70, 1, 2, 80, 1, 2],
        &[9, 1, 2, 3, 4, 70, 5, 1, 2, 3, 4, 80, 9, 1, 2, 3, 4],
        &[7, 8, 9, 7, 8],
        &[1, 2, 3],
    ];
    let lengths = NgramLengths::default();
    let propose = |history: &[u32]| {
        let mut drafts = Vec::new();
        ngram::propose(history, 5, lengths, &mut drafts);
        json!({"history": history, "count": 5, "length_max": lengths.max, "length_min": lengths.min, "drafts": drafts})
    };
    histories.map(propose).to_vec()
}

/// Puts arrays of plain values on one line, to keep the file readable.
fn compact_arrays(text: &str) -> String {
    let mut lines: Vec<String> = Vec::new();
    let mut open: Option<usize> = None;
    for line in text.lines() {
        let trimmed = line.trim();
        if trimmed.ends_with('[') {
            open = Some(lines.len());
        } else if trimmed.ends_with('{') {
            open = None;
        }
        lines.push(line.to_owned());
        if let (true, Some(start)) = (trimmed.starts_with(']'), open.take_if(|_| trimmed.starts_with(']'))) {
            let parts: Vec<String> = lines.drain(start..).collect();
            let rest: Vec<&str> = parts[1..].iter().map(|part| part.trim()).collect();
            lines.push(parts[0].clone() + &rest.join(" ").replace(" ]", "]"));
        }
    }
    lines.join("\n")
}

/// Compares two JSON values, floats to within rounding.
fn assert_same(kept: &Value, made: &Value, place: &str) {
    match (kept, made) {
        (Value::Object(left), Value::Object(right)) => {
            let keys = |map: &serde_json::Map<String, Value>| map.keys().cloned().collect::<Vec<_>>();
            assert_eq!(keys(left), keys(right), "{place}");
            for (key, value) in left {
                assert_same(value, &right[key], &format!("{place}.{key}"));
            }
        }
        (Value::Array(left), Value::Array(right)) => {
            assert_eq!(left.len(), right.len(), "{place}");
            for (index, (left, right)) in left.iter().zip(right).enumerate() {
                assert_same(left, right, &format!("{place}[{index}]"));
            }
        }
        (Value::Number(left), Value::Number(right)) if left.is_f64() && right.is_f64() => {
            let (left, right) = (left.as_f64().expect("a float"), right.as_f64().expect("a float"));
            let limit = RELATIVE_DIFFERENCE_MAX * left.abs().max(1.0);
            assert!((left - right).abs() <= limit, "{place}: {left} and {right}");
        }
        _ => assert_eq!(kept, made, "{place}"),
    }
}
