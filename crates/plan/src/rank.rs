//! One rank's part of a step: deltas on the worker's seats, then rows.

mod wire;

use serde::Deserialize;

use crate::error::check_at_most;
use crate::words::blob;
use crate::{BlockId, DpRank, Error, KvGroup, QueryLen, Rows, Seat, SeatGeneration, Tokens, Words};

/// Which positions of a row give logits (rule 20).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LogitsWanted {
    /// No position: a chunk that does not end what is known.
    None,
    /// The last position.
    Last,
    /// The newest token and each planned draft: `1 + drafts` positions.
    Verify,
    /// Every position.
    All,
}

impl LogitsWanted {
    const CODES: [Self; 4] = [Self::None, Self::Last, Self::Verify, Self::All];

    fn code(self) -> u32 {
        self as u32
    }
}

/// How a row's sampling is constrained (rule 19).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mask {
    /// Not at all.
    None,
    /// The mask is in this plan.
    Inline,
    /// The mask follows; sampling waits for it.
    Follows,
}

impl Mask {
    const CODES: [Self; 3] = [Self::None, Self::Inline, Self::Follows];

    fn code(self) -> u32 {
        self as u32
    }
}

/// A request takes a seat.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Admission {
    /// Where it sits.
    pub seat: Seat,
    /// Which life of the seat this is.
    pub generation: SeatGeneration,
    /// Tokens of the prompt. What is known beyond it was emitted before a preemption.
    pub prompt_len: u32,
    /// Tokens whose KV is already in the first blocks (a prefix hit); 0 otherwise.
    pub computed: u32,
    /// Adapter to run with; 0 is the bare model.
    pub adapter: u32,
    /// Sampling parameters, opaque here.
    #[serde(deserialize_with = "blob::deserialize")]
    pub sampling: Vec<u8>,
    /// Whether the worker must know every token (penalties, n-gram drafts), a prefix hit's included.
    pub history: bool,
}

/// Tokens that a worker learns for a seat: the next chunk of its prompt, or of what it emitted before a preemption.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Feed {
    /// Whose.
    pub seat: Seat,
    /// Index in the request of the first of these tokens.
    pub start: u32,
    /// The tokens.
    pub tokens: Words,
}

/// Blocks added at the end of a seat's table.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct BlockAppend {
    /// Whose.
    pub seat: Seat,
    /// In which KV group.
    pub kv_group: KvGroup,
    /// The blocks, in order.
    pub blocks: Words,
}

/// A request leaves its seat. Applied before this step's admissions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub struct Release {
    /// The seat.
    pub seat: Seat,
    /// The life that ends.
    pub generation: SeatGeneration,
}

/// One seat's part of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// Whose.
    pub seat: Seat,
    /// Which life of the seat.
    pub generation: SeatGeneration,
    /// Position of the first token at most (rule 16: everything in flight accepted); exactly it at depth 0.
    pub start_max: u32,
    /// Tokens of the row. In a decode row: 1 + drafts + placeholders.
    pub query_len: QueryLen,
    /// Real drafts to verify; with steps in flight at most (rule 16): what a step in flight does not propose is filled
    /// with placeholders.
    pub drafts: u32,
    /// Blocks of the seat in KV group 0 once this step's deltas are applied.
    pub blocks: u32,
    /// Which positions give logits.
    pub logits: LogitsWanted,
    /// How sampling is constrained.
    pub mask: Mask,
}

impl Row {
    /// Placeholder drafts of a decode row, those that stand for drafts not proposed aside: never sampled, counted or
    /// emitted.
    pub const fn placeholders(&self) -> u32 {
        self.query_len.get() - 1 - self.drafts
    }

    /// How many positions give logits.
    pub const fn logits_count(&self) -> u32 {
        match self.logits {
            LogitsWanted::None => 0,
            LogitsWanted::Last => 1,
            LogitsWanted::Verify => 1 + self.drafts,
            LogitsWanted::All => self.query_len.get(),
        }
    }

