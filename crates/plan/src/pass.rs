//! One forward of one network over all ranks of a group: its kind, its mode, its padded size, and what each rank
//! brings to it. Written once per group, so ranks cannot disagree on it.

use serde::Deserialize;

use crate::error::{check_at_most, check_equal};
use crate::pack;
use crate::{DummyRows, Error, QueryLen, Rows, RowsPadded, Tokens, TokensPadded, Words};

/// Which network a pass runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Network {
    /// The model itself.
    Target,
    /// The draft layer or draft model.
    Drafter,
}

/// Which forward of a step this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PassKind {
    /// The target over all rows.
    Target,
    /// The drafter over the target's rows and lengths; gives draft 1.
    Extend,
    /// The drafter, one token for each row that will decode; gives draft `index`, from 2.
    Single {
        /// Which draft it gives.
        index: u32,
    },
}

impl PassKind {
    /// The network that this pass runs.
    pub const fn network(self) -> Network {
        match self {
            Self::Target => Network::Target,
            Self::Extend | Self::Single { .. } => Network::Drafter,
        }
    }

    fn code(self) -> u32 {
        match self {
            Self::Target => 0,
            Self::Extend => 1,
            Self::Single { index } => index,
        }
    }

    fn from_code(code: u32) -> Self {
        match code {
            0 => Self::Target,
            1 => Self::Extend,
            index => Self::Single { index },
        }
    }
}

/// How a pass is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Mode {
    /// A fixed-shape uniform graph is replayed.
    Full,
    /// A fixed token count, attention outside the graph.
    Piecewise,
    /// As it comes.
    Eager,
}

impl Mode {
    /// Name of the mode in metrics, logs and the Python worker.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::Piecewise => "piecewise",
            Self::Eager => "eager",
        }
    }
}

/// Mode and padded size of a pass. A FULL shape holds rows and query length only: its padded tokens are their
/// product and cannot be said otherwise (rule 4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// Every row is `query_len` long, padding included.
    Full {
        /// Tokens of every row.
        query_len: QueryLen,
        /// Rows on every rank.
        rows_padded: RowsPadded,
    },
    /// Inputs are padded to `tokens_padded`; attention sees real rows and tokens (rule 6).
    Piecewise {
        /// Tokens on every rank.
        tokens_padded: TokensPadded,
    },
    /// Nothing is padded but collectives, to the largest rank.
    Eager,
}

impl Shape {
    /// The mode of this shape.
    pub const fn mode(self) -> Mode {
        match self {
            Self::Full { .. } => Mode::Full,
            Self::Piecewise { .. } => Mode::Piecewise,
            Self::Eager => Mode::Eager,
        }
    }
}

/// What one rank brings to a pass: real rows or one dummy row, never both, never neither.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RankLoad {
    /// Rows of requests.
    Real {
        /// At least one.
        rows: Rows,
        /// At least one for each row.
        tokens: Tokens,
    },
    /// One row for the peers' sake.
    Dummy {
        /// Its length: Q in a target or extend pass, 1 in a single pass.
        query_len: QueryLen,
    },
}

impl RankLoad {
    /// Rows of requests.
    pub const fn rows(self) -> Rows {
        match self {
            Self::Real { rows, .. } => rows,
            Self::Dummy { .. } => Rows::ZERO,
        }
    }

    /// Tokens of requests.
    pub const fn tokens(self) -> Tokens {
        match self {
            Self::Real { tokens, .. } => tokens,
            Self::Dummy { .. } => Tokens::ZERO,
        }
    }

    /// Dummy rows: 1 or 0.
    pub const fn dummy_rows(self) -> DummyRows {
        match self {
            Self::Real { .. } => DummyRows::ZERO,
            Self::Dummy { .. } => DummyRows::new(1),
        }
    }

    /// Rows that are run, real or dummy.
    pub const fn rows_run(self) -> u32 {
        match self {
            Self::Real { rows, .. } => rows.get(),
            Self::Dummy { .. } => 1,
        }
    }

