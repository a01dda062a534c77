//! A worker's drafter with KV: its passes are filled as a worker does and checked against what the test knows of every
//! request, and what each slot of each layer holds is remembered, so that a hole in a drafter's context is seen.

use paceline_plan::arrays::{fill_extend, fill_single};
use paceline_plan::seats::{RowOutcome, SeatState, SeatTable, WorkerStep};
use paceline_plan::{PassKind, Row, SeatGeneration};

use crate::arrays::Arrays;

/// What a slot of a layer holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry {
    seat: u32,
    generation: SeatGeneration,
    position: u32,
    token: i64,
    /// Written for a draft, so perhaps with a token that was rejected.
    by_single: bool,
}

/// One rank's drafter.
#[derive(Clone, Debug)]
pub(crate) struct Drafting {
    layers: u32,
    arrays: Arrays,
    /// By layer, from 1, then slot.
    entries: Vec<Vec<Option<Entry>>>,
    /// Writes of single passes that had no slot.
    pub(crate) unwritten: u64,
}

/// A row with what the test knows of it: every token of the request, this step's included.
pub(crate) struct Known<'a> {
    pub(crate) row: &'a Row,
    pub(crate) state: &'a SeatState,
    pub(crate) is_decode: bool,
    pub(crate) tokens: Vec<u32>,
}

impl Known<'_> {
    fn last_position(&self, outcome: &RowOutcome) -> u32 {
        let start = self.state.computed();
        if self.is_decode { start + outcome.accepted } else { start + self.row.query_len.get() - 1 }
    }

    fn slot(&self, table: &SeatTable, position: u32) -> i64 {
        let limits = table.limits();
        match self.state.blocks().get((position / limits.block_size) as usize) {
            Some(block) if position < limits.max_model_len => {
                i64::from(block.get() * limits.block_size + position % limits.block_size)
            }
            _ => -1,
        }
    }
}

impl Drafting {
    pub(crate) fn new(table: &SeatTable) -> Self {
        let limits = table.limits();
        let slots = ((limits.num_blocks + 1) * limits.block_size) as usize;
        let layers = table.drafter_layers();
        Self { layers, arrays: Arrays::new(limits), entries: vec![vec![None; slots]; layers as usize], unwritten: 0 }
    }

