//! What an answer has to be, in the words of OpenAI and of vLLM.

use paceline_grammar::{JsonStyle, Source};
use serde_json::Value;

use super::fields::{Fields, wrong_type};
use super::neutral::{self, Neutral};
use super::structural_tag::{structural_tag, structural_tag_of};
use crate::api_error::ApiError;
use crate::generate::Structure;

/// Older names of what `structured_outputs` holds.
const GUIDED: [(&str, &str); 5] = [
    ("guided_json", "json"),
    ("guided_regex", "regex"),
    ("guided_choice", "choice"),
    ("guided_grammar", "grammar"),
    ("guided_json_object", "json_object"),
];

/// Wishes about how an answer is constrained that are not built.
const UNBUILT: &[(&str, Neutral)] = &[
    ("whitespace_pattern", Neutral::Nothing),
    ("disable_fallback", Neutral::Anything),
    ("backend", Neutral::Anything),
];

/// Takes `response_format`, `structured_outputs` and the older `guided_...`: at most one of them says something.
pub(super) fn take(fields: &mut Fields) -> Result<Option<Structure>, ApiError> {
    let mut found: Option<Structure> = None;
    let mut add = |more: Option<Structure>| match (&found, more) {
        (_, None) => Ok(()),
        (None, more) => {
            found = more;
            Ok(())
        }
        (Some(first), Some(second)) => {
            let message = format!("{} and {} exclude each other", first.field, second.field);
            Err(ApiError::invalid(second.field, message))
        }
    };
    add(response_format(fields, "response_format")?)?;
    if let Some(value) = fields.take("structured_outputs") {
        let mut nested = Fields::nested(value, "structured_outputs")?;
        let style = style(&mut nested)?;
        for kind in ["json", "regex", "choice", "grammar", "json_object", "structural_tag"] {
            let name = nested.name(kind);
            let value = nested.take(kind);
            add(value.map(|value| source(kind, &name, value, style)).transpose()?.flatten())?;
        }
        neutral::accept(&mut nested, UNBUILT)?;
        nested.finish()?;
    }
    for (field, kind) in GUIDED {
        let value = fields.take(field);
        add(value.map(|value| source(kind, field, value, DEFAULT_STYLE)).transpose()?.flatten())?;
    }
    let whitespace = [("guided_whitespace_pattern", Neutral::Nothing), ("guided_decoding_backend", Neutral::Anything)];
    neutral::accept(fields, &whitespace)?;
    Ok(found)
}

/// OpenAI's form of it, in a field of this name.
pub(super) fn response_format(fields: &mut Fields, field: &str) -> Result<Option<Structure>, ApiError> {
    let name = fields.name(field);
    let Some(value) = fields.take(field) else { return Ok(None) };
    let mut nested = Fields::nested(value, &name)?;
    let kind = nested.text("type")?;
    let structure = match kind.as_deref() {
        Some("text") => None,
        Some("json_object") => Some(Structure::new(name.clone(), Source::JsonObject(DEFAULT_STYLE))),
        Some("structural_tag") => {
            let pattern = structural_tag(&mut nested, DEFAULT_STYLE)?;
            Some(Structure::new(name.clone(), Source::Pattern(pattern)))
        }
        Some("json_schema") => {
            // Chats nest the schema, responses do not.
            let deeper = nested.take("json_schema");
            let within = if deeper.is_some() { format!("{name}.json_schema") } else { name.clone() };
            let mut described = match deeper {
                Some(value) => Fields::nested(value, &within)?,
                None => std::mem::replace(&mut nested, Fields::empty()),
            };
            let structure = described_schema(&mut described, &within)?;
            described.finish()?;
            Some(structure)
        }
        _ => {
            let message =
                format!("{name}.type must be \"text\", \"json_object\", \"json_schema\" or \"structural_tag\"");
            return Err(ApiError::invalid(format!("{name}.type"), message));
        }
    };
    nested.finish()?;
    Ok(structure)
}

/// A schema with a name; both are between the caller and the model, only the schema is held to.
fn described_schema(fields: &mut Fields, within: &str) -> Result<Structure, ApiError> {
    fields.text("name")?;
    fields.text("description")?;
    fields.boolean("strict")?;
    let field = format!("{within}.schema");
    let schema = fields.take("schema").ok_or_else(|| ApiError::invalid(&*field, format!("{field} is required")))?;
    schema_source(&field, schema, DEFAULT_STYLE)
}

const DEFAULT_STYLE: JsonStyle = JsonStyle { is_compact: false, is_closed: true };

fn style(fields: &mut Fields) -> Result<JsonStyle, ApiError> {
    Ok(JsonStyle {
        is_compact: fields.boolean("disable_any_whitespace")?.unwrap_or(DEFAULT_STYLE.is_compact),
        is_closed: fields.boolean("disable_additional_properties")?.unwrap_or(DEFAULT_STYLE.is_closed),
    })
}

fn source(kind: &str, field: &str, value: Value, style: JsonStyle) -> Result<Option<Structure>, ApiError> {
    let text = |value: Value| match value {
        Value::String(text) => Ok(text),
        other => Err(wrong_type(field, "a string", &other)),
    };
    let source = match kind {
        "json" => return schema_source(field, value, style).map(Some),
        "json_object" => match value {
            Value::Bool(true) => Source::JsonObject(style),
            Value::Bool(false) => return Ok(None),
            other => return Err(wrong_type(field, "true or false", &other)),
        },
        "choice" => Source::Choice(choices(field, value)?),
        "regex" => Source::Regex(text(value)?),
        "structural_tag" => Source::Pattern(structural_tag_of(field, value, style)?),
        _ => Source::Lark(text(value)?),
    };
    Ok(Some(Structure::new(field, source)))
}

