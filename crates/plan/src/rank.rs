//! One rank's part of a step: deltas on the worker's seats, then rows.

use serde::{Deserialize, Serialize};

use crate::codec::Coded;
use crate::error::{check_at_most, check_equal};
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
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
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
    #[serde(with = "blob")]
    pub sampling: Vec<u8>,
    /// Whether the worker must know every token (penalties, n-gram drafts), a prefix hit's included.
    pub history: bool,
}

/// Tokens that a worker learns for a seat: the next chunk of its prompt, or of what it emitted before a preemption.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Feed {
    /// Whose.
    pub seat: Seat,
    /// Index in the request of the first of these tokens.
    pub start: u32,
    /// The tokens.
    pub tokens: Words,
}

/// Blocks added at the end of a seat's table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlockAppend {
    /// Whose.
    pub seat: Seat,
    /// In which KV group.
    pub kv_group: KvGroup,
    /// The blocks, in order.
    pub blocks: Words,
}

/// A request leaves its seat. Applied before this step's admissions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
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

/// One rank's part of a step. Without rows it is a dummy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RankPart {
    draft: RankDraft,
}

impl RankPart {
    /// Checks what can be checked of one rank's part alone.
    ///
    /// # Errors
    /// Rule 2 for more decode rows than rows, rule 9 when a row's drafts do not fit its length or a prompt chunk
    /// has drafts, rule 11 when a seat has two rows.
    pub fn new(draft: RankDraft) -> Result<Self, Error> {
        check_at_most(2, "decode_rows", draft.rows.len() as i64, draft.decode_rows.into())?;
        let (decode_rows, prompt_rows) = draft.rows.split_at(draft.decode_rows as usize);
        for row in decode_rows {
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
        check_seats(&draft.rows)?;
        Ok(Self { draft })
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

/// Rule 11: no seat has two rows. The planner's rows go up by seat, decode rows and prompt rows each, so one look is
/// mostly enough.
fn check_seats(rows: &[Row]) -> Result<(), Error> {
    if rows.is_sorted_by(|before, after| before.seat < after.seat) {
        return Ok(());
    }
    let mut seats: Vec<u32> = rows.iter().map(|row| row.seat.get()).collect();
    // The stable sort merges runs that already go up.
    seats.sort();
    match seats.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(Error::rule(11, "seat with two rows", -1, pair[0])),
        None => Ok(()),
    }
}

/// A rank's part as it travels: columns.
#[derive(Serialize, Deserialize)]
pub struct RankWire {
    dp_rank: DpRank,
    releases: Vec<Release>,
    admissions: Vec<Admission>,
    feeds: Vec<Feed>,
    block_appends: Vec<BlockAppend>,
    copy_sources: Words,
    copy_destinations: Words,
    block_zeroings: Words,
    decode_rows: u32,
    row_seats: Words,
    row_generations: Words,
    row_starts: Words,
    row_query_lens: Words,
    row_drafts: Words,
    row_blocks: Words,
    row_logits: Words,
    row_masks: Words,
    /// Masks of `Mask::Inline` rows, packed; empty until structured output.
    #[serde(with = "blob")]
    masks: Vec<u8>,
    /// Tokens sent ahead for rows that need their history; empty until prefix hits.
    history: Vec<Feed>,
    /// KV blocks to fetch from, and to hand to, another fleet; empty until prefill and decode are split.
    kv_imports: Vec<BlockAppend>,
    kv_exports: Vec<BlockAppend>,
    /// Pipeline stage.
    stage: u32,
}

/// One value of every row. A copy of it for every column: calls through a pointer cost more than the values.
fn column(rows: &[Row], value: impl Fn(&Row) -> u32) -> Words {
    rows.iter().map(value).collect()
}

impl From<&RankPart> for RankWire {
    fn from(part: &RankPart) -> Self {
        let draft = &part.draft;
        let rows = &draft.rows;
        Self {
            dp_rank: draft.dp_rank,
            decode_rows: draft.decode_rows,
            row_seats: column(rows, |row| row.seat.get()),
            row_generations: column(rows, |row| row.generation.get()),
            row_starts: column(rows, |row| row.start_max),
            row_query_lens: column(rows, |row| row.query_len.get()),
            row_drafts: column(rows, |row| row.drafts),
            row_blocks: column(rows, |row| row.blocks),
            row_logits: column(rows, |row| row.logits.code()),
            row_masks: column(rows, |row| row.mask.code()),
            copy_sources: draft.block_copies.iter().map(|(source, _)| source.get()).collect(),
            copy_destinations: draft.block_copies.iter().map(|(_, destination)| destination.get()).collect(),
            block_zeroings: draft.block_zeroings.iter().map(|block| block.get()).collect(),
            releases: draft.releases.clone(),
            admissions: draft.admissions.clone(),
            feeds: draft.feeds.clone(),
            block_appends: draft.block_appends.clone(),
            masks: Vec::new(),
            history: Vec::new(),
            kv_imports: Vec::new(),
            kv_exports: Vec::new(),
            stage: 0,
        }
    }
}

impl RankWire {
    fn row(&self, index: usize) -> Result<Row, Error> {
        let logits = self.row_logits[index];
        let mask = self.row_masks[index];
        Ok(Row {
            seat: Seat::new(self.row_seats[index]),
            generation: SeatGeneration::new(self.row_generations[index]),
            start_max: self.row_starts[index],
            query_len: QueryLen::new(self.row_query_lens[index])?,
            drafts: self.row_drafts[index],
            blocks: self.row_blocks[index],
            logits: *LogitsWanted::CODES.get(logits as usize).ok_or_else(|| Error::rule(20, "logits", 3, logits))?,
            mask: *Mask::CODES.get(mask as usize).ok_or_else(|| Error::rule(19, "mask", 2, mask))?,
        })
    }
}

impl TryFrom<RankWire> for RankPart {
    type Error = Error;

    fn try_from(wire: RankWire) -> Result<Self, Error> {
        let count = wire.row_seats.len();
        let columns = [
            &wire.row_generations,
            &wire.row_starts,
            &wire.row_query_lens,
            &wire.row_drafts,
            &wire.row_blocks,
            &wire.row_logits,
            &wire.row_masks,
        ];
        for column in columns {
            check_equal(2, "length of a row column", count as i64, column.len() as i64)?;
        }
        check_equal(2, "copy destinations", wire.copy_sources.len() as i64, wire.copy_destinations.len() as i64)?;
        for (field, got) in [
            ("masks", wire.masks.len()),
            ("history", wire.history.len()),
            ("kv_imports", wire.kv_imports.len()),
            ("kv_exports", wire.kv_exports.len()),
            ("stage", wire.stage as usize),
        ] {
            check_equal(13, field, 0, got as i64)?;
        }
        let mut rows = Vec::with_capacity(count);
        for index in 0..count {
            rows.push(wire.row(index)?);
        }
        let copies = wire.copy_sources.iter().zip(wire.copy_destinations.iter());
        Self::new(RankDraft {
            dp_rank: wire.dp_rank,
            releases: wire.releases,
            admissions: wire.admissions,
            feeds: wire.feeds,
            block_appends: wire.block_appends,
            block_copies: copies.map(|(source, to)| (BlockId::new(*source), BlockId::new(*to))).collect(),
            block_zeroings: wire.block_zeroings.iter().map(|block| BlockId::new(*block)).collect(),
            rows,
            decode_rows: wire.decode_rows,
        })
    }
}

impl Coded for RankPart {
    type Wire = RankWire;

    fn to_wire(&self) -> RankWire {
        RankWire::from(self)
    }

    fn from_wire(wire: RankWire) -> Result<Self, Error> {
        Self::try_from(wire)
    }
}
