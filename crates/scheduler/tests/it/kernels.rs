//! Field cases whose numbers are in the arrays that kernels are given. Every step of these worlds is also checked entry
//! by entry, see `arrays`.

use paceline_plan::seats::{SeatTable, StepHeader, WorkerStep};
use paceline_plan::{GroupId, Mode, QueryLen, RankLoad, Shape, digest, to_bytes};
use paceline_scheduler::{Config, ShapeConfig};

use crate::arrays::Arrays;
use crate::world::{World, lockstep};

/// A world in which `rows` requests decode on rank 0 and all other ranks are idle; its newest step is the first decode.
fn decoding(config: Config, rows: u32) -> World {
    let mut world = World::new(config);
    for _ in 0..rows {
        world.submit_to(0, 4, 200);
    }
    world.step(0).expect("prompts");
    world.step(0).expect("decodes");
    world
}

#[test]
fn a01_no_offset_of_an_idle_rank_goes_down_and_no_row_is_short() {
    let mut config = lockstep(2, 8, 3);
    config.shapes = ShapeConfig::from_tokens(&[4, 8, 16, 32], 8, &[3]);
    let world = decoding(config, 3);
    for arrays in &world.arrays {
        assert_eq!(arrays.query_start_loc, [0, 4, 8, 12, 16, 16, 16, 16, 16]);
    }
    for k in 0..=7 {
        let world = decoding(lockstep(2, 8, k), 3);
        let lens = world.arrays[1].query_start_loc.windows(2).take(3).map(|pair| pair[1] - pair[0]);
        assert!(lens.eq([1 + k.cast_signed(); 3]));
        assert_eq!(world.arrays[1].kv_lens[..3], [1 + k.cast_signed(); 3]);
    }
}

#[test]
fn a03_every_array_of_an_idle_rank_has_its_peers_rows() {
    let mut world = decoding(lockstep(8, 32, 0), 32);
    let plan = world.step(0).expect("decodes");
    let target = plan.group().target();
    assert_eq!((target.query_len(), target.rows_padded().get()), (Some(QueryLen::ONE), 32));
    let (arrays, width) = (&world.arrays[3], world.workers[3].limits().table_width as usize);
    assert!(arrays.query_start_loc.iter().copied().eq(0..=32), "each row is one token long, none is empty");
    assert_eq!(arrays.kv_lens, [1; 32]);
    assert_eq!((&arrays.input_ids[..32], &arrays.positions[..32]), (&[0; 32][..], &[0; 32][..]));
    assert_eq!(arrays.slots[..32], [-1; 32]);
    assert_eq!(arrays.block_table, vec![0; 32 * width]);
}

/// 500 steps of 3 rows in PIECEWISE sizes that the lists do not have as multiples of Q.
#[test]
fn b05_piecewise_sizes_are_multiples_of_the_verify_width() {
    let world = |shapes| {
        let mut config = lockstep(1, 3, 15);
        config.shapes = shapes;
        let mut world = World::new(config);
        (world.accept_permille, world.propose_permille) = (700, 500);
        for _ in 0..3 {
            world.submit(5, 4000);
        }
        world
    };
    let shapes = ShapeConfig::from_tokens(&[], 3, &[15]).with_token_ladder(&[1, 8, 24, 40], &[15]);
    assert_eq!(shapes.tokens(16), [16, 32, 48]);
    let (mut piecewise, mut eager) = (world(shapes), world(ShapeConfig::eager()));
    let mut sizes = std::collections::BTreeSet::new();
    for _ in 0..500 {
        let plan = piecewise.step(0).expect("three rows decode");
        assert_eq!(eager.step(0).expect("three rows decode").group().target().mode(), Mode::Eager);
        if let Shape::Piecewise { tokens_padded } = plan.group().target().shape() {
            sizes.insert(tokens_padded.get());
        }
        let rank = &plan.ranks()[0];
        assert!(rank.rows()[..rank.decode_rows() as usize].iter().all(|row| row.placeholders() == 0));
    }
    assert_eq!(sizes.into_iter().collect::<Vec<_>>(), [16, 32, 48]);
    for (id, live) in &piecewise.requests {
        assert!(live.emitted.len() > 500, "some drafts were accepted");
        assert_eq!(live.emitted, eager.requests[id].emitted);
    }
}

/// 10,000 random batches, among them rows of 4, 4, 4 and 1 tokens padded to 16.
#[test]
fn b09_attention_lengths_add_up_to_the_query_tensor() {
    let mut config = lockstep(1, 4, 3);
    config.shapes = ShapeConfig::from_tokens(&[4, 8, 16], 4, &[3]);
    let mut world = World::new(config);
    (world.accept_permille, world.propose_permille) = (600, 400);
    let mut met = 0;
    while world.steps < 10_000 {
        if world.random.chance(200) {
            let (prompt, output) = (1 + world.random.below(20), 1 + world.random.below(40));
            world.submit(prompt, output);
        }
        let Some(plan) = world.step(0) else { continue };
        let target = plan.group().target();
        let arrays = &world.arrays[0];
        let end = *arrays.query_start_loc.last().expect("never empty");
        let RankLoad::Real { tokens, .. } = target.loads()[0] else { panic!("a group of one runs no dummy") };
        let is_full = target.mode() == Mode::Full;
        assert_eq!(end as u32, if is_full { target.tokens_padded().get() } else { tokens.get() });
        let mut lens: Vec<u32> = plan.ranks()[0].rows().iter().map(|row| 1 + row.drafts).collect();
        lens.sort_unstable();
        if is_full && lens == [1, 4, 4, 4] {
            met += 1;
            assert_eq!(arrays.query_start_loc, [0, 4, 8, 12, 16]);
        }
    }
    assert!(met > 10, "{met}");
}

