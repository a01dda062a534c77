//! Stop strings found across token borders.
//!
//! Text is matched byte by byte against every stop string at once (one prefix automaton each), so the answer does not
//! depend on how the text was cut into tokens: the match that is complete first wins, and of several that end on the
//! same byte the longest. Only a suffix that may still grow into a match is held back.

/// A stop string that was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StopMatch {
    /// Position of the string in the list the matcher was built with.
    pub stop_index: usize,
}

/// Finds the first of several strings in a stream of text.
#[derive(Debug, Clone)]
pub struct StopMatcher {
    stops: Vec<Pattern>,
    include_stop: bool,
    held: String,
    found: bool,
}

#[derive(Debug, Clone)]
struct Pattern {
    bytes: Vec<u8>,
    /// `fallback[n]`: longest proper prefix of the string that is a suffix of its first `n + 1` bytes.
    fallback: Vec<usize>,
    /// Bytes of the string that the text read so far ends with.
    matched: usize,
}

impl StopMatcher {
    /// A matcher for `stops`; empty strings never match. `include_stop` leaves the found string in the text.
    #[must_use]
    pub fn new(stops: &[String], include_stop: bool) -> Self {
        Self {
            stops: stops.iter().map(|stop| Pattern::new(stop)).collect(),
            include_stop,
            held: String::new(),
            found: false,
        }
    }

    /// Reads `text` and appends what can be shown to `out`. After a match everything that follows is dropped.
    pub fn push(&mut self, text: &str, out: &mut String) -> Option<StopMatch> {
        if self.found {
            return None;
        }
        let read = self.held.len();
        self.held.push_str(text);
        for (offset, byte) in text.bytes().enumerate() {
            let Some((stop_index, length)) = self.advance(byte) else {
                continue;
            };
            let end = read + offset + 1;
            let shown = if self.include_stop { end } else { end - length };
            out.push_str(&self.held[..shown]);
            self.held.clear();
            self.found = true;
            return Some(StopMatch { stop_index });
        }
        let keep = self.stops.iter().map(|stop| stop.matched).max().unwrap_or(0);
        out.extend(self.held.drain(..self.held.len() - keep));
        None
    }

    /// Appends what was held back: the text ended and no stop string can follow.
    pub fn finish(&mut self, out: &mut String) {
        out.push_str(&self.held);
        self.held.clear();
    }

    /// The longest stop string that ends on this byte, as (index, bytes).
    fn advance(&mut self, byte: u8) -> Option<(usize, usize)> {
        let mut best: Option<(usize, usize)> = None;
        for (index, stop) in self.stops.iter_mut().enumerate() {
            if stop.advance(byte) && best.is_none_or(|(_, length)| stop.bytes.len() > length) {
                best = Some((index, stop.bytes.len()));
            }
        }
        best
    }
}

impl Pattern {
    fn new(stop: &str) -> Self {
        let bytes = stop.as_bytes().to_vec();
        let mut fallback = vec![0; bytes.len()];
        let mut prefix = 0;
        for index in 1..bytes.len() {
            while prefix > 0 && bytes[index] != bytes[prefix] {
                prefix = fallback[prefix - 1];
            }
            if bytes[index] == bytes[prefix] {
                prefix += 1;
            }
            fallback[index] = prefix;
        }
        Self { bytes, fallback, matched: 0 }
    }

    /// Reads one byte; true when the whole string has just been read.
    fn advance(&mut self, byte: u8) -> bool {
        if self.bytes.is_empty() {
            return false;
        }
        while self.matched > 0 && self.bytes[self.matched] != byte {
            self.matched = self.fallback[self.matched - 1];
        }
        if self.bytes[self.matched] == byte {
            self.matched += 1;
        }
        self.matched == self.bytes.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn strings(stops: &[&str]) -> Vec<String> {
        stops.iter().map(|stop| (*stop).to_owned()).collect()
    }

    #[test]
    fn c03_a_stop_inside_a_block_of_tokens_hides_what_follows() {
        let mut matcher = StopMatcher::new(&strings(&["END"]), false);
        let mut out = String::new();
        assert_eq!(matcher.push("x", &mut out), None);
        assert_eq!(matcher.push("EN", &mut out), None);
        assert_eq!(out, "x");
        assert_eq!(matcher.push("D", &mut out), Some(StopMatch { stop_index: 0 }));
        assert_eq!(matcher.push("y", &mut out), None);
        matcher.finish(&mut out);
        assert_eq!(out, "x");
    }

    #[test]
    fn held_text_is_shown_as_soon_as_no_match_can_come() {
        let mut matcher = StopMatcher::new(&strings(&["\n\nQ"]), false);
        let mut out = String::new();
        matcher.push("a\n", &mut out);
        assert_eq!(out, "a");
        matcher.push("\n\n", &mut out);
        assert_eq!(out, "a\n");
        matcher.push("b", &mut out);
        assert_eq!(out, "a\n\n\nb");
        matcher.push("\n", &mut out);
        matcher.finish(&mut out);
        assert_eq!(out, "a\n\n\nb\n");
    }

    #[test]
    fn the_found_string_can_be_kept() {
        let mut matcher = StopMatcher::new(&strings(&["é!"]), true);
        let mut out = String::new();
        assert!(matcher.push("caf", &mut out).is_none());
        assert!(matcher.push("é", &mut out).is_none());
        assert!(matcher.push("! more", &mut out).is_some());
        assert_eq!(out, "café!");
    }

    /// The rule in its plainest form: smallest end, then smallest start.
    fn naive(text: &str, stops: &[String]) -> (String, Option<usize>) {
        let mut best: Option<(usize, usize, usize)> = None;
        for (index, stop) in stops.iter().enumerate().filter(|(_, stop)| !stop.is_empty()) {
            if let Some(start) = text.find(stop.as_str()) {
                let candidate = (start + stop.len(), start, index);
                best = Some(best.map_or(candidate, |current| current.min(candidate)));
            }
        }
        match best {
            Some((_, start, index)) => (text[..start].to_owned(), Some(index)),
            None => (text.to_owned(), None),
        }
    }

    proptest! {
        #[test]
        fn the_matcher_agrees_with_a_plain_search(
            pieces in prop::collection::vec("[abé]{0,4}", 0..12),
            stops in prop::collection::vec("[abé]{0,4}", 0..4),
        ) {
            let mut matcher = StopMatcher::new(&stops, false);
            let mut out = String::new();
            let mut found = None;
            let mut read = String::new();
            for piece in &pieces {
                read.push_str(piece);
                if let Some(hit) = matcher.push(piece, &mut out) {
                    found = Some(hit.stop_index);
                    break;
                }
                // Held back no longer than needed: what is held is a proper prefix of some stop string.
                let held = &read[out.len()..];
                prop_assert!(held.is_empty() || stops.iter().any(|stop| stop.len() > held.len() && stop.starts_with(held)));
            }
            if found.is_none() {
                matcher.finish(&mut out);
            }
            prop_assert_eq!((out, found), naive(&pieces.concat(), &stops));
        }
    }
}
