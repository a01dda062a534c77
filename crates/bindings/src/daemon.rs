//! The daemon inside the Python process that the `paceline` command is.

use pyo3::prelude::*;

/// Runs the daemon until it ends and gives its exit code. `argv` is without the program's name; `python` is the
/// interpreter that workers are started with.
///
/// Signals get their default handlers back first: Python's own only set a flag that nobody reads while Rust runs. The
/// interpreter lock is released.
#[pyfunction]
pub(crate) fn run_daemon(py: Python<'_>, argv: Vec<String>, python: String) -> PyResult<u8> {
    let signal = py.import("signal")?;
    let default = signal.getattr("SIG_DFL")?;
    for name in ["SIGINT", "SIGTERM"] {
        signal.call_method1("signal", (signal.getattr(name)?, &default))?;
    }
    Ok(py.detach(|| paceline_daemon::main(argv, Some(python))))
}
