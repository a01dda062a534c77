//! What `config.json` says that flags are checked against, before a worker is started.

use std::path::Path;

use serde::Deserialize;

use crate::Failure;

/// The fields of a checkpoint's `config.json` that flags depend on. What it does not say binds nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub(crate) struct ModelConfig {
    num_attention_heads: Option<u32>,
    num_key_value_heads: Option<u32>,
    /// Latent attention has no key heads to share out.
    kv_lora_rank: Option<u32>,
    n_routed_experts: Option<u32>,
    num_local_experts: Option<u32>,
    num_experts: Option<u32>,
    num_nextn_predict_layers: Option<u32>,
    quantization_config: Option<QuantizationConfig>,
}

/// How a checkpoint is quantised that is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
struct QuantizationConfig {
    quant_method: Option<String>,
}

impl ModelConfig {
    /// Reads the file of a prepared folder. A folder without one has nothing to check against.
    ///
    /// # Errors
    /// [`Failure::Usage`] when it is there and is not what it should be.
    pub(crate) fn read(folder: &Path) -> Result<Self, Failure> {
        let path = folder.join("config.json");
        let Ok(text) = std::fs::read_to_string(&path) else { return Ok(Self::default()) };
        serde_json::from_str(&text).map_err(|error| Failure::Usage(format!("{}: {error}", path.display())))
    }

    /// Draft layers of the checkpoint.
    pub(crate) fn draft_layers(&self) -> u32 {
        self.num_nextn_predict_layers.unwrap_or(0)
    }

    /// Routed experts of a layer; 0 for a dense model.
    fn experts(&self) -> u32 {
        self.n_routed_experts.or(self.num_local_experts).or(self.num_experts).unwrap_or(0)
    }

    /// Whether `tp_size` workers can share the heads.
    ///
    /// # Errors
    /// [`Failure::Usage`] with the field and both numbers.
    pub(crate) fn check_heads(&self, tp_size: u32) -> Result<(), Failure> {
        let refused = |field: &str, heads: u32| {
            Failure::Usage(format!("--tensor-parallel-size is {tp_size}, it must divide {field} of the model, {heads}"))
        };
        if let Some(heads) = self.num_attention_heads.filter(|heads| !heads.is_multiple_of(tp_size)) {
            return Err(refused("num_attention_heads", heads));
        }
        // Fewer key heads than workers: some workers hold the same one.
        let uneven = |heads: &u32| !heads.is_multiple_of(tp_size) && !tp_size.is_multiple_of(*heads);
        match self.num_key_value_heads.filter(uneven) {
            Some(heads) if self.kv_lora_rank.is_none() => Err(refused("num_key_value_heads", heads)),
            _ => Ok(()),
        }
    }

    /// Whether weights may be quantised to `asked` at load.
    ///
    /// # Errors
    /// [`Failure::Usage`] with both methods where the checkpoint is quantised already.
    pub(crate) fn check_not_quantised(&self, asked: &str) -> Result<(), Failure> {
        let Some(stored) = &self.quantization_config else { return Ok(()) };
        let method = stored.quant_method.as_deref().unwrap_or("unknown");
        Err(Failure::Usage(format!(
            "--quantization is {asked}, and quantization_config of the model says that it is quantised already, by {method}"
        )))
    }

    /// Whether `workers` workers can each hold an expert.
    ///
    /// # Errors
    /// [`Failure::Usage`] with both numbers.
    pub(crate) fn check_experts(&self, workers: u32) -> Result<(), Failure> {
        match self.experts() {
            0 => Err(Failure::Usage("--enable-expert-parallel: config.json of the model names no experts".to_owned())),
            experts if experts < workers => Err(Failure::Usage(format!(
                "--enable-expert-parallel shares the experts of the model among {workers} workers, and it has {experts}"
            ))),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model(json: &str) -> ModelConfig {
        serde_json::from_str(json).expect("valid")
    }

    fn line(result: Result<(), Failure>) -> Option<String> {
        result.err().map(|failure| failure.to_string())
    }

    #[test]
    fn workers_must_divide_the_heads() {
        let grouped = model(r#"{"num_attention_heads": 12, "num_key_value_heads": 3, "other": [1]}"#);
        assert_eq!([1, 3, 6, 12].map(|tp_size| line(grouped.check_heads(tp_size))), [None, None, None, None]);
        let expected = "--tensor-parallel-size is 8, it must divide num_attention_heads of the model, 12";
        assert_eq!(line(grouped.check_heads(8)).as_deref(), Some(expected));
        assert!(line(grouped.check_heads(2)).is_some_and(|line| line.ends_with("num_key_value_heads of the model, 3")));
        let latent = model(r#"{"num_attention_heads": 4, "num_key_value_heads": 3, "kv_lora_rank": 64}"#);
        assert_eq!(line(latent.check_heads(2)), None);
        assert_eq!(line(ModelConfig::default().check_heads(5)), None);
    }

    #[test]
    fn every_worker_has_an_expert() {
        for field in ["n_routed_experts", "num_local_experts", "num_experts"] {
            let mixture = model(&format!("{{\"{field}\": 4}}"));
            assert_eq!(line(mixture.check_experts(4)), None);
            assert!(
                line(mixture.check_experts(5)).is_some_and(|line| line.contains("among 5") && line.contains("has 4"))
            );
        }
        assert!(line(ModelConfig::default().check_experts(1)).is_some_and(|line| line.contains("names no experts")));
    }

    #[test]
    fn what_is_quantised_is_not_quantised_again() {
        let stored = model(r#"{"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}"#);
        let expected =
            "--quantization is int8, and quantization_config of the model says that it is quantised already, by fp8";
        assert_eq!(line(stored.check_not_quantised("int8")).as_deref(), Some(expected));
        assert_eq!(line(model(r#"{"quantization_config": null}"#).check_not_quantised("int8")), None);
    }

    #[test]
    fn a_folder_without_the_file_binds_nothing() {
        assert_eq!(ModelConfig::read(Path::new("/nonexistent")).ok(), Some(ModelConfig::default()));
        assert_eq!(ModelConfig::default().draft_layers(), 0);
    }
}
