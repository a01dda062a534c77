//! The sizes that plans of a group are made within, the same at both ends.

use serde::{Deserialize, Serialize};

/// Sizes of one rank: what its buffers, tables and KV pool hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerLimits {
    /// Seats: places for requests. At least `max_num_seqs`.
    pub seats: u32,
    /// S: rows in one step.
    pub max_num_seqs: u32,
    /// B: tokens in one step before padding.
    pub max_num_batched_tokens: u32,
    /// L: tokens of one request, prompt and output.
    pub max_model_len: u32,
    /// Tokens of one KV block.
    pub block_size: u32,
    /// Usable KV blocks; their ids are 1 to `num_blocks`, block 0 is the null block.
    pub num_blocks: u32,
    /// Largest number of drafts in a row.
    pub k_max: u32,
    /// Rows that step buffers hold, padding included.
    pub row_capacity: u32,
    /// Tokens that step buffers hold, padding included.
    pub token_capacity: u32,
    /// Columns of a block table row: covers `max_model_len + k_max`.
    pub table_width: u32,
    /// Token ids are below this.
    pub vocab_size: u32,
}

impl WorkerLimits {
    /// Blocks that hold `tokens` tokens.
    pub const fn blocks_for(&self, tokens: u32) -> u32 {
        tokens.div_ceil(self.block_size)
    }
}
