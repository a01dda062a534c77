//! When the prompts of a lockstep group run, and how many tokens of them in a step.
//!
//! Every rank of a group waits for the one that runs most, so prompts cost least when all ranks run as many tokens of
//! them in the same steps: they wait for each other for a bounded number of steps, and run at a level that most ranks
//! can fill. A long prompt that stands alone runs in small pieces, so that nobody waits long for their next token.

use std::fmt::{Display, Formatter};

use crate::Policies;

/// What a rank could run in this step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Prospect {
    /// Rows that decode.
    pub(crate) decode_rows: u32,
    /// Tokens of prompts, those that would start now too.
    pub(crate) prompt_tokens: u32,
}

/// What the prompts of a step may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    /// As many tokens as the budgets leave.
    Free,
    /// They wait for others to run beside.
    Held {
        /// Steps that they have waited now.
        steps: u32,
        /// Steps that they wait at most.
        most: u32,
    },
    /// A rank runs at most so many tokens of them.
    Level {
        /// Tokens of a rank.
        tokens: u32,
        /// Why no more.
        reason: LevelReason,
    },
}

impl Pace {
    /// What it says, in words; nothing of prompts that are free.
    pub(crate) fn words(self) -> Option<String> {
        match self {
            Self::Free => None,
            Self::Held { steps, most } => {
                Some(format!("held until they run on several ranks, step {steps} of at most {most}"))
            }
            Self::Level { tokens, reason } => Some(format!("at most {tokens} tokens of a rank, {reason}")),
        }
    }
}

/// Why prompts of a step are kept to so many tokens of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LevelReason {
    /// Another rank decodes, and its gap between two tokens is bounded.
    Gap,
    /// The ranks fill this level alike.
    Even,
    /// Prompts have waited for others as long as they may, and run however uneven that is.
    Waited,
}

impl Display for LevelReason {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(match self {
            Self::Gap => "for another rank decodes",
            Self::Even => "which the ranks fill alike",
            Self::Waited => "for they have waited for others as long as they may",
        })
    }
}

/// A level is worth a step when it fills this part of the budget: waiting longer would not make fewer steps.
const WORTHWHILE: u32 = 2;

/// A group that waited long enough runs at least this part of the budget, however uneven that is.
const LONELY: u32 = 8;

/// Decides the pace of a group's prompts. `waited` is how many steps they have been held.
pub(crate) fn decide(policies: &Policies, budget: u32, ranks: &[Prospect], waited: u32) -> Pace {
    let largest = ranks.iter().map(|rank| rank.prompt_tokens).max().unwrap_or(0);
    if largest == 0 {
        return Pace::Free;
    }
    let decodes = ranks.iter().any(|rank| rank.decode_rows > 0);
    let capped =
        if policies.gap_tokens > 0 && delays_another(ranks) { budget.min(policies.gap_tokens) } else { budget };
    let Some(alignment) = policies.alignment.filter(|_| ranks.len() > 1 && decodes) else {
        return if capped < largest { Pace::Level { tokens: capped, reason: LevelReason::Gap } } else { Pace::Free };
    };
    let even = even_level(ranks, alignment.even_percent).min(capped);
    if even >= capped.div_ceil(WORTHWHILE) {
        let reason = if even == capped && capped < budget { LevelReason::Gap } else { LevelReason::Even };
        return Pace::Level { tokens: even, reason };
    }
    if waited < alignment.delay_steps {
        return Pace::Held { steps: waited + 1, most: alignment.delay_steps };
    }
    Pace::Level { tokens: even.max(capped.div_ceil(LONELY)), reason: LevelReason::Waited }
}

/// Whether some rank decodes that is not the only one with prompts.
fn delays_another(ranks: &[Prospect]) -> bool {
    ranks.iter().enumerate().any(|(index, rank)| {
        let others = ranks.iter().enumerate().filter(|(other, _)| *other != index);
        rank.decode_rows > 0 && others.map(|(_, other)| other.prompt_tokens).any(|tokens| tokens > 0)
    })
}

