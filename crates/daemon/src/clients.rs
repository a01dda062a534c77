//! Commands that talk to a server: each is a program of `paceline-client`, run to its end.

use std::future::Future;

use paceline_client::{BatchArguments, BenchArguments, ChatArguments, Error};

use crate::Failure;

pub(crate) fn chat(arguments: ChatArguments) -> Result<(), Failure> {
    let input = tokio::io::BufReader::new(tokio::io::stdin());
    run(paceline_client::run_chat(arguments, input, &mut std::io::stdout()))
}

pub(crate) fn bench(arguments: &BenchArguments) -> Result<(), Failure> {
    run(async { paceline_client::run_bench(arguments, &mut std::io::stdout()).await.map(drop) })
}

pub(crate) fn batch(arguments: BatchArguments) -> Result<(), Failure> {
    run(paceline_client::run_batch(arguments))
}

fn run(program: impl Future<Output = Result<(), Error>>) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Failure::Other(error.into()))?;
    let result = runtime.block_on(program);
    // A thread that waits for the next line of the terminal is nothing to wait for.
    runtime.shutdown_background();
    result.map_err(|error| match error {
        Error::Usage(line) => Failure::Usage(line),
        other => Failure::Other(other.into()),
    })
}
