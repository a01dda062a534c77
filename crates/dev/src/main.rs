//! `paceline-dev codegen [--check] [--python PYTHON]`: writes the generated code, or says what is stale.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Result, bail};
use paceline_dev::{codegen, repository_root};

const USAGE: &str = "usage: paceline-dev codegen [--check] [--python PYTHON]

  --check          compare only; needs neither Python nor protoc
  --python PYTHON  an interpreter with grpcio-tools and mypy-protobuf (default: python3)";

fn main() -> ExitCode {
    match run(&std::env::args().skip(1).collect::<Vec<_>>()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("paceline-dev: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &[String]) -> Result<()> {
    let Some(("codegen", options)) = arguments.split_first().map(|(command, rest)| (command.as_str(), rest)) else {
        bail!("{USAGE}");
    };
    let mut check = false;
    let mut python = PathBuf::from("python3");
    let mut options = options.iter();
    while let Some(option) = options.next() {
        match (option.as_str(), options.len()) {
            ("--check", _) => check = true,
            ("--python", 1..) => python = options.next().map(PathBuf::from).expect("one option is left"),
            _ => bail!("unknown or incomplete option {option}\n{USAGE}"),
        }
    }
    let root = repository_root();
    if !check {
        return codegen::write(&root, &python);
    }
    let stale = codegen::check(&root)?;
    if stale.is_empty() {
        return Ok(());
    }
    bail!("generated code is stale; run `cargo run --release -p paceline-dev -- codegen`:\n{}", stale.join("\n"))
}
