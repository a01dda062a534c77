//! Why a waiting request started on its rank: kept as data, told in words.

use std::fmt::{Display, Formatter, Result};

use paceline_plan::DpRank;

use crate::RequestId;

/// Why a request started on a rank and on no other. Loads are what placement compares: tokens, or requests where the
/// policy says so, and in both cases what is to be computed of this request there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PlacementReason {
    /// It may run on no other rank.
    Pinned,
    /// No other rank could start it now.
    #[default]
    OnlyRank,
    /// Requests of lower priority made room for it here.
    Priority {
        /// How many.
        victims: u32,
    },
    /// Prompts are aligned, and this rank has the fewest tokens of prompts to run.
    Prompts {
        /// Tokens of prompts that run or start here.
        tokens: u32,
        /// The same of the rank that came next.
        next: u32,
    },
    /// Without what ranks have cached of its prompt another one would have been chosen.
    Prefix {
        /// Tokens of it that are cached here.
        cached_tokens: u32,
        /// The load here.
        load: u64,
        /// The load, with nothing cached anywhere, of the rank that would have been chosen.
        otherwise: u64,
    },
    /// The load is the least.
    Load {
        /// The load here.
        load: u64,
        /// The load of the rank that came next.
        next: u64,
    },
    /// As loaded as another, with fewer requests or longer without a new one.
    Turn,
}

impl PlacementReason {
    /// Its name in JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Pinned => "pinned",
            Self::OnlyRank => "only_rank",
            Self::Priority { .. } => "priority",
            Self::Prompts { .. } => "prompts",
            Self::Prefix { .. } => "prefix",
            Self::Load { .. } => "load",
            Self::Turn => "turn",
        }
    }
}

impl Display for PlacementReason {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> Result {
        match self {
            Self::Pinned => formatter.write_str("it may run on no other rank"),
            Self::OnlyRank => formatter.write_str("no other rank could start it"),
            Self::Priority { victims } => {
                let requests = if *victims == 1 { "request" } else { "requests" };
                write!(formatter, "{victims} {requests} of lower priority made room")
            }
            Self::Prompts { tokens, next } => {
                write!(formatter, "the fewest tokens of prompts run here, {tokens}, on the next rank {next}")
            }
            Self::Prefix { cached_tokens, load, otherwise } => write!(
                formatter,
                "{cached_tokens} tokens of it are cached here; the load with it is {load}, without any cache it would be \
                 {otherwise} on another rank"
            ),
            Self::Load { load, next } => {
                write!(formatter, "the load with it is the least, {load}, on the next rank {next}")
            }
            Self::Turn => formatter.write_str("another rank has the same load, and this one's turn came first"),
        }
    }
}

/// A request that started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Started {
    /// Which.
    pub id: RequestId,
    /// Why it started here.
    pub reason: PlacementReason,
    /// The rank where it ran before it was sent back to the queue; nothing when it had never run.
    pub ran_on: Option<DpRank>,
    /// Tokens of it that were read from the prefix cache.
    pub cached_tokens: u32,
}

impl Started {
    /// What happened, behind the request's name. `dp_rank` is where.
    pub(crate) fn words(&self, dp_rank: DpRank) -> String {
        let Self { reason, ran_on, .. } = self;
        match ran_on {
            None => format!("started: {reason}"),
            Some(before) if *before == dp_rank => format!("started again where it ran before: {reason}"),
            Some(before) => format!("started again, moved from dp_rank {before}: {reason}"),
        }
    }
}
