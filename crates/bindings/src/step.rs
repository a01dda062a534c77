//! A checked step as Python sees it: the decisions to carry out, none to make.

use paceline_plan::seats::{RowOutcome, WorkerStep};
use paceline_plan::{Pass as PlanPass, PassKind, QueryLen, StepMasks};
use pyo3::prelude::*;

use crate::errors::StepOutOfOrder;

/// One forward of one network.
#[pyclass(frozen, get_all, module = "paceline._core")]
#[derive(Clone, Debug)]
pub(crate) struct Pass {
    /// Place in the step's list of passes.
    index: usize,
    /// "target", "extend" or "single".
    kind: &'static str,
    /// "full", "piecewise" or "eager".
    mode: &'static str,
    /// Tokens of every row in FULL; 0 elsewhere.
    q: u32,
    /// Rows that this rank runs, real or dummy, without padding.
    rows: u32,
    /// Tokens that this rank runs, real or dummy, without padding.
    tokens: u32,
    /// Rows that kernels and collectives are given.
    rows_padded: u32,
    /// Tokens that kernels and collectives are given.
    tokens_padded: u32,
    /// Tokens that each rank of the group runs, dummies included.
    tokens_per_rank: Vec<u32>,
}

impl Pass {
    fn new(index: usize, pass: &PlanPass, rank_index: usize) -> Self {
        let load = pass.loads()[rank_index];
        Self {
            index,
            kind: kind_name(pass.kind()),
            mode: pass.mode().name(),
            q: pass.query_len().map_or(0, QueryLen::get),
            rows: load.rows_run(),
            tokens: load.tokens_run(),
            rows_padded: pass.rows_padded().get(),
            tokens_padded: pass.tokens_padded().get(),
            tokens_per_rank: pass.loads().iter().map(|load| load.tokens_run()).collect(),
        }
    }
}

fn kind_name(kind: PassKind) -> &'static str {
    match kind {
        PassKind::Target => "target",
        PassKind::Extend => "extend",
        PassKind::Single { .. } => "single",
    }
}

#[pymethods]
impl Pass {
    fn __repr__(&self) -> String {
        format!(
            "Pass({} {}: {} rows / {} tokens of {} / {})",
            self.kind, self.mode, self.rows, self.tokens, self.rows_padded, self.tokens_padded
        )
    }
}

/// A plan that has passed every check and whose deltas are applied.
#[pyclass(module = "paceline._core")]
pub(crate) struct Step {
    pub(crate) plan: WorkerStep,
    /// What came of the rows, once they are sampled.
    pub(crate) outcomes: Option<Vec<RowOutcome>>,
    /// The masks that followed, once they are there.
    pub(crate) masks: Option<StepMasks>,
    /// How many drafts each row that gave a token has by a model.
    pub(crate) drafts_proposed: u32,
}

impl Step {
    pub(crate) fn new(plan: WorkerStep) -> Self {
        Self { plan, outcomes: None, masks: None, drafts_proposed: 0 }
    }

    /// What came of the rows; a step whose rows give no logits needs no sampling.
    ///
    /// # Errors
    /// `StepOutOfOrder` when the rows are not sampled.
    pub(crate) fn outcomes(&mut self) -> PyResult<&mut Vec<RowOutcome>> {
        if self.outcomes.is_none() && self.logits_count() == 0 {
            self.outcomes = Some(vec![RowOutcome::default(); self.plan.rank.rows().len()]);
        }
        self.outcomes.as_mut().ok_or_else(|| StepOutOfOrder::new_err("a drafter's pass follows sampling"))
    }

    /// Rows of logits that the rows of this step give.
    pub(crate) fn logits_count(&self) -> usize {
        self.plan.rank.rows().iter().map(|row| row.logits_count() as usize).sum()
    }
}

#[pymethods]
impl Step {
    #[getter]
    fn group(&self) -> u32 {
        self.plan.header.group.get()
    }

    #[getter]
    fn epoch(&self) -> u32 {
        self.plan.header.epoch.get()
    }

    #[getter]
    fn step(&self) -> u64 {
        self.plan.header.step.get()
    }

    #[getter]
    fn dp_rank(&self) -> u32 {
        self.plan.rank.dp_rank().get()
    }

    #[getter]
    fn is_dummy(&self) -> bool {
        self.plan.rank.is_dummy()
    }

    /// Rows whose masks follow the plan.
    #[getter]
    pub(crate) fn masked_rows(&self) -> usize {
        self.plan.rank.rows().iter().filter(|row| row.masks_count() > 0).count()
    }

    #[getter]
    fn k_verify(&self) -> u32 {
        self.plan.group.k_verify()
    }

    #[getter]
    fn k_draft(&self) -> u32 {
        self.plan.group.k_draft()
    }

    #[getter]
    fn passes(&self) -> Vec<Pass> {
        let passes = self.plan.group.passes().iter().enumerate();
        passes.map(|(index, pass)| Pass::new(index, pass, self.plan.rank_index)).collect()
    }

    /// Kinds of the passes, in order.
    #[getter]
    fn pass_kinds(&self) -> Vec<&'static str> {
        self.plan.group.passes().iter().map(|pass| kind_name(pass.kind())).collect()
    }

    #[getter]
    fn block_zeroings(&self) -> Vec<u32> {
        self.plan.rank.block_zeroings().iter().map(|block| block.get()).collect()
    }

    #[getter]
    fn block_copies(&self) -> Vec<(u32, u32)> {
        let copies = self.plan.rank.block_copies().iter();
        copies.map(|(source, destination)| (source.get(), destination.get())).collect()
    }

    fn __repr__(&self) -> String {
        let rank = &self.plan.rank;
        format!(
            "Step(step {} of epoch {}, dp_rank {}, {} rows, {} tokens)",
            self.step(),
            self.epoch(),
            rank.dp_rank(),
            rank.rows().len(),
            rank.tokens_real()
        )
    }
}
