//! How many tokens of an answer are reasoning.

use std::collections::VecDeque;

use super::AnswerPart;
use super::reasoning::{ReasoningFormat, ReasoningSplitter};

/// Counts the tokens of an answer that hold a part of its reasoning. Markers, and whatever ends the answer, are none.
#[derive(Debug, Clone)]
pub struct ReasoningCounter {
    splitter: ReasoningSplitter,
    /// Bytes of text so far.
    seen: usize,
    /// Where reasoning begins, once that is known.
    begin: Option<usize>,
    /// Tokens that are not judged yet: where their text begins and ends.
    pending: VecDeque<(usize, usize)>,
    counted: usize,
}

impl ReasoningCounter {
    /// A counter for an answer to `prompt`, whose end says whether the answer begins with reasoning.
    #[must_use]
    pub fn new(format: ReasoningFormat, prompt: &str) -> Self {
        let splitter = ReasoningSplitter::new(format, prompt);
        Self { splitter, seen: 0, begin: None, pending: VecDeque::new(), counted: 0 }
    }

    /// Takes the text that became complete with one more token; it may be empty.
    pub fn push(&mut self, text: &str) {
        if self.splitter.is_answering() {
            return;
        }
        self.pending.push_back((self.seen, self.seen + text.len()));
        self.seen += text.len();
        let mut parts = Vec::new();
        let answer = self.splitter.push(text, &mut parts);
        let thought = thought_bytes(&parts);
        if self.splitter.is_answering() {
            self.judge(self.seen.saturating_sub(answer.len() + self.splitter.close_bytes()), thought);
            self.pending.clear();
        } else if self.splitter.is_thinking() {
            self.judge(self.seen - self.splitter.waiting_bytes(), thought);
        }
    }

    /// No more tokens come: what was held back as a possible marker is reasoning too.
    pub fn finish(&mut self) {
        let mut parts = Vec::new();
        self.splitter.finish(&mut parts);
        let thought = thought_bytes(&parts);
        if thought > 0 {
            self.judge(self.seen, thought);
        }
        self.pending.clear();
    }

    /// Tokens of reasoning so far.
    #[must_use]
    pub const fn tokens(&self) -> usize {
        self.counted
    }

    /// Judges the tokens before `end`, up to where all is reasoning; its last `thought` bytes are new.
    fn judge(&mut self, end: usize, thought: usize) {
        if thought == 0 {
            return;
        }
        let begin = *self.begin.get_or_insert(end.saturating_sub(thought));
        while let Some((first, last)) = self.pending.front().copied()
            && first < end
        {
            self.pending.pop_front();
            // A token without text of its own began what the next one completed.
            self.counted += usize::from(last > begin || (first == last && first == begin));
        }
    }
}

/// Bytes of reasoning in these parts.
fn thought_bytes(parts: &[AnswerPart]) -> usize {
    parts.iter().map(|part| if let AnswerPart::Reasoning(text) = part { text.len() } else { 0 }).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The count after each piece, and after the end.
    fn counts(format: ReasoningFormat, prompt: &str, pieces: &[&str]) -> Vec<usize> {
        let mut counter = ReasoningCounter::new(format, prompt);
        let mut counts = Vec::new();
        for piece in pieces {
            counter.push(piece);
            counts.push(counter.tokens());
        }
        counter.finish();
        counts.push(counter.tokens());
        counts
    }

    #[test]
    fn c02_tokens_of_reasoning_are_those_between_the_markers() {
        let (r1, qwen) = (ReasoningFormat::DeepSeekR1, ReasoningFormat::Qwen3);
        assert_eq!(counts(r1, "", &["so", " be", "</think>", "two", ""]), [1, 2, 2, 2, 2, 2]);
        assert_eq!(counts(r1, "", &["<think>", "\n", "so", "</think>"]), [0, 1, 2, 2, 2]);
        assert_eq!(counts(qwen, "x<think>\n", &["so", "</", "think", ">two", "."]), [1, 1, 1, 1, 1, 1]);
        assert_eq!(counts(qwen, "", &["\n", "<think>", "so", "x</think>y"]), [0, 0, 1, 2, 2]);
        assert_eq!(counts(qwen, "", &["two", " <think>", "three"]), [0, 0, 0, 0]);
        assert_eq!(counts(qwen, "<think></think>", &["two"]), [0, 0]);
        assert_eq!(counts(qwen, "", &["<think>so</think>two"]), [1, 1]);
        assert_eq!(counts(qwen, "", &["<think>", "</think>", "two"]), [0, 0, 0, 0]);
    }

    #[test]
    fn c02_an_answer_cut_in_its_reasoning_counts_what_was_thought() {
        let r1 = ReasoningFormat::DeepSeekR1;
        // The end of the answer has no text.
        assert_eq!(counts(r1, "", &["so", " be", ""]), [1, 2, 2, 2]);
        // What might have been the marker was none; half a character is told with its other half.
        assert_eq!(counts(r1, "", &["so", " </", "thi"]), [1, 2, 2, 3]);
        assert_eq!(counts(r1, "", &["", "é", "</think>"]), [0, 2, 2, 2]);
        assert_eq!(counts(r1, "", &["<th"]), [0, 1]);
    }
}
