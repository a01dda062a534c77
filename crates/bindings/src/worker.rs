//! The worker's core: seats and samplers of one rank, from a plan's bytes to a reply's.

use numpy::PyReadonlyArray2;
use numpy::ndarray::ArrayView2;
use paceline_plan::arrays::{fill_extend, fill_single, fill_target};
use paceline_plan::seats::{SeatTable, StepHeader, WorkerStep};
use paceline_plan::{DpRank, Epoch, Error, GroupId, StepId, StepMasks, WorkerLimits, from_bytes, to_bytes};
use paceline_sampling::{Sampler, Scratch};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::arrays::PassBuffers;
use crate::errors::{StepOutOfOrder, plan_error, sampling_error};
use crate::outcomes::{propose_drafts, propose_sampled, sample_rows};
use crate::prompt::LastLogits;
use crate::step::Step;

/// Decodes, checks and applies plans; fills buffers; samples; makes replies.
#[pyclass(module = "paceline._core")]
pub(crate) struct WorkerCore {
    table: SeatTable,
    dp_rank: u32,
    /// One entry for each seat: the sampler of the request on it.
    samplers: Vec<Option<Sampler>>,
    last_logits: LastLogits,
    /// Whether an admission of this epoch had unusable sampling parameters: the table has not seen that.
    refused: bool,
    /// The step begun last and not yet answered.
    current: Option<(Epoch, StepId)>,
    scratch: Scratch,
    history: Vec<u32>,
    /// Digest of the last reply's tokens.
    tokens_digest: u64,
}

