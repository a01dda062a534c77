//! What a model folder says beside its weights: special ids, lengths, default sampling.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value;

use crate::Error;

/// Lengths above this are the "no limit" marker some tokenizer files carry (1e30).
const LENGTH_MARKER: f64 = 1e9;

/// Sampling values a model's `generation_config.json` recommends; `None` where it says nothing.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SamplingDefaults {
    /// Softmax temperature; 0 when the file says `do_sample: false`.
    pub temperature: Option<f32>,
    /// Tokens kept by rank; 0 keeps all.
    pub top_k: Option<u32>,
    /// Probability mass kept, in (0, 1].
    pub top_p: Option<f32>,
    /// Smallest kept probability relative to the best token's, in [0, 1].
    pub min_p: Option<f32>,
    /// Divides positive logits of tokens that occurred, multiplies others; above 0.
    pub repetition_penalty: Option<f32>,
}

/// Facts read from `config.json`, `generation_config.json` and `tokenizer_config.json`.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ModelSettings {
    /// Ids that end a sequence, ascending, each once.
    pub eos_token_ids: Vec<u32>,
    /// The id that begins a sequence.
    pub bos_token_id: Option<u32>,
    /// Positions the model was built for, in tokens.
    pub context_tokens: Option<usize>,
    /// Rows of the embedding table; may exceed the tokenizer's vocabulary.
    pub embedding_rows: Option<usize>,
    /// Default sampling values.
    pub sampling: SamplingDefaults,
    /// Named special tokens (`bos_token`, `eos_token`, ...) as chat templates see them.
    pub special_tokens: BTreeMap<String, String>,
}

impl ModelSettings {
    /// Reads the three files of `folder`; a missing one counts as empty.
    ///
    /// # Errors
    /// [`Error::Read`] or [`Error::Parse`] for a file that exists but cannot be used.
    pub fn load(folder: &Path) -> Result<Self, Error> {
        let config = read_json(&folder.join("config.json"))?;
        let generation = read_json(&folder.join("generation_config.json"))?;
        let tokenizer = read_json(&folder.join("tokenizer_config.json"))?;
        Ok(Self::from_values(&config, &generation, &tokenizer))
    }

    /// Builds the settings from the parsed files. Unknown or ill-typed entries are passed over.
    #[must_use]
    pub fn from_values(config: &Value, generation: &Value, tokenizer: &Value) -> Self {
        // Multimodal checkpoints nest the language model's part.
        let text = config.get("text_config").filter(|nested| nested.is_object()).unwrap_or(config);
        let mut eos_token_ids = token_ids(&generation["eos_token_id"]);
        eos_token_ids.extend(token_ids(&text["eos_token_id"]));
        eos_token_ids.sort_unstable();
        eos_token_ids.dedup();
        Self {
            eos_token_ids,
            bos_token_id: token_ids(&generation["bos_token_id"])
                .first()
                .or(token_ids(&text["bos_token_id"]).first())
                .copied(),
            context_tokens: context_tokens(text, tokenizer),
            embedding_rows: length(&text["vocab_size"]),
            sampling: sampling(generation),
            special_tokens: special_tokens(tokenizer),
        }
    }
}

/// Parses a JSON file; a file that does not exist reads as `null`.
pub(crate) fn read_json(path: &Path) -> Result<Value, Error> {
    let bytes = match std::fs::read(path) {
        Ok(bytes) => bytes,
        Err(source) if source.kind() == std::io::ErrorKind::NotFound => return Ok(Value::Null),
        Err(source) => {
            return Err(Error::Read { path: path.to_owned(), source });
        }
    };
    serde_json::from_slice(&bytes).map_err(|error| Error::Parse { path: path.to_owned(), message: error.to_string() })
}

fn token_ids(value: &Value) -> Vec<u32> {
    let one = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok());
    match value {
        Value::Array(ids) => ids.iter().filter_map(one).collect(),
        other => one(other).into_iter().collect(),
    }
}

fn length(value: &Value) -> Option<usize> {
    value.as_f64().filter(|tokens| *tokens >= 1.0 && *tokens < LENGTH_MARKER).map(|tokens| tokens as usize)
}

fn context_tokens(text: &Value, tokenizer: &Value) -> Option<usize> {
    let model = ["max_position_embeddings", "n_positions", "max_seq_len", "seq_length"]
        .iter()
        .find_map(|name| length(&text[*name]));
    match (model, length(&tokenizer["model_max_length"])) {
        (Some(model), Some(tokenizer)) => Some(model.min(tokenizer)),
        (model, tokenizer) => model.or(tokenizer),
    }
}

fn sampling(generation: &Value) -> SamplingDefaults {
    let number = |name: &str| generation[name].as_f64().map(|number| number as f32);
    let greedy = generation["do_sample"] == Value::Bool(false);
    SamplingDefaults {
        temperature: if greedy { Some(0.0) } else { number("temperature").filter(|value| *value >= 0.0) },
        top_k: token_ids(&generation["top_k"]).first().copied(),
        top_p: number("top_p").filter(|value| *value > 0.0 && *value <= 1.0),
        min_p: number("min_p").filter(|value| (0.0..=1.0).contains(value)),
        repetition_penalty: number("repetition_penalty").filter(|value| *value > 0.0),
    }
}

fn special_tokens(tokenizer: &Value) -> BTreeMap<String, String> {
    let Some(entries) = tokenizer.as_object() else {
        return BTreeMap::new();
    };
    entries
        .iter()
        .filter(|(name, _)| name.ends_with("_token"))
        .filter_map(|(name, value)| {
            let content = value.as_str().or_else(|| value["content"].as_str())?;
            Some((name.clone(), content.to_owned()))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn end_ids_come_from_both_files_as_number_or_list() {
        let settings = ModelSettings::from_values(
            &json!({"eos_token_id": 2, "max_position_embeddings": 4096, "vocab_size": 10}),
            &json!({"eos_token_id": [7, 2], "bos_token_id": 1, "temperature": 0.6, "top_p": 0.9, "top_k": 20}),
            &json!({"model_max_length": 1e30, "eos_token": {"content": "</s>"}, "bos_token": "<s>", "add_bos_token": true}),
        );
        assert_eq!(settings.eos_token_ids, [2, 7]);
        assert_eq!(settings.bos_token_id, Some(1));
        assert_eq!(settings.context_tokens, Some(4096));
        assert_eq!(settings.embedding_rows, Some(10));
        assert_eq!(settings.sampling.temperature, Some(0.6));
        assert_eq!(settings.sampling.top_k, Some(20));
        assert_eq!(settings.special_tokens["eos_token"], "</s>");
        assert_eq!(settings.special_tokens.len(), 2);
    }

    #[test]
    fn nothing_said_is_nothing_known_and_greedy_models_stay_greedy() {
        let nothing = ModelSettings::from_values(&Value::Null, &Value::Null, &Value::Null);
        assert_eq!(nothing, ModelSettings::default());
        let greedy = ModelSettings::from_values(&Value::Null, &json!({"do_sample": false}), &Value::Null);
        assert_eq!(greedy.sampling.temperature, Some(0.0));
    }
}
