//! Commands that are a Python module: this process becomes it.

use std::os::unix::process::CommandExt;
use std::process::Command;

use crate::Failure;

/// Replaces this process by `python -m module arguments`. Returns only when that fails.
pub(crate) fn run(module: &str, arguments: &[String], interpreter: Option<String>) -> Failure {
    let python = std::env::var("PACELINE_PYTHON").ok().or(interpreter).unwrap_or_else(|| "python3".to_owned());
    let error = Command::new(&python).args(["-m", module]).args(arguments).exec();
    Failure::Usage(format!("cannot start {python}: {error}"))
}
