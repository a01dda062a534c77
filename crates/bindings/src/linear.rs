//! Weights of linear layers and products with them, over numpy arrays of the bits of bfloat16 (uint16).

use numpy::{
    PyArray1, PyArray2, PyArrayMethods, PyReadonlyArray1, PyReadonlyArray2, PyReadwriteArray2, PyUntypedArrayMethods,
};
use paceline_kernels::{Compressed, Part, Weight};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::kernels::require;

/// Bytes of two weights.
const PAIR: usize = 4;

/// A weight `[outputs, inputs]` in parts whose outputs follow each other, and its bias `[outputs]`, read where they lie.
#[pyclass(module = "paceline._core", frozen, weakref)]
pub(crate) struct LinearWeight {
    parts: Vec<Py<PyArray2<u16>>>,
    // Of each part, if all could be compressed.
    compressed: Option<Vec<Compressed>>,
    bias: Option<Py<PyArray1<u16>>>,
    outputs: usize,
    inputs: usize,
}

#[pymethods]
impl LinearWeight {
    /// See the stub.
    #[new]
    #[pyo3(signature = (parts, bias = None, *, compress = false))]
    fn new(
        py: Python<'_>,
        parts: Vec<Bound<'_, PyArray2<u16>>>,
        bias: Option<Bound<'_, PyArray1<u16>>>,
        compress: bool,
    ) -> PyResult<Self> {
        let inputs = parts.first().map_or(0, |part| part.shape()[1]);
        let mut outputs = 0;
        for part in &parts {
            require("inputs of a part", inputs, part.shape()[1])?;
            check_part(part)?;
            outputs += part.shape()[0];
        }
        if outputs == 0 {
            return Err(PyValueError::new_err("a weight has one part at least"));
        }
        if let Some(bias) = &bias {
            require("elements of the bias", outputs, bias.len())?;
        }
        let compressed = if compress {
            let arrays: Vec<_> = parts.iter().map(PyArrayMethods::readonly).collect();
            let slices = arrays.iter().map(|array| array.as_slice()).collect::<Result<Vec<_>, _>>()?;
            py.detach(|| slices.into_iter().map(|part| Compressed::new(part, inputs)).collect())
        } else {
            None
        };
        let parts = parts.into_iter().map(Bound::unbind).collect();
        Ok(Self { parts, compressed, bias: bias.map(Bound::unbind), outputs, inputs })
    }

    /// The arrays.
    #[getter]
    fn parts(&self, py: Python<'_>) -> Vec<Py<PyArray2<u16>>> {
        self.parts.iter().map(|part| part.clone_ref(py)).collect()
    }

    /// Bytes of what is compressed; 0 if nothing is.
    #[getter]
    fn compressed_bytes(&self) -> usize {
        self.compressed.iter().flatten().map(Compressed::bytes).sum()
    }
}

impl LinearWeight {
    pub(crate) const fn shape(&self) -> (usize, usize) {
        (self.outputs, self.inputs)
    }

    pub(crate) fn read<'py>(&self, py: Python<'py>) -> ReadWeight<'_, 'py> {
        ReadWeight {
            parts: self.parts.iter().map(|part| part.bind(py).readonly()).collect(),
            compressed: self.compressed.as_deref(),
            bias: self.bias.as_ref().map(|bias| bias.bind(py).readonly()),
            inputs: self.inputs,
        }
    }
}

fn check_part(part: &Bound<'_, PyArray2<u16>>) -> PyResult<()> {
    let (outputs, inputs) = (part.shape()[0], part.shape()[1]);
    if inputs == 0 || !inputs.is_multiple_of(2) || outputs == 0 || !part.is_c_contiguous() {
        let given = format!("a weight of {outputs} outputs and {inputs} inputs");
        return Err(PyValueError::new_err(format!("{given}: an even number of inputs is taken, and whole rows")));
    }
    match part.data().addr() % PAIR {
        0 => Ok(()),
        past => Err(PyValueError::new_err(format!("a weight begins {past} bytes behind a multiple of {PAIR}"))),
    }
}

/// Arrays that are read during one call.
pub(crate) struct ReadWeight<'a, 'py> {
    parts: Vec<PyReadonlyArray2<'py, u16>>,
    compressed: Option<&'a [Compressed]>,
    bias: Option<PyReadonlyArray1<'py, u16>>,
    inputs: usize,
}

impl ReadWeight<'_, '_> {
    pub(crate) fn parts(&self) -> PyResult<Vec<Part<'_>>> {
        let mut parts = Vec::with_capacity(self.parts.len());
        for (index, part) in self.parts.iter().enumerate() {
            let compressed = self.compressed.map(|compressed| &compressed[index]);
            parts.push(Part { weight: part.as_slice()?, compressed });
        }
        Ok(parts)
    }

    /// With `parts` as this gave them.
    pub(crate) fn weight<'a>(&'a self, parts: &'a [Part<'a>]) -> PyResult<Weight<'a>> {
        let bias = self.bias.as_ref().map(|bias| bias.as_slice()).transpose()?;
        Ok(Weight { parts, bias, inputs: self.inputs })
    }
}

/// Write `x @ weight.T + bias` to `product [rows, outputs]`, given `x [rows, inputs]`.
#[pyfunction]
pub(crate) fn linear(
    py: Python<'_>,
    x: PyReadonlyArray2<'_, u16>,
    weight: &LinearWeight,
    mut product: PyReadwriteArray2<'_, u16>,
) -> PyResult<()> {
    let (outputs, inputs) = weight.shape();
    require("columns of x", inputs, x.shape()[1])?;
    require("rows of the product", x.shape()[0], product.shape()[0])?;
    require("columns of the product", outputs, product.shape()[1])?;
    let read = weight.read(py);
    let parts = read.parts()?;
    let weight = read.weight(&parts)?;
    let (x, product) = (x.as_slice()?, product.as_slice_mut()?);
    py.detach(|| paceline_kernels::linear(x, weight.parts, weight.bias, inputs, product));
    Ok(())
}

/// Whether products of bfloat16 are made with matrix instructions here: for at least 16 outputs, and inputs in multiples of
/// 32.
#[pyfunction]
pub(crate) fn has_matrix_instructions() -> bool {
    paceline_kernels::has_matrix_instructions()
}
