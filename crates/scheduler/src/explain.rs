//! Why a step has the shape it has: reasons kept as data, told in words.

use std::fmt::{Display, Formatter, Result};

use paceline_plan::{DpRank, Epoch, GroupId, StepId};

use crate::{PaddingCounters, RequestId};

/// Why the target pass has its mode and size. `index` is a rank's index in its group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShapeReason {
    /// FULL: every row of every rank is a decode row and a ladder entry covers the largest rank.
    Covered {
        /// Rows of the largest rank.
        rows: u32,
        /// The ladder entry.
        entry: u32,
    },
    /// FULL: rows past the ladder wait, because they are fewer than the rows that EAGER would slow.
    Held {
        /// Rows that wait.
        rows: u32,
        /// Rows of the ranks that the ladder covers.
        fitting: u32,
        /// The largest ladder entry.
        entry: u32,
    },
    /// Not FULL: a rank has a prompt row.
    PromptRow {
        /// The first such rank.
        index: usize,
    },
    /// Not FULL: a rank has more rows than the ladder, and holding them would cost more.
    PastLadder {
        /// The largest rank.
        index: usize,
        /// Its rows.
        rows: u32,
        /// The largest ladder entry.
        entry: u32,
    },
    /// Not FULL: this verify width has no ladder.
    NoLadder {
        /// The verify width.
        query_len: u32,
    },
    /// Not FULL: graphs are off.
    EagerOnly,
}

impl ShapeReason {
    /// The rank because of which the step is not FULL, by its index in the group.
    pub(crate) const fn downgrading_rank(self) -> Option<usize> {
        match self {
            Self::PromptRow { index } | Self::PastLadder { index, .. } => Some(index),
            Self::Covered { .. } | Self::Held { .. } | Self::NoLadder { .. } | Self::EagerOnly => None,
        }
    }
}

/// Why a running request has no row in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeldReason {
    /// The token budget went to rows that waited longer.
    Budget,
    /// No block is free, and evicting what may be evicted would not free enough.
    Blocks,
    /// Its rank's rows pass the ladder.
    Ladder,
}

/// One rank's part of an explanation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RankExplanation {
    /// Which rank.
    pub dp_rank: DpRank,
    /// Decode rows.
    pub decode_rows: u32,
    /// Prompt rows.
    pub prompt_rows: u32,
    /// Tokens that requests needed.
    pub real_tokens: u32,
    /// What kernels were given beyond them.
    pub padding: PaddingCounters,
    /// Requests that started here.
    pub started: Vec<RequestId>,
    /// Requests that run here and had no row.
    pub held: Vec<(RequestId, HeldReason)>,
    /// Requests that were sent back to the queue.
    pub preempted: Vec<RequestId>,
    /// Drafts that were left out for want of blocks.
    pub drafts_trimmed: u32,
}

/// Why a step is what it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explanation {
    /// The lockstep group.
    pub group: GroupId,
    /// Its epoch.
    pub epoch: Epoch,
    /// The step.
    pub step: StepId,
    /// Drafts verified.
    pub k_verify: u32,
    /// Drafts proposed.
    pub k_draft: u32,
    /// Why the target pass has its mode and size.
    pub reason: ShapeReason,
    /// Tokens that every rank's kernels were given in the target pass.
    pub tokens_padded: u32,
    /// By rank, in the group's order.
    pub ranks: Vec<RankExplanation>,
}

impl Explanation {
    fn reason(&self, formatter: &mut Formatter<'_>) -> Result {
        let dp_rank = |index: usize| self.ranks.get(index).map_or(DpRank::default(), |rank| rank.dp_rank);
        match self.reason {
            ShapeReason::Covered { rows, entry } => {
                write!(formatter, "full: the largest rank has {rows} decode rows, the ladder's entry is {entry}")
            }
            ShapeReason::Held { rows, fitting, entry } => write!(
                formatter,
                "full: {rows} rows past the ladder's {entry} wait, fewer than the {fitting} rows that eager would slow"
            ),
            ShapeReason::PromptRow { index } => {
                write!(formatter, "not full: dp_rank {} has a prompt row", dp_rank(index))
            }
            ShapeReason::PastLadder { index, rows, entry } => write!(
                formatter,
                "not full: dp_rank {} has {rows} decode rows, the ladder ends at {entry}",
                dp_rank(index)
            ),
            ShapeReason::NoLadder { query_len } => {
                write!(formatter, "not full: no ladder for rows of {query_len} tokens")
            }
            ShapeReason::EagerOnly => formatter.write_str("not full: graphs are off"),
        }
    }
}

impl Display for HeldReason {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> Result {
        formatter.write_str(match self {
            Self::Budget => "the token budget",
            Self::Blocks => "blocks",
            Self::Ladder => "the ladder",
        })
    }
}

impl Display for RankExplanation {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> Result {
        let padding = &self.padding;
        write!(
            formatter,
            "dp_rank {}: {} decode rows, {} prompt rows, {} real tokens, {} padding",
            self.dp_rank,
            self.decode_rows,
            self.prompt_rows,
            self.real_tokens,
            padding.total()
        )?;
        for (cause, tokens) in [
            ("idle dummy", padding.idle_dummy),
            ("row ladder", padding.row_ladder),
            ("token ladder", padding.token_ladder),
            ("placeholders", padding.placeholders),
            ("group alignment", padding.group_alignment),
        ] {
            if tokens > 0 {
                write!(formatter, "; {tokens} for {cause}")?;
            }
        }
        for id in &self.started {
            write!(formatter, "; request {id} started")?;
        }
        for (id, reason) in &self.held {
            write!(formatter, "; request {id} waits for {reason}")?;
        }
        for id in &self.preempted {
            write!(formatter, "; request {id} went back to the queue")?;
        }
        if self.drafts_trimmed > 0 {
            write!(formatter, "; {} drafts left out for want of blocks", self.drafts_trimmed)?;
        }
        Ok(())
    }
}

impl Display for Explanation {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> Result {
        write!(formatter, "group {}, epoch {}, step {}: ", self.group, self.epoch, self.step)?;
        self.reason(formatter)?;
        write!(formatter, "; {} tokens on every rank", self.tokens_padded)?;
        write!(formatter, "; verifies {}, proposes {}", self.k_verify, self.k_draft)?;
        for rank in &self.ranks {
            write!(formatter, "\n  {rank}")?;
        }
        Ok(())
    }
}
