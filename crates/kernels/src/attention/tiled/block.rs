//! A block of keys and values on its way from the cache into tiles.

use std::ops::Range;

use paceline_tiles::{INPUTS, SIDE, Square, Tiles};

use super::ahead::Ahead;
use crate::attention::PassRows;

/// Keys that share a running maximum, at fixed positions.
pub(super) const BLOCK: usize = 8 * INPUTS;
/// Columns of values, and keys, that are multiplied at a time.
pub(super) const COLUMNS: usize = 4 * SIDE;
/// Lines of keys in a block.
const LINES: usize = BLOCK / INPUTS;

/// Where keys or values of one head lie.
#[derive(Clone, Copy)]
pub(super) struct Pool<'a> {
    pub(super) slots: &'a [u16],
    /// Columns that are meant, of so many.
    pub(super) size: usize,
    pub(super) stride: usize,
}

/// Keys `from .. to` of a row, of the block that begins at `begin`.
#[derive(Clone, Copy)]
pub(super) struct Span {
    pub(super) row: usize,
    begin: usize,
    pub(super) from: usize,
    pub(super) to: usize,
}

impl Span {
    /// The first block of keys `from .. to`.
    pub(super) fn first(row: usize, (from, to): (usize, usize)) -> Self {
        let begin = from / BLOCK * BLOCK;
        Self { row, begin, from, to: to.min(begin + BLOCK) }
    }

    /// The block after this one, of keys that end at `to`.
    pub(super) fn next(&self, to: usize) -> Option<Self> {
        let begin = self.begin + BLOCK;
        (begin < to).then(|| Self { begin, from: begin, to: to.min(begin + BLOCK), ..*self })
    }

    /// The lines of the block that have any of its keys `from .. to`.
    pub(super) fn lines_of(&self, (from, to): (usize, usize)) -> Range<usize> {
        let (from, to) = (from.max(self.from), to.min(self.to));
        if from < to { (from - self.begin) / INPUTS..(to - self.begin).div_ceil(INPUTS) } else { 0..0 }
    }

    /// The keys `from .. to` as places after the first of `lines`.
    pub(super) fn within(&self, (from, to): (usize, usize), lines: &Range<usize>) -> (usize, usize) {
        let first = self.begin + lines.start * INPUTS;
        let last = self.to.min(self.begin + lines.end * INPUTS);
        let place = |position: usize| position.clamp(first, last) - first;
        (place(from), place(to))
    }

    pub(super) fn lines(&self) -> Range<usize> {
        self.lines_of((self.from, self.to))
    }
}

/// Keys and values as the products take them.
#[derive(Debug, Default)]
pub(super) struct Block {
    // Sixteen keys or values that do not lie in one piece, or not all of them.
    copies: [Vec<u16>; 4],
    // For each `COLUMNS` keys, for each line of inputs.
    keys: Vec<[Square; 4]>,
    // For each `COLUMNS` columns of values, for each line of keys.
    woven: Vec<[Square; 4]>,
}

impl Block {
    pub(super) fn begin(&mut self, key_size: usize, value_size: usize) {
        for copy in &mut self.copies {
            copy.resize(SIDE * key_size.max(value_size), 0);
        }
        self.keys.resize(BLOCK / COLUMNS * (key_size / INPUTS), [Square::ZERO; 4]);
        self.woven.resize(value_size / COLUMNS * LINES, [Square::ZERO; 4]);
    }

