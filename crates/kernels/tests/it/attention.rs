//! Attention against a softmax written out, over blocks in any order.

use paceline_kernels::{Attention, Element, Heads, Shape};
use proptest::prelude::*;

const BLOCK_SIZE: usize = 4;
const BLOCK_COUNT: usize = 64;
const SLOTS: usize = BLOCK_SIZE * BLOCK_COUNT;

/// A repeatable number between -1 and 1.
fn number(seed: usize) -> f32 {
    let mixed = (seed as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    ((mixed >> 40) as f32 / (1_u64 << 23) as f32) - 1.0
}

fn numbers<E: Element>(count: usize, seed: usize) -> Vec<E> {
    (0..count).map(|index| E::from_f32(number(seed * 1_000_003 + index))).collect()
}

#[derive(Clone, Debug)]
struct Row {
    query_len: usize,
    kv_len: usize,
}

/// A pass over rows whose blocks are scattered, and the same computed plainly.
struct World {
    shape: Shape,
    rows: Vec<Row>,
    window: usize,
    /// Padding of the inputs, which belongs to no row.
    padding: usize,
    is_latent: bool,
    block_size: usize,
}

impl World {
    fn tokens(&self) -> usize {
        self.rows.iter().map(|row| row.query_len).sum()
    }

    fn blocks_of(&self, row: usize) -> Vec<usize> {
        // Odd numbers are prime to the count of blocks: every row strides through all of them.
        let wanted = self.rows[row].kv_len.div_ceil(self.block_size);
        (0..wanted).map(|index| (row * 7 + index * 5 + 3) % (SLOTS / self.block_size)).collect()
    }

    fn attention(&self) -> Attention {
        let width = self.rows.iter().map(|row| row.kv_len.div_ceil(self.block_size)).max().expect("rows");
        let mut starts = vec![0];
        let mut table = vec![0; width * self.rows.len()];
        for (index, row) in self.rows.iter().enumerate() {
            starts.push(starts[index] + row.query_len as i32);
            for (place, block) in table[index * width..].iter_mut().zip(self.blocks_of(index)) {
                *place = block as i32;
            }
        }
        let kv_lens: Vec<i32> = self.rows.iter().map(|row| row.kv_len as i32).collect();
        let mut attention = Attention::new(SLOTS / self.block_size, self.block_size);
        let slots = vec![-1; self.tokens() + self.padding];
        attention.rows_mut().set(&starts, &kv_lens, &table, width, &slots).expect("arrays that fit");
        attention
    }

    fn run<E: Element>(&self) -> (Vec<f32>, Vec<f32>) {
        let Shape { head_count, kv_head_count, key_size, value_size } = self.shape;
        let queries: Vec<E> = numbers((self.tokens() + self.padding) * head_count * key_size, 1);
        let keys: Vec<E> = numbers(kv_head_count * SLOTS * key_size, 2);
        let values: Vec<E> = if self.is_latent { keys.clone() } else { numbers(kv_head_count * SLOTS * value_size, 3) };
        let mut output = vec![E::from_f32(9.0); (self.tokens() + self.padding) * head_count * value_size];
        let heads = Heads { data: &queries, row_width: head_count * key_size, first: 0 };
        let scale = 0.3;
        let pool = (!self.is_latent).then_some(&values[..]);
        self.attention().attend(self.shape, heads, &keys, pool, scale, self.window, usize::MAX, &mut output);
        let stride = if self.is_latent { key_size } else { value_size };
        let mut expected = vec![0.0; output.len()];
        let mut token = 0;
        for (index, row) in self.rows.iter().enumerate() {
            let slots: Vec<usize> = self
                .blocks_of(index)
                .iter()
                .flat_map(|block| (0..self.block_size).map(move |offset| block * self.block_size + offset))
                .collect();
            for place in 0..row.query_len {
                let end = row.kv_len - row.query_len + place + 1;
                let begin = if self.window == 0 { 0 } else { end.saturating_sub(self.window) };
                for head in 0..head_count {
                    let kv_head = head / (head_count / kv_head_count);
                    let query = &queries[(token * head_count + head) * key_size..][..key_size];
                    let scores: Vec<f64> = (begin..end)
                        .map(|position| {
                            let key = &keys[(kv_head * SLOTS + slots[position]) * key_size..][..key_size];
                            let product: f64 = query
                                .iter()
                                .zip(key)
                                .map(|(&q, &k)| f64::from(q.to_f32()) * f64::from(k.to_f32()))
                                .sum();
                            (product * f64::from(scale)).exp()
                        })
                        .collect();
                    let total: f64 = scores.iter().sum();
                    for column in 0..value_size {
                        let sum: f64 = (begin..end)
                            .zip(&scores)
                            .map(|(position, score)| {
                                score
                                    * f64::from(values[(kv_head * SLOTS + slots[position]) * stride + column].to_f32())
                            })
                            .sum();
                        expected[(token * head_count + head) * value_size + column] = (sum / total) as f32;
                    }
                }
                token += 1;
            }
        }
        (output.iter().map(|value| value.to_f32()).collect(), expected)
    }

    fn check(&self) {
        for (limit, (got, expected)) in [(2e-6, self.run::<f32>()), (1e-2, self.run::<u16>())] {
            for (index, (got, expected)) in got.iter().zip(&expected).enumerate() {
                assert!((got - expected).abs() <= limit, "element {index}: expected {expected}, got {got}");
            }
        }
    }
}

fn row() -> impl Strategy<Value = Row> {
    (1_usize..8, prop_oneof![0_usize..200, 200_usize..700])
        .prop_map(|(query_len, before)| Row { query_len, kv_len: query_len + before })
}

fn long_row() -> impl Strategy<Value = Row> {
    (1_usize..150, prop_oneof![0_usize..20, 200_usize..400])
        .prop_map(|(query_len, before)| Row { query_len, kv_len: query_len + before })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn it_is_a_softmax_over_the_rows_own_keys(
        rows in proptest::collection::vec(row(), 1..5),
        window in prop_oneof![Just(0_usize), 1_usize..90],
        padding in 0_usize..3,
        (head_count, kv_head_count) in prop_oneof![Just((3, 1)), Just((4, 2)), Just((2, 2))],
        key_size in prop_oneof![Just(8_usize), Just(64), Just(24)],
        block_size in prop_oneof![Just(BLOCK_SIZE), Just(16), Just(64)],
    ) {
        let shape = Shape { head_count, kv_head_count, key_size, value_size: key_size };
        World { shape, rows, window, padding, is_latent: false, block_size }.check();
    }

    #[test]
    fn rows_may_have_many_queries(
        rows in proptest::collection::vec(long_row(), 1..3),
        window in prop_oneof![Just(0_usize), 1_usize..400],
        padding in 0_usize..3,
        (head_count, kv_head_count) in prop_oneof![Just((3, 1)), Just((2, 2))],
        block_size in prop_oneof![Just(BLOCK_SIZE), Just(64)],
    ) {
        let shape = Shape { head_count, kv_head_count, key_size: 64, value_size: 64 };
        World { shape, rows, window, padding, is_latent: false, block_size }.check();
    }

    #[test]
    fn a_latent_is_key_and_value(
        rows in proptest::collection::vec(row(), 1..4),
        heads in 1_usize..9,
        (key_size, value_size) in prop_oneof![Just((88, 72)), Just((96, 64)), Just((192, 128))],
    ) {
        let shape = Shape { head_count: heads, kv_head_count: 1, key_size, value_size };
        World { shape, rows, window: 0, padding: 1, is_latent: true, block_size: BLOCK_SIZE }.check();
    }
}

/// Bit for bit: a drafted token's row must not read otherwise than the row that decodes it later.
#[test]
fn a_query_gives_the_same_whatever_it_comes_with() {
    // Of heads that are tiles and of others; of eight that share a key, five queries are more than one tile.
    for (size, head_count) in [(16, 4), (64, 4), (64, 16)] {
        same_alone_and_together(Shape { head_count, kv_head_count: 2, key_size: size, value_size: size });
    }
}

fn same_alone_and_together(shape: Shape) {
    let width = shape.head_count * shape.key_size;
    let keys: Vec<u16> = numbers(2 * SLOTS * shape.key_size, 2);
    let values: Vec<u16> = numbers(2 * SLOTS * shape.key_size, 3);
    let queries: Vec<u16> = numbers(5 * width, 1);
    let table: Vec<i32> = (0..140).map(|block| (block * 3 + 1) % 64).collect();
    let run = |starts: &[i32], kv_lens: &[i32], first: usize, tokens: usize| {
        let mut attention = Attention::new(BLOCK_COUNT, BLOCK_SIZE);
        attention
            .rows_mut()
            .set(starts, kv_lens, &table.repeat(kv_lens.len()), 140, &vec![-1; tokens])
            .expect("arrays that fit");
        let mut output = vec![0_u16; tokens * width];
        let heads = Heads { data: &queries[first * width..(first + tokens) * width], row_width: width, first: 0 };
        attention.attend(shape, heads, &keys, Some(&values), 0.25, 0, 8, &mut output);
        output
    };
    for kv_len in [150, 258, 514] {
        let together = run(&[0, 5], &[kv_len], 0, 5);
        for token in 0..5 {
            let alone = run(&[0, 1], &[kv_len - 4 + token as i32], token, 1);
            assert_eq!(together[token * width..(token + 1) * width], alone[..], "token {token} of {kv_len}");
        }
        let split = run(&[0, 2, 5], &[kv_len - 3, kv_len], 0, 5);
        assert_eq!(together, split);
    }
}

/// A prompt cut into chunks anywhere: bit for bit what it is in one piece, also where it is shared out between threads.
#[test]
fn a_prompt_gives_the_same_however_it_is_cut() {
    for (shape, window) in [
        (Shape { head_count: 6, kv_head_count: 2, key_size: 64, value_size: 64 }, 0),
        (Shape { head_count: 2, kv_head_count: 2, key_size: 32, value_size: 128 }, 70),
        (Shape { head_count: 4, kv_head_count: 1, key_size: 24, value_size: 24 }, 0),
    ] {
        let (kv_len, query_len) = (600, 430);
        let width = shape.head_count * shape.key_size;
        let keys: Vec<u16> = numbers(shape.kv_head_count * 1024 * shape.key_size, 2);
        let values: Vec<u16> = numbers(shape.kv_head_count * 1024 * shape.value_size, 3);
        let queries: Vec<u16> = numbers(query_len * width, 1);
        let table: Vec<i32> = (0..38).map(|block| (block * 5 + 1) % 64).collect();
        let run = |first: usize, tokens: usize| {
            let mut attention = Attention::new(64, 16);
            let kv_len = (kv_len - query_len + first + tokens) as i32;
            let slots = vec![-1; tokens];
            attention.rows_mut().set(&[0, tokens as i32], &[kv_len], &table, 38, &slots).expect("arrays that fit");
            let mut output = vec![0_u16; tokens * shape.head_count * shape.value_size];
            let heads = Heads { data: &queries[first * width..(first + tokens) * width], row_width: width, first: 0 };
            attention.attend(shape, heads, &keys, Some(&values), 0.25, window, usize::MAX, &mut output);
            output
        };
        let whole = run(0, query_len);
        for cuts in [&[0, 1, 86, 87, 342, 430][..], &[0, 16, 17, 256, 272, 430]] {
            let chunks = cuts.windows(2).flat_map(|cut| run(cut[0], cut[1] - cut[0]));
            assert!(chunks.eq(whole.iter().copied()), "{shape:?}, cut at {cuts:?}");
        }
    }
}

/// What lies in blocks before the window may be anything: they may be another row's by now.
#[test]
fn keys_before_the_window_are_not_read() {
    let shape = Shape { head_count: 4, kv_head_count: 1, key_size: 64, value_size: 64 };
    let queries: Vec<u16> = numbers(3 * 256, 1);
    let run = |before: u16| {
        let mut pools = [2, 3].map(|seed| numbers::<u16>(SLOTS * 64, seed));
        for pool in &mut pools {
            pool[..137 * 64].fill(before);
        }
        let mut attention = Attention::new(16, 16);
        let table: Vec<i32> = (0..16).collect();
        attention.rows_mut().set(&[0, 3], &[150], &table, 16, &[-1; 3]).expect("arrays that fit");
        let mut output = vec![0_u16; 3 * 256];
        let heads = Heads { data: &queries, row_width: 256, first: 0 };
        attention.attend(shape, heads, &pools[0], Some(&pools[1]), 0.25, 11, usize::MAX, &mut output);
        output
    };
    assert_eq!(run(u16::from_f32(f32::NAN)), run(0));
}

#[test]
fn tokens_are_stored_where_their_slots_say() {
    let mut attention = Attention::new(3, 2);
    attention.rows_mut().set(&[0, 3], &[3], &[1, 2], 2, &[2, -1, 5, -1]).unwrap();
    let mut pool = vec![0.0_f32; 2 * 6];
    let new: Vec<f32> = (1..=16).map(|value| value as f32).collect();
    attention.store(&mut pool, 2, 1, Heads { data: &new, row_width: 4, first: 1 });
    assert_eq!(pool, [0.0, 0.0, 2.0, 0.0, 0.0, 10.0, 0.0, 0.0, 3.0, 0.0, 0.0, 11.0]);
}

#[test]
fn arrays_that_do_not_fit_are_refused_with_both_numbers() {
    let mut attention = Attention::new(4, 2);
    let rows = attention.rows_mut();
    let refused = |outcome: Result<(), paceline_kernels::Error>| outcome.unwrap_err().to_string();
    assert_eq!(refused(rows.set(&[0, 1], &[1], &[4], 1, &[-1])), "block id: expected 3 at most, got 4");
    assert_eq!(refused(rows.set(&[0, 1], &[3], &[1], 1, &[-1])), "kv_len: expected 2 at most, got 3");
    assert_eq!(refused(rows.set(&[0, 2], &[1], &[1], 1, &[-1, -1])), "kv_len: expected 2 at least, got 1");
    assert_eq!(refused(rows.set(&[0, 2], &[2], &[1], 1, &[-1])), "query_start_loc: expected 1 at most, got 2");
    assert_eq!(refused(rows.set(&[0, 1], &[1], &[1], 1, &[8])), "slot: expected 7 at most, got 8");
    assert_eq!(refused(rows.set(&[0, 1], &[1], &[1], 1, &[-2])), "slot: expected 0 at least, got -2");
}
