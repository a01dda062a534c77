//! The purity rule: `plan`, `scheduler` and `fleet` know no clock, randomness, thread, socket, environment, log or
//! float, and iterate in no hash order. So a log of their events replays every schedule bit for bit.
//!
//! Clippy bans types and functions by path (`clippy.toml` of each crate); this scan bans words, which catches floats,
//! macros and imports that clippy's lists cannot name. It reads production code, not tests.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// The crates the rule holds for.
const PURE_CRATES: &[&str] = &["plan", "scheduler", "fleet"];

/// Words that may not stand in their code, with what they would bring in.
const BANNED: &[(&str, &str)] = &[
    ("Instant", "a clock"),
    ("SystemTime", "a clock"),
    ("HashMap", "hash order"),
    ("HashSet", "hash order"),
    ("f32", "floats"),
    ("f64", "floats"),
    ("thread", "threads"),
    ("Mutex", "shared state"),
    ("RwLock", "shared state"),
    ("env", "the environment"),
    ("net", "sockets"),
    ("fs", "files"),
    ("rand", "randomness"),
    ("tokio", "a runtime"),
    ("tracing", "a log"),
    ("println", "a log"),
    ("eprintln", "a log"),
    ("unsafe", "unchecked code"),
];

/// Every banned word in the code of the pure crates, one line each.
///
/// # Errors
/// When a source file cannot be read.
pub fn violations(root: &Path) -> Result<Vec<String>> {
    let mut findings = Vec::new();
    for name in PURE_CRATES {
        let mut paths = rust_files(&root.join("crates").join(name).join("src"))?;
        paths.sort();
        for path in paths {
            let text = fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
            let shown = path.strip_prefix(root).expect("sources lie below the root").display().to_string();
            findings.extend(scan(&text).map(|(line, word, what)| format!("{shown}:{line}: `{word}` brings in {what}")));
        }
    }
    Ok(findings)
}

/// Banned words of one file: line number from 1, the word, what it brings in. The file's test module is not read.
fn scan(text: &str) -> impl Iterator<Item = (usize, &'static str, &'static str)> {
    let production = text.lines().enumerate().take_while(|(_, line)| line.trim() != "#[cfg(test)]");
    production.flat_map(|(index, line)| {
        let code = line.split("//").next().unwrap_or_default();
        let words = code.split(|letter: char| !letter.is_alphanumeric() && letter != '_');
        words.filter_map(move |word| {
            let (banned, what) = BANNED.iter().find(|(banned, _)| *banned == word)?;
            Some((index + 1, *banned, *what))
        })
    })
}

/// All Rust files below a folder.
fn rust_files(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut paths = Vec::new();
    for entry in fs::read_dir(folder).with_context(|| format!("reading {}", folder.display()))? {
        let path = entry?.path();
        if path.is_dir() {
            paths.extend(rust_files(&path)?);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            paths.push(path);
        }
    }
    Ok(paths)
}

#[cfg(test)]
mod tests {
    use super::scan;

    #[test]
    fn words_are_found_in_code_only() {
        let text = "//! Holds no HashMap.\nuse std::collections::HashMap;\nlet threads = 1; // f32\nlet x: f64;\n";
        let found: Vec<_> = scan(text).map(|(line, word, _)| (line, word)).collect();
        assert_eq!(found, [(2, "HashMap"), (4, "f64")]);
    }

    #[test]
    fn the_test_module_is_not_read() {
        assert_eq!(scan("#[cfg(test)]\nmod tests {\n    use std::collections::HashMap;\n}\n").count(), 0);
    }
}
