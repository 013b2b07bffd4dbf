//! One file per command.

mod check;
mod checkpoint;
mod connect;
mod dead_letters;
mod departed;
mod explain;
mod handoff;
mod history;
pub(crate) mod init;
mod operate;
mod pause;
mod reported;
mod run;
mod status;
mod store_binding;
mod tail;
mod why;

use std::io::Write;
use std::process::ExitCode;

use tokio::runtime::Runtime;
use watchkeeper::{Error, Result};

use crate::answer;
use crate::args::{self, Args, Command, Common, Invocation, LogFormat};
use crate::logging;
use crate::tools::Call;

/// Runs what was asked for.
pub(crate) fn run(asked: Invocation) -> Result<ExitCode> {
    match asked {
        Invocation::Program(args) => program(args),
        Invocation::Tool(common, call) => tool(&common, call),
    }
}

fn program(args: Args) -> Result<ExitCode> {
    let common = args.common;
    let is_running = matches!(args.command, Command::Run);
    // All that a running program says are log lines, so they are what JSON is asked for.
    let format = if is_running && common.json { LogFormat::Json } else { LogFormat::Text };
    logging::begin(&common, if is_running { "info" } else { "warn" }, format)?;
    match args.command {
        Command::Init { source, sink } => init::run(&common, source, sink),
        Command::Explain { code } => explain::run(&common, code.as_deref()),
        Command::Completions { shell } => {
            // Into memory first: the generator panics where a reader has gone.
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut args::command(), "watchkeeper", &mut script);
            let mut out = std::io::stdout().lock();
            answer::written(out.write_all(&script).and_then(|()| out.flush()))?;
            Ok(ExitCode::SUCCESS)
        }
        Command::Demo(demo) => crate::demo::run(&runtime()?, &demo, common.json),
        Command::DemoInstance(instance) => block_on(crate::demo::run_instance(instance)),
        Command::Run => block_on(run::run(&common)),
        Command::Check { offline } => block_on(check::run(&common, offline)),
        Command::Operate(command) => block_on(operate::run(&common, &command)),
    }
}

fn tool(common: &Common, call: Call) -> Result<ExitCode> {
    logging::begin(common, "warn", LogFormat::Text)?;
    answer::print_report(&block_on(call.run())?, common.json)?;
    Ok(ExitCode::SUCCESS)
}

fn block_on<T>(work: impl Future<Output = Result<T>>) -> Result<T> {
    let runtime = runtime()?;
    let answer = runtime.block_on(work);
    // Not dropped: its tasks would end one by one while others still run, and a driver panics when a task is gone that it waits
    // for. The process ends right after this, and everything with it.
    std::mem::forget(runtime);
    answer
}

fn runtime() -> Result<Runtime> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    runtime.map_err(|error| Error::internal("the runtime does not start").caused_by(error))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn tasks_that_a_command_leaves_behind_are_not_ended_one_by_one() {
        let (go, gone) = tokio::sync::oneshot::channel::<()>();
        let (sender, heard) = std::sync::mpsc::channel();
        let left = block_on(async move {
            let tasks = tokio::runtime::Handle::current();
            let waited_for = tasks.spawn(gone);
            // As a driver's task that waits for another of its tasks, and panics when that is gone.
            tasks.spawn(async move { sender.send(waited_for.await.is_ok()) });
            Ok(())
        });
        left.expect("the command ends in order");
        go.send(()).expect("it is still waited for");
        assert_eq!(heard.recv_timeout(Duration::from_secs(10)), Ok(true));
    }
}
