//! Why a step has the shape it has: reasons kept as data, told in words.

use std::fmt::{Display, Formatter, Result, Write};

use paceline_plan::{DpRank, Epoch, GroupId, Mode, StepId};

use crate::{Pace, PaddingCounters, RequestId, Started};

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
    /// Its prompt waits for those of other ranks.
    Alignment,
    /// Its rank is paused.
    Paused,
}

/// One rank's part of an explanation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RankExplanation {
    /// Which rank.
    pub dp_rank: DpRank,
    /// Whether it had no row of its own and ran one for its peers' sake.
    pub is_dummy: bool,
    /// Decode rows.
    pub decode_rows: u32,
    /// Prompt rows.
    pub prompt_rows: u32,
    /// Tokens that requests needed.
    pub real_tokens: u32,
    /// What kernels were given beyond them.
    pub padding: PaddingCounters,
    /// Requests that started here, and why here.
    pub started: Vec<Started>,
    /// Requests that run here and had no row.
    pub held: Vec<(RequestId, HeldReason)>,
    /// Requests that were sent back to the queue.
    pub preempted: Vec<RequestId>,
    /// Drafts that were left out for want of blocks.
    pub drafts_trimmed: u32,
    /// Tokens that started requests read from the prefix cache.
    pub cached_tokens: u32,
}

impl RankExplanation {
    /// Tokens that attention was given.
    pub fn attention_tokens(&self) -> u64 {
        u64::from(self.real_tokens) + self.padding.attention
    }

    /// Every request that the explanation names.
    pub fn requests(&self) -> impl Iterator<Item = RequestId> {
        let held = self.held.iter().map(|(id, _)| id);
        self.started.iter().map(|started| &started.id).chain(held).chain(&self.preempted).copied()
    }

    fn rows(&self, text: &mut impl Write) -> Result {
        if self.is_dummy {
            return write!(text, "dp_rank {}: no row of its own, 1 dummy row", self.dp_rank);
        }
        let (decode, prompt) = (Count(self.decode_rows, "decode row"), Count(self.prompt_rows, "prompt row"));
        write!(text, "dp_rank {}: {decode}, {prompt}", self.dp_rank)
    }

    fn tokens(&self, text: &mut impl Write) -> Result {
        let padding = &self.padding;
        write!(text, ", {}, {} of padding", Count(self.real_tokens, "real token"), padding.total())?;
        let causes = padding.by_cause().into_iter().filter(|(_, tokens)| *tokens > 0);
        for (index, (cause, tokens)) in causes.enumerate() {
            let sign = if index == 0 { "(" } else { ", " };
            write!(text, "{}{sign}{tokens} {}", if index == 0 { " " } else { "" }, cause.replace('_', " "))?;
        }
        if padding.total() > 0 { text.write_char(')') } else { Ok(()) }
    }

    fn requests_told(&self, text: &mut impl Write, name: &impl Fn(RequestId) -> String) -> Result {
        for started in &self.started {
            write!(text, "\n    request {} {}", name(started.id), started.words(self.dp_rank))?;
        }
        for (id, reason) in &self.held {
            write!(text, "\n    request {} runs and had no row: held by {reason}", name(*id))?;
        }
        if self.cached_tokens > 0 {
            write!(text, "\n    {} read from the prefix cache", Count(self.cached_tokens, "token"))?;
        }
        for id in &self.preempted {
            write!(
                text,
                "\n    request {} was preempted: its blocks were needed, it is in the queue again",
                name(*id)
            )?;
        }
        if self.drafts_trimmed > 0 {
            write!(text, "\n    {} left out for want of blocks", Count(self.drafts_trimmed, "draft"))?;
        }
        Ok(())
    }
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
    /// Forwards of the step: the target's, and those of a model drafter.
    pub passes: u32,
    /// Mode of the target pass.
    pub mode: Mode,
    /// Why it has its mode and size.
    pub reason: ShapeReason,
    /// What the prompts of the group's ranks could do.
    pub pace: Pace,
    /// The rank because of which the step is not FULL.
    pub downgraded_by: Option<DpRank>,
    /// Rows that every rank's kernels were given in the target pass; outside FULL those of the largest rank.
    pub rows_padded: u32,
    /// Tokens that every rank's kernels were given in the target pass.
    pub tokens_padded: u32,
    /// By rank, in the group's order.
    pub ranks: Vec<RankExplanation>,
}

