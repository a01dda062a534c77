//! Configuration, wiring and commands of the paceline daemon.
//!
//! [`main`] is the whole program, for the native binary and for the `paceline` command of the Python package alike. It
//! serves no request itself: that is `paceline-server` over `paceline-engine`.

mod children_say;
mod cli;
mod clients;
mod explain;
mod failure;
mod flags;
mod json_log;
mod launcher;
mod model_config;
mod passthrough;
mod policies;
mod prepare;
mod process;
mod say;
mod serve;
mod settings;
mod signals;
mod simulate;
mod speculation;
mod surface;

use crate::cli::Chosen;
use crate::failure::Failure;
use crate::settings::Settings;

/// Runs a command to its end and gives the exit code: 0, 1 for a fault, 64 for bad usage or configuration.
///
/// `arguments` are without the program's name; `python` is the interpreter for model preparation and workers, unless
/// `--python` says otherwise.
pub fn main(arguments: Vec<String>, python: Option<String>) -> u8 {
    match run(arguments, python) {
        Ok(()) => 0,
        Err(failure) => {
            if !failure.is_silent() {
                say::complain(&failure);
            }
            failure.exit_code()
        }
    }
}

fn run(arguments: Vec<String>, python: Option<String>) -> Result<(), Failure> {
    match cli::parse(arguments)? {
        Chosen::Serve(serve) => {
            let settings = Settings::new(*serve, python)?;
            say::log_to_stderr(settings.log_level, settings.flags.log_format.unwrap_or_default());
            let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
            let runtime = runtime.map_err(|error| Failure::Other(error.into()))?;
            let result = runtime.block_on(serve::serve(settings));
            // Tasks that are left hold sockets of clients that do not read: nothing to wait for.
            runtime.shutdown_background();
            result
        }
        Chosen::Explain(explain) => explain::run(&explain),
        Chosen::Chat(arguments) => clients::chat(arguments),
        Chosen::Bench(arguments) => clients::bench(&arguments),
        Chosen::Batch(arguments) => clients::batch(arguments),
        Chosen::Simulate(arguments) => simulate::run(&arguments),
        Chosen::Prepare(passed) => Err(passthrough::run("paceline.weights.prepare", &passed.arguments, python)),
        Chosen::Worker(passed) => Err(passthrough::run("paceline.worker", &passed.arguments, python)),
    }
}
