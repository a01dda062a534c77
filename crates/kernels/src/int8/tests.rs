//! Products against exact integers, with every set of instructions that this machine has.

use proptest::prelude::*;

use super::multiply::Instructions;
use super::{INPUTS_MAX, Int8Matrix, quantise_rows};
use crate::Element;

/// Numbers of many magnitudes, that follow from a seed.
fn numbers<E: Element>(count: usize, seed: u32) -> Vec<E> {
    let mut state = seed.wrapping_mul(2_654_435_761).wrapping_add(1);
    let mut next = move || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        f32::from(u16::try_from(state >> 16).expect("16 bits")) / 32_768.0 - 1.0
    };
    (0..count).map(|_| E::from_f32(next() * next() * 3.0)).collect()
}

/// A matrix, and its weights as they lay before.
struct Weights {
    matrix: Int8Matrix,
    bytes: Vec<i8>,
    factors: Vec<f32>,
    bias: Option<Vec<f32>>,
}

impl Weights {
    fn new(outputs: usize, inputs: usize, has_bias: bool) -> Self {
        let (mut bytes, mut factors) = (vec![0; outputs * inputs], vec![0.0; outputs]);
        quantise_rows(&numbers::<f32>(outputs * inputs, 1), &mut bytes, &mut factors);
        let bias = has_bias.then(|| numbers(outputs, 2));
        let matrix = Int8Matrix::new(&bytes, factors.clone(), bias.clone()).expect("lengths that fit");
        Self { matrix, bytes, factors, bias }
    }

    /// The definition: sums of integers, then one rounding after another as it is written.
    fn multiply<E: Element>(&self, x: &[E]) -> Vec<E> {
        let (inputs, outputs) = (self.matrix.inputs(), self.matrix.outputs());
        let rows = x.len() / inputs;
        let (mut bytes, mut scales) = (vec![0; x.len()], vec![0.0; rows]);
        quantise_rows(x, &mut bytes, &mut scales);
        let one = |row: usize, output: usize| {
            let row_bytes = &bytes[row * inputs..(row + 1) * inputs];
            let weights = &self.bytes[output * inputs..(output + 1) * inputs];
            let sum: i64 = row_bytes.iter().zip(weights).map(|(&a, &b)| i64::from(a) * i64::from(b)).sum();
            let value = sum as f32 * self.factors[output] * scales[row];
            E::from_f32(self.bias.as_ref().map_or(value, |bias| value + bias[output]))
        };
        (0..rows * outputs).map(|index| one(index / outputs, index % outputs)).collect()
    }
}

fn bits<E: Element>(values: &[E]) -> Vec<u32> {
    values.iter().map(|value| value.to_f32().to_bits()).collect()
}

