//! Prompt-lookup drafts: what followed the last few tokens when they occurred before.

/// Which matches count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NgramLengths {
    /// The longest match looked for, in tokens.
    pub max: usize,
    /// The shortest match that gives drafts, in tokens; at least 1.
    pub min: usize,
}

impl Default for NgramLengths {
    /// Matches of 4 tokens down to 1: a wrong draft costs nothing where the row is padded to Q tokens anyway.
    fn default() -> Self {
        Self { max: 4, min: 1 }
    }
}

/// Appends at most `count` drafts for the tokens that follow `history` (prompt and output, newest last).
///
/// The longest suffix of the history, within `lengths`, that occurs earlier is looked for; of several occurrences the
/// most recent counts. The drafts are what followed it, and where that runs into the end of the history, the drafts
/// themselves follow, so a repeating text goes on repeating. No match gives no draft.
pub fn propose(history: &[u32], count: usize, lengths: NgramLengths, drafts: &mut Vec<u32>) {
    let Some(start) = (count > 0).then(|| continuation_start(history, lengths)).flatten() else {
        return;
    };
    let drafts_start = drafts.len();
    for position in start..start + count {
        let token_id = match history.get(position) {
            Some(known) => *known,
            None => drafts[drafts_start + position - history.len()],
        };
        drafts.push(token_id);
    }
}

/// The position after the best earlier occurrence of the history's end.
fn continuation_start(history: &[u32], lengths: NgramLengths) -> Option<usize> {
    let min = lengths.min.max(1);
    let mut best: Option<(usize, usize)> = None;
    for end in (1..history.len()).rev() {
        let matching = history[..end].iter().rev().zip(history.iter().rev());
        let length = matching.take(lengths.max).take_while(|(earlier, newest)| earlier == newest).count();
        if length >= min && best.is_none_or(|(_, longest)| length > longest) {
            best = Some((end, length));
            if length == lengths.max {
                break;
            }
        }
    }
    best.map(|(end, _)| end)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drafts(history: &[u32], count: usize) -> Vec<u32> {
        let mut drafts = Vec::new();
        propose(history, count, NgramLengths::default(), &mut drafts);
        drafts
    }

    #[test]
    fn the_continuation_of_the_match_is_proposed() {
        assert_eq!(drafts(&[1, 2, 3, 4, 5, 6, 9, 1, 2, 3, 4], 3), [5, 6, 9]);
        assert_eq!(drafts(&[1, 2, 3, 4, 5, 6, 9, 1, 2, 3, 4], 1), [5]);
    }

    #[test]
    fn a_longer_match_beats_a_more_recent_one() {
        assert_eq!(drafts(&[1, 2, 3, 70, 8, 3, 80, 2, 3], 2), [70, 8]);
    }

    #[test]
    fn of_equal_matches_the_most_recent_counts() {
        assert_eq!(drafts(&[1, 2, 70, 1, 2, 80, 1, 2], 1), [80]);
    }

    #[test]
    fn matches_stop_growing_at_the_maximum() {
        let history = [9, 1, 2, 3, 4, 70, 5, 1, 2, 3, 4, 80, 9, 1, 2, 3, 4];
        assert_eq!(drafts(&history, 1), [80]);
    }

    #[test]
    fn a_repeating_text_goes_on_repeating() {
        assert_eq!(drafts(&[5, 5, 5], 4), [5, 5, 5, 5]);
        assert_eq!(drafts(&[7, 8, 9, 7, 8], 5), [9, 7, 8, 9, 7]);
    }

    #[test]
    fn no_match_no_draft() {
        assert_eq!(drafts(&[1, 2, 3, 4], 3), []);
        assert_eq!(drafts(&[], 3), []);
        assert_eq!(drafts(&[1], 3), []);
        assert_eq!(drafts(&[1, 1], 0), []);
    }

    #[test]
    fn matches_under_the_minimum_give_nothing() {
        let mut found = vec![42];
        propose(&[1, 2, 3, 1], 2, NgramLengths { max: 3, min: 2 }, &mut found);
        assert_eq!(found, [42]);
        propose(&[1, 2, 3, 1, 2], 2, NgramLengths { max: 3, min: 2 }, &mut found);
        assert_eq!(found, [42, 3, 1]);
    }
}