#[pymethods]
impl WorkerCore {
    #[new]
    #[pyo3(signature = (*, dp_rank, group_ranks, seats, max_num_seqs, max_num_batched_tokens, max_model_len,
        block_size, num_blocks, table_width, row_capacity, token_capacity, k_max, vocab_size, drafter_layers = 0,
        scheduling_depth = 0))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments of Python, one for each limit")]
    fn new(
        py: Python<'_>,
        dp_rank: u32,
        group_ranks: Vec<u32>,
        seats: u32,
        max_num_seqs: u32,
        max_num_batched_tokens: u32,
        max_model_len: u32,
        block_size: u32,
        num_blocks: u32,
        table_width: u32,
        row_capacity: u32,
        token_capacity: u32,
        k_max: u32,
        vocab_size: u32,
        drafter_layers: u32,
        scheduling_depth: u32,
    ) -> PyResult<Self> {
        if block_size == 0 {
            return Err(PyValueError::new_err("block_size must be at least 1, got 0"));
        }
        let limits = WorkerLimits {
            seats,
            max_num_seqs,
            max_num_batched_tokens,
            max_model_len,
            block_size,
            num_blocks,
            k_max,
            row_capacity,
            token_capacity,
            table_width,
            vocab_size,
        };
        let group = group_ranks.into_iter().map(DpRank::new).collect();
        let table = SeatTable::new(limits, DpRank::new(dp_rank), group)
            .map_err(|error| plan_error(py, &error, dp_rank, 0))?
            .with_drafter_layers(drafter_layers)
            .with_depth(scheduling_depth);
        let samplers = (0..seats).map(|_| None).collect();
        Ok(Self {
            table,
            dp_rank,
            samplers,
            last_logits: LastLogits::new(seats),
            refused: false,
            current: None,
            scratch: Scratch::default(),
            history: Vec::new(),
            tokens_digest: 0,
        })
    }

    /// Starts an epoch: every seat is void, and steps count from 1 again.
    fn reset(&mut self, epoch: u32) {
        self.table.reset(Epoch::new(epoch));
        self.samplers.fill(None);
        self.last_logits.clear_all();
        self.refused = false;
        self.current = None;
    }

    /// Decodes a plan, checks it and applies its deltas.
    #[expect(clippy::too_many_arguments, reason = "the fields of an envelope, which Python holds apart")]
    fn begin(
        &mut self,
        py: Python<'_>,
        group: u32,
        epoch: u32,
        step: u64,
        digest: u64,
        group_part: &[u8],
        rank_part: &[u8],
    ) -> PyResult<Step> {
        let header =
            StepHeader { group: GroupId::new(group), epoch: Epoch::new(epoch), step: StepId::new(step), digest };
        self.current = None;
        let result = self.begin_checked(header, group_part, rank_part);
        let plan = result.map_err(|error| plan_error(py, &error, self.dp_rank, step))?;
        self.current = Some((header.epoch, header.step));
        Ok(Step::new(plan))
    }

    /// Writes the arrays of the target pass in place, padding included. Returns the count of logits rows.
    fn fill_target(&self, py: Python<'_>, step: &Step, buffers: &PassBuffers) -> PyResult<usize> {
        self.check_current(step)?;
        let filled = buffers.write(py, self.table.limits().table_width, |arrays, extent| {
            fill_target(&self.table, &step.plan, arrays, extent)
        });
        filled?.map_err(|error| self.refusal(py, step, &error))
    }

    /// Writes the arrays of the extend pass for drafter layer `layer`, from 1, in place. Follows sampling. Returns the
    /// count of logits rows: one for each row that sampled, none where the step plans no drafts.
    fn fill_extend(&self, py: Python<'_>, step: &mut Step, layer: u32, buffers: &PassBuffers) -> PyResult<usize> {
        self.check_current(step)?;
        step.outcomes()?;
        let outcomes = step.outcomes.as_deref().unwrap_or_default();
        let filled = buffers.write(py, self.table.limits().table_width, |arrays, extent| {
            fill_extend(&self.table, &step.plan, layer, outcomes, arrays, extent)
        });
        filled?.map_err(|error| self.refusal(py, step, &error))
    }

    /// Writes the arrays of the single pass that gives draft `index`, from 2, in place. Follows the draft before it.
    /// Returns the count of logits rows: the rows that sampled.
    fn fill_single(&self, py: Python<'_>, step: &mut Step, index: u32, buffers: &PassBuffers) -> PyResult<usize> {
        self.check_current(step)?;
        step.outcomes()?;
        if index != step.drafts_proposed + 1 {
            let message = format!("single pass {index} follows draft {}", index.saturating_sub(1));
            return Err(StepOutOfOrder::new_err(format!("{message}; there are {}", step.drafts_proposed)));
        }
        let outcomes = step.outcomes.as_deref().unwrap_or_default();
        let layers = self.table.drafter_layers();
        let filled = buffers.write(py, self.table.limits().table_width, |arrays, extent| {
            fill_single(&self.table, &step.plan, index, layers, outcomes, arrays, extent)
        });
        filled?.map_err(|error| self.refusal(py, step, &error))
    }

    /// Takes the masks that followed the plan of `step`, which `masked_step` of `masked_epoch` they are said to be of.
    fn set_masks(
        &self,
        py: Python<'_>,
        step: &mut Step,
        masked_epoch: u32,
        masked_step: u64,
        body: &[u8],
    ) -> PyResult<()> {
        self.check_current(step)?;
        let header = step.plan.header;
        let same = |field, expected: i64, got: i64| {
            if expected == got { Ok(()) } else { Err(Error::rule(19, field, expected, got)) }
        };
        let masks = same("epoch of the masks", header.epoch.get().into(), masked_epoch.into())
            .and_then(|()| same("step of the masks", header.step.get().cast_signed(), masked_step.cast_signed()))
            .and_then(|()| from_bytes::<StepMasks>(body))
            .and_then(|masks| masks.check(&step.plan.rank, self.table.limits().vocab_size).map(|()| masks));
        step.masks = Some(masks.map_err(|error| self.refusal(py, step, &error))?);
        Ok(())
    }

    /// Samples, verifies drafts and takes log-probabilities; `logits` is f32 `[count of fill_target, vocab_size]`.
    fn sample(&mut self, py: Python<'_>, step: &mut Step, logits: PyReadonlyArray2<'_, f32>) -> PyResult<()> {
        self.check_current(step)?;
        let view = logits.as_array();
        let rows = rows_of(&view, step.logits_count(), self.table.limits().vocab_size)?;
        let (table, samplers, scratch, plan) = (&self.table, &self.samplers, &mut self.scratch, &step.plan);
        let last_logits = &mut self.last_logits;
        let none = StepMasks::default();
        let masks = step.masks.as_ref().unwrap_or(&none);
        if masks.rows.len() != step.masked_rows() {
            let error = Error::rule(19, "rows with masks", step.masked_rows() as i64, masks.rows.len() as i64);
            return Err(self.refusal(py, step, &error));
        }
        let outcomes = py
            .detach(|| sample_rows(table, samplers, last_logits, plan, masks, &rows, scratch))
            .map_err(|error| sampling_error(py, &error.error, Some((error.row, error.seat))))?;
        step.outcomes = Some(outcomes);
        Ok(())
    }

    /// Proposes prompt-lookup drafts for the next step, at most `k_draft` a row; nothing when that is 0.
    fn propose_ngram(&mut self, step: &mut Step) -> PyResult<()> {
        self.check_current(step)?;
        let outcomes = step.outcomes.as_mut().ok_or_else(|| StepOutOfOrder::new_err("drafts follow sampling"))?;
        propose_drafts(&self.table, &step.plan, outcomes, &mut self.history);
        Ok(())
    }

    /// Appends one draft to each row that gave a token, sampled from `logits`, f32 `[rows that sampled, vocab_size]`.
    /// Called once for each of the step's `k_draft` drafts.
    fn propose(&mut self, py: Python<'_>, step: &mut Step, logits: PyReadonlyArray2<'_, f32>) -> PyResult<()> {
        self.check_current(step)?;
        let most = step.plan.group.k_draft();
        let outcomes = step.outcomes()?;
        let sampled = outcomes.iter().filter(|outcome| !outcome.emitted.is_empty()).count();
        let view = logits.as_array();
        let rows = rows_of(&view, sampled, self.table.limits().vocab_size)?;
        if step.drafts_proposed >= most {
            return Err(StepOutOfOrder::new_err(format!(
                "the step plans {most} drafts for each row, and all are there"
            )));
        }
        let (table, samplers, scratch) = (&self.table, &self.samplers, &mut self.scratch);
        let (plan, outcomes) = (&step.plan, step.outcomes.as_deref_mut().unwrap_or_default());
        py.detach(|| propose_sampled(table, samplers, plan, outcomes, &rows, scratch))
            .map_err(|error| sampling_error(py, &error.error, Some((error.row, error.seat))))?;
        step.drafts_proposed += 1;
        Ok(())
    }

    /// Commits the rows to their seats and gives the reply's bytes. `timings_us`: decode, fill, forward, sample.
    #[pyo3(signature = (step, timings_us, collectives = 0))]
    fn reply<'py>(
        &mut self,
        py: Python<'py>,
        step: &mut Step,
        timings_us: [u32; 4],
        collectives: u32,
    ) -> PyResult<Bound<'py, pyo3::types::PyBytes>> {
        self.check_current(step)?;
        if step.outcomes.is_none() && step.logits_count() > 0 {
            return Err(StepOutOfOrder::new_err("a reply follows sampling"));
        }
        let rows = step.plan.rank.rows().len();
        let outcomes = step.outcomes.take().unwrap_or_else(|| vec![Default::default(); rows]);
        self.current = None;
        let mut reply = self
            .table
            .commit(&step.plan, outcomes)
            .map_err(|error| plan_error(py, &error, self.dp_rank, step.plan.header.step.get()))?;
        reply.timings_us = timings_us;
        reply.collectives = collectives;
        self.tokens_digest = reply.tokens_digest();
        Ok(pyo3::types::PyBytes::new(py, &to_bytes(&reply)))
    }

    /// Digest of the last reply's tokens: equal on all tp workers of a rank. 0 before the first.
    #[getter]
    const fn tokens_digest(&self) -> u64 {
        self.tokens_digest
    }

    /// Seats that hold a request.
    #[getter]
    fn seats_occupied(&self) -> usize {
        self.table.occupied()
    }
}

