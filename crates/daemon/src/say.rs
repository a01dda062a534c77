//! What the daemon says to people: its own lines on stdout, the log on stderr.

use std::io::{IsTerminal, Write};

use tracing_subscriber::EnvFilter;

use crate::flags::LogLevel;

/// Prints one of the few lines that scripts may wait for.
pub(crate) fn say(line: &str) {
    let mut stdout = std::io::stdout().lock();
    // A closed stdout is the reader's choice.
    let _ = writeln!(stdout, "paceline: {line}");
    let _ = stdout.flush();
}

/// Sends the log of all our crates to stderr.
pub(crate) fn log_to_stderr(level: LogLevel) {
    let filter = EnvFilter::new(format!("warn,paceline={0}", level.name()));
    let subscriber = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .with_target(false);
    // A host process that logs already keeps its own subscriber.
    let _ = subscriber.try_init();
}
