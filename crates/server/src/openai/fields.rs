//! Reads a JSON object field by field; every error names the field it is about.

use std::ops::RangeInclusive;

use serde_json::{Map, Value};

use crate::api_error::{ApiError, Kind};

/// The fields of an object that were not read yet. An explicit `null` is the same as an absent field.
#[derive(Debug)]
pub(crate) struct Fields {
    object: Map<String, Value>,
    /// What comes before a field's name in errors: `messages[0].`.
    path: String,
}

impl Fields {
    /// Parses a request body.
    pub(crate) fn from_body(body: &[u8]) -> Result<Self, ApiError> {
        let value: Value = serde_json::from_slice(body)
            .map_err(|error| ApiError::new(Kind::Invalid, format!("the body is not valid JSON: {error}")))?;
        match value {
            Value::Object(object) => Ok(Self { object, path: String::new() }),
            other => {
                let message = format!("the body must be a JSON object, got {}", type_name(&other));
                Err(ApiError::new(Kind::Invalid, message))
            }
        }
    }

    /// An object inside the body; `path` is its own place.
    pub(crate) fn nested(value: Value, path: &str) -> Result<Self, ApiError> {
        match value {
            Value::Object(object) => Ok(Self { object, path: format!("{path}.") }),
            other => Err(wrong_type(path, "an object", &other)),
        }
    }

    /// No fields at all.
    pub(crate) fn empty() -> Self {
        Self { object: Map::new(), path: String::new() }
    }

    /// The full name of `field` for errors.
    pub(crate) fn name(&self, field: &str) -> String {
        format!("{}{field}", self.path)
    }

    /// Takes a field as it is.
    pub(crate) fn take(&mut self, field: &str) -> Option<Value> {
        self.object.remove(field).filter(|value| !value.is_null())
    }

    /// Looks at a field and leaves it.
    pub(crate) fn peek(&self, field: &str) -> Option<&Value> {
        self.object.get(field)
    }

    /// These fields and `more`, which win.
    pub(crate) fn with(mut self, more: Map<String, Value>) -> Self {
        self.object.extend(more);
        self
    }

    pub(crate) fn boolean(&mut self, field: &str) -> Result<Option<bool>, ApiError> {
        match self.take(field) {
            None => Ok(None),
            Some(Value::Bool(value)) => Ok(Some(value)),
            Some(other) => Err(wrong_type(&self.name(field), "true or false", &other)),
        }
    }

    pub(crate) fn text(&mut self, field: &str) -> Result<Option<String>, ApiError> {
        match self.take(field) {
            None => Ok(None),
            Some(Value::String(value)) => Ok(Some(value)),
            Some(other) => Err(wrong_type(&self.name(field), "a string", &other)),
        }
    }

    /// A whole number within `range`.
    pub(crate) fn integer(&mut self, field: &str, range: RangeInclusive<i128>) -> Result<Option<i128>, ApiError> {
        let Some(value) = self.take(field) else { return Ok(None) };
        let name = self.name(field);
        let number = whole_number(&value).ok_or_else(|| wrong_type(&name, "an integer", &value))?;
        if range.contains(&number) {
            return Ok(Some(number));
        }
        let (low, high) = range.into_inner();
        let message = format!("{name} must be an integer between {low} and {high}, got {number}");
        Err(ApiError::invalid(name, message))
    }

    /// A whole number that fits `u32`, at least `low`.
    pub(crate) fn count(&mut self, field: &str, low: u32) -> Result<Option<u32>, ApiError> {
        let number = self.integer(field, i128::from(low)..=i128::from(u32::MAX))?;
        Ok(number.map(|number| u32::try_from(number).expect("checked against the range")))
    }

    /// Any finite number; the model's own rules for it are checked at admission.
    pub(crate) fn number(&mut self, field: &str) -> Result<Option<f32>, ApiError> {
        let Some(value) = self.take(field) else { return Ok(None) };
        let name = self.name(field);
        let number = value.as_f64().ok_or_else(|| wrong_type(&name, "a number", &value))? as f32;
        if number.is_finite() {
            return Ok(Some(number));
        }
        Err(ApiError::invalid(name.clone(), format!("{name} is out of range: {value}")))
    }

    /// Refuses what nobody took.
    pub(crate) fn finish(self) -> Result<(), ApiError> {
        match self.object.iter().find(|(_, value)| !value.is_null()).or(self.object.iter().next()) {
            None => Ok(()),
            Some((field, _)) => {
                let name = self.name(field);
                Err(ApiError::invalid(name.clone(), format!("unknown field `{name}`")))
            }
        }
    }
}

/// A JSON number without a fraction; `16.0` counts.
pub(crate) fn whole_number(value: &Value) -> Option<i128> {
    let number = value.as_number()?;
    number.as_i64().map(i128::from).or(number.as_u64().map(i128::from)).or_else(|| {
        let float = number.as_f64().filter(|float| float.fract() == 0.0 && float.abs() < 1e30)?;
        Some(float as i128)
    })
}

/// A token id, or an error that names where it stood. Whether the vocabulary has it is checked at admission.
pub(crate) fn token_id(value: &Value, name: &str) -> Result<u32, ApiError> {
    let number = whole_number(value).ok_or_else(|| wrong_type(name, "a token id", value))?;
    u32::try_from(number).map_err(|_| ApiError::invalid(name, format!("token id {number} is outside the vocabulary")))
}

/// The error for a value of the wrong JSON type.
pub(crate) fn wrong_type(name: &str, expected: &str, got: &Value) -> ApiError {
    let got = match got {
        Value::Number(number) => number.to_string(),
        other => type_name(other).to_owned(),
    };
    ApiError::invalid(name, format!("{name} must be {expected}, got {got}"))
}

fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(body: &str) -> Fields {
        Fields::from_body(body.as_bytes()).unwrap()
    }

    #[test]
    fn null_is_absent_and_numbers_are_exact() {
        let mut fields = fields(r#"{"a": null, "b": 16.0, "c": 18446744073709551615, "d": -1}"#);
        assert_eq!(fields.count("a", 0).unwrap(), None);
        assert_eq!(fields.count("b", 0).unwrap(), Some(16));
        assert_eq!(fields.integer("c", 0..=i128::from(u64::MAX)).unwrap(), Some(i128::from(u64::MAX)));
        assert_eq!(fields.count("d", 0).unwrap_err().param.as_deref(), Some("d"));
        assert!(fields.finish().is_ok());
    }

    #[test]
    fn errors_name_the_field_and_what_was_given() {
        let mut top = fields(r#"{"top_k": 0.01, "stream": "yes", "other": 1}"#);
        let error = top.integer("top_k", -1..=10).unwrap_err();
        assert_eq!(error.message, "top_k must be an integer, got 0.01");
        assert_eq!(top.boolean("stream").unwrap_err().param.as_deref(), Some("stream"));
        assert_eq!(top.finish().unwrap_err().message, "unknown field `other`");
        let mut nested = Fields::nested(serde_json::json!({"role": 1}), "messages[0]").unwrap();
        assert_eq!(nested.text("role").unwrap_err().param.as_deref(), Some("messages[0].role"));
        assert!(Fields::from_body(b"{\"a\": NaN}").is_err());
        assert!(Fields::from_body(b"[]").is_err());
    }
}
