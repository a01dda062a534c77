//! What the load asks.

use std::path::Path;

use rand::Rng;
use rand::rngs::StdRng;
use serde_json::Value;

use crate::Error;
use crate::bench::BenchArguments;

/// Random token ids, no two prompts alike.
pub(crate) fn random(arguments: &BenchArguments, count: usize, chance: &mut StdRng) -> Vec<Value> {
    let ids = arguments.random_token_ids[0]..=arguments.random_token_ids[1];
    let prompt = |_| (0..arguments.random_input_len).map(|_| chance.random_range(ids.clone())).collect::<Vec<u32>>();
    (0..count).map(prompt).map(Value::from).collect()
}

/// Texts of a file, from the first, again from the first when there are too few.
pub(crate) fn from_file(path: &Path, count: usize) -> Result<Vec<Value>, Error> {
    let text = std::fs::read_to_string(path).map_err(|error| Error::file(path, error))?;
    let mut prompts = Vec::new();
    for (index, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let refuse = |what: &str| Error::Usage(format!("{}, line {}: {what}", path.display(), index + 1));
        let line: Value = serde_json::from_str(line).map_err(|error| refuse(&error.to_string()))?;
        let prompt = line["prompt"].as_str().ok_or_else(|| refuse("no text under \"prompt\""))?;
        prompts.push(Value::from(prompt));
    }
    if prompts.is_empty() {
        return Err(Error::Usage(format!("{}: no prompt in it", path.display())));
    }
    Ok(prompts.iter().cycle().take(count).cloned().collect())
}
