//! Identities. Each is its own type, so that a seat can never be passed where a block is meant.

use serde::{Deserialize, Serialize};

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name($inner);

        impl $name {
            /// Wraps the number.
            pub const fn new(value: $inner) -> Self {
                Self(value)
            }

            /// The number.
            pub const fn get(self) -> $inner {
                self.0
            }

            /// The id after this one.
            #[must_use]
            pub const fn next(self) -> Self {
                Self(self.0 + 1)
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                write!(formatter, "{}", self.0)
            }
        }
    };
}

id!(
    /// One data-parallel rank: its own requests and its own KV cache.
    DpRank(u32)
);
id!(
    /// A lockstep group: the ranks that share collectives. Epoch, step ids, depth and k belong to a group.
    GroupId(u32)
);
id!(
    /// One life of a group's process groups. A new epoch voids every seat and KV block of the group.
    Epoch(u32)
);
id!(
    /// A step of a group, counted from 1 in each epoch, without gaps.
    StepId(u64)
);
id!(
    /// A worker's place for one request.
    Seat(u32)
);
id!(
    /// Counts the requests that a seat has held, so that a late result cannot touch the next one.
    SeatGeneration(u32)
);
id!(
    /// A KV block of a rank's pool. Block 0 is the null block: padding reads it, nothing writes it.
    BlockId(u32)
);
id!(
    /// A KV group: layers that share one block table (full attention, sliding window, ...).
    KvGroup(u32)
);

impl DpRank {
    /// As an index into per-rank vectors.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

impl Seat {
    /// As an index into per-seat vectors.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

impl BlockId {
    /// The null block.
    pub const NULL: Self = Self(0);

    /// As an index into per-block vectors.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}
