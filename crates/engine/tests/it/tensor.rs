//! Ranks of two workers: one text, one plan for both, and a fault when they differ.

use paceline_engine::{FailureKind, GenerateRequest, RankState};
use paceline_testing::{Behaviour, Ended};

use crate::support::{End, Fleet, Setup, expect_text, limit, prompt, read, request};

const SHARED: Setup = Setup {
    dp_size: 2,
    tp_size: 2,
    lockstep: true,
    k: 2,
    drafter_layers: 1,
    depth: 1,
    prefix_cache: false,
    max_num_seqs: 8,
    max_num_batched_tokens: 256,
    max_model_len: 1024,
    num_blocks: 512,
    attention_contract: "",
    queue: paceline_scheduler::QueueLimits { requests: None, tokens: None },
    deadlines: paceline_fleet::Deadlines {
        start_ms: 30_000,
        heartbeat_ms: 5_000,
        step_ms: 30_000,
        step_token_us: 0,
        unserved_ms: 8_000,
    },
    tokens_ladder: None,
};

async fn pinned(fleet: &Fleet, dp_rank: u32, number: u32, count: u32) -> paceline_engine::TokenStream {
    let request = GenerateRequest { dp_rank: Some(dp_rank), ..request(&prompt(number, 6), count) };
    fleet.handle.submit(request).await.expect("taken")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_workers_of_all_ranks_execute_every_step() {
    let fleet = SHARED.start().await;
    let mut streams = Vec::new();
    for number in 0..12 {
        streams.push((fleet.submit(&prompt(number, 6 + number), 40).await, prompt(number, 6 + number)));
    }
    for (stream, prompt) in streams {
        expect_text(stream, &prompt, 40).await;
    }
    let status = fleet.until_all_answered().await;
    let workers: Vec<usize> = status.ranks.iter().map(|rank| rank.workers.len()).collect();
    assert_eq!(workers, [2, 2]);
    for pair in fleet.workers.chunks(2) {
        assert_eq!(pair[0].records.all(), pair[1].records.all());
    }
    fleet.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ranks_of_their_own_step_at_their_own_pace() {
    let fleet = Setup { lockstep: false, ..SHARED }.start().await;
    expect_text(pinned(&fleet, 1, 4, 30).await, &prompt(4, 6), 30).await;
    assert!(fleet.workers[..2].iter().all(|worker| worker.records.all().is_empty()));
    assert_eq!(fleet.workers[2].records.all(), fleet.workers[3].records.all());
    fleet.stop().await;
}

/// Lets worker 1 of rank 1 misbehave. How the request on it ends, and that the fleet comes back.
async fn fault(change: impl Fn(&mut Behaviour)) -> (FailureKind, String) {
    let mut fleet = Setup { lockstep: false, ..SHARED }
        .start_with(|behaviour| {
            (behaviour.only_dp_rank, behaviour.only_tp_rank) = (Some(1), Some(1));
            change(behaviour);
        })
        .await;
    let (unharmed, harmed) = (pinned(&fleet, 0, 0, 60).await, pinned(&fleet, 1, 1, 200).await);
    let End::Failed(kind, message) = read(harmed).await.1 else { panic!("it finished") };
    expect_text(unharmed, &prompt(0, 6), 60).await;
    let status = fleet.handle.status();
    assert_eq!((status.ranks[0].state, status.ranks[1].state), (RankState::Ready, RankState::Recovering));
    for worker in fleet.workers.drain(2..) {
        let ended = limit(worker.task).await.expect("no panic");
        assert!(matches!(ended, Ended::Stopped(_) | Ended::Died | Ended::Lost(_)), "{ended:?}");
    }
    for tp_rank in [1, 0] {
        fleet.add_tp(1, tp_rank, |_| {});
    }
    let status = fleet.until("ready again", |status| status.ready).await;
    assert_eq!(status.ranks[1].restarts, 1);
    expect_text(pinned(&fleet, 1, 9, 12).await, &prompt(9, 6), 12).await;
    fleet.stop().await;
    (kind, message)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn workers_that_sample_different_tokens_end_their_rank() {
    let (kind, message) = fault(|behaviour| behaviour.lie_tokens_at_step = Some(5)).await;
    assert_eq!(kind, FailureKind::Internal);
    assert!(message.starts_with("dp1 tp1: false reply to step 5: tokens digest: expected "), "{message}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_worker_ends_its_rank() {
    let (kind, message) = fault(|behaviour| behaviour.die_at_step = Some(5)).await;
    assert_eq!(kind, FailureKind::WorkerLost);
    assert!(message.starts_with("dp1 tp1: worker lost"), "{message}");
}
