//! What is read next, fetched in small pieces while something else is computed.

use paceline_tiles::{SIDE, Tiles};

use super::block::{Pool, Span};
use crate::attention::PassRows;

/// Numbers that are fetched at a time: about as many lines as can be under way.
const PIECE: usize = 1 << 9;

/// Keys and values of a block to come.
pub(super) struct Ahead<'a> {
    rows: &'a PassRows,
    pools: [Pool<'a>; 2],
    row: usize,
    // Sixteens of keys or values that follow, two for each sixteen positions.
    next: usize,
    end: usize,
    // What is left of one.
    rest: &'a [u16],
}

impl<'a> Ahead<'a> {
    /// Of `span`, if there is one.
    #[inline(always)]
    pub(super) fn new(rows: &'a PassRows, pools: [Pool<'a>; 2], span: Option<&Span>) -> Self {
        let (row, next, end) =
            span.map_or((0, 0, 0), |span| (span.row, span.from / SIDE * 2, span.to.div_ceil(SIDE) * 2));
        Self { rows, pools, row, next, end, rest: &[] }
    }

    /// Fetches a piece.
    #[inline]
    pub(super) fn step(&mut self, tiles: &Tiles) {
        if self.rest.is_empty() {
            if self.next == self.end {
                return;
            }
            let pool = &self.pools[self.next % 2];
            let slot = self.rows.sixteen(self.row, self.next / 2);
            let sixteen = slot.and_then(|slot| pool.slots.get(slot * pool.stride..(slot + SIDE) * pool.stride));
            self.rest = sixteen.unwrap_or(&[]);
            self.next += 1;
        }
        let (piece, rest) = self.rest.split_at(self.rest.len().min(PIECE));
        tiles.fetch(piece);
        self.rest = rest;
    }
}
