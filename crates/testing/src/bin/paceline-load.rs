//! A load from outside: many requests to a server, one line of JSON about what became of them.

use std::process::ExitCode;

use clap::Parser;
use paceline_testing::load::{Load, run};

/// Sends many completions over connections that are kept open, and tells their times.
#[derive(Parser)]
#[command(name = "paceline-load")]
struct Arguments {
    #[command(flatten)]
    load: Load,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    match run(Arguments::parse().load).await {
        Ok(outcome) => {
            println!("{}", outcome.json());
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("the server cannot be reached: {error}");
            ExitCode::FAILURE
        }
    }
}
