//! Answers put together from parts: text, markers, JSON, and free text between them.

use std::fmt::Write as _;

use serde_json::Value;

use crate::source::{guided_schema, literal, without_anchors};
use crate::{JsonStyle, Vocabulary};

/// What an answer, or a part of one, looks like.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pattern {
    /// This text.
    Text(String),
    /// A marker: the special token of this name where the vocabulary has one, else its text.
    Mark(String),
    /// JSON that a schema describes.
    Json {
        /// What errors call it.
        field: String,
        /// The schema.
        schema: Value,
        /// How it is laid out.
        style: JsonStyle,
    },
    /// Text that the whole expression matches.
    Regex {
        /// What errors call it.
        field: String,
        /// The expression, in the syntax of the Rust crate `regex`.
        expression: String,
    },
    /// One after the other.
    Sequence(Vec<Pattern>),
    /// One of these; at least one is given.
    OneOf(Vec<Pattern>),
    /// An item several times.
    Repeated {
        /// What comes again.
        item: Box<Pattern>,
        /// What stands between two items.
        between: Box<Pattern>,
        /// Items at least, 0 or 1.
        least: u32,
        /// Items at most; nothing sets no limit.
        most: Option<u32>,
    },
    /// Free text, in which some marks begin what has a form.
    Marked {
        /// What follows each mark; at least one is given.
        marks: Vec<(String, Pattern)>,
        /// Whether a mark has to come.
        is_needed: bool,
        /// Whether the first mark's part ends the answer.
        is_once: bool,
    },
}

impl Pattern {
    /// The parts that a caller wrote, by their names: each has to be one on its own.
    pub(crate) fn parts(&self) -> Vec<&Self> {
        match self {
            Self::Text(_) | Self::Mark(_) => Vec::new(),
            Self::Json { .. } | Self::Regex { .. } => vec![self],
            Self::Sequence(parts) | Self::OneOf(parts) => parts.iter().flat_map(Self::parts).collect(),
            Self::Repeated { item, between, .. } => [item.parts(), between.parts()].concat(),
            Self::Marked { marks, .. } => marks.iter().flat_map(|(_, part)| part.parts()).collect(),
        }
    }

    /// The pattern as a grammar in Lark's syntax.
    pub(crate) fn lark(&self, vocabulary: &Vocabulary) -> String {
        let mut writer = Writer { vocabulary, rules: String::new(), count: 0 };
        let whole = writer.term(self);
        format!("start: {whole}\n{}", writer.rules)
    }
}

/// Writes rules; what has a form of its own becomes a rule of its own, so that nothing is nested.
struct Writer<'a> {
    vocabulary: &'a Vocabulary,
    rules: String,
    count: usize,
}

impl Writer<'_> {
    /// What stands for the pattern in a rule.
    fn term(&mut self, pattern: &Pattern) -> String {
        match pattern {
            Pattern::Text(text) => literal(text),
            Pattern::Mark(mark) => self.mark(mark),
            Pattern::Json { schema, style, .. } => {
                self.rule(&format!("%json {}", guided_schema(schema.clone(), *style)))
            }
            Pattern::Regex { expression, .. } => {
                let expression = llguidance::regex_to_lark(without_anchors(expression), "");
                if expression.is_empty() { literal("") } else { self.rule(&format!("/{expression}/")) }
            }
            Pattern::Sequence(parts) => self.sequence(parts),
            Pattern::OneOf(parts) => {
                let terms: Vec<String> = parts.iter().map(|part| self.term(part)).collect();
                self.rule(&terms.join(" | "))
            }
            Pattern::Repeated { item, between, least, most } => self.repeated(item, between, *least, *most),
            Pattern::Marked { marks, is_needed, is_once } => self.marked(marks, *is_needed, *is_once),
        }
    }

    fn mark(&self, mark: &str) -> String {
        self.vocabulary.special(mark).map_or_else(|| literal(mark), |token| format!("<[{token}]>"))
    }

    fn rule(&mut self, body: &str) -> String {
        self.count += 1;
        let name = format!("part_{}", self.count);
        let _ = writeln!(self.rules, "{name}: {body}");
        name
    }

    /// Texts side by side are one: a name is then never the beginning of another one.
    fn sequence(&mut self, parts: &[Pattern]) -> String {
        let mut terms = Vec::new();
        let mut text = String::new();
        for part in parts {
            match part {
                Pattern::Text(more) => text.push_str(more),
                Pattern::Mark(mark) if self.vocabulary.special(mark).is_none() => text.push_str(mark),
                other => {
                    if !text.is_empty() {
                        terms.push(literal(&std::mem::take(&mut text)));
                    }
                    terms.push(self.term(other));
                }
            }
        }
        if !text.is_empty() || terms.is_empty() {
            terms.push(literal(&text));
        }
        self.rule(&terms.join(" "))
    }

    fn repeated(&mut self, item: &Pattern, between: &Pattern, least: u32, most: Option<u32>) -> String {
        let (item, between) = (self.term(item), self.term(between));
        let more = match most {
            Some(0) => return literal(""),
            Some(1) => String::new(),
            Some(most) => format!(" ({between} {item}){{0,{}}}", most - 1),
            None => format!(" ({between} {item})*"),
        };
        let items = self.rule(&format!("{item}{more}"));
        if least == 0 { self.rule(&format!("{items} | \"\"")) } else { items }
    }

    /// Free text ends where a mark of text is complete; a mark that is a special token is no text in any case.
    fn marked(&mut self, marks: &[(String, Pattern)], is_needed: bool, is_once: bool) -> String {
        let texts: Vec<String> = marks
            .iter()
            .filter(|(mark, _)| self.vocabulary.special(mark).is_none())
            .map(|(mark, _)| literal(mark))
            .collect();
        self.count += 1;
        let number = self.count;
        let except = match texts.as_slice() {
            [] => String::new(),
            texts => format!(" & ~(/(?s:.*)/ ({}) /(?s:.*)/)", texts.join(" | ")),
        };
        let _ = writeln!(self.rules, "FREE_{number}: /(?s:.+)/{except}");
        let _ = writeln!(self.rules, "BEFORE_{number}: /(?s:.*)/{except}");
        let mut tags = Vec::with_capacity(marks.len());
        for (index, (mark, then)) in marks.iter().enumerate() {
            let then = self.term(then);
            tags.push(match self.vocabulary.special(mark) {
                Some(token) => format!("FREE_{number}? <[{token}]> {then}"),
                None => {
                    let _ = writeln!(self.rules, "mark_{number}_{index}[lazy]: BEFORE_{number} {}", literal(mark));
                    format!("mark_{number}_{index} {then}")
                }
            });
        }
        let tag = self.rule(&tags.join(" | "));
        match (is_needed, is_once) {
            (true, true) => tag,
            (false, true) => self.rule(&format!("{tag} | FREE_{number} | \"\"")),
            (true, false) => self.rule(&format!("{tag}+ FREE_{number}?")),
            (false, false) => self.rule(&format!("{tag}* FREE_{number}?")),
        }
    }
}
