//! Chores as code: generated gRPC code, the dependency rule, the purity rule and the tidy checks.
//!
//! Each rule is a function that returns its findings as text; the tests in `tests/` run them on this repository,
//! and `paceline-dev codegen` writes what its check compares. Nothing here ships: the daemon does not depend on it.

pub mod codegen;
pub mod dependencies;
pub mod purity;
pub mod tidy;

use std::path::{Path, PathBuf};

/// The root of the repository this crate was built in.
#[must_use]
pub fn repository_root() -> PathBuf {
    let crate_directory = Path::new(env!("CARGO_MANIFEST_DIR"));
    let root = crate_directory.ancestors().nth(2);
    root.expect("crates/dev lies two folders below the root").to_path_buf()
}
