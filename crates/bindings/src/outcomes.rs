//! From logits to what came of each row, and the drafts for the next step.

use paceline_plan::seats::{RowOutcome, SeatState, SeatTable, WorkerStep};
use paceline_plan::{LogitsWanted, Row, StepMasks, TokenLogprobs};
use paceline_sampling::ngram::{self, NgramLengths};
use paceline_sampling::{Context, Error, Sampler, Scratch};

use crate::prompt::{LastLogits, entry};

/// An unusable row of a step.
pub(crate) struct RowError {
    pub(crate) row: usize,
    pub(crate) seat: u32,
    pub(crate) error: Error,
}

/// Samples every row that gives logits. `logits` holds the step's rows of logits in the plan's order, and `samplers`
/// one entry for each seat.
pub(crate) fn sample_rows(
    table: &SeatTable,
    samplers: &[Option<Sampler>],
    last_logits: &mut LastLogits,
    step: &WorkerStep,
    masks: &StepMasks,
    mut logits: &[&[f32]],
    scratch: &mut Scratch,
) -> Result<Vec<RowOutcome>, RowError> {
    let mut masks = masks.rows.iter();
    let mut outcomes = Vec::with_capacity(step.rank.rows().len());
    for (index, row) in step.rank.rows().iter().enumerate() {
        let (of_row, rest) = logits.split_at(row.logits_count() as usize);
        logits = rest;
        let sampler = samplers[row.seat.index()].as_ref().expect("an admitted seat has a sampler");
        let masks = if row.masks_count() > 0 { masks.next() } else { None };
        let masks = masks.map_or(&[][..], |masks| &masks.positions);
        let masks: Vec<Option<&[u32]>> = masks.iter().map(|mask| mask.as_ref().map(|words| &words[..])).collect();
        let wanted = Wanted { row, logits: of_row, masks: &masks };
        let outcome = outcome(state_of(table, row), sampler, last_logits, &wanted, scratch);
        outcomes.push(outcome.map_err(|error| RowError { row: index, seat: row.seat.get(), error })?);
    }
    Ok(outcomes)
}

/// A row, its logits, and its masks where it has any.
struct Wanted<'a> {
    row: &'a Row,
    logits: &'a [&'a [f32]],
    masks: &'a [Option<&'a [u32]>],
}

/// What comes of one row: the log-probabilities of its part of the prompt where they are wanted, then its tokens.
fn outcome(
    state: &SeatState,
    sampler: &Sampler,
    last_logits: &mut LastLogits,
    wanted: &Wanted<'_>,
    scratch: &mut Scratch,
) -> Result<RowOutcome, Error> {
    if wanted.row.logits != LogitsWanted::All {
        return sample_row(state, sampler, wanted, scratch);
    }
    let mut logprobs = last_logits.entries(state, sampler, wanted.row, wanted.logits, scratch)?;
    let mut outcome = sample_row(state, sampler, wanted, scratch)?;
    if !logprobs.is_empty() {
        outcome.logprobs.resize(outcome.emitted.len(), TokenLogprobs::default());
        logprobs.append(&mut outcome.logprobs);
        outcome.logprobs = logprobs;
    }
    Ok(outcome)
}

fn sample_row(
    state: &SeatState,
    sampler: &Sampler,
    wanted: &Wanted<'_>,
    scratch: &mut Scratch,
) -> Result<RowOutcome, Error> {
    let Wanted { row, logits, masks } = *wanted;
    let ends_what_is_known = state.computed() + row.query_len.get() == state.known();
    let (logits, drafts) = match row.logits {
        LogitsWanted::None => return Ok(RowOutcome::default()),
        LogitsWanted::All if !ends_what_is_known => return Ok(RowOutcome::default()),
        LogitsWanted::Last | LogitsWanted::All => (&logits[logits.len() - 1..], &[][..]),
        // Logits of drafts that were planned and not proposed come last, and nobody looks at them.
        LogitsWanted::Verify => (&logits[..1 + state.drafts_of(row).len()], state.drafts_of(row)),
    };
    let produced = sampler.produce_allowed(logits, masks, drafts, &context_of(state), scratch)?;
    let logprobs = produced.emitted.iter().zip(&produced.logprobs).map(|(id, found)| entry(*id, found)).collect();
    let accepted = u32::try_from(produced.accepted).expect("a row has fewer than 2^32 drafts");
    Ok(RowOutcome { accepted, emitted: produced.emitted, proposed: Vec::new(), logprobs })
}

/// Proposes prompt-lookup drafts for every row that emitted: at most `k_draft` each, from the seat's tokens and what
/// it emitted in this step. `history` is a buffer to reuse.
pub(crate) fn propose_drafts(
    table: &SeatTable,
    step: &WorkerStep,
    outcomes: &mut [RowOutcome],
    history: &mut Vec<u32>,
) {
    let count = step.group.k_draft() as usize;
    for (row, outcome) in step.rank.rows().iter().zip(outcomes) {
        outcome.proposed.clear();
        if count == 0 || outcome.emitted.is_empty() {
            continue;
        }
        history.clear();
        history.extend_from_slice(state_of(table, row).tokens());
        history.extend_from_slice(&outcome.emitted);
        ngram::propose(history, count, NgramLengths::default(), &mut outcome.proposed);
    }
}

/// Appends one draft to every row that gave a token, sampled as the row's own tokens are: by its parameters, with the
/// noise of the draft's place. `logits` holds a row for each of them, in order.
pub(crate) fn propose_sampled(
    table: &SeatTable,
    samplers: &[Option<Sampler>],
    step: &WorkerStep,
    outcomes: &mut [RowOutcome],
    logits: &[&[f32]],
    scratch: &mut Scratch,
) -> Result<(), RowError> {
    let rows = step.rank.rows().iter().zip(outcomes).enumerate();
    let sampled = rows.filter(|(_, (_, outcome))| !outcome.emitted.is_empty());
    for ((index, (row, outcome)), logits) in sampled.zip(logits) {
        let sampler = samplers[row.seat.index()].as_ref().expect("an admitted seat has a sampler");
        let before = [outcome.emitted.as_slice(), &outcome.proposed].concat();
        let drafted = sampler.choose(logits, &context_of(state_of(table, row)), &before, scratch);
        outcome.proposed.push(drafted.map_err(|error| RowError { row: index, seat: row.seat.get(), error })?);
    }
    Ok(())
}

/// Where the next token of a request stands.
fn context_of(state: &SeatState) -> Context<'_> {
    Context { prompt_len: state.prompt_len().into(), index: state.known().into(), tokens: state.tokens() }
}

fn state_of<'a>(table: &'a SeatTable, row: &Row) -> &'a SeatState {
    table.seat(row.seat).expect("a checked row has a request on its seat")
}