impl WorkerCore {
    fn begin_checked(&mut self, header: StepHeader, group_part: &[u8], rank_part: &[u8]) -> Result<WorkerStep, Error> {
        if self.refused {
            return Err(Error::rule(13, "refusals in this epoch", 0, 1));
        }
        let plan = self.table.begin(header, group_part, rank_part)?;
        for release in plan.rank.releases() {
            self.samplers[release.seat.index()] = None;
            self.last_logits.clear(release.seat.index());
        }
        for admission in plan.rank.admissions() {
            let sampler = Sampler::from_bytes(&admission.sampling).map_err(|error| {
                self.refused = true;
                Error::Decode { message: format!("sampling of seat {}: {error}", admission.seat) }
            })?;
            self.samplers[admission.seat.index()] = Some(sampler);
            self.last_logits.clear(admission.seat.index());
        }
        Ok(plan)
    }

    fn refusal(&self, py: Python<'_>, step: &Step, error: &Error) -> PyErr {
        plan_error(py, error, self.dp_rank, step.plan.header.step.get())
    }

    fn check_current(&self, step: &Step) -> PyResult<()> {
        let header = step.plan.header;
        if self.current == Some((header.epoch, header.step)) {
            return Ok(());
        }
        let current = match self.current {
            Some((epoch, step)) => format!("step {step} of epoch {epoch}"),
            None => "none".to_owned(),
        };
        let message = format!("step {} of epoch {} is not the current step: {current}", header.step, header.epoch);
        Err(StepOutOfOrder::new_err(message))
    }
}

/// Logits of `count` rows, each contiguous.
fn rows_of<'a>(view: &'a ArrayView2<'a, f32>, count: usize, vocab_size: u32) -> PyResult<Vec<&'a [f32]>> {
    let expected = [count, vocab_size as usize];
    if view.shape() != expected {
        let message = format!("logits need the shape {expected:?}, got {:?}", view.shape());
        return Err(PyValueError::new_err(message));
    }
    let rows: Option<Vec<&[f32]>> = view.outer_iter().map(|row| row.to_slice()).collect();
    rows.ok_or_else(|| PyValueError::new_err("each row of logits must be contiguous"))
}
