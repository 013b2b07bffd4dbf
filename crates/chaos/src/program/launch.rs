//! Starts a program that takes no orders, so that its parent hears it and it ends with its parent.

use std::ffi::OsString;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use rustix::process::{Signal, set_parent_process_death_signal};

/// Replaces this process by `program`, whose log goes to the standard output. Returns only if that fails.
pub(crate) fn launch(program: &str, arguments: &[String]) -> Result<(), String> {
    let cause = |error: io::Error| format!("{program} cannot be started: {error}");
    // The kernel keeps this over the replacement.
    set_parent_process_death_signal(Some(Signal::KILL)).map_err(|error| cause(error.into()))?;
    let output = io::stdout().as_fd().try_clone_to_owned().map_err(cause)?;
    let mut command = Command::new(OsString::from(program));
    command.args(arguments).stdin(Stdio::null()).stderr(Stdio::from(output));
    Err(cause(command.exec()))
}
