//! Code generated from `proto/`: Rust, the descriptor set, Python and its stubs.
//!
//! The schema is compiled by protox, so neither `protoc` nor Python is needed to build or to check. Python code is
//! written by grpcio-tools from protox's descriptors; each file carries the hash of its schema and of its own text, so
//! that a stale or edited file is found without that tool.

mod python;
mod rust;
mod schema;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use schema::Schema;

/// Files by their path from the repository root.
type Files = BTreeMap<PathBuf, Vec<u8>>;

/// Where generated Python lies; equal to the import path of the proto package.
const PYTHON_DIRECTORY: &str = "python/paceline/v1";

/// Writes all generated files.
///
/// # Errors
/// When the schema does not compile, `python` lacks grpcio-tools or mypy-protobuf, or a file cannot be written.
pub fn write(root: &Path, python: &Path) -> Result<()> {
    let schema = Schema::compile(root)?;
    let mut files = own_files(&schema)?;
    files.extend(python::generate(&schema, python)?);
    for stale in existing(root)?.iter().filter(|path| !files.contains_key(*path)) {
        fs::remove_file(root.join(stale))?;
    }
    for (path, content) in &files {
        let path = root.join(path);
        let directory = path.parent().expect("generated files lie in folders");
        fs::create_dir_all(directory)?;
        fs::write(&path, content).with_context(|| format!("writing {}", path.display()))?;
    }
    Ok(())
}

/// Compares the committed files with the schema; returns one line per stale, edited, missing or surplus file.
///
/// # Errors
/// When the schema does not compile or a folder cannot be read.
pub fn check(root: &Path) -> Result<Vec<String>> {
    let schema = Schema::compile(root)?;
    let own = own_files(&schema)?;
    let mut findings = Vec::new();
    for (path, content) in &own {
        match fs::read(root.join(path)) {
            Ok(found) if found == *content => {}
            Ok(_) => findings.push(format!("{}: stale", path.display())),
            Err(error) => findings.push(format!("{}: {error}", path.display())),
        }
    }
    let python = python::expected_paths(&schema);
    for (path, file) in &python {
        let finding = match fs::read_to_string(root.join(path)) {
            Ok(text) => python::check(file, &text),
            Err(error) => Err(error.to_string()),
        };
        if let Err(message) = finding {
            findings.push(format!("{}: {message}", path.display()));
        }
    }
    for path in existing(root)? {
        if !own.contains_key(&path) && !python.contains_key(&path) {
            findings.push(format!("{}: not generated from any schema", path.display()));
        }
    }
    Ok(findings)
}

/// Everything that is made without Python.
fn own_files(schema: &Schema) -> Result<Files> {
    let mut files = rust::generate(schema)?;
    files.extend(python::package_files(schema));
    Ok(files)
}

/// The files in the folders that hold generated code only.
fn existing(root: &Path) -> Result<Vec<PathBuf>> {
    let mut paths = Vec::new();
    for directory in [rust::DIRECTORY, PYTHON_DIRECTORY] {
        let Ok(entries) = fs::read_dir(root.join(directory)) else {
            continue;
        };
        for entry in entries {
            let entry = entry?;
            if entry.file_type()?.is_file() {
                paths.push(Path::new(directory).join(entry.file_name()));
            }
        }
    }
    Ok(paths)
}
