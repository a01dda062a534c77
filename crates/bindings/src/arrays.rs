//! numpy arrays as the arrays of a pass.

use std::sync::{Mutex, PoisonError};

use numpy::{PyArray1, PyArray2, PyArrayMethods, PyReadonlyArray1, PyReadonlyArray2, PyUntypedArrayMethods};
use paceline_plan::arrays::{Extent, PassArrays};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

/// The arrays of a worker's passes, which Python has allocated once and every call of a step takes as one.
#[pyclass(frozen, module = "paceline._core")]
pub(crate) struct PassBuffers {
    input_ids: Py<PyArray1<i64>>,
    positions: Py<PyArray1<i64>>,
    slots: Py<PyArray1<i64>>,
    query_start_loc: Py<PyArray1<i32>>,
    kv_lens: Py<PyArray1<i32>>,
    block_table: Py<PyArray2<i32>>,
    request_index: Py<PyArray1<i32>>,
    logits_index: Py<PyArray1<i64>>,
    /// How far they may hold anything but padding.
    extent: Mutex<Extent>,
}

#[pymethods]
impl PassBuffers {
    /// Takes the arrays, and that there may be anything in them.
    #[new]
    fn new(arrays: ArraysOfCaller<'_>) -> Self {
        let extent = Extent { rows: arrays.kv_lens.len(), tokens: arrays.input_ids.len() };
        Self {
            input_ids: arrays.input_ids.unbind(),
            positions: arrays.positions.unbind(),
            slots: arrays.slots.unbind(),
            query_start_loc: arrays.query_start_loc.unbind(),
            kv_lens: arrays.kv_lens.unbind(),
            block_table: arrays.block_table.unbind(),
            request_index: arrays.request_index.unbind(),
            logits_index: arrays.logits_index.unbind(),
            extent: Mutex::new(extent),
        }
    }

    /// Says that others have written to the arrays: the next pass rewrites every entry.
    fn forget(&self, py: Python<'_>) {
        *self.extent.lock().unwrap_or_else(PoisonError::into_inner) = self.whole(py);
    }
}

impl PassBuffers {
    fn whole(&self, py: Python<'_>) -> Extent {
        Extent { rows: self.kv_lens.bind(py).len(), tokens: self.input_ids.bind(py).len() }
    }

    /// Has `fill` write to the arrays. After an error there may be anything in them.
    ///
    /// # Errors
    /// `ValueError` when the block table has another width, or an array is not contiguous or in use; else what `fill` says.
    pub(crate) fn write<Filled, Error>(
        &self,
        py: Python<'_>,
        table_width: u32,
        fill: impl FnOnce(&mut PassArrays<'_>, &mut Extent) -> Result<Filled, Error>,
    ) -> PyResult<Result<Filled, Error>> {
        let (width, expected) = (self.block_table.bind(py).shape()[1], table_width as usize);
        if width != expected {
            return Err(PyValueError::new_err(format!("block_table needs {expected} columns, got {width}")));
        }
        let (mut input_ids, mut positions) =
            (self.input_ids.bind(py).try_readwrite()?, self.positions.bind(py).try_readwrite()?);
        let (mut slots, mut starts) =
            (self.slots.bind(py).try_readwrite()?, self.query_start_loc.bind(py).try_readwrite()?);
        let (mut kv_lens, mut block_table) =
            (self.kv_lens.bind(py).try_readwrite()?, self.block_table.bind(py).try_readwrite()?);
        let (mut request_index, mut logits_index) =
            (self.request_index.bind(py).try_readwrite()?, self.logits_index.bind(py).try_readwrite()?);
        let mut arrays = PassArrays {
            input_ids: input_ids.as_slice_mut()?,
            positions: positions.as_slice_mut()?,
            slots: slots.as_slice_mut()?,
            query_start_loc: starts.as_slice_mut()?,
            kv_lens: kv_lens.as_slice_mut()?,
            block_table: block_table.as_slice_mut()?,
            request_index: request_index.as_slice_mut()?,
            logits_index: logits_index.as_slice_mut()?,
        };
        let mut extent = self.extent.lock().unwrap_or_else(PoisonError::into_inner);
        let filled = fill(&mut arrays, &mut extent);
        if filled.is_err() {
            *extent = self.whole(py);
        }
        Ok(filled)
    }

    /// The arrays, borrowed to be read.
    ///
    /// # Errors
    /// `ValueError` when one is being written to.
    pub(crate) fn read<'py>(&self, py: Python<'py>) -> PyResult<ArraysToRead<'py>> {
        Ok(ArraysToRead {
            input_ids: self.input_ids.bind(py).try_readonly()?,
            positions: self.positions.bind(py).try_readonly()?,
            slots: self.slots.bind(py).try_readonly()?,
            query_start_loc: self.query_start_loc.bind(py).try_readonly()?,
            kv_lens: self.kv_lens.bind(py).try_readonly()?,
            block_table: self.block_table.bind(py).try_readonly()?,
            request_index: self.request_index.bind(py).try_readonly()?,
            logits_index: self.logits_index.bind(py).try_readonly()?,
        })
    }
}

/// `paceline.worker.arrays.StepArrays`.
#[derive(FromPyObject)]
pub(crate) struct ArraysOfCaller<'py> {
    input_ids: Bound<'py, PyArray1<i64>>,
    positions: Bound<'py, PyArray1<i64>>,
    slots: Bound<'py, PyArray1<i64>>,
    query_start_loc: Bound<'py, PyArray1<i32>>,
    kv_lens: Bound<'py, PyArray1<i32>>,
    block_table: Bound<'py, PyArray2<i32>>,
    request_index: Bound<'py, PyArray1<i32>>,
    logits_index: Bound<'py, PyArray1<i64>>,
}

/// The arrays of a pass, borrowed for the call: of [`PassBuffers`], or of `paceline.worker.arrays.StepArrays`.
#[derive(FromPyObject)]
pub(crate) struct ArraysToRead<'py> {
    input_ids: PyReadonlyArray1<'py, i64>,
    positions: PyReadonlyArray1<'py, i64>,
    slots: PyReadonlyArray1<'py, i64>,
    query_start_loc: PyReadonlyArray1<'py, i32>,
    kv_lens: PyReadonlyArray1<'py, i32>,
    block_table: PyReadonlyArray2<'py, i32>,
    request_index: PyReadonlyArray1<'py, i32>,
    logits_index: PyReadonlyArray1<'py, i64>,
}

impl ArraysToRead<'_> {
    /// What the last look takes.
    ///
    /// # Errors
    /// `ValueError` when one is not contiguous.
    pub(crate) fn arrays(&self) -> PyResult<paceline_launch::Arrays<'_>> {
        Ok(paceline_launch::Arrays {
            input_ids: self.input_ids.as_slice()?,
            positions: self.positions.as_slice()?,
            slots: self.slots.as_slice()?,
            query_start_loc: self.query_start_loc.as_slice()?,
            kv_lens: self.kv_lens.as_slice()?,
            block_table: self.block_table.as_slice()?,
            request_index: self.request_index.as_slice()?,
            logits_index: self.logits_index.as_slice()?,
        })
    }
}
