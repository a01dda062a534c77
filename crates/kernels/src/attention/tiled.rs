//! Attention in bfloat16 with matrix instructions, up to sixteen queries of a cached head at a time.
//!
//! Keys are tiles as they lie in the cache, so that nothing is widened; values are woven into pairs of keys, and weights are
//! rounded to bfloat16 for their products. A block of keys goes through its phases in loops of work that does not wait for
//! what came just before. Reading sets the time: keys and values of several heads are read in turns, because a processor
//! fetches few lines ahead in each place, and not beyond a small page.

use paceline_tiles::{INPUTS, SIDE, Square, Tiles};
use pulp::Simd;

use super::tile::{largest, total};
use super::{Attend, PassRows};
use crate::exponential::exponential;
use crate::{Element, matrix};

/// Keys that share a running maximum, at fixed positions.
const BLOCK: usize = 8 * INPUTS;
/// Columns of values that are multiplied at a time.
const COLUMNS: usize = 4 * SIDE;
/// Cached heads that are read in turns.
const HEADS: usize = 4;

/// The queries of a tile and their running softmax, and what a block of keys is computed in.
#[derive(Debug, Default)]
pub(super) struct Queries {
    rows: Vec<u16>,
    squares: Vec<Square>,
    // Of each query: the largest score so far, the sum of weights, and the weighted sum of values, columns as woven.
    maxima: [f32; SIDE],
    weights: [f32; SIDE],
    sums: Vec<[f32; SIDE]>,
    block: Block,
}

/// What becomes of a block of keys.
#[derive(Debug, Default)]
struct Block {
    // Sixteen keys or values that do not lie in one piece, or not all of them.
    copies: [Vec<u16>; 2],
    // `[key, query]`, for each sixteen keys.
    products: Vec<Square>,
    // `[query, key]`.
    scores: Vec<f32>,
    rounded: Vec<u16>,
    // For each `COLUMNS` columns of values, for each 32 keys.
    woven: Vec<[Square; 4]>,
}

/// The cache of a layer, values beside keys if they are not the first columns of them.
pub(super) type Cached<'a> = (&'a [u16], Option<&'a [u16]>);

/// Where keys or values of one head lie.
#[derive(Clone, Copy)]
struct Pool<'a> {
    slots: &'a [u16],
    // Columns that are meant, of so many.
    size: usize,
    stride: usize,
}

/// The queries of a tile: of a row, sharing a cached head, `count` from `first` on.
#[derive(Clone, Copy)]
struct Place {
    row: usize,
    kv_head: usize,
    first: usize,
    count: usize,
}

/// Keys `begin .. end` of a row, a block of them.
#[derive(Clone, Copy)]
struct Span {
    row: usize,
    begin: usize,
    end: usize,
}

impl Span {
    /// Whole lines of keys.
    fn key_count(self) -> usize {
        (self.end - self.begin).next_multiple_of(INPUTS)
    }

    /// Where the sixteen keys from `first` of the span on lie.
    fn runs(self, rows: &PassRows, first: usize) -> impl Iterator<Item = (usize, usize, usize)> {
        let begin = self.begin + first;
        rows.runs(self.row, begin.min(self.end), (begin + SIDE).min(self.end))
    }
}

/// Whether heads of these sizes are tiles.
pub(super) fn takes(key_size: usize, value_size: usize) -> bool {
    key_size > 0 && key_size.is_multiple_of(INPUTS) && value_size > 0 && value_size.is_multiple_of(COLUMNS)
}

