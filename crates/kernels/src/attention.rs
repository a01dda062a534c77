//! Attention over the paged cache, read where it lies: no row's keys are gathered.
//!
//! All heads that share a key are taken together, so each key is read once for them. Keys come in chunks that begin at fixed
//! positions, with a running softmax: what a query gives depends neither on the other rows nor on how many queries its row
//! has. With matrix instructions rows may have any number of queries; with vectors it is meant for rows of few, decode rows
//! and those that verify drafts.

mod rows;
mod tile;
mod tiled;

use std::ops::Range;

use paceline_tiles::Tiles;
use pulp::{Arch, Simd, WithSimd};

pub use rows::{Error, PassRows};
use tile::{CHUNK, Tile};

use crate::{Element, crew, has_matrix_instructions};

/// Heads and their sizes, in elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Query heads.
    pub head_count: usize,
    /// Heads that are cached; query heads share them in order.
    pub kv_head_count: usize,
    /// Columns of a query and of a key.
    pub key_size: usize,
    /// Columns of a value.
    pub value_size: usize,
}

/// Some columns of a matrix: rows of `row_width` elements, from column `first` on.
#[derive(Clone, Copy, Debug)]
pub struct Heads<'a, E> {
    /// The whole matrix.
    pub data: &'a [E],
    /// Elements of a row.
    pub row_width: usize,
    /// The first column that is meant.
    pub first: usize,
}

impl<E> Heads<'_, E> {
    /// `width` columns of row `row`.
    #[inline(always)]
    fn row(&self, row: usize, width: usize) -> &[E] {
        let start = row * self.row_width + self.first;
        &self.data[start..start + width]
    }
}

/// Whether rows of many queries are worth giving to [`Attention`], for bfloat16 heads of these sizes.
pub fn takes_long_rows(key_size: usize, value_size: usize) -> bool {
    tiled::takes(key_size, value_size) && has_matrix_instructions()
}

/// Attention of one worker: the rows of the pass, and memory that is used again in every layer.
#[derive(Debug)]
pub struct Attention {
    rows: PassRows,
    // One for each part that is computed side by side.
    tiles: Vec<Tile>,
}

impl Attention {
    /// Over a cache of `block_count` blocks of `block_size` tokens, the null block included.
    pub fn new(block_count: usize, block_size: usize) -> Self {
        Self { rows: PassRows::new(block_count, block_size), tiles: vec![Tile::default()] }
    }

    /// The rows of the pass, to be set before any layer.
    pub fn rows_mut(&mut self) -> &mut PassRows {
        &mut self.rows
    }

    /// Tokens that the network runs in this pass, padding of its inputs included.
    pub fn input_count(&self) -> usize {
        self.rows.input_count()
    }

    /// Writes the new keys or values of this pass into `pool`, `[kv heads, slots, size]`. Tokens without a slot are not
    /// written anywhere.
    ///
    /// # Panics
    /// If `pool` or `new` is too short.
    pub fn store<E: Element>(&self, pool: &mut [E], kv_head_count: usize, size: usize, new: Heads<'_, E>) {
        let head_stride = self.rows.slot_count() * size;
        for (token, slot) in self.rows.writes() {
            let row = new.row(token, kv_head_count * size);
            for (head, vector) in row.chunks_exact(size).enumerate() {
                let start = head * head_stride + slot * size;
                pool[start..start + size].copy_from_slice(vector);
            }
        }
    }

    /// Writes the keys and values in `heads [tokens, (head_count + 2 * kv_head_count) * size]`, which come behind the queries, and
    /// attends; keys and values are of one `size`. The rest is as [`Self::attend`] takes it.
    ///
    /// # Panics
    /// If a slice is shorter than the rows say.
    #[expect(clippy::too_many_arguments, reason = "each is a tensor or a number of the layer")]
    pub fn attend_heads<E: Element>(
        &mut self,
        shape: Shape,
        heads: &[E],
        keys: &mut [E],
        values: &mut [E],
        scale: f32,
        window: usize,
        query_len_max: usize,
        output: &mut [E],
    ) {
        let Shape { head_count, kv_head_count, key_size: size, .. } = shape;
        let row_width = (head_count + 2 * kv_head_count) * size;
        let part = |first: usize| Heads { data: heads, row_width, first: first * size };
        self.store(keys, kv_head_count, size, part(head_count));
        self.store(values, kv_head_count, size, part(head_count + kv_head_count));
        self.attend(shape, part(0), keys, Some(values), scale, window, query_len_max, output);
    }

