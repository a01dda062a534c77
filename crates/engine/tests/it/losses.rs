//! Workers that die, refuse, lie or fall silent: no stream hangs, the log and the events name the rank, the group
//! comes back.

use paceline_engine::{FailureKind, GenerateRequest, RankState, SubmitError};
use paceline_testing::{Behaviour, Ended};

use crate::support::{End, Fleet, Setup, expect_text, limit, prompt, read, refusal, request};

async fn pinned(fleet: &Fleet, dp_rank: u32, number: u32, count: u32) -> paceline_engine::TokenStream {
    let request = GenerateRequest { dp_rank: Some(dp_rank), ..request(&prompt(number, 6), count) };
    fleet.handle.submit(request).await.expect("taken")
}

fn assert_failed(end: &End, expected: FailureKind, dp_rank: u32) {
    match end {
        End::Failed(kind, message) => {
            assert_eq!(*kind, expected, "{message}");
            assert!(message.contains(&format!("dp{dp_rank}")), "{message}");
        }
        End::Finished(reason) => panic!("finished with {reason:?}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a19_a_dead_worker_ends_its_streams_and_no_other() {
    let setup = Setup { dp_size: 4, ..Setup::default() };
    let mut fleet = setup
        .start_with(|behaviour| {
            if behaviour.dp_rank == 2 {
                behaviour.die_at_step = Some(20);
            }
        })
        .await;
    let mut streams = Vec::new();
    for number in 0..8 {
        streams.push((pinned(&fleet, number % 4, number, 60).await, number));
    }
    for (stream, number) in streams {
        if number % 4 == 2 {
            let (tokens, end) = read(stream).await;
            assert!(!tokens.is_empty());
            assert_failed(&end, FailureKind::WorkerLost, 2);
        } else {
            expect_text(stream, &prompt(number, 6), 60).await;
        }
    }
    let status = fleet.handle.status();
    assert!(!status.ready);
    assert_eq!(status.ranks[2].state, RankState::Recovering);
    let request_2 = GenerateRequest { dp_rank: Some(2), ..request(&[1], 1) };
    assert!(matches!(refusal(&fleet, request_2).await, SubmitError::Unavailable { .. }));
    fleet.add(2, |_| {});
    let status = fleet.until("ready again", |status| status.ready).await;
    assert_eq!(status.ranks[2].restarts, 1);
    expect_text(pinned(&fleet, 2, 9, 12).await, &prompt(9, 6), 12).await;
    fleet.stop().await;
}

async fn lockstep_fault(change: impl Fn(&mut Behaviour), kind: FailureKind) {
    let mut fleet = Setup { lockstep: true, k: 1, ..Setup::default() }
        .start_with(|behaviour| {
            if behaviour.dp_rank == 1 {
                change(behaviour);
            }
        })
        .await;
    let streams = [pinned(&fleet, 0, 0, 200).await, pinned(&fleet, 1, 1, 200).await];
    for stream in streams {
        assert_failed(&read(stream).await.1, kind, 1);
    }
    // Every worker of the group has to come again.
    let workers = std::mem::take(&mut fleet.workers);
    for worker in workers {
        match limit(worker.task).await.expect("no panic") {
            Ended::Stopped(reason) => assert!(reason.contains("dp1"), "{reason}"),
            Ended::Died | Ended::Lost(_) => {}
            other => panic!("{other:?}"),
        }
    }
    for dp_rank in 0..2 {
        fleet.add(dp_rank, |_| {});
    }
    fleet.until("ready again", |status| status.ready).await;
    expect_text(pinned(&fleet, 1, 5, 30).await, &prompt(5, 6), 30).await;
    assert!(fleet.workers.iter().all(|worker| worker.records.all().iter().all(|record| record.epoch == 2)));
    fleet.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_death_in_lockstep_ends_the_epoch_for_all() {
    lockstep_fault(|behaviour| behaviour.die_at_step = Some(15), FailureKind::WorkerLost).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refused_plan_ends_the_epoch_for_all() {
    lockstep_fault(|behaviour| behaviour.refuse_at_step = Some(15), FailureKind::Internal).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_false_digest_is_a_fault() {
    lockstep_fault(|behaviour| behaviour.lie_digest_at_step = Some(15), FailureKind::Internal).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pass_too_many_is_a_fault() {
    lockstep_fault(|behaviour| behaviour.lie_passes_at_step = Some(15), FailureKind::Internal).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f06_a_silent_worker_is_lost_in_work_and_idle() {
    let mut setup = Setup { dp_size: 1, ..Setup::default() };
    setup.deadlines.heartbeat_ms = 1_500;
    let fleet = setup.start_with(|behaviour| behaviour.mute_at_step = Some(3)).await;
    let (tokens, end) = read(pinned(&fleet, 0, 1, 20).await).await;
    assert_eq!(tokens.len(), 2);
    assert_failed(&end, FailureKind::WorkerLost, 0);
    assert!(!fleet.handle.status().ready);
    fleet.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_never_answers_is_lost_at_the_steps_limit() {
    let mut setup = Setup { dp_size: 1, ..Setup::default() };
    (setup.deadlines.step_ms, setup.deadlines.step_token_us) = (400, 0);
    let fleet = setup.start_with(|behaviour| behaviour.hang_at_step = Some(3)).await;
    let (_, end) = read(pinned(&fleet, 0, 1, 20).await).await;
    assert_failed(&end, FailureKind::WorkerLost, 0);
    fleet.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiting_requests_end_when_no_rank_comes_back() {
    let mut setup = Setup { dp_size: 1, max_num_seqs: 1, ..Setup::default() };
    setup.deadlines.unserved_ms = 300;
    let fleet = setup.start_with(|behaviour| behaviour.die_at_step = Some(5)).await;
    let running = fleet.submit(&prompt(1, 6), 50).await;
    let waiting = fleet.submit(&prompt(2, 6), 50).await;
    assert_failed(&read(running).await.1, FailureKind::WorkerLost, 0);
    assert_failed(&read(waiting).await.1, FailureKind::WorkerLost, 0);
    assert_eq!(fleet.handle.status().waiting, 0);
    fleet.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a23_an_abort_of_the_last_request_needs_no_new_one() {
    let fleet = Setup::default().start_with(|behaviour| behaviour.delay_ms = 5).await;
    let mut stream = fleet.submit(&prompt(1, 40), 800).await;
    limit(stream.next()).await.expect("a first token");
    let steps = fleet.handle.status().counters.steps;
    drop(stream);
    let status = fleet.until("empty", |status| status.counters.aborted == 1).await;
    assert!(status.counters.steps <= steps + 2, "{} then {}", steps, status.counters.steps);
    let empty = |rank: &paceline_engine::RankStatus| rank.running == 0 && rank.kv_blocks_used == 0;
    fleet.until("free", |status| status.ranks.iter().all(empty)).await;
    assert!(fleet.handle.status().counters.steps <= steps + 2);
    fleet.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn e13_requests_that_are_dropped_anywhere_leave_nothing() {
    let fleet = Setup { max_num_seqs: 4, ..Setup::default() }.start().await;
    for round in 0..200 {
        let mut streams = Vec::new();
        for number in 0..16 {
            streams.push(fleet.submit(&prompt(round + number, 1 + number * 20), 400).await);
        }
        if round % 3 == 0 {
            limit(streams[0].next()).await.expect("a first token");
        }
    }
    let status = fleet.until("aborted", |status| status.counters.aborted == 3_200).await;
    assert_eq!((status.waiting, status.counters.finished), (0, 0));
    let empty = |rank: &paceline_engine::RankStatus| rank.running == 0 && rank.kv_blocks_used == 0;
    fleet.until("free", |status| status.ranks.iter().all(empty)).await;
    fleet.stop().await;
}
