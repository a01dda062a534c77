//! One vector file per rule: decoded plans, and for each the arrays a worker makes of it or the refusal it gives.
//!
//! The files are written here (`UPDATE_VECTORS=1 cargo test -p paceline-plan`) and asserted here and in Python
//! (`tests/unit/test_rule_vectors.py`), which packs the plans itself.

mod ahead;
mod drafting;
mod masks;

use std::path::PathBuf;

use paceline_plan::arrays::{Extent, PassArrays, fill_extend, fill_single, fill_target};
use paceline_plan::seats::{RowOutcome, SeatState, SeatTable, StepHeader, WorkerStep};
use paceline_plan::{
    DpRank, Epoch, Error, GroupId, GroupPart, LogitsWanted, RankPart, Row, StepId, check_rank, digest, from_bytes,
};
use serde_json::{Value, json};

use crate::support::limits;
use crate::wire::{group_bytes, rank_bytes};

const LAST: u32 = 1;
const VERIFY: u32 = 2;

/// One pass of mode 0 (FULL), 1 (PIECEWISE) or 2 (EAGER) over (rows, tokens, dummy) of each rank.
fn pass(kind: u32, mode: u32, q: u32, rows_padded: u32, tokens_padded: u32, ranks: &[(u32, u32, u32)]) -> Value {
    json!({
        "kind": kind, "mode": mode, "query_len": q, "rows_padded": rows_padded, "tokens_padded": tokens_padded,
        "rows": ranks.iter().map(|rank| rank.0).collect::<Vec<_>>(),
        "tokens": ranks.iter().map(|rank| rank.1).collect::<Vec<_>>(),
        "dummy": ranks.iter().map(|rank| rank.2).collect::<Vec<_>>(),
    })
}

fn group(step: u32, k: u32, ranks: u32, passes: &[Value]) -> Value {
    json!({
        "group": 0, "epoch": 1, "step": step, "depth": 0, "k_verify": k, "k_draft": k,
        "dp_ranks": (0..ranks).collect::<Vec<_>>(), "passes": passes,
    })
}

/// Rank 0 takes the prompt 16, 17, 18, 14, 15 on seat 2, in blocks 3 and 9.
fn prompt() -> Value {
    json!({
        "dp_rank": 0,
        "admissions": [{"seat": 2, "generation": 1, "prompt_len": 5, "computed": 0, "history": true}],
        "feeds": [{"seat": 2, "start": 0, "tokens": [16, 17, 18, 14, 15]}],
        "block_appends": [{"seat": 2, "kv_group": 0, "blocks": [3, 9]}],
        "decode_rows": 0,
        "row_seats": [2], "row_generations": [1], "row_starts": [0], "row_query_lens": [5], "row_drafts": [0],
        "row_blocks": [2], "row_logits": [LAST], "row_masks": [0],
    })
}

/// The same request decodes with 2 drafts, in a row of `query_len`.
fn decode(query_len: u32) -> Value {
    json!({
        "dp_rank": 0, "decode_rows": 1,
        "row_seats": [2], "row_generations": [1], "row_starts": [5], "row_query_lens": [query_len],
        "row_drafts": [2], "row_blocks": [2], "row_logits": [VERIFY], "row_masks": [0],
    })
}

fn idle() -> Value {
    json!({"dp_rank": 0, "decode_rows": 0})
}

/// Rank 0 of two, k = 3: a prompt step, then FULL steps of 4 padded rows.
fn prompt_group() -> Value {
    group(1, 3, 2, &[pass(0, 2, 0, 1, 5, &[(1, 5, 0), (1, 4, 1)])])
}

fn full_group() -> Value {
    group(2, 3, 2, &[pass(0, 0, 4, 4, 16, &[(1, 4, 0), (3, 12, 0)])])
}

/// A vector file under construction: a worker that is sent one plan after the other.
struct Vectors {
    rule: u32,
    cases: Vec<Value>,
}

impl Vectors {
    fn of_rule(rule: u32) -> Self {
        Self { rule, cases: Vec::new() }
    }

    /// `steps` are sent in turn; the last may be refused.
    fn case(self, name: &str, steps: &[(Value, Value)]) -> Self {
        self.drafting(name, 0, steps)
    }

