//! Executes a plan as a worker does: checks, arrays, tokens, reply. No torch, no sockets.

use paceline_plan::arrays::{Extent, PassArrays, fill_extend, fill_single, fill_target};
use paceline_plan::seats::{RowOutcome, SeatState, SeatTable, StepHeader, WorkerStep};
use paceline_plan::{Error, LogitsWanted, Pass, Row, StepMasks, StepReply, TokenLogprobs, Words, WorkerLimits};
use paceline_proto::v1::AttentionContract;
use paceline_sampling::SamplingParams;

use crate::contract;
use crate::memory::Memory;
use crate::model::{drafts, masked_token};

/// The arrays of a pass, at capacity.
struct Buffers {
    tokens_i64: [Vec<i64>; 4],
    request_index: Vec<i32>,
    query_start_loc: Vec<i32>,
    kv_lens: Vec<i32>,
    block_table: Vec<i32>,
    extent: Extent,
}

impl Buffers {
    fn new(limits: &WorkerLimits) -> Self {
        let (rows, tokens) = (limits.row_capacity as usize, limits.token_capacity as usize);
        Self {
            tokens_i64: std::array::from_fn(|_| vec![0; tokens]),
            request_index: vec![0; tokens],
            query_start_loc: vec![0; rows + 1],
            kv_lens: vec![0; rows],
            block_table: vec![0; rows * limits.table_width as usize],
            extent: Extent { rows, tokens },
        }
    }

    /// Fills the arrays with a pass; how many logits it wants.
    fn fill(
        &mut self,
        fill: impl FnOnce(&mut PassArrays<'_>, &mut Extent) -> Result<usize, Error>,
    ) -> Result<usize, Error> {
        let [input_ids, positions, slots, logits_index] = &mut self.tokens_i64;
        let mut arrays = PassArrays {
            input_ids,
            positions,
            slots,
            query_start_loc: &mut self.query_start_loc,
            kv_lens: &mut self.kv_lens,
            block_table: &mut self.block_table,
            request_index: &mut self.request_index,
            logits_index,
        };
        fill(&mut arrays, &mut self.extent)
    }

    /// What a uniform attention kernel would assert of a FULL pass.
    fn check_full(&self, pass: &Pass) -> Result<(), Error> {
        let Some(query_len) = pass.query_len() else { return Ok(()) };
        let (rows, q) = (pass.rows_padded().as_usize(), i64::from(query_len.get()));
        for index in 0..=rows {
            equal(7, "query_start_loc", index as i64 * q, self.query_start_loc[index].into())?;
        }
        for kv_len in &self.kv_lens[..rows] {
            if i64::from(*kv_len) < q {
                return Err(Error::rule(7, "kv_len", q, *kv_len));
            }
        }
        equal(4, "tokens_padded", rows as i64 * q, pass.tokens_padded().get().into())
    }

    /// Every position whose logits a drafter's pass wants is fed the token that the draft follows.
    fn check_fed(&self, tokens: impl ExactSizeIterator<Item = u32>, logits: usize) -> Result<(), Error> {
        let [input_ids, _, _, logits_index] = &self.tokens_i64;
        equal(20, "logits of a drafter's pass", tokens.len() as i64, logits as i64)?;
        for (token_id, index) in tokens.zip(logits_index) {
            equal(18, "token that a draft follows", token_id.into(), input_ids[*index as usize])?;
        }
        Ok(())
    }
}

fn equal(rule: u32, field: &'static str, expected: i64, got: i64) -> Result<(), Error> {
    if expected == got { Ok(()) } else { Err(Error::rule(rule, field, expected, got)) }
}

/// One rank's seats, arrays and model.
pub struct Batch {
    table: SeatTable,
    buffers: Buffers,
    memory: Memory,
    row_ladders: Vec<(u32, Vec<u32>)>,
    contract: AttentionContract,
    accept_percent: u32,
}

impl Batch {
    /// A batch over an empty seat table. `row_ladders` holds, for each verify width, the FULL row counts that were
    /// warmed up; without an entry any row count is taken. Every launch is held to `contract`.
    pub fn new(
        table: SeatTable,
        row_ladders: Vec<(u32, Vec<u32>)>,
        contract: AttentionContract,
        accept_percent: u32,
    ) -> Self {
        let (buffers, memory) = (Buffers::new(table.limits()), Memory::new(table.limits()));
        Self { table, buffers, memory, row_ladders, contract, accept_percent }
    }

