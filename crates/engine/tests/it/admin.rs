//! What operators ask of a running engine, with workers over real gRPC.

use paceline_engine::{CacheChange, FinishReason, Gate, GenerateRequest, StreamEvent, SubmitError};

use crate::support::{End, Setup, expect_text, limit, prompt, read, request};

fn cached() -> Setup {
    Setup { prefix_cache: true, ..Setup::default() }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a13_a_paused_engine_runs_no_step_and_goes_on_with_the_same_text() {
    let fleet = Setup { lockstep: true, ..Setup::default() }.start_with(|worker| worker.delay_ms = 2).await;
    let prompt = prompt(1, 40);
    let mut stream = fleet.submit(&prompt, 60).await;
    assert!(matches!(limit(stream.next()).await, Some(StreamEvent::Tokens { .. })));
    limit(fleet.handle.set_gate(None, Gate::Paused, true)).await.expect("done");
    let steps = fleet.handle.status().counters.steps;
    let waiting = fleet.submit(&prompt, 5).await;
    // The engine answers these after whatever it would have planned.
    for _ in 0..20 {
        assert_eq!(fleet.handle.abort_named(vec!["nobody".to_owned()]).await, Ok(0));
    }
    let status = fleet.handle.status();
    assert_eq!((status.counters.steps, status.waiting), (steps, 1));
    assert!(status.ready && status.ranks.iter().all(|rank| rank.gate == Gate::Paused));
    fleet.handle.set_gate(None, Gate::Open, true).await.expect("done");
    expect_text(waiting, &prompt, 5).await;
    let (tokens, end) = read(stream).await;
    assert!(tokens.len() < 60 && end == End::Finished(FinishReason::Length));
    let unknown = fleet.handle.set_gate(Some(2), Gate::Paused, true).await;
    assert!(matches!(unknown, Err(SubmitError::Invalid { field: "dp_rank", .. })), "{unknown:?}");
    fleet.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drain_ends_with_its_last_request_and_refuses_new_ones() {
    let fleet = Setup::default().start_with(|worker| worker.delay_ms = 2).await;
    let stream = fleet.submit(&prompt(1, 40), 30).await;
    fleet.handle.set_gate(None, Gate::Draining, false).await.expect("done");
    let status = fleet.handle.status();
    assert!(!status.ready && status.draining);
    let refused = fleet.handle.submit(request(&prompt(2, 5), 5)).await;
    assert!(matches!(refused, Err(SubmitError::Unavailable { .. })), "{refused:?}");
    let drained = limit(fleet.handle.set_gate(None, Gate::Draining, true));
    let (drained, (tokens, _)) = tokio::join!(drained, read(stream));
    drained.expect("done");
    assert_eq!(tokens.len(), 30);
    fleet.handle.set_gate(None, Gate::Open, false).await.expect("done");
    assert_eq!(read(fleet.submit(&prompt(2, 5), 5).await).await.0.len(), 5);
    fleet.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_can_be_ended_by_name_by_rank_or_all() {
    let fleet = Setup::default().start_with(|worker| worker.delay_ms = 5).await;
    let named = |name: &str, dp_rank: u32| GenerateRequest {
        request_id: name.to_owned(),
        dp_rank: Some(dp_rank),
        ..request(&prompt(dp_rank, 9), 900)
    };
    let mut streams = Vec::new();
    for (name, dp_rank) in [("twice", 0), ("twice", 1), ("other", 0), ("last", 1)] {
        let mut stream = fleet.handle.submit(named(name, dp_rank)).await.expect("taken");
        assert!(matches!(limit(stream.next()).await, Some(StreamEvent::Tokens { .. })));
        streams.push(stream);
    }
    assert_eq!(fleet.handle.abort_named(vec!["twice".to_owned()]).await, Ok(2));
    assert_eq!(fleet.handle.abort_rank(Some(0)).await, Ok(1));
    assert_eq!(fleet.handle.abort_rank(None).await, Ok(1));
    for stream in streams {
        assert_eq!(read(stream).await.1, End::Finished(FinishReason::Aborted));
    }
    fleet.until("empty", |status| status.ranks.iter().all(|rank| rank.running == 0)).await;
    fleet.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changes_of_the_prefix_cache_come_in_order_with_their_tokens() {
    let fleet = cached().start().await;
    let mut changes = fleet.handle.subscribe_cache().await.expect("it runs");
    let prompt = prompt(1, 40);
    let ask = || GenerateRequest { dp_rank: Some(1), ..request(&prompt, 3) };
    let stream = fleet.handle.submit(ask()).await.expect("taken");
    read(stream).await;
    let (missed, events) = limit(changes.next()).await.expect("the engine runs");
    assert_eq!((missed, events.dp_rank, events.first_sequence), (0, 1, 0));
    let [CacheChange::Stored { key, parent: None, tokens }, CacheChange::Stored { parent, tokens: more, .. }] =
        &events.changes[..]
    else {
        panic!("{events:?}")
    };
    assert_eq!((parent, [tokens.as_slice(), more].concat()), (&Some(*key), prompt[..32].to_vec()));
    let mut again = fleet.handle.submit(ask()).await.expect("taken");
    assert!(limit(again.next()).await.is_some());
    assert_eq!(again.cached_tokens(), 32);
    read(again).await;
    fleet.handle.reset_prefix_cache().await.expect("it runs");
    loop {
        let (_, events) = limit(changes.next()).await.expect("the engine runs");
        if events.changes.contains(&CacheChange::Cleared) {
            break;
        }
    }
    let status = fleet.handle.status();
    assert!(status.ranks.iter().all(|rank| rank.kv_blocks_cached == 0), "{status:?}");
    fleet.stop().await;
    while let Some((missed, _)) = limit(changes.next()).await {
        assert_eq!(missed, 0);
    }
}
