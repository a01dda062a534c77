//! Constrained answers: what comes is always allowed, the same with and without drafts, and nobody else is touched.

use paceline_engine::{FailureKind, FinishReason, GenerateRequest};
use paceline_grammar::{Begins, Compiler, Constraint, JsonStyle, Limits, Reasoning, Source, Vocabulary};
use serde_json::{Value, json};

use crate::support::{End, Fleet, Setup, VOCAB_SIZE, expect_text, limit, prompt, read, request};

/// Tokens of the scripted model: each is its byte; the last two end an answer and close reasoning.
const EOS: u32 = VOCAB_SIZE - 1;
const CLOSE: u32 = VOCAB_SIZE - 2;

fn compiler() -> Compiler {
    let mut bytes: Vec<Vec<u8>> = (0..=u8::MAX).map(|byte| vec![byte]).collect();
    bytes[CLOSE as usize] = b"</think>".to_vec();
    bytes[EOS as usize] = b"<eos>".to_vec();
    let vocabulary = Vocabulary::new(VOCAB_SIZE, |id| &bytes[id as usize], |id| id == EOS, &[EOS]);
    Compiler::new(vocabulary.expect("it has an end"), Limits::default()).expect("a vocabulary")
}

fn constraint(source: &Source, reasoning: Option<Reasoning>) -> Constraint {
    let compiler = compiler();
    let grammar = compiler.compile(source).expect("a grammar");
    Constraint::new(compiler.vocabulary().clone(), Some(&grammar), reasoning)
}

fn thinking(budget: u32) -> Reasoning {
    let (open, close) = ("<think>".to_owned(), "</think>".to_owned());
    Reasoning { begins: Begins::Thinking, open, close, close_tokens: vec![CLOSE], budget: Some(budget) }
}

/// Any answer of it is short.
fn schema() -> Source {
    let name = json!({"type": "string", "maxLength": 12});
    let schema = json!({
        "type": "object",
        "properties": {"name": name, "ages": {"type": "array", "items": {"enum": [1, 22, 333]}, "maxItems": 3}},
        "required": ["name", "ages"],
        "additionalProperties": false,
    });
    Source::JsonSchema(schema, JsonStyle { is_compact: true, is_closed: true })
}

fn constrained(number: u32, max_new_tokens: u32, constraint: Constraint) -> GenerateRequest {
    let request = request(&prompt(number, 5 + number), max_new_tokens);
    GenerateRequest { constraint: Some(constraint), stop_token_ids: vec![EOS], ..request }
}

/// The tokens of a request that has to end by itself, the last without.
async fn ended(fleet: &Fleet, request: GenerateRequest) -> Vec<u32> {
    let stream = limit(fleet.handle.submit(request)).await.expect("taken");
    let (tokens, end) = read(stream).await;
    assert_eq!(end, End::Finished(FinishReason::Stop(Some(EOS))));
    let mut tokens: Vec<u32> = tokens.iter().map(|token| token.token_id).collect();
    assert_eq!(tokens.pop(), Some(EOS));
    tokens
}

fn text(tokens: &[u32]) -> Vec<u8> {
    let bytes = |token: &u32| if *token == CLOSE { b"</think>".to_vec() } else { vec![*token as u8] };
    tokens.iter().flat_map(bytes).collect()
}

