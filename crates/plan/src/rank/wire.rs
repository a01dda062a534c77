//! A rank's part as bytes.

use serde::Deserialize;

use super::{Admission, BlockAppend, Feed, LogitsWanted, Mask, RankDraft, RankPart, Release, Row};
use crate::codec::Coded;
use crate::error::check_equal;
use crate::pack;
use crate::words::blob;
use crate::{BlockId, DpRank, Error, QueryLen, Seat, SeatGeneration, Words};

/// A rank's part as it travels: columns.
#[derive(Deserialize)]
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
    #[serde(deserialize_with = "blob::deserialize")]
    masks: Vec<u8>,
    /// Tokens sent ahead for rows that need their history; empty until prefix hits.
    history: Vec<Feed>,
    /// KV blocks to fetch from, and to hand to, another fleet; empty until prefill and decode are split.
    kv_imports: Vec<BlockAppend>,
    kv_exports: Vec<BlockAppend>,
    /// Pipeline stage.
    stage: u32,
}

/// Fields of [`RankWire`].
const FIELDS: usize = 22;

impl RankPart {
    fn append_deltas(&self, bytes: &mut Vec<u8>) {
        let draft = &self.draft;
        pack::list(bytes, draft.releases.len());
        for release in &draft.releases {
            pack::list(bytes, 2);
            pack::number(bytes, release.seat.get());
            pack::number(bytes, release.generation.get());
        }
        pack::list(bytes, draft.admissions.len());
        for admission in &draft.admissions {
            pack::list(bytes, 7);
            pack::number(bytes, admission.seat.get());
            pack::number(bytes, admission.generation.get());
            pack::number(bytes, admission.prompt_len);
            pack::number(bytes, admission.computed);
            pack::number(bytes, admission.adapter);
            pack::blob(bytes, &admission.sampling);
            pack::flag(bytes, admission.history);
        }
        pack::list(bytes, draft.feeds.len());
        for feed in &draft.feeds {
            pack::list(bytes, 3);
            pack::number(bytes, feed.seat.get());
            pack::number(bytes, feed.start);
            pack::words(bytes, &feed.tokens);
        }
        pack::list(bytes, draft.block_appends.len());
        for append in &draft.block_appends {
            pack::list(bytes, 3);
            pack::number(bytes, append.seat.get());
            pack::number(bytes, append.kv_group.get());
            pack::words(bytes, &append.blocks);
        }
        pack::column(bytes, &draft.block_copies, |(source, _)| source.get());
        pack::column(bytes, &draft.block_copies, |(_, destination)| destination.get());
        pack::column(bytes, &draft.block_zeroings, |block| block.get());
    }

    fn append_rows(&self, bytes: &mut Vec<u8>) {
        let rows = &self.draft.rows;
        pack::number(bytes, self.draft.decode_rows);
        pack::column(bytes, rows, |row| row.seat.get());
        pack::column(bytes, rows, |row| row.generation.get());
        pack::column(bytes, rows, |row| row.start_max);
        pack::column(bytes, rows, |row| row.query_len.get());
        pack::column(bytes, rows, |row| row.drafts);
        pack::column(bytes, rows, |row| row.blocks);
        pack::column(bytes, rows, |row| row.logits.code());
        pack::column(bytes, rows, |row| row.mask.code());
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

    fn append_to(&self, bytes: &mut Vec<u8>) {
        pack::list(bytes, FIELDS);
        pack::number(bytes, self.draft.dp_rank.get());
        self.append_deltas(bytes);
        self.append_rows(bytes);
        // Masks, history, imports, exports, stage: none of them is used yet.
        pack::blob(bytes, &[]);
        (0..3).for_each(|_| pack::list(bytes, 0));
        pack::number(bytes, 0u32);
    }

    fn from_wire(wire: RankWire) -> Result<Self, Error> {
        Self::try_from(wire)
    }
}
