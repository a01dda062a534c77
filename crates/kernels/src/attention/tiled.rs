//! Attention in bfloat16 with matrix instructions, for any number of queries.
//!
//! Queries that share a cached head go in tiles of sixteen. Keys come in blocks at fixed positions: the values of a block
//! are woven into pairs of keys once, for all tiles that see them, and weights are rounded to bfloat16 for their products.
//! A single tile takes its keys as they lie in the cache, as the rows of a product; for more of them the keys are turned
//! into inputs once. Either way gives the same, bit for bit. Reading sets the time of few queries: while a block is
//! computed, what comes after it is fetched.

mod ahead;
mod block;
mod running;

use std::ops::Range;

use paceline_tiles::{INPUTS, SIDE, Square, Tiles};
use pulp::Simd;

use self::ahead::Ahead;
use self::block::{BLOCK, Block, COLUMNS, Pool, Span};
use self::running::Running;
use super::{Attend, Shape};
use crate::Element;

/// Bytes of weighted sums of the tiles that go through the blocks together: they stay in a core's second cache.
const SUM_BYTES: usize = 1 << 18;

/// Tiles of queries that share a cached head, and what a block of keys is computed in.
#[derive(Debug, Default)]
pub(super) struct Workspace {
    tiles: Vec<TileOfQueries>,
    block: Block,
    scores: Vec<Square>,
    // `[query, key]` of a tile, as `rounded`.
    weights: Vec<f32>,
    // `[query, key]`, from the first line of keys that the tile sees on.
    rounded: Vec<u16>,
}

/// Up to sixteen queries and their running softmax.
#[derive(Debug, Default)]
struct TileOfQueries {
    rows: Vec<u16>,
    squares: Vec<Square>,
    running: Running,
}

/// The cache of a layer, values beside keys if they are not the first columns of them.
pub(super) type Cached<'a> = (&'a [u16], Option<&'a [u16]>);

/// The queries of a tile: of a row, sharing a cached head, `count` from `first` of the row on.
#[derive(Clone, Copy)]
struct Place {
    row: usize,
    kv_head: usize,
    first: usize,
    count: usize,
}

impl Place {
    /// Tile `index` of these queries.
    #[inline(always)]
    fn tile(self, index: usize) -> Self {
        Self { first: self.first + index * SIDE, count: SIDE.min(self.count - index * SIDE), ..self }
    }
}

/// Whether heads of these sizes are tiles.
pub(super) fn takes(key_size: usize, value_size: usize) -> bool {
    key_size > 0 && key_size.is_multiple_of(INPUTS) && value_size > 0 && value_size.is_multiple_of(COLUMNS)
}

impl Workspace {
    fn begin(&mut self, tile_count: usize, key_size: usize, value_size: usize) {
        self.tiles.resize_with(tile_count, TileOfQueries::default);
        self.block.begin(key_size, value_size);
        self.scores.resize(BLOCK / SIDE, Square::ZERO);
        self.weights.resize(SIDE * BLOCK, 0.0);
        self.rounded.resize(SIDE * BLOCK, 0);
    }
}