    /// The seats.
    pub fn table(&mut self) -> &mut SeatTable {
        &mut self.table
    }

    /// Checks a plan and applies its deltas.
    ///
    /// # Errors
    /// The broken rule with both numbers.
    pub fn begin(&mut self, header: StepHeader, group_part: &[u8], rank_part: &[u8]) -> Result<WorkerStep, Error> {
        let step = self.table.begin(header, group_part, rank_part)?;
        if let Some(query_len) = step.group.target().query_len() {
            let rows_padded = step.group.target().rows_padded().get();
            let ladder = self.row_ladders.iter().find(|(width, _)| *width == query_len.get());
            if let Some((_, rows)) = ladder
                && !rows.contains(&rows_padded)
            {
                return Err(Error::rule(5, "rows_padded of the ladder", -1, rows_padded));
            }
        }
        Ok(step)
    }

    /// Fills the arrays of every pass, runs the scripted model and gives the reply. `masks` are those that followed the plan.
    ///
    /// # Errors
    /// The broken rule with both numbers.
    pub fn run(&mut self, step: &WorkerStep, masks: &StepMasks) -> Result<StepReply, Error> {
        masks.check(&step.rank, self.table.limits().vocab_size)?;
        let table = &self.table;
        let logits = self.buffers.fill(|arrays, extent| fill_target(table, step, arrays, extent))?;
        self.memory.prepare(&step.rank);
        let [input_ids, _, slots, _] = &self.buffers.tokens_i64;
        let written = self.buffers.extent.tokens;
        self.memory.write(&input_ids[..written], &slots[..written]);
        self.check_launch(step.group.target())?;
        let wanted: u32 = step.rank.rows().iter().map(Row::logits_count).sum();
        equal(20, "logits", wanted.into(), logits as i64)?;
        let mut masks = masks.rows.iter();
        let mut outcomes = Vec::with_capacity(step.rank.rows().len());
        for row in step.rank.rows() {
            let of_row = if row.masks_count() > 0 { masks.next() } else { None };
            outcomes.push(self.outcome(row, of_row.map_or(&[], |masks| &masks.positions))?);
        }
        let rows = step.rank.rows().iter().zip(&outcomes);
        let drafts = rows.map(|(row, outcome)| self.drafts(step, row, outcome)).collect::<Result<Vec<_>, _>>()?;
        let mut passes = 1;
        if step.group.passes().len() == 1 {
            outcomes.iter_mut().zip(drafts).for_each(|(outcome, drafts)| outcome.proposed = drafts);
        } else {
            passes += self.run_drafter(step, &mut outcomes, &drafts)?;
        }
        let mut reply = self.table.commit(step, outcomes)?;
        reply.passes = passes;
        Ok(reply)
    }

    /// The extend pass of every draft layer, then the single passes; each gives every row that sampled its next draft.
    /// How many passes ran.
    fn run_drafter(
        &mut self,
        step: &WorkerStep,
        outcomes: &mut [RowOutcome],
        drafts: &[Vec<u32>],
    ) -> Result<u32, Error> {
        let (layers, k_draft) = (self.table.drafter_layers().max(1), step.group.k_draft());
        for layer in 1..=layers {
            let (table, sampled) = (&self.table, &*outcomes);
            let logits =
                self.buffers.fill(|arrays, extent| fill_extend(table, step, layer, sampled, arrays, extent))?;
            self.check_launch(&step.group.passes()[1])?;
            if layer == 1 && k_draft > 0 {
                let newest: Vec<u32> = outcomes.iter().filter_map(|outcome| outcome.emitted.last().copied()).collect();
                self.buffers.check_fed(newest.into_iter(), logits)?;
            }
        }
        propose(outcomes, drafts, 1, k_draft);
        for index in 2..=k_draft {
            let (table, sampled) = (&self.table, &*outcomes);
            let logits =
                self.buffers.fill(|arrays, extent| fill_single(table, step, index, layers, sampled, arrays, extent))?;
            self.check_launch(&step.group.passes()[index as usize])?;
            let newest: Vec<u32> = outcomes.iter().filter_map(|outcome| outcome.proposed.last().copied()).collect();
            self.buffers.check_fed(newest.into_iter(), logits)?;
            propose(outcomes, drafts, index, k_draft);
        }
        Ok(k_draft.max(1))
    }

    /// What a uniform kernel of the declared contract would assert of a pass.
    fn check_launch(&self, pass: &Pass) -> Result<(), Error> {
        self.buffers.check_full(pass)?;
        contract::check(&self.contract, self.table.limits(), pass)
    }

