//! `GET /explain/{step}?group=&dp_rank=`: why a step is what it is, in words and in numbers.

use axum::Json;
use axum::extract::{Path, Query, State};
use paceline_engine::ledger::{
    DpRank, ExplainQuery, ExplainedStep, GroupId, HeldReason, LevelReason, Pace, RankExplanation, RequestId,
    ShapeReason, Started, StepChoice, StepId,
};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::api_error::{ApiError, Kind};
use crate::app::App;

/// What stands for the newest step.
const LAST: &str = "last";

/// Whose step.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Whose {
    group: Option<String>,
    dp_rank: Option<String>,
}

/// The step of every group that has it, or of the one asked for.
pub(crate) async fn explain(
    State(app): State<App>,
    Path(step): Path<String>,
    whose: Result<Query<Whose>, axum::extract::rejection::QueryRejection>,
) -> Result<Json<Value>, ApiError> {
    let Query(whose) = whose.map_err(|error| ApiError::new(Kind::Invalid, error.body_text()))?;
    let step = match step.as_str() {
        LAST => StepChoice::Last,
        text => StepChoice::Number(StepId::new(number("step", text, "a step's number, or \"last\"")?)),
    };
    let given = |param, text: Option<String>, what| text.map(|text| number(param, &text, what)).transpose();
    let query = ExplainQuery {
        step,
        group: given("group", whose.group, "a group's number")?.map(GroupId::new),
        dp_rank: given("dp_rank", whose.dp_rank, "a rank's number")?.map(DpRank::new),
    };
    let steps = app.handle.explain(query).map_err(|error| ApiError::new(Kind::NotFound, error.to_string()))?;
    let words: Vec<String> = steps.iter().map(ExplainedStep::words).collect();
    let numbers: Vec<Value> = steps.iter().map(numbers).collect();
    Ok(Json(json!({"words": words.join("\n"), "steps": numbers})))
}

fn number<T: std::str::FromStr>(param: &str, text: &str, what: &str) -> Result<T, ApiError> {
    text.parse().map_err(|_| ApiError::invalid(param, format!("{param} must be {what}, got {text:?}")))
}

fn numbers(step: &ExplainedStep) -> Value {
    let explanation = &step.explanation;
    let ranks: Vec<Value> = explanation.ranks.iter().map(|rank| rank_numbers(step, rank)).collect();
    json!({
        "group": explanation.group.get(),
        "epoch": explanation.epoch.get(),
        "step": explanation.step.get(),
        "mode": explanation.mode.name(),
        "reason": reason(explanation.reason),
        "downgraded_by": explanation.downgraded_by.map(DpRank::get),
        "k_verify": explanation.k_verify,
        "k_draft": explanation.k_draft,
        "passes": explanation.passes,
        "rows_padded": explanation.rows_padded,
        "tokens_padded": explanation.tokens_padded,
        "prompts": pace(explanation.pace),
        "ranks": ranks,
    })
}

fn rank_numbers(step: &ExplainedStep, rank: &RankExplanation) -> Value {
    let padding: Map<String, Value> =
        rank.padding.by_cause().into_iter().map(|(cause, tokens)| (cause.to_owned(), tokens.into())).collect();
    let names = |requests: &[RequestId]| requests.iter().map(|id| step.name(*id)).collect::<Vec<_>>();
    let held: Vec<Value> =
        rank.held.iter().map(|(id, reason)| json!({"request": step.name(*id), "reason": held(*reason)})).collect();
    let started: Vec<Value> = rank.started.iter().map(|started| started_numbers(step, started)).collect();
    json!({
        "dp_rank": rank.dp_rank.get(),
        "dummy": rank.is_dummy,
        "decode_rows": rank.decode_rows,
        "prompt_rows": rank.prompt_rows,
        "real_tokens": rank.real_tokens,
        "padding_tokens": rank.padding.total(),
        "padding": padding,
        "attention_tokens": rank.attention_tokens(),
        "started": started,
        "held": held,
        "preempted": names(&rank.preempted),
        "drafts_trimmed": rank.drafts_trimmed,
    })
}

/// A request that started: why on this rank, where it ran before, and what it read from the prefix cache.
fn started_numbers(step: &ExplainedStep, started: &Started) -> Value {
    json!({
        "request": step.name(started.id),
        "reason": started.reason.name(),
        "ran_on": started.ran_on.map(DpRank::get),
        "cached_tokens": started.cached_tokens,
    })
}

const fn reason(reason: ShapeReason) -> &'static str {
    match reason {
        ShapeReason::Covered { .. } => "covered",
        ShapeReason::Held { .. } => "held",
        ShapeReason::PromptRow { .. } => "prompt_row",
        ShapeReason::PastLadder { .. } => "row_ladder",
        ShapeReason::NoLadder { .. } => "no_ladder",
        ShapeReason::EagerOnly => "eager_only",
    }
}

/// What prompts of the step could do; null when nothing held them back.
fn pace(pace: Pace) -> Value {
    match pace {
        Pace::Free => Value::Null,
        Pace::Held { steps, most } => json!({"reason": "alignment", "held_steps": steps, "held_steps_most": most}),
        Pace::Level { tokens, reason } => {
            let reason = match reason {
                LevelReason::Gap => "gap",
                LevelReason::Even => "even",
                LevelReason::Waited => "waited",
            };
            json!({"reason": reason, "tokens": tokens})
        }
    }
}

const fn held(reason: HeldReason) -> &'static str {
    match reason {
        HeldReason::Budget => "budget",
        HeldReason::Blocks => "blocks",
        HeldReason::Ladder => "ladder",
        HeldReason::Alignment => "alignment",
        HeldReason::Paused => "paused",
    }
}
