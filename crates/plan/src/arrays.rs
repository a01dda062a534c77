//! From a checked step to the arrays that kernels are given. Every padded number is read from the plan; every
//! padding value from [`crate::padding`].
//!
//! All passes of a step are written by the same code: here what they share and the target, in [`drafter`] the
//! drafter's.

pub mod drafter;

use crate::error::check_at_least;
use crate::pass::{RankLoad, Shape};
use crate::seats::{SeatState, SeatTable, WorkerStep};
use crate::{Error, LogitsWanted, Pass, Row, padding};

pub use drafter::{fill_extend, fill_single};

/// A pass's arrays, allocated once at capacity and rewritten for every pass.
#[derive(Debug)]
pub struct PassArrays<'a> {
    /// Token ids, `[token_capacity]`.
    pub input_ids: &'a mut [i64],
    /// Positions, `[token_capacity]`.
    pub positions: &'a mut [i64],
    /// KV write addresses, `block * block_size + offset` or -1, `[token_capacity]`.
    pub slots: &'a mut [i64],
    /// First token of each row, `[row_capacity + 1]`; flat past the last row.
    pub query_start_loc: &'a mut [i32],
    /// Keys that each row's last token sees, this step's included, `[row_capacity]`.
    pub kv_lens: &'a mut [i32],
    /// Block ids, `[row_capacity * table_width]`, row-major.
    pub block_table: &'a mut [i32],
    /// Row of each token, -1 for padding, `[token_capacity]`.
    pub request_index: &'a mut [i32],
    /// Token positions in the batch whose logits are wanted, in row order, `[token_capacity]`.
    pub logits_index: &'a mut [i64],
}

/// How far the arrays may hold anything but pad values; kept between calls so that only that much is rewritten.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Rows.
    pub rows: usize,
    /// Tokens.
    pub tokens: usize,
}

/// Fills the arrays of a step's target pass. Returns how many entries of `logits_index` count.
///
/// `extent` is what the previous call left; a caller with fresh or foreign arrays passes their capacity.
///
/// # Errors
/// Rule 5 when an array is too short for the padded size.
pub fn fill_target(
    table: &SeatTable,
    step: &WorkerStep,
    arrays: &mut PassArrays<'_>,
    extent: &mut Extent,
) -> Result<usize, Error> {
    let mut writer = Writer::begin(table, step, step.group.target(), arrays, extent)?;
    let decode_rows = step.rank.decode_rows() as usize;
    for (index, row) in step.rank.rows().iter().enumerate() {
        writer.target_row(row, index < decode_rows);
    }
    Ok(writer.finish())
}

/// Writes one pass of one rank, row by row, over arrays that hold pad values.
struct Writer<'a, 'b> {
    table: &'a SeatTable,
    shape: Shape,
    load: RankLoad,
    arrays: &'a mut PassArrays<'b>,
    width: usize,
    /// Rows that kernels are given.
    rows: usize,
    row: usize,
    token: usize,
    logits: usize,
}

impl<'a, 'b> Writer<'a, 'b> {
    /// Checks the arrays' sizes and sets everything that this pass or the last one touches to pad values.
    fn begin(
        table: &'a SeatTable,
        step: &WorkerStep,
        pass: &Pass,
        arrays: &'a mut PassArrays<'b>,
        extent: &mut Extent,
    ) -> Result<Self, Error> {
        let width = table.limits().table_width as usize;
        let load = pass.loads()[step.rank_index];
        let (rows, tokens) = match pass.shape() {
            Shape::Full { rows_padded, .. } => (rows_padded.as_usize(), pass.tokens_padded().as_usize()),
            Shape::Piecewise { tokens_padded } => (load.rows_run() as usize, tokens_padded.as_usize()),
            Shape::Eager => (load.rows_run() as usize, load.tokens_run() as usize),
        };
        check_capacity(arrays, rows, tokens, width)?;
        clear(arrays, rows.max(extent.rows), tokens.max(extent.tokens), width);
        *extent = Extent { rows, tokens };
        Ok(Self { table, shape: pass.shape(), load, arrays, width, rows, row: 0, token: 0, logits: 0 })
    }

    /// Dummy and padding rows, and the flat rest of the offsets. Returns how many logits are wanted.
    fn finish(mut self) -> usize {
        if self.load.is_dummy() {
            self.padding_row(self.load.tokens_run() as usize);
        }
        if let Shape::Full { query_len, .. } = self.shape {
            while self.row < self.rows {
                self.padding_row(query_len.get() as usize);
            }
        }
        self.arrays.query_start_loc[self.row..].fill(self.token as i32);
        self.logits
    }

