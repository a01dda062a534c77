//! What callers ask for, as grammars.

use std::fmt::Write as _;

use llguidance::api::{GrammarWithLexer, TopLevelGrammar};
use serde_json::{Value, json};

use crate::{Error, Pattern, Vocabulary, gbnf};

/// How JSON is laid out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct JsonStyle {
    /// No blanks between the parts.
    pub is_compact: bool,
    /// Objects may have no members but those that the schema names, where the schema says nothing of others.
    pub is_closed: bool,
}

/// What an answer has to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// Any JSON object.
    JsonObject(JsonStyle),
    /// JSON that the schema describes.
    JsonSchema(Value, JsonStyle),
    /// Text that the whole expression matches, in the syntax of the Rust crate `regex`.
    Regex(String),
    /// One of these texts.
    Choice(Vec<String>),
    /// Text of a context-free grammar: in Lark's syntax from its rule `start`, or in that of llama.cpp (`root ::= ...`).
    Lark(String),
    /// What is put together from parts.
    Pattern(Pattern),
}

/// Choices of one source.
const CHOICES_MAX: usize = 4_096;

/// Blanks between two parts of JSON: one, or a new line and its indent. Too few for a model to go on with for ever.
const BLANKS: &str = r"( |\n[ \t]{0,24})";

impl Source {
    /// A text that is the same for equal sources only, and about as long as what was given.
    pub(crate) fn key(&self) -> String {
        match self {
            Self::JsonObject(style) => format!("{style:?}"),
            Self::JsonSchema(schema, style) => format!("{style:?}{schema}"),
            Self::Regex(text) => format!("regex {text}"),
            Self::Choice(texts) => format!("choice {}", json!(texts)),
            Self::Lark(text) => format!("lark {text}"),
            Self::Pattern(pattern) => format!("pattern {pattern:?}"),
        }
    }

    /// The grammar in the compiler's words.
    pub(crate) fn grammar(&self, vocabulary: &Vocabulary) -> Result<TopLevelGrammar, Error> {
        Ok(match self {
            Self::JsonObject(style) => schema_grammar(json!({"type": "object"}), *style),
            Self::JsonSchema(schema, style) => schema_grammar(schema.clone(), *style),
            Self::Regex(text) => TopLevelGrammar::from_regex(without_anchors(text)),
            Self::Choice(texts) => TopLevelGrammar::from_lark(choice_grammar(texts)?),
            Self::Lark(text) => lark_grammar(text)?,
            Self::Pattern(pattern) => TopLevelGrammar::from_lark(pattern.lark(vocabulary)),
        })
    }
}

fn schema_grammar(schema: Value, style: JsonStyle) -> TopLevelGrammar {
    TopLevelGrammar::from_json_schema(guided_schema(schema, style))
}

/// A schema with what its style says, in the compiler's words.
pub(crate) fn guided_schema(mut schema: Value, style: JsonStyle) -> Value {
    if style.is_closed && !joins_parts(&schema) {
        close(&mut schema);
    }
    let guidance =
        if style.is_compact { json!({"whitespace_flexible": false}) } else { json!({"whitespace_pattern": BLANKS}) };
    // A schema that is no object is `true` or `false`, or an error that the compiler names.
    if let Value::Bool(true) = schema {
        schema = json!({});
    }
    if let Value::Object(fields) = &mut schema {
        fields.insert("x-guidance".to_owned(), guidance);
    }
    schema
}

/// Whether parts of the schema speak of one object together: closed, each would forbid what the others ask for.
fn joins_parts(schema: &Value) -> bool {
    match schema {
        Value::Object(fields) => {
            let many = fields.get("allOf").and_then(Value::as_array).is_some_and(|parts| parts.len() > 1);
            many || fields.values().any(joins_parts)
        }
        Value::Array(items) => items.iter().any(joins_parts),
        _ => false,
    }
}

/// Words of a schema by which other parts of it speak of the same object: it is left open.
const JOINED: [&str; 8] =
    ["allOf", "anyOf", "oneOf", "not", "if", "$ref", "patternProperties", "unevaluatedProperties"];

/// Objects that name their members and say nothing of others get no others. What is left satisfies the schema as it was.
fn close(schema: &mut Value) {
    match schema {
        Value::Object(fields) => {
            let required = fields.get("required").and_then(Value::as_array).into_iter().flatten();
            let is_named = |name: &Value| fields["properties"].get(name.as_str().unwrap_or_default()).is_some();
            let names_members =
                fields.get("properties").is_some_and(Value::is_object) && required.into_iter().all(is_named);
            let is_joined = JOINED.iter().any(|word| fields.contains_key(*word));
            if names_members && !is_joined && !fields.contains_key("additionalProperties") {
                fields.insert("additionalProperties".to_owned(), Value::Bool(false));
            }
            for (name, value) in fields.iter_mut() {
                if !matches!(name.as_str(), "enum" | "const" | "default" | "examples") {
                    close(value);
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(close),
        _ => {}
    }
}

/// The whole text is matched in any case; anchors around an expression say nothing more.
pub(crate) fn without_anchors(text: &str) -> &str {
    let text = text.strip_prefix('^').unwrap_or(text);
    match text.strip_suffix('$') {
        Some(body) if !body.ends_with('\\') => body,
        _ => text,
    }
}

/// A text as a literal of Lark's syntax.
pub(crate) fn literal(text: &str) -> String {
    Value::from(text).to_string().replace('\u{7f}', "\\u007f")
}

fn choice_grammar(texts: &[String]) -> Result<String, Error> {
    if texts.is_empty() || texts.len() > CHOICES_MAX {
        return Err(Error::Choices { most: CHOICES_MAX, got: texts.len() });
    }
    let mut grammar = "start: ".to_owned();
    for (index, text) in texts.iter().enumerate() {
        let separator = if index == 0 { "" } else { " | " };
        let _ = write!(grammar, "{separator}{}", literal(text));
    }
    Ok(grammar)
}

fn lark_grammar(text: &str) -> Result<TopLevelGrammar, Error> {
    let text = if gbnf::is_gbnf(text) { gbnf::to_lark(text)? } else { text.to_owned() };
    Ok(TopLevelGrammar::from_grammar(GrammarWithLexer::from_lark(text)))
}
