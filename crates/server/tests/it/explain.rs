//! `GET /explain/{step}`: words and numbers of kept steps, and what is said of others.

use crate::common::TestServer;
use paceline_engine::ledger::{
    DpRank, Epoch, ExplainedStep, Explanation, GroupId, HeldReason, LevelReason, Mode, Pace, PaddingCounters,
    PlacementReason, RankExplanation, RequestId, ShapeReason, Started, StepId,
};
use serde_json::json;

/// Rank 0 runs a chunk of 64 tokens, rank 1 is idle.
fn chunk(group: u32, step: u64) -> ExplainedStep {
    let reason = PlacementReason::Load { load: 64, next: 100 };
    let started = Started { id: RequestId(5), reason, ran_on: Some(DpRank::new(1)), cached_tokens: 32 };
    let busy = RankExplanation {
        dp_rank: DpRank::new(group * 2),
        prompt_rows: 1,
        real_tokens: 64,
        started: vec![started],
        held: vec![(RequestId(6), HeldReason::Budget)],
        ..RankExplanation::default()
    };
    let padding = PaddingCounters { idle_dummy: 2, group_alignment: 62, attention: 2, ..PaddingCounters::default() };
    let idle =
        RankExplanation { dp_rank: DpRank::new(group * 2 + 1), is_dummy: true, padding, ..RankExplanation::default() };
    let explanation = Explanation {
        group: GroupId::new(group),
        epoch: Epoch::new(1),
        step: StepId::new(step),
        k_verify: 1,
        k_draft: 1,
        passes: 2,
        mode: Mode::Eager,
        reason: ShapeReason::PromptRow { index: 0 },
        pace: Pace::Level { tokens: 64, reason: LevelReason::Gap },
        downgraded_by: Some(DpRank::new(group * 2)),
        rows_padded: 1,
        tokens_padded: 64,
        ranks: vec![busy, idle],
    };
    ExplainedStep { explanation, names: vec![(RequestId(5), "cmpl-mine".into())] }
}

#[tokio::test]
async fn a_kept_step_is_told_in_words_and_numbers() {
    let server = TestServer::saying("hi").await;
    for step in 3..=9 {
        server.publisher.explain(chunk(0, step));
    }
    let reply = server.get("/explain/7").await;
    assert_eq!(reply.status, 200, "{}", reply.body);
    let step = &reply.json()["steps"][0];
    assert_eq!((&step["step"], &step["mode"], &step["reason"]), (&json!(7), &json!("eager"), &json!("prompt_row")));
    assert_eq!((&step["downgraded_by"], &step["tokens_padded"]), (&json!(0), &json!(64)));
    let started = json!([{"request": "cmpl-mine", "reason": "load", "ran_on": 1, "cached_tokens": 32}]);
    assert_eq!(step["ranks"][0]["started"], started);
    assert_eq!(step["prompts"], json!({"reason": "gap", "tokens": 64}));
    assert_eq!(step["ranks"][0]["held"], json!([{"request": "number 6", "reason": "budget"}]));
    let idle = &step["ranks"][1];
    assert_eq!(
        (&idle["dummy"], &idle["attention_tokens"], &idle["padding_tokens"]),
        (&json!(true), &json!(2), &json!(64))
    );
    assert_eq!(idle["padding"]["group_alignment"], 62);
    let words = reply.json()["words"].as_str().expect("text").to_owned();
    assert!(words.contains("not full because dp_rank 0 has a prompt row") && words.contains("cmpl-mine"), "{words}");
    assert_eq!(server.get("/explain/last").await.json()["steps"][0]["step"], 9);
    let of_rank = server.get("/explain/last?dp_rank=1").await.json();
    assert_eq!(of_rank["steps"][0]["ranks"].as_array().map(Vec::len), Some(1));
    assert_eq!(of_rank["steps"][0]["downgraded_by"], 0);
    server.stop().await;
}

#[tokio::test]
async fn groups_are_told_apart() {
    let server = TestServer::saying("hi").await;
    server.publisher.explain(chunk(1, 4));
    server.publisher.explain(chunk(0, 4));
    let groups = |value: &serde_json::Value| {
        value["steps"].as_array().expect("steps").iter().map(|step| step["group"].clone()).collect::<Vec<_>>()
    };
    assert_eq!(groups(&server.get("/explain/4").await.json()), [0, 1]);
    assert_eq!(groups(&server.get("/explain/4?group=1").await.json()), [1]);
    assert_eq!(groups(&server.get("/explain/last?dp_rank=2").await.json()), [1]);
    server.stop().await;
}

#[tokio::test]
async fn what_is_not_kept_is_said_with_both_numbers() {
    let server = TestServer::saying("hi").await;
    let message =
        |reply: &crate::common::Reply| reply.json()["error"]["message"].as_str().unwrap_or_default().to_owned();
    let reply = server.get("/explain/last").await;
    assert_eq!((reply.status, message(&reply).as_str()), (404, "no step of any group has run yet"));
    for step in 3..=9 {
        server.publisher.explain(chunk(0, step));
    }
    for step in [2, 10] {
        let reply = server.get(&format!("/explain/{step}?group=0")).await;
        assert_eq!(reply.status, 404);
        let message = message(&reply);
        assert!(message.contains("the first kept is step 3, the last is step 9"), "{message}");
    }
    for (path, param) in [("first", "step"), ("-1", "step"), ("3?group=x", "group"), ("3?dp_rank=-1", "dp_rank")] {
        assert_eq!(server.get(&format!("/explain/{path}")).await.refusal(), (400, param.to_owned()), "{path}");
    }
    assert_eq!(server.get("/explain/3?rank=1").await.status, 400);
    server.stop().await;
}
