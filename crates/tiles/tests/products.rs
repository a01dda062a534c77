//! Products and turns of tiles beside plain loops. Where the machine has no tiles, there is nothing to compare.

use paceline_tiles::{INPUTS, Lines, SIDE, Square, Tiles};

/// Repeatable whole numbers from -8 to 8, whose sums are exact in any order.
fn small(index: usize) -> f32 {
    ((index.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) % 17) as f32 - 8.0
}

fn half(value: f32) -> u16 {
    (value.to_bits() >> 16) as u16
}

/// `x [16, inputs]` as squares of pairs of inputs.
fn squares(x: &[f32], inputs: usize) -> Vec<Square> {
    let pair = |row: usize, first: usize| {
        u32::from(half(x[row * inputs + first])) | u32::from(half(x[row * inputs + first + 1])) << 16
    };
    let square = |step: usize| {
        Square(std::array::from_fn(|place| std::array::from_fn(|row| pair(row, step * INPUTS + 2 * place))))
    };
    (0..inputs / INPUTS).map(square).collect()
}

fn expected(weights: &[f32], x: &[f32], inputs: usize) -> Square {
    let sum = |output: usize, row: usize| -> f32 {
        (0..inputs).map(|index| weights[output * inputs + index] * x[row * inputs + index]).sum()
    };
    Square(std::array::from_fn(|output| std::array::from_fn(|row| sum(output, row).to_bits())))
}

#[test]
fn sums_are_those_of_plain_loops() {
    let Some(mut tiles) = Tiles::new() else { return };
    for steps in [1, 2, 3, 18] {
        let inputs = steps * INPUTS;
        let numbers = |from: usize| -> Vec<f32> { (0..SIDE * inputs).map(|index| small(from + index)).collect() };
        let (weights, x) = ([numbers(1), numbers(1_000_000)], [numbers(2_000_000), numbers(3_000_000)]);
        let halves = weights.each_ref().map(|half_of| half_of.iter().copied().map(half).collect::<Vec<u16>>());
        let halves = [&halves[0][..], &halves[1][..]];
        let packed = x.each_ref().map(|rows| squares(rows, inputs));
        let mut sums = [Square::ZERO; 2];
        tiles.multiply(halves, halves[1], &packed[0], &mut sums);
        assert_eq!(sums, [0, 1].map(|half| expected(&weights[half], &x[0], inputs)));
        let mut sums = [Square::ZERO; 4];
        tiles.multiply_two(halves, Some(&[]), [&packed[0], &packed[1]], &mut sums);
        let mut alone = [Square::ZERO; 4];
        tiles.multiply_two(halves, None, [&packed[0], &packed[1]], &mut alone);
        assert_eq!(alone, sums);
        let all = [(0, 0), (0, 1), (1, 0), (1, 1)].map(|(half, rows)| expected(&weights[half], &x[rows], inputs));
        assert_eq!(sums, all);
        tiles.multiply_by_four([halves[0], halves[1], halves[1], halves[0]], &packed[1], &mut sums);
        assert_eq!(sums, [all[1], all[3], all[3], all[1]]);
    }
}

/// Weights by woven values: the product over rows of values, as attention takes it.
#[test]
fn woven_rows_are_inputs() {
    let Some(mut tiles) = Tiles::new() else { return };
    let (size, stride) = (128, 3 * INPUTS);
    let weights: Vec<f32> = (0..SIDE * stride).map(small).collect();
    let values: Vec<f32> = (0..2 * INPUTS * size).map(|index| small(9_000_000 + index)).collect();
    let halves = |numbers: &[f32]| numbers.iter().copied().map(half).collect::<Vec<u16>>();
    let (rounded, rows) = (halves(&weights), halves(&values));
    let mut sums = [Square::ZERO; 4];
    for column in [0, 64] {
        let mut woven = [[Square::ZERO; 4]; 2];
        for (line, woven) in woven.iter_mut().enumerate() {
            let (first, second) = rows[line * INPUTS * size..][..INPUTS * size].split_at(SIDE * size);
            tiles.weave([first, second], size, column, woven);
        }
        tiles.begin_sums();
        for (line, woven) in woven.iter().enumerate() {
            tiles.add_line(&rounded, line, woven);
        }
        let mut added = [Square::ZERO; 4];
        tiles.take_sums(&mut added);
        tiles.multiply_four(&rounded, &woven, &mut sums);
        assert_eq!(added, sums);
        for output in 0..SIDE {
            for place in 0..64 {
                let (square, lane) = (place / SIDE, place % SIDE);
                let of = column + square / 2 * 32 + square % 2 * 4 + lane / 4 * 8 + lane % 4;
                let sum: f32 =
                    (0..2 * INPUTS).map(|row| weights[output * stride + row] * values[row * size + of]).sum();
                assert_eq!(f32::from_bits(sums[square].0[output][lane]), sum, "output {output}, column {of}");
            }
        }
    }
}

