//! The command line.

use std::path::PathBuf;

use clap::{Args as Group, Parser, Subcommand};

/// Keeps change streams watched: one instance has the watch, the others stand by and relieve it.
#[derive(Debug, Parser)]
#[command(name = "watchkeeper", version, arg_required_else_help = true)]
pub(crate) struct Args {
    #[command(flatten)]
    pub(crate) common: Common,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// What every command takes.
#[derive(Debug, Clone, Group)]
pub(crate) struct Common {
    /// The configuration file
    #[arg(long, short, global = true, default_value = "watchkeeper.toml", value_name = "FILE")]
    pub(crate) config: PathBuf,
    /// Answer in JSON, for programs
    #[arg(long, global = true)]
    pub(crate) json: bool,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run the streams of the file: stand by, take the watch, deliver
    Run,
    /// Show who has the watch of each stream, how far it is, and who stands by
    Status,
    /// See it work: three processes, faults in turn, and a verdict. Needs nothing
    Demo(crate::demo::Args),
    /// One of the processes of the demo
    #[command(hide = true)]
    DemoInstance(crate::demo::InstanceArgs),
}