/// Twelve constrained requests among twelve free ones.
async fn answers(setup: Setup) -> Vec<Vec<u32>> {
    let fleet = setup.start().await;
    let constraint = constraint(&schema(), None);
    let mut free = Vec::new();
    let mut held = Vec::new();
    for number in 0..12 {
        let prompt = prompt(number + 50, 9 + number * 5);
        free.push((fleet.submit(&prompt, 40).await, prompt));
        let request = constrained(number, 90, constraint.clone());
        held.push(limit(fleet.handle.submit(request)).await.expect("taken"));
    }
    let mut found = Vec::new();
    for stream in held {
        let (tokens, end) = read(stream).await;
        assert_eq!(end, End::Finished(FinishReason::Stop(Some(EOS))));
        let ids: Vec<u32> = tokens.iter().map(|token| token.token_id).take(tokens.len() - 1).collect();
        let value: Value = serde_json::from_slice(&text(&ids)).expect("every answer is JSON");
        assert!(value["name"].is_string() && value["ages"].is_array(), "{value}");
        found.push(ids);
    }
    for (stream, prompt) in free {
        expect_text(stream, &prompt, 40).await;
    }
    let counters = fleet.handle.status().counters;
    assert_eq!((counters.failed, counters.refused_plans), (0, 0));
    fleet.stop().await;
    found
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c09_answers_are_json_and_the_same_with_and_without_drafts() {
    let plain = answers(Setup { dp_size: 1, ..Setup::default() }).await;
    assert_eq!(answers(Setup { k: 3, dp_size: 1, ..Setup::default() }).await, plain);
    assert_eq!(answers(Setup { k: 3, drafter_layers: 1, lockstep: true, ..Setup::default() }).await, plain);
    assert_eq!(answers(Setup { tp_size: 2, k: 2, ..Setup::default() }).await, plain);
    // Rows are preempted and come back: what was accepted before counts on.
    let pressed =
        Setup { dp_size: 1, num_blocks: 30, max_num_batched_tokens: 32, max_model_len: 400, ..Setup::default() };
    assert_eq!(answers(Setup { k: 3, ..pressed.clone() }).await, plain);
    // One step ahead: a step is planned before its masks can be made, and they follow the commit of the step before.
    for k in [0, 3] {
        assert_eq!(answers(Setup { depth: 1, k, ..Setup::default() }).await, plain);
        assert_eq!(
            answers(Setup { depth: 1, k, drafter_layers: k.min(1), lockstep: true, ..Setup::default() }).await,
            plain
        );
        assert_eq!(answers(Setup { depth: 1, k, ..pressed.clone() }).await, plain);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c17_a_budget_ends_reasoning_at_the_same_token_with_and_without_drafts() {
    let mut found = Vec::new();
    for (k, depth) in [(0, 0), (3, 0), (0, 1), (3, 1)] {
        let fleet = Setup { k, depth, ..Setup::default() }.start().await;
        let request = constrained(7, 200, constraint(&Source::Regex("[0-9]{3}".to_owned()), Some(thinking(20))));
        let tokens = ended(&fleet, request).await;
        let close = tokens.iter().position(|token| *token == CLOSE).expect("reasoning is closed");
        assert!(close <= 20);
        let answer = text(&tokens[close + 1..]);
        assert!(answer.len() == 3 && answer.iter().all(u8::is_ascii_digit), "{answer:?}");
        found.push(tokens);
        fleet.stop().await;
    }
    assert!(found.iter().all(|tokens| *tokens == found[0]), "{found:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_that_is_cut_is_no_error_and_one_that_is_stuck_hurts_nobody() {
    let fleet = Setup { k: 2, ..Setup::default() }.start().await;
    let long = constrained(1, 4, constraint(&Source::Regex("[a-z]{50}".to_owned()), None));
    let (tokens, end) = read(limit(fleet.handle.submit(long)).await.expect("taken")).await;
    assert_eq!((tokens.len(), end), (4, End::Finished(FinishReason::Length)));
    let prompt = prompt(9, 30);
    let beside = fleet.submit(&prompt, 60).await;
    // Two letters, then what only tokens past the model's vocabulary can spell.
    let compiler = {
        let mut bytes: Vec<Vec<u8>> = (0..=u8::MAX).map(|byte| vec![byte]).collect();
        bytes[b'!' as usize] = Vec::new();
        bytes.extend([b"!".to_vec(), b"<eos>".to_vec()]);
        let count = bytes.len() as u32;
        let vocabulary = Vocabulary::new(count, |id| &bytes[id as usize], |_| false, &[count - 1]);
        Compiler::new(vocabulary.expect("it has an end"), Limits::default()).expect("a vocabulary")
    };
    let grammar = compiler.compile(&Source::Regex("[ab]{2}!".to_owned())).expect("a grammar");
    let stuck = Constraint::new(compiler.vocabulary().clone(), Some(&grammar), None);
    let (tokens, end) = read(limit(fleet.handle.submit(constrained(2, 9, stuck))).await.expect("taken")).await;
    let End::Failed(FailureKind::Stuck, message) = end else { panic!("{end:?}") };
    assert!(tokens.len() <= 2 && message.contains("256 tokens"), "{message}");
    expect_text(beside, &prompt, 60).await;
    let status = fleet.handle.status();
    assert_eq!((status.counters.failed, status.counters.refused_plans), (1, 0));
    fleet.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_that_leaves_takes_its_constraint_along() {
    let fleet = Setup { k: 2, dp_size: 1, ..Setup::default() }.start().await;
    let source = Source::Regex("[a-z]{300}".to_owned());
    let mut stream = limit(fleet.handle.submit(constrained(1, 290, constraint(&source, None)))).await.expect("taken");
    limit(stream.next()).await.expect("it runs");
    drop(stream);
    fleet.until("gone", |status| status.counters.aborted == 1 && status.ranks[0].running == 0).await;
    let again = constrained(3, 90, constraint(&schema(), None));
    assert!(!ended(&fleet, again).await.is_empty());
    fleet.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_gets_masks_that_nobody_asked_for() {
    for (k, depth) in [(0, 0), (3, 0), (3, 1)] {
        let fleet = Setup { k, depth, dp_size: 1, ..Setup::default() }.start().await;
        let bytes =
            |from: usize| -> usize { fleet.workers[0].records.all()[from..].iter().map(|step| step.mask_bytes).sum() };
        let before = prompt(1, 20);
        expect_text(fleet.submit(&before, 30).await, &before, 30).await;
        assert_eq!(bytes(0), 0);
        let beside = prompt(2, 20);
        let free = fleet.submit(&beside, 600).await;
        ended(&fleet, constrained(3, 90, constraint(&schema(), None))).await;
        assert!(bytes(0) > 0);
        // Rows of the request that has ended may be on their way still.
        let after = fleet.workers[0].records.all().len() + 3;
        expect_text(free, &beside, 600).await;
        assert!(fleet.workers[0].records.all().len() > after);
        assert_eq!(bytes(after), 0);
        fleet.stop().await;
    }
}
