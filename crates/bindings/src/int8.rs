//! Weights of 8 bits and products with them, over numpy arrays of float32 or of the bits of bfloat16 (uint16).

use numpy::{PyReadonlyArray1, PyReadonlyArray2, PyReadwriteArray1, PyReadwriteArray2, PyUntypedArrayMethods};
use paceline_kernels::Element;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::kernels::{Matrix, MatrixMut, mixed_types, require};

/// Quantise `x [rows, width]` to `quantised [rows, width]`, and write the factor of each row.
#[pyfunction]
pub(crate) fn quantise_rows(
    py: Python<'_>,
    x: Matrix<'_>,
    mut quantised: PyReadwriteArray2<'_, i8>,
    mut factors: PyReadwriteArray1<'_, f32>,
) -> PyResult<()> {
    let shape = match &x {
        Matrix::Half(x) => [x.shape()[0], x.shape()[1]],
        Matrix::Single(x) => [x.shape()[0], x.shape()[1]],
    };
    require("rows of the bytes", shape[0], quantised.shape()[0])?;
    require("columns of the bytes", shape[1], quantised.shape()[1])?;
    require("factors", shape[0], factors.len())?;
    let (bytes, factors) = (quantised.as_slice_mut()?, factors.as_slice_mut()?);
    match &x {
        Matrix::Half(x) => {
            let x = x.as_slice()?;
            py.detach(|| paceline_kernels::quantise_rows(x, bytes, factors));
        }
        Matrix::Single(x) => {
            let x = x.as_slice()?;
            py.detach(|| paceline_kernels::quantise_rows(x, bytes, factors));
        }
    }
    Ok(())
}

/// A weight `[outputs, inputs]` as bytes with a factor for each output, laid out for products with it.
#[pyclass(module = "paceline._core", frozen)]
pub(crate) struct Int8Matrix {
    matrix: paceline_kernels::Int8Matrix,
}

#[pymethods]
impl Int8Matrix {
    /// Lays out `weights [outputs, inputs]`, to be multiplied by `factors [outputs]`; `bias [outputs]` is added last.
    #[new]
    #[pyo3(signature = (weights, factors, bias = None))]
    fn new(
        py: Python<'_>,
        weights: PyReadonlyArray2<'_, i8>,
        factors: PyReadonlyArray1<'_, f32>,
        bias: Option<PyReadonlyArray1<'_, f32>>,
    ) -> PyResult<Self> {
        let bias = bias.map(|bias| bias.as_slice().map(<[f32]>::to_vec)).transpose()?;
        let (weights, factors) = (weights.as_slice()?, factors.as_slice()?.to_vec());
        let matrix = py.detach(|| paceline_kernels::Int8Matrix::new(weights, factors, bias));
        Ok(Self { matrix: matrix.map_err(|error| PyValueError::new_err(error.to_string()))? })
    }

    /// Writes `x @ weight.T + bias` to `product [rows, outputs]`; every row of `x [rows, inputs]` is quantised too.
    fn multiply(&self, py: Python<'_>, x: Matrix<'_>, product: MatrixMut<'_>) -> PyResult<()> {
        match (x, product) {
            (Matrix::Half(x), MatrixMut::Half(product)) => self.multiply_arrays(py, &x, product),
            (Matrix::Single(x), MatrixMut::Single(product)) => self.multiply_arrays(py, &x, product),
            _ => Err(mixed_types()),
        }
    }

    /// Writes to `product` what `multiply` makes of `sums [rows, outputs]` of rows that were quantised with `scales`.
    fn finish(
        &self,
        py: Python<'_>,
        sums: PyReadonlyArray2<'_, f32>,
        scales: PyReadonlyArray1<'_, f32>,
        product: MatrixMut<'_>,
    ) -> PyResult<()> {
        require("columns of the sums", self.matrix.outputs(), sums.shape()[1])?;
        require("rows of the sums", scales.len(), sums.shape()[0])?;
        match product {
            MatrixMut::Half(product) => self.finish_arrays(py, &sums, &scales, product),
            MatrixMut::Single(product) => self.finish_arrays(py, &sums, &scales, product),
        }
    }
}

impl Int8Matrix {
    fn multiply_arrays<E: Element + numpy::Element>(
        &self,
        py: Python<'_>,
        x: &PyReadonlyArray2<'_, E>,
        mut product: PyReadwriteArray2<'_, E>,
    ) -> PyResult<()> {
        require("columns of x", self.matrix.inputs(), x.shape()[1])?;
        require("columns of the product", self.matrix.outputs(), product.shape()[1])?;
        require("rows of the product", x.shape()[0], product.shape()[0])?;
        let (x, product) = (x.as_slice()?, product.as_slice_mut()?);
        py.detach(|| self.matrix.multiply(x, product));
        Ok(())
    }

    fn finish_arrays<E: Element + numpy::Element>(
        &self,
        py: Python<'_>,
        sums: &PyReadonlyArray2<'_, f32>,
        scales: &PyReadonlyArray1<'_, f32>,
        mut product: PyReadwriteArray2<'_, E>,
    ) -> PyResult<()> {
        require("elements of the product", sums.len(), product.len())?;
        let (sums, scales, product) = (sums.as_slice()?, scales.as_slice()?, product.as_slice_mut()?);
        py.detach(|| self.matrix.finish(sums, scales, product));
        Ok(())
    }
}