    /// The same for a worker whose drafter has KV in `layers` layers: the arrays of all its passes are written down. A
    /// group may say in `accepted` how many drafts its decode rows accept.
    fn drafting(mut self, name: &str, layers: u32, steps: &[(Value, Value)]) -> Self {
        let dp_ranks: Vec<u32> = (0..steps[0].0["dp_ranks"].as_array().map_or(1, Vec::len) as u32).collect();
        let mut table = SeatTable::new(limits(), DpRank::new(0), dp_ranks.iter().copied().map(DpRank::new).collect())
            .expect("rank 0 is in the group")
            .with_drafter_layers(layers)
            .with_depth(1);
        table.reset(Epoch::new(1));
        let steps: Vec<Value> = steps.iter().map(|(group, rank)| send(&mut table, group, rank)).collect();
        let mut case = json!({"name": name, "group_dp_ranks": dp_ranks, "dp_rank": 0, "steps": steps});
        if layers > 0 {
            case["drafter_layers"] = json!(layers);
        }
        self.cases.push(case);
        self
    }

    /// The usual prompt step, then one FULL step in which `change` was made by hand.
    fn broken(self, name: &str, change: impl Fn(&mut Value, &mut Value)) -> Self {
        let (mut group, mut rank) = (full_group(), decode(4));
        change(&mut group, &mut rank);
        self.case(name, &[(prompt_group(), prompt()), (group, rank)])
    }

    fn check(self) {
        let cases: Vec<String> = self.cases.iter().map(Value::to_string).collect();
        let (rule, limits) = (self.rule, limits_json());
        let text = format!("{{\"rule\":{rule},\n\"limits\":{limits},\n\"cases\":[\n{}\n]}}\n", cases.join(",\n"));
        let path = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
            .join("../../tests/vectors/rules")
            .join(format!("rule_{:02}.json", self.rule));
        if std::env::var_os("UPDATE_VECTORS").is_some() {
            // Renamed into place: another test of this process may be reading the folder.
            let unfinished = path.with_extension("new");
            std::fs::write(&unfinished, &text).expect("the vector folder is writable");
            std::fs::rename(&unfinished, &path).expect("the vector folder is writable");
        }
        let stored = std::fs::read_to_string(&path).unwrap_or_default();
        assert_eq!(stored, text, "{} is stale: run with UPDATE_VECTORS=1 and read the difference", path.display());
    }
}

fn limits_json() -> Value {
    serde_json::to_value(limits()).expect("limits are numbers")
}

/// Sends one plan, and writes down what came of it.
fn send(table: &mut SeatTable, group: &Value, rank: &Value) -> Value {
    let mut group = group.clone();
    let accepted = group.as_object_mut().and_then(|fields| fields.remove("accepted"));
    let accepted = accepted.and_then(|accepted| accepted.as_u64()).unwrap_or(0);
    let masks = group.as_object_mut().and_then(|fields| fields.remove("masks"));
    let group = &group;
    let group_part = group_bytes(group);
    let number = |field: &str| group[field].as_u64().unwrap_or(0);
    let header = StepHeader {
        group: GroupId::new(number("group") as u32),
        epoch: Epoch::new(number("epoch") as u32),
        step: StepId::new(number("step")),
        digest: digest(&group_part),
    };
    let outcome = match table.begin(header, &group_part, &rank_bytes(rank)) {
        Ok(step) if masks::refusal(&step, masks.as_ref()).is_some() => {
            let refused = masks::refusal(&step, masks.as_ref());
            json!({"refused": refused.as_ref().map(refusal_json), "layer": "masks"})
        }
        Ok(step) => {
            let mut expect = json!({"arrays": arrays_json(|arrays, extent| fill_target(table, &step, arrays, extent))});
            let mut outcomes = outcomes(table, &step, accepted as usize);
            if table.drafter_layers() > 0 {
                expect["drafter"] = drafter_json(table, &step, &mut outcomes);
            } else {
                outcomes.iter_mut().for_each(|outcome| propose(outcome, 3));
            }
            table.commit(&step, outcomes).expect("tokens of sampled rows");
            expect
        }
        Err(error) => json!({"refused": refusal_json(&error), "layer": layer(group, rank)}),
    };
    let mut step = json!({"group": group, "rank": rank, "expect": outcome});
    if let Some(masks) = masks {
        step["masks"] = masks;
    }
    if accepted > 0 {
        step["accepted"] = json!(accepted);
    }
    step
}

