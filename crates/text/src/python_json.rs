//! JSON as Python's `json.dumps` writes it: chat templates were written, and models trained, against that form.

use serde_json::Value;

/// The keyword arguments of `json.dumps` that templates use.
#[derive(Debug, Clone)]
pub(crate) struct Style {
    /// Blanks per level; `None` writes everything on one line.
    pub(crate) indent: Option<usize>,
    /// Between items.
    pub(crate) item_separator: String,
    /// Between key and value.
    pub(crate) key_separator: String,
    /// Object keys in sorted order.
    pub(crate) sort_keys: bool,
    /// Escape everything outside ASCII.
    pub(crate) ensure_ascii: bool,
}

impl Style {
    /// Python's defaults for this indent, with non-ASCII text left readable as templates expect.
    pub(crate) fn new(indent: Option<usize>) -> Self {
        Self {
            indent,
            item_separator: (if indent.is_some() { "," } else { ", " }).to_owned(),
            key_separator: ": ".to_owned(),
            sort_keys: false,
            ensure_ascii: false,
        }
    }
}

/// Writes `value` in this style.
pub(crate) fn dumps(value: &Value, style: &Style) -> String {
    let mut out = String::new();
    write_value(value, style, 0, &mut out);
    out
}

fn write_value(value: &Value, style: &Style, depth: usize, out: &mut String) {
    match value {
        Value::Array(items) => {
            write_items(items.iter(), ('[', ']'), style, depth, out, |item, out| {
                write_value(item, style, depth + 1, out);
            });
        }
        Value::Object(entries) => {
            let mut entries: Vec<(&String, &Value)> = entries.iter().collect();
            if style.sort_keys {
                entries.sort_by_key(|(key, _)| *key);
            }
            write_items(entries.into_iter(), ('{', '}'), style, depth, out, |(key, value), out| {
                write_string(key, style, out);
                out.push_str(&style.key_separator);
                write_value(value, style, depth + 1, out);
            });
        }
        Value::String(text) => write_string(text, style, out),
        scalar => out.push_str(&scalar.to_string()),
    }
}

fn write_items<T>(
    items: impl ExactSizeIterator<Item = T>,
    (open, close): (char, char),
    style: &Style,
    depth: usize,
    out: &mut String,
    mut write: impl FnMut(T, &mut String),
) {
    let empty = items.len() == 0;
    out.push(open);
    for (index, item) in items.enumerate() {
        if index > 0 {
            out.push_str(&style.item_separator);
        }
        new_line(style, depth + 1, out);
        write(item, out);
    }
    if !empty {
        new_line(style, depth, out);
    }
    out.push(close);
}

fn new_line(style: &Style, depth: usize, out: &mut String) {
    if let Some(indent) = style.indent {
        out.push('\n');
        out.extend(std::iter::repeat_n(' ', indent * depth));
    }
}

fn write_string(text: &str, style: &Style, out: &mut String) {
    let quoted = Value::from(text).to_string();
    if !style.ensure_ascii {
        out.push_str(&quoted);
        return;
    }
    for character in quoted.chars() {
        if character.is_ascii() {
            out.push(character);
        } else {
            let mut units = [0; 2];
            for unit in character.encode_utf16(&mut units) {
                out.push_str(&format!("\\u{unit:04x}"));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_text_is_what_python_writes() {
        let value = json!({"b": [1, 2.5, "é<'>"], "a": {}, "n": null, "e": []});
        assert_eq!(dumps(&value, &Style::new(None)), r#"{"b": [1, 2.5, "é<'>"], "a": {}, "n": null, "e": []}"#);
        let indented =
            "{\n  \"b\": [\n    1,\n    2.5,\n    \"é<'>\"\n  ],\n  \"a\": {},\n  \"n\": null,\n  \"e\": []\n}";
        assert_eq!(dumps(&value, &Style::new(Some(2))), indented);
        let ascii = Style { ensure_ascii: true, sort_keys: true, ..Style::new(None) };
        assert_eq!(dumps(&json!({"b": "é😀", "a": 1}), &ascii), r#"{"a": 1, "b": "\u00e9\ud83d\ude00"}"#);
    }
}
