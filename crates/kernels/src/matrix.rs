//! Products with matrix instructions, from weights as checkpoints store them, for any number of rows.
//!
//! Sixteen outputs times a line of inputs are a tile as they lie in memory, so that a thread reads the weights as one
//! stream, once for up to 32 rows; with more, it matters as much what is near (`matrix/many.rs`). The inputs are turned
//! around for it, which is little work: every output uses them. The sums of a row are added up in one order, whatever rows
//! it comes with.

mod many;

use std::cell::RefCell;
use std::ops::Range;

use paceline_tiles::{INPUTS, Lines, SIDE, Square, Tiles};

use crate::linear::{Section, outputs_of, shares};
use crate::{Part, crew};

/// Outputs that are multiplied side by side.
pub(crate) const OUTPUTS: usize = 2 * SIDE;
/// Least outputs of a thread.
const SHARE: usize = 2 * OUTPUTS;
/// Squares of inputs that stay in a core's second cache beside the weights: 768 KiB.
const SQUARES_MAX: usize = (3 << 18) / size_of::<Square>();

thread_local! {
    /// Memory for inputs, used again.
    static SQUARES: RefCell<Vec<Square>> = const { RefCell::new(Vec::new()) };
}

/// Whether this machine has the instructions.
pub fn has_matrix_instructions() -> bool {
    Tiles::new().is_some()
}

/// Whether weights `[outputs, inputs]` can be taken as tiles.
pub(crate) fn takes(outputs: usize, inputs: usize) -> bool {
    outputs >= SIDE && inputs > 0 && inputs.is_multiple_of(INPUTS) && has_matrix_instructions()
}

