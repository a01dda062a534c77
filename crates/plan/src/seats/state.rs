//! What a worker knows of the request on a seat, and what a step made of its row.

use crate::{BlockId, Row, SeatGeneration, TokenLogprobs};

/// What the model and the sampler made of one row.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RowOutcome {
    /// Drafts that the target agreed with.
    pub accepted: u32,
    /// Tokens produced.
    pub emitted: Vec<u32>,
    /// Drafts for the next step.
    pub proposed: Vec<u32>,
    /// One entry per emitted token, or none.
    pub logprobs: Vec<TokenLogprobs>,
}

/// What a worker knows of one request.
#[derive(Clone, Debug)]
pub struct SeatState {
    pub(super) generation: SeatGeneration,
    pub(super) prompt_len: u32,
    pub(super) computed: u32,
    /// Index in the request of `tokens[0]`: 0 unless a prefix hit came without its history.
    pub(super) first: u32,
    pub(super) tokens: Vec<u32>,
    pub(super) blocks: Vec<BlockId>,
    pub(super) drafts: Vec<u32>,
    pub(super) sampling: Vec<u8>,
}

impl SeatState {
    /// Tokens known: prompt and output so far, as far as they were fed or emitted.
    pub fn known(&self) -> u32 {
        self.first + self.tokens.len() as u32
    }

    /// Tokens whose KV is written.
    pub const fn computed(&self) -> u32 {
        self.computed
    }

    /// Tokens of the prompt.
    pub const fn prompt_len(&self) -> u32 {
        self.prompt_len
    }

    /// The known tokens, from the first one that the worker was told.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// The token at `index` in the request.
    pub fn token(&self, index: u32) -> u32 {
        self.tokens[(index - self.first) as usize]
    }

    /// The KV blocks, in order.
    pub fn blocks(&self) -> &[BlockId] {
        &self.blocks
    }

    /// Drafts proposed in the last step.
    pub fn drafts(&self) -> &[u32] {
        &self.drafts
    }

    /// The drafts that a decode row verifies: as many as it plans, as far as they were proposed (rule 16). The row's
    /// other planned drafts are placeholders.
    pub fn drafts_of(&self, row: &Row) -> &[u32] {
        &self.drafts[..self.drafts.len().min(row.drafts as usize)]
    }

    /// The request's sampling parameters, opaque here.
    pub fn sampling(&self) -> &[u8] {
        &self.sampling
    }
}