    /// How many masks follow: one for each position that is sampled.
    pub const fn masks_count(&self) -> u32 {
        match (self.mask, self.logits) {
            (Mask::None | Mask::Inline, _) | (_, LogitsWanted::None) => 0,
            (Mask::Follows, LogitsWanted::Last | LogitsWanted::All) => 1,
            (Mask::Follows, LogitsWanted::Verify) => 1 + self.drafts,
        }
    }
}

/// Everything that [`RankPart`] holds, before it is checked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RankDraft {
    /// Whose part this is.
    pub dp_rank: DpRank,
    /// Requests that leave; applied first.
    pub releases: Vec<Release>,
    /// Requests that come; applied second.
    pub admissions: Vec<Admission>,
    /// Tokens that the worker learns.
    pub feeds: Vec<Feed>,
    /// Blocks added to seats.
    pub block_appends: Vec<BlockAppend>,
    /// Blocks copied before the step, (source, destination).
    pub block_copies: Vec<(BlockId, BlockId)>,
    /// Blocks set to zero before the step.
    pub block_zeroings: Vec<BlockId>,
    /// The rows; decode rows first.
    pub rows: Vec<Row>,
    /// How many of the rows are decode rows.
    pub decode_rows: u32,
}

impl RankDraft {
    /// Whether the worker is told more than rows.
    pub(crate) fn has_deltas(&self) -> bool {
        let seats = self.releases.len() | self.admissions.len() | self.feeds.len() | self.block_appends.len();
        (seats | self.block_copies.len() | self.block_zeroings.len()) > 0
    }

    /// Empties it for another step of any rank; its memory stays.
    pub fn clear(&mut self) {
        let Self {
            dp_rank,
            releases,
            admissions,
            feeds,
            block_appends,
            block_copies,
            block_zeroings,
            rows,
            decode_rows,
        } = self;
        (*dp_rank, *decode_rows) = (DpRank::default(), 0);
        releases.clear();
        admissions.clear();
        feeds.clear();
        block_appends.clear();
        block_copies.clear();
        block_zeroings.clear();
        rows.clear();
    }
}

/// One rank's part of a step. Without rows it is a dummy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RankPart {
    draft: RankDraft,
}

impl RankPart {
    /// Checks what can be checked of one rank's part alone.
    ///
    /// # Errors
    /// Rule 2 for more decode rows than rows, rule 9 when a row's drafts do not fit its length or a prompt chunk
    /// has drafts, rule 11 when a seat has two rows, rule 19 for a mask in the plan or of a row without logits.
    #[inline]
    pub fn new(draft: RankDraft) -> Result<Self, Error> {
        check(&draft)?;
        Ok(Self { draft })
    }

    /// Makes the part anew in its own memory: `make` is given an empty draft.
    ///
    /// # Errors
    /// As [`Self::new`]; then the part is that of a rank without rows.
    #[inline]
    pub fn remake(&mut self, make: impl FnOnce(&mut RankDraft)) -> Result<(), Error> {
        self.draft.clear();
        make(&mut self.draft);
        let checked = check(&self.draft);
        if checked.is_err() {
            self.draft.clear();
        }
        checked
    }

    /// Whose part this is.
    pub const fn dp_rank(&self) -> DpRank {
        self.draft.dp_rank
    }

    /// Requests that leave; applied first.
    pub fn releases(&self) -> &[Release] {
        &self.draft.releases
    }

    /// Requests that come; applied second.
    pub fn admissions(&self) -> &[Admission] {
        &self.draft.admissions
    }

    /// Tokens that the worker learns.
    pub fn feeds(&self) -> &[Feed] {
        &self.draft.feeds
    }

    /// Blocks added to seats.
    pub fn block_appends(&self) -> &[BlockAppend] {
        &self.draft.block_appends
    }

    /// Blocks copied before the step, (source, destination).
    pub fn block_copies(&self) -> &[(BlockId, BlockId)] {
        &self.draft.block_copies
    }

    /// Blocks set to zero before the step.
    pub fn block_zeroings(&self) -> &[BlockId] {
        &self.draft.block_zeroings
    }

    /// All rows, decode rows first.
    pub fn rows(&self) -> &[Row] {
        &self.draft.rows
    }

