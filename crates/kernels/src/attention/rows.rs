//! The rows of a pass as attention reads them: checked once, then indexed without doubt in every layer.

use std::ops::Range;

/// An array of the pass that does not fit the cache or the other arrays.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// A number is outside of what it may be.
    #[error("{what}: expected {expected} at most, got {got}")]
    TooMuch {
        /// What the number is.
        what: &'static str,
        /// The limit.
        expected: i64,
        /// The number.
        got: i64,
    },
    /// A number is below what it must be.
    #[error("{what}: expected {expected} at least, got {got}")]
    TooLittle {
        /// What the number is.
        what: &'static str,
        /// The limit.
        expected: i64,
        /// The number.
        got: i64,
    },
}

/// Queries of a row that stay together when rows are shared out.
const PIECE: usize = 16;

/// Queries that a key could be multiplied with while it is read, and keys while a query is begun and finished: of 64 columns
/// in bfloat16, a row of one query and 160 keys takes 4.5 us for each cached head, a prompt's query of 3 heads 0.3 and 2.6 ns
/// for each key.
const READING: usize = 8;
const BESIDE: usize = 100;
/// Keys that are looked up at a time.
const SIXTEEN: usize = 16;
/// Keys that do not lie in one piece.
const SCATTERED: usize = usize::MAX;

/// Rows, where their keys lie, and where new tokens are written.
#[derive(Debug)]
pub struct PassRows {
    block_count: usize,
    block_size: usize,
    // First token of each row, and one more entry.
    starts: Vec<usize>,
    kv_lens: Vec<usize>,
    // Blocks of all rows, as many for each as its keys take.
    blocks: Vec<usize>,
    // First entry of each row in `blocks`.
    block_starts: Vec<usize>,
    // Slots of the first of each sixteen keys, `SCATTERED` where they do not follow each other; where each row begins.
    sixteens: Vec<usize>,
    sixteen_starts: Vec<usize>,
    // Token and slot of every write.
    writes: Vec<(usize, usize)>,
    input_count: usize,
}

impl PassRows {
    pub(super) fn new(block_count: usize, block_size: usize) -> Self {
        assert!(block_size > 0, "a block holds tokens");
        Self {
            block_count,
            block_size,
            starts: vec![0],
            kv_lens: Vec::new(),
            blocks: Vec::new(),
            block_starts: Vec::new(),
            sixteens: Vec::new(),
            sixteen_starts: Vec::new(),
            writes: Vec::new(),
            input_count: 0,
        }
    }

    /// Takes the arrays of a pass: `query_start_loc` of `rows + 1`, `kv_lens` of `rows`, `block_table` of `rows` times
    /// `table_width`, and the write slot of every token that the network runs, -1 for none.
    ///
    /// # Errors
    /// For the first number that the cache or another array does not allow.
    pub fn set(
        &mut self,
        query_start_loc: &[i32],
        kv_lens: &[i32],
        block_table: &[i32],
        table_width: usize,
        slots: &[i64],
    ) -> Result<(), Error> {
        let (rows, tokens) = (kv_lens.len(), slots.len());
        at_most("entries of query_start_loc", rows + 1, query_start_loc.len() as i64)?;
        at_least("entries of query_start_loc", rows as i64 + 1, query_start_loc.len() as i64)?;
        at_least("entries of the block table", (rows * table_width) as i64, block_table.len() as i64)?;
        self.starts.clear();
        let mut previous = 0;
        for &start in query_start_loc {
            at_least("query_start_loc", previous, start.into())?;
            previous = start.into();
            self.starts.push(at_most("query_start_loc", tokens, start.into())?);
        }
        self.kv_lens.clear();
        self.blocks.clear();
        self.block_starts.clear();
        for (row, &kv_len) in kv_lens.iter().enumerate() {
            let query_len = self.starts[row + 1] - self.starts[row];
            at_least("kv_len", query_len as i64, kv_len.into())?;
            let kv_len = at_most("kv_len", table_width * self.block_size, kv_len.into())?;
            self.kv_lens.push(kv_len);
            self.block_starts.push(self.blocks.len());
            for &block in &block_table[row * table_width..][..kv_len.div_ceil(self.block_size)] {
                self.blocks.push(below("block id", self.block_count, block.into())?);
            }
        }
        self.find_sixteens();
        self.input_count = tokens;
        self.writes.clear();
        for (token, &slot) in slots.iter().enumerate() {
            if slot != -1 {
                self.writes.push((token, below("slot", self.slot_count(), slot)?));
            }
        }
        Ok(())
    }

    fn find_sixteens(&mut self) {
        let mut sixteens = std::mem::take(&mut self.sixteens);
        sixteens.clear();
        self.sixteen_starts.clear();
        for (row, &kv_len) in self.kv_lens.iter().enumerate() {
            self.sixteen_starts.push(sixteens.len());
            for begin in (0..kv_len).step_by(SIXTEEN) {
                let mut first = None;
                let mut runs = self.runs(row, begin, kv_len.min(begin + SIXTEEN));
                let follow = runs.all(|(place, slot, _)| slot == *first.get_or_insert(slot) + place);
                sixteens.push(first.filter(|_| follow).unwrap_or(SCATTERED));
            }
        }
        self.sixteens = sixteens;
    }