    /// Attends for every row of at most `query_len_max` queries; gives `[tokens, heads * value_size]` in `output`.
    ///
    /// Tokens that belong to no row get zeros, those of longer rows are left as they are. `keys` and `values` are pools
    /// `[kv heads, slots, size]`; without `values`, a value is the first columns of its key. `scale` multiplies the
    /// scores; a query sees `window` keys, all if that is 0.
    ///
    /// # Panics
    /// If a slice is shorter than the rows say.
    #[expect(clippy::too_many_arguments, reason = "each is a tensor or a number of the layer")]
    pub fn attend<E: Element>(
        &mut self,
        shape: Shape,
        queries: Heads<'_, E>,
        keys: &[E],
        values: Option<&[E]>,
        scale: f32,
        window: usize,
        query_len_max: usize,
        output: &mut [E],
    ) {
        let output_width = shape.head_count * shape.value_size;
        let Self { rows, tiles } = self;
        output[rows.token_count() * output_width..].fill(E::ZERO);
        let read = rows.work(query_len_max) * shape.kv_head_count * (shape.key_size + shape.value_size);
        let parts = crew::parts(rows.piece_count(), read);
        if tiles.len() < parts {
            tiles.resize_with(parts, Tile::default);
        }
        let mut rest = output;
        let tasks = rows.shares(parts, query_len_max).zip(tiles).map(|(share, tile)| {
            let (output, others) = std::mem::take(&mut rest).split_at_mut(share.len() * output_width);
            rest = others;
            let rows: &PassRows = rows;
            let call = Attend { rows, tile, share, shape, queries, keys, values, scale, window, query_len_max, output };
            move || Arch::new().dispatch(call)
        });
        crew::run(tasks);
    }
}

struct Attend<'a, E> {
    rows: &'a PassRows,
    tile: &'a mut Tile,
    // The tokens that are meant, the first of them the first of `output`.
    share: Range<usize>,
    shape: Shape,
    queries: Heads<'a, E>,
    keys: &'a [E],
    values: Option<&'a [E]>,
    scale: f32,
    window: usize,
    query_len_max: usize,
    output: &'a mut [E],
}

impl<E: Element> WithSimd for Attend<'_, E> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(mut self, simd: S) {
        let (keys, values) = (E::halves(self.keys), self.values.and_then(E::halves));
        let is_tiled = tiled::takes(self.shape.key_size, self.shape.value_size);
        let mut tiles = if is_tiled && keys.is_some() { Tiles::new() } else { None };
        let rows = self.rows;
        for (row, tokens) in rows.rows_of(self.share.clone()) {
            if tokens.is_empty() || rows.query_len(row) > self.query_len_max {
                continue;
            }
            if let (Some(tiles), Some(keys)) = (&mut tiles, keys) {
                self.row_tiled(simd, tiles, (keys, values), row, tokens);
                continue;
            }
            for kv_head in 0..self.shape.kv_head_count {
                self.kv_head(simd, row, tokens.clone(), kv_head);
            }
        }
    }
}

impl<E: Element> Attend<'_, E> {
    /// The keys that query `token` of a row sees: they end behind its own, and begin a window before that.
    #[inline(always)]
    fn seen(&self, row: usize, token: usize) -> (usize, usize) {
        let end = self.rows.kv_len(row) - self.rows.query_len(row) + token + 1;
        (if self.window == 0 { 0 } else { end.saturating_sub(self.window) }, end)
    }

    /// Queries of some tokens of one row that share one cached head.
    #[inline(always)]
    fn kv_head<S: Simd>(&mut self, simd: S, row: usize, tokens: Range<usize>, kv_head: usize) {
        let shape = self.shape;
        let group = shape.head_count / shape.kv_head_count;
        let (first_token, kv_len) = (self.rows.first_token(row) + tokens.start, self.seen(row, tokens.end - 1).1);
        self.tile.begin(tokens.len() * group, shape.key_size, shape.value_size);
        for token in 0..tokens.len() {
            let heads = self.queries.row(first_token + token, shape.head_count * shape.key_size);
            for index in 0..group {
                let start = (kv_head * group + index) * shape.key_size;
                self.tile.set_query(token * group + index, &heads[start..start + shape.key_size], self.scale);
            }
        }
        let slots = self.rows.slot_count();
        let keys = &self.keys[kv_head * slots * shape.key_size..][..slots * shape.key_size];
        let (values, value_stride) = match self.values {
            Some(pool) => (&pool[kv_head * slots * shape.value_size..][..slots * shape.value_size], shape.value_size),
            None => (keys, shape.key_size),
        };
        let mut begin = self.seen(row, tokens.start).0 / CHUNK * CHUNK;
        while begin < kv_len {
            let end = kv_len.min(begin + CHUNK);
            for (place, slot, count) in self.rows.runs(row, begin, end) {
                self.tile.load_keys(
                    place,
                    &keys[slot * shape.key_size..(slot + count) * shape.key_size],
                    shape.key_size,
                );
                let rows = &values[slot * value_stride..(slot + count) * value_stride];
                self.tile.load_values(place, rows, shape.value_size, value_stride);
            }
            for token in 0..tokens.len() {
                let (from, to) = self.seen(row, tokens.start + token);
                let (from, to) = (from.clamp(begin, end) - begin, to.clamp(begin, end) - begin);
                for query in token * group..(token + 1) * group {
                    if from < to {
                        self.tile.attend(simd, query, from, to);
                    }
                }
            }
            begin = end;
        }
        let output_width = shape.head_count * shape.value_size;
        for token in 0..tokens.len() {
            for index in 0..group {
                let start = (first_token - self.share.start + token) * output_width
                    + (kv_head * group + index) * shape.value_size;
                self.tile.finish(token * group + index, &mut self.output[start..start + shape.value_size]);
            }
        }
    }
}