impl Queries {
    fn begin(&mut self, count: usize, key_size: usize, value_size: usize) {
        self.rows.clear();
        self.rows.resize(count * key_size, 0);
        self.maxima = [f32::NEG_INFINITY; SIDE];
        self.weights = [0.0; SIDE];
        self.sums.clear();
        self.sums.resize(count * value_size / SIDE, [0.0; SIDE]);
        let Block { copies, products, scores, rounded, woven } = &mut self.block;
        for copy in copies {
            copy.resize(SIDE * key_size.max(value_size), 0);
        }
        products.resize(BLOCK / SIDE, Square::ZERO);
        scores.resize(SIDE * BLOCK, 0.0);
        rounded.resize(SIDE * BLOCK, 0);
        woven.resize(value_size / COLUMNS * (BLOCK / INPUTS), [Square::ZERO; 4]);
    }

    /// Products of keys and queries become scores.
    fn turn(&mut self, tiles: &Tiles, count: usize, keys: usize) {
        let Block { products, scores, .. } = &mut self.block;
        let mut turned = Square::ZERO;
        for (half, products) in products[..keys.div_ceil(SIDE)].iter().enumerate() {
            tiles.transpose(products, &mut turned);
            for (query, bits) in turned.0[..count].iter().enumerate() {
                let places = &mut scores[query * BLOCK + half * SIDE..][..SIDE];
                places.iter_mut().zip(bits).for_each(|(place, bits)| *place = f32::from_bits(*bits));
            }
        }
    }

    /// Scores of keys `from .. to` of a block of `keys` become the query's weights; gives what earlier sums are to be
    /// multiplied with.
    #[inline(always)]
    fn weigh<S: Simd>(&mut self, simd: S, query: usize, scale: f32, (from, to): (usize, usize), keys: usize) -> f32 {
        let row = &mut self.block.scores[query * BLOCK..][..keys];
        let rounded = &mut self.block.rounded[query * BLOCK..][..keys];
        if from >= to {
            rounded.fill(0);
            return 1.0;
        }
        row[..from].fill(f32::NEG_INFINITY);
        row[to..].fill(f32::NEG_INFINITY);
        for score in &mut row[from..to] {
            *score *= scale;
        }
        let maximum = largest(simd, row, self.maxima[query]);
        for score in row.iter_mut() {
            *score = exponential(*score - maximum);
        }
        row[..from].fill(0.0);
        row[to..].fill(0.0);
        let correction = exponential(self.maxima[query] - maximum);
        self.maxima[query] = maximum;
        self.weights[query] = self.weights[query] * correction + total(simd, row);
        for (place, weight) in rounded.iter_mut().zip(row) {
            *place = Element::from_f32(*weight);
        }
        correction
    }

    /// Adds products of weights with `COLUMNS` columns of values, to each query's sums times its correction.
    #[inline(always)]
    fn add(&mut self, products: &[Square; 4], corrections: &[f32], first: usize, blocks: usize) {
        for (query, correction) in corrections.iter().enumerate() {
            let sums = &mut self.sums[query * blocks + first..][..4];
            for (sums, products) in sums.iter_mut().zip(products) {
                for (sum, bits) in sums.iter_mut().zip(products.0[query]) {
                    *sum = *sum * correction + f32::from_bits(bits);
                }
            }
        }
    }
}

/// Sixteen rows: where they lie in the cache, or copied, with zeros for those that are not there.
#[inline(always)]
fn sixteen<'a>(pool: Pool<'a>, copy: &'a mut [u16], rows: &PassRows, span: Span, first: usize) -> &'a [u16] {
    let Pool { slots, size, stride } = pool;
    let mut runs = span.runs(rows, first);
    let mut next = runs.next();
    if let Some((_, slot, SIDE)) = next
        && size == stride
    {
        return &slots[slot * stride..][..SIDE * stride];
    }
    let copy = &mut copy[..SIDE * size];
    let mut copied = 0;
    while let Some((place, slot, count)) = next {
        for index in 0..count {
            let row = &slots[(slot + index) * stride..][..size];
            copy[(place + index) * size..][..size].copy_from_slice(row);
        }
        copied = place + count;
        next = runs.next();
    }
    copy[copied * size..].fill(0);
    copy
}

