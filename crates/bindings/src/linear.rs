//! Products of a few rows, over numpy arrays of the bits of bfloat16 (uint16).

use numpy::{PyReadonlyArray1, PyReadonlyArray2, PyReadwriteArray2, PyUntypedArrayMethods};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::kernels::require;

/// Bytes of two weights.
const PAIR: usize = 4;

/// Write `x @ weight.T + bias` to `product [rows, outputs]`, given `x [rows, inputs]` and parts `[outputs, inputs]` of a
/// weight, whose outputs follow each other; `inputs` is even.
#[pyfunction]
#[pyo3(signature = (x, parts, bias, product))]
pub(crate) fn linear(
    py: Python<'_>,
    x: PyReadonlyArray2<'_, u16>,
    parts: Vec<PyReadonlyArray2<'_, u16>>,
    bias: Option<PyReadonlyArray1<'_, u16>>,
    mut product: PyReadwriteArray2<'_, u16>,
) -> PyResult<()> {
    let inputs = x.shape()[1];
    let mut outputs = 0;
    for part in &parts {
        require("columns of x", part.shape()[1], inputs)?;
        require_pairs("a weight", part.as_array().as_ptr())?;
        outputs += part.shape()[0];
    }
    require("rows of the product", x.shape()[0], product.shape()[0])?;
    require("columns of the product", outputs, product.shape()[1])?;
    if let Some(bias) = &bias {
        require("elements of the bias", outputs, bias.len())?;
    }
    if inputs == 0 || !inputs.is_multiple_of(2) {
        return Err(PyValueError::new_err(format!("inputs of a weight: expected an even number, got {inputs}")));
    }
    let bias = bias.as_ref().map(|bias| bias.as_slice()).transpose()?;
    let parts = parts.iter().map(|part| part.as_slice()).collect::<Result<Vec<_>, _>>()?;
    let (x, product) = (x.as_slice()?, product.as_slice_mut()?);
    py.detach(|| paceline_kernels::linear(x, &parts, bias, inputs, product));
    Ok(())
}

/// Refuses weights that cannot be read in pairs.
pub(crate) fn require_pairs(what: &str, weights: *const u16) -> PyResult<()> {
    match weights.addr() % PAIR {
        0 => Ok(()),
        past => Err(PyValueError::new_err(format!("{what} begins {past} bytes behind a multiple of {PAIR}"))),
    }
}

/// Whether products of bfloat16 are made with matrix instructions here: for at least 16 outputs, and inputs in multiples of
/// 32.
#[pyfunction]
pub(crate) fn has_matrix_instructions() -> bool {
    paceline_kernels::has_matrix_instructions()
}
