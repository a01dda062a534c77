//! Tidy checks over the files under version control: size, headers, leftovers, and what must not be published.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

/// Longest source file, in lines: one that grows past it has more than one reason to exist.
const FILE_LINES_MAX: usize = 600;

/// Longest line, in characters.
const LINE_CHARACTERS_MAX: usize = 160;

/// Everything that may stand at the root, besides dotfiles.
const TOP_LEVEL: &[&str] = &[
    "Cargo.lock",
    "Cargo.toml",
    "LICENSE",
    "README.md",
    "clippy.toml",
    "crates",
    "proto",
    "pyproject.toml",
    "python",
    "tests",
];

/// What the checks need to know of a file.
struct File<'a> {
    path: &'a str,
    text: &'a str,
}

impl File<'_> {
    fn is_source(&self) -> bool {
        self.has_extension(&["rs", "py", "pyi", "proto"]) && !self.is_generated()
    }

    fn is_generated(&self) -> bool {
        self.path.contains("/generated/") || self.path.contains("_pb2")
    }

    /// Vectors, fixtures and corpora: machine-written, or written by others.
    fn is_data(&self) -> bool {
        self.path.contains("/data/")
            || self.path.contains("/vectors/")
            || self.has_extension(&["lock", "json", "jsonl"])
    }

    fn has_extension(&self, extensions: &[&str]) -> bool {
        self.path.rsplit_once('.').is_some_and(|(_, extension)| extensions.contains(&extension))
    }
}

/// Every breach of the tidy rules in the files that git tracks, one line each.
///
/// # Errors
/// When the files cannot be listed.
pub fn violations(root: &Path) -> Result<Vec<String>> {
    let mut findings = Vec::new();
    for path in tracked_files(root)? {
        let top = path.split('/').next().unwrap_or_default();
        if !top.starts_with('.') && !TOP_LEVEL.contains(&top) {
            findings.push(format!("{path}: {top} may not stand at the top level"));
        }
        // A file that was deleted but not yet committed is not there to be read.
        let Ok(bytes) = fs::read(root.join(&path)) else {
            continue;
        };
        // Binary files have no lines to check.
        let Ok(text) = String::from_utf8(bytes) else {
            continue;
        };
        let file = File { path: &path, text: &text };
        findings.extend(check(&file).into_iter().map(|finding| format!("{path}{finding}")));
    }
    Ok(findings)
}

/// Paths from the root, with forward slashes: what git tracks, or all there is where git or its folder is missing.
fn tracked_files(root: &Path) -> Result<Vec<String>> {
    let listing = Command::new("git").args(["ls-files", "-z"]).current_dir(root).output();
    let Some(output) = listing.ok().filter(|output| output.status.success()) else {
        let mut paths = Vec::new();
        walk(root, "", &mut paths)?;
        return Ok(paths);
    };
    let listing = String::from_utf8(output.stdout).context("a file name is not UTF-8")?;
    Ok(listing.split_terminator('\0').map(str::to_owned).collect())
}

/// Adds every file below `folder` that is neither hidden nor built.
fn walk(root: &Path, folder: &str, paths: &mut Vec<String>) -> Result<()> {
    const BUILT: &[&str] = &["target", "__pycache__", "build", "dist"];
    for entry in fs::read_dir(root.join(folder))? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let built = BUILT.contains(&name.as_str()) || name.ends_with(".so") || name.ends_with(".egg-info");
        if built || name.starts_with('.') {
            continue;
        }
        let path = if folder.is_empty() { name } else { format!("{folder}/{name}") };
        if entry.file_type()?.is_dir() {
            walk(root, &path, paths)?;
        } else {
            paths.push(path);
        }
    }
    Ok(())
}

