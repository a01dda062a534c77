//! What an answer has to look like where calls are forced, or the arguments of calls have to match a schema.

use paceline_grammar::{JsonStyle, Pattern, Source};
use paceline_text::{CallPiece, CallSpelling};
use serde_json::{Value, json};

use super::chat_tools::{Function, ToolChoice, Tools};
use super::fields::wrong_type;
use crate::api_error::ApiError;
use crate::generate::Structure;
use crate::limits::FORCED_CALLS_MAX;

/// As JSON elsewhere: objects that name their members get no others.
const STYLE: JsonStyle = JsonStyle { is_compact: false, is_closed: true };

/// What an answer that may call `tools`, as `spelling` has it, is held to. `content` is what its content has to be, if
/// anything: it holds for an answer that calls nothing.
///
/// # Errors
/// A schema or a name that cannot stand in a grammar, or two wishes that exclude each other.
pub(crate) fn held_to_calls(
    tools: &Tools,
    spelling: CallSpelling,
    content: Option<Structure>,
) -> Result<Option<Structure>, ApiError> {
    let is_forced = tools.choice != ToolChoice::Auto;
    let calls = Calls { tools, spelling };
    let (field, pattern) = match content {
        Some(content) if !formats_content(&content) => {
            if is_forced {
                let message = format!("tool_choice forces a call, which {} excludes", content.field);
                return Err(ApiError::invalid("tool_choice", message));
            }
            return Ok(Some(content));
        }
        // An answer that is all calls has no content to be formatted.
        _ if is_forced => ("tool_choice".to_owned(), calls.forced()?),
        Some(content) => match calls.or_content(&content)? {
            Some(pattern) => (content.field, pattern),
            None => return Ok(Some(content)),
        },
        None if tools.functions.iter().any(|function| function.is_strict) => ("tools".to_owned(), calls.among_text()?),
        None => return Ok(None),
    };
    Ok(Some(Structure::new(field, Source::Pattern(pattern))))
}

/// Whether it is the content of an answer that has to be something, as OpenAI has it; else it is the whole answer.
fn formats_content(structure: &Structure) -> bool {
    let is_json = matches!(structure.source, Source::JsonObject(_) | Source::JsonSchema(..));
    is_json && ["response_format", "text.format"].iter().any(|field| structure.field.starts_with(field))
}

struct Calls<'a> {
    tools: &'a Tools,
    spelling: CallSpelling,
}

