//! Lines of child processes, passed on to stderr with the name of who said them.

use paceline_fleet::Place;
use tokio::io::{AsyncBufReadExt, AsyncRead, BufReader};

use crate::json_log;
use crate::say::is_json;

/// Whose lines they are.
#[derive(Clone, Debug)]
pub(crate) enum Speaker {
    /// A worker.
    Worker {
        /// Where it runs.
        place: Place,
        /// What its lines begin with, before a colon.
        name: String,
    },
    /// The preparation of a model.
    Preparation,
}

impl Speaker {
    fn prefix(&self) -> String {
        match self {
            Self::Worker { name, .. } => format!("{name}: "),
            Self::Preparation => "paceline: ".to_owned(),
        }
    }

    /// The line as the log has it.
    fn line(&self, prefix: &str, said: &str) -> String {
        let bare = said.strip_prefix(prefix).unwrap_or(said);
        match self {
            _ if !is_json() => format!("{prefix}{bare}"),
            Self::Worker { place, .. } => json_log::worker_line(*place, bare),
            Self::Preparation => json_log::line("INFO", "paceline_prepare", bare),
        }
    }
}

/// Prints a child's lines until there are no more. Of a line that was rewritten in place, the last state counts.
pub(crate) async fn pass_on(stream: impl AsyncRead + Unpin, speaker: Speaker) {
    let prefix = speaker.prefix();
    let mut reader = BufReader::new(stream);
    let mut bytes = Vec::new();
    loop {
        bytes.clear();
        match reader.read_until(b'\n', &mut bytes).await {
            Ok(0) | Err(_) => return,
            Ok(_) => {}
        }
        let text = String::from_utf8_lossy(&bytes);
        let said = text.trim_end().rsplit('\r').next().unwrap_or_default();
        if !said.is_empty() {
            eprintln!("{}", speaker.line(&prefix, said));
        }
    }
}