/// Which layer refuses first: "plan", whose checks the scheduler runs before it sends and the worker when it receives,
/// or "worker", which knows its seats.
fn layer(group: &Value, rank: &Value) -> &'static str {
    let parts = from_bytes::<GroupPart>(&group_bytes(group)).and_then(|group| {
        let rank = from_bytes::<RankPart>(&rank_bytes(rank))?;
        check_rank(&group, 0, &rank, &limits())
    });
    if parts.is_err() { "plan" } else { "worker" }
}

fn refusal_json(error: &Error) -> Value {
    match error {
        Error::Rule { field, expected, got, .. } => {
            json!({"rule": error.rule_name(), "field": field, "expected": expected, "got": got})
        }
        Error::Decode { .. } => json!({"rule": error.rule_name()}),
    }
}

/// Every row that samples emits the drafts that it accepts, then token 16.
fn outcomes(table: &SeatTable, step: &WorkerStep, accepted: usize) -> Vec<RowOutcome> {
    let outcome = |(index, row): (usize, &Row)| {
        if row.logits == LogitsWanted::None {
            return RowOutcome::default();
        }
        let drafts = table.seat(row.seat).map_or(&[][..], SeatState::drafts);
        let accepted = if index < step.rank.decode_rows() as usize { accepted } else { 0 };
        let emitted = [&drafts[..accepted], &[16]].concat();
        RowOutcome { accepted: accepted as u32, emitted, ..RowOutcome::default() }
    };
    step.rank.rows().iter().enumerate().map(outcome).collect()
}

/// The drafts of a row that sampled are 17, 18 and 14, as a prompt lookup finds them.
fn propose(outcome: &mut RowOutcome, count: usize) {
    if !outcome.emitted.is_empty() {
        outcome.proposed = [17, 18, 14][..count].to_vec();
    }
}

/// The arrays of the extend pass, layer by layer, then of the single passes.
fn drafter_json(table: &SeatTable, step: &WorkerStep, outcomes: &mut [RowOutcome]) -> Value {
    let layers = table.drafter_layers();
    let mut passes: Vec<Value> = (1..=layers)
        .map(|layer| arrays_json(|arrays, extent| fill_extend(table, step, layer, outcomes, arrays, extent)))
        .collect();
    for index in 2..=step.group.k_draft() {
        outcomes.iter_mut().for_each(|outcome| propose(outcome, index as usize - 1));
        passes.push(arrays_json(|arrays, extent| fill_single(table, step, index, layers, outcomes, arrays, extent)));
    }
    outcomes.iter_mut().for_each(|outcome| propose(outcome, step.group.k_draft() as usize));
    json!(passes)
}

