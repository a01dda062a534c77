//! Sampling parameters as bytes: what a plan carries without looking inside.
//!
//! A msgpack array, each f32 stored as the u32 of its bits so that no encoder can round it. Append only: a new field
//! goes last, and a shorter array gets the neutral value of each field it lacks.

use serde::{Deserialize, Serialize};

use crate::{Adjustments, Error, SamplingParams};

/// Field order on the wire: temperature, `top_k`, `top_p`, `min_p`, seed, logprobs.
#[derive(Serialize, Deserialize)]
struct Wire(u32, u32, u32, u32, u64, Option<u32>);

/// The fields that came later and are left out while they are all neutral: `prompt_logprobs`, presence, frequency and
/// repetition penalty, `logit_bias`, `allowed_token_ids`, `bad_words`, `min_tokens`, `ending_token_ids`.
#[derive(Serialize, Deserialize)]
struct LongWire(
    u32,
    u32,
    u32,
    u32,
    u64,
    Option<u32>,
    #[serde(default)] Option<u32>,
    #[serde(default)] u32,
    #[serde(default)] u32,
    #[serde(default = "one_bits")] u32,
    #[serde(default)] Vec<(u32, u32)>,
    #[serde(default)] Option<Vec<u32>>,
    #[serde(default)] Vec<Vec<u32>>,
    #[serde(default)] u32,
    #[serde(default)] Vec<u32>,
);

fn one_bits() -> u32 {
    1.0_f32.to_bits()
}

impl SamplingParams {
    /// The bytes that [`SamplingParams::from_bytes`] reads back.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let (temperature, top_p, min_p) = (self.temperature.to_bits(), self.top_p.to_bits(), self.min_p.to_bits());
        let (top_k, seed, logprobs) = (self.top_k, self.seed, self.logprobs);
        if self.prompt_logprobs.is_none() && self.adjust == Adjustments::default() {
            let wire = Wire(temperature, top_k, top_p, min_p, seed, logprobs);
            return rmp_serde::to_vec(&wire).expect("integers always encode");
        }
        let adjust = &self.adjust;
        let wire = LongWire(
            temperature,
            top_k,
            top_p,
            min_p,
            seed,
            logprobs,
            self.prompt_logprobs,
            adjust.presence_penalty.to_bits(),
            adjust.frequency_penalty.to_bits(),
            adjust.repetition_penalty.to_bits(),
            adjust.logit_bias.iter().map(|(token_id, bias)| (*token_id, bias.to_bits())).collect(),
            adjust.allowed_token_ids.clone(),
            adjust.bad_words.clone(),
            adjust.min_tokens,
            adjust.ending_token_ids.clone(),
        );
        rmp_serde::to_vec(&wire).expect("integers always encode")
    }

    /// Reads and validates parameters.
    ///
    /// # Errors
    /// The bytes are no such array, are followed by more bytes, or hold a value out of range.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, Error> {
        let mut rest = bytes;
        let wire: LongWire =
            rmp_serde::from_read(&mut rest).map_err(|error| Error::Bytes { message: error.to_string() })?;
        if !rest.is_empty() {
            return Err(Error::BytesLength { expected: bytes.len() - rest.len(), got: bytes.len() });
        }
        let params = Self {
            temperature: f32::from_bits(wire.0),
            top_k: wire.1,
            top_p: f32::from_bits(wire.2),
            min_p: f32::from_bits(wire.3),
            seed: wire.4,
            logprobs: wire.5,
            prompt_logprobs: wire.6,
            adjust: Adjustments {
                presence_penalty: f32::from_bits(wire.7),
                frequency_penalty: f32::from_bits(wire.8),
                repetition_penalty: f32::from_bits(wire.9),
                logit_bias: wire.10.into_iter().map(|(token_id, bits)| (token_id, f32::from_bits(bits))).collect(),
                allowed_token_ids: wire.11,
                bad_words: wire.12,
                min_tokens: wire.13,
                ending_token_ids: wire.14,
            },
        };
        params.validate()?;
        Ok(params)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_survives() {
        let params = SamplingParams {
            temperature: 0.1,
            top_k: 40,
            top_p: 0.95,
            min_p: 0.05,
            seed: u64::MAX,
            logprobs: Some(0),
            ..SamplingParams::default()
        };
        assert_eq!(SamplingParams::from_bytes(&params.to_bytes()), Ok(params.clone()));
        let adjust = Adjustments {
            presence_penalty: 0.1,
            frequency_penalty: -0.3,
            repetition_penalty: 1.1,
            logit_bias: vec![(7, 0.7), (8, -100.0)],
            allowed_token_ids: Some(vec![1, 70_000]),
            bad_words: vec![vec![1], vec![2, 3]],
            min_tokens: 4,
            ending_token_ids: vec![2, 5],
        };
        let long = SamplingParams { prompt_logprobs: Some(3), adjust, ..params };
        assert_eq!(SamplingParams::from_bytes(&long.to_bytes()), Ok(long));
        let plain = SamplingParams::default();
        assert_eq!(SamplingParams::from_bytes(&plain.to_bytes()), Ok(plain));
    }

    #[test]
    fn broken_bytes_are_refused() {
        let bytes = SamplingParams::default().to_bytes();
        for cut in 0..bytes.len() {
            assert!(matches!(SamplingParams::from_bytes(&bytes[..cut]), Err(Error::Bytes { .. })), "cut at {cut}");
        }
        let mut longer = bytes.clone();
        longer.push(0);
        let expected = Error::BytesLength { expected: bytes.len(), got: bytes.len() + 1 };
        assert_eq!(SamplingParams::from_bytes(&longer), Err(expected));
    }

    #[test]
    fn values_out_of_range_are_refused_on_reading_too() {
        let bytes = SamplingParams { top_p: 2.0, ..SamplingParams::default() }.to_bytes();
        assert_eq!(SamplingParams::from_bytes(&bytes), Err(Error::TopP { got: 2.0 }));
    }
}
