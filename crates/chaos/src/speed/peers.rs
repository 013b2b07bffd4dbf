//! Others' programs that read the same changes. `cargo xtask bench` installs what they need.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use watchkeeper_testkit::servers::{DEBEZIUM, program};

use super::task::BenchTask;
use crate::cluster::Trouble;

const JAVA: &str = include_str!("../../peers/Debezium.java");

/// The most memory that Debezium's virtual machine takes for objects.
const HEAP: &str = "-Xmx2g";

/// Debezium's libraries, as they are installed.
pub(super) const LIBRARIES: (&str, &str) = (DEBEZIUM, "libs");

/// What installs the peers of a benchmark, named when one is missing.
pub(super) fn installer(benchmark: &str) -> String {
    format!("cargo xtask bench {benchmark}, or leave them out with --no-peers")
}

/// Looks whether all of them are installed, before anything is measured.
///
/// # Panics
/// When one is missing, with the command that installs it.
pub(super) fn require_installed(peers: &[(&str, &str)], benchmark: &str) {
    for (folder, name) in peers {
        program(folder, name, &installer(benchmark));
    }
}

/// A script, run by a program that finds its packages through a variable.
pub(super) fn interpreted(
    program: &str,
    (name, text): (&str, &str),
    (variable, packages): (&str, impl AsRef<OsStr>),
    bench_task: &BenchTask,
) -> Result<Command, Trouble> {
    let mut command = Command::new(program);
    command.arg(script(&bench_task.folder, name, text)?).env(variable, packages);
    Ok(command)
}

/// Debezium with these settings of its connector.
pub(super) fn debezium(bench_task: &BenchTask, benchmark: &str, settings: &[(&str, &str)]) -> Result<Command, Trouble> {
    let (folder, name) = LIBRARIES;
    let libraries = program(folder, name, &installer(benchmark));
    let mut java = Command::new("java");
    java.args([HEAP, "-cp"]).arg(libraries.join("*")).arg(script(&bench_task.folder, "Debezium.java", JAVA)?);
    java.arg(bench_task.changes.to_string()).args(settings.iter().map(|(name, value)| format!("{name}={value}")));
    Ok(java)
}

fn script(folder: &Path, name: &str, text: &str) -> Result<PathBuf, Trouble> {
    let path = folder.join(name);
    fs::write(&path, text).map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(path)
}