/// A schema, or one written as text.
fn schema_source(field: &str, schema: Value, style: JsonStyle) -> Result<Structure, ApiError> {
    let schema = match schema {
        Value::String(text) => serde_json::from_str(&text)
            .map_err(|error| ApiError::invalid(field, format!("{field} is not valid JSON: {error}")))?,
        schema => schema,
    };
    match schema {
        Value::Object(_) | Value::Bool(_) => Ok(Structure::new(field, Source::JsonSchema(schema, style))),
        other => Err(wrong_type(field, "a JSON schema", &other)),
    }
}

fn choices(field: &str, value: Value) -> Result<Vec<String>, ApiError> {
    const FORM: &str = "an array of strings";
    let Value::Array(texts) = value else { return Err(wrong_type(field, FORM, &value)) };
    let text = |text| match text {
        Value::String(text) => Ok(text),
        other => Err(wrong_type(field, FORM, &other)),
    };
    texts.into_iter().map(text).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(body: &str) -> Result<Option<Structure>, ApiError> {
        let mut fields = Fields::from_body(body.as_bytes())?;
        let structure = take(&mut fields)?;
        fields.finish()?;
        Ok(structure)
    }

    #[test]
    fn every_spelling_is_read() {
        let schema = r#"{"type": "object"}"#;
        for (body, field) in [
            (r#"{"response_format": {"type": "json_object"}}"#.to_owned(), "response_format"),
            (
                format!(
                    r#"{{"response_format": {{"type": "json_schema", "json_schema": {{"name": "x", "strict": true, "schema": {schema}}}}}}}"#
                ),
                "response_format.json_schema.schema",
            ),
            (format!(r#"{{"structured_outputs": {{"json": {schema}}}}}"#), "structured_outputs.json"),
            (
                r#"{"structured_outputs": {"json": "{}", "disable_any_whitespace": true}}"#.to_owned(),
                "structured_outputs.json",
            ),
            (r#"{"structured_outputs": {"regex": "a+", "choice": null}}"#.to_owned(), "structured_outputs.regex"),
            (r#"{"structured_outputs": {"choice": ["a", "b"]}}"#.to_owned(), "structured_outputs.choice"),
            (r#"{"structured_outputs": {"grammar": "start: /a/"}}"#.to_owned(), "structured_outputs.grammar"),
            (r#"{"structured_outputs": {"json_object": true}}"#.to_owned(), "structured_outputs.json_object"),
            (format!(r#"{{"guided_json": {schema}}}"#), "guided_json"),
            (r#"{"guided_regex": "a"}"#.to_owned(), "guided_regex"),
            (r#"{"guided_choice": ["a"]}"#.to_owned(), "guided_choice"),
            (r#"{"guided_grammar": "start: /a/"}"#.to_owned(), "guided_grammar"),
        ] {
            assert_eq!(read(&body).unwrap().map(|structure| structure.field).as_deref(), Some(field), "{body}");
        }
        for body in
            ["{}", r#"{"response_format": {"type": "text"}}"#, r#"{"structured_outputs": {"json_object": false}}"#]
        {
            assert!(read(body).unwrap().is_none(), "{body}");
        }
    }

    #[test]
    fn mistakes_are_named() {
        for (body, param) in [
            (r#"{"response_format": {"type": "xml"}}"#, "response_format.type"),
            (r#"{"response_format": {"type": "json_schema"}}"#, "response_format.schema"),
            (
                r#"{"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}}"#,
                "response_format.json_schema.schema",
            ),
            (
                r#"{"response_format": {"type": "json_schema", "json_schema": {"name": 7}}}"#,
                "response_format.json_schema.name",
            ),
            (r#"{"response_format": {"type": "json_object", "colour": 1}}"#, "response_format.colour"),
            (r#"{"response_format": "json"}"#, "response_format"),
            (r#"{"structured_outputs": {"json": 7}}"#, "structured_outputs.json"),
            (r#"{"structured_outputs": {"json": "{"}}"#, "structured_outputs.json"),
            (r#"{"structured_outputs": {"choice": "a"}}"#, "structured_outputs.choice"),
            (r#"{"structured_outputs": {"regex": ["a"]}}"#, "structured_outputs.regex"),
            (r#"{"structured_outputs": {"structural_tag": "{"}}"#, "structured_outputs.structural_tag"),
            (r#"{"structured_outputs": {"structural_tag": "{}"}}"#, "structured_outputs.structural_tag.structures"),
            (r#"{"structured_outputs": {"regex": "a", "choice": ["a"]}}"#, "structured_outputs.choice"),
            (r#"{"guided_regex": "a", "response_format": {"type": "json_object"}}"#, "guided_regex"),
            (r#"{"guided_whitespace_pattern": " ", "guided_regex": "a"}"#, "guided_whitespace_pattern"),
        ] {
            assert_eq!(read(body).unwrap_err().param.as_deref(), Some(param), "{body}");
        }
    }
}
