//! Counts. Real, dummy and padded counts are different types; no arithmetic between them without a named function.

use std::num::NonZeroU32;

use serde::{Deserialize, Serialize};

use crate::Error;

macro_rules! count {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(u32);

        impl $name {
            /// None at all.
            pub const ZERO: Self = Self(0);

            /// Wraps the number.
            pub const fn new(value: u32) -> Self {
                Self(value)
            }

            /// The number.
            pub const fn get(self) -> u32 {
                self.0
            }

            /// As a length of host memory.
            pub const fn as_usize(self) -> usize {
                self.0 as usize
            }
        }

        impl std::ops::Add for $name {
            type Output = Self;

            fn add(self, other: Self) -> Self {
                Self(self.0 + other.0)
            }
        }

        impl std::ops::AddAssign for $name {
            fn add_assign(&mut self, other: Self) {
                self.0 += other.0;
            }
        }

        impl std::iter::Sum for $name {
            fn sum<I: Iterator<Item = Self>>(values: I) -> Self {
                values.fold(Self::ZERO, |total, value| total + value)
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                write!(formatter, "{}", self.0)
            }
        }
    };
}

count!(
    /// Rows that requests need.
    Rows
);
count!(
    /// Tokens that requests need.
    Tokens
);
count!(
    /// Rows that a rank runs for its peers' sake. A rank without rows has exactly one.
    DummyRows
);
count!(
    /// Rows that kernels are given.
    RowsPadded
);
count!(
    /// Tokens that kernels are given.
    TokensPadded
);

/// Tokens of one row in one pass, at least 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct QueryLen(NonZeroU32);

impl QueryLen {
    /// A single token.
    pub const ONE: Self = Self(NonZeroU32::MIN);

    /// Wraps the number.
    ///
    /// # Errors
    /// [`Error::Rule`] when `value` is 0.
    pub fn new(value: u32) -> Result<Self, Error> {
        NonZeroU32::new(value).map(Self).ok_or_else(|| Error::rule(3, "query_len", 1, 0))
    }

    /// The verify width of `drafts` drafts per row: `Q = 1 + k`.
    pub const fn verifying(drafts: u32) -> Self {
        match NonZeroU32::new(drafts + 1) {
            Some(value) => Self(value),
            None => Self::ONE,
        }
    }

    /// The number.
    pub const fn get(self) -> u32 {
        self.0.get()
    }
}

impl std::fmt::Display for QueryLen {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{}", self.0)
    }
}

impl Rows {
    /// Tokens of this many rows of `query_len` each.
    pub const fn uniform_tokens(self, query_len: QueryLen) -> Tokens {
        Tokens::new(self.0 * query_len.get())
    }
}

impl RowsPadded {
    /// Rule 4: the only way from padded rows to padded tokens, so that they can only be padded together.
    pub const fn uniform_tokens(self, query_len: QueryLen) -> TokensPadded {
        TokensPadded::new(self.0 * query_len.get())
    }
}
