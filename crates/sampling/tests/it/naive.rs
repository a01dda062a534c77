//! The sampling rules written the slow and obvious way: sort everything, look at everything.

use paceline_sampling::{Adjustments, SamplingParams, noise::NoiseSource};

fn id(position: usize) -> u32 {
    u32::try_from(position).expect("small")
}

/// The tokens that the filters keep, in rank order.
pub(crate) fn kept(params: &SamplingParams, logits: &[f32]) -> Vec<u32> {
    let mut ranked: Vec<usize> = (0..logits.len()).collect();
    ranked.sort_by(|left, right| (logits[*right] + 0.0).total_cmp(&(logits[*left] + 0.0)).then(left.cmp(right)));
    if params.temperature == 0.0 {
        return vec![id(ranked[0])];
    }
    let scaled = |position: usize| f64::from(logits[position]) / f64::from(params.temperature);
    let largest = scaled(ranked[0]);
    let limit = usize::try_from(params.top_k).expect("64-bit");
    let limited = limit > 0 && limit < logits.len();
    if limited {
        ranked.truncate(limit);
    }
    if params.top_p < 1.0 {
        let weight = |position: usize| (scaled(position) - largest).exp();
        let mut order = ranked.clone();
        if !limited {
            order.sort_unstable();
        }
        let total = order.into_iter().fold(0.0, |sum, position| sum + weight(position));
        let mut sum = 0.0;
        let before_reaching = ranked.iter().take_while(|position| {
            sum += weight(**position);
            sum < f64::from(params.top_p) * total
        });
        let count = before_reaching.count() + 1;
        ranked.truncate(count);
    }
    ranked.retain(|position| scaled(*position) - largest >= f64::from(params.min_p).ln());
    ranked.into_iter().map(id).collect()
}

/// A row after its adjustments: token by token, counting by looking through everything.
pub(crate) fn adjusted(adjust: &Adjustments, logits: &[f32], prompt: &[u32], output: &[u32]) -> Vec<f32> {
    let mut row = logits.to_vec();
    for (token_id, logit) in (0..).zip(row.iter_mut()) {
        let times = output.iter().filter(|known| **known == token_id).count();
        if times > 0 || prompt.contains(&token_id) {
            *logit = if *logit > 0.0 { *logit / adjust.repetition_penalty } else { *logit * adjust.repetition_penalty };
        }
        if times > 0 {
            *logit -= adjust.frequency_penalty * times as f32;
            *logit -= adjust.presence_penalty;
        }
        for (_, bias) in adjust.logit_bias.iter().filter(|(biased, _)| *biased == token_id) {
            *logit += bias;
        }
        if adjust.allowed_token_ids.as_ref().is_some_and(|allowed| !allowed.contains(&token_id)) {
            *logit = f32::NEG_INFINITY;
        }
    }
    let mut excluded = row.clone();
    for (token_id, logit) in (0..).zip(excluded.iter_mut()) {
        let ends_word = |word: &Vec<u32>| {
            word.split_last().is_some_and(|(last, before)| *last == token_id && output.ends_with(before))
        };
        let ends_early = output.len() < usize::try_from(adjust.min_tokens).expect("small")
            && adjust.ending_token_ids.contains(&token_id);
        if ends_early || adjust.bad_words.iter().any(ends_word) {
            *logit = f32::NEG_INFINITY;
        }
    }
    if excluded.iter().all(|logit| *logit == f32::NEG_INFINITY) { row } else { excluded }
}

/// The token chosen: every kept token's score is computed.
pub(crate) fn sample(params: &SamplingParams, logits: &[f32], index: u64) -> u32 {
    let mut kept = kept(params, logits);
    if kept.len() == 1 {
        return kept[0];
    }
    kept.sort_unstable();
    let noise = NoiseSource::new(params.seed, index);
    let mut best = (f64::NEG_INFINITY, u32::MAX);
    for token_id in kept {
        let logit = logits[usize::try_from(token_id).expect("64-bit")];
        let score = f64::from(logit) / f64::from(params.temperature) + noise.of(token_id);
        if score > best.0 {
            best = (score, token_id);
        }
    }
    best.1
}

/// Prompt lookup length by length, newest occurrence first, one draft at a time.
pub(crate) fn propose(history: &[u32], count: usize, longest: usize, shortest: usize) -> Vec<u32> {
    for length in (shortest..=longest.min(history.len().saturating_sub(1))).rev() {
        let suffix = &history[history.len() - length..];
        for start in (0..history.len() - length).rev() {
            if &history[start..start + length] == suffix {
                let mut text = history.to_vec();
                for step in 0..count {
                    text.push(text[start + length + step]);
                }
                return text.split_off(history.len());
            }
        }
    }
    Vec::new()
}
