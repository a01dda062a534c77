//! Sampling functions for golden vectors and tests of other implementations.

use numpy::{PyArray1, PyReadonlyArray1};
use paceline_sampling::noise::NoiseSource;
use paceline_sampling::{Sampler, Scratch};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::errors::sampling_error;

/// The noise of each token for one seed and index, f64.
#[pyfunction]
pub(crate) fn philox_noise<'py>(
    py: Python<'py>,
    seed: u64,
    index: u64,
    token_ids: PyReadonlyArray1<'py, i64>,
) -> PyResult<Bound<'py, PyArray1<f64>>> {
    let source = NoiseSource::new(seed, index);
    let noise_of = |token_id: &i64| {
        let token_id = u32::try_from(*token_id)
            .map_err(|_| PyValueError::new_err(format!("token ids are 0 to {}, got {token_id}", u32::MAX)))?;
        Ok(source.of(token_id))
    };
    let noise = token_ids.as_array().iter().map(noise_of).collect::<PyResult<Vec<f64>>>()?;
    Ok(PyArray1::from_vec(py, noise))
}

/// The token chosen at `index` from one row of f32 logits.
#[pyfunction]
pub(crate) fn sample_row(
    py: Python<'_>,
    logits: PyReadonlyArray1<'_, f32>,
    params_bytes: &[u8],
    index: u64,
) -> PyResult<u32> {
    let sampler = Sampler::from_bytes(params_bytes).map_err(|error| sampling_error(py, &error, None))?;
    let chosen = sampler.sample(logits.as_slice()?, index, &mut Scratch::default());
    chosen.map_err(|error| sampling_error(py, &error, None))
}