/// Breaches in one file, each starting with `:line: ` or `: `.
fn check(file: &File<'_>) -> Vec<String> {
    let mut findings = Vec::new();
    if file.is_source() {
        let count = file.text.lines().count();
        if count > FILE_LINES_MAX {
            findings.push(format!(": {count} lines, at most {FILE_LINES_MAX}"));
        }
        if !has_header(file) {
            findings.push(": no module header that says what it is for".to_owned());
        }
    }
    if file.is_data() || file.is_generated() {
        return findings;
    }
    let leftovers = leftovers();
    for (index, line) in file.text.lines().enumerate() {
        let number = index + 1;
        let characters = line.chars().count();
        if characters > LINE_CHARACTERS_MAX && !file.has_extension(&["md"]) {
            findings.push(format!(":{number}: {characters} characters, at most {LINE_CHARACTERS_MAX}"));
        }
        for (needle, reason) in &leftovers {
            if line.contains(needle.as_str()) {
                findings.push(format!(":{number}: `{needle}`: {reason}"));
            }
        }
    }
    findings
}

/// Rust starts with `//!`, Python with a docstring, a schema with a comment; an empty `__init__.py` needs none.
fn has_header(file: &File<'_>) -> bool {
    if file.has_extension(&["rs"]) {
        // A file that is included elsewhere cannot have inner docs; a plain comment is its header.
        return file.text.starts_with("//! ") || file.text.starts_with("// ");
    }
    if file.has_extension(&["py"]) {
        let first = file.text.lines().find(|line| !line.is_empty() && !line.starts_with('#'));
        return first.is_none_or(|line| line.trim_start_matches('r').starts_with("\"\"\""));
    }
    !file.has_extension(&["proto"]) || file.text.starts_with("// ")
}

/// Text that may stand in no file, with the reason. Written in pieces, or this file would break its own rule.
fn leftovers() -> Vec<(String, &'static str)> {
    let unfinished = "finish it or drop it";
    let ignored = "a test that does not run proves nothing";
    let host = "a machine may have a registry of its own";
    let machine = "a path of one machine";
    let pieces: [(&[&str], &'static str); 17] = [
        (&["TO", "DO"], unfinished),
        (&["FIX", "ME"], unfinished),
        (&["XX", "X"], unfinished),
        (&["to", "do!("], unfinished),
        (&["unimple", "mented!("], unfinished),
        (&["#[ign", "ore"], ignored),
        (&["pytest.mark.", "skip"], ignored),
        (&["pytest.mark.", "xfail"], ignored),
        (&["pytest.", "skip("], ignored),
        (&["crates", ".io"], host),
        (&["pypi", ".org"], host),
        (&["python", "hosted.org"], host),
        (&["download.", "pytorch.org"], host),
        (&["/wo", "rk/"], machine),
        (&["/ho", "me/"], machine),
        (&["/ro", "ot/"], machine),
        (&["../sh", "ared"], machine),
    ];
    pieces.iter().map(|(words, reason)| (words.concat(), *reason)).collect()
}

#[cfg(test)]
mod tests {
    use super::{File, check};

    fn findings(path: &str, text: &str) -> Vec<String> {
        check(&File { path, text })
    }

    #[test]
    fn headers_are_required_in_sources() {
        assert!(findings("crates/plan/src/lib.rs", "//! The vocabulary.\n").is_empty());
        assert_eq!(findings("crates/plan/src/lib.rs", "use std::fmt;\n").len(), 1);
        assert!(findings("python/a.py", "# License\n\"\"\"What it is.\"\"\"\n").is_empty());
        assert!(findings("python/a/__init__.py", "").is_empty());
        assert_eq!(findings("python/a.py", "import os\n").len(), 1);
    }

    #[test]
    fn long_files_and_lines_are_found() {
        let long_file = format!("//! Header.\n{}", "fn f() {}\n".repeat(600));
        assert_eq!(findings("crates/a/src/a.rs", &long_file), [": 601 lines, at most 600"]);
        let long_line = format!("//! {}\n", "x".repeat(160));
        assert_eq!(findings("crates/a/src/a.rs", &long_line), [":1: 164 characters, at most 160"]);
    }

    #[test]
    fn leftovers_are_found_with_their_line() {
        let marker = ["TO", "DO"].concat();
        let found = findings("python/a.py", &format!("\"\"\"Header.\"\"\"\n# {marker}\n"));
        assert_eq!(found.len(), 1);
        assert!(found[0].starts_with(":2: "), "{found:?}");
    }
}