impl<E: Element> Attend<'_, E> {
    /// All queries of one row, as `kv_head` does it for each cached head without tiles.
    #[inline(always)]
    pub(super) fn row_tiled<S: Simd>(&mut self, simd: S, tiles: &mut Tiles, cached: Cached<'_>, row: usize) {
        let heads = self.shape.kv_head_count;
        let group = self.shape.head_count / heads;
        let query_count = self.rows.query_len(row) * group;
        let mut abreast = std::mem::take(&mut self.tile.queries_of_tiles);
        abreast.resize_with(HEADS, Queries::default);
        for kv_head in (0..heads).step_by(HEADS) {
            let abreast = &mut abreast[..HEADS.min(heads - kv_head)];
            for first in (0..query_count).step_by(SIDE) {
                let place = Place { row, kv_head, first, count: SIDE.min(query_count - first) };
                self.heads(simd, tiles, cached, place, abreast);
            }
        }
        self.tile.queries_of_tiles = abreast;
    }

    /// The queries at `place`, and those of as many heads after it as there are `abreast`.
    #[inline(always)]
    fn heads<S: Simd>(
        &mut self,
        simd: S,
        tiles: &mut Tiles,
        cached: Cached<'_>,
        place: Place,
        abreast: &mut [Queries],
    ) {
        let of_head = |index: usize| Place { kv_head: place.kv_head + index, ..place };
        for (index, queries) in abreast.iter_mut().enumerate() {
            self.load_queries(tiles, of_head(index), queries);
        }
        let group = self.shape.head_count / self.shape.kv_head_count;
        let kv_len = self.seen(place.row, (place.first + place.count - 1) / group).1;
        let mut begin = self.seen(place.row, place.first / group).0 / BLOCK * BLOCK;
        while begin < kv_len {
            let span = Span { row: place.row, begin, end: kv_len.min(begin + BLOCK) };
            for first in (0..span.key_count()).step_by(INPUTS) {
                for (index, queries) in abreast.iter_mut().enumerate() {
                    self.read(tiles, self.pools(cached, place.kv_head + index), span, first, queries);
                }
            }
            for queries in abreast.iter_mut() {
                self.attend_block(simd, tiles, span, place, queries);
            }
            begin += BLOCK;
        }
        for (index, queries) in abreast.iter().enumerate() {
            self.finish_queries(of_head(index), queries);
        }
    }

    /// The keys and the values of a cached head.
    #[inline(always)]
    fn pools<'a>(&self, (keys, values): Cached<'a>, kv_head: usize) -> [Pool<'a>; 2] {
        let (key_size, value_size) = (self.shape.key_size, self.shape.value_size);
        let of_head = |pool: &'a [u16], stride: usize| {
            let slots = self.rows.slot_count();
            &pool[kv_head * slots * stride..][..slots * stride]
        };
        let keys = Pool { slots: of_head(keys, key_size), size: key_size, stride: key_size };
        let values = match values {
            Some(pool) => Pool { slots: of_head(pool, value_size), size: value_size, stride: value_size },
            None => Pool { size: value_size, ..keys },
        };
        [keys, values]
    }

    #[inline(always)]
    fn load_queries(&self, tiles: &Tiles, place: Place, queries: &mut Queries) {
        let shape = self.shape;
        queries.begin(place.count, shape.key_size, shape.value_size);
        for (index, copy) in queries.rows.chunks_exact_mut(shape.key_size).enumerate() {
            let (token, head) = self.token_and_head(place, index);
            let heads = self.queries.row(token, shape.head_count * shape.key_size);
            let query = E::halves(&heads[head * shape.key_size..][..shape.key_size]);
            copy.copy_from_slice(query.expect("tiles are made of bfloat16"));
        }
        queries.squares.clear();
        matrix::pack(tiles, &queries.rows, shape.key_size, &mut queries.squares);
    }

    /// The token and the query head of query `index` of a tile.
    #[inline(always)]
    fn token_and_head(&self, place: Place, index: usize) -> (usize, usize) {
        let group = self.shape.head_count / self.shape.kv_head_count;
        let query = place.first + index;
        (self.rows.first_token(place.row) + query / group, place.kv_head * group + query % group)
    }

    /// Multiplies 32 keys, from `first` of the span on, and weaves their values.
    #[inline(always)]
    fn read(&self, tiles: &mut Tiles, [keys, values]: [Pool<'_>; 2], span: Span, first: usize, queries: &mut Queries) {
        let Queries { squares, block: Block { copies: [copy, other], products, woven, .. }, .. } = queries;
        let rows = self.rows;
        let two = [sixteen(keys, copy, rows, span, first), sixteen(keys, other, rows, span, first + SIDE)];
        tiles.multiply(two, two[0], squares, &mut products[first / SIDE..]);
        let two = [sixteen(values, copy, rows, span, first), sixteen(values, other, rows, span, first + SIDE)];
        for column in (0..values.size).step_by(COLUMNS) {
            let line = column / COLUMNS * (BLOCK / INPUTS) + first / INPUTS;
            tiles.weave(two, values.size, column, &mut woven[line]);
        }
    }

    /// What queries make of a block of keys that was read.
    #[inline(always)]
    fn attend_block<S: Simd>(&self, simd: S, tiles: &mut Tiles, span: Span, place: Place, queries: &mut Queries) {
        let (count, keys) = (place.count, span.key_count());
        queries.turn(tiles, count, keys);
        let group = self.shape.head_count / self.shape.kv_head_count;
        let mut corrections = [1.0; SIDE];
        for (query, correction) in corrections[..count].iter_mut().enumerate() {
            let (from, to) = self.seen(place.row, (place.first + query) / group);
            let within = |position: usize| position.clamp(span.begin, span.end) - span.begin;
            *correction = queries.weigh(simd, query, self.scale, (within(from), within(to)), keys);
        }
        let mut products = [Square::ZERO; 4];
        for columns in 0..self.shape.value_size / COLUMNS {
            let Block { rounded, woven, .. } = &queries.block;
            let woven = &woven[columns * (BLOCK / INPUTS)..][..keys / INPUTS];
            tiles.multiply_four(rounded, woven, &mut products);
            queries.add(&products, &corrections[..count], columns * 4, self.shape.value_size / SIDE);
        }
    }

    /// Writes the weighted means of values.
    #[inline(always)]
    fn finish_queries(&mut self, place: Place, queries: &Queries) {
        let shape = self.shape;
        let groups = shape.value_size / COLUMNS;
        for (index, sums) in queries.sums.chunks_exact(4 * groups).enumerate() {
            let factor = 1.0 / queries.weights[index];
            let (token, head) = self.token_and_head(place, index);
            let start = ((token - self.first_token) * shape.head_count + head) * shape.value_size;
            let output = &mut self.output[start..start + shape.value_size];
            for (places, sums) in output.as_chunks_mut::<COLUMNS>().0.iter_mut().zip(sums.as_chunks::<4>().0) {
                for (place, sum) in places.iter_mut().zip(in_order(sums)) {
                    *place = E::from_f32(sum * factor);
                }
            }
        }
    }
}

/// Columns as they were before weaving, which puts 0-3, 8-11, 16-19 and 24-27 of each 32 into one square, the others into
/// the next.
#[inline(always)]
fn in_order(woven: &[[f32; SIDE]; 4]) -> [f32; COLUMNS] {
    let mut columns = [0.0; COLUMNS];
    for (square, sums) in woven.iter().enumerate() {
        for (four, sums) in sums.as_chunks::<4>().0.iter().enumerate() {
            columns[square / 2 * INPUTS + square % 2 * 4 + four * 8..][..4].copy_from_slice(sums);
        }
    }
    columns
}