/// The largest number of tokens that no rank exceeds and that the ranks fill to `even_percent` on average.
fn even_level(ranks: &[Prospect], even_percent: u32) -> u32 {
    let mut tokens: Vec<u64> = ranks.iter().map(|rank| rank.prompt_tokens.into()).collect();
    tokens.sort_unstable_by(|one, other| other.cmp(one));
    let all = ranks.len() as u64;
    let wanted = u64::from(even_percent.clamp(1, 100)) * all;
    let mut rest: u64 = tokens.iter().sum();
    let mut best = 0;
    // Ranks before `index` have more than the level, those from there on less.
    for (index, largest) in tokens.iter().enumerate() {
        let filling = 100 * index as u64;
        // level * (wanted - filling) <= 100 * rest, and the ranks before have at least the level.
        let level = if wanted > filling { 100 * rest / (wanted - filling) } else { u64::MAX };
        let above = if index == 0 { u64::MAX } else { tokens[index - 1] };
        let level = level.min(above);
        if level >= *largest {
            best = best.max(level);
        }
        rest -= largest;
    }
    if wanted <= 100 * all && tokens.last().is_some_and(|least| *least > 0) {
        best = best.max(tokens[tokens.len() - 1]);
    }
    u32::try_from(best.min(tokens.first().copied().unwrap_or(0))).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Alignment;

    fn ranks(tokens: &[u32], decode_rows: u32) -> Vec<Prospect> {
        tokens.iter().map(|prompt_tokens| Prospect { decode_rows, prompt_tokens: *prompt_tokens }).collect()
    }

    /// The level found by trying every number.
    fn even_by_trial(tokens: &[u32], percent: u32) -> u32 {
        let most = tokens.iter().copied().max().unwrap_or(0);
        let filled = |level: u32| tokens.iter().map(|tokens| u64::from(*tokens.min(&level))).sum::<u64>() * 100;
        let wanted = |level: u32| u64::from(level) * tokens.len() as u64 * u64::from(percent);
        (1..=most).rev().find(|level| filled(*level) >= wanted(*level)).unwrap_or(0)
    }

    #[test]
    fn the_level_is_the_largest_that_is_even() {
        for tokens in
            [&[10, 10, 10, 10][..], &[40, 10, 10, 10], &[9, 8, 7, 0], &[100, 0, 0, 0], &[3, 2, 1, 1], &[5, 5, 0, 0]]
        {
            for percent in [50, 75, 85, 90, 100] {
                let expected = even_by_trial(tokens, percent);
                assert_eq!(even_level(&ranks(tokens, 1), percent), expected, "{tokens:?} at {percent}");
            }
        }
    }

    fn policies(gap_tokens: u32, delay_steps: Option<u32>) -> Policies {
        let alignment = delay_steps.map(|delay_steps| Alignment { delay_steps, even_percent: 90 });
        Policies { gap_tokens, alignment, ..Policies::default() }
    }

    #[test]
    fn prompts_wait_for_each_other_and_not_for_ever() {
        let policies = policies(0, Some(3));
        let lonely = ranks(&[800, 0], 1);
        let paces: Vec<Pace> = (0..4).map(|waited| decide(&policies, 1_000, &lonely, waited)).collect();
        let held = |steps| Pace::Held { steps, most: 3 };
        let level = |tokens, reason| Pace::Level { tokens, reason };
        assert_eq!(paces, [held(1), held(2), held(3), level(125, LevelReason::Waited)]);
        assert_eq!(decide(&policies, 1_000, &ranks(&[800, 700], 1), 0), level(800, LevelReason::Even));
        assert_eq!(decide(&policies, 1_000, &ranks(&[800, 0], 0), 0), Pace::Free, "nobody decodes");
        assert_eq!(decide(&policies, 1_000, &ranks(&[800], 1), 0), Pace::Free, "a group of one");
        assert_eq!(decide(&policies, 1_000, &ranks(&[0, 0], 1), 0), Pace::Free);
    }

    #[test]
    fn a_long_prompt_is_cut_only_where_another_rank_decodes() {
        let policies = policies(100, None);
        let one = [Prospect { decode_rows: 0, prompt_tokens: 900 }, Prospect { decode_rows: 1, prompt_tokens: 0 }];
        assert_eq!(decide(&policies, 1_000, &one, 0), Pace::Level { tokens: 100, reason: LevelReason::Gap });
        let own = [Prospect { decode_rows: 1, prompt_tokens: 900 }, Prospect::default()];
        assert_eq!(decide(&policies, 1_000, &own, 0), Pace::Free);
    }
}
