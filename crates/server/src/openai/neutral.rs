//! Fields that are known but not built yet: accepted while they ask for nothing, refused by name otherwise.

use serde_json::Value;

use super::fields::Fields;
use crate::api_error::ApiError;

/// The values of a field that ask for nothing. `null` always does.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Neutral {
    /// Never looked at by any server: for the client's own bookkeeping.
    Anything,
    /// Only `null`.
    Nothing,
    /// This boolean.
    Boolean(bool),
    /// This number.
    Number(f64),
    /// One of these strings.
    Texts(&'static [&'static str]),
    /// An array, object or string without content.
    Empty,
    /// `["text"]`.
    TextOnly,
}

impl Neutral {
    fn accepts(self, value: &Value) -> bool {
        match self {
            Self::Anything => true,
            Self::Nothing => false,
            Self::Boolean(neutral) => value.as_bool() == Some(neutral),
            Self::Number(neutral) => value.as_f64() == Some(neutral),
            Self::Texts(neutral) => value.as_str().is_some_and(|text| neutral.contains(&text)),
            Self::Empty => match value {
                Value::Array(items) => items.is_empty(),
                Value::Object(entries) => entries.is_empty(),
                Value::String(text) => text.is_empty(),
                _ => false,
            },
            Self::TextOnly => value.as_array().is_some_and(|items| items.len() == 1 && items[0] == "text"),
        }
    }

    fn hint(self) -> String {
        match self {
            Self::Anything | Self::Nothing => "leave it out".to_owned(),
            Self::Boolean(neutral) => format!("leave it out or give {neutral}"),
            Self::Number(neutral) => format!("leave it out or give {neutral}"),
            Self::Texts(neutral) => format!("leave it out or give \"{}\"", neutral.join("\" or \"")),
            Self::Empty => "leave it out or leave it empty".to_owned(),
            Self::TextOnly => "leave it out or give [\"text\"]".to_owned(),
        }
    }
}

/// Fields that both kinds of request know.
pub(crate) const COMMON: &[(&str, Neutral)] = &[
    ("user", Neutral::Anything),
    ("service_tier", Neutral::Texts(&["auto", "default"])),
    ("metadata", Neutral::Empty),
    ("store", Neutral::Boolean(false)),
    ("length_penalty", Neutral::Number(1.0)),
    ("use_beam_search", Neutral::Boolean(false)),
    ("spaces_between_special_tokens", Neutral::Boolean(true)),
    ("kv_transfer_params", Neutral::Nothing),
    ("vllm_xargs", Neutral::Empty),
];

/// Fields of completions only.
pub(crate) const COMPLETION: &[(&str, Neutral)] = &[("suffix", Neutral::Empty), ("prompt_embeds", Neutral::Nothing)];

/// Fields of chats only.
pub(crate) const CHAT: &[(&str, Neutral)] = &[
    ("echo", Neutral::Boolean(false)),
    ("safety_identifier", Neutral::Anything),
    ("prompt_cache_key", Neutral::Anything),
    ("prompt_cache_retention", Neutral::Anything),
    ("functions", Neutral::Empty),
    ("function_call", Neutral::Texts(&["none", "auto"])),
    ("modalities", Neutral::TextOnly),
    ("audio", Neutral::Nothing),
    ("prediction", Neutral::Nothing),
    ("verbosity", Neutral::Texts(&["medium"])),
    ("web_search_options", Neutral::Nothing),
    ("chat_template", Neutral::Nothing),
    ("documents", Neutral::Empty),
    ("mm_processor_kwargs", Neutral::Empty),
];

/// Takes every field of `table`, refusing one that asks for something.
pub(crate) fn accept(fields: &mut Fields, table: &[(&str, Neutral)]) -> Result<(), ApiError> {
    for (field, neutral) in table {
        if let Some(value) = fields.take(field).filter(|value| !neutral.accepts(value)) {
            let name = fields.name(field);
            let mut shown: String = value.to_string().chars().take(40).collect();
            if shown.len() < value.to_string().len() {
                shown.push_str("...");
            }
            let message = format!("{name}={shown} is not supported by this server; {}", neutral.hint());
            return Err(ApiError::invalid(name, message));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(body: &str) -> Result<(), ApiError> {
        let mut fields = Fields::from_body(body.as_bytes())?;
        accept(&mut fields, COMMON)?;
        accept(&mut fields, COMPLETION)?;
        accept(&mut fields, CHAT)?;
        fields.finish()
    }

    #[test]
    fn neutral_values_pass() {
        let body = r#"{"length_penalty": 1.0, "store": false, "vllm_xargs": {}, "echo": false, "user": "me",
            "functions": [], "suffix": "", "audio": null,
            "modalities": ["text"], "kv_transfer_params": null}"#;
        assert_eq!(check(body), Ok(()));
    }

    #[test]
    fn a_wish_not_built_is_refused_by_name() {
        for (field, value) in [("echo", "true"), ("functions", "[{}]")] {
            let error = check(&format!("{{\"{field}\": {value}}}")).unwrap_err();
            assert_eq!(error.param.as_deref(), Some(field));
        }
        assert_eq!(check("{\"repetition_penalti\": 1.0}").unwrap_err().param.as_deref(), Some("repetition_penalti"));
    }
}
