//! Operators' commands: each looks at the site, and answers to people or to programs.

use std::process::ExitCode;

use watchkeeper::Result;

use super::{checkpoint, dead_letters, handoff, pause, status, tail, why};
use crate::answer::print_report;
use crate::args::{Common, Operate};
use crate::site::Site;

/// Runs one of them, on the site that the file describes. Remedies of engine and backends name the stream.
pub(crate) async fn run(common: &Common, command: &Operate) -> Result<ExitCode> {
    perform(common, command).await.map_err(|error| match command.stream() {
        Some(stream) => error.name_stream(stream),
        None => error,
    })
}

async fn perform(common: &Common, command: &Operate) -> Result<ExitCode> {
    let site = match command.may_begin() {
        true => &Site::open(common).await?,
        false => &Site::open_existing(common).await?,
    };
    let json = common.json;
    let mut code = ExitCode::SUCCESS;
    let report = match command {
        Operate::Tail(args) => {
            tail::tail(site, args, json).await?;
            return Ok(ExitCode::SUCCESS);
        }
        Operate::Status { stream, exit_code } => {
            let (report, health) = status::status(site, stream.as_deref()).await?;
            if *exit_code {
                code = health.exit_code();
            }
            report
        }
        Operate::Why { stream, last } => why::why(site, stream, *last).await?,
        Operate::Checkpoint { command } => checkpoint::run(site, command).await?,
        Operate::Seek { stream, to, decision } => checkpoint::set(site, stream, to, *decision).await?,
        Operate::Skip { stream, cause, decision } => checkpoint::skip(site, stream, cause, *decision).await?,
        Operate::AcceptGap { stream, to, leave_snapshot_unfinished, cause, decision } => {
            let gap = checkpoint::AcceptedGap { to, leaves_snapshot: *leave_snapshot_unfinished, cause };
            checkpoint::accept_gap(site, stream, &gap, *decision).await?
        }
        Operate::Handoff { stream, to, patience } => handoff::handoff(site, stream, to.as_deref(), *patience).await?,
        Operate::Pause { stream, patience } => pause::pause(site, stream, *patience).await?,
        Operate::Resume { stream, patience } => pause::resume(site, stream, *patience).await?,
        Operate::DeadLetters { command } => {
            let (report, is_done) = dead_letters::run(site, command).await?;
            if !is_done {
                code = ExitCode::FAILURE;
            }
            report
        }
    };
    print_report(&report, json)?;
    Ok(code)
}