/// Begins a world's next step on a copy of the worker.
fn begin(world: &mut World) -> (SeatTable, WorkerStep) {
    let group = GroupId::new(0);
    let plan = world.scheduler.plan(group).expect("a step");
    let part = to_bytes(plan.group());
    let (epoch, step) = (plan.group().epoch(), plan.group().step());
    let header = StepHeader { group, epoch, step, digest: digest(&part) };
    let mut table = world.workers[0].clone();
    let step = table.begin(header, &part, &to_bytes(&plan.ranks()[0])).expect("a legal plan");
    (table, step)
}

/// 8 rows at position 30,000, then 1 row padded to 4, in the same buffers, 10,000 times.
#[test]
fn b13_every_second_step_finds_nothing_of_the_larger_one() {
    let mut config = lockstep(1, 8, 3);
    config.shapes = ShapeConfig::from_tokens(&[16, 32], 8, &[3]);
    config.limits.max_model_len = 32_768;
    config.limits.num_blocks = 16_384;
    config.limits.table_width = 2049;
    let (mut large, mut small) = (World::new(config.clone()), World::new(config));
    for _ in 0..8 {
        large.submit(30_000, 2000);
    }
    let mut steps = 0;
    while large.requests.values().any(|live| live.emitted.is_empty()) {
        large.step(0).expect("prompts");
        steps += 1;
        assert!(steps < 100);
    }
    small.submit(4, 100);
    small.step(0).expect("a prompt");
    let (large, small) = (begin(&mut large), begin(&mut small));
    let shapes = [&large.1, &small.1].map(|step| {
        let target = step.group.target();
        (target.mode(), target.rows_padded().get(), target.loads()[0].rows().get())
    });
    assert_eq!(shapes, [(Mode::Full, 8, 8), (Mode::Full, 4, 1)]);
    let limits = *large.0.limits();
    let mut arrays = Arrays::new(&limits);
    arrays.fill_and_check(&large.0, &large.1);
    for _ in 0..10_000 {
        arrays.fill(&large.0, &large.1);
        assert!(arrays.positions[..32].iter().all(|position| *position >= 30_000));
        arrays.fill_and_check(&small.0, &small.1);
        assert_eq!(arrays.positions[4..32], [0; 28]);
        assert_eq!(arrays.input_ids[4..32], [0; 28]);
        assert_eq!(arrays.slots[4..32], [-1; 28]);
        assert_eq!(arrays.kv_lens[1..], [4, 4, 4, 0, 0, 0, 0]);
        assert!(arrays.block_table[limits.table_width as usize..].iter().all(|block| *block == 0));
    }
}

/// A size of 512 tokens where a request has 256 at most: no row of it sees more keys than its table has.
#[test]
fn b14_no_dummy_sees_past_its_block_table() {
    for k in [0, 7] {
        let rows = 512 / (1 + k);
        let mut config = lockstep(2, rows, k);
        config.shapes = ShapeConfig::from_tokens(&[512], rows, &[k]);
        config.limits.max_model_len = 256;
        config.limits.table_width = (256 + k).div_ceil(16);
        let mut world = World::new(config);
        world.submit_to(0, 4, 252);
        while let Some(plan) = world.step(0) {
            let is_full = plan.group().target().mode() == Mode::Full;
            assert!(!is_full || plan.group().target().tokens_padded().get() == 512);
            for arrays in &world.arrays {
                let most = world.workers[0].limits().table_width as i32 * 16;
                let real = i32::from(is_full) * k.cast_signed();
                assert!(arrays.kv_lens.iter().all(|kv_len| *kv_len <= 256 + real && *kv_len <= most));
                assert!(arrays.kv_lens[1..].iter().all(|kv_len| *kv_len <= 1 + k.cast_signed()));
            }
            assert!(world.arrays[1].kv_lens[0] <= 256);
        }
        world.assert_drained();
    }
}

/// The check of the arrays is worth something: one false entry anywhere is found.
#[test]
fn a_false_entry_in_any_array_is_found() {
    let mut config = lockstep(1, 4, 3);
    config.shapes = ShapeConfig::from_tokens(&[16], 4, &[3]);
    let mut world = decoding(config, 2);
    let (table, step) = begin(&mut world);
    let changes: [fn(&mut Arrays); 16] = [
        |arrays| arrays.input_ids[0] += 1,
        |arrays| arrays.input_ids[15] = 1,
        |arrays| arrays.positions[5] += 1,
        |arrays| arrays.positions[8] = 1,
        |arrays| arrays.slots[1] += 1,
        |arrays| arrays.slots[4] = arrays.slots[0],
        |arrays| arrays.slots[12] = 0,
        |arrays| arrays.query_start_loc[2] = 7,
        |arrays| arrays.query_start_loc[4] = 13,
        |arrays| arrays.kv_lens[0] -= 1,
        |arrays| arrays.kv_lens[3] = 1,
        |arrays| arrays.block_table[1] = arrays.block_table[0],
        |arrays| *arrays.block_table.last_mut().expect("not empty") = 1,
        |arrays| arrays.request_index[9] = 2,
        |arrays| arrays.logits_index[7] = 0,
        |arrays| arrays.logits -= 1,
    ];
    let mut arrays = Arrays::new(table.limits());
    arrays.fill_and_check(&table, &step);
    for (index, change) in changes.iter().enumerate() {
        let mut broken = arrays.clone();
        broken.fill(&table, &step);
        change(&mut broken);
        let found = std::panic::catch_unwind(|| broken.check(&table, &step));
        assert!(found.is_err(), "change {index} is not found");
    }
}
