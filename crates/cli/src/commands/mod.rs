//! One file per command.

mod checkpoint;
mod dead_letters;
mod handoff;
mod operate;
mod pause;
mod status;
mod tail;
mod why;

use std::process::ExitCode;

use watchkeeper::{Error, Result};

use crate::args::{Args, Command};
use crate::site::Site;

/// Runs the command that `args` name.
pub(crate) fn run(args: Args) -> Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Error::internal("the runtime does not start").caused_by(error))?;
    runtime.block_on(async {
        let site = Site::open(&args.common).await?;
        match &args.command {
            Command::Run => Ok(ExitCode::SUCCESS),
            Command::Operate(command) => operate::run(&site, command, args.common.json).await,
        }
    })
}