impl<E: Element> Attend<'_, E> {
    /// Queries of some tokens of one row, as `kv_head` does it without tiles.
    #[inline(always)]
    pub(super) fn row_tiled<S: Simd>(
        &mut self,
        simd: S,
        tiles: &mut Tiles,
        cached: Cached<'_>,
        row: usize,
        tokens: Range<usize>,
    ) {
        let Shape { kv_head_count, head_count, .. } = self.shape;
        let group = head_count / kv_head_count;
        let (first, end) = (tokens.start * group, tokens.end * group);
        let band = (SUM_BYTES / (SIDE * self.shape.value_size * size_of::<f32>())).max(1) * SIDE;
        let mut workspace = std::mem::take(&mut self.tile.workspace_of_tiles);
        for kv_head in 0..kv_head_count {
            for first in (first..end).step_by(band) {
                let place = Place { row, kv_head, first, count: band.min(end - first) };
                self.band(simd, tiles, cached, place, &mut workspace);
            }
        }
        self.tile.workspace_of_tiles = workspace;
    }

    /// The queries at `place`, any number of tiles, through all blocks of their keys.
    #[inline(always)]
    fn band<S: Simd>(
        &mut self,
        simd: S,
        tiles: &mut Tiles,
        cached: Cached<'_>,
        place: Place,
        workspace: &mut Workspace,
    ) {
        workspace.begin(place.count.div_ceil(SIDE), self.shape.key_size, self.shape.value_size);
        let is_single = workspace.tiles.len() == 1;
        for (index, queries) in workspace.tiles.iter_mut().enumerate() {
            self.load_queries(tiles, place.tile(index), is_single, queries);
        }
        let pools = self.pools(cached, place.kv_head);
        let mut products = [Square::ZERO; 4];
        let mut next = Some(self.first_span(place));
        while let Some(span) = next {
            next = span.next(self.seen_by(place).1);
            let mut ahead = self.ahead(cached, place, next.as_ref());
            let Workspace { tiles: queries, block, scores, weights, rounded } = &mut *workspace;
            let (keys, values) = ((&pools[0], self.rows, &span), (&pools[1], self.rows, &span));
            if let [TileOfQueries { squares, running, .. }] = &mut queries[..] {
                block.multiply(tiles, keys, (squares, place.count), scores, &mut ahead);
                let what = (place, &span, &span.lines());
                let corrections = self.weigh(simd, tiles, what, scores, (weights, rounded), running, &mut ahead);
                for columns in 0..self.shape.value_size / COLUMNS {
                    block.add_up(tiles, values, columns, rounded, &mut products, &mut ahead);
                    running.add(&products, &corrections[..place.count], columns, self.shape.value_size);
                }
                continue;
            }
            block.turn_keys(tiles, keys);
            block.weave(tiles, values);
            for (index, TileOfQueries { rows, running, .. }) in queries.iter_mut().enumerate() {
                let place = place.tile(index);
                let lines = span.lines_of(self.seen_by(place));
                if lines.is_empty() {
                    continue;
                }
                block.score(tiles, rows, self.shape.key_size, lines.clone(), scores);
                let what = (place, &span, &lines);
                let corrections = self.weigh(simd, tiles, what, scores, (weights, rounded), running, &mut ahead);
                for columns in 0..self.shape.value_size / COLUMNS {
                    tiles.multiply_four(rounded, block.woven(columns, lines.clone()), &mut products);
                    running.add(&products, &corrections[..place.count], columns, self.shape.value_size);
                    ahead.step(tiles);
                }
            }
        }
        for (index, queries) in workspace.tiles.iter().enumerate() {
            self.finish_queries(tiles, place.tile(index), &queries.running);
        }
    }

    /// Scores of some lines of keys become weights of the queries at `place`, `rounded` from the first of the lines on. Gives
    /// what earlier sums are to be multiplied with.
    #[inline(always)]
    #[expect(clippy::too_many_arguments, reason = "each is one thing that weights are made of")]
    fn weigh<S: Simd>(
        &self,
        simd: S,
        tiles: &Tiles,
        (place, span, lines): (Place, &Span, &Range<usize>),
        scores: &[Square],
        (weights, rounded): (&mut [f32], &mut [u16]),
        running: &mut Running,
        ahead: &mut Ahead<'_>,
    ) -> [f32; SIDE] {
        let mut added = running.added();
        let (keys, factor) = (lines.len() * INPUTS, self.scale * std::f32::consts::LOG2_E);
        // In two loops, so that a query's sums do not wait for its own largest score.
        for query in 0..place.count {
            let seen = span.within(self.seen_by(Place { first: place.first + query, count: 1, ..place }), lines);
            added.scale(simd, query, (scores, lines.start), factor, seen, &mut weights[query * BLOCK..][..keys]);
            ahead.step(tiles);
        }
        for query in 0..place.count {
            let weights = &mut weights[query * BLOCK..][..keys];
            added.weigh(simd, query, weights);
            tiles.narrow(weights, &mut rounded[query * BLOCK..][..keys]);
            ahead.step(tiles);
        }
        running.correct(simd, &added)
    }

    /// The keys that the queries at `place` see between them.
    #[inline(always)]
    fn seen_by(&self, place: Place) -> (usize, usize) {
        let group = self.shape.head_count / self.shape.kv_head_count;
        let (first, last) = (place.first / group, (place.first + place.count - 1) / group);
        (self.seen(place.row, first).0, self.seen(place.row, last).1)
    }

    fn first_span(&self, place: Place) -> Span {
        Span::first(place.row, self.seen_by(place))
    }

    /// What is read after a block: the `next` of the row, or the next cached head, or the next row.
    #[inline(always)]
    fn ahead<'a>(&'a self, cached: Cached<'a>, place: Place, next: Option<&Span>) -> Ahead<'a> {
        let Place { row, kv_head, .. } = place;
        if next.is_some() {
            return Ahead::new(self.rows, self.pools(cached, kv_head), next);
        }
        if kv_head + 1 < self.shape.kv_head_count {
            return Ahead::new(self.rows, self.pools(cached, kv_head + 1), Some(&self.first_span(place)));
        }
        let row = row + 1;
        let is_ours = row < self.rows.count() && self.rows.first_token(row) < self.share.end;
        let is_read = is_ours && (1..=self.query_len_max).contains(&self.rows.query_len(row));
        let span = is_read.then(|| Span::first(row, (self.seen(row, 0).0, self.rows.kv_len(row))));
        Ahead::new(self.rows, self.pools(cached, 0), span.as_ref())
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
    fn load_queries(&self, tiles: &Tiles, place: Place, is_single: bool, queries: &mut TileOfQueries) {
        let shape = self.shape;
        queries.running.begin(place.count, shape.value_size);
        queries.rows.resize(SIDE * shape.key_size, 0);
        queries.rows[place.count * shape.key_size..].fill(0);
        for (index, copy) in queries.rows.chunks_exact_mut(shape.key_size).take(place.count).enumerate() {
            let (token, head) = self.token_and_head(place, index);
            let heads = self.queries.row(token, shape.head_count * shape.key_size);
            let query = E::halves(&heads[head * shape.key_size..][..shape.key_size]);
            copy.copy_from_slice(query.expect("tiles are made of bfloat16"));
        }
        if !is_single {
            return;
        }
        queries.squares.resize(shape.key_size / INPUTS, Square::ZERO);
        for (line, square) in queries.squares.iter_mut().enumerate() {
            tiles.turn(&queries.rows, shape.key_size, line * INPUTS, square);
        }
    }

    /// The token and the query head of query `index` of a tile.
    #[inline(always)]
    fn token_and_head(&self, place: Place, index: usize) -> (usize, usize) {
        let group = self.shape.head_count / self.shape.kv_head_count;
        let query = place.first + index;
        (self.rows.first_token(place.row) + query / group, place.kv_head * group + query % group)
    }

    /// Writes the weighted means of values.
    #[inline(always)]
    fn finish_queries(&mut self, tiles: &Tiles, place: Place, running: &Running) {
        let shape = self.shape;
        for index in 0..place.count {
            let (token, head) = self.token_and_head(place, index);
            let start = ((token - self.share.start) * shape.head_count + head) * shape.value_size;
            let output = E::halves_mut(&mut self.output[start..start + shape.value_size]);
            running.finish(tiles, index, output.expect("tiles are made of bfloat16"));
        }
    }
}
