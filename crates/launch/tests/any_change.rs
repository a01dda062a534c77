//! Arrays that are right pass, and a change of any single entry that has one right value is refused.

use paceline_launch::{Arrays, Contract, Fault, Launch, Limits, Mode, check};
use proptest::prelude::*;

const LIMITS: Limits = Limits { max_model_len: 40, k_max: 3, block_size: 4, block_count: 120, vocab_size: 50 };
const ROWS: usize = 8;
const TOKENS: usize = 64;
const WIDTH: usize = 12;

fn contract() -> Contract {
    Contract {
        name: "reference".into(),
        uniform_query_len_max: 0,
        block_sizes: Vec::new(),
        table_alignment: 1,
        kv_overhang_max: -1,
        row_capacity: 0,
    }
}

/// A pass with its arrays.
#[derive(Debug, Clone)]
struct World {
    launch: Launch,
    input_ids: Vec<i64>,
    positions: Vec<i64>,
    slots: Vec<i64>,
    query_start_loc: Vec<i32>,
    kv_lens: Vec<i32>,
    block_table: Vec<i32>,
    request_index: Vec<i32>,
    logits_index: Vec<i64>,
}

impl World {
    fn check(&self) -> Result<(), Fault> {
        let arrays = Arrays {
            input_ids: &self.input_ids,
            positions: &self.positions,
            slots: &self.slots,
            query_start_loc: &self.query_start_loc,
            kv_lens: &self.kv_lens,
            block_table: &self.block_table,
            request_index: &self.request_index,
            logits_index: &self.logits_index,
        };
        check(&self.launch, &arrays, &LIMITS, &contract())
    }
}

/// A request's row, or the dummy's: tokens that were computed before, and those of this pass.
type RowSpec = (i32, i32);

fn narrow(number: usize) -> i32 {
    i32::try_from(number).expect("counts are small")
}

fn make(mode: Mode, rows: &[RowSpec], is_dummy: bool, rows_more: usize) -> World {
    let mut world = World {
        launch: Launch {
            mode,
            query_len: if mode == Mode::Full { i64::from(rows[0].1) } else { 0 },
            rows: i64::try_from(rows.len()).expect("counts are small"),
            tokens: rows.iter().map(|row| i64::from(row.1)).sum(),
            is_dummy,
            rows_padded: i64::try_from(rows.len() + rows_more).expect("counts are small"),
            tokens_padded: 0,
            logits: 0,
            ahead: 0,
        },
        input_ids: vec![0; TOKENS],
        positions: vec![0; TOKENS],
        slots: vec![-1; TOKENS],
        query_start_loc: vec![0; ROWS + 1],
        kv_lens: vec![0; ROWS],
        block_table: vec![0; ROWS * WIDTH],
        request_index: vec![-1; TOKENS],
        logits_index: vec![-1; TOKENS],
    };
    let mut next_block = 1;
    for (row, &(computed, len)) in rows.iter().enumerate() {
        let begin = world.query_start_loc[row];
        world.query_start_loc[row + 1..].fill(begin + len);
        world.kv_lens[row] = if is_dummy { len } else { computed + len };
        if is_dummy {
            continue;
        }
        for column in 0..usize::try_from((computed + len + 3) / 4).expect("counts are small") {
            world.block_table[row * WIDTH + column] = next_block;
            next_block += 1;
        }
        for offset in 0..len {
            let token = usize::try_from(begin + offset).expect("counts are small");
            let position = computed + offset;
            let block = world.block_table[row * WIDTH + usize::try_from(position / 4).expect("counts are small")];
            world.request_index[token] = narrow(row);
            world.positions[token] = i64::from(position);
            world.slots[token] = i64::from(block * 4 + position % 4);
            world.input_ids[token] = i64::from(7 + offset);
        }
        world.logits_index[usize::try_from(world.launch.logits).expect("counts are small")] =
            i64::from(begin + len - 1);
        world.launch.logits += 1;
    }
    if mode == Mode::Full {
        let len = rows[0].1;
        for row in rows.len()..rows.len() + rows_more {
            let begin = world.query_start_loc[row];
            world.query_start_loc[row + 1..].fill(begin + len);
            world.kv_lens[row] = len;
        }
        world.launch.tokens_padded = world.launch.rows_padded * world.launch.query_len;
    } else {
        world.launch.tokens_padded = world.launch.tokens + i64::try_from(rows_more).expect("counts are small");
    }
    world
}

