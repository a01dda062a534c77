//! The split of a rank's tokens among its tp workers.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

/// The (first, count) of the tokens of tp worker `tp_rank`: contiguous parts of `ceil(tokens / tp_size)`, the last
/// ones shorter or empty.
#[pyfunction]
pub(crate) fn tp_share(tokens: u32, tp_size: u32, tp_rank: u32) -> PyResult<(u32, u32)> {
    if tp_rank >= tp_size {
        return Err(PyValueError::new_err(format!("tp_rank must be below tp_size {tp_size}, got {tp_rank}")));
    }
    Ok(paceline_plan::tp_share(tokens, tp_size, tp_rank))
}
