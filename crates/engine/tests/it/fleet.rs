//! Joining: who gets in, who does not, and what is said about it.

use paceline_testing::{Behaviour, Ended};

use crate::support::{Setup, limit};

async fn refused_field(change: impl Fn(&mut Behaviour), dp_rank: u32) -> String {
    let mut fleet = Setup::default().engine().await;
    fleet.add(0, |_| {});
    fleet.until("one worker loaded", |status| status.ranks[0].state.name() == "loaded").await;
    fleet.add(dp_rank, change);
    let worker = fleet.workers.pop().expect("just added");
    let field = match limit(worker.task).await.expect("no panic") {
        Ended::Rejected { field, .. } => field,
        other => panic!("{other:?}"),
    };
    assert!(!fleet.handle.status().ready);
    fleet.add(1, |_| {});
    fleet.until("ready", |status| status.ready).await;
    fleet.stop().await;
    field
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_differs_is_refused_with_the_field() {
    assert_eq!(refused_field(|worker| worker.join_token = "another".to_owned(), 1).await, "join_token");
    assert_eq!(refused_field(|worker| worker.protocol_hash = Some("0".to_owned()), 1).await, "protocol_hash");
    assert_eq!(refused_field(|worker| worker.checkpoint_digest = "x".to_owned(), 1).await, "checkpoint_digest");
    assert_eq!(refused_field(|_| {}, 0).await, "dp_rank");
    assert_eq!(refused_field(|_| {}, 2).await, "dp_rank");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_fleet_has_the_least_of_its_workers() {
    let setup = Setup { num_blocks: 0, ..Setup::default() };
    let fleet = setup.start_with(|worker| worker.num_blocks = 100 + worker.dp_rank * 50).await;
    let limits = fleet.handle.limits();
    assert_eq!((limits.kv_blocks, limits.dp_size, limits.block_size), (100, 2, 16));
    fleet.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stopping_tells_every_worker() {
    let mut fleet = Setup { lockstep: true, ..Setup::default() }.start().await;
    let workers = std::mem::take(&mut fleet.workers);
    fleet.stop().await;
    for worker in workers {
        assert!(matches!(limit(worker.task).await.expect("no panic"), Ended::Stopped(_)));
    }
}