impl Calls<'_> {
    /// Calls and nothing else.
    fn forced(&self) -> Result<Pattern, ApiError> {
        let calls = self.repeated()?;
        Ok(Pattern::Sequence([texts(self.spelling.open), vec![calls], texts(self.spelling.close)].concat()))
    }

    /// Calls and nothing else, or JSON as `content` has it. Where nothing marks calls the two cannot be told apart, and
    /// there is the content only.
    fn or_content(&self, content: &Structure) -> Result<Option<Pattern>, ApiError> {
        let first = self.spelling.open.iter().chain(self.spelling.call).next();
        let (schema, style) = match &content.source {
            Source::JsonSchema(schema, style) => (schema.clone(), *style),
            Source::JsonObject(style) => (json!({"type": "object"}), *style),
            _ => return Ok(None),
        };
        if !matches!(first, Some(CallPiece::Mark(_))) {
            return Ok(None);
        }
        let content = Pattern::Json { field: content.field.clone(), schema, style };
        Ok(Some(Pattern::OneOf(vec![self.forced()?, content])))
    }

    /// Text in which the first marker of a call begins one. Where there is no marker, calls are the whole answer.
    fn among_text(&self) -> Result<Pattern, ApiError> {
        let CallSpelling { open, call, close, .. } = self.spelling;
        if let [CallPiece::Mark(mark), rest @ ..] = open {
            let calls = self.repeated()?;
            let then = Pattern::Sequence([texts(rest), vec![calls], texts(close)].concat());
            return Ok(marked(mark, then, true));
        }
        if let [first @ CallPiece::Mark(mark), ..] = call {
            return Ok(marked(mark, self.one(&[*first])?, !self.tools.parallel));
        }
        let field = "tools".to_owned();
        let text = Pattern::Regex { field, expression: r"\s*([^\s{][\s\S]*)?".to_owned() };
        Ok(Pattern::OneOf(vec![self.forced()?, text]))
    }

    /// Calls of any of the functions, as many as there may be.
    fn repeated(&self) -> Result<Pattern, ApiError> {
        let is_one = !self.tools.parallel || matches!(self.tools.choice, ToolChoice::Named(_));
        Ok(Pattern::Repeated {
            item: Box::new(self.one(&[])?),
            between: Box::new(Pattern::Sequence(texts(self.spelling.between))),
            least: 1,
            most: Some(if is_one { 1 } else { FORCED_CALLS_MAX }),
        })
    }

    /// A call of one of the functions; `without` is what it leaves out at its start.
    fn one(&self, without: &[CallPiece]) -> Result<Pattern, ApiError> {
        let may_be = |function: &&Function| match &self.tools.choice {
            ToolChoice::Named(name) => function.name == *name,
            ToolChoice::Auto | ToolChoice::Required => true,
        };
        let call = self.spelling.call.strip_prefix(without).unwrap_or(self.spelling.call);
        let functions = self.tools.functions.iter().filter(may_be);
        functions.map(|function| self.call(function, call)).collect::<Result<_, _>>().map(Pattern::OneOf)
    }

    fn call(&self, function: &Function, pieces: &[CallPiece]) -> Result<Pattern, ApiError> {
        let piece = |piece: &CallPiece| -> Result<Pattern, ApiError> {
            Ok(match piece {
                CallPiece::Mark(mark) => Pattern::Mark((*mark).to_owned()),
                CallPiece::Text(text) => Pattern::Text((*text).to_owned()),
                CallPiece::Name => Pattern::Text(plain_name(function)?.to_owned()),
                CallPiece::QuotedName => Pattern::Text(Value::from(function.name.as_str()).to_string()),
                CallPiece::Arguments => self.arguments(function)?,
            })
        };
        pieces.iter().map(piece).collect::<Result<_, _>>().map(Pattern::Sequence)
    }

    /// Arguments match the schema where calls are forced or the function is strict; an object they are in any case.
    fn arguments(&self, function: &Function) -> Result<Pattern, ApiError> {
        let field = format!("{}.parameters", function.field);
        let schema = match &function.parameters {
            _ if self.tools.choice == ToolChoice::Auto && !function.is_strict => json!({"type": "object"}),
            Value::Object(schema) => {
                let mut schema = schema.clone();
                schema.entry("type").or_insert_with(|| Value::from("object"));
                Value::Object(schema)
            }
            other => return Err(wrong_type(&field, "a JSON schema of an object", other)),
        };
        if schema["type"] != "object" {
            let message = format!("{field}.type={} is not supported: arguments are an object", schema["type"]);
            return Err(ApiError::invalid(format!("{field}.type"), message));
        }
        Ok(Pattern::Json { field, schema, style: STYLE })
    }
}

fn marked(mark: &str, then: Pattern, is_once: bool) -> Pattern {
    Pattern::Marked { marks: vec![(mark.to_owned(), then)], is_needed: false, is_once }
}

/// Pieces that are the same for all functions.
fn texts(pieces: &[CallPiece]) -> Vec<Pattern> {
    let text = |piece: &CallPiece| match piece {
        CallPiece::Mark(mark) => Some(Pattern::Mark((*mark).to_owned())),
        CallPiece::Text(text) => Some(Pattern::Text((*text).to_owned())),
        CallPiece::Name | CallPiece::QuotedName | CallPiece::Arguments => None,
    };
    pieces.iter().filter_map(text).collect()
}

/// A name that stands between markers as it is.
fn plain_name(function: &Function) -> Result<&str, ApiError> {
    let name = function.name.as_str();
    if name.chars().all(|letter| letter.is_alphanumeric() || "_-.:/".contains(letter)) {
        return Ok(name);
    }
    let field = format!("{}.name", function.field);
    let message =
        format!("{field}: this model writes names as they are; \"{name}\" has more than letters, digits and _-.:/");
    Err(ApiError::invalid(field, message))
}
