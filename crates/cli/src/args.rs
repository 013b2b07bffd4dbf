//! The command line.

mod operate;

use std::path::PathBuf;

use clap::{Args as Group, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};

use crate::commands::init;
use crate::tools;

const EXIT_CODES: &str = "\
Exit codes:
    0  done; also after SIGTERM, SIGINT or SIGHUP, when all work was drained and released
    1  it failed, was declined, or could not do all of it; or `check` found an error that is not one of the configuration
    2  the command line or the configuration is wrong; `check` ends so too where a database or folder of the file is missing
    3  `status --exit-code`: something is degraded
    4  `status --exit-code`: a stream is halted, or nobody has its watch
  129  ended at once by a second SIGHUP
  130  ended at once by a second SIGINT
  141  ended at once because nobody reads standard output, while it was draining already
  143  ended at once by a second SIGTERM

Every setting of the file can be a variable too, such as WATCHKEEPER__GROUP__LEASE=5s.
A tool of a system needs no name before it where its URL tells which: watchkeeper oplog --url mongodb://…";

pub(crate) use operate::{Back, Checkpoint, DeadLetters, Decision, From, LetterSelection, Operate, Patience, Tail};

/// Keeps change streams watched: one instance has the watch, the others stand by and relieve it.
#[derive(Debug, Parser)]
#[command(name = "watchkeeper", version, arg_required_else_help = true, after_help = EXIT_CODES)]
pub(crate) struct Args {
    #[command(flatten)]
    pub(crate) common: Common,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// The file that is read where none is named.
pub(crate) const DEFAULT_CONFIG: &str = "watchkeeper.toml";

/// What every command takes.
#[derive(Debug, Clone, Group)]
pub(crate) struct Common {
    /// The configuration file
    #[arg(long, short, global = true, default_value = DEFAULT_CONFIG, value_name = "FILE")]
    pub(crate) config: PathBuf,
    /// Answer in JSON, for programs
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// What to log on standard error: error, warn, info, debug or trace, also by part
    #[arg(long, global = true, value_name = "LEVEL")]
    pub(crate) log: Option<String>,
    /// How log lines look [default: text; json with `run --json`]
    #[arg(long, global = true, value_name = "FORMAT")]
    pub(crate) log_format: Option<LogFormat>,
}

/// How log lines look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    /// For people.
    Text,
    /// One object per line.
    Json,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run the streams of the file: stand by, take the watch, deliver
    Run,
    /// Look whether everything in the file can work, without changing anything
    Check {
        /// Look at the file only, and connect to nothing
        #[arg(long)]
        offline: bool,
    },
    /// Write a commented configuration file to start from
    Init {
        /// Where changes come from
        #[arg(long, value_enum, default_value_t, value_name = "SYSTEM")]
        source: init::Source,
        /// Where changes go
        #[arg(long, value_enum, default_value_t, value_name = "SYSTEM")]
        sink: init::Sink,
    },
    /// Tell what an error code means and what to do
    Explain {
        /// Such as WK-FENCED; all of them without one
        code: Option<String>,
    },
    /// Print a completion script for a shell
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// See it work: three processes, faults in turn, and a verdict. Needs nothing
    Demo(crate::demo::Args),
    /// One of the processes of the demo
    #[command(hide = true)]
    DemoInstance(crate::demo::InstanceArgs),
    #[command(flatten)]
    Operate(Operate),
}

/// What was asked for: a command of the program, or one of a backend.
#[derive(Debug)]
pub(crate) enum Invocation {
    Program(Args),
    Tool(Common, tools::Call),
}

impl Invocation {
    /// What every command takes.
    pub(crate) fn common(&self) -> &Common {
        match self {
            Self::Program(args) => &args.common,
            Self::Tool(common, _) => common,
        }
    }

    /// Whether standard output may belong to a sink.
    pub(crate) fn is_run(&self) -> bool {
        matches!(self, Self::Program(Args { command: Command::Run, .. }))
    }
}

/// The whole command line, with the commands that backends bring.
pub(crate) fn command() -> clap::Command {
    tools::commands().into_iter().fold(Args::command(), clap::Command::subcommand)
}

/// Reads the command line. Ends the process, with help or code 2, if that is what is asked for.
pub(crate) fn read() -> Invocation {
    let matches = command().get_matches_from(tools::spelled_out(std::env::args_os().collect()));
    if let Some(call) = tools::asked(&matches) {
        let common = Common::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
        return Invocation::Tool(common, call);
    }
    Invocation::Program(Args::from_arg_matches(&matches).unwrap_or_else(|error| error.exit()))
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_command_line_makes_sense() {
        super::command().debug_assert();
    }
}
