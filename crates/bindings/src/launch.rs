//! The last look at a pass's arrays, over numpy arrays and the dataclasses of the worker.

use paceline_launch::{Contract, Fault, Launch, Limits, Mode, check};
use pyo3::exceptions::{PyIndexError, PyValueError};
use pyo3::prelude::*;

use crate::arrays::{ArraysToRead, PassBuffers};
use crate::step::Step;

/// Rule, field, and the numbers that were expected and found.
type FaultOfCaller = (String, String, i64, i64);

fn fault_of_caller(fault: Fault) -> FaultOfCaller {
    (fault.rule.into_owned(), fault.field.into_owned(), fault.expected, fault.got)
}

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
        let mode = mode_of(&self.mode).ok_or_else(|| {
            PyValueError::new_err(format!("mode must be \"full\", \"piecewise\" or \"eager\", got {:?}", self.mode))
        })?;
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

fn mode_of(name: &str) -> Option<Mode> {
    match name {
        "full" => Some(Mode::Full),
        "piecewise" => Some(Mode::Piecewise),
        "eager" => Some(Mode::Eager),
        _ => None,
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

impl From<LimitsOfCaller> for Limits {
    fn from(limits: LimitsOfCaller) -> Self {
        Self {
            max_model_len: limits.max_model_len,
            k_max: limits.k_max,
            block_size: limits.block_size,
            block_count: limits.block_count,
            vocab_size: limits.vocab_size,
        }
    }
}

impl From<ContractOfCaller> for Contract {
    fn from(contract: ContractOfCaller) -> Self {
        Self {
            name: contract.name,
            uniform_query_len_max: contract.uniform_query_len_max,
            block_sizes: contract.block_sizes,
            table_alignment: contract.table_alignment,
            kv_overhang_max: contract.kv_overhang_max,
            row_capacity: contract.row_capacity,
        }
    }
}

/// Holds a pass's arrays against what the plan says of it, the worker's limits and the backend's contract. Returns
/// nothing, or the first fault: rule, field, and the numbers that were expected and found.
#[pyfunction]
pub(crate) fn check_launch(
    launch: LaunchOfCaller,
    arrays: ArraysToRead<'_>,
    limits: LimitsOfCaller,
    contract: ContractOfCaller,
) -> PyResult<Option<FaultOfCaller>> {
    let checked = check(&launch.launch()?, &arrays.arrays()?, &limits.into(), &contract.into());
    Ok(checked.err().map(fault_of_caller))
}

/// What every launch of a worker is held against: its arrays, its limits, its backend's contract.
#[pyclass(frozen, module = "paceline._core")]
pub(crate) struct LaunchDesk {
    buffers: Py<PassBuffers>,
    limits: Limits,
    contract: Contract,
}

#[pymethods]
impl LaunchDesk {
    #[new]
    fn new(buffers: Py<PassBuffers>, limits: LimitsOfCaller, contract: ContractOfCaller) -> Self {
        Self { buffers, limits: limits.into(), contract: contract.into() }
    }

    /// What the plan says of pass `index` of `step`, whose arrays are filled and want `logits` rows of logits; and the
    /// first fault of these arrays. `is_dummy` says so where it is not the rank that decides.
    #[pyo3(signature = (step, index, logits, is_dummy = None, ahead = 0))]
    fn launch(
        &self,
        py: Python<'_>,
        step: &Step,
        index: usize,
        logits: i64,
        is_dummy: Option<bool>,
        ahead: i64,
    ) -> PyResult<CheckedLaunch> {
        let plan = &step.plan;
        let passes = plan.group.passes();
        let pass = passes
            .get(index)
            .ok_or_else(|| PyIndexError::new_err(format!("pass {index} of a step that has {}", passes.len())))?;
        let load = pass.loads()[plan.rank_index];
        let name = pass.mode().name();
        let mode = mode_of(name).ok_or_else(|| PyValueError::new_err(format!("a pass of the mode {name:?}")))?;
        let launch = Launch {
            mode,
            query_len: pass.query_len().map_or(0, |query_len| query_len.get().into()),
            rows: load.rows_run().into(),
            tokens: load.tokens_run().into(),
            is_dummy: is_dummy.unwrap_or_else(|| plan.rank.is_dummy()),
            rows_padded: pass.rows_padded().get().into(),
            tokens_padded: pass.tokens_padded().get().into(),
            logits,
            ahead,
        };
        let checked = check(&launch, &self.buffers.get().read(py)?.arrays()?, &self.limits, &self.contract);
        let dp_rank = plan.rank.dp_rank().get();
        Ok(CheckedLaunch::new(&launch, name, dp_rank, plan.header.step.get(), checked.err().map(fault_of_caller)))
    }
}

/// What `paceline.worker.checks.Launch` holds, of a pass that was looked at.
#[pyclass(frozen, get_all, module = "paceline._core")]
pub(crate) struct CheckedLaunch {
    dp_rank: u32,
    step: u64,
    mode: &'static str,
    query_len: i64,
    rows: i64,
    tokens: i64,
    is_dummy: bool,
    rows_padded: i64,
    tokens_padded: i64,
    logits: i64,
    ahead: i64,
    /// Rows that attention is handed: padded in FULL, real elsewhere (rules 4 and 6).
    attention_rows: i64,
    /// Tokens that attention is handed, of the same kind as its rows.
    attention_tokens: i64,
    /// Tokens that the network's other layers are handed.
    input_tokens: i64,
    /// Rows that belong to requests.
    request_rows: i64,
    /// Tokens that belong to requests.
    request_tokens: i64,
    /// The first rule that does not hold.
    fault: Option<FaultOfCaller>,
}

impl CheckedLaunch {
    fn new(launch: &Launch, mode: &'static str, dp_rank: u32, step: u64, fault: Option<FaultOfCaller>) -> Self {
        let of_requests = |count: i64| if launch.is_dummy { 0 } else { count };
        Self {
            dp_rank,
            step,
            mode,
            query_len: launch.query_len,
            rows: launch.rows,
            tokens: launch.tokens,
            is_dummy: launch.is_dummy,
            rows_padded: launch.rows_padded,
            tokens_padded: launch.tokens_padded,
            logits: launch.logits,
            ahead: launch.ahead,
            attention_rows: launch.attention_rows(),
            attention_tokens: launch.attention_tokens(),
            input_tokens: launch.input_tokens(),
            request_rows: of_requests(launch.rows),
            request_tokens: of_requests(launch.tokens),
            fault,
        }
    }
}
