//! numpy arrays as the arrays of a pass.

use numpy::{PyReadwriteArray1, PyReadwriteArray2, PyUntypedArrayMethods};
use paceline_plan::arrays::{Extent, PassArrays};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

/// The arrays that a worker hands over for a pass, borrowed for the call.
pub(crate) struct ArraysOfCaller<'py> {
    pub(crate) input_ids: PyReadwriteArray1<'py, i64>,
    pub(crate) positions: PyReadwriteArray1<'py, i64>,
    pub(crate) slots: PyReadwriteArray1<'py, i64>,
    pub(crate) query_start_loc: PyReadwriteArray1<'py, i32>,
    pub(crate) kv_lens: PyReadwriteArray1<'py, i32>,
    pub(crate) block_table: PyReadwriteArray2<'py, i32>,
    pub(crate) request_index: PyReadwriteArray1<'py, i32>,
    pub(crate) logits_index: PyReadwriteArray1<'py, i64>,
}

impl ArraysOfCaller<'_> {
    /// The arrays, and the extent that has every entry rewritten, so that nothing which others left survives.
    ///
    /// # Errors
    /// `ValueError` when the block table has another width or an array is not contiguous.
    pub(crate) fn borrow(&mut self, table_width: u32) -> PyResult<(PassArrays<'_>, Extent)> {
        let (width, expected) = (self.block_table.shape()[1], table_width as usize);
        if width != expected {
            return Err(PyValueError::new_err(format!("block_table needs {expected} columns, got {width}")));
        }
        let extent = Extent { rows: self.kv_lens.len(), tokens: self.input_ids.len() };
        let arrays = PassArrays {
            input_ids: self.input_ids.as_slice_mut()?,
            positions: self.positions.as_slice_mut()?,
            slots: self.slots.as_slice_mut()?,
            query_start_loc: self.query_start_loc.as_slice_mut()?,
            kv_lens: self.kv_lens.as_slice_mut()?,
            block_table: self.block_table.as_slice_mut()?,
            request_index: self.request_index.as_slice_mut()?,
            logits_index: self.logits_index.as_slice_mut()?,
        };
        Ok((arrays, extent))
    }
}
