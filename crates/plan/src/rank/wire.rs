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

/// Bytes of a part that changes nothing but rows: no releases, admissions, feeds and block appends; no copies and zeroings.
const NO_DELTAS: [u8; 10] = [0x90, 0x90, 0x90, 0x90, 0xc4, 0, 0xc4, 0, 0xc4, 0];

/// Bytes of masks, history, imports, exports and stage: none of them is used yet.
const UNUSED: [u8; 6] = [0xc4, 0, 0x90, 0x90, 0x90, 0];

impl RankPart {
    fn append_deltas(&self, bytes: &mut Vec<u8>) {
        if self.draft.has_deltas() {
            self.append_each_delta(bytes);
        } else {
            bytes.extend_from_slice(&NO_DELTAS);
        }
    }

    #[inline(never)]
    fn append_each_delta(&self, bytes: &mut Vec<u8>) {
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
        let first = |row: &Row| [row.seat.get(), row.generation.get(), row.start_max, row.query_len.get()];
        let second = |row: &Row| [row.drafts, row.blocks, row.logits.code(), row.mask.code()];
        if let [row] = &rows[..] {
            pack::words_alone(bytes, first(row));
            pack::words_alone(bytes, second(row));
        } else {
            pack::columns(bytes, rows, first);
            pack::columns(bytes, rows, second);
        }
    }
}

impl RankWire {
    /// The rows, from columns that are all as long as the first.
    fn rows(&self) -> Result<Vec<Row>, Error> {
        let count = self.row_seats.len();
        let (seats, generations, starts) =
            (&self.row_seats[..count], &self.row_generations[..count], &self.row_starts[..count]);
        let (query_lens, drafts, blocks) =
            (&self.row_query_lens[..count], &self.row_drafts[..count], &self.row_blocks[..count]);
        let (logits, masks) = (&self.row_logits[..count], &self.row_masks[..count]);
        let mut rows = Vec::with_capacity(count);
        for index in 0..count {
            let (logits, mask) = (logits[index], masks[index]);
            rows.push(Row {
                seat: Seat::new(seats[index]),
                generation: SeatGeneration::new(generations[index]),
                start_max: starts[index],
                query_len: QueryLen::new(query_lens[index])?,
                drafts: drafts[index],
                blocks: blocks[index],
                logits: *LogitsWanted::CODES
                    .get(logits as usize)
                    .ok_or_else(|| Error::rule(20, "logits", 3, logits))?,
                mask: *Mask::CODES.get(mask as usize).ok_or_else(|| Error::rule(19, "mask", 2, mask))?,
            });
        }
        Ok(rows)
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
        let rows = wire.rows()?;
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
        bytes.extend_from_slice(&UNUSED);
    }

    fn from_wire(wire: RankWire) -> Result<Self, Error> {
        Self::try_from(wire)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_at_once_is_what_each_field_is() {
        let part = RankPart::default();
        let (mut at_once, mut each) = (Vec::new(), Vec::new());
        part.append_deltas(&mut at_once);
        part.append_each_delta(&mut each);
        assert_eq!(at_once, each);
        let mut unused = Vec::new();
        pack::blob(&mut unused, &[]);
        (0..3).for_each(|_| pack::list(&mut unused, 0));
        pack::number(&mut unused, 0u32);
        assert_eq!(UNUSED[..], unused);
    }

    #[test]
    fn every_delta_is_one() {
        let one = |change: fn(&mut RankDraft)| {
            let mut draft = RankDraft::default();
            change(&mut draft);
            draft
        };
        let (seat, generation) = (Seat::new(1), SeatGeneration::new(2));
        let changes: [fn(&mut RankDraft); 5] = [
            |draft| draft.feeds.push(Feed { seat: Seat::new(1), start: 0, tokens: Words::one(3) }),
            |draft| {
                let (seat, kv_group) = (Seat::new(1), crate::KvGroup::new(0));
                draft.block_appends.push(BlockAppend { seat, kv_group, blocks: Words::one(3) });
            },
            |draft| draft.block_copies.push((BlockId::new(1), BlockId::new(2))),
            |draft| draft.block_zeroings.push(BlockId::new(1)),
            |draft| {
                let (seat, generation, sampling) = (Seat::new(1), SeatGeneration::new(2), Vec::new());
                let (prompt_len, computed, adapter, history) = (1, 0, 0, false);
                draft.admissions.push(Admission { seat, generation, prompt_len, computed, adapter, sampling, history });
            },
        ];
        assert!(changes.into_iter().all(|change| one(change).has_deltas()));
        let releases = vec![Release { seat, generation }];
        assert!(RankDraft { releases, ..RankDraft::default() }.has_deltas());
        assert!(!RankDraft { decode_rows: 3, ..RankDraft::default() }.has_deltas());
    }
}