    /// The drafts that follow what a row emitted.
    fn drafts(&self, step: &WorkerStep, row: &Row, outcome: &RowOutcome) -> Result<Vec<u32>, Error> {
        let state = self.table.seat(row.seat).filter(|_| !outcome.emitted.is_empty());
        let Some(state) = state else { return Ok(Vec::new()) };
        let mut tokens = self.memory.history(state)?;
        tokens.extend_from_slice(&outcome.emitted);
        Ok(drafts(&tokens, step.group.k_draft(), self.accept_percent, self.table.limits().vocab_size))
    }

    fn outcome(&self, row: &Row, masks: &[Option<Words>]) -> Result<RowOutcome, Error> {
        let state = self.table.seat(row.seat).ok_or(Error::rule(11, "request on the seat", 1, 0))?;
        let vocab_size = self.table.limits().vocab_size;
        let mut tokens = self.memory.history(state)?;
        let known = tokens.len();
        let next = |tokens: &[u32]| masked_token(tokens, vocab_size, masks.get(tokens.len() - known));
        let mut accepted = 0;
        let ends_what_is_known = state.computed() + row.query_len.get() == state.known();
        match row.logits {
            LogitsWanted::All if !ends_what_is_known => {
                let logprobs = prompt_logprobs(state, row, vocab_size)?;
                return Ok(RowOutcome { logprobs, ..RowOutcome::default() });
            }
            LogitsWanted::None => return Ok(RowOutcome::default()),
            LogitsWanted::Last | LogitsWanted::All => tokens.push(next(&tokens)),
            LogitsWanted::Verify => {
                for draft in state.drafts_of(row) {
                    let token = next(&tokens);
                    tokens.push(token);
                    if token != *draft {
                        break;
                    }
                    accepted += 1;
                }
                if tokens.len() - known == accepted as usize {
                    tokens.push(next(&tokens));
                }
            }
        }
        let emitted = tokens.split_off(known);
        let mut logprobs = logprobs(state, &emitted, vocab_size)?;
        if row.logits == LogitsWanted::All {
            logprobs.resize(emitted.len(), TokenLogprobs::default());
            logprobs.splice(..0, prompt_logprobs(state, row, vocab_size)?);
        }
        Ok(RowOutcome { accepted, emitted, proposed: Vec::new(), logprobs })
    }
}

/// Gives every row that sampled its draft number `index`, from 1.
fn propose(outcomes: &mut [RowOutcome], drafts: &[Vec<u32>], index: u32, k_draft: u32) {
    for (outcome, drafts) in outcomes.iter_mut().zip(drafts).filter(|_| index <= k_draft) {
        outcome.proposed.extend(drafts.get(index as usize - 1));
    }
}

/// Log-probabilities of the emitted tokens, where they are wanted.
fn logprobs(state: &SeatState, emitted: &[u32], vocab_size: u32) -> Result<Vec<TokenLogprobs>, Error> {
    let Some(top) = params(state)?.logprobs else { return Ok(Vec::new()) };
    Ok(emitted.iter().map(|token| made_up(*token, top, vocab_size)).collect())
}

/// Log-probabilities of the row's own tokens that belong to the prompt, all but the prompt's first.
fn prompt_logprobs(state: &SeatState, row: &Row, vocab_size: u32) -> Result<Vec<TokenLogprobs>, Error> {
    let Some(top) = params(state)?.prompt_logprobs else { return Ok(Vec::new()) };
    let end = state.prompt_len().min(state.computed() + row.query_len.get());
    Ok((state.computed().max(1)..end).map(|index| made_up(state.token(index), top, vocab_size)).collect())
}

fn params(state: &SeatState) -> Result<SamplingParams, Error> {
    let params = SamplingParams::from_bytes(state.sampling());
    params.map_err(|error| Error::Decode { message: format!("sampling parameters: {error}") })
}

/// Of the right form: token t has -(t mod 8) / 4 - 0.25, alternatives follow it.
fn made_up(token: u32, top: u32, vocab_size: u32) -> TokenLogprobs {
    let mut token_ids = vec![token];
    token_ids.extend((0..top).map(|index| (token + index) % vocab_size));
    let logprob = |token: &u32| (-0.25 - 0.25 * (token % 8) as f32).to_bits();
    TokenLogprobs { logprob_bits: token_ids.iter().map(logprob).collect(), token_ids }
}
