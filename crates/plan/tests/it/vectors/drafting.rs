//! Rule 18: the arrays of a drafter's passes.

use serde_json::{Value, json};

use super::{LAST, Vectors, decode, group, idle, pass, prompt};

/// Target and extend passes of one shape, then the single passes of `k_draft`; `accepted` of the drafts are right.
pub(super) fn drafting_group(step: u32, k_draft: u32, accepted: u32, target: Value, single: &Value) -> Value {
    let mut extend = target.clone();
    extend["kind"] = json!(1);
    let mut passes = vec![target, extend];
    for index in 2..=k_draft {
        let mut pass = single.clone();
        pass["kind"] = json!(index);
        passes.push(pass);
    }
    let mut group = group(step, 3, passes[0]["rows"].as_array().map_or(0, Vec::len) as u32, &passes);
    group["k_draft"] = json!(k_draft);
    group["accepted"] = json!(accepted);
    group
}

/// A prompt of rank 0, whose peer is idle or the other way round.
pub(super) fn drafting_prompt(k_draft: u32) -> Value {
    let single = pass(2, 2, 0, 1, 1, &[(1, 1, 0), (1, 1, 1)]);
    drafting_group(1, k_draft, 0, pass(0, 2, 0, 1, 5, &[(1, 5, 0), (1, 4, 1)]), &single)
}

fn drafting_decode(accepted: u32) -> Value {
    let single = pass(2, 0, 1, 4, 4, &[(1, 1, 0), (3, 3, 0)]);
    drafting_group(2, 3, accepted, pass(0, 0, 4, 4, 16, &[(1, 4, 0), (3, 12, 0)]), &single)
}

/// The prompt's first 4 tokens, with `ahead` of those after them, and what is left of it.
pub(super) fn chunks(ahead: usize) -> [(Value, Value); 2] {
    let tokens = [16, 17, 18, 14, 15];
    let (mut first, mut second) = (prompt(), decode(1));
    first["feeds"] = json!([{"seat": 2, "start": 0, "tokens": tokens[..4 + ahead]}]);
    first["row_query_lens"] = json!([4]);
    first["row_logits"] = json!([0]);
    if ahead == 0 {
        second["feeds"] = json!([{"seat": 2, "start": 4, "tokens": [15]}]);
    }
    for (field, value) in [("decode_rows", json!(0)), ("row_starts", json!([4])), ("row_drafts", json!([0]))] {
        second[field] = value;
    }
    second["row_logits"] = json!([LAST]);
    let none = pass(2, 2, 0, 0, 0, &[]);
    let single = pass(2, 2, 0, 1, 1, &[(1, 1, 0)]);
    [
        (drafting_group(1, 0, 0, pass(0, 2, 0, 1, 4, &[(1, 4, 0)]), &none), first),
        (drafting_group(2, 3, 0, pass(0, 2, 0, 1, 1, &[(1, 1, 0)]), &single), second),
    ]
}

#[test]
fn rule_18_a_drafter_runs_over_the_rows_of_the_target() {
    let broken = |rows: u32| {
        let passes =
            &[pass(0, 0, 2, 2, 4, &[(1, 2, 1), (2, 4, 0)]), pass(1, 0, 2, 2, 4, &[(1, 2, 1), (rows, rows * 2, 0)])];
        [(group(1, 1, 2, passes), idle())]
    };
    let idle_group = {
        let single = pass(2, 0, 1, 2, 2, &[(1, 1, 1), (2, 2, 0)]);
        drafting_group(1, 3, 0, pass(0, 0, 4, 2, 8, &[(1, 4, 1), (2, 8, 0)]), &single)
    };
    let mut vectors = Vectors::of_rule(18)
        .case("the same rows", &broken(2))
        .case("fewer rows", &broken(1))
        .drafting("a prompt", 1, &[(drafting_prompt(3), prompt())])
        .drafting("a prompt, two layers", 2, &[(drafting_prompt(3), prompt())])
        .drafting("a prompt without drafts", 1, &[(drafting_prompt(0), prompt())])
        .drafting("chunks", 1, &chunks(1))
        .drafting("a chunk without the token after it", 1, &chunks(0)[..1])
        .drafting("an idle rank", 2, &[(idle_group, idle())])
        .drafting("no extend pass", 1, &[(group(1, 0, 1, &[pass(0, 2, 0, 1, 5, &[(1, 5, 0)])]), prompt())]);
    for accepted in 0..=2 {
        for layers in 1..=2 {
            let name = format!("{accepted} of 2 drafts accepted, a placeholder, layers: {layers}");
            let steps = [(drafting_prompt(3), prompt()), (drafting_decode(accepted), decode(4))];
            vectors = vectors.drafting(&name, layers, &steps);
        }
    }
    vectors.check();
}