fn check<E: Element>(outputs: usize, inputs: usize, rows: usize, has_bias: bool) {
    let weights = Weights::new(outputs, inputs, has_bias);
    let x: Vec<E> = numbers(rows * inputs, 3);
    let expected = bits(&weights.multiply(&x));
    for instructions in Instructions::all() {
        let mut product = vec![E::from_f32(7.0); rows * outputs];
        weights.matrix.multiply_with(instructions, &x, &mut product);
        assert_eq!(bits(&product), expected, "{instructions:?}: {rows} rows, {outputs} x {inputs}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn every_set_of_instructions_is_exact(
        outputs in 1_usize..100, inputs in 1_usize..200, rows in 1_usize..30, has_bias in any::<bool>(),
    ) {
        check::<f32>(outputs, inputs, rows, has_bias);
        check::<u16>(outputs, inputs, rows, has_bias);
    }

    #[test]
    fn a_row_gives_the_same_whatever_it_comes_with(outputs in 1_usize..80, inputs in 1_usize..90, rows in 1_usize..40) {
        let matrix = Weights::new(outputs, inputs, true).matrix;
        let x: Vec<u16> = numbers(rows * inputs, 4);
        let mut together = vec![0_u16; rows * outputs];
        matrix.multiply(&x, &mut together);
        for (row, expected) in x.chunks_exact(inputs).zip(together.chunks_exact(outputs)) {
            let mut alone = vec![0_u16; outputs];
            matrix.multiply(row, &mut alone);
            prop_assert_eq!(&alone[..], expected);
        }
    }
}

/// Sums up to 2^24 and beyond are rounded to fp32 the same way, wherever they were made.
#[test]
fn sums_of_another_product_are_finished_alike() {
    let (outputs, inputs, rows) = (70, 2_000, 5);
    for has_bias in [false, true] {
        let weights = Weights::new(outputs, inputs, has_bias);
        let x: Vec<u16> = numbers(rows * inputs, 5);
        let (mut bytes, mut scales) = (vec![0; x.len()], vec![0.0; rows]);
        quantise_rows(&x, &mut bytes, &mut scales);
        let sums: Vec<f32> = bytes
            .chunks_exact(inputs)
            .flat_map(|row| weights.bytes.chunks_exact(inputs).map(move |other| (row, other)))
            .map(|(a, b)| a.iter().zip(b).map(|(&a, &b)| i32::from(a) * i32::from(b)).sum::<i32>() as f32)
            .collect();
        let (mut finished, mut expected) = (vec![0_u16; rows * outputs], vec![1_u16; rows * outputs]);
        weights.matrix.finish(&sums, &scales, &mut finished);
        weights.matrix.multiply(&x, &mut expected);
        assert_eq!(finished, expected);
    }
}

#[test]
fn the_largest_sums_fit() {
    for sign in [1, -1] {
        let bytes = vec![127 * sign; INPUTS_MAX];
        let matrix = Int8Matrix::new(&bytes, vec![1.0], None).expect("lengths that fit");
        for instructions in Instructions::all() {
            let mut product = [0.0];
            matrix.multiply_with(instructions, &vec![127.0_f32; INPUTS_MAX], &mut product);
            assert_eq!(product, [f32::from(sign) * 127.0 * 127.0 * INPUTS_MAX as f32], "{instructions:?}");
        }
    }
}

#[test]
fn the_largest_of_a_row_is_127_and_ties_go_to_even() {
    let (mut bytes, mut factors) = ([0; 8], [0.0; 2]);
    quantise_rows(&[254.0_f32, 3.0, 1.0, -5.0, 0.0, -1.0, 0.5, 1e-3], &mut bytes, &mut factors);
    assert_eq!(bytes, [127, 2, 0, -2, 0, -127, 64, 0]);
    assert_eq!(factors, [2.0, 1.0 / 127.0]);
}

#[test]
fn what_is_no_number_is_not_hidden_and_nothing_is_zero() {
    let (mut bytes, mut factors) = ([1; 8], [1.0; 4]);
    quantise_rows(&[f32::NAN, 1.0, 1.0, f32::NEG_INFINITY, 0.0, -0.0, 1e-40, -1e-31], &mut bytes, &mut factors);
    assert_eq!(bytes, [0; 8]);
    assert!(factors[0].is_nan() && factors[1].is_nan());
    assert_eq!(factors[2..], [0.0, 0.0]);
    let matrix = Int8Matrix::new(&[1, 2], vec![1.0, 1.0], Some(vec![0.5, 0.25])).expect("lengths that fit");
    let mut product = [0.0_f32; 6];
    matrix.multiply(&[f32::NAN, 0.0, 1.0], &mut product);
    assert!(product[..2].iter().all(|value| value.is_nan()));
    assert_eq!(product[2..], [0.5, 0.25, 1.5, 2.25]);
}

#[test]
fn weights_that_do_not_fit_are_refused_with_both_numbers() {
    let refused = |bytes: usize, outputs: usize, bias: Option<usize>| {
        let bias = bias.map(|count| vec![0.0; count]);
        Int8Matrix::new(&vec![0; bytes], vec![0.0; outputs], bias).expect_err("lengths that do not fit").to_string()
    };
    assert_eq!(refused(7, 2, None), "weights: expected 6, got 7");
    assert_eq!(refused(6, 2, Some(3)), "biases: expected 2, got 3");
    assert_eq!(refused(INPUTS_MAX + 1, 1, None), "inputs of an int8 matrix: expected 131072 at most, got 131073");
    assert_eq!(refused(3, 0, None), "weights: expected 0, got 3");
    assert!(matches!(Int8Matrix::new(&[], Vec::new(), None), Ok(matrix) if matrix.outputs() == 0));
}
