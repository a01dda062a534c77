//! The model's chat template: a Jinja program from the model folder, run the way `transformers` runs it.

use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Serde};
use minijinja::{Environment, ErrorKind, Value};
use serde_json::Value as Json;

use crate::settings::read_json;
use crate::{Error, ModelSettings, ToolFormat, python_json, strftime};

const NAME: &str = "chat_template";

/// What a template is rendered with.
#[derive(Debug, Clone, Default)]
pub struct ChatInput {
    /// The conversation: objects with `role`, `content` and whatever else the template reads.
    pub messages: Vec<Json>,
    /// Whether the text ends where the assistant's answer begins.
    pub add_generation_prompt: bool,
    /// Whether the text ends with the last message, for the assistant to go on with it.
    pub continue_final_message: bool,
    /// Further variables for the template; they win over the built-in ones.
    pub variables: serde_json::Map<String, Json>,
}

/// A compiled chat template.
#[derive(Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    special_tokens: serde_json::Map<String, Json>,
    tool_format: Option<ToolFormat>,
    knows_developer: bool,
    source: String,
}

impl ChatTemplate {
    /// Finds the template of `folder`: `chat_template.jinja`, `chat_template.json`, or the entry of
    /// `tokenizer_config.json` (of several named ones, `default`). `None` when the folder has none.
    ///
    /// # Errors
    /// [`Error::Read`] or [`Error::Parse`] for a file that exists but cannot be used.
    pub fn load(folder: &Path, settings: &ModelSettings) -> Result<Option<Self>, Error> {
        let jinja = folder.join("chat_template.jinja");
        let (path, source) = match std::fs::read_to_string(&jinja) {
            Ok(source) => (jinja, Some(source)),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                let separate = folder.join("chat_template.json");
                let config = folder.join("tokenizer_config.json");
                match template_entry(&read_json(&separate)?["chat_template"]) {
                    Some(source) => (separate, Some(source)),
                    None => (config.clone(), template_entry(&read_json(&config)?["chat_template"])),
                }
            }
            Err(source) => {
                return Err(Error::Read { path: jinja, source });
            }
        };
        let Some(source) = source else {
            return Ok(None);
        };
        Self::new(&source, settings).map(Some).map_err(|error| Error::Parse { path, message: error.to_string() })
    }

    /// Compiles `source`.
    ///
    /// # Errors
    /// [`Error::Template`] when it is not valid Jinja.
    pub fn new(source: &str, settings: &ModelSettings) -> Result<Self, Error> {
        let mut environment = Environment::new();
        let mut syntax = SyntaxConfig::builder();
        syntax.trim_blocks(true).lstrip_blocks(true);
        environment.set_syntax(syntax.build().map_err(|error| template_error(&error))?);
        environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.add_function("raise_exception", |message: String| -> Result<Value, minijinja::Error> {
            Err(minijinja::Error::new(ErrorKind::InvalidOperation, message))
        });
        environment.add_function("strftime_now", |pattern: String| strftime::format(unix_seconds(), &pattern));
        environment.add_filter("tojson", |value: Value, options: Kwargs| tojson(&value, &options));
        environment
            .add_template_owned(NAME, without_generation_tags(source))
            .map_err(|error| template_error(&error))?;
        let special_tokens =
            settings.special_tokens.iter().map(|(name, token)| (name.clone(), Json::from(token.as_str()))).collect();
        let tool_format = ToolFormat::of_template(source);
        Ok(Self {
            environment,
            special_tokens,
            tool_format,
            knows_developer: source.contains("developer"),
            source: source.to_owned(),
        })
    }

    /// The conversation as the model reads it. The text already holds its special tokens: encode it without adding any.
    ///
    /// # Errors
    /// [`Error::Template`] with the template's own words when it refuses the messages.
    pub fn render(&self, input: &ChatInput) -> Result<String, Error> {
        let mut context = self.special_tokens.clone();
        let messages = input.messages.iter().map(|message| self.message(message)).collect();
        context.insert("messages".to_owned(), Json::Array(messages));
        context.insert("add_generation_prompt".to_owned(), Json::Bool(input.add_generation_prompt));
        context.insert("tools".to_owned(), Json::Null);
        context.insert("documents".to_owned(), Json::Null);
        context.extend(input.variables.clone());
        let template = self.environment.get_template(NAME).expect("added when the template was built");
        let text = template.render(Value::from(Serde(&context))).map_err(|error| template_error(&error))?;
        if input.continue_final_message { without_end(text, input) } else { Ok(text) }
    }

    /// The template as it was written.
    #[must_use]
    pub fn source(&self) -> &str {
        &self.source
    }

    /// The spelling of tool calls that the template teaches, where it does.
    pub(crate) fn tool_format(&self) -> Option<ToolFormat> {
        self.tool_format
    }

    /// A template that never heard of developers is given a system message.
    fn message(&self, message: &Json) -> Json {
        let mut message = message.clone();
        if !self.knows_developer && message["role"] == "developer" {
            message["role"] = Json::from("system");
        }
        message
    }
}

/// Cuts what the template wrote after the last message.
fn without_end(mut text: String, input: &ChatInput) -> Result<String, Error> {
    let last = input.messages.last().and_then(|message| message["content"].as_str()).unwrap_or_default();
    let shown = last.trim();
    let end = text.rfind(shown).filter(|_| !shown.is_empty()).map(|start| start + shown.len());
    let Some(end) = end else {
        let message = "the last message cannot be continued: it is empty, or the template does not show it".to_owned();
        return Err(Error::Template { message });
    };
    // Blanks at the message's end count where the template kept them.
    let blanks = &last[last.trim_end().len()..];
    let kept = if text[end..].starts_with(blanks) { blanks.len() } else { 0 };
    text.truncate(end + kept);
    Ok(text)
}

