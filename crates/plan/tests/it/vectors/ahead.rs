//! Rule 16: rows that are planned while the step before them runs. The plan counts with all drafts accepted, the worker
//! goes on from what it has.

use serde_json::{Value, json};

use super::drafting::{chunks, drafting_group, drafting_prompt};
use super::{LAST, VERIFY, Vectors, decode, pass, prompt};

/// Tokens of a prompt whose drafts reach the length limit of 64.
const LONG: u32 = 59;

fn ahead((mut group, rank): (Value, Value)) -> (Value, Value) {
    group["depth"] = json!(1);
    (group, rank)
}

/// The target pass of one row of rank 0 beside three of its peer, FULL or EAGER.
fn target(mode: u32) -> Value {
    let (q, rows_padded, tokens_padded) = if mode == 0 { (4, 4, 16) } else { (0, 3, 12) };
    pass(0, mode, q, rows_padded, tokens_padded, &[(1, 4, 0), (3, 12, 0)])
}

/// A decode row of 4 tokens that starts at `start_max` at most; `more` are blocks that it is given.
fn row(start_max: u32, drafts: u32, blocks: u32, more: &[u32]) -> Value {
    let mut rank = json!({
        "dp_rank": 0, "decode_rows": 1,
        "row_seats": [2], "row_generations": [1], "row_starts": [start_max], "row_query_lens": [4],
        "row_drafts": [drafts], "row_blocks": [blocks], "row_logits": [VERIFY], "row_masks": [0],
    });
    if !more.is_empty() {
        rank["block_appends"] = json!([{"seat": 2, "kv_group": 0, "blocks": more}]);
    }
    rank
}

fn step(step: u32, mode: u32, k_draft: u32, accepted: u32, rank: Value) -> (Value, Value) {
    let single = pass(2, 0, 1, 4, 4, &[(1, 1, 0), (3, 3, 0)]);
    ahead((drafting_group(step, k_draft, accepted, target(mode), &single), rank))
}

/// The usual prompt; 2 drafts of which `accepted` are right and `k_draft` new ones follow; a row of 3 drafts that was
/// planned before that was known.
fn two_steps(mode: u32, k_draft: u32, accepted: u32) -> Vec<(Value, Value)> {
    vec![
        ahead((drafting_prompt(3), prompt())),
        step(2, 0, k_draft, accepted, decode(4)),
        step(3, mode, 3, 0, row(8, 3, 3, &[11])),
    ]
}

/// A prompt in two chunks, three drafts up to the length limit, and a row that starts at its last position at most.
fn at_the_limit(accepted: u32) -> Vec<(Value, Value)> {
    let tokens: Vec<u32> = [16, 17, 18, 14, 15].into_iter().chain(20..20 + LONG - 5).collect();
    let first = json!({
        "dp_rank": 0, "decode_rows": 0,
        "admissions": [{"seat": 2, "generation": 1, "prompt_len": LONG, "computed": 0, "history": true}],
        "feeds": [{"seat": 2, "start": 0, "tokens": tokens[..33]}],
        "block_appends": [{"seat": 2, "kv_group": 0, "blocks": (1..=16).collect::<Vec<u32>>()}],
        "row_seats": [2], "row_generations": [1], "row_starts": [0], "row_query_lens": [32], "row_drafts": [0],
        "row_blocks": [16], "row_logits": [0], "row_masks": [0],
    });
    let mut second = first.clone();
    for field in ["admissions", "block_appends"] {
        second[field] = json!([]);
    }
    second["feeds"] = json!([{"seat": 2, "start": 33, "tokens": tokens[33..]}]);
    second["row_starts"] = json!([32]);
    second["row_query_lens"] = json!([LONG - 32]);
    second["row_logits"] = json!([LAST]);
    let single = pass(2, 2, 0, 1, 1, &[(1, 1, 0), (1, 1, 1)]);
    let chunk = |tokens| pass(0, 2, 0, 1, tokens, &[(1, tokens, 0), (1, 4, 1)]);
    vec![
        ahead((drafting_group(1, 0, 0, chunk(32), &single), first)),
        ahead((drafting_group(2, 3, 0, chunk(LONG - 32), &single), second)),
        step(3, 0, 3, accepted, row(LONG, 3, 16, &[])),
        step(4, 0, 3, 0, row(LONG + 4, 0, 16, &[])),
    ]
}

#[test]
fn rule_16_the_worker_derives_positions_and_checks_them() {
    let mut vectors =
        Vectors::of_rule(16).broken("a start behind the worker", |_, rank| rank["row_starts"] = json!([4]));
    for accepted in 0..=2 {
        let name = format!("one step ahead, {accepted} of 2 drafts in flight accepted");
        vectors = vectors.drafting(&name, 1, &two_steps(0, 3, accepted));
    }
    for (mode, name) in [(0, "FULL"), (2, "EAGER")] {
        let name = format!("fewer drafts proposed than were planned, {name}");
        vectors = vectors.drafting(&name, 1, &two_steps(mode, 1, 0));
    }
    for accepted in [0, 3] {
        let name = format!("a request that may be at its last position, {accepted} of 3 drafts in flight accepted");
        vectors = vectors.drafting(&name, 1, &at_the_limit(accepted));
    }
    let (mut first, mut second) = {
        let [first, second] = chunks(1);
        (ahead(first), ahead(second))
    };
    first.1["row_logits"] = json!([0]);
    second.1["row_starts"] = json!([5]);
    vectors
        .broken("a start behind the worker, one step ahead", |group, rank| {
            group["depth"] = json!(1);
            rank["row_starts"] = json!([4]);
        })
        .broken("a start further ahead than drafts can be refused", |group, rank| {
            group["depth"] = json!(1);
            *rank = row(9, 2, 3, &[11]);
        })
        .drafting("a prompt row that starts ahead of the worker", 1, &[first, second])
        .broken("more steps ahead than the worker was told", |group, _| group["depth"] = json!(2))
        .check();
}
