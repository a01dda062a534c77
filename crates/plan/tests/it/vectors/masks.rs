//! Rule 19: masks follow the plan, one for each position that is sampled.

use paceline_plan::seats::WorkerStep;
use paceline_plan::{Error, StepMasks, from_bytes};
use serde_json::{Value, json};

use super::{Vectors, decode, full_group, prompt, prompt_group};
use crate::support::limits;
use crate::wire::masks_bytes;

const FOLLOWS: u32 = 2;

/// Why a worker refuses the masks of a step.
pub(super) fn refusal(step: &WorkerStep, masks: Option<&Value>) -> Option<Error> {
    let masks = masks.map_or_else(|| Ok(StepMasks::default()), |masks| from_bytes::<StepMasks>(&masks_bytes(masks)));
    masks.and_then(|masks| masks.check(&step.rank, limits().vocab_size)).err()
}

/// Masks of the row on seat 2, each of so many words: token 16 and token 64 may come.
fn masks(lengths: &[u32]) -> Value {
    let words: Vec<u32> =
        lengths.iter().flat_map(|length| [1 << 16, 0, 1, 0, 0][..*length as usize].to_vec()).collect();
    json!({"seats": [2], "generations": [1], "counts": [lengths.len()], "lengths": lengths, "words": words})
}

fn masked(mut rank: Value) -> Value {
    rank["row_masks"] = json!([FOLLOWS]);
    rank
}

/// The usual prompt, then a FULL step whose masks `change` changes.
fn sent(vectors: Vectors, name: &str, change: impl Fn(&mut Value)) -> Vectors {
    let mut group = full_group();
    group["masks"] = masks(&[4, 0, 4]);
    change(&mut group["masks"]);
    vectors.case(name, &[(prompt_group(), prompt()), (group, masked(decode(4)))])
}

#[test]
fn rule_19_masks_follow_the_commit_before() {
    let mut first = prompt_group();
    first["masks"] = masks(&[4]);
    let mut chunk = masked(prompt());
    chunk["row_logits"] = json!([0]);
    let mut reported = masked(prompt());
    reported["row_logits"] = json!([3]);
    reported["feeds"][0]["tokens"] = json!([16, 17, 18, 14, 15, 16]);
    reported["admissions"][0]["prompt_len"] = json!(6);
    let vectors = Vectors::of_rule(19)
        .case("the end of a prompt has one mask", &[(first, masked(prompt()))])
        .case("a chunk that gives no logits has none", &[(prompt_group(), chunk)])
        .case("a chunk that does not end what is known has none", &[(prompt_group(), reported)])
        .broken("a mask in the plan", |_, rank| rank["row_masks"] = json!([1]))
        .broken("no such mask", |_, rank| rank["row_masks"] = json!([3]));
    let vectors = sent(vectors, "one mask for each verify position, some of them neutral", |_| {});
    let vectors = sent(vectors, "no masks at all", |masks| {
        *masks = json!({"seats": [], "generations": [], "counts": [], "lengths": [], "words": []});
    });
    let vectors = sent(vectors, "masks of another seat", |masks| masks["seats"] = json!([3]));
    let vectors = sent(vectors, "masks of another life of the seat", |masks| masks["generations"] = json!([2]));
    let vectors = sent(vectors, "a mask too few", |changed| *changed = masks(&[4, 0]));
    let vectors = sent(vectors, "a mask too short", |changed| *changed = masks(&[4, 3, 0]));
    let vectors = sent(vectors, "a mask too long", |changed| *changed = masks(&[5, 0, 0]));
    let vectors = sent(vectors, "a mask that allows nothing", |masks| masks["words"] = json!([0, 0, 0, 0, 1, 0, 0, 0]));
    let vectors =
        sent(vectors, "a token past the vocabulary", |masks| masks["words"] = json!([1, 0, 0, 16, 1, 0, 0, 0]));
    sent(vectors, "words that are not there", |masks| masks["words"] = json!([1])).check();
}
