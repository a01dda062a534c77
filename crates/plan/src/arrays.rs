//! From a checked step to the arrays that kernels are given. Every padded number is read from the plan; every
//! padding value from [`crate::padding`].

use crate::error::check_at_least;
use crate::pass::Shape;
use crate::seats::{SeatTable, WorkerStep};
use crate::{Error, LogitsWanted, Row, padding};

/// The target pass's arrays, allocated once at capacity and rewritten every step.
#[derive(Debug)]
pub struct TargetArrays<'a> {
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
    arrays: &mut TargetArrays<'_>,
    extent: &mut Extent,
) -> Result<usize, Error> {
    let width = table.limits().table_width as usize;
    let pass = step.group.target();
    let load = pass.loads()[step.rank_index];
    let (rows, tokens) = match pass.shape() {
        Shape::Full { rows_padded, .. } => (rows_padded.as_usize(), pass.tokens_padded().as_usize()),
        Shape::Piecewise { tokens_padded } => (load.rows_run() as usize, tokens_padded.as_usize()),
        Shape::Eager => (load.rows_run() as usize, load.tokens_run() as usize),
    };
    check_capacity(arrays, rows, tokens, width)?;
    clear(arrays, rows.max(extent.rows), tokens.max(extent.tokens), width);
    *extent = Extent { rows, tokens };
    let mut writer = Writer { table, arrays, width, row: 0, token: 0, logits: 0 };
    let decode_rows = step.rank.decode_rows() as usize;
    for (index, row) in step.rank.rows().iter().enumerate() {
        writer.real_row(row, index < decode_rows);
    }
    if load.is_dummy() {
        writer.padding_row(load.tokens_run() as usize);
    }
    if let Shape::Full { query_len, .. } = pass.shape() {
        while writer.row < rows {
            writer.padding_row(query_len.get() as usize);
        }
    }
    let (end, logits, last_row) = (writer.token, writer.logits, writer.row);
    arrays.query_start_loc[last_row..].fill(end as i32);
    Ok(logits)
}

fn check_capacity(arrays: &TargetArrays<'_>, rows: usize, tokens: usize, width: usize) -> Result<(), Error> {
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

/// Pad values over everything that this step or the last one touches.
fn clear(arrays: &mut TargetArrays<'_>, rows: usize, tokens: usize, width: usize) {
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

struct Writer<'a, 'b> {
    table: &'a SeatTable,
    arrays: &'a mut TargetArrays<'b>,
    width: usize,
    row: usize,
    token: usize,
    logits: usize,
}

impl Writer<'_, '_> {
    fn real_row(&mut self, row: &Row, is_decode: bool) {
        let state = self.table.seat(row.seat).expect("begin() has checked that the seat holds a request");
        let limits = self.table.limits();
        let (start, query_len) = (state.computed(), row.query_len.get());
        let first_token = self.token;
        self.arrays.query_start_loc[self.row] = first_token as i32;
        self.arrays.kv_lens[self.row] = (start + query_len) as i32;
        let columns = &mut self.arrays.block_table[self.row * self.width..][..state.blocks().len()];
        for (column, block) in columns.iter_mut().zip(state.blocks()) {
            *column = block.get() as i32;
        }
        for offset in 0..query_len {
            let position = start + offset;
            let token_id = match offset {
                _ if !is_decode => state.token(position),
                0 => state.token(position),
                _ if offset <= row.drafts => state.drafts()[offset as usize - 1],
                // Placeholder: no write slot, and a position that the model knows.
                _ => {
                    self.arrays.positions[self.token] = position.min(limits.max_model_len - 1).into();
                    self.arrays.request_index[self.token] = self.row as i32;
                    self.token += 1;
                    continue;
                }
            };
            let block = state.blocks()[(position / limits.block_size) as usize];
            self.arrays.input_ids[self.token] = token_id.into();
            self.arrays.positions[self.token] = position.into();
            self.arrays.slots[self.token] =
                i64::from(block.get()) * i64::from(limits.block_size) + i64::from(position % limits.block_size);
            self.arrays.request_index[self.token] = self.row as i32;
            self.token += 1;
        }
        self.wanted_logits(row, first_token);
        self.row += 1;
    }

    fn wanted_logits(&mut self, row: &Row, first_token: usize) {
        let end = first_token + row.query_len.get() as usize;
        let positions = match row.logits {
            LogitsWanted::None => first_token..first_token,
            LogitsWanted::Last => end - 1..end,
            LogitsWanted::Verify => first_token..first_token + 1 + row.drafts as usize,
            LogitsWanted::All => first_token..end,
        };
        for position in positions {
            self.arrays.logits_index[self.logits] = position as i64;
            self.logits += 1;
        }
    }

    /// A dummy or padding row: every value but its length is already there.
    fn padding_row(&mut self, query_len: usize) {
        self.arrays.query_start_loc[self.row] = self.token as i32;
        self.arrays.kv_lens[self.row] = query_len as i32;
        self.token += query_len;
        self.row += 1;
    }
}
