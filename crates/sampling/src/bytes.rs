//! Sampling parameters as bytes: what a plan carries without looking inside.
//!
//! A msgpack array, each f32 stored as the u32 of its bits so that no encoder can round it. Append only: a new field
//! goes last, and a shorter array gets the neutral value of each field it lacks.

use serde::{Deserialize, Serialize};

use crate::{Error, SamplingParams};

/// Field order on the wire: temperature, `top_k`, `top_p`, `min_p`, seed, logprobs.
#[derive(Serialize, Deserialize)]
struct Wire(u32, u32, u32, u32, u64, Option<u32>);

impl SamplingParams {
    /// The bytes that [`SamplingParams::from_bytes`] reads back.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let wire = Wire(
            self.temperature.to_bits(),
            self.top_k,
            self.top_p.to_bits(),
            self.min_p.to_bits(),
            self.seed,
            self.logprobs,
        );
        rmp_serde::to_vec(&wire).expect("integers always encode")
    }

    /// Reads and validates parameters.
    ///
    /// # Errors
    /// The bytes are no such array, are followed by more bytes, or hold a value out of range.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, Error> {
        let mut rest = bytes;
        let wire: Wire =
            rmp_serde::from_read(&mut rest).map_err(|error| Error::Bytes { message: error.to_string() })?;
        if !rest.is_empty() {
            return Err(Error::BytesLength { expected: bytes.len() - rest.len(), got: bytes.len() });
        }
        let Wire(temperature, top_k, top_p, min_p, seed, logprobs) = wire;
        let params = Self {
            temperature: f32::from_bits(temperature),
            top_k,
            top_p: f32::from_bits(top_p),
            min_p: f32::from_bits(min_p),
            seed,
            logprobs,
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
        let params =
            SamplingParams { temperature: 0.1, top_k: 40, top_p: 0.95, min_p: 0.05, seed: u64::MAX, logprobs: Some(0) };
        let read = SamplingParams::from_bytes(&params.to_bytes());
        assert_eq!(read, Ok(params));
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
