//! One file per command.

use std::process::ExitCode;

use watchkeeper::{Error, Result};

use crate::args::{Args, Command};
use crate::site::Site;

/// Runs the command that `args` name.
pub(crate) fn run(args: Args) -> Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Error::internal("the runtime does not start").caused_by(error))?;
    match args.command {
        Command::Demo(demo) => crate::demo::run(&runtime, &demo, args.common.json),
        Command::DemoInstance(instance) => runtime.block_on(crate::demo::run_instance(instance)),
        Command::Run | Command::Status => runtime.block_on(async {
            let _site = Site::open(&args.common).await?;
            Ok(ExitCode::SUCCESS)
        }),
    }
}
