//! What the daemon says to people: its own lines on stdout, the log on stderr.

use std::fmt::Display;
use std::io::{IsTerminal, Write};
use std::sync::OnceLock;

use tracing_subscriber::EnvFilter;

use crate::flags::{LogFormat, LogLevel};
use crate::json_log::{self, JsonLines};

/// How lines look, once that is known: the log belongs to the whole process.
static FORMAT: OnceLock<LogFormat> = OnceLock::new();

/// Whether every line is an object.
pub(crate) fn is_json() -> bool {
    FORMAT.get() == Some(&LogFormat::Json)
}

/// Prints one of the few lines that scripts may wait for.
pub(crate) fn say(line: &str) {
    let mut stdout = std::io::stdout().lock();
    // A closed stdout is the reader's choice.
    let _ = if is_json() {
        writeln!(stdout, "{}", json_log::line("INFO", "paceline", line))
    } else {
        writeln!(stdout, "paceline: {line}")
    };
    let _ = stdout.flush();
}

/// Prints why a command ends.
pub(crate) fn complain(failure: &impl Display) {
    if is_json() {
        eprintln!("{}", json_log::line("ERROR", "paceline", &failure.to_string()));
    } else {
        eprintln!("paceline: {failure}");
    }
}

/// Sends the log of all our crates to stderr.
pub(crate) fn log_to_stderr(level: LogLevel, format: LogFormat) {
    let filter = EnvFilter::new(format!("warn,paceline={0}", level.name()));
    let subscriber = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .with_target(false);
    FORMAT.get_or_init(|| format);
    // A host process that logs already keeps its own subscriber.
    let _ = match format {
        LogFormat::Text => subscriber.try_init(),
        LogFormat::Json => {
            std::panic::set_hook(Box::new(|panic| tracing::error!("{panic}")));
            subscriber.event_format(JsonLines).try_init()
        }
    };
}
