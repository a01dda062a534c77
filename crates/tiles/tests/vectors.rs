//! Vectors of bfloat16 against plain arithmetic, of every length.

use paceline_tiles::Vectors;

fn wide(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

/// The nearest bfloat16, ties to even.
fn rounded(value: f32) -> u16 {
    let bits = value.to_bits();
    ((bits + 0x7fff + ((bits >> 16) & 1)) >> 16) as u16
}

fn numbers(count: usize, seed: f32) -> Vec<u16> {
    (0..count).map(|index| rounded((index as f32 * 0.73 + seed).sin() * 5.0)).collect()
}

fn near(got: u16, expected: f32) {
    let got = wide(got);
    assert!((got - expected).abs() <= expected.abs() * 0.004, "expected {expected}, got {got}");
}

#[test]
fn a_gate_is_silu_times_the_other_half() {
    let Some(vectors) = Vectors::new() else { return };
    for count in (0..70).chain([576, 1537]) {
        let (gates, ups) = (numbers(count, 0.1), numbers(count, 2.0));
        let mut product = vec![0x7fc0; count + 1];
        vectors.gate(&gates, &ups, &mut product[..count]);
        for ((&gate, &up), &got) in gates.iter().zip(&ups).zip(&product) {
            let gate = f64::from(wide(gate));
            near(got, (gate / (1.0 + (-gate).exp()) * f64::from(wide(up))) as f32);
        }
        assert_eq!(product[count], 0x7fc0, "nothing is written beyond the end");
    }
}

#[test]
fn gates_far_out_stay_numbers_and_nan_stays() {
    let Some(vectors) = Vectors::new() else { return };
    let gates = [-3e38, -100.0, -90.0, 90.0, 3e38, 0.0, f32::NAN].map(|gate: f32| (gate.to_bits() >> 16) as u16);
    let mut product = [0; 7];
    vectors.gate(&gates, &[rounded(1.0); 7], &mut product);
    let product = product.map(wide);
    assert!(product[0].abs() < 1e-30 && product[1].abs() < 1e-30 && product[2].abs() < 1e-30, "{product:?}");
    assert!(product[3] == 90.0 && product[4] > 2.9e38 && product[4].is_finite(), "{product:?}");
    assert!(product[5] == 0.0 && product[6].is_nan(), "{product:?}");
}

#[test]
fn sums_are_rounded_before_they_are_squared() {
    let Some(vectors) = Vectors::new() else { return };
    for count in (0..70).chain([576]) {
        let (mut x, added) = (numbers(count, 0.4), numbers(count, 1.0));
        let sums: Vec<u16> = x.iter().zip(&added).map(|(&a, &b)| rounded(wide(a) + wide(b))).collect();
        let expected: f64 = sums.iter().map(|&sum| f64::from(wide(sum)).powi(2)).sum();
        let squares = vectors.add(&mut x, Some(&added));
        assert_eq!(x, sums);
        assert!((f64::from(squares) - expected).abs() <= expected * 1e-6, "expected {expected}, got {squares}");
        assert_eq!(vectors.add(&mut x, None).to_bits(), squares.to_bits());
        assert_eq!(x, sums);
    }
}

#[test]
fn rows_are_scaled_and_rounded_once() {
    let Some(vectors) = Vectors::new() else { return };
    for count in (0..70).chain([576]) {
        let (x, weight) = (numbers(count, 0.4), numbers(count, 1.0));
        let mut product = vec![0; count];
        vectors.scale(&x, 0.37, &weight, &mut product);
        let expected: Vec<u16> = x.iter().zip(&weight).map(|(&x, &w)| rounded(wide(x) * 0.37 * wide(w))).collect();
        assert_eq!(product, expected);
    }
}

#[test]
#[should_panic(expected = "a weight for each number")]
fn lengths_that_differ_are_refused() {
    match Vectors::new() {
        Some(vectors) => vectors.scale(&[0; 3], 1.0, &[0; 2], &mut [0; 3]),
        None => panic!("a weight for each number"),
    }
}