impl Explanation {
    /// Everything in words, over several lines; `name` is what a request is called.
    pub fn words(&self, name: impl Fn(RequestId) -> String) -> String {
        let mut text = String::new();
        self.write_words(&mut text, &name).expect("a String takes what is written to it");
        text
    }

    fn write_words(&self, text: &mut String, name: &impl Fn(RequestId) -> String) -> Result {
        self.title(text)?;
        text.push_str("\n  why: ");
        self.why(text)?;
        text.push_str("\n  shape: ");
        self.shape(text)?;
        self.prompts(text)?;
        for rank in &self.ranks {
            text.push_str("\n  ");
            rank.rows(text)?;
            rank.tokens(text)?;
            write!(text, "; attention was given {}", Count(rank.attention_tokens(), "token"))?;
            rank.requests_told(text, name)?;
        }
        Ok(())
    }

    fn title(&self, text: &mut impl Write) -> Result {
        write!(text, "group {}, epoch {}, step {}: {}", self.group, self.epoch, self.step, self.mode.name())
    }

    fn shape(&self, text: &mut impl Write) -> Result {
        let (rows, tokens) = (Count(self.rows_padded, "row"), Count(self.tokens_padded, "token"));
        let (k_verify, k_draft) = (self.k_verify, self.k_draft);
        write!(text, "{rows}, {tokens} on every rank; drafts of a row: {k_verify} verified, {k_draft} proposed")?;
        if self.passes > 1 {
            write!(text, "; {} passes", self.passes)?;
        }
        Ok(())
    }

    fn prompts(&self, text: &mut impl Write) -> Result {
        let Some(words) = self.pace.words() else { return Ok(()) };
        write!(text, "\n  prompts: {words}")
    }

    fn why(&self, text: &mut impl Write) -> Result {
        let dp_rank = self.downgraded_by.unwrap_or_default();
        match self.reason {
            ShapeReason::Covered { rows, entry } => {
                let rows = Count(rows, "decode row");
                return write!(text, "the largest rank has {rows}, the ladder's entry is {entry}");
            }
            ShapeReason::Held { rows, fitting, entry } => {
                let rows = Count(rows, "row");
                return write!(
                    text,
                    "{rows} past the ladder's {entry} held, fewer than the {fitting} that eager would slow"
                );
            }
            ShapeReason::EagerOnly => return text.write_str("graphs are off"),
            ShapeReason::PromptRow { .. } => write!(text, "not full because dp_rank {dp_rank} has a prompt row")?,
            ShapeReason::PastLadder { rows, entry, .. } => {
                let rows = Count(rows, "decode row");
                write!(text, "not full because dp_rank {dp_rank} has {rows}, the ladder ends at {entry}")?;
            }
            ShapeReason::NoLadder { query_len } => {
                let tokens = Count(query_len, "token");
                write!(text, "not full because no ladder has rows of {tokens}")?;
            }
        }
        match self.mode {
            Mode::Eager => write!(text, "; no token ladder covers {}", Count(self.tokens_padded, "token")),
            Mode::Full | Mode::Piecewise => write!(text, "; the token ladder's entry is {}", self.tokens_padded),
        }
    }
}

