//! The `paceline` command as a native binary that links no Python.

fn main() -> std::process::ExitCode {
    paceline_daemon::main(std::env::args().skip(1).collect(), None).into()
}
