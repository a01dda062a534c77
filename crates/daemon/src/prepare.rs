//! Model preparation, a child process: it finds, fetches and converts, and prints where the result is.

use std::path::PathBuf;
use std::process::Stdio;

use anyhow::{Context, anyhow};
use serde::Deserialize;
use tokio::io::AsyncReadExt;
use tokio::process::Command;
use tokio_util::sync::CancellationToken;

use crate::Failure;
use crate::children_say::{Speaker, pass_on};
use crate::failure::EXIT_USAGE;
use crate::process::{bind, signal_group};
use crate::say::is_json;
use crate::settings::Settings;

/// A model that can be served.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Prepared {
    /// Its folder.
    pub(crate) path: PathBuf,
    /// What it is called.
    #[serde(default)]
    pub(crate) name: Option<String>,
}

/// Runs the preparation of the model in `settings`. What it prints on stderr is for people and passes
/// through, line by line where lines are objects.
///
/// # Errors
/// [`Failure::Told`] when the child has said why in a line of its own.
pub(crate) async fn prepare(settings: &Settings, stop: &CancellationToken) -> Result<Prepared, Failure> {
    if settings.flags.skip_prepare == Some(true) {
        let path = PathBuf::from(settings.flags.model.clone().unwrap_or_default());
        return Ok(Prepared { path, name: None });
    }
    let mut command = Command::new(&settings.python);
    command.args(["-m", "paceline.weights.prepare"]);
    command.args(["--model", settings.model_to_prepare()]);
    if let Some(folder) = &settings.flags.cache_dir {
        command.args(["--cache-dir", folder]);
    }
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    if is_json() {
        command.stderr(Stdio::piped());
    }
    bind(&mut command, libc::SIGTERM);
    let mut child = command
        .spawn()
        .map_err(|error| Failure::Usage(format!("cannot start --python {}: {error}", settings.python)))?;
    let mut stdout = child.stdout.take().context("invariant: stdout is piped")?;
    let told = child.stderr.take().map(|stderr| tokio::spawn(pass_on(stderr, Speaker::Preparation)));
    let mut printed = String::new();
    tokio::select! {
        read = stdout.read_to_string(&mut printed) => { read.context("reading from the model preparation")?; }
        () = stop.cancelled() => {
            if let Some(process_id) = child.id() {
                signal_group(process_id, libc::SIGTERM);
            }
            crate::process::reap(&mut child, std::time::Duration::from_secs(1)).await;
            return Err(Failure::Told(0));
        }
    }
    let status = child.wait().await.context("waiting for the model preparation")?;
    if let Some(told) = told {
        // What it said goes before what is said of its end.
        let _ = told.await;
    }
    if !status.success() {
        return Err(match status.code() {
            Some(code) if code == i32::from(EXIT_USAGE) => Failure::Told(EXIT_USAGE),
            _ => anyhow!("the model preparation ended with {status}").into(),
        });
    }
    let last = printed.lines().last().unwrap_or_default();
    let prepared = serde_json::from_str(last).context("the model preparation printed no path")?;
    Ok(prepared)
}