    /// Tokens that are run, real or dummy.
    pub const fn tokens_run(self) -> u32 {
        match self {
            Self::Real { tokens, .. } => tokens.get(),
            Self::Dummy { query_len } => query_len.get(),
        }
    }

    /// True for a dummy.
    pub const fn is_dummy(self) -> bool {
        matches!(self, Self::Dummy { .. })
    }
}

/// One forward of one network over all ranks of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pass {
    kind: PassKind,
    shape: Shape,
    loads: Vec<RankLoad>,
}

impl Pass {
    /// Checks and joins the parts of a pass. `loads` holds one entry per rank, in the order of the group's ranks.
    ///
    /// # Errors
    /// Rule 1 when no rank has a row or a group of one runs a dummy, rule 3 when FULL is not uniform, rules 3 and 4
    /// when a rank passes the padded size, rule 8 when a dummy's length is not the pass's.
    #[inline]
    pub fn new(kind: PassKind, shape: Shape, loads: Vec<RankLoad>) -> Result<Self, Error> {
        check_loads(kind, shape, &loads)?;
        Ok(Self { kind, shape, loads })
    }

    /// What each rank brings, so that its memory can be used again.
    pub fn into_loads(self) -> Vec<RankLoad> {
        self.loads
    }

    /// Which forward of the step this is.
    pub const fn kind(&self) -> PassKind {
        self.kind
    }

    /// Mode and padded size.
    pub const fn shape(&self) -> Shape {
        self.shape
    }

    /// The mode.
    pub const fn mode(&self) -> Mode {
        self.shape.mode()
    }

    /// What each rank brings, in the order of the group's ranks.
    pub fn loads(&self) -> &[RankLoad] {
        &self.loads
    }

    /// Length of every row in FULL; nothing elsewhere.
    pub const fn query_len(&self) -> Option<QueryLen> {
        match self.shape {
            Shape::Full { query_len, .. } => Some(query_len),
            Shape::Piecewise { .. } | Shape::Eager => None,
        }
    }

    /// Rows that kernels and collectives are given, the same on all ranks. Outside FULL: rows of the largest rank.
    #[inline]
    pub fn rows_padded(&self) -> RowsPadded {
        match self.shape {
            Shape::Full { rows_padded, .. } => rows_padded,
            Shape::Piecewise { .. } | Shape::Eager => {
                RowsPadded::new(self.loads.iter().map(|load| load.rows_run()).max().unwrap_or(0))
            }
        }
    }

    /// Tokens that kernels and collectives are given, the same on all ranks. EAGER: tokens of the largest rank.
    #[inline]
    pub fn tokens_padded(&self) -> TokensPadded {
        match self.shape {
            Shape::Full { query_len, rows_padded } => rows_padded.uniform_tokens(query_len),
            Shape::Piecewise { tokens_padded } => tokens_padded,
            Shape::Eager => TokensPadded::new(self.loads.iter().map(|load| load.tokens_run()).max().unwrap_or(0)),
        }
    }
}

/// All that is checked of a pass.
fn check_loads(kind: PassKind, shape: Shape, loads: &[RankLoad]) -> Result<(), Error> {
    if loads.iter().all(|load| load.is_dummy()) && kind == PassKind::Target {
        return Err(Error::rule(1, "ranks with rows", 1, 0));
    }
    loads.iter().try_for_each(|load| check_load(kind, shape, *load))
}