    fn target_row(&mut self, row: &Row, is_decode: bool) {
        let state = self.seat_of(row);
        let (start, query_len) = (state.computed(), row.query_len.get());
        let (first_token, drafts) = (self.token, state.drafts_of(row));
        self.open_row(state, start + query_len);
        for offset in 0..query_len {
            let position = start + offset;
            let token_id = match offset {
                _ if !is_decode => Some(state.token(position)),
                0 => Some(state.token(position)),
                _ => drafts.get(offset as usize - 1).copied(),
            };
            self.token(state, token_id, position);
        }
        let end = self.token;
        let wanted = match row.logits {
            LogitsWanted::None => first_token..first_token,
            LogitsWanted::Last => end - 1..end,
            LogitsWanted::Verify => first_token..first_token + 1 + row.drafts as usize,
            LogitsWanted::All => first_token..end,
        };
        wanted.for_each(|token| self.want_logits(token));
        self.row += 1;
    }

    fn seat_of(&self, row: &Row) -> &'a SeatState {
        self.table.seat(row.seat).expect("begin() has checked that the seat holds a request")
    }

    /// Starts a row of the request of `state` whose last token sees `kv_len` keys.
    fn open_row(&mut self, state: &SeatState, kv_len: u32) {
        self.arrays.query_start_loc[self.row] = self.token as i32;
        self.arrays.kv_lens[self.row] = kv_len as i32;
        let columns = &mut self.arrays.block_table[self.row * self.width..][..state.blocks().len()];
        for (column, block) in columns.iter_mut().zip(state.blocks()) {
            *column = block.get() as i32;
        }
    }

    /// A token of the open row. Without an id it is a placeholder: the pad token, no write slot, and a position that
    /// the model knows. Positions that no block of the request holds, or past the length limit, are not written.
    fn token(&mut self, state: &SeatState, token_id: Option<u32>, position: u32) {
        let limits = self.table.limits();
        self.arrays.positions[self.token] = position.min(limits.max_model_len - 1).into();
        self.arrays.request_index[self.token] = self.row as i32;
        if let Some(token_id) = token_id {
            self.arrays.input_ids[self.token] = token_id.into();
            let block = state.blocks().get((position / limits.block_size) as usize);
            if let Some(block) = block
                && position < limits.max_model_len
            {
                self.arrays.slots[self.token] =
                    i64::from(block.get()) * i64::from(limits.block_size) + i64::from(position % limits.block_size);
            }
        }
        self.token += 1;
    }

    fn want_logits(&mut self, token: usize) {
        self.arrays.logits_index[self.logits] = token as i64;
        self.logits += 1;
    }

    /// A dummy or padding row: every value but its length is already there.
    fn padding_row(&mut self, query_len: usize) {
        self.arrays.query_start_loc[self.row] = self.token as i32;
        self.arrays.kv_lens[self.row] = query_len as i32;
        self.token += query_len;
        self.row += 1;
    }
}

fn check_capacity(arrays: &PassArrays<'_>, rows: usize, tokens: usize, width: usize) -> Result<(), Error> {
    let row_capacity = (arrays.query_start_loc.len() as i64 - 1)
        .min(arrays.kv_lens.len() as i64)
        .min((arrays.block_table.len() / width.max(1)) as i64);
    let token_capacity = [
        arrays.input_ids.len(),
        arrays.positions.len(),
        arrays.slots.len(),
        arrays.request_index.len(),
        arrays.logits_index.len(),
    ]
    .into_iter()
    .min()
    .unwrap_or(0);
    check_at_least(5, "row capacity of the arrays", rows as i64, row_capacity)?;
    check_at_least(5, "token capacity of the arrays", tokens as i64, token_capacity as i64)
}

/// Pad values over everything that this pass or the last one touches.
fn clear(arrays: &mut PassArrays<'_>, rows: usize, tokens: usize, width: usize) {
    let tokens = tokens.min(arrays.input_ids.len());
    let rows = rows.min(arrays.kv_lens.len());
    arrays.input_ids[..tokens].fill(padding::TOKEN);
    arrays.positions[..tokens].fill(padding::POSITION);
    arrays.slots[..tokens].fill(padding::SLOT);
    arrays.request_index[..tokens].fill(padding::REQUEST_INDEX);
    arrays.logits_index[..tokens].fill(padding::LOGITS_INDEX);
    arrays.kv_lens[..rows].fill(0);
    arrays.block_table[..rows * width].fill(padding::BLOCK);
}
