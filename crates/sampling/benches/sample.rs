//! Microseconds to sample one row: `cargo bench -p paceline-sampling`.
//!
//! Rows look like those of a language model: normal logits, a few likely tokens on top.

use std::hint::black_box;
use std::time::Instant;

use paceline_sampling::{Sampler, SamplingParams, Scratch, noise::NoiseSource, token_logprobs};

const ROUNDS: u64 = 200;

fn main() {
    for vocab_size in [49_152_u32, 151_936] {
        let logits = model_like_row(vocab_size);
        let base = SamplingParams { temperature: 0.8, seed: 7, ..SamplingParams::default() };
        let cases = [
            ("greedy", SamplingParams::greedy()),
            ("temperature 0.8", base.clone()),
            ("top-k 40", SamplingParams { top_k: 40, ..base.clone() }),
            ("top-p 0.95", SamplingParams { top_p: 0.95, ..base.clone() }),
            ("top-k 40, top-p 0.95", SamplingParams { top_k: 40, top_p: 0.95, ..base.clone() }),
            ("min-p 0.05", SamplingParams { min_p: 0.05, ..base.clone() }),
        ];
        let mut scratch = Scratch::default();
        for (name, params) in cases {
            let sampler = Sampler::new(params).expect("in range");
            report(vocab_size, name, |index| {
                black_box(sampler.sample(&logits, index, &mut scratch).expect("usable"));
            });
        }
        report(vocab_size, "logprobs 5", |_| {
            black_box(token_logprobs(&logits, 3, 5, &mut scratch).expect("usable"));
        });
    }
}

fn report(vocab_size: u32, name: &str, mut work: impl FnMut(u64)) {
    let start = Instant::now();
    for index in 0..ROUNDS {
        work(index);
    }
    let microseconds = start.elapsed().as_secs_f64() * 1e6 / f64::from(u32::try_from(ROUNDS).expect("small"));
    println!("{vocab_size:>7} tokens  {name:<22} {microseconds:>8.1} us");
}

/// Sums of uniform words make normal logits with a deviation near 2.5; every thousandth token is lifted.
fn model_like_row(vocab_size: u32) -> Vec<f32> {
    let sources: Vec<NoiseSource> = (0..12).map(|index| NoiseSource::new(1, index)).collect();
    let uniform = |source: &NoiseSource, id| f64::from(source.word(id)) / 4_294_967_296.0 - 0.5;
    let logit = |id: u32| {
        let normal: f64 = sources.iter().map(|source| uniform(source, id)).sum();
        (normal * 2.5 + if id % 1000 == 3 { 12.0 } else { 0.0 }) as f32
    };
    (0..vocab_size).map(logit).collect()
}