/// `x @ weight.T + bias`, for parts of a weight of shapes that [`takes`] allows, whose outputs follow each other.
///
/// # Panics
/// If lengths do not fit each other, or there are no matrix instructions.
pub(crate) fn multiply(x: &[u16], parts: &[Part<'_>], bias: Option<&[u16]>, inputs: usize, product: &mut [u16]) {
    multiply_with(x, parts, bias, inputs, product, pack, |section, squares| {
        Work { section, inputs }.multiply(squares);
    });
}

/// The same with inputs as `pack` lays them out, and what `work` makes of a thread's outputs.
pub(crate) fn multiply_with(
    x: &[u16],
    parts: &[Part<'_>],
    bias: Option<&[u16]>,
    inputs: usize,
    product: &mut [u16],
    pack: impl Fn(&[u16], usize, &mut Vec<Square>),
    work: impl Fn(Section<'_, '_>, &[Square]) + Sync,
) {
    let outputs = outputs_of(parts, inputs);
    let rows_max = rows_at_once(x.len() / inputs, inputs);
    let count = crew::parts((outputs / SHARE).max(1), outputs * inputs);
    let mut squares = SQUARES.take();
    for (x, product) in x.chunks(rows_max * inputs).zip(product.chunks_mut(rows_max * outputs)) {
        pack(x, inputs, &mut squares);
        let (squares, work) = (&squares[..], &work);
        let shares = shares(parts, bias, inputs, product, bands(parts, inputs, count))
            .into_iter()
            .map(|share| move || share.into_iter().for_each(|section| work(section, squares)));
        crew::run(shares);
    }
    SQUARES.set(squares);
}

/// The outputs, divided among threads: at multiples of [`OUTPUTS`] in a part, and at its end rather than shortly before.
fn bands(parts: &[Part<'_>], inputs: usize, count: usize) -> impl Iterator<Item = Range<usize>> {
    let outputs = outputs_of(parts, inputs);
    let start = move |band: usize| {
        let mut first = 0;
        for part in parts {
            let size = part.weight.len() / inputs;
            let Some(inside) = (outputs * band / count).checked_sub(first).filter(|&inside| inside < size) else {
                first += size;
                continue;
            };
            let inside = inside / OUTPUTS * OUTPUTS;
            return first + if size - inside < SIDE { size } else { inside };
        }
        outputs
    };
    (0..count).map(move |band| start(band)..start(band + 1))
}

/// How many of `rows` are taken at a time: about as many each time.
fn rows_at_once(rows: usize, inputs: usize) -> usize {
    let rows_max = (SQUARES_MAX / (inputs / INPUTS)).max(2) * SIDE;
    rows.div_ceil(rows.div_ceil(rows_max).max(1)).next_multiple_of(2 * SIDE)
}

/// Makes `squares` of `x [rows, inputs]`: for each sixteen rows, one for each line of inputs. Rows that are not there are 0.
fn pack(x: &[u16], inputs: usize, squares: &mut Vec<Square>) {
    let lines = inputs / INPUTS;
    let count = x.len().div_ceil(SIDE * inputs);
    squares.resize(count * lines, Square::ZERO);
    let share = count.div_ceil(crew::parts(count, x.len()));
    let shares = x.chunks(share * SIDE * inputs).zip(squares.chunks_mut(share * lines));
    crew::run(shares.map(|(x, squares)| move || turn(x, inputs, squares)));
}

/// Makes `squares` of some rows.
fn turn(x: &[u16], inputs: usize, squares: &mut [Square]) {
    let tiles = Tiles::new().expect("the instructions were asked for");
    let lines = inputs / INPUTS;
    for (rows, squares) in x.chunks(SIDE * inputs).zip(squares.chunks_exact_mut(lines)) {
        let mut padded = Vec::new();
        let rows = if rows.len() == SIDE * inputs {
            rows
        } else {
            padded.extend_from_slice(rows);
            padded.resize(SIDE * inputs, 0);
            &padded
        };
        for (line, square) in squares.iter_mut().enumerate() {
            tiles.turn(rows, inputs, line * INPUTS, square);
        }
    }
}

/// Some outputs of every row.
struct Work<'a, 'b> {
    section: Section<'a, 'b>,
    inputs: usize,
}

impl Work<'_, '_> {
    fn multiply(mut self, squares: &[Square]) {
        let mut tiles = Tiles::new().expect("the instructions were asked for");
        let outputs = self.section.outputs(self.inputs);
        if many::takes(self.section.product.len(), outputs) {
            return self.multiply_many(&mut tiles, squares);
        }
        for first in (0..outputs).step_by(OUTPUTS) {
            self.outputs(&mut tiles, starts(first, outputs), squares);
        }
    }

    /// Twice sixteen outputs of all rows.
    fn outputs(&mut self, tiles: &mut Tiles, starts: [usize; 2], squares: &[Square]) {
        let weight = self.section.part.weight;
        let weights = starts.map(|start| &weight[start * self.inputs..][..SIDE * self.inputs]);
        let biases = starts.map(|start| self.section.bias_of(start));
        let lines = self.inputs / INPUTS;
        let mut sums = [Square::ZERO; 4];
        // What follows is fetched while these are read for the first time.
        let mut next = weight.get((starts[0] + OUTPUTS) * self.inputs..);
        for (index, pair) in squares.chunks(2 * lines).enumerate() {
            let row = index * 2 * SIDE;
            let (x, y) = pair.split_at(lines);
            if y.is_empty() {
                tiles.multiply(weights, next.unwrap_or(weights[0]), x, &mut sums);
                self.finish(tiles, [&sums[0], &sums[1]], &biases, row, starts);
            } else {
                tiles.multiply_two(weights, next, [x, y], &mut sums);
                self.finish(tiles, [&sums[0], &sums[2]], &biases, row, starts);
                self.finish(tiles, [&sums[1], &sums[3]], &biases, row + SIDE, starts);
            }
            next = None;
        }
    }

    /// Writes twice sixteen outputs of sixteen rows from `row` on, as far as they are there.
    fn finish(&mut self, tiles: &Tiles, sums: [&Square; 2], biases: &[[f32; SIDE]; 2], row: usize, starts: [usize; 2]) {
        let mut lines = Lines::ZERO;
        tiles.round(sums, biases, &mut lines);
        self.section.write(&lines, row, starts);
    }
}

/// Where both halves of the 32 outputs from `first` on begin. The last ones are taken together with some before them, which
/// come out the same once more.
pub(crate) fn starts(first: usize, outputs: usize) -> [usize; 2] {
    [first, first + SIDE].map(|start| start.min(outputs - SIDE))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{INPUTS, Part, SIDE, SQUARES_MAX, bands, multiply, shares, takes};
    use crate::linear::tests::{check, cut, numbers};

    fn product(x: &[u16], weight: &[u16], bias: Option<&[u16]>, inputs: usize) -> Vec<u16> {
        let mut product = vec![0x7fc0; x.len() / inputs * (weight.len() / inputs)];
        multiply(x, &[weight.into()], bias, inputs, &mut product);
        product
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn sums_are_right_and_rows_do_not_depend_on_each_other(
            outputs in SIDE..300, lines in 1_usize..7, rows in 1_usize..140, has_bias in any::<bool>(),
        ) {
            let inputs = lines * INPUTS;
            if !takes(outputs, inputs) {
                return Ok(());
            }
            let (x, weight, bias) = (numbers(rows * inputs, 1), numbers(outputs * inputs, 2), numbers(outputs, 3));
            let bias = has_bias.then_some(&bias[..]);
            let together = product(&x, &weight, bias, inputs);
            for (row, got) in x.chunks_exact(inputs).zip(together.chunks_exact(outputs)) {
                prop_assert_eq!(&product(row, &weight, bias, inputs)[..], got);
                check(row, &weight, bias, inputs, got);
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn parts_give_the_bits_of_the_whole_and_threads_get_no_less_of_one_than_a_tile(
            sizes in prop::collection::vec(SIDE..200, 1..5), rows in 1_usize..80, count in 1_usize..8,
        ) {
            let (inputs, outputs) = (INPUTS, sizes.iter().sum::<usize>());
            let (x, weight, bias) = (numbers(rows * inputs, 1), numbers(outputs * inputs, 2), numbers(outputs, 3));
            let parts: Vec<_> = cut(&weight, inputs, &sizes).into_iter().map(Part::from).collect();
            let shared: Vec<_> = bands(&parts, inputs, count).collect();
            prop_assert_eq!((shared[0].start, shared[count - 1].end), (0, outputs));
            prop_assert!(shared.windows(2).all(|pair| pair[0].end == pair[1].start));
            let mut memory = vec![0; outputs];
            let sections = shares(&parts, None, inputs, &mut memory, shared.into_iter());
            prop_assert!(sections.iter().flatten().all(|section| section.part.weight.len() >= SIDE * inputs));
            if takes(outputs, inputs) {
                let mut product = vec![0x7fc0; rows * outputs];
                multiply(&x, &parts, Some(&bias), inputs, &mut product);
                prop_assert_eq!(product, super::tests::product(&x, &weight, Some(&bias), inputs));
            }
        }
    }

    #[test]
    fn rows_beyond_what_is_packed_at_once_are_the_same() {
        let inputs = 40 * INPUTS;
        if !takes(SIDE, inputs) {
            return;
        }
        let (x, weight) = (numbers(900 * inputs, 1), numbers(48 * inputs, 2));
        let together = product(&x, &weight, None, inputs);
        for row in [0, 399, 400, 401, 799, 800, 899] {
            let alone = product(&x[row * inputs..][..inputs], &weight, None, inputs);
            assert_eq!(alone[..], together[row * 48..][..48], "row {row}");
        }
    }

    /// More inputs than what is packed at once has room for, even of sixteen rows.
    #[test]
    fn any_number_of_inputs_is_taken() {
        let inputs = (SQUARES_MAX + 1) * INPUTS;
        if !takes(SIDE, inputs) {
            return;
        }
        let (x, weight) = (numbers(33 * inputs, 1), numbers(SIDE * inputs, 2));
        let together = product(&x, &weight, None, inputs);
        for row in [0, 32] {
            assert_eq!(product(&x[row * inputs..][..inputs], &weight, None, inputs), together[row * SIDE..][..SIDE]);
        }
    }

    #[test]
    fn shapes_that_are_no_tiles_are_not_taken() {
        assert!(!takes(SIDE - 1, INPUTS) && !takes(SIDE, INPUTS + 2) && !takes(SIDE, 0));
    }
}
