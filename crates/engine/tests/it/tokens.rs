//! The right tokens come, whatever the fleet's form; wrong requests are refused with the field.

use paceline_engine::{FinishReason, GenerateRequest, SamplingParams, StreamEvent, SubmitError};
use paceline_scheduler::QueueLimits;
use paceline_testing::model;

use crate::support::{End, Setup, VOCAB_SIZE, expect_text, limit, prompt, read, refusal, request};

async fn many_texts(setup: Setup) {
    let fleet = setup.start().await;
    let mut streams = Vec::new();
    for number in 0..24 {
        let prompt = prompt(number, 1 + number * 13);
        streams.push((fleet.submit(&prompt, 5 + number).await, prompt, 5 + number));
    }
    for (stream, prompt, count) in streams {
        expect_text(stream, &prompt, count).await;
    }
    let status = fleet.handle.status();
    assert_eq!((status.counters.finished, status.counters.failed), (24, 0));
    assert!(status.ranks.iter().all(|rank| rank.running == 0 && rank.kv_blocks_used == 0), "{status:?}");
    assert!(status.ranks.iter().all(|rank| rank.counters.real_tokens() > 0), "{status:?}");
    assert!(status.timings.steps > 0);
    fleet.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn texts_are_right_on_two_ranks_of_their_own() {
    many_texts(Setup::default()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn texts_are_right_in_lockstep_with_drafts() {
    many_texts(Setup { lockstep: true, k: 3, dp_size: 4, ..Setup::default() }).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn texts_are_right_with_preemption_and_small_chunks() {
    // 24 prompts of up to 300 tokens over 2 x 40 blocks of 16.
    many_texts(Setup { num_blocks: 40, max_num_batched_tokens: 32, max_model_len: 512, ..Setup::default() }).await;
}

/// The worker is not told the tokens of a prefix hit: it finds them in the blocks that another request wrote, or the text
/// is another.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn texts_are_the_same_from_the_prefix_cache() {
    for (depth, layers) in [(0, 0), (1, 0), (0, 1), (1, 1)] {
        let setup = Setup { prefix_cache: true, dp_size: 1, depth, ..Setup::default() };
        let fleet = Setup { k: layers * 2, drafter_layers: layers, ..setup }.start().await;
        let whole = prompt(5, 100);
        let elsewhere = [&whole[..70], &prompt(6, 20)].concat();
        let longer = [&whole[..], &model::continuation(&whole, 40, VOCAB_SIZE)].concat();
        // As it was, then going on elsewhere, cut, and going on as the text did. A drafter with KV of its own has the last
        // block that matches computed again (rule 18).
        let prompts = [(&whole[..], [0, 0]), (&whole, [96, 80]), (&elsewhere, [64, 48]), (&whole[..48], [32, 32])];
        for (prompt, hits) in prompts.into_iter().chain([(&longer[..], [128, 112])]) {
            let mut stream = fleet.submit(prompt, 40).await;
            let mut ids = Vec::new();
            loop {
                let event = limit(stream.next()).await.expect("a stream ends with an event");
                let (StreamEvent::Tokens { tokens } | StreamEvent::Finished { tokens, .. }) = &event else {
                    panic!("{event:?}")
                };
                ids.extend(tokens.iter().map(|token| token.token_id));
                if matches!(event, StreamEvent::Finished { .. }) {
                    break;
                }
            }
            let what = format!("depth {depth}, {layers} draft layers, {} tokens", prompt.len());
            assert_eq!(stream.cached_tokens(), hits[layers as usize], "{what}");
            assert_eq!(ids, model::continuation(prompt, 40, VOCAB_SIZE), "{what}");
        }
        fleet.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_token_ends_the_text_and_is_its_last() {
    let fleet = Setup::default().start().await;
    let prompt = prompt(3, 10);
    let text = model::continuation(&prompt, 20, VOCAB_SIZE);
    let stop = text[6];
    let first = text.iter().position(|token| *token == stop).expect("it is in the text");
    let request = GenerateRequest { stop_token_ids: vec![stop], ..request(&prompt, 20) };
    let (tokens, end) = read(fleet.handle.submit(request).await.expect("taken")).await;
    assert_eq!(end, End::Finished(FinishReason::Stop(Some(stop))));
    assert_eq!(tokens.len(), first + 1);
    fleet.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c03_an_end_at_any_place_of_a_row_gives_the_same_text() {
    let prompt = prompt(4, 30);
    let text = model::continuation(&prompt, 24, VOCAB_SIZE);
    for (k, depth) in [(0, 0), (3, 0), (3, 1)] {
        let fleet = Setup { k, depth, ..Setup::default() }.start().await;
        for place in 6..18 {
            let stop = text[place];
            let first = text.iter().position(|token| *token == stop).expect("it is in the text");
            let request = GenerateRequest { stop_token_ids: vec![stop], ..request(&prompt, 24) };
            let (tokens, end) = read(fleet.handle.submit(request).await.expect("taken")).await;
            let ids: Vec<u32> = tokens.iter().map(|token| token.token_id).collect();
            assert_eq!((ids.as_slice(), end), (&text[..=first], End::Finished(FinishReason::Stop(Some(stop)))));
        }
        fleet.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn log_probabilities_come_with_their_tokens() {
    let fleet = Setup { k: 2, ..Setup::default() }.start().await;
    let sampling = SamplingParams { logprobs: Some(2), ..SamplingParams::greedy() };
    let request = GenerateRequest { sampling, ..request(&prompt(1, 4), 6) };
    let (tokens, _) = read(fleet.handle.submit(request).await.expect("taken")).await;
    assert_eq!(tokens.len(), 6);
    for token in tokens {
        let logprobs = token.logprobs.expect("asked for");
        assert_eq!(logprobs.top.len(), 2);
        assert_eq!(logprobs.top[0], (token.token_id, logprobs.sampled));
    }
    fleet.stop().await;
}

/// In chunks, with drafts, next to others and after preemptions: every token of the prompt but the first, once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn e03_log_probabilities_of_the_prompt_come_once_and_before_the_output() {
    let setup = Setup { k: 2, num_blocks: 40, max_model_len: 400, dp_size: 1, ..Setup::default() };
    let fleet = Setup { max_num_batched_tokens: 48, ..setup }.start().await;
    let sampling = SamplingParams { prompt_logprobs: Some(1), ..SamplingParams::greedy() };
    let mut streams = Vec::new();
    for number in 0..6 {
        let prompt = prompt(number, 150);
        let request = GenerateRequest { sampling: sampling.clone(), ..request(&prompt, 60) };
        streams.push((prompt, fleet.handle.submit(request).await.expect("taken")));
    }
    for (prompt, mut stream) in streams {
        let mut reported = Vec::new();
        let mut tokens = 0;
        while let Some(event) = stream.next().await {
            match event {
                StreamEvent::PromptLogprobs { logprobs } => {
                    assert_eq!(tokens, 0);
                    reported.extend(logprobs.into_iter().map(|entry| entry.top[0].0));
                }
                StreamEvent::Tokens { tokens: some } | StreamEvent::Finished { tokens: some, .. } => {
                    assert!(some.iter().all(|token| token.logprobs.is_none()));
                    tokens += some.len();
                }
                StreamEvent::Failed { message, .. } => panic!("{message}"),
            }
        }
        assert_eq!((reported.as_slice(), tokens), (&prompt[1..], 60));
    }
    fleet.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_requests_are_refused_with_their_field() {
    let fleet = Setup { num_blocks: 20, max_model_len: 400, ..Setup::default() }.start().await;
    let base = request(&[1, 2, 3], 4);
    let not_below_zero = SamplingParams { temperature: -1.0, ..SamplingParams::default() };
    let cases = [
        (GenerateRequest { prompt_token_ids: vec![], ..base.clone() }, "prompt"),
        (GenerateRequest { prompt_token_ids: vec![VOCAB_SIZE], ..base.clone() }, "prompt"),
        (GenerateRequest { prompt_token_ids: vec![1; 400], ..base.clone() }, "prompt"),
        (GenerateRequest { prompt_token_ids: vec![1; 330], ..base.clone() }, "prompt"),
        (GenerateRequest { max_new_tokens: 0, ..base.clone() }, "max_tokens"),
        (GenerateRequest { max_new_tokens: 398, ..base.clone() }, "max_tokens"),
        (GenerateRequest { stop_token_ids: vec![u32::MAX], ..base.clone() }, "stop_token_ids"),
        (GenerateRequest { dp_rank: Some(2), ..base.clone() }, "dp_rank"),
        (GenerateRequest { sampling: not_below_zero, ..base.clone() }, "temperature"),
    ];
    for (request, expected) in cases {
        match refusal(&fleet, request).await {
            SubmitError::Invalid { field, .. } => assert_eq!(field, expected),
            other => panic!("{expected}: {other:?}"),
        }
    }
    expect_text(fleet.handle.submit(base).await.expect("taken"), &[1, 2, 3], 4).await;
    fleet.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn e14_more_than_may_wait_is_refused_at_once() {
    let queue = QueueLimits { requests: Some(4), tokens: None };
    let setup = Setup { dp_size: 1, max_num_seqs: 2, queue, ..Setup::default() };
    let fleet = setup.start_with(|behaviour| behaviour.delay_ms = 20).await;
    let mut streams = Vec::new();
    let mut refused = 0;
    for number in 0..10 {
        match fleet.handle.submit(request(&prompt(number, 8), 30)).await {
            Ok(stream) => streams.push((stream, prompt(number, 8))),
            Err(SubmitError::QueueFull { limit, .. }) => {
                assert_eq!(limit, 4);
                refused += 1;
            }
            Err(other) => panic!("{other:?}"),
        }
    }
    assert_eq!((streams.len(), refused), (6, 4));
    for (stream, prompt) in streams {
        expect_text(stream, &prompt, 30).await;
    }
    fleet.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_before_the_fleet_is_ready_is_unavailable() {
    let fleet = Setup::default().engine().await;
    assert!(matches!(refusal(&fleet, request(&[1], 1)).await, SubmitError::Unavailable { .. }));
    fleet.stop().await;
}
