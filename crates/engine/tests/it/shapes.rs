//! What workers see of shapes: dummies, idle fleets, lockstep.

use std::time::Duration;

use paceline_engine::GenerateRequest;
use paceline_plan::Mode;

use crate::support::{Setup, expect_text, prompt, request};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a11_an_idle_fleet_runs_no_step() {
    let fleet = Setup { dp_size: 4, lockstep: true, ..Setup::default() }.start().await;
    let pinned = GenerateRequest { dp_rank: Some(2), ..request(&prompt(1, 5), 8) };
    expect_text(fleet.handle.submit(pinned).await.expect("taken"), &prompt(1, 5), 8).await;
    let steps = fleet.handle.status().counters.steps;
    assert_eq!(steps, 8);
    // Three ticks and more.
    tokio::time::sleep(Duration::from_millis(400)).await;
    assert_eq!(fleet.handle.status().counters.steps, steps);
    fleet.until_all_answered().await;
    fleet.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a20_a_rank_that_finishes_early_takes_part_to_the_end() {
    let fleet = Setup { lockstep: true, ..Setup::default() }.start().await;
    let short = GenerateRequest { dp_rank: Some(0), ..request(&prompt(1, 4), 5) };
    let long = GenerateRequest { dp_rank: Some(1), ..request(&prompt(2, 4), 500) };
    let streams = [fleet.handle.submit(short).await.expect("taken"), fleet.handle.submit(long).await.expect("taken")];
    let [short, long] = streams;
    expect_text(short, &prompt(1, 4), 5).await;
    expect_text(long, &prompt(2, 4), 500).await;
    fleet.until_all_answered().await;
    let records: Vec<_> = fleet.workers.iter().map(|worker| worker.records.all()).collect();
    assert_eq!(records[0].len(), records[1].len());
    assert!(records[0].len() >= 500);
    let dummies = records[0].iter().filter(|record| record.dummy_tokens == 1).count();
    assert!(dummies >= 494, "{dummies} dummies");
    fleet.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a01_dummies_are_as_long_as_a_decode_row_for_every_k() {
    for k in 0..=7 {
        let ladder = (0..4).map(|shift| (k + 1) << shift).collect();
        let setup = Setup { lockstep: true, k, tokens_ladder: Some(ladder), ..Setup::default() };
        let fleet = setup.start().await;
        let mut streams = Vec::new();
        for number in 0..3 {
            let pinned = GenerateRequest { dp_rank: Some(0), ..request(&prompt(number, 4), 40) };
            streams.push((fleet.handle.submit(pinned).await.expect("taken"), prompt(number, 4)));
        }
        for (stream, prompt) in streams {
            expect_text(stream, &prompt, 40).await;
        }
        fleet.until_all_answered().await;
        let [busy, idle] = [0, 1].map(|rank: usize| fleet.workers[rank].records.all());
        assert_eq!(busy.len(), idle.len());
        let mut full_steps = 0;
        for (busy, idle) in busy.iter().zip(&idle) {
            assert_eq!(idle.dummy_tokens, k + 1);
            assert_eq!(
                (busy.mode, busy.rows_padded, busy.tokens_padded),
                (idle.mode, idle.rows_padded, idle.tokens_padded)
            );
            assert_eq!(busy.passes, idle.passes);
            if busy.mode == Mode::Full {
                full_steps += 1;
                assert_eq!(busy.rows_padded * (k + 1), busy.tokens_padded);
                assert_eq!(busy.rows * (k + 1), busy.tokens);
                assert_eq!(busy.rows_padded, if busy.rows == 3 { 4 } else { busy.rows });
            }
        }
        assert!(full_steps > 4, "k={k}: {full_steps} FULL steps");
        fleet.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a24_a_dummy_beside_a_long_prompt_is_small_and_counted_apart() {
    let setup = Setup {
        lockstep: true,
        k: 1,
        max_num_batched_tokens: 8192,
        max_model_len: 16384,
        num_blocks: 1024,
        ..Setup::default()
    };
    let fleet = setup.start().await;
    let pinned = GenerateRequest { dp_rank: Some(0), ..request(&prompt(1, 8192), 1) };
    expect_text(fleet.handle.submit(pinned).await.expect("taken"), &prompt(1, 8192), 1).await;
    let status = fleet.until_all_answered().await;
    let idle = &status.ranks[1].counters;
    assert_eq!((idle.dummy_steps, idle.dummy_tokens, idle.real_tokens()), (1, 2, 0));
    let records = fleet.workers[1].records.all();
    assert_eq!((records.len(), records[0].tokens, records[0].dummy_tokens), (1, 0, 2));
    fleet.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a22_a_cold_start_of_eight_ranks_drafts_on_all_of_them_for_a_first_request_on_the_fourth() {
    let setup = Setup { dp_size: 8, lockstep: true, k: 3, drafter_layers: 1, ..Setup::default() };
    let fleet = setup.start().await;
    let pinned = GenerateRequest { dp_rank: Some(3), ..request(&prompt(9, 6), 40) };
    expect_text(fleet.handle.submit(pinned).await.expect("taken"), &prompt(9, 6), 40).await;
    fleet.until_all_answered().await;
    let busy = fleet.workers[3].records.all();
    // The target's pass, the drafter's over the same tokens, and two for the drafts after the first.
    assert!(busy.iter().all(|record| record.passes == 4 && record.dummy_tokens == 0), "{busy:?}");
    for (dp_rank, worker) in fleet.workers.iter().enumerate() {
        let records = worker.records.all();
        let seen =
            |record: &paceline_testing::StepRecord| (record.step, record.passes, record.mode, record.rows_padded);
        assert_eq!(records.iter().map(seen).collect::<Vec<_>>(), busy.iter().map(seen).collect::<Vec<_>>());
        assert!(dp_rank == 3 || records.iter().all(|record| (record.rows, record.dummy_tokens) == (0, 4)));
    }
    let counters = &fleet.handle.status().ranks[3].counters;
    assert!(counters.accepted_tokens > 0 && counters.accepted_tokens < counters.draft_tokens, "{counters:?}");
    fleet.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a14_the_first_request_may_be_on_any_rank() {
    for dp_rank in [3, 0] {
        let fleet = Setup { dp_size: 4, lockstep: true, k: 3, ..Setup::default() }.start().await;
        let pinned = GenerateRequest { dp_rank: Some(dp_rank), ..request(&prompt(9, 6), 3) };
        expect_text(fleet.handle.submit(pinned).await.expect("taken"), &prompt(9, 6), 3).await;
        fleet.until_all_answered().await;
        assert!(fleet.workers.iter().all(|worker| worker.records.all().first().is_some_and(|record| record.step == 1)));
        fleet.stop().await;
    }
}
