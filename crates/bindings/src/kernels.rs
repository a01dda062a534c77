//! The kernels of a decoder layer, over numpy arrays of float32 or of the bits of bfloat16 (uint16).

use numpy::{PyReadonlyArray1, PyReadonlyArray2, PyReadwriteArray2, PyUntypedArrayMethods};
use paceline_kernels::{Element, HeadNorm, Rotation};
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;

/// A vector that is read.
#[derive(FromPyObject)]
pub(crate) enum Vector<'py> {
    Half(PyReadonlyArray1<'py, u16>),
    Single(PyReadonlyArray1<'py, f32>),
}

/// A matrix that is read.
#[derive(FromPyObject)]
pub(crate) enum Matrix<'py> {
    Half(PyReadonlyArray2<'py, u16>),
    Single(PyReadonlyArray2<'py, f32>),
}

/// A matrix that is written.
#[derive(FromPyObject)]
pub(crate) enum MatrixMut<'py> {
    Half(PyReadwriteArray2<'py, u16>),
    Single(PyReadwriteArray2<'py, f32>),
}

/// The refusal of arrays of two types.
pub(crate) fn mixed_types() -> PyErr {
    PyValueError::new_err("arrays of one call are all float32 or all uint16")
}

/// `ValueError` unless `got` is `expected`.
pub(crate) fn require(what: &str, expected: usize, got: usize) -> PyResult<()> {
    if expected == got { Ok(()) } else { Err(PyValueError::new_err(format!("{what}: expected {expected}, got {got}"))) }
}

/// Add `added` to `x` in place, if given, and write `x / rms(x) * weight` to `normed`.
#[pyfunction]
pub(crate) fn rms_norm(
    py: Python<'_>,
    x: MatrixMut<'_>,
    added: Option<Matrix<'_>>,
    weight: Vector<'_>,
    epsilon: f32,
    normed: MatrixMut<'_>,
) -> PyResult<()> {
    match (x, added, weight, normed) {
        (MatrixMut::Half(x), Some(Matrix::Half(added)), Vector::Half(weight), MatrixMut::Half(normed)) => {
            norm_arrays(py, x, Some(added), &weight, epsilon, normed)
        }
        (MatrixMut::Half(x), None, Vector::Half(weight), MatrixMut::Half(normed)) => {
            norm_arrays(py, x, None, &weight, epsilon, normed)
        }
        (MatrixMut::Single(x), Some(Matrix::Single(added)), Vector::Single(weight), MatrixMut::Single(normed)) => {
            norm_arrays(py, x, Some(added), &weight, epsilon, normed)
        }
        (MatrixMut::Single(x), None, Vector::Single(weight), MatrixMut::Single(normed)) => {
            norm_arrays(py, x, None, &weight, epsilon, normed)
        }
        _ => Err(mixed_types()),
    }
}

fn norm_arrays<E: Element + numpy::Element>(
    py: Python<'_>,
    mut x: PyReadwriteArray2<'_, E>,
    added: Option<PyReadonlyArray2<'_, E>>,
    weight: &PyReadonlyArray1<'_, E>,
    epsilon: f32,
    mut normed: PyReadwriteArray2<'_, E>,
) -> PyResult<()> {
    require("columns of x", weight.len(), x.shape()[1])?;
    require("elements of the result", x.len(), normed.len())?;
    let added = added.as_ref().map(|added| added.as_slice()).transpose()?;
    if let Some(added) = added {
        require("elements of what is added", x.len(), added.len())?;
    }
    let (x, weight, normed) = (x.as_slice_mut()?, weight.as_slice()?, normed.as_slice_mut()?);
    py.detach(|| paceline_kernels::rms_norm(x, added, weight, epsilon, normed));
    Ok(())
}

/// Compute with `count` threads from now on, the calling one included; helpers may run where the caller may.
#[pyfunction]
pub(crate) fn set_kernel_threads(count: usize) -> PyResult<()> {
    paceline_kernels::set_threads(count).map_err(|error| PyRuntimeError::new_err(error.to_string()))
}

/// Write `silu(gate) * up` to `product [rows, width]`, given `gate_up [rows, 2 * width]`, gates first.
#[pyfunction]
pub(crate) fn gate(py: Python<'_>, gate_up: Matrix<'_>, product: MatrixMut<'_>) -> PyResult<()> {
    match (gate_up, product) {
        (Matrix::Half(gate_up), MatrixMut::Half(product)) => gate_arrays(py, &gate_up, product),
        (Matrix::Single(gate_up), MatrixMut::Single(product)) => gate_arrays(py, &gate_up, product),
        _ => Err(mixed_types()),
    }
}

fn gate_arrays<E: Element + numpy::Element>(
    py: Python<'_>,
    gate_up: &PyReadonlyArray2<'_, E>,
    mut product: PyReadwriteArray2<'_, E>,
) -> PyResult<()> {
    let width = product.shape()[1];
    require("columns of gate and up", 2 * width, gate_up.shape()[1])?;
    require("rows of the product", gate_up.shape()[0], product.shape()[0])?;
    let (gate_up, product) = (gate_up.as_slice()?, product.as_slice_mut()?);
    py.detach(|| paceline_kernels::gate(gate_up, width, product));
    Ok(())
}

/// Rotate the first `count` heads, each `size` wide, of every row of `heads` in place, after a norm of each if wanted.
///
/// `cos` and `sin` are `[rows, rotated columns]`, the first half of `sin` negated; `weight` is `[count * size]`.
#[pyfunction]
#[pyo3(signature = (heads, count, size, cos, sin, weight = None, epsilon = 0.0))]
#[expect(clippy::too_many_arguments, reason = "each is a tensor or a number of the layer")]
pub(crate) fn rotate(
    py: Python<'_>,
    heads: MatrixMut<'_>,
    count: usize,
    size: usize,
    cos: Matrix<'_>,
    sin: Matrix<'_>,
    weight: Option<Vector<'_>>,
    epsilon: f32,
) -> PyResult<()> {
    let place = (count, size);
    match (heads, cos, sin, weight) {
        (MatrixMut::Half(heads), Matrix::Half(cos), Matrix::Half(sin), None) => {
            rotate_arrays(py, heads, place, [&cos, &sin], None, epsilon)
        }
        (MatrixMut::Half(heads), Matrix::Half(cos), Matrix::Half(sin), Some(Vector::Half(weight))) => {
            rotate_arrays(py, heads, place, [&cos, &sin], Some(&weight), epsilon)
        }
        (MatrixMut::Single(heads), Matrix::Single(cos), Matrix::Single(sin), None) => {
            rotate_arrays(py, heads, place, [&cos, &sin], None, epsilon)
        }
        (MatrixMut::Single(heads), Matrix::Single(cos), Matrix::Single(sin), Some(Vector::Single(weight))) => {
            rotate_arrays(py, heads, place, [&cos, &sin], Some(&weight), epsilon)
        }
        _ => Err(mixed_types()),
    }
}

fn rotate_arrays<E: Element + numpy::Element>(
    py: Python<'_>,
    mut heads: PyReadwriteArray2<'_, E>,
    (count, size): (usize, usize),
    [cos, sin]: [&PyReadonlyArray2<'_, E>; 2],
    weight: Option<&PyReadonlyArray1<'_, E>>,
    epsilon: f32,
) -> PyResult<()> {
    let (row_width, width) = (heads.shape()[1], cos.shape()[1]);
    require("rows of cos", heads.shape()[0], cos.shape()[0])?;
    require("elements of sin", cos.len(), sin.len())?;
    if size == 0 || width == 0 || width > size || width % 2 == 1 || count * size > row_width {
        let given = format!("{count} heads of {size} in {row_width} columns, {width} of them rotated");
        return Err(PyValueError::new_err(format!("heads that cannot be rotated: {given}")));
    }
    let weight = weight.map(|weight| weight.as_slice()).transpose()?;
    if let Some(weight) = weight {
        require("factors of the norm", count * size, weight.len())?;
    }
    let (heads, cos, sin) = (heads.as_slice_mut()?, cos.as_slice()?, sin.as_slice()?);
    let norm = weight.map(|weight| HeadNorm { weight, epsilon });
    py.detach(|| paceline_kernels::rotate(heads, row_width, count, size, Rotation { cos, sin, width }, norm));
    Ok(())
}
