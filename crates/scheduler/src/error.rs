//! What can be wrong with a configuration, a request or a reply, with the numbers.

use paceline_plan::{DpRank, Epoch, GroupId, StepId};

use crate::RequestId;

/// A configuration that no correct plan can be made with, or a reply that is no answer to the plan.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// A configured number is below its least value.
    #[error("{field} is {got}, must be at least {least}: {reason}")]
    TooSmall {
        /// Which number.
        field: &'static str,
        /// Its least value.
        least: u64,
        /// What was configured.
        got: u64,
        /// Where the bound comes from.
        reason: &'static str,
    },
    /// A configured number is above its largest value.
    #[error("{field} is {got}, must be at most {most}: {reason}")]
    TooLarge {
        /// Which number.
        field: &'static str,
        /// Its largest value.
        most: u64,
        /// What was configured.
        got: u64,
        /// Where the bound comes from.
        reason: &'static str,
    },
    /// A ladder does not go up.
    #[error("{field} must go up: {got} comes after {previous}")]
    LadderOrder {
        /// Which ladder.
        field: &'static str,
        /// The entry before.
        previous: u32,
        /// The entry that is not above it.
        got: u32,
    },
    /// The groups do not hold each rank from 0 once.
    #[error("dp_rank {dp_rank} must be in exactly one group, is in {got}")]
    Groups {
        /// Which rank.
        dp_rank: DpRank,
        /// In how many groups it is.
        got: u64,
    },
    /// A reply from a rank that no group has.
    #[error("dp_rank {dp_rank} is in no group")]
    UnknownRank {
        /// Which rank.
        dp_rank: DpRank,
    },
    /// A reply to a step that was not sent yet.
    #[error("group {group}, epoch {epoch}: dp_rank {dp_rank} answers step {got}, the newest sent is {expected}")]
    UnknownStep {
        /// Which group.
        group: GroupId,
        /// Which life of it.
        epoch: Epoch,
        /// Who answers.
        dp_rank: DpRank,
        /// The newest step that was sent.
        expected: StepId,
        /// The step of the reply.
        got: StepId,
    },
    /// A reply that contradicts its plan. Nothing of it was applied.
    #[error("step {step}, dp_rank {dp_rank}, row {row}: {field}: expected {expected}, got {got}")]
    Reply {
        /// Which step.
        step: StepId,
        /// Who answers.
        dp_rank: DpRank,
        /// Which row of the reply; the number of rows when it is about all of them.
        row: u64,
        /// What is wrong, by its field name.
        field: &'static str,
        /// What the plan asks for: the exact value or the nearest bound.
        expected: i64,
        /// What the reply says.
        got: i64,
    },
}

/// Why a request is not taken. The caller's mistake, unless [`Refusal::is_load`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// No token to start from.
    #[error("the prompt is empty: at least 1 token is needed")]
    EmptyPrompt,
    /// Nothing to generate.
    #[error("max_new_tokens is 0: at least 1 is needed")]
    NothingToGenerate,
    /// The prompt leaves no room for one token within the model's length.
    #[error("the prompt has {got} tokens, at most {most} leave room for one new token")]
    PromptTooLong {
        /// Most prompt tokens.
        most: u64,
        /// Tokens of the prompt.
        got: u64,
    },
    /// Prompt and output together pass the model's length.
    #[error("prompt ({prompt}) and max_new_tokens ({max_new_tokens}) make {got} tokens, the model takes {most}")]
    TotalTooLong {
        /// Tokens of the prompt.
        prompt: u64,
        /// Tokens asked for.
        max_new_tokens: u64,
        /// Most tokens of one request.
        most: u64,
        /// Their sum.
        got: u64,
    },
    /// The request can never fit the KV cache of a rank.
    #[error("the request needs KV room for {got} tokens, a rank holds {most} ({blocks} blocks of {block_size} tokens)")]
    NeverFits {
        /// Tokens that the KV cache of one rank holds.
        most: u64,
        /// Tokens whose KV the request needs at its longest.
        got: u64,
        /// Usable blocks of a rank.
        blocks: u32,
        /// Tokens of a block.
        block_size: u32,
    },
    /// A token id that the model does not have.
    #[error("{field}: token id {got} at index {index}, ids are below {vocab_size}")]
    TokenId {
        /// Where the id was given.
        field: &'static str,
        /// At which index.
        index: u64,
        /// Ids are below this.
        vocab_size: u32,
        /// The id.
        got: u32,
    },
    /// A pinned rank that does not exist.
    #[error("dp_rank {got} does not exist, there are {ranks}")]
    UnknownRank {
        /// How many ranks there are.
        ranks: u64,
        /// The rank asked for.
        got: DpRank,
    },
    /// As many requests wait as may.
    #[error("{waiting} requests wait, at most {most} may")]
    QueueFullRequests {
        /// Most waiting requests.
        most: u64,
        /// Requests that wait and cannot start now.
        waiting: u64,
    },
    /// As many prompt tokens wait as may.
    #[error("{waiting} prompt tokens wait, with {got} more they pass the limit of {most}")]
    QueueFullTokens {
        /// Most waiting prompt tokens.
        most: u64,
        /// Prompt tokens of requests that wait and cannot start now.
        waiting: u64,
        /// Tokens of this prompt.
        got: u64,
    },
    /// A live request has this id.
    #[error("request id {id} is in use")]
    DuplicateId {
        /// The id.
        id: RequestId,
    },
}

impl Refusal {
    /// Name of the offending field of [`crate::RequestSpec`].
    pub const fn field(&self) -> &'static str {
        match self {
            Self::EmptyPrompt | Self::PromptTooLong { .. } => "prompt",
            Self::NothingToGenerate | Self::TotalTooLong { .. } => "max_new_tokens",
            Self::NeverFits { .. } => "prompt",
            Self::TokenId { field, .. } => field,
            Self::UnknownRank { .. } => "dp_rank",
            Self::QueueFullRequests { .. } | Self::QueueFullTokens { .. } => "queue",
            Self::DuplicateId { .. } => "id",
        }
    }

    /// True when the same request may be taken later: load, not a mistake.
    pub const fn is_load(&self) -> bool {
        matches!(self, Self::QueueFullRequests { .. } | Self::QueueFullTokens { .. })
    }
}
