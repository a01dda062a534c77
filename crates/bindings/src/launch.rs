//! The last look at a pass's arrays, over numpy arrays and the dataclasses of the worker.

use numpy::{PyReadonlyArray1, PyReadonlyArray2};
use paceline_launch::{Arrays, Contract, Launch, Limits, Mode, check};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

/// `paceline.worker.checks.Launch`, without what only names it.
#[derive(FromPyObject)]
pub(crate) struct LaunchOfCaller {
    mode: String,
    query_len: i64,
    rows: i64,
    tokens: i64,
    is_dummy: bool,
    rows_padded: i64,
    tokens_padded: i64,
    logits: i64,
    ahead: i64,
}

impl LaunchOfCaller {
    fn launch(&self) -> PyResult<Launch> {
        let mode = match self.mode.as_str() {
            "full" => Mode::Full,
            "piecewise" => Mode::Piecewise,
            "eager" => Mode::Eager,
            other => {
                let message = format!("mode must be \"full\", \"piecewise\" or \"eager\", got {other:?}");
                return Err(PyValueError::new_err(message));
            }
        };
        Ok(Launch {
            mode,
            query_len: self.query_len,
            rows: self.rows,
            tokens: self.tokens,
            is_dummy: self.is_dummy,
            rows_padded: self.rows_padded,
            tokens_padded: self.tokens_padded,
            logits: self.logits,
            ahead: self.ahead,
        })
    }
}

/// `paceline.worker.arrays.StepArrays`, borrowed for the call.
#[derive(FromPyObject)]
pub(crate) struct ArraysToCheck<'py> {
    input_ids: PyReadonlyArray1<'py, i64>,
    positions: PyReadonlyArray1<'py, i64>,
    slots: PyReadonlyArray1<'py, i64>,
    query_start_loc: PyReadonlyArray1<'py, i32>,
    kv_lens: PyReadonlyArray1<'py, i32>,
    block_table: PyReadonlyArray2<'py, i32>,
    request_index: PyReadonlyArray1<'py, i32>,
    logits_index: PyReadonlyArray1<'py, i64>,
}

impl ArraysToCheck<'_> {
    fn arrays(&self) -> PyResult<Arrays<'_>> {
        Ok(Arrays {
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

/// `paceline.worker.checks.LaunchLimits`.
#[derive(FromPyObject)]
pub(crate) struct LimitsOfCaller {
    max_model_len: i64,
    k_max: i64,
    block_size: i64,
    block_count: i64,
    vocab_size: i64,
}

/// `paceline.attention.contracts.Contract`, as far as it is about one launch.
#[derive(FromPyObject)]
pub(crate) struct ContractOfCaller {
    name: String,
    uniform_query_len_max: i64,
    block_sizes: Vec<i64>,
    table_alignment: i64,
    kv_overhang_max: i64,
    row_capacity: i64,
}

/// Holds a pass's arrays against what the plan says of it, the worker's limits and the backend's contract. Returns
/// nothing, or the first fault: rule, field, and the numbers that were expected and found.
#[pyfunction]
pub(crate) fn check_launch(
    launch: LaunchOfCaller,
    arrays: ArraysToCheck<'_>,
    limits: LimitsOfCaller,
    contract: ContractOfCaller,
) -> PyResult<Option<(String, String, i64, i64)>> {
    let limits = Limits {
        max_model_len: limits.max_model_len,
        k_max: limits.k_max,
        block_size: limits.block_size,
        block_count: limits.block_count,
        vocab_size: limits.vocab_size,
    };
    let contract = Contract {
        name: contract.name,
        uniform_query_len_max: contract.uniform_query_len_max,
        block_sizes: contract.block_sizes,
        table_alignment: contract.table_alignment,
        kv_overhang_max: contract.kv_overhang_max,
        row_capacity: contract.row_capacity,
    };
    let checked = check(&launch.launch()?, &arrays.arrays()?, &limits, &contract);
    Ok(checked.err().map(|fault| (fault.rule.into_owned(), fault.field.into_owned(), fault.expected, fault.got)))
}
