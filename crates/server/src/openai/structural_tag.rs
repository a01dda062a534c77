//! Structural tags: free text in which some marks begin what has a form. In vLLM's older words and in XGrammar's.

use paceline_grammar::{JsonStyle, Pattern};
use serde_json::Value;

use super::fields::{Fields, wrong_type};
use crate::api_error::ApiError;

/// Formats inside formats.
const DEPTH_MAX: usize = 8;

/// The pattern of a structural tag that is given as an object, or as the text of one.
pub(crate) fn structural_tag_of(field: &str, value: Value, style: JsonStyle) -> Result<Pattern, ApiError> {
    let value = match value {
        Value::String(text) => serde_json::from_str(&text)
            .map_err(|error| ApiError::invalid(field, format!("{field} is not valid JSON: {error}")))?,
        value => value,
    };
    let mut fields = Fields::nested(value, field)?;
    if let Some(kind) = fields.text("type")?.filter(|kind| kind != "structural_tag") {
        let name = fields.name("type");
        return Err(ApiError::invalid(&*name, format!("{name} must be \"structural_tag\", got \"{kind}\"")));
    }
    let pattern = structural_tag(&mut fields, style)?;
    fields.finish()?;
    Ok(pattern)
}

/// The pattern of a structural tag, of which all but the type is left.
pub(super) fn structural_tag(fields: &mut Fields, style: JsonStyle) -> Result<Pattern, ApiError> {
    let reader = Reader { style };
    let name = fields.name("format");
    match fields.take("format") {
        Some(format) => reader.format(format, &name, 0),
        None => reader.structures(fields),
    }
}

/// What begins, what it holds and how it ends.
struct Tag {
    begin: String,
    content: Pattern,
    end: String,
    field: String,
}

struct Reader {
    style: JsonStyle,
}

impl Reader {
    /// The older words: `structures` and `triggers`.
    fn structures(&self, fields: &mut Fields) -> Result<Pattern, ApiError> {
        let read = |(value, field): (Value, String)| -> Result<Tag, ApiError> {
            let mut fields = Fields::nested(value, &field)?;
            let begin = required_text(&mut fields, "begin")?;
            let end = fields.text("end")?.unwrap_or_default();
            let content = self.schema(&mut fields, "schema")?;
            fields.finish()?;
            Ok(Tag { begin, content, end, field })
        };
        let tags = items(fields, "structures")?.into_iter().map(read).collect::<Result<_, _>>()?;
        triggered(&triggers(fields)?, tags, (false, false))
    }

    /// A format in XGrammar's words.
    fn format(&self, value: Value, field: &str, depth: usize) -> Result<Pattern, ApiError> {
        if depth > DEPTH_MAX {
            return Err(ApiError::invalid(
                field,
                format!("{field}: at most {DEPTH_MAX} formats may stand in each other"),
            ));
        }
        let mut fields = Fields::nested(value, field)?;
        let kind = required_text(&mut fields, "type")?;
        let inner = |(value, field): (Value, String)| self.format(value, &field, depth + 1);
        let pattern = match kind.as_str() {
            "const_string" => Pattern::Text(required_text(&mut fields, "value")?),
            "json_schema" => self.schema(&mut fields, "json_schema")?,
            "regex" => {
                let field = fields.name("pattern");
                Pattern::Regex { expression: required_text(&mut fields, "pattern")?, field }
            }
            "sequence" => {
                Pattern::Sequence(items(&mut fields, "elements")?.into_iter().map(inner).collect::<Result<_, _>>()?)
            }
            "or" => Pattern::OneOf(items(&mut fields, "elements")?.into_iter().map(inner).collect::<Result<_, _>>()?),
            "tag" => {
                let tag = self.tag(&mut fields, field, depth)?;
                Pattern::Sequence(vec![Pattern::Mark(tag.begin), tag.content, Pattern::Mark(tag.end)])
            }
            "triggered_tags" => {
                let triggers = triggers(&mut fields)?;
                let tags = self.tags(&mut fields, depth)?;
                triggered(&triggers, tags, bounds(&mut fields)?)?
            }
            "tags_with_separator" => {
                let between = Box::new(Pattern::Text(fields.text("separator")?.unwrap_or_default()));
                let whole =
                    |tag: Tag| Pattern::Sequence(vec![Pattern::Mark(tag.begin), tag.content, Pattern::Mark(tag.end)]);
                let item = Box::new(Pattern::OneOf(self.tags(&mut fields, depth)?.into_iter().map(whole).collect()));
                let (is_needed, is_once) = bounds(&mut fields)?;
                Pattern::Repeated { item, between, least: u32::from(is_needed), most: is_once.then_some(1) }
            }
            other => {
                let name = fields.name("type");
                let message = format!(
                    "{name}=\"{other}\" is not supported by this server; there are const_string, json_schema, regex, sequence, \
                     or, tag, triggered_tags and tags_with_separator, and any_text as the content of a tag"
                );
                return Err(ApiError::invalid(name, message));
            }
        };
        fields.finish()?;
        Ok(pattern)
    }