    /// How many of the rows are decode rows.
    pub const fn decode_rows(&self) -> u32 {
        self.draft.decode_rows
    }

    /// True when the rank has no row and runs a dummy.
    pub fn is_dummy(&self) -> bool {
        self.draft.rows.is_empty()
    }

    /// Rows of requests.
    pub fn rows_real(&self) -> Rows {
        Rows::new(u32::try_from(self.draft.rows.len()).expect("a plan has fewer than 2^32 rows"))
    }

    /// Tokens of requests, placeholders included: what the budget B counts.
    pub fn tokens_real(&self) -> Tokens {
        let total: u64 = self.draft.rows.iter().map(|row| u64::from(row.query_len.get())).sum();
        Tokens::new(u32::try_from(total).unwrap_or(u32::MAX))
    }
}

/// All that is checked of a part alone.
fn check(draft: &RankDraft) -> Result<(), Error> {
    check_at_most(2, "decode_rows", draft.rows.len() as i64, draft.decode_rows.into())?;
    let (decode_rows, prompt_rows) = draft.rows.split_at(draft.decode_rows as usize);
    let decode_rows_are_plain = are_plain(decode_rows);
    if decode_rows_are_plain && prompt_rows.is_empty() {
        return Ok(());
    }
    for row in decode_rows.iter().filter(|_| !decode_rows_are_plain) {
        check_at_most(9, "drafts", (row.query_len.get() - 1).into(), row.drafts.into())?;
        if !matches!(row.logits, LogitsWanted::Verify) {
            return Err(Error::rule(20, "logits of a decode row", LogitsWanted::Verify.code(), row.logits.code()));
        }
    }
    for row in prompt_rows {
        check_at_most(9, "drafts", 0, row.drafts.into())?;
        if matches!(row.logits, LogitsWanted::Verify) {
            return Err(Error::rule(20, "logits of a prompt row", LogitsWanted::Last.code(), row.logits.code()));
        }
    }
    check_masks(&draft.rows)?;
    check_seats(decode_rows, prompt_rows)
}

/// Whether decode rows go up by seat and are right: all of [`check`] in one look.
fn are_plain(decode_rows: &[Row]) -> bool {
    let mut seat_least = 0;
    decode_rows.iter().all(|row| {
        let seat = u64::from(row.seat.get());
        let goes_up = seat >= seat_least;
        seat_least = seat + 1;
        let is_verified = row.logits == LogitsWanted::Verify && row.mask != Mask::Inline;
        goes_up && row.drafts < row.query_len.get() && is_verified
    })
}

/// Rule 19: masks follow, and only rows that may sample have any.
fn check_masks(rows: &[Row]) -> Result<(), Error> {
    match rows.iter().find(|row| row.mask == Mask::Inline || (row.mask == Mask::Follows && row.masks_count() == 0)) {
        Some(row) if row.mask == Mask::Inline => Err(Error::rule(19, "mask in a plan", Mask::Follows.code(), 1)),
        Some(row) => Err(Error::rule(19, "mask of a row without logits", Mask::None.code(), row.mask.code())),
        None => Ok(()),
    }
}

/// Rule 11: no seat has two rows. The planner's rows go up by seat, decode rows and prompt rows each, so that it is enough
/// to look the seats of the few prompt rows up.
fn check_seats(decode_rows: &[Row], prompt_rows: &[Row]) -> Result<(), Error> {
    let go_up = |rows: &[Row]| rows.is_sorted_by(|before, after| before.seat < after.seat);
    let is_new = |row: &Row| decode_rows.binary_search_by_key(&row.seat, |other| other.seat).is_err();
    if go_up(decode_rows) && go_up(prompt_rows) && prompt_rows.iter().all(is_new) {
        return Ok(());
    }
    let mut seats: Vec<u32> = decode_rows.iter().chain(prompt_rows).map(|row| row.seat.get()).collect();
    // The stable sort merges runs that already go up.
    seats.sort();
    match seats.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(Error::rule(11, "seat with two rows", -1, pair[0])),
        None => Ok(()),
    }
}