/// A number of things.
struct Count<N>(N, &'static str);

impl<N: Display + PartialEq + From<u8>> Display for Count<N> {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> Result {
        let Self(count, thing) = self;
        write!(formatter, "{count} {thing}{}", if *count == N::from(1) { "" } else { "s" })
    }
}

impl Display for HeldReason {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> Result {
        formatter.write_str(match self {
            Self::Budget => "the token budget",
            Self::Blocks => "the want of blocks",
            Self::Ladder => "the ladder",
            Self::Alignment => "the alignment of prompts",
            Self::Paused => "the pause of its rank",
        })
    }
}

/// One line, without requests: what a log says of a step.
impl Display for Explanation {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> Result {
        self.title(formatter)?;
        formatter.write_str(": ")?;
        self.why(formatter)?;
        formatter.write_str("; ")?;
        self.shape(formatter)?;
        for rank in &self.ranks {
            formatter.write_str("; ")?;
            rank.rows(formatter)?;
            rank.tokens(formatter)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{LevelReason, PlacementReason};

    fn mixed() -> Explanation {
        let reason = PlacementReason::Load { load: 100, next: 170 };
        let started = Started { id: RequestId(7), reason, ran_on: None, cached_tokens: 0 };
        let busy = RankExplanation {
            dp_rank: DpRank::new(4),
            prompt_rows: 1,
            decode_rows: 2,
            real_tokens: 100,
            started: vec![started],
            held: vec![(RequestId(8), HeldReason::Budget)],
            preempted: vec![RequestId(9)],
            drafts_trimmed: 1,
            ..RankExplanation::default()
        };
        let padding =
            PaddingCounters { idle_dummy: 2, group_alignment: 98, attention: 2, ..PaddingCounters::default() };
        let idle = RankExplanation { dp_rank: DpRank::new(5), is_dummy: true, padding, ..RankExplanation::default() };
        Explanation {
            group: GroupId::new(2),
            epoch: Epoch::new(1),
            step: StepId::new(30),
            k_verify: 1,
            k_draft: 1,
            passes: 1,
            mode: Mode::Eager,
            reason: ShapeReason::PromptRow { index: 0 },
            pace: Pace::Level { tokens: 100, reason: LevelReason::Gap },
            downgraded_by: Some(DpRank::new(4)),
            rows_padded: 3,
            tokens_padded: 100,
            ranks: vec![busy, idle],
        }
    }

    #[test]
    fn the_words_name_the_rank_the_causes_and_the_requests() {
        let words = mixed().words(|id| format!("<{id}>"));
        let expected = "\
group 2, epoch 1, step 30: eager
  why: not full because dp_rank 4 has a prompt row; no token ladder covers 100 tokens
  shape: 3 rows, 100 tokens on every rank; drafts of a row: 1 verified, 1 proposed
  prompts: at most 100 tokens of a rank, for another rank decodes
  dp_rank 4: 2 decode rows, 1 prompt row, 100 real tokens, 0 of padding; attention was given 100 tokens
    request <7> started: the load with it is the least, 100, on the next rank 170
    request <8> runs and had no row: held by the token budget
    request <9> was preempted: its blocks were needed, it is in the queue again
    1 draft left out for want of blocks
  dp_rank 5: no row of its own, 1 dummy row, 0 real tokens, 100 of padding (2 idle dummy, 98 group alignment); \
attention was given 2 tokens";
        assert_eq!(words, expected);
    }

    #[test]
    fn a_log_has_one_line_for_a_step() {
        let line = mixed().to_string();
        assert!(!line.contains('\n') && line.contains("dp_rank 4 has a prompt row"), "{line}");
        assert!(line.contains("step 30: eager: ") && line.contains("100 of padding (2 idle dummy"), "{line}");
    }

    #[test]
    fn each_reason_is_told_with_its_numbers() {
        let told = |mode, reason| Explanation { mode, reason, ..mixed() }.to_string();
        for (mode, reason, words) in [
            (
                Mode::Full,
                ShapeReason::Covered { rows: 1, entry: 2 },
                "full: the largest rank has 1 decode row, the ladder's",
            ),
            (
                Mode::Full,
                ShapeReason::Held { rows: 2, fitting: 9, entry: 16 },
                "2 rows past the ladder's 16 held, fewer than the 9",
            ),
            (Mode::Piecewise, ShapeReason::PromptRow { index: 0 }, "a prompt row; the token ladder's entry is 100"),
            (
                Mode::Eager,
                ShapeReason::PastLadder { index: 0, rows: 20, entry: 16 },
                "dp_rank 4 has 20 decode rows, the ladder ends at 16",
            ),
            (Mode::Eager, ShapeReason::NoLadder { query_len: 4 }, "no ladder has rows of 4 tokens"),
            (Mode::Eager, ShapeReason::EagerOnly, "eager: graphs are off;"),
        ] {
            assert!(told(mode, reason).contains(words), "{}", told(mode, reason));
        }
    }
}