    fn tags(&self, fields: &mut Fields, depth: usize) -> Result<Vec<Tag>, ApiError> {
        let read = |(value, field): (Value, String)| -> Result<Tag, ApiError> {
            let mut fields = Fields::nested(value, &field)?;
            if let Some(kind) = fields.text("type")?.filter(|kind| kind != "tag") {
                let name = fields.name("type");
                return Err(ApiError::invalid(&*name, format!("{name} must be \"tag\", got \"{kind}\"")));
            }
            let tag = self.tag(&mut fields, &field, depth)?;
            fields.finish()?;
            Ok(tag)
        };
        items(fields, "tags")?.into_iter().map(read).collect()
    }

    fn tag(&self, fields: &mut Fields, field: &str, depth: usize) -> Result<Tag, ApiError> {
        let begin = required_text(fields, "begin")?;
        let end = fields.text("end")?.unwrap_or_default();
        let name = fields.name("content");
        let content = fields.take("content").ok_or_else(|| missing(&name))?;
        let field = field.to_owned();
        if content["type"] != "any_text" {
            return Ok(Tag { begin, content: self.format(content, &name, depth + 1)?, end, field });
        }
        if end.is_empty() {
            return Err(ApiError::invalid(&*name, format!("{name} is any text: it needs an end")));
        }
        // Free text ends where its end is complete.
        let marks = vec![(end, Pattern::Sequence(Vec::new()))];
        Ok(Tag { begin, content: Pattern::Marked { marks, is_needed: true, is_once: true }, end: String::new(), field })
    }

    fn schema(&self, fields: &mut Fields, field: &str) -> Result<Pattern, ApiError> {
        let name = fields.name(field);
        match fields.take(field) {
            Some(schema @ (Value::Object(_) | Value::Bool(_))) => {
                Ok(Pattern::Json { field: name, schema, style: self.style })
            }
            Some(other) => Err(wrong_type(&name, "a JSON schema", &other)),
            None => Err(missing(&name)),
        }
    }
}

/// Free text in which a trigger begins one of the tags that begin with it.
fn triggered(triggers: &[String], tags: Vec<Tag>, bounds: (bool, bool)) -> Result<Pattern, ApiError> {
    let mut marks: Vec<(String, Vec<Pattern>)> = triggers.iter().map(|trigger| (trigger.clone(), Vec::new())).collect();
    for Tag { begin, content, end, field } in tags {
        let Some((trigger, then)) = marks.iter_mut().find(|(trigger, _)| begin.starts_with(trigger.as_str())) else {
            let message =
                format!("{field}.begin=\"{begin}\" begins with none of the triggers: {}", triggers.join(", "));
            return Err(ApiError::invalid(format!("{field}.begin"), message));
        };
        let rest = begin[trigger.len()..].to_owned();
        then.push(Pattern::Sequence(vec![Pattern::Mark(rest), content, Pattern::Mark(end)]));
    }
    let used = marks.into_iter().filter(|(_, then)| !then.is_empty());
    let marks = used.map(|(trigger, then)| (trigger, Pattern::OneOf(then))).collect();
    let (is_needed, is_once) = bounds;
    Ok(Pattern::Marked { marks, is_needed, is_once })
}

/// Whether a tag has to come, and whether the first one is the last.
fn bounds(fields: &mut Fields) -> Result<(bool, bool), ApiError> {
    let is_needed = fields.boolean("at_least_one")?.unwrap_or(false);
    Ok((is_needed, fields.boolean("stop_after_first")?.unwrap_or(false)))
}

fn triggers(fields: &mut Fields) -> Result<Vec<String>, ApiError> {
    let text = |(value, field): (Value, String)| match value {
        Value::String(text) if !text.is_empty() => Ok(text),
        other => Err(wrong_type(&field, "a string that is not empty", &other)),
    };
    items(fields, "triggers")?.into_iter().map(text).collect()
}

/// The items of an array that is not empty, and their places.
fn items(fields: &mut Fields, field: &str) -> Result<Vec<(Value, String)>, ApiError> {
    let name = fields.name(field);
    match fields.take(field) {
        Some(Value::Array(items)) if !items.is_empty() => {
            Ok((0..).zip(items).map(|(index, item): (usize, Value)| (item, format!("{name}[{index}]"))).collect())
        }
        Some(other) => Err(wrong_type(&name, "an array that is not empty", &other)),
        None => Err(missing(&name)),
    }
}

fn required_text(fields: &mut Fields, field: &str) -> Result<String, ApiError> {
    fields.text(field)?.ok_or_else(|| missing(&fields.name(field)))
}

fn missing(name: &str) -> ApiError {
    ApiError::invalid(name, format!("{name} is required"))
}