    /// Scores `[query, key]` of each sixteen keys of the block, and of some beside them, for one tile of queries.
    #[inline(always)]
    pub(super) fn multiply(
        &mut self,
        tiles: &mut Tiles,
        (keys, rows, span): (&Pool<'_>, &PassRows, &Span),
        (queries, count): (&[Square], usize),
        scores: &mut [Square],
        ahead: &mut Ahead<'_>,
    ) {
        let [first, second, third, fourth] = &mut self.copies;
        let mut products = [Square::ZERO; 4];
        let lines = span.lines();
        for line in lines.clone().step_by(2) {
            // An odd line that is the last is taken twice.
            let other = (line + 1).min(lines.end - 1);
            let four = [
                sixteen(keys, first, rows, span, 2 * line),
                sixteen(keys, second, rows, span, 2 * line + 1),
                sixteen(keys, third, rows, span, 2 * other),
                sixteen(keys, fourth, rows, span, 2 * other + 1),
            ];
            tiles.multiply_by_four(four, queries, &mut products);
            for (products, scores) in products.iter().zip(&mut scores[2 * line..2 * lines.end]) {
                tiles.transpose_first(products, count, scores);
                ahead.step(tiles);
            }
            ahead.step(tiles);
        }
    }

    /// Takes the keys as inputs of products, for any number of tiles.
    #[inline(always)]
    pub(super) fn turn_keys(&mut self, tiles: &Tiles, (keys, rows, span): (&Pool<'_>, &PassRows, &Span)) {
        let inputs = keys.size / INPUTS;
        for half in 2 * span.lines().start..2 * span.lines().end {
            let sixteen = sixteen(keys, &mut self.copies[0], rows, span, half);
            for line in 0..inputs {
                let place = &mut self.keys[half / 4 * inputs + line][half % 4];
                tiles.turn(sixteen, keys.size, line * INPUTS, place);
            }
        }
    }

    /// Scores `[query, key]` of some lines of keys that were taken as inputs, and of lines beside them.
    #[inline(always)]
    pub(super) fn score(
        &self,
        tiles: &mut Tiles,
        queries: &[u16],
        key_size: usize,
        lines: Range<usize>,
        scores: &mut [Square],
    ) {
        let inputs = key_size / INPUTS;
        let parts = lines.start / 2..lines.end.div_ceil(2);
        let keys = self.keys[parts.start * inputs..parts.end * inputs].chunks_exact(inputs);
        for (keys, scores) in keys.zip(&mut scores.as_chunks_mut::<4>().0[parts]) {
            tiles.multiply_four(queries, keys, scores);
        }
    }

    /// Weaves the values of the block.
    #[inline(always)]
    pub(super) fn weave(&mut self, tiles: &Tiles, (values, rows, span): (&Pool<'_>, &PassRows, &Span)) {
        let [copy, other, ..] = &mut self.copies;
        for line in span.lines() {
            let two = [sixteen(values, copy, rows, span, 2 * line), sixteen(values, other, rows, span, 2 * line + 1)];
            for column in (0..values.size).step_by(COLUMNS) {
                tiles.weave(two, values.size, column, &mut self.woven[column / COLUMNS * LINES + line]);
            }
        }
    }

    /// Sums of weights times `COLUMNS` columns of values, for one tile of queries: each line of values is woven while the one
    /// before is multiplied, so that little is kept in the nearest cache.
    #[inline(always)]
    pub(super) fn add_up(
        &mut self,
        tiles: &mut Tiles,
        (values, rows, span): (&Pool<'_>, &PassRows, &Span),
        columns: usize,
        weights: &[u16],
        sums: &mut [Square; 4],
        ahead: &mut Ahead<'_>,
    ) {
        let [copy, other, ..] = &mut self.copies;
        let woven = &mut self.woven[..2];
        tiles.begin_sums();
        for (index, line) in span.lines().enumerate() {
            let two = [sixteen(values, copy, rows, span, 2 * line), sixteen(values, other, rows, span, 2 * line + 1)];
            tiles.weave(two, values.size, columns * COLUMNS, &mut woven[index % 2]);
            ahead.step(tiles);
            ahead.step(tiles);
            if index > 0 {
                tiles.add_line(weights, index - 1, &woven[(index - 1) % 2]);
            }
            ahead.step(tiles);
            ahead.step(tiles);
        }
        let last = span.lines().len() - 1;
        tiles.add_line(weights, last, &woven[last % 2]);
        tiles.take_sums(sums);
    }

    /// `COLUMNS` columns of values of some lines of keys.
    #[inline(always)]
    pub(super) fn woven(&self, columns: usize, lines: Range<usize>) -> &[[Square; 4]] {
        &self.woven[columns * LINES..][lines]
    }
}

/// Sixteen rows, those of half a line of the block: where they lie in the cache, or copied, with zeros for those that are
/// not there.
#[inline(always)]
fn sixteen<'a>(pool: &Pool<'a>, copy: &'a mut [u16], rows: &PassRows, span: &Span, half: usize) -> &'a [u16] {
    let begin = span.begin + half * SIDE;
    if span.from <= begin
        && begin + SIDE <= span.to
        && pool.size == pool.stride
        && let Some(slot) = rows.sixteen(span.row, begin / SIDE)
    {
        return &pool.slots[slot * pool.stride..(slot + SIDE) * pool.stride];
    }
    copied(pool, copy, rows, span, begin)
}

/// The sixteen rows from position `begin` on, those outside of the span 0.
#[cold]
fn copied<'a>(pool: &Pool<'a>, copy: &'a mut [u16], rows: &PassRows, span: &Span, begin: usize) -> &'a [u16] {
    let Pool { slots, size, stride } = *pool;
    let copy = &mut copy[..SIDE * size];
    let (from, to) = (begin.max(span.from), (begin + SIDE).min(span.to));
    let mut copied = 0;
    if from < to {
        for (place, slot, count) in rows.runs(span.row, from, to) {
            let place = from - begin + place;
            copy[copied * size..place * size].fill(0);
            for index in 0..count {
                let row = &slots[(slot + index) * stride..][..size];
                copy[(place + index) * size..][..size].copy_from_slice(row);
            }
            copied = place + count;
        }
    }
    copy[copied * size..].fill(0);
    copy
}
