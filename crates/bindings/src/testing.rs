//! Plans and replies as plain Python values, so that Python tests can play the daemon.

use paceline_plan::{
    Admission, BlockAppend, DpRank, Epoch, Error, Feed, GroupDraft, GroupId, GroupPart, KvGroup, LogitsWanted, Mask,
    Pass, PassKind, QueryLen, RankDraft, RankLoad, RankPart, Release, Row, RowMasks, Rows, RowsPadded, Seat,
    SeatGeneration, Shape, StepId, StepMasks, StepReply, Tokens, TokensPadded, Words, digest, from_bytes, to_bytes,
};
use paceline_sampling::SamplingParams;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};

use crate::errors::{plan_error, sampling_error};

/// A pass of a plan: `q` and `rows_padded` in FULL, `tokens_padded` in PIECEWISE.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct PassSpec {
    mode: String,
    #[pyo3(default)]
    q: u32,
    #[pyo3(default)]
    rows_padded: u32,
    #[pyo3(default)]
    tokens_padded: u32,
    /// One entry per rank: (rows, tokens); a dummy is (0, tokens).
    loads: Vec<(u32, u32)>,
}

/// One row of a plan.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct RowSpec {
    seat: u32,
    #[pyo3(default)]
    generation: u32,
    start: u32,
    query_len: u32,
    #[pyo3(default)]
    drafts: u32,
    blocks: u32,
    logits: String,
    /// Whether masks follow.
    #[pyo3(default)]
    masked: bool,
}

impl PassSpec {
    fn build(&self, kind: PassKind) -> Result<Pass, Error> {
        let shape = match self.mode.as_str() {
            "full" => Shape::Full { query_len: QueryLen::new(self.q)?, rows_padded: RowsPadded::new(self.rows_padded) },
            "piecewise" => Shape::Piecewise { tokens_padded: TokensPadded::new(self.tokens_padded) },
            _ => Shape::Eager,
        };
        let load = |(rows, tokens): &(u32, u32)| match rows {
            0 => Ok(RankLoad::Dummy { query_len: QueryLen::new(*tokens)? }),
            _ => Ok(RankLoad::Real { rows: Rows::new(*rows), tokens: Tokens::new(*tokens) }),
        };
        Pass::new(kind, shape, self.loads.iter().map(load).collect::<Result<_, _>>()?)
    }
}

impl RowSpec {
    fn build(&self) -> Result<Row, Error> {
        Ok(Row {
            seat: Seat::new(self.seat),
            generation: SeatGeneration::new(self.generation),
            start_max: self.start,
            query_len: QueryLen::new(self.query_len)?,
            drafts: self.drafts,
            blocks: self.blocks,
            logits: match self.logits.as_str() {
                "last" => LogitsWanted::Last,
                "verify" => LogitsWanted::Verify,
                "all" => LogitsWanted::All,
                _ => LogitsWanted::None,
            },
            mask: if self.masked { Mask::Follows } else { Mask::None },
        })
    }
}

/// Encodes one rank's view of a step: (digest, group part, rank part). Decode rows are the rows with logits "verify".
///
/// Admissions are (seat, generation, prompt length, sampling bytes); feeds (seat, start, tokens); block appends
/// (seat, blocks); releases (seat, generation); drafter passes are the extend pass, then the single ones.
#[pyfunction]
#[pyo3(signature = (*, epoch, step, dp_rank, dp_ranks, target, rows = vec![], releases = vec![], admissions = vec![],
    feeds = vec![], block_appends = vec![], k_verify = 0, k_draft = 0, drafter_passes = vec![]))]
