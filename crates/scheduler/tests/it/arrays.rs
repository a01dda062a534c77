//! The arrays that kernels would be given, checked against the step rules from the plan and the worker's seats alone:
//! shares nothing with `plan::arrays` but the names of the arrays.

use std::collections::BTreeSet;

use paceline_plan::arrays::{Extent, PassArrays, fill_target};
use paceline_plan::seats::{SeatState, SeatTable, WorkerStep};
use paceline_plan::{LogitsWanted, Mode, Row, WorkerLimits};

/// What fresh arrays are full of: no value that a kernel could take.
const POISON: i32 = 99_999_999;

/// One rank's arrays, kept from step to step as a worker keeps them.
#[derive(Clone, Debug)]
pub(crate) struct Arrays {
    pub(crate) input_ids: Vec<i64>,
    pub(crate) positions: Vec<i64>,
    pub(crate) slots: Vec<i64>,
    pub(crate) query_start_loc: Vec<i32>,
    pub(crate) kv_lens: Vec<i32>,
    pub(crate) block_table: Vec<i32>,
    pub(crate) request_index: Vec<i32>,
    pub(crate) logits_index: Vec<i64>,
    /// Entries of `logits_index` that count.
    pub(crate) logits: usize,
    extent: Extent,
    /// How far steps have written since the last check: nothing past it can have changed.
    touched: Extent,
}

impl Arrays {
    pub(crate) fn new(limits: &WorkerLimits) -> Self {
        let (rows, tokens) = (limits.row_capacity as usize, limits.token_capacity as usize);
        let poison = i64::from(POISON);
        Self {
            input_ids: vec![poison; tokens],
            positions: vec![poison; tokens],
            slots: vec![poison; tokens],
            query_start_loc: vec![POISON; rows + 1],
            kv_lens: vec![POISON; rows],
            block_table: vec![POISON; rows * limits.table_width as usize],
            request_index: vec![POISON; tokens],
            logits_index: vec![poison; tokens],
            logits: 0,
            extent: Extent { rows, tokens },
            touched: Extent { rows, tokens },
        }
    }

    /// Fills the arrays for a step that the worker has begun and not committed, and checks every entry that it, or
    /// one since the last check, can have written.
    pub(crate) fn fill_and_check(&mut self, table: &SeatTable, step: &WorkerStep) {
        self.fill(table, step);
        self.check(table, step);
        self.touched = self.extent;
    }

    /// Panics when an entry is not what the step rules say.
    pub(crate) fn check(&self, table: &SeatTable, step: &WorkerStep) {
        check(self, table, step);
    }

    /// Fills the arrays and checks nothing.
    pub(crate) fn fill(&mut self, table: &SeatTable, step: &WorkerStep) {
        self.logits = self.fill_with(|arrays, extent| fill_target(table, step, arrays, extent));
    }

    /// Rows and tokens of the newest pass.
    pub(crate) const fn extent(&self) -> (usize, usize) {
        (self.extent.rows, self.extent.tokens)
    }

