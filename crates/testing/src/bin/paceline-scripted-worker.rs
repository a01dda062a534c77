//! A worker without a model, for tests of everything around one.

use std::process::ExitCode;

use clap::Parser;
use paceline_testing::{Behaviour, Ended, Records, run};

/// Joins a daemon as a worker whose model is a hash.
#[derive(Parser)]
#[command(name = "paceline-scripted-worker")]
struct Arguments {
    #[command(flatten)]
    behaviour: Behaviour,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let behaviour = Arguments::parse().behaviour;
    let dp_rank = behaviour.dp_rank;
    match run(behaviour, Records::none()).await {
        Ok(Ended::Stopped(reason)) => {
            eprintln!("dp{dp_rank}: stopped: {reason}");
            ExitCode::SUCCESS
        }
        Ok(Ended::Rejected { field, expected, got }) => {
            eprintln!("dp{dp_rank}: the daemon refuses {field}: it has {expected}, this worker {got}");
            ExitCode::from(64)
        }
        Ok(ended) => {
            eprintln!("dp{dp_rank}: {ended:?}");
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("dp{dp_rank}: cannot reach the daemon: {error}");
            ExitCode::FAILURE
        }
    }
}