    /// The slot of the first of the sixteen keys from `16 * index` on, if all that the row has of them follow each other.
    #[inline(always)]
    pub(super) fn sixteen(&self, row: usize, index: usize) -> Option<usize> {
        let slot = self.sixteens[self.sixteen_starts[row] + index];
        (slot != SCATTERED).then_some(slot)
    }

    pub(super) fn count(&self) -> usize {
        self.kv_lens.len()
    }

    pub(super) fn input_count(&self) -> usize {
        self.input_count
    }

    /// Tokens of the rows.
    pub(super) fn token_count(&self) -> usize {
        self.starts.last().copied().unwrap_or(0)
    }

    /// Products of a query with a key, those of rows of more than `query_len_max` queries left out.
    pub(super) fn work(&self, query_len_max: usize) -> usize {
        let taken = (0..self.count()).filter(|&row| self.query_len(row) <= query_len_max);
        taken.map(|row| self.query_len(row) * self.kv_len(row)).sum()
    }

    /// Pieces of the rows, which are not cut further.
    pub(super) fn piece_count(&self) -> usize {
        (0..self.count()).map(|row| self.query_len(row).div_ceil(PIECE)).sum()
    }

    /// Where each piece ends, and about how long it takes, in products of a query with a key.
    fn pieces(&self, query_len_max: usize) -> impl Iterator<Item = (usize, usize)> {
        (0..self.count()).flat_map(move |row| {
            let query_len = self.query_len(row);
            (0..query_len).step_by(PIECE).map(move |first| {
                let end = query_len.min(first + PIECE);
                let (count, seen) = (end - first, self.kv_len(row) - query_len + end);
                let cost = if query_len > query_len_max { 0 } else { (READING + count) * seen + BESIDE * count };
                (self.first_token(row) + end, cost)
            })
        })
    }

    /// All tokens as `count` ranges that take about as long, some of them empty; rows of many queries are cut.
    pub(super) fn shares(&self, count: usize, query_len_max: usize) -> impl Iterator<Item = Range<usize>> {
        let total: usize = self.pieces(query_len_max).map(|(_, cost)| cost).sum();
        let mut pieces = self.pieces(query_len_max);
        let (mut end, mut done) = (0, 0);
        (1..=count).map(move |part| {
            let start = end;
            while part == count || done * count < total * part {
                let Some((piece_end, cost)) = pieces.next() else { break };
                (end, done) = (piece_end, done + cost);
            }
            start..end
        })
    }

    /// The rows of some tokens, each with those of its own that are among them, counted in the row.
    pub(super) fn rows_of(&self, tokens: Range<usize>) -> impl Iterator<Item = (usize, Range<usize>)> {
        let first = self.starts.partition_point(|&start| start <= tokens.start).saturating_sub(1);
        let rows = (first..self.count()).take_while(move |&row| self.starts[row] < tokens.end);
        rows.map(move |row| {
            let (start, end) = (self.starts[row], self.starts[row + 1]);
            (row, tokens.start.max(start) - start..tokens.end.min(end) - start)
        })
    }

    pub(super) fn slot_count(&self) -> usize {
        self.block_count * self.block_size
    }

    pub(super) fn first_token(&self, row: usize) -> usize {
        self.starts[row]
    }

    pub(super) fn query_len(&self, row: usize) -> usize {
        self.starts[row + 1] - self.starts[row]
    }

    pub(super) fn kv_len(&self, row: usize) -> usize {
        self.kv_lens[row]
    }

    /// Token and slot of every write.
    pub(super) fn writes(&self) -> impl Iterator<Item = (usize, usize)> {
        self.writes.iter().copied()
    }

    /// Where positions `begin .. end` of a row lie: place after `begin`, slot, count. One entry for each block.
    pub(super) fn runs(&self, row: usize, begin: usize, end: usize) -> impl Iterator<Item = (usize, usize, usize)> {
        let blocks = &self.blocks[self.block_starts[row]..];
        let size = self.block_size;
        (begin / size..end.div_ceil(size)).map(move |index| {
            let (from, to) = (begin.max(index * size), end.min((index + 1) * size));
            (from - begin, blocks[index] * size + (from - index * size), to - from)
        })
    }
}

fn at_least(what: &'static str, limit: i64, got: i64) -> Result<(), Error> {
    if got < limit { Err(Error::TooLittle { what, expected: limit, got }) } else { Ok(()) }
}

/// `got` as an index or a length, if it lies in `0 ..= limit`.
fn at_most(what: &'static str, limit: usize, got: i64) -> Result<usize, Error> {
    at_least(what, 0, got)?;
    usize::try_from(got).ok().filter(|&number| number <= limit).ok_or(Error::TooMuch {
        what,
        expected: limit as i64,
        got,
    })
}

/// `got` as an index, if it lies in `0 .. limit`.
fn below(what: &'static str, limit: usize, got: i64) -> Result<usize, Error> {
    at_least(what, 0, got)?;
    usize::try_from(got).ok().filter(|&number| number < limit).ok_or(Error::TooMuch {
        what,
        expected: limit as i64 - 1,
        got,
    })
}