#[inline]
fn check_load(kind: PassKind, shape: Shape, load: RankLoad) -> Result<(), Error> {
    match load {
        RankLoad::Real { rows, tokens } => {
            if rows == Rows::ZERO {
                return Err(Error::rule(1, "rows of a real rank", 1, 0));
            }
            if tokens.get() < rows.get() {
                return Err(Error::rule(4, "tokens of a real rank", rows.get(), tokens.get()));
            }
            if let PassKind::Single { .. } = kind {
                check_equal(2, "tokens of a single pass", rows.get().into(), tokens.get().into())?;
            }
        }
        RankLoad::Dummy { query_len } => {
            if let PassKind::Single { .. } = kind {
                check_equal(8, "dummy tokens of a single pass", 1, query_len.get().into())?;
            }
        }
    }
    match shape {
        Shape::Full { query_len, rows_padded } => {
            if let PassKind::Single { .. } = kind {
                check_equal(2, "query_len of a single pass", 1, query_len.get().into())?;
            }
            check_at_most(4, "rows", rows_padded.get().into(), load.rows_run().into())?;
            let uniform = u64::from(load.rows_run()) * u64::from(query_len.get());
            check_equal(3, "tokens of a FULL pass", uniform.cast_signed(), load.tokens_run().into())
        }
        Shape::Piecewise { tokens_padded } => {
            check_at_most(3, "tokens", tokens_padded.get().into(), load.tokens_run().into())
        }
        Shape::Eager => Ok(()),
    }
}

/// A pass as it travels: numbers side by side, so that a false one can be told from a missing one.
#[derive(Deserialize)]
pub(crate) struct PassWire {
    kind: u32,
    mode: u32,
    query_len: u32,
    rows_padded: u32,
    tokens_padded: u32,
    rows: Words,
    tokens: Words,
    dummy: Words,
}

const MODE_CODES: [Mode; 3] = [Mode::Full, Mode::Piecewise, Mode::Eager];

impl Pass {
    /// Adds the bytes of a [`PassWire`].
    pub(crate) fn append_to(&self, bytes: &mut Vec<u8>) {
        pack::list(bytes, 8);
        let query_len = self.query_len().map_or(0, QueryLen::get);
        let (rows_padded, tokens_padded) = (self.rows_padded().get(), self.tokens_padded().get());
        pack::numbers(bytes, [self.kind.code(), self.mode() as u32, query_len, rows_padded, tokens_padded]);
        pack::columns(bytes, &self.loads, |load| [load.rows_run(), load.tokens_run(), u32::from(load.is_dummy())]);
    }
}

impl TryFrom<PassWire> for Pass {
    type Error = Error;

    fn try_from(wire: PassWire) -> Result<Self, Error> {
        let ranks = wire.rows.len();
        check_equal(2, "token counts of a pass", ranks as i64, wire.tokens.len() as i64)?;
        check_equal(2, "dummy flags of a pass", ranks as i64, wire.dummy.len() as i64)?;
        let mode = *MODE_CODES.get(wire.mode as usize).ok_or_else(|| Error::rule(2, "mode", 2, wire.mode))?;
        let shape = match mode {
            Mode::Full => Shape::Full {
                query_len: QueryLen::new(wire.query_len)?,
                rows_padded: RowsPadded::new(wire.rows_padded),
            },
            Mode::Piecewise => Shape::Piecewise { tokens_padded: TokensPadded::new(wire.tokens_padded) },
            Mode::Eager => Shape::Eager,
        };
        if let Shape::Full { query_len, rows_padded } = shape
            && rows_padded.get().checked_mul(query_len.get()).is_none()
        {
            return Err(Error::rule(4, "rows_padded", u32::MAX / query_len.get(), rows_padded.get()));
        }
        let mut loads = Vec::with_capacity(ranks);
        for index in 0..ranks {
            loads.push(load_from_wire(wire.rows[index], wire.tokens[index], wire.dummy[index])?);
        }
        let pass = Self::new(PassKind::from_code(wire.kind), shape, loads)?;
        check_equal(4, "rows_padded", pass.rows_padded().get().into(), wire.rows_padded.into())?;
        check_equal(4, "tokens_padded", pass.tokens_padded().get().into(), wire.tokens_padded.into())?;
        Ok(pass)
    }
}

fn load_from_wire(rows: u32, tokens: u32, dummy: u32) -> Result<RankLoad, Error> {
    if dummy == 0 {
        return Ok(RankLoad::Real { rows: Rows::new(rows), tokens: Tokens::new(tokens) });
    }
    check_equal(1, "dummy flag", 1, dummy.into())?;
    check_equal(1, "rows of a dummy", 1, rows.into())?;
    Ok(RankLoad::Dummy { query_len: QueryLen::new(tokens)? })
}