fn template_entry(entry: &Json) -> Option<String> {
    match entry {
        Json::String(source) => Some(source.clone()),
        Json::Array(named) => named
            .iter()
            .find(|template| template["name"] == "default")
            .or(named.first())
            .and_then(|template| template["template"].as_str())
            .map(str::to_owned),
        _ => None,
    }
}

fn template_error(error: &minijinja::Error) -> Error {
    let message = error.detail().map_or_else(|| error.kind().to_string(), str::to_owned);
    Error::Template { message }
}

fn unix_seconds() -> i64 {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since_epoch.as_secs()).unwrap_or(i64::MAX)
}

/// `tojson` as `transformers` defines it: `json.dumps` without HTML escapes.
fn tojson(value: &Value, options: &Kwargs) -> Result<Value, minijinja::Error> {
    let invalid = |error: serde_json::Error| minijinja::Error::new(ErrorKind::BadSerialization, error.to_string());
    let json = serde_json::to_value(value).map_err(invalid)?;
    let mut style = python_json::Style::new(options.get("indent")?);
    if let Some(sort_keys) = options.get("sort_keys")? {
        style.sort_keys = sort_keys;
    }
    if let Some(ensure_ascii) = options.get("ensure_ascii")? {
        style.ensure_ascii = ensure_ascii;
    }
    if let Some(separators) = options.get::<Option<Vec<String>>>("separators")?
        && let [item, key] = separators.as_slice()
    {
        style.item_separator.clone_from(item);
        style.key_separator.clone_from(key);
    }
    options.assert_all_used()?;
    Ok(Value::from_safe_string(python_json::dumps(&json, &style)))
}

/// `{% generation %}` marks training targets and renders nothing; it becomes a block that every Jinja knows.
fn without_generation_tags(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find("{%") {
        let Some(length) = rest[start..].find("%}") else {
            break;
        };
        let tag = &rest[start..start + length + 2];
        out.push_str(&rest[..start]);
        match tag[2..length].trim_matches(['-', '+', ' ', '\t', '\r', '\n']) {
            "generation" => out.push_str(&tag.replace("generation", "if true")),
            "endgeneration" => out.push_str(&tag.replace("endgeneration", "endif")),
            _ => out.push_str(tag),
        }
        rest = &rest[start + length + 2..];
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn render(source: &str, messages: &Json) -> Result<String, Error> {
        let settings = ModelSettings::from_values(&Json::Null, &Json::Null, &json!({"bos_token": "<s>"}));
        let messages = messages.as_array().cloned().unwrap_or_default();
        ChatTemplate::new(source, &settings)?.render(&ChatInput {
            messages,
            add_generation_prompt: true,
            ..ChatInput::default()
        })
    }

    #[test]
    fn python_methods_special_tokens_and_json_work() {
        let source = concat!(
            "{{ bos_token }}{% for m in messages %}\n",
            "  {% if m.role.startswith('us') %}\n{{ m['content'].strip() | tojson }};\n  {% endif %}\n",
            "{% endfor %}\n{% if add_generation_prompt %}prompt{% endif %}",
        );
        let text = render(source, &json!([{"role": "user", "content": " <b>'é' "}])).unwrap();
        assert_eq!(text, "<s>\"<b>'é'\";\nprompt");
    }

    #[test]
    fn a_template_can_refuse() {
        let error = render("{{ raise_exception('roles must alternate') }}", &json!([])).unwrap_err();
        assert_eq!(error.to_string(), "the chat template refused the messages: roles must alternate");
        assert!(matches!(render("{% if %}", &json!([])), Err(Error::Template { .. })));
    }

    #[test]
    fn training_marks_render_nothing() {
        let text = render("a {%- generation -%} b {%- endgeneration %}c", &json!([])).unwrap();
        assert_eq!(text, "abc");
    }

    #[test]
    fn indent_and_separators_follow_python() {
        let text = render(
            "{{ messages | tojson(indent=1) }}|{{ messages | tojson(separators=(',', ':')) }}",
            &json!([{"a": 1}]),
        );
        assert_eq!(text.unwrap(), "[\n {\n  \"a\": 1\n }\n]|[{\"a\":1}]");
    }

    #[test]
    fn a_final_message_can_be_continued_and_developers_are_understood() {
        let source = "{% for m in messages %}<{{ m.role }}>{{ m.content }}</s>\n{% endfor %}";
        let template = ChatTemplate::new(source, &ModelSettings::default()).unwrap();
        let messages =
            vec![json!({"role": "developer", "content": "Sure"}), json!({"role": "assistant", "content": "Sure "})];
        let input = ChatInput { messages, continue_final_message: true, ..ChatInput::default() };
        assert_eq!(template.render(&input).unwrap(), "<system>Sure</s>\n<assistant>Sure ");
        let empty = ChatInput { messages: vec![json!({"role": "assistant", "content": ""})], ..input };
        assert!(template.render(&empty).is_err());
    }

    #[test]
    fn today_has_four_digits_of_year() {
        let text = render("{{ strftime_now('%Y') }}", &json!([])).unwrap();
        assert!(text.len() == 4 && text.as_str() >= "2024", "{text}");
    }
}