#[expect(clippy::too_many_arguments, reason = "keyword arguments of Python, one for each part of a plan")]
pub(crate) fn encode_step_for_test<'py>(
    py: Python<'py>,
    epoch: u32,
    step: u64,
    dp_rank: u32,
    dp_ranks: Vec<u32>,
    target: PassSpec,
    rows: Vec<RowSpec>,
    releases: Vec<(u32, u32)>,
    admissions: Vec<(u32, u32, u32, Vec<u8>)>,
    feeds: Vec<(u32, u32, Vec<u32>)>,
    block_appends: Vec<(u32, Vec<u32>)>,
    k_verify: u32,
    k_draft: u32,
    drafter_passes: Vec<PassSpec>,
) -> PyResult<(u64, Bound<'py, PyBytes>, Bound<'py, PyBytes>)> {
    let release = |(seat, generation)| Release { seat: Seat::new(seat), generation: SeatGeneration::new(generation) };
    let admission = |(seat, generation, prompt_len, sampling)| Admission {
        seat: Seat::new(seat),
        generation: SeatGeneration::new(generation),
        prompt_len,
        computed: 0,
        adapter: 0,
        sampling,
        history: true,
    };
    let append = |(seat, blocks): (u32, Vec<u32>)| BlockAppend {
        seat: Seat::new(seat),
        kv_group: KvGroup::new(0),
        blocks: blocks.into(),
    };
    let build = || -> Result<(GroupPart, RankPart), Error> {
        let rows = rows.iter().map(RowSpec::build).collect::<Result<Vec<_>, _>>()?;
        let decode_rows = rows.iter().filter(|row| row.logits == LogitsWanted::Verify).count();
        let mut passes = vec![target.build(PassKind::Target)?];
        for (index, pass) in (1..).zip(&drafter_passes) {
            passes.push(pass.build(if index == 1 { PassKind::Extend } else { PassKind::Single { index } })?);
        }
        let group = GroupPart::new(GroupDraft {
            group: GroupId::new(0),
            epoch: Epoch::new(epoch),
            step: StepId::new(step),
            depth: 0,
            k_verify,
            k_draft,
            dp_ranks: dp_ranks.into_iter().map(DpRank::new).collect(),
            passes,
        })?;
        let rank = RankPart::new(RankDraft {
            dp_rank: DpRank::new(dp_rank),
            releases: releases.into_iter().map(release).collect(),
            admissions: admissions.into_iter().map(admission).collect(),
            feeds: feeds
                .into_iter()
                .map(|(seat, start, tokens)| Feed { seat: Seat::new(seat), start, tokens: tokens.into() })
                .collect(),
            block_appends: block_appends.into_iter().map(append).collect(),
            rows,
            decode_rows: u32::try_from(decode_rows).expect("fewer than 2^32 rows"),
            ..RankDraft::default()
        })?;
        Ok((group, rank))
    };
    let (group, rank) = build().map_err(|error| plan_error(py, &error, dp_rank, step))?;
    let group_part = to_bytes(&group);
    Ok((digest(&group_part), PyBytes::new(py, &group_part), PyBytes::new(py, &to_bytes(&rank))))
}

/// Seat, generation, and the masks of a row: the words of each, or nothing where all may be chosen.
type MaskedRow = (u32, u32, Vec<Option<Vec<u32>>>);

/// Encodes masks: (seat, generation, masks) of each row; a mask is its words, or nothing where all may be chosen.
#[pyfunction]
pub(crate) fn encode_masks_for_test(py: Python<'_>, rows: Vec<MaskedRow>) -> Bound<'_, PyBytes> {
    let row = |(seat, generation, positions): MaskedRow| RowMasks {
        seat: Seat::new(seat),
        generation: SeatGeneration::new(generation),
        positions: positions.into_iter().map(|mask| mask.map(Words::from)).collect(),
    };
    PyBytes::new(py, &to_bytes(&StepMasks { rows: rows.into_iter().map(row).collect() }))
}

/// Decodes a reply into a dict of its fields, rows as dicts; log-probabilities as (token id, value) pairs.
#[pyfunction]
pub(crate) fn decode_reply_for_test<'py>(py: Python<'py>, body: &[u8]) -> PyResult<Bound<'py, PyDict>> {
    let reply: StepReply = from_bytes(body).map_err(|error| plan_error(py, &error, 0, 0))?;
    let rows = reply.rows.iter().map(|row| {
        let logprobs: Vec<Vec<(u32, f32)>> = row
            .logprobs
            .iter()
            .map(|entry| {
                let values = entry.logprob_bits.iter().map(|bits| f32::from_bits(*bits));
                entry.token_ids.iter().copied().zip(values).collect()
            })
            .collect();
        let fields = PyDict::new(py);
        fields.set_item("seat", row.seat.get())?;
        fields.set_item("generation", row.generation.get())?;
        fields.set_item("known", row.known)?;
        fields.set_item("accepted", row.accepted)?;
        fields.set_item("emitted", row.emitted.to_vec())?;
        fields.set_item("proposed", row.proposed)?;
        let drafts = reply.drafts.iter().find(|told| told.seat == row.seat).map_or(&[][..], |told| &told.drafts[..]);
        fields.set_item("drafts", drafts)?;
        fields.set_item("logprobs", logprobs)?;
        Ok(fields)
    });
    let fields = PyDict::new(py);
    fields.set_item("dp_rank", reply.dp_rank.get())?;
    fields.set_item("rows", rows.collect::<PyResult<Vec<_>>>()?)?;
    fields.set_item("passes", reply.passes)?;
    fields.set_item("collectives", reply.collectives)?;
    fields.set_item("timings_us", reply.timings_us.to_vec())?;
    Ok(fields)
}

/// Sampling parameters as the bytes that a plan carries.
///
/// # Errors
/// `InvalidSampling` with the field for a value out of range.
#[pyfunction]
#[pyo3(signature = (*, temperature = 1.0, top_k = 0, top_p = 1.0, min_p = 0.0, seed = 0, logprobs = None))]
pub(crate) fn sampling_bytes_for_test(
    py: Python<'_>,
    temperature: f32,
    top_k: u32,
    top_p: f32,
    min_p: f32,
    seed: u64,
    logprobs: Option<u32>,
) -> PyResult<Bound<'_, PyBytes>> {
    let params = SamplingParams { temperature, top_k, top_p, min_p, seed, logprobs, ..SamplingParams::default() };
    params.validate().map_err(|error| sampling_error(py, &error, None))?;
    Ok(PyBytes::new(py, &params.to_bytes()))
}