    /// The extend pass of every layer. `target` holds the step's target arrays.
    pub(crate) fn extend(
        &mut self,
        table: &SeatTable,
        step: &WorkerStep,
        outcomes: &[RowOutcome],
        known: &[Known<'_>],
        target: &Arrays,
    ) {
        assert_eq!(step.group.passes()[1].kind(), PassKind::Extend, "the extend pass runs whenever the target runs");
        for layer in 1..=self.layers {
            let logits =
                self.arrays.fill_with(|arrays, extent| fill_extend(table, step, layer, outcomes, arrays, extent));
            let (rows, tokens) = self.arrays.extent();
            let arrays = &self.arrays;
            let width = table.limits().table_width as usize;
            assert_eq!(arrays.query_start_loc, target.query_start_loc);
            assert_eq!(arrays.kv_lens[..rows], target.kv_lens[..rows]);
            assert_eq!(arrays.block_table[..rows * width], target.block_table[..rows * width]);
            assert_eq!(arrays.request_index[..tokens], target.request_index[..tokens]);
            assert_eq!(arrays.positions[..tokens], target.positions[..tokens]);
            let mut wanted = Vec::new();
            for (index, (known, outcome)) in known.iter().zip(outcomes).enumerate() {
                let first = arrays.query_start_loc[index] as usize;
                check_extended(arrays, table, known, layer, first);
                if step.group.k_draft() > 0 && !outcome.emitted.is_empty() {
                    let last = known.last_position(outcome) - known.state.computed();
                    wanted.push((first + last as usize) as i64);
                }
            }
            let real: usize = known.iter().map(|known| known.row.query_len.get() as usize).sum();
            assert!(arrays.slots[real..tokens].iter().all(|slot| *slot == -1), "padding writes no KV");
            assert!(arrays.input_ids[real..tokens].iter().all(|token| *token == 0));
            assert_eq!((logits, &arrays.logits_index[..logits]), (wanted.len(), &wanted[..]));
            self.remember_extended(table, known, layer);
        }
    }

    fn remember_extended(&mut self, table: &SeatTable, known: &[Known<'_>], layer: u32) {
        let entries = &mut self.entries[layer as usize - 1];
        for (index, known) in known.iter().enumerate() {
            let (seat, generation) = (known.row.seat.get(), known.row.generation);
            let start = known.state.computed();
            // Context that was written before this step: all of it in layer 1; later layers have draft tokens in it.
            for position in start.saturating_sub(64)..start {
                let entry = entries[known.slot(table, position) as usize];
                let is_own = entry.is_some_and(|entry| (entry.seat, entry.generation) == (seat, generation));
                let token = i64::from(known.tokens[(position + layer) as usize]);
                if layer == 1 {
                    // A block of a prefix hit was written by another request, with the same tokens.
                    let found = entry.map(|entry| (entry.position, entry.token, entry.by_single));
                    let expected = Some((position, token, false));
                    assert_eq!(found, expected, "the drafter's context at {position} of {start}");
                } else if let Some(entry) = entry.filter(|entry| is_own && !entry.by_single) {
                    assert_eq!((entry.position, entry.token), (position, token), "layer {layer}");
                }
            }
            let first = self.arrays.query_start_loc[index] as usize;
            for offset in 0..known.row.query_len.get() {
                let token = first + offset as usize;
                if let Ok(slot) = usize::try_from(self.arrays.slots[token]) {
                    let (position, token) = (start + offset, self.arrays.input_ids[token]);
                    entries[slot] = Some(Entry { seat, generation, position, token, by_single: false });
                }
            }
        }
    }

    /// The single pass that gives draft `index`.
    pub(crate) fn single(
        &mut self,
        table: &SeatTable,
        step: &WorkerStep,
        index: u32,
        outcomes: &[RowOutcome],
        known: &[Known<'_>],
    ) {
        let layers = self.layers;
        let logits =
            self.arrays.fill_with(|arrays, extent| fill_single(table, step, index, layers, outcomes, arrays, extent));
        let (rows, tokens) = self.arrays.extent();
        let arrays = &self.arrays;
        let (longest, width) = (table.limits().max_model_len, table.limits().table_width as usize);
        let sampled: Vec<_> = known.iter().zip(outcomes).filter(|(_, outcome)| !outcome.emitted.is_empty()).collect();
        assert_eq!(logits, sampled.len());
        let mut written = Vec::new();
        for (token, (known, outcome)) in sampled.iter().enumerate() {
            let position = known.last_position(outcome) + index.saturating_sub(layers);
            let draft = i64::from(outcome.proposed[index as usize - 2]);
            let slot = known.slot(table, position);
            let clamped = position.min(longest - 1);
            assert_eq!(arrays.input_ids[token], draft);
            assert_eq!((arrays.positions[token], arrays.slots[token]), (clamped.into(), slot));
            assert_eq!((arrays.query_start_loc[token], arrays.request_index[token]), (token as i32, token as i32));
            assert_eq!((arrays.kv_lens[token], arrays.logits_index[token]), (clamped as i32 + 1, token as i64));
            let held = known.state.blocks().iter().map(|block| block.get() as i32);
            let columns = held.chain(std::iter::repeat(0)).take(width);
            assert!(arrays.block_table[token * width..][..width].iter().copied().eq(columns));
            written.push((slot, position, draft, known.row.seat.get(), known.row.generation));
        }
        let real = sampled.len();
        assert!(arrays.slots[real..tokens].iter().all(|slot| *slot == -1), "padding writes no KV");
        assert!(arrays.block_table[real * width..rows * width].iter().all(|block| *block == 0));
        assert!(arrays.kv_lens[real..rows].iter().all(|kv_len| *kv_len == 1), "a padding row sees itself");
        assert!(arrays.request_index[real..tokens].iter().all(|row| *row == -1));
        let layer = index.min(layers) as usize - 1;
        for (slot, position, token, seat, generation) in written {
            match usize::try_from(slot) {
                Ok(slot) => {
                    let entry = Entry { seat, generation, position, token, by_single: true };
                    self.entries[layer][slot] = Some(entry);
                }
                Err(_) => self.unwritten += 1,
            }
        }
    }
}

/// A token that exists is fed and written at the target's own slot; every other is token 0 and written nowhere.
fn check_extended(arrays: &Arrays, table: &SeatTable, known: &Known<'_>, layer: u32, first: usize) {
    for offset in 0..known.row.query_len.get() {
        let position = known.state.computed() + offset;
        let token = first + offset as usize;
        let expected = match known.tokens.get((position + layer) as usize) {
            Some(token_id) => (i64::from(*token_id), known.slot(table, position)),
            None => (0, -1),
        };
        assert_eq!((arrays.input_ids[token], arrays.slots[token]), expected, "layer {layer}, position {position}");
    }
}
