//! Work that is shared out gives the same, bit for bit.

use paceline_kernels::{Attention, Element, Heads, Rotation, Shape, gate, linear, rms_norm, rotate, set_threads};

const WIDTH: usize = 192;
const ROWS: usize = 301;
const BLOCK_SIZE: usize = 16;
const BLOCK_COUNT: usize = 512;

fn numbers(count: usize, seed: f32) -> Vec<u16> {
    (0..count).map(|index| u16::from_f32((index as f32 * 0.731 + seed).sin())).collect()
}

fn layers() -> Vec<Vec<u16>> {
    let (mut x, added, weight) = (numbers(ROWS * WIDTH, 0.1), numbers(ROWS * WIDTH, 0.2), numbers(WIDTH, 0.3));
    let mut normed = vec![0; ROWS * WIDTH];
    rms_norm(&mut x, Some(&added), &weight, 1e-5, &mut normed);
    let mut product = vec![0; ROWS * WIDTH / 2];
    gate(&normed, WIDTH / 2, &mut product);
    let (cos, sin) = (numbers(ROWS * 32, 0.4), numbers(ROWS * 32, 0.5));
    let mut heads = normed.clone();
    rotate(&mut heads, WIDTH, 4, 32, Rotation { cos: &cos, sin: &sin, width: 32 }, None);
    let (weight, bias) = (numbers(331 * WIDTH, 0.8), numbers(331, 0.9));
    let mut products = vec![0; 3 * 331];
    linear(&normed[..3 * WIDTH], &[weight[..].into()], Some(&bias), WIDTH, &mut products);
    let mut of_parts = vec![0; 3 * 331];
    let (first, second) = weight.split_at(107 * WIDTH);
    linear(&normed[..3 * WIDTH], &[first.into(), second.into()], Some(&bias), WIDTH, &mut of_parts);
    assert_eq!(of_parts, products);
    vec![x, normed, product, heads, attention(8), products, attention(usize::MAX)]
}

/// Rows of very unequal lengths, one of them of so many queries that it is cut if it is taken.
fn attention(query_len_max: usize) -> Vec<u16> {
    let lengths = [700_usize, 3, 90, 1, 400, 33, 250, 64];
    let queries_of = [1_usize, 3, 2, 1, 100, 4, 1, 1];
    let tokens: usize = queries_of.iter().sum();
    let width = 44;
    let mut starts = vec![0];
    let mut table = vec![0; width * lengths.len()];
    for (row, (&length, &queries)) in lengths.iter().zip(&queries_of).enumerate() {
        starts.push(starts[row] + queries as i32);
        for index in 0..length.div_ceil(BLOCK_SIZE) {
            table[row * width + index] = ((row * 60 + index) % BLOCK_COUNT) as i32;
        }
    }
    let kv_lens = lengths.map(|length| length as i32);
    let mut attention = Attention::new(BLOCK_COUNT, BLOCK_SIZE);
    attention.rows_mut().set(&starts, &kv_lens, &table, width, &vec![-1; tokens + 2]).expect("arrays that fit");
    let (queries, pool) = (numbers((tokens + 2) * 256, 0.6), numbers(2 * BLOCK_COUNT * BLOCK_SIZE * 64, 0.7));
    let mut output = vec![7; (tokens + 2) * 256];
    let shape = Shape { head_count: 4, kv_head_count: 2, key_size: 64, value_size: 64 };
    let heads = Heads { data: &queries, row_width: 256, first: 0 };
    attention.attend(shape, heads, &pool, Some(&pool), 0.125, 0, query_len_max, &mut output);
    output
}

#[test]
fn any_number_of_threads_gives_the_same() {
    let expected = layers();
    let long = &expected[4][7 * 256..107 * 256];
    assert!(long.iter().all(|&value| value == 7), "the long row is the caller's");
    assert!(expected[4][113 * 256..].iter().all(|&value| value == 0), "tokens of no row are zero");
    for count in [2, 3, 16, 1] {
        set_threads(count).expect("threads");
        assert_eq!(layers(), expected, "{count} threads");
    }
}
