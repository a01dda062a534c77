//! The command line: subcommands, and usage errors as one line.

use std::path::PathBuf;

use clap::{Args, Command, FromArgMatches, Parser, Subcommand};
use paceline_client::{BatchArguments, BenchArguments, ChatArguments};

use crate::Failure;
use crate::explain::Explain;
use crate::flags::Flags;
use crate::simulate::Simulate;

/// LLM inference in which one scheduler decides every rank's batch shape at every step.
#[derive(Debug, Parser)]
#[command(name = "paceline", version, arg_required_else_help = true, max_term_width = 120)]
struct Cli {
    #[command(subcommand)]
    command: Chosen,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Chosen {
    /// Serve a model over HTTP and gRPC
    ///
    /// Without a model: SmolLM2-135M-Instruct on two CPU ranks. Limits under a heading with "per rank" hold for each
    /// rank by itself. Every setting can also be given as PACELINE_<NAME> in the environment, or by its flag's name
    /// in a TOML file.
    Serve(Box<Serve>),
    /// Tell why a step had its shape: who was padded to what, who waited, and because of whom
    ///
    /// A running daemon keeps its latest 4,096 steps. Groups count their steps by themselves: without --group and
    /// --dp-rank, every group that has the step answers.
    Explain(Explain),
    /// Talk to a served model in the terminal
    Chat(ChatArguments),
    /// Put a load on a server and tell what its clients see
    Bench(Box<BenchArguments>),
    /// Answer the requests of a file in the OpenAI batch format; goes on where it was cut
    Batch(BatchArguments),
    /// Play a load to the scheduler on virtual time, without a GPU, and compare policies
    ///
    /// To choose ranks, drafts, ladders and budgets by: costs are constants, the scheduler is the one that serves.
    Simulate(Box<Simulate>),
    /// Fetch and convert a model without serving it
    #[command(disable_help_flag = true)]
    Prepare(Passed),
    /// Run one worker that dials a daemon started with --no-spawn
    #[command(disable_help_flag = true)]
    Worker(Passed),
}

/// Arguments of `paceline serve`.
#[derive(Debug, Args)]
pub(crate) struct Serve {
    /// TOML file with settings by their flags' names
    #[arg(long, value_name = "FILE.toml")]
    pub(crate) config: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) flags: Flags,
}

/// Arguments that the Python program behind a command reads itself.
#[derive(Debug, Args)]
pub(crate) struct Passed {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
    pub(crate) arguments: Vec<String>,
}

/// Reads the command line.
///
/// # Errors
/// [`Failure::Usage`] with one line; [`Failure::Shown`] when help or the version was asked for and printed.
pub(crate) fn parse(arguments: Vec<String>) -> Result<Chosen, Failure> {
    let arguments = std::iter::once("paceline".to_owned()).chain(long_forms(arguments));
    let read = command().try_get_matches_from(arguments).and_then(|matches| Cli::from_arg_matches(&matches));
    match read {
        Ok(cli) => Ok(cli.command),
        Err(error) if !error.use_stderr() => {
            // A closed stdout is the reader's choice.
            let _ = error.print();
            Err(Failure::Shown)
        }
        Err(error) => Err(Failure::Usage(one_line(&error.render().to_string()))),
    }
}

/// The command with an environment variable for every setting of `serve`.
fn command() -> Command {
    use clap::CommandFactory;
    Cli::command().mut_subcommand("serve", |serve| {
        serve.mut_args(|argument| {
            let name = argument.get_id().as_str();
            if name == "help" || name == "version" {
                return argument;
            }
            let variable = format!("PACELINE_{}", name.to_uppercase());
            // Names live as long as the process in any case: they are made once, from a fixed list.
            let variable: &'static str = Box::leak(variable.into_boxed_str());
            argument.env(variable).hide_env(true)
        })
    })
}

/// `-dp 2`, `-dp=2` and the same with `-tp`, as users of vLLM write them, in clap's long form.
fn long_forms(arguments: Vec<String>) -> impl Iterator<Item = String> {
    let mut literal = false;
    arguments.into_iter().map(move |argument| {
        literal |= argument == "--";
        let long = match argument.split('=').next() {
            Some("-dp") => "--data-parallel-size",
            Some("-tp") => "--tensor-parallel-size",
            _ => return argument,
        };
        if literal { argument } else { format!("{long}{}", &argument[3..]) }
    })
}

/// The part of clap's message that says what is wrong, on one line.
fn one_line(rendered: &str) -> String {
    let lines = rendered.lines().map(str::trim);
    let told = lines.take_while(|line| !line.starts_with("Usage:") && !line.starts_with("For more information"));
    let line = told.filter(|line| !line.is_empty()).collect::<Vec<_>>().join(" ");
    line.strip_prefix("error: ").unwrap_or(&line).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn serve(arguments: &[&str]) -> Result<Flags, String> {
        let arguments = std::iter::once("serve").chain(arguments.iter().copied()).map(str::to_owned).collect();
        match parse(arguments) {
            Ok(Chosen::Serve(serve)) => Ok(serve.flags),
            Err(Failure::Usage(line)) => Err(line),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_command_is_well_formed() {
        command().debug_assert();
    }

    #[test]
    fn parallel_sizes_have_the_short_forms_of_vllm() {
        for arguments in
            [["-dp", "3"].as_slice(), &["-dp=3"], &["--data-parallel-size", "3"], &["--data-parallel-size=3"]]
        {
            assert_eq!(serve(arguments).map(|flags| flags.data_parallel_size), Ok(Some(3)), "{arguments:?}");
        }
        assert_eq!(serve(&["-tp=1", "folder"]).map(|flags| flags.model), Ok(Some("folder".to_owned())));
    }

    #[test]
    fn switches_do_not_swallow_the_model() {
        let flags = serve(&["--enforce-eager", "folder"]).expect("valid");
        assert_eq!((flags.enforce_eager, flags.model.as_deref()), (Some(true), Some("folder")));
        assert_eq!(serve(&["--enforce-eager=false"]).map(|flags| flags.enforce_eager), Ok(Some(false)));
    }

    #[test]
    fn usage_errors_are_one_line_that_names_the_flag() {
        for (arguments, named) in [
            (["--port", "99999"].as_slice(), "--port"),
            (&["--no-such-flag"], "--no-such-flag"),
            (&["--lockstep", "perhaps"], "--lockstep"),
            (&["--max-num-seqs"], "--max-num-seqs"),
            (&["-dp", "two"], "--data-parallel-size"),
        ] {
            let line = serve(arguments).expect_err("refused");
            assert!(line.contains(named) && !line.contains('\n'), "{line}");
        }
    }

    #[test]
    fn other_commands_pass_their_arguments_on() {
        let arguments = ["worker", "--dp-rank", "1", "--help"].map(str::to_owned).to_vec();
        match parse(arguments.clone()) {
            Ok(Chosen::Worker(passed)) => assert_eq!(passed.arguments, arguments[1..]),
            other => panic!("{other:?}"),
        }
    }
}