fn arrays_json(fill: impl FnOnce(&mut PassArrays<'_>, &mut Extent) -> Result<usize, Error>) -> Value {
    let (rows, tokens) = (limits().row_capacity as usize, limits().token_capacity as usize);
    let width = limits().table_width as usize;
    let (mut input_ids, mut positions, mut slots) = (vec![-7; tokens], vec![-7; tokens], vec![-7; tokens]);
    let (mut query_start_loc, mut kv_lens) = (vec![-7; rows + 1], vec![-7; rows]);
    let (mut block_table, mut request_index) = (vec![-7; rows * width], vec![-7; tokens]);
    let mut logits_index = vec![-7; tokens];
    let mut arrays = PassArrays {
        input_ids: &mut input_ids,
        positions: &mut positions,
        slots: &mut slots,
        query_start_loc: &mut query_start_loc,
        kv_lens: &mut kv_lens,
        block_table: &mut block_table,
        request_index: &mut request_index,
        logits_index: &mut logits_index,
    };
    let count = fill(&mut arrays, &mut Extent { rows, tokens }).expect("the arrays are large enough");
    let table: Vec<&[i32]> = block_table.chunks(width).collect();
    json!({
        "input_ids": input_ids, "positions": positions, "slots": slots, "query_start_loc": query_start_loc,
        "kv_lens": kv_lens, "block_table": table, "request_index": request_index,
        "logits_index": logits_index, "logits_count": count,
    })
}

#[test]
fn rule_01_every_rank_every_step() {
    Vectors::of_rule(1)
        .case(
            "an idle rank runs one row of Q",
            &[(group(1, 3, 2, &[pass(0, 2, 0, 1, 5, &[(1, 4, 1), (1, 5, 0)])]), idle())],
        )
        .case("no rank has a row", &[(group(1, 3, 2, &[pass(0, 2, 0, 1, 4, &[(1, 4, 1), (1, 4, 1)])]), idle())])
        .case("a group of one runs no dummy", &[(group(1, 3, 1, &[pass(0, 2, 0, 1, 4, &[(1, 4, 1)])]), idle())])
        .broken("a pass lacks a rank", |group, _| {
            group["passes"][0] = pass(0, 0, 4, 4, 16, &[(1, 4, 0)]);
        })
        .broken("rows and a dummy at once", |group, _| group["passes"][0]["dummy"][0] = json!(1))
        .broken("two dummy rows", |group, _| {
            group["passes"][0] = pass(0, 0, 4, 4, 16, &[(1, 4, 0), (2, 8, 1)]);
        })
        .broken("another rank's part", |_, rank| rank["dp_rank"] = json!(1))
        .check();
}

#[test]
fn rule_02_group_decisions_are_stored_once() {
    Vectors::of_rule(2)
        .broken("no pass at all", |group, _| group["passes"] = json!([]))
        .broken("an extend pass first", |group, _| group["passes"][0]["kind"] = json!(1))
        .broken("no such mode", |group, _| group["passes"][0]["mode"] = json!(3))
        .broken("a column is short", |_, rank| rank["row_blocks"] = json!([]))
        .broken("more decode rows than rows", |_, rank| rank["decode_rows"] = json!(2))
        .broken("fewer drafter passes than drafts", |group, _| {
            let extend = pass(1, 0, 4, 4, 16, &[(1, 4, 0), (3, 12, 0)]);
            group["passes"].as_array_mut().expect("a list").push(extend);
        })
        .check();
}

#[test]
fn rule_03_full_needs_uniformity() {
    Vectors::of_rule(3)
        .broken("short of drafts, filled with a placeholder", |_, _| {})
        .broken("a row shorter than Q", |group, rank| {
            group["passes"][0] = pass(0, 0, 4, 4, 16, &[(1, 3, 0), (3, 12, 0)]);
            rank["row_query_lens"] = json!([3]);
        })
        .broken("Q is not 1 + k_verify", |group, _| group["k_verify"] = json!(2))
        .case(
            "a prompt chunk of exactly Q is no decode row",
            &[(group(1, 4, 1, &[pass(0, 0, 5, 1, 5, &[(1, 5, 0)])]), prompt())],
        )
        .check();
}

#[test]
fn rule_04_rows_and_tokens_are_padded_together() {
    Vectors::of_rule(4)
        .broken("padded rows with unpadded tokens", |group, _| group["passes"][0]["tokens_padded"] = json!(13))
        .broken("padded tokens with unpadded rows", |group, _| group["passes"][0]["rows_padded"] = json!(3))
        .broken("a rank above the padded size", |group, _| {
            group["passes"][0] = pass(0, 0, 4, 2, 8, &[(1, 4, 0), (3, 12, 0)]);
        })
        .check();
}

#[test]
fn rule_05_no_padded_size_above_a_capacity() {
    Vectors::of_rule(5)
        .broken("rows above the row capacity", |group, rank| {
            group["k_verify"] = json!(0);
            group["passes"][0] = pass(0, 0, 1, 9, 9, &[(1, 1, 0), (9, 9, 0)]);
            rank["row_query_lens"] = json!([1]);
            rank["row_drafts"] = json!([0]);
        })
        .broken("tokens above the token capacity", |group, _| {
            group["passes"][0] = pass(0, 2, 0, 3, 33, &[(1, 4, 0), (3, 33, 0)]);
        })
        .check();
}

/// Outside FULL attention sees real counts; only inputs of PIECEWISE are padded.
#[test]
fn rule_06_attention_sees_real_counts_outside_full() {
    Vectors::of_rule(6)
        .case("a prompt, EAGER", &[(prompt_group(), prompt())])
        .case("a prompt, PIECEWISE", &[(group(1, 3, 2, &[pass(0, 1, 0, 1, 8, &[(1, 5, 0), (1, 4, 1)])]), prompt())])
        .case("a dummy, PIECEWISE", &[(group(1, 3, 2, &[pass(0, 1, 0, 1, 8, &[(1, 4, 1), (1, 5, 0)])]), idle())])
        .broken("drafts without placeholders, EAGER", |group, rank| {
            group["passes"][0] = pass(0, 2, 0, 3, 12, &[(1, 3, 0), (3, 12, 0)]);
            rank["row_query_lens"] = json!([3]);
        })
        .broken("placeholders outside FULL", |group, _| {
            group["passes"][0] = pass(0, 2, 0, 3, 12, &[(1, 4, 0), (3, 12, 0)]);
        })
        .broken("rows padded outside FULL", |group, rank| {
            group["passes"][0] = pass(0, 2, 0, 4, 12, &[(1, 3, 0), (3, 12, 0)]);
            rank["row_query_lens"] = json!([3]);
        })
        .check();
}

#[test]
fn rule_07_padding_has_defined_values() {
    Vectors::of_rule(7)
        .broken("padding rows read the null block and write nothing", |_, _| {})
        .broken("the null block in a table", |_, rank| {
            rank["block_appends"] = json!([{"seat": 2, "kv_group": 0, "blocks": [0]}]);
        })
        .broken("a block past the pool", |_, rank| {
            rank["block_appends"] = json!([{"seat": 2, "kv_group": 0, "blocks": [17]}]);
        })
        .broken("the null block set to zero", |_, rank| rank["block_zeroings"] = json!([0]))
        .check();
}

#[test]
fn rule_08_a_dummy_is_q_long() {
    Vectors::of_rule(8)
        .case("an idle rank in FULL", &[(group(1, 3, 2, &[pass(0, 0, 4, 2, 8, &[(1, 4, 1), (2, 8, 0)])]), idle())])
        .case("a dummy of one token", &[(group(1, 3, 2, &[pass(0, 2, 0, 2, 8, &[(1, 1, 1), (2, 8, 0)])]), idle())])
        .check();
}

#[test]
fn rule_09_drafts_fit() {
    Vectors::of_rule(9)
        .broken("more drafts than the row has room for", |_, rank| rank["row_drafts"] = json!([4]))
        .broken("drafts past the blocks", |_, rank| rank["row_drafts"] = json!([3]))
        .broken("blocks that the seat does not have", |_, rank| rank["row_blocks"] = json!([3]))
        .broken("a decode row past the length limit", |_, rank| rank["row_starts"] = json!([63]))
        .check();
}

#[test]
fn rule_10_the_budget_counts_tokens_run() {
    Vectors::of_rule(10)
        .broken("tokens that the group part does not say", |group, _| {
            group["passes"][0] = pass(0, 2, 0, 3, 12, &[(1, 3, 0), (3, 12, 0)]);
        })
        .broken("more tokens than B", |group, rank| {
            group["passes"][0] = pass(0, 2, 0, 3, 33, &[(1, 33, 0), (3, 12, 0)]);
            rank["row_query_lens"] = json!([33]);
        })
        .check();
}

#[test]
fn rule_11_results_carry_identity() {
    Vectors::of_rule(11)
        .broken("a stale generation", |_, rank| rank["row_generations"] = json!([2]))
        .broken("an empty seat", |_, rank| rank["row_seats"] = json!([3]))
        .broken("a seat that is taken", |_, rank| {
            rank["admissions"] = json!([{"seat": 2, "generation": 2, "prompt_len": 1, "computed": 0}]);
        })
        .broken("a block of another request", |_, rank| {
            rank["admissions"] = json!([{"seat": 4, "generation": 1, "prompt_len": 1, "computed": 0}]);
            rank["block_appends"] = json!([{"seat": 4, "kv_group": 0, "blocks": [9]}]);
        })
        .broken("a release of another life", |_, rank| rank["releases"] = json!([{"seat": 2, "generation": 3}]))
        .check();
}

#[test]
fn rule_13_nothing_is_skipped() {
    Vectors::of_rule(13)
        .broken("a skipped step", |group, _| group["step"] = json!(3))
        .broken("a repeated step", |group, _| group["step"] = json!(1))
        .broken("another epoch", |group, _| group["epoch"] = json!(2))
        .broken("a field of a later version", |_, rank| rank["stage"] = json!(1))
        .check();
}

#[test]
fn rule_20_logits_are_planned() {
    Vectors::of_rule(20)
        .broken("a decode row without verification", |_, rank| rank["row_logits"] = json!([LAST]))
        .broken("no such choice", |_, rank| rank["row_logits"] = json!([4]))
        .check();
}
