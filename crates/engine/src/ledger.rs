//! Why the latest steps have their shapes: a ring of explanations, and how to ask for one.
//!
//! The step loop writes it once per step, readers copy out of it; it decides nothing and survives nothing.

use std::collections::VecDeque;
use std::fmt::{Display, Formatter};
use std::sync::Arc;

pub use paceline_plan::{DpRank, Epoch, GroupId, Mode, StepId};
pub use paceline_scheduler::{
    Explanation, HeldReason, LevelReason, Pace, PaddingCounters, PlacementReason, RankExplanation, RequestId,
    ShapeReason, Started,
};

/// Steps that are kept, over all groups.
pub const STEPS_KEPT: usize = 4_096;

/// Which step to explain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepChoice {
    /// The newest one.
    Last,
    /// This one, in the newest epoch that has it. Groups count their steps by themselves.
    Number(StepId),
}

/// What to explain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExplainQuery {
    /// Which step.
    pub step: StepChoice,
    /// Of this group only.
    pub group: Option<GroupId>,
    /// Of this rank's group only, and its part only.
    pub dp_rank: Option<DpRank>,
}

/// A step that is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExplainedStep {
    /// Why it is what it is.
    pub explanation: Explanation,
    /// What callers call the requests that the explanation names, as far as they were alive.
    pub names: Vec<(RequestId, Arc<str>)>,
}

impl ExplainedStep {
    /// What a request is called: its caller's name, or the engine's number.
    pub fn name(&self, request: RequestId) -> String {
        let found = self.names.iter().find(|(id, _)| *id == request);
        found.map_or_else(|| format!("number {request}"), |(_, name)| name.to_string())
    }

    /// The explanation in words.
    pub fn words(&self) -> String {
        self.explanation.words(|request| self.name(request))
    }
}

/// Why a step cannot be explained.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotKept {
    /// Nothing of what was asked for has run.
    #[error("no step of {of} has run yet")]
    NothingRan {
        /// Whose steps.
        of: Asked,
    },
    /// Other steps are kept.
    #[error("step {step} of {of} is not kept: the first kept is step {first}, the last is step {last}")]
    Unknown {
        /// What was asked for.
        step: StepId,
        /// Whose step.
        of: Asked,
        /// The oldest step kept.
        first: Kept,
        /// The newest step kept.
        last: Kept,
    },
}

/// Whose steps were asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asked {
    group: Option<GroupId>,
    dp_rank: Option<DpRank>,
}

impl Display for Asked {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> std::fmt::Result {
        match (self.group, self.dp_rank) {
            (None, None) => formatter.write_str("any group"),
            (Some(group), None) => write!(formatter, "group {group}"),
            (None, Some(dp_rank)) => write!(formatter, "dp_rank {dp_rank}"),
            (Some(group), Some(dp_rank)) => write!(formatter, "dp_rank {dp_rank} in group {group}"),
        }
    }
}

/// A kept step's number, with its epoch where that is not the first: numbers start again in each epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kept {
    step: StepId,
    epoch: Epoch,
}

impl Kept {
    const fn of(explanation: &Explanation) -> Self {
        Self { step: explanation.step, epoch: explanation.epoch }
    }
}

impl Display for Kept {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{}", self.step)?;
        if self.epoch.get() > 1 { write!(formatter, " of epoch {}", self.epoch) } else { Ok(()) }
    }
}

/// The latest steps of all groups, the oldest first.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    steps: VecDeque<ExplainedStep>,
}

impl Ledger {
    /// Keeps a step, and lets go of the oldest when there are too many.
    pub(crate) fn record(&mut self, step: ExplainedStep) {
        if self.steps.len() == STEPS_KEPT {
            self.steps.pop_front();
        }
        self.steps.push_back(step);
    }

