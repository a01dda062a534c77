//! Norm, gate and rotation against plain loops.

use paceline_kernels::{Element, HeadNorm, Rotation, gate, rms_norm, rotate};

fn numbers<E: Element>(count: usize, seed: f32) -> Vec<E> {
    (0..count).map(|index| E::from_f32((index as f32 * 0.37 + seed).sin())).collect()
}

fn close<E: Element>(got: &[E], expected: &[f64], limit: f64) {
    assert_eq!(got.len(), expected.len());
    for (index, (got, expected)) in got.iter().zip(expected).enumerate() {
        let got = f64::from(got.to_f32());
        assert!(
            (got - expected).abs() <= limit * (1.0 + expected.abs()),
            "element {index}: expected {expected}, got {got}"
        );
    }
}

fn wide<E: Element>(values: &[E]) -> Vec<f64> {
    values.iter().map(|value| f64::from(value.to_f32())).collect()
}

fn check_norm<E: Element>(limit: f64) {
    for width in [7, 64, 576] {
        let (mut x, added, weight) =
            (numbers::<E>(3 * width, 0.1), numbers::<E>(3 * width, 0.7), numbers::<E>(width, 2.0));
        let mut normed = vec![E::ZERO; 3 * width];
        let sums: Vec<E> = x.iter().zip(&added).map(|(a, b)| E::from_f32(a.to_f32() + b.to_f32())).collect();
        rms_norm(&mut x, Some(&added), &weight, 1e-5, &mut normed);
        close(&x, &wide(&sums), 0.0);
        let expected: Vec<f64> = wide(&sums)
            .chunks(width)
            .flat_map(|row| {
                let mean = row.iter().map(|value| value * value).sum::<f64>() / width as f64;
                let root = (mean + 1e-5).sqrt();
                row.iter().zip(wide(&weight)).map(|(value, weight)| value / root * weight).collect::<Vec<_>>()
            })
            .collect();
        close(&normed, &expected, limit);
        let before = wide(&x);
        rms_norm(&mut x, None, &weight, 1e-5, &mut normed);
        close(&x, &before, 0.0);
        close(&normed, &expected, limit);
    }
}

#[test]
fn a_norm_adds_first_and_rounds_once() {
    check_norm::<f32>(1e-6);
    check_norm::<u16>(4e-3);
}

fn check_gate<E: Element>(limit: f64) {
    let (width, rows) = (37, 3);
    let gate_up: Vec<E> =
        numbers::<E>(2 * width * rows, 0.3).iter().map(|value| E::from_f32(value.to_f32() * 9.0)).collect();
    let mut product = vec![E::ZERO; width * rows];
    gate(&gate_up, width, &mut product);
    let expected: Vec<f64> = wide(&gate_up)
        .chunks(2 * width)
        .flat_map(|row| (0..width).map(|at| row[at] / (1.0 + (-row[at]).exp()) * row[width + at]).collect::<Vec<_>>())
        .collect();
    close(&product, &expected, limit);
}

#[test]
fn a_gate_is_silu_times_the_other_half() {
    check_gate::<f32>(1e-6);
    check_gate::<u16>(4e-3);
}

#[test]
fn gates_far_out_stay_small_and_nan_stays() {
    let gate_up: Vec<f32> = [-3e38, -100.0, 90.0, f32::NAN, 1.0, 1.0, 1.0, 1.0].to_vec();
    let mut product = [0.0_f32; 4];
    gate(&gate_up, 4, &mut product);
    assert!(
        product[0].abs() < 1e-30 && product[1].abs() < 1e-30 && product[2] == 90.0 && product[3].is_nan(),
        "{product:?}"
    );
}

fn check_rotation<E: Element>(width: usize, has_norm: bool, limit: f64) {
    let (tokens, count, size, row_width) = (3, 2, 16, 40);
    let mut heads = numbers::<E>(tokens * row_width, 0.9);
    let (cos, sin) = (numbers::<E>(tokens * width, 1.1), numbers::<E>(tokens * width, 4.0));
    let weight = numbers::<E>(count * size, 3.0);
    let mut expected = wide(&heads);
    for token in 0..tokens {
        for head in 0..count {
            let start = token * row_width + head * size;
            let mut values = expected[start..start + size].to_vec();
            if has_norm {
                let root = (values.iter().map(|value| value * value).sum::<f64>() / size as f64 + 1e-6).sqrt();
                for (value, weight) in values.iter_mut().zip(&weight[head * size..]) {
                    *value = f64::from(E::from_f32((*value / root) as f32 * weight.to_f32()).to_f32());
                }
            }
            for at in 0..width {
                let other = values[(at + width / 2) % width];
                let (cos, sin) = (cos[token * width + at].to_f32(), sin[token * width + at].to_f32());
                expected[start + at] = values[at] * f64::from(cos) + other * f64::from(sin);
            }
            expected[start + width..start + size].copy_from_slice(&values[width..]);
        }
    }
    let norm = has_norm.then_some(HeadNorm { weight: &weight, epsilon: 1e-6 });
    rotate(&mut heads, row_width, count, size, Rotation { cos: &cos, sin: &sin, width }, norm);
    close(&heads, &expected, limit);
}

#[test]
fn rotation_leaves_other_columns_alone() {
    for has_norm in [false, true] {
        for width in [16, 8] {
            check_rotation::<f32>(width, has_norm, 1e-6);
            check_rotation::<u16>(width, has_norm, 8e-3);
        }
    }
}

#[test]
fn a_bfloat16_is_rounded_to_nearest_even() {
    for (value, bits) in
        [(1.0, 0x3f80), (1.003_906_3, 0x3f80), (1.011_718_8, 0x3f82), (-1.004, 0xbf81), (f32::INFINITY, 0x7f80)]
    {
        assert_eq!(u16::from_f32(value), bits, "{value}");
    }
    assert!(u16::from_f32(f32::from_bits(0x7f80_0001)).to_f32().is_nan());
}

#[test]
fn nan_is_not_hidden() {
    let mut product = [0.0];
    gate(&[f32::NAN, 1.0], 1, &mut product);
    assert!(product[0].is_nan());
    let mut normed = [0.0; 2];
    rms_norm(&mut [f32::NAN, 1.0], None, &[1.0, 1.0], 1e-5, &mut normed);
    assert!(normed.iter().all(|value| value.is_nan()));
}
