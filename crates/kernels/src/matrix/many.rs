//! Products of many rows: time is set by arithmetic, and by what it has to wait for.
//!
//! The weights of 32 outputs stay in the first cache, and all rows pass by them. Beside the arithmetic the weights that follow
//! are fetched, evenly, and the lines that sums are written to.

use paceline_tiles::{INPUTS, SIDE, Square, Tiles};

use super::{OUTPUTS, Work};

/// Least rows: those of a second pair of squares.
const ROWS_MIN: usize = 2 * SIDE + 1;
/// Rows of two squares.
const ROWS: usize = 2 * SIDE;
/// Places of the next weights that are fetched side by side: a processor fetches few lines ahead of use in each.
const PLACES: usize = 8;
/// Lines that are fetched of a place before the next one has its turn.
const LINES: usize = 4;

/// Whether so many outputs of so many rows are computed here. Their bits are the same elsewhere.
pub(super) fn takes(rows: usize, outputs: usize) -> bool {
    rows >= ROWS_MIN && outputs >= OUTPUTS
}

/// The weights of the 32 outputs that follow, fetched evenly over all steps of those before them.
struct Ahead<'a> {
    weights: &'a [u16],
    // Lines to fetch.
    count: usize,
    // Of one output.
    lines: usize,
    fetched: usize,
    step: usize,
    steps: usize,
}

impl Ahead<'_> {
    fn step(&mut self) {
        self.step += 1;
        let end = self.count * self.step;
        while self.fetched * self.steps < end {
            let (turn, place) = (self.fetched / LINES / PLACES, self.fetched / LINES % PLACES);
            let line = place * (OUTPUTS / PLACES) * self.lines + turn * LINES + self.fetched % LINES;
            Tiles::fetch_line(self.weights, line);
            self.fetched += 1;
        }
    }
}

impl Work<'_, '_> {
    /// All outputs of all rows.
    pub(super) fn multiply_many(&mut self, tiles: &mut Tiles, squares: &[Square]) {
        let outputs = self.section.outputs(self.inputs);
        for first in (0..outputs).step_by(OUTPUTS) {
            // The last ones are taken together with some before them, which come out the same once more.
            self.panel(tiles, first.min(outputs - OUTPUTS), squares);
        }
    }

    /// 32 outputs of all rows.
    fn panel(&mut self, tiles: &mut Tiles, first: usize, squares: &[Square]) {
        let (inputs, lines) = (self.inputs, self.inputs / INPUTS);
        let (weights, next) = self.section.part.weight[first * inputs..].split_at(OUTPUTS * inputs);
        let halves = [&weights[..SIDE * inputs], &weights[SIDE * inputs..]];
        let biases = self.section.bias_of(first);
        let steps = squares.len().div_ceil(2 * lines) * lines;
        let count = if next.is_empty() { 0 } else { OUTPUTS * lines };
        let mut ahead = Ahead { weights: next, count, lines, fetched: 0, step: 0, steps };
        let mut sums = [Square::ZERO; 4];
        for (pair, rows) in squares.chunks(2 * lines).zip(self.section.product.chunks_mut(ROWS)) {
            let (x, y) = pair.split_at(lines);
            if y.is_empty() {
                tiles.multiply(halves, weights, x, &mut sums);
                tiles.round_into([&sums[0], &sums[1]], &biases, rows, first);
                continue;
            }
            let each = rows.len().div_ceil(lines);
            tiles.multiply_beside(halves, [x, y], &mut sums, |step| {
                for row in rows.iter_mut().skip(step * each).take(each) {
                    Tiles::fetch_to_write(&mut row[first..]);
                }
                ahead.step();
            });
            let (upper, lower) = rows.split_at_mut(SIDE);
            tiles.round_into([&sums[0], &sums[2]], &biases, upper, first);
            tiles.round_into([&sums[1], &sums[3]], &biases, lower, first);
        }
    }
}