    /// The steps that answer a query: of each group the newest with this number, in order of groups; or the last one.
    pub(crate) fn find(&self, query: ExplainQuery) -> Result<Vec<ExplainedStep>, NotKept> {
        let is_asked = |step: &&ExplainedStep| {
            let explanation = &step.explanation;
            query.group.is_none_or(|group| explanation.group == group)
                && query.dp_rank.is_none_or(|asked| explanation.ranks.iter().any(|rank| rank.dp_rank == asked))
        };
        let of = Asked { group: query.group, dp_rank: query.dp_rank };
        let mut newest_first = self.steps.iter().rev().filter(is_asked);
        let Some(last) = newest_first.next() else { return Err(NotKept::NothingRan { of }) };
        let mut found: Vec<ExplainedStep> = Vec::new();
        let mut first = last;
        for step in std::iter::once(last).chain(newest_first) {
            first = step;
            let explanation = &step.explanation;
            let wanted = match query.step {
                StepChoice::Last => found.is_empty(),
                StepChoice::Number(number) => {
                    explanation.step == number && found.iter().all(|step| step.explanation.group != explanation.group)
                }
            };
            if wanted {
                found.push(step.clone());
            }
        }
        if let (StepChoice::Number(step), true) = (query.step, found.is_empty()) {
            let (first, last) = (Kept::of(&first.explanation), Kept::of(&last.explanation));
            return Err(NotKept::Unknown { step, of, first, last });
        }
        found.sort_by_key(|step| step.explanation.group);
        if let Some(asked) = query.dp_rank {
            for step in &mut found {
                step.explanation.ranks.retain(|rank| rank.dp_rank == asked);
            }
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(group: u32, epoch: u32, step: u64) -> ExplainedStep {
        let reason = PlacementReason::Pinned;
        let started = Started { id: RequestId(step), reason, ran_on: None, cached_tokens: 0 };
        let ranks = [group * 2, group * 2 + 1].map(|dp_rank| RankExplanation {
            dp_rank: DpRank::new(dp_rank),
            started: vec![started],
            ..RankExplanation::default()
        });
        let explanation = Explanation {
            group: GroupId::new(group),
            epoch: Epoch::new(epoch),
            step: StepId::new(step),
            k_verify: 0,
            k_draft: 0,
            passes: 1,
            mode: Mode::Eager,
            reason: ShapeReason::EagerOnly,
            downgraded_by: None,
            rows_padded: 1,
            tokens_padded: 1,
            pace: Pace::Free,
            ranks: ranks.to_vec(),
        };
        ExplainedStep { explanation, names: vec![(RequestId(1), "cmpl-one".into())] }
    }

    fn ledger(steps: impl IntoIterator<Item = (u32, u32, u64)>) -> Ledger {
        let mut ledger = Ledger::default();
        for (group, epoch, number) in steps {
            ledger.record(step(group, epoch, number));
        }
        ledger
    }

    fn number(step: u64) -> ExplainQuery {
        ExplainQuery { step: StepChoice::Number(StepId::new(step)), group: None, dp_rank: None }
    }

    fn found(ledger: &Ledger, query: ExplainQuery) -> Vec<(u32, u32, u64)> {
        let steps = ledger.find(query).expect("kept");
        let ids = |step: &ExplainedStep| {
            let Explanation { group, epoch, step, .. } = step.explanation;
            (group.get(), epoch.get(), step.get())
        };
        steps.iter().map(ids).collect()
    }

    #[test]
    fn the_latest_steps_are_kept_and_no_more() {
        let ledger = ledger((1..=5_000).map(|step| (0, 1, step)));
        assert_eq!(ledger.steps.len(), STEPS_KEPT);
        assert_eq!(found(&ledger, number(905)), [(0, 1, 905)]);
        assert_eq!(found(&ledger, ExplainQuery { step: StepChoice::Last, ..number(0) }), [(0, 1, 5_000)]);
        for step in [904, 5_001] {
            let error = ledger.find(number(step)).expect_err("not kept").to_string();
            let expected =
                format!("step {step} of any group is not kept: the first kept is step 905, the last is step 5000");
            assert_eq!(error, expected);
        }
    }

    #[test]
    fn groups_count_by_themselves_and_a_number_means_its_newest_epoch() {
        let ledger = ledger([(1, 1, 1), (0, 1, 1), (0, 1, 2), (0, 2, 1), (1, 1, 2), (0, 2, 2), (0, 2, 3)]);
        assert_eq!(found(&ledger, number(1)), [(0, 2, 1), (1, 1, 1)]);
        let of = |group| ExplainQuery { group: Some(GroupId::new(group)), ..number(2) };
        assert_eq!(found(&ledger, of(1)), [(1, 1, 2)]);
        let last = ExplainQuery { step: StepChoice::Last, ..of(1) };
        assert_eq!(found(&ledger, last), [(1, 1, 2)]);
        let error = ledger.find(of(7)).expect_err("no such group");
        assert_eq!(error.to_string(), "no step of group 7 has run yet");
        let query = ExplainQuery { group: Some(GroupId::new(0)), ..number(9) };
        let error = ledger.find(query).expect_err("not run").to_string();
        assert!(error.ends_with("the first kept is step 1, the last is step 3 of epoch 2"), "{error}");
    }

    #[test]
    fn a_rank_gets_its_part_only() {
        let ledger = ledger([(0, 1, 1), (1, 1, 1)]);
        let query = ExplainQuery { dp_rank: Some(DpRank::new(3)), ..number(1) };
        let steps = ledger.find(query).expect("kept");
        let ranks: Vec<u32> = steps[0].explanation.ranks.iter().map(|rank| rank.dp_rank.get()).collect();
        assert_eq!((steps.len(), steps[0].explanation.group.get(), ranks), (1, 1, vec![3]));
        let error = ledger.find(ExplainQuery { dp_rank: Some(DpRank::new(4)), ..number(1) }).expect_err("no such rank");
        assert_eq!(error.to_string(), "no step of dp_rank 4 has run yet");
    }

    #[test]
    fn requests_are_called_what_their_callers_call_them() {
        let words = step(0, 1, 1).words();
        assert!(words.contains("request cmpl-one started"), "{words}");
        let words = step(0, 1, 2).words();
        assert!(words.contains("request number 2 started"), "{words}");
    }
}
