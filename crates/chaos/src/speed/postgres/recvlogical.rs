//! PostgreSQL's own `pg_recvlogical`, which writes to nowhere what the server's plugin tells.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use watchkeeper_core::{Error, Result};
use watchkeeper_testkit::servers::postgres_tool;

use super::history::PUBLICATION;
use super::slot;
use crate::speed::meter::{Measurement, megabytes};
use crate::speed::processes::cpu_of_ended_children;
use crate::speed::task::BenchTask;

const PROGRAM: &str = "pg_recvlogical";

/// How often its memory is looked at: the kernel forgets it with the process.
const INSPECT_EVERY: Duration = Duration::from_millis(5);

/// Looks whether it is installed, before anything is measured.
///
/// # Panics
/// When it is missing, with the command that installs it.
pub(super) fn require_installed() {
    postgres_tool(PROGRAM, "cargo xtask bench postgres");
}

/// A place in the log as the program takes it.
fn place(mark: u64) -> String {
    format!("{:X}/{:X}", mark >> 32, mark & 0xffff_ffff)
}

pub(super) fn consume(bench_task: &BenchTask) -> Result<Measurement> {
    let failed = |error| Error::unavailable(format!("{PROGRAM} does not run")).caused_by(error);
    let mut command = Command::new(postgres_tool(PROGRAM, "cargo xtask bench postgres"));
    command.args(["--start", "--no-loop", "--file", "/dev/null", "--dbname", &bench_task.url, "--slot"]);
    command.args([&slot(&bench_task.group), "--endpos", &place(bench_task.mark), "--option", "proto_version=1"]);
    command.arg("--option").arg(format!("publication_names={PUBLICATION}")).stdin(Stdio::null());
    let start = Instant::now();
    let mut child = command.spawn().map_err(failed)?;
    let status = PathBuf::from(format!("/proc/{}/status", child.id()));
    let mut most = f64::NAN;
    let ended = loop {
        if let Some(ended) = child.try_wait().map_err(failed)? {
            break ended;
        }
        most = most.max(memory(&status));
        std::thread::sleep(INSPECT_EVERY);
    };
    let seconds = start.elapsed().as_secs_f64();
    if !ended.success() {
        return Err(Error::unavailable(format!("{PROGRAM} failed ({ended})")));
    }
    Ok(Measurement { seconds, cpu: cpu_of_ended_children(), megabytes: most })
}

fn memory(status: &Path) -> f64 {
    megabytes(&std::fs::read_to_string(status).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_written_as_postgresql_does() {
        assert_eq!(place(0x16_B374_D848), "16/B374D848");
        assert_eq!(place(0xA), "0/A");
    }
}