    /// Fills the arrays with a pass; how many logits it wants.
    pub(crate) fn fill_with(
        &mut self,
        fill: impl FnOnce(&mut PassArrays<'_>, &mut Extent) -> Result<usize, paceline_plan::Error>,
    ) -> usize {
        let mut arrays = PassArrays {
            input_ids: &mut self.input_ids,
            positions: &mut self.positions,
            slots: &mut self.slots,
            query_start_loc: &mut self.query_start_loc,
            kv_lens: &mut self.kv_lens,
            block_table: &mut self.block_table,
            request_index: &mut self.request_index,
            logits_index: &mut self.logits_index,
        };
        let logits = fill(&mut arrays, &mut self.extent).expect("the arrays have the capacity of the limits");
        let Extent { rows, tokens } = self.extent;
        self.touched = Extent { rows: rows.max(self.touched.rows), tokens: tokens.max(self.touched.tokens) };
        logits
    }
}

fn check(arrays: &Arrays, table: &SeatTable, step: &WorkerStep) {
    let limits = table.limits();
    let target = step.group.target();
    let query_len = 1 + step.group.k_verify() as usize;
    let is_full = target.mode() == Mode::Full;
    let mut lens: Vec<usize> = step.rank.rows().iter().map(|row| row.query_len.get() as usize).collect();
    if step.rank.is_dummy() {
        lens.push(query_len);
    }
    let real_or_dummy: usize = lens.iter().sum();
    let tokens = if target.mode() == Mode::Eager { real_or_dummy } else { target.tokens_padded().as_usize() };
    if is_full {
        assert_eq!(tokens, target.rows_padded().as_usize() * query_len, "rows and tokens are padded together");
        assert!(lens.iter().all(|len| *len == query_len), "no row of a FULL step is shorter than q");
        lens.resize(target.rows_padded().as_usize(), query_len);
    }
    assert!(tokens <= arrays.input_ids.len() && lens.len() <= arrays.kv_lens.len());
    let end = check_offsets(arrays, &lens);
    if is_full {
        assert_eq!(end, tokens, "attention sees as many tokens as the query tensor has");
        assert_eq!(end % lens.len(), 0);
    } else {
        assert_eq!(end, real_or_dummy, "attention sees real counts outside FULL");
    }
    let mut seen = Seen::default();
    for (index, row) in step.rank.rows().iter().enumerate() {
        let state = table.seat(row.seat).expect("a row's seat is taken");
        let is_decode = index < step.rank.decode_rows() as usize;
        check_row(arrays, limits, state, row, Place { index, is_decode }, &mut seen);
    }
    check_padding(arrays, limits, step.rank.rows().len(), &lens, tokens);
    assert_eq!(arrays.logits, seen.logits.len());
    assert_eq!(arrays.logits_index[..arrays.logits], seen.logits, "logits that rows want, in order");
    let past = tokens.max(arrays.touched.tokens).max(arrays.logits);
    assert!(arrays.logits_index[arrays.logits..past].iter().all(|index| *index == -1));
}

/// Offsets go up by each row's length and are flat past the last; the end.
fn check_offsets(arrays: &Arrays, lens: &[usize]) -> usize {
    let mut offset = 0;
    for (start, len) in arrays.query_start_loc.iter().zip(lens) {
        assert_eq!(*start, offset as i32);
        assert!(*len > 0, "no row is empty");
        offset += len;
    }
    assert!(arrays.query_start_loc[lens.len()..].iter().all(|start| *start == offset as i32), "flat past the rows");
    offset
}

/// Slots and blocks of a rank that some row has.
#[derive(Default)]
struct Seen {
    slots: BTreeSet<i64>,
    blocks: BTreeSet<u32>,
    /// Blocks of prefixes, which several rows may read.
    shared: BTreeSet<u32>,
    logits: Vec<i64>,
}

#[derive(Clone, Copy)]
struct Place {
    index: usize,
    is_decode: bool,
}

fn check_row(arrays: &Arrays, limits: &WorkerLimits, state: &SeatState, row: &Row, place: Place, seen: &mut Seen) {
    let Place { index, is_decode } = place;
    let (computed, query_len) = (state.computed(), row.query_len.get());
    let kv_len = arrays.kv_lens[index];
    assert_eq!(kv_len, (computed + query_len) as i32);
    assert!(kv_len >= query_len as i32 && kv_len <= (limits.max_model_len + limits.k_max) as i32);
    assert!(kv_len as u32 <= limits.table_width * limits.block_size);
    check_table_row(arrays, limits, state, index, seen);
    if is_decode {
        assert_eq!(computed + 1, state.known(), "a decode row has computed all but its newest token");
    }
    // Drafts that were planned and not proposed are placeholders too.
    let written = if is_decode { 1 + state.drafts_of(row).len() as u32 } else { query_len };
    let first = arrays.query_start_loc[index] as usize;
    for offset in 0..query_len {
        let token = first + offset as usize;
        let position = computed + offset;
        assert_eq!(arrays.request_index[token], index as i32);
        if offset >= written {
            let clamped = position.min(limits.max_model_len - 1);
            let got = (arrays.input_ids[token], arrays.positions[token], arrays.slots[token]);
            assert_eq!(got, (0, clamped.into(), -1), "a placeholder writes nothing");
            continue;
        }
        assert!(position < limits.max_model_len, "no write slot at or past the model's length");
        let id = if is_decode && offset > 0 { state.drafts()[offset as usize - 1] } else { state.token(position) };
        assert!(id < limits.vocab_size);
        assert_eq!((arrays.input_ids[token], arrays.positions[token]), (id.into(), position.into()));
        let (block, rest) = (position / limits.block_size, position % limits.block_size);
        let block = state.blocks()[block as usize].get();
        let slot = i64::from(block * limits.block_size + rest);
        assert_eq!(arrays.slots[token], slot);
        assert!(slot >= limits.block_size.into(), "the null block is never written");
        assert!(seen.slots.insert(slot), "slot {slot} is written twice");
    }
    let first = first as i64;
    match row.logits {
        LogitsWanted::None => {}
        LogitsWanted::Last => seen.logits.push(first + i64::from(query_len) - 1),
        LogitsWanted::Verify => seen.logits.extend((0..=i64::from(row.drafts)).map(|offset| first + offset)),
        LogitsWanted::All => seen.logits.extend((0..i64::from(query_len)).map(|offset| first + offset)),
    }
}

/// The request's own blocks, each once on the rank, then the null block.
fn check_table_row(arrays: &Arrays, limits: &WorkerLimits, state: &SeatState, index: usize, seen: &mut Seen) {
    let width = limits.table_width as usize;
    let (held, overhang) = arrays.block_table[index * width..][..width].split_at(state.blocks().len());
    assert!(held.iter().zip(state.blocks()).all(|(column, block)| *column == block.get() as i32));
    assert!(overhang.iter().all(|column| *column == 0), "columns past the blocks are the null block");
    let read_only = (state.computed() / limits.block_size) as usize;
    for (position, block) in state.blocks().iter().enumerate() {
        assert!((1..=limits.num_blocks).contains(&block.get()));
        // Blocks of a prefix hit may be in several rows; none of those writes them.
        let (mine, others) =
            if position < read_only { (&mut seen.shared, &seen.blocks) } else { (&mut seen.blocks, &seen.shared) };
        assert!(!others.contains(&block.get()), "block {block} is read by one row and written by another");
        let is_first = mine.insert(block.get());
        assert!(is_first || position < read_only, "block {block} is written by two rows");
    }
}

/// Dummy and padding rows, padding tokens, and what is left of larger steps before this one.
fn check_padding(arrays: &Arrays, limits: &WorkerLimits, real_rows: usize, lens: &[usize], tokens: usize) {
    let (rows, width) = (lens.len(), limits.table_width as usize);
    for (kv_len, len) in arrays.kv_lens[real_rows..rows].iter().zip(&lens[real_rows..]) {
        assert_eq!(*kv_len, *len as i32, "a padding row sees itself");
    }
    let rows_past = rows.max(arrays.touched.rows);
    assert!(arrays.kv_lens[rows..rows_past].iter().all(|kv_len| *kv_len == 0));
    let table = &arrays.block_table[real_rows * width..rows_past * width];
    assert!(table.iter().all(|column| *column == 0), "padding rows have the null block only");
    let real_tokens: usize = lens[..real_rows].iter().sum();
    let past = tokens.max(arrays.touched.tokens);
    assert!(arrays.input_ids[real_tokens..past].iter().all(|token| *token == 0));
    assert!(arrays.positions[real_tokens..past].iter().all(|position| *position == 0));
    assert!(arrays.slots[real_tokens..past].iter().all(|slot| *slot == -1), "padding writes no KV");
    assert!(arrays.request_index[real_tokens..past].iter().all(|index| *index == -1));
}
