//! Which of the ranks that can start a request now does so, and why that one.

use crate::PlacementReason;

/// What ranks are compared by, the least first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Key {
    /// Prompts that run or start there, roughly; 0 where prompts are not aligned.
    pub(crate) prompts: u32,
    /// What there is to do until this request is done too.
    pub(crate) load: u64,
    pub(crate) requests: u32,
    /// Ranks that were given nothing for longer come first.
    pub(crate) last_placed: u64,
}

/// A rank that can start the request now.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Candidate {
    pub(crate) position: usize,
    /// Blocks that the request takes from what is spare.
    pub(crate) blocks: u32,
    /// Tokens of the request that are cached there.
    pub(crate) hit_tokens: u32,
    /// Tokens of prompts that run or start there.
    pub(crate) prompt_tokens: u32,
    pub(crate) key: Key,
    /// The key if nothing were cached.
    pub(crate) uncached: Key,
}

/// The best of the candidates so far, and what tells why it is.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Choice {
    best: Option<Candidate>,
    next: Option<Candidate>,
    /// The best if nothing were cached.
    uncached: Option<Candidate>,
}

impl Choice {
    /// Considers a candidate. Of equal ones the first stays.
    pub(crate) fn consider(&mut self, candidate: Candidate) {
        if self.uncached.is_none_or(|other| candidate.uncached < other.uncached) {
            self.uncached = Some(candidate);
        }
        if self.best.is_none_or(|best| candidate.key < best.key) {
            self.next = self.best.replace(candidate);
        } else if self.next.is_none_or(|next| candidate.key < next.key) {
            self.next = Some(candidate);
        }
    }

    /// The best candidate with the reason; nothing when there was none.
    pub(crate) fn decide(self, is_pinned: bool) -> Option<(Candidate, PlacementReason)> {
        let best = self.best?;
        let Some(next) = self.next else {
            return Some((best, if is_pinned { PlacementReason::Pinned } else { PlacementReason::OnlyRank }));
        };
        let reason = match self.uncached {
            Some(other) if other.position != best.position => PlacementReason::Prefix {
                cached_tokens: best.hit_tokens,
                load: best.key.load,
                otherwise: other.uncached.load,
            },
            _ if best.key.prompts != next.key.prompts => {
                PlacementReason::Prompts { tokens: best.prompt_tokens, next: next.prompt_tokens }
            }
            _ if best.key.load != next.key.load => PlacementReason::Load { load: best.key.load, next: next.key.load },
            _ => PlacementReason::Turn,
        };
        Some((best, reason))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A candidate with this load before the request of 300 tokens, of which so many are cached.
    fn candidate(position: usize, load: u64, hit_tokens: u32) -> Candidate {
        let uncached = Key { prompts: 0, load: load + 300, requests: 1, last_placed: position as u64 };
        let key = Key { load: uncached.load - u64::from(hit_tokens), ..uncached };
        Candidate { position, blocks: 1, hit_tokens, prompt_tokens: 0, key, uncached }
    }

    fn chosen(candidates: &[Candidate]) -> Option<(usize, PlacementReason)> {
        let mut choice = Choice::default();
        candidates.iter().for_each(|candidate| choice.consider(*candidate));
        choice.decide(false).map(|(best, reason)| (best.position, reason))
    }

    #[test]
    fn the_reason_is_what_tells_the_best_from_the_next() {
        assert_eq!(chosen(&[]), None);
        assert_eq!(chosen(&[candidate(3, 10, 0)]), Some((3, PlacementReason::OnlyRank)));
        let load = PlacementReason::Load { load: 310, next: 320 };
        assert_eq!(chosen(&[candidate(0, 40, 0), candidate(1, 10, 0), candidate(2, 20, 0)]), Some((1, load)));
        assert_eq!(chosen(&[candidate(0, 10, 0), candidate(1, 10, 0)]), Some((0, PlacementReason::Turn)));
        // A prefix that changes nothing is no reason.
        let load = PlacementReason::Load { load: 110, next: 320 };
        assert_eq!(chosen(&[candidate(0, 10, 200), candidate(1, 20, 0)]), Some((0, load)));
        // The next one has a prefix too: without any cache a third would have been chosen.
        let three = [candidate(0, 300, 300), candidate(1, 310, 290), candidate(2, 200, 0)];
        let prefix = PlacementReason::Prefix { cached_tokens: 300, load: 300, otherwise: 500 };
        assert_eq!(chosen(&three), Some((0, prefix)));
        let mut busy = candidate(0, 10, 0);
        (busy.key.prompts, busy.uncached.prompts, busy.prompt_tokens) = (2, 2, 2_100);
        let prompts = PlacementReason::Prompts { tokens: 0, next: 2_100 };
        assert_eq!(chosen(&[busy, candidate(1, 900, 0)]), Some((1, prompts)));
    }

    #[test]
    fn the_order_in_which_candidates_come_changes_nothing() {
        let all = [candidate(0, 300, 300), candidate(1, 310, 290), candidate(2, 200, 0), candidate(3, 500, 100)];
        let expected = chosen(&all);
        for first in 0..4 {
            let mut turned = all;
            turned.rotate_left(first);
            assert_eq!(chosen(&turned), expected);
            turned.reverse();
            assert_eq!(chosen(&turned), expected);
        }
    }
}