/// Giving back what somebody else still holds would end their next product, and the process with it.
#[test]
fn tiles_stay_until_the_last_holder_goes() {
    let Some(mut tiles) = Tiles::new() else { return };
    drop(Tiles::new());
    let mut sums = [Square::ZERO; 2];
    tiles.multiply([&[0x3f80; 512], &[0; 512]], &[], &[Square([[0x3f80_3f80; SIDE]; SIDE])], &mut sums);
    assert_eq!(sums, [Square([[32.0_f32.to_bits(); SIDE]; SIDE]), Square::ZERO]);
}

#[test]
fn rows_become_columns() {
    let Some(tiles) = Tiles::new() else { return };
    let square = Square(std::array::from_fn(|row| std::array::from_fn(|column| (row * 100 + column) as u32)));
    let turned = Square(std::array::from_fn(|row| std::array::from_fn(|column| (column * 100 + row) as u32)));
    let mut got = Square::ZERO;
    tiles.transpose(&square, &mut got);
    assert_eq!(got, turned);
    tiles.transpose(&turned, &mut got);
    assert_eq!(got, square);
    for count in [1, 4, 5, SIDE] {
        tiles.transpose_first(&square, count, &mut got);
        assert_eq!(got.0[..count], turned.0[..count]);
    }
}

#[test]
fn columns_of_rows_become_inputs() {
    let Some(tiles) = Tiles::new() else { return };
    let rows: Vec<u16> = (0..16 * 64).map(|number| number as u16).collect();
    let mut turned = Square::ZERO;
    tiles.turn(&rows, 64, 32, &mut turned);
    for (pair, words) in turned.0.iter().enumerate() {
        for (row, word) in words.iter().enumerate() {
            let first = (row * 64 + 32 + 2 * pair) as u32;
            assert_eq!(*word, first | (first + 1) << 16, "pair {pair} of row {row}");
        }
    }
}

#[test]
fn numbers_are_narrowed_and_columns_put_in_order() {
    let Some(tiles) = Tiles::new() else { return };
    let numbers: Vec<f32> = (0..32).map(|number| 1.0 + number as f32 / 256.0).collect();
    let mut halves = [0; 32];
    tiles.narrow(&numbers, &mut halves);
    // Odd numbers lie between two bfloat16 and go to the even one.
    let even: [u16; 32] =
        std::array::from_fn(|number| 0x3f80 + ((number + 1) / 4 * 2 + usize::from(number % 4 == 2)) as u16);
    assert_eq!(halves, even);
    let woven = [0, 4].map(|first| std::array::from_fn(|lane| (first + lane / 4 * 8 + lane % 4) as f32));
    tiles.narrow_woven(&woven, 2.0, &mut halves);
    assert_eq!(halves, std::array::from_fn(|column| ((2.0 * column as f32).to_bits() >> 16) as u16));
}

#[test]
fn sums_are_rounded_to_even_after_the_bias() {
    let Some(tiles) = Tiles::new() else { return };
    // 1 + 1/256 lies between two bfloat16 and goes to the even one below; with a bias of 1/256 it is one of them.
    let mut sums = Square::ZERO;
    sums.0[3][5] = (1.0_f32 + 1.0 / 256.0).to_bits();
    sums.0[4][5] = (1.0_f32 + 1.0 / 256.0).to_bits();
    let mut biases = [[0.0; SIDE]; 2];
    biases[0][4] = 1.0 / 256.0;
    let mut lines = Lines::ZERO;
    tiles.round([&sums, &Square::ZERO], &biases, &mut lines);
    assert_eq!((lines.0[5][3], lines.0[5][4]), (0x3f80, 0x3f81));
    biases[1][2] = -2.0;
    tiles.round([&Square::ZERO, &sums], &biases, &mut lines);
    assert_eq!((lines.0[5][3], lines.0[5][SIDE + 3], lines.0[9][SIDE + 2]), (0, 0x3f80, 0xc000));
}

#[test]
#[should_panic(expected = "weights of sixteen outputs")]
fn weights_of_another_length_are_refused() {
    let Some(mut tiles) = Tiles::new() else { panic!("weights of sixteen outputs: nothing to refuse here") };
    tiles.multiply([&[0; 512], &[0; 511]], &[], &[Square::ZERO], &mut [Square::ZERO; 2]);
}