fn worlds() -> impl Strategy<Value = World> {
    let full = (1..5_i32, prop::collection::vec(0..20_i32, 1..5), 0..4_usize).prop_map(|(len, computed, more)| {
        make(Mode::Full, &computed.iter().map(|&computed| (computed, len)).collect::<Vec<_>>(), false, more)
    });
    let mixed = (prop::bool::ANY, prop::collection::vec((0..20_i32, 1..9_i32), 1..5), 0..4_usize)
        .prop_map(|(eager, rows, more)| make(if eager { Mode::Eager } else { Mode::Piecewise }, &rows, false, more));
    let dummy = (1..5_i32, 0..4_usize).prop_map(|(len, more)| make(Mode::Full, &[(0, len)], true, more));
    prop_oneof![full, mixed, dummy]
}

/// Adds `change` to an entry that has one right value; which array and entry, `pick` says. False where it may be anything.
fn change_one(world: &mut World, array: usize, pick: usize, change: i32) -> bool {
    let tokens =
        if world.launch.is_dummy { 0 } else { usize::try_from(world.launch.tokens).expect("counts are small") };
    let requests =
        if world.launch.is_dummy { 0 } else { usize::try_from(world.launch.rows).expect("counts are small") };
    let attended = match world.launch.mode {
        Mode::Full => usize::try_from(world.launch.rows_padded).expect("counts are small"),
        _ => usize::try_from(world.launch.rows).expect("counts are small"),
    };
    let logits = usize::try_from(world.launch.logits).expect("counts are small");
    let wide = i64::from(change);
    match array {
        0 => world.positions[pick % TOKENS] += wide,
        1 => world.query_start_loc[pick % (ROWS + 1)] += change,
        2 => world.kv_lens[pick % ROWS] += change,
        3 => world.request_index[pick % TOKENS] += change,
        4 => world.input_ids[tokens + pick % (TOKENS - tokens)] += wide,
        5 => world.logits_index[logits + pick % (TOKENS - logits)] += wide,
        6 if requests < attended => {
            world.block_table[requests * WIDTH + pick % ((attended - requests) * WIDTH)] += change;
        }
        7 => {
            let slot = &mut world.slots[pick % TOKENS];
            *slot += wide;
            // A token without a slot is a placeholder.
            return *slot != -1;
        }
        _ => return false,
    }
    true
}

proptest! {
    #[test]
    fn right_arrays_pass(world in worlds()) {
        prop_assert_eq!(world.check(), Ok(()));
    }

    #[test]
    fn a_change_is_refused(
        mut world in worlds(),
        array in 0..8_usize,
        pick in 0..1_000_usize,
        change in prop_oneof![-70..0_i32, 1..70_i32],
    ) {
        if change_one(&mut world, array, pick, change) {
            let fault = world.check().expect_err("a changed entry is refused");
            prop_assert_ne!(fault.expected, fault.got);
        }
    }

    #[test]
    fn a_count_of_the_plan_cannot_change_alone(mut world in worlds(), count in 0..3_usize, change in prop_oneof![-9..0_i64, 1..9_i64]) {
        match count {
            0 => world.launch.rows += change,
            1 => world.launch.tokens += change,
            _ if world.launch.mode == Mode::Full => world.launch.tokens_padded += change,
            _ => return Ok(()),
        }
        prop_assert!(world.check().is_err());
    }
}

#[test]
fn arrays_of_two_capacities_are_refused() {
    let mut world = make(Mode::Eager, &[(3, 2)], false, 0);
    world.slots.pop();
    let fault = world.check().unwrap_err();
    assert_eq!((fault.field.as_ref(), fault.expected, fault.got), ("length of slots", 64, 63));
}

#[test]
fn a_row_may_lack_the_blocks_of_its_drafts_only() {
    let mut world = make(Mode::Eager, &[(8, 1)], false, 0);
    world.slots[0] = -1;
    world.block_table[2] = 0;
    assert_eq!(world.check(), Ok(()), "the block of the token itself is not read yet");
    world.block_table[1] = 0;
    let fault = world.check().unwrap_err();
    assert_eq!((fault.field.as_ref(), fault.expected, fault.got), ("blocks of row 0", 2, 1));
    world.launch.ahead = 5;
    assert_eq!(world.check(), Ok(()));
}
