//! What is held against what: the plan's numbers of a pass, its arrays, and the limits of worker and backend.

use std::borrow::Cow;

/// How a pass is launched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// A fixed shape: every row has the same query length, padding rows too.
    Full,
    /// Attention sees real counts, the other layers padded tokens.
    Piecewise,
    /// Real counts everywhere.
    Eager,
}

/// What the plan says of one pass on this rank. A dummy has one row, as it is run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Launch {
    /// Which of its counts attention and the other layers are handed.
    pub mode: Mode,
    /// Query length of every row of a [`Mode::Full`] launch.
    pub query_len: i64,
    /// Rows that are run on this rank.
    pub rows: i64,
    /// Their tokens.
    pub tokens: i64,
    /// Whether the rank is idle.
    pub is_dummy: bool,
    /// Rows of the group's shape.
    pub rows_padded: i64,
    /// Tokens of the group's shape.
    pub tokens_padded: i64,
    /// Tokens whose logits are wanted.
    pub logits: i64,
    /// Drafter passes: positions before the row's own that hold drafts, whose blocks it may lack (rule 18).
    pub ahead: i64,
}

impl Launch {
    /// Rows that attention is handed: padded in a full launch, real elsewhere (rules 4 and 6).
    #[must_use]
    pub fn attention_rows(&self) -> i64 {
        if self.mode == Mode::Full { self.rows_padded } else { self.rows }
    }

    /// Tokens that attention is handed, of the same kind as its rows.
    #[must_use]
    pub fn attention_tokens(&self) -> i64 {
        if self.mode == Mode::Full { self.tokens_padded } else { self.tokens }
    }

    /// Tokens that the network's other layers are handed.
    #[must_use]
    pub fn input_tokens(&self) -> i64 {
        if self.mode == Mode::Eager { self.tokens } else { self.tokens_padded }
    }
}

/// The arrays of a pass. Entries past its padded size hold the pad value of their kind.
#[derive(Debug, Clone, Copy)]
pub struct Arrays<'a> {
    /// `[token capacity]`.
    pub input_ids: &'a [i64],
    /// `[token capacity]`.
    pub positions: &'a [i64],
    /// Where keys and values are written, `[token capacity]`; -1 is nowhere.
    pub slots: &'a [i64],
    /// First token of each row, `[row capacity + 1]`.
    pub query_start_loc: &'a [i32],
    /// Keys that each row's last token sees, `[row capacity]`.
    pub kv_lens: &'a [i32],
    /// Block ids, `[row capacity, table width]`.
    pub block_table: &'a [i32],
    /// Row of each token, `[token capacity]`; -1 for padding.
    pub request_index: &'a [i32],
    /// Tokens whose logits are wanted, in order, `[token capacity]`.
    pub logits_index: &'a [i64],
}

impl Arrays<'_> {
    /// Columns of the block table.
    pub(crate) fn table_width(&self) -> usize {
        self.block_table.len() / self.kv_lens.len().max(1)
    }

    /// Whether all arrays are of one capacity; nothing else may be read of those that are not.
    pub(crate) fn mismatch(&self) -> Option<(&'static str, usize, usize)> {
        let tokens = self.input_ids.len();
        let rows = self.kv_lens.len();
        [
            ("length of positions", tokens, self.positions.len()),
            ("length of slots", tokens, self.slots.len()),
            ("length of request_index", tokens, self.request_index.len()),
            ("length of logits_index", tokens, self.logits_index.len()),
            ("length of query_start_loc", rows + 1, self.query_start_loc.len()),
            ("length of block_table", rows * self.table_width(), self.block_table.len()),
        ]
        .into_iter()
        .find(|(_, expected, got)| expected != got)
    }
}

/// Sizes of this worker that no launch may pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Most positions of a request.
    pub max_model_len: i64,
    /// Most drafts of a row.
    pub k_max: i64,
    /// Tokens of a KV block.
    pub block_size: i64,
    /// KV blocks, the null block included.
    pub block_count: i64,
    /// Words of the model.
    pub vocab_size: i64,
}

/// Limits of the attention backend. Zero and empty mean "no limit".
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Contract {
    /// What a fault of it is named by.
    pub name: String,
    /// Largest query length of a full launch.
    pub uniform_query_len_max: i64,
    /// Tokens of a KV block.
    pub block_sizes: Vec<i64>,
    /// Columns of the block table are a multiple of this.
    pub table_alignment: i64,
    /// KV positions past `max_model_len` that a placeholder row may reach; -1: any.
    pub kv_overhang_max: i64,
    /// Rows of one launch.
    pub row_capacity: i64,
}

/// The first rule that does not hold, and the two numbers that disagree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// As "rule 7", or the contract's name.
    pub rule: Cow<'static, str>,
    /// What it is about, with the row or token where there is one.
    pub field: Cow<'static, str>,
    /// What it should be, or the bound that it passes.
    pub expected: i64,
    /// What it is.
    pub got: i64,
}
