//! The instance that copies: the shipped program, one process at a time.

use std::fs::{File, OpenOptions};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use watchkeeper_drill::Event;

use super::Trouble;
use crate::program::{LOG, read_log_line};
use crate::speed::processes::cpu_of_server;

/// How long an orderly end may take.
const ENDING: Duration = Duration::from_secs(30);

pub(super) struct Runner {
    program: PathBuf,
    config: PathBuf,
    log: PathBuf,
    process: Option<Child>,
    /// How long the log was when the process was started.
    log_before: u64,
}

fn io(what: &str) -> impl Fn(std::io::Error) -> Trouble {
    move |error| format!("{what}: {error}")
}

impl Runner {
    pub(super) fn new(program: &Path, config: &Path, log: &Path) -> Self {
        let (program, config, log) = (program.to_owned(), config.to_owned(), log.to_owned());
        Self { program, config, log, process: None, log_before: 0 }
    }

    pub(super) fn start(&mut self) -> Result<(), Trouble> {
        let log = OpenOptions::new().create(true).append(true).open(&self.log).map_err(io("the log"))?;
        self.log_before = log.metadata().map_err(io("the log"))?.len();
        // Through this program, so that it ends with its parent.
        let mut command = Command::new(std::env::current_exe().map_err(io("this program"))?);
        command
            .arg("launch")
            .arg(&self.program)
            .args(["run", "--log-format", "json", "--log", LOG, "--config"])
            .arg(&self.config);
        command.stdin(Stdio::null()).stdout(log);
        self.process = Some(command.spawn().map_err(io("the program"))?);
        Ok(())
    }

    /// Why nothing more is to be expected: it has ended by itself, or the stream is halted.
    pub(super) fn has_given_up(&mut self) -> Result<Option<String>, Trouble> {
        let Some(process) = &mut self.process else { return Ok(None) };
        if let Some(status) = process.try_wait().map_err(io("the program"))? {
            return Ok(Some(format!("the program has ended with {status}: {}", self.last_lines())));
        }
        let log = std::fs::read_to_string(&self.log).unwrap_or_default();
        let halt = log.lines().rev().find_map(|line| match read_log_line(line) {
            Some(Event::Failed { cause }) => Some(cause),
            _ => None,
        });
        Ok(halt)
    }

    /// Why it gave up the stream last, if it did: it tries again later.
    pub(super) fn last_failure(&self) -> Option<String> {
        let log = std::fs::read_to_string(&self.log).unwrap_or_default();
        log.lines().rev().find_map(failure)
    }

    /// The end of its log.
    pub(super) fn last_lines(&self) -> String {
        let log = std::fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<_> = log.lines().collect();
        lines[lines.len().saturating_sub(5)..].join("\n")
    }

    /// What a command of the program answers as JSON.
    pub(super) fn ask(&self, words: &[&str]) -> Result<Vec<u8>, Trouble> {
        let mut command = Command::new(&self.program);
        command.args(words).arg("--json").arg("--config").arg(&self.config).stdin(Stdio::null());
        let output = command.output().map_err(io("the program"))?;
        if output.status.success() {
            return Ok(output.stdout);
        }
        Err(format!("{words:?} ended with {}: {}", output.status, String::from_utf8_lossy(&output.stderr)))
    }

    /// What the process is doing, for whoever has to find out why it does not get on: what it tells of itself, whether its threads
    /// compute or wait, and where they wait.
    pub(super) fn describe(&self) -> String {
        let status = self
            .ask(&["status"])
            .map_or_else(|trouble| trouble, |answer| String::from_utf8_lossy(&answer).into_owned());
        let Some(process) = &self.process else { return status };
        let before = cpu_of_server(process.id());
        std::thread::sleep(OBSERVED_FOR);
        let used = cpu_of_server(process.id()) - before;
        format!(
            "{used:.2} s of processor time within {OBSERVED_FOR:?}, then:\n{}\nstatus: {status}",
            threads(process.id())
        )
    }

    /// SIGKILL.
    pub(super) fn kill(&mut self) -> Result<(), Trouble> {
        let Some(mut process) = self.process.take() else { return Ok(()) };
        process.kill().map_err(io("kill"))?;
        process.wait().map(drop).map_err(io("wait"))
    }

    /// Whether the process has said something. By then it listens for signals.
    fn has_logged(&self) -> Result<bool, Trouble> {
        Ok(std::fs::metadata(&self.log).map_err(io("the log"))?.len() > self.log_before)
    }

    /// SIGTERM; its end is waited for and has to be in order.
    pub(super) fn stop(&mut self) -> Result<(), Trouble> {
        let Some(mut process) = self.process.take() else { return Ok(()) };
        kill_process(Pid::from_child(&process), Signal::TERM).map_err(|error| format!("terminate: {error}"))?;
        let since = Instant::now();
        loop {
            match process.try_wait().map_err(io("wait"))? {
                Some(status) if status.success() => return Ok(()),
                // Before it listens for signals it is ended by this one.
                Some(status) if status.signal() == Some(Signal::TERM.as_raw()) && !self.has_logged()? => return Ok(()),
                Some(status) => return Err(format!("it ended with {status}: {}", self.last_lines())),
                None if since.elapsed() > ENDING => {
                    self.process = Some(process);
                    return Err("it did not end within 30 s after SIGTERM".to_owned());
                }
                None => std::thread::sleep(Duration::from_millis(5)),
            }
        }
    }
}

/// How long a process is observed that does not get on.
const OBSERVED_FOR: Duration = Duration::from_secs(1);

/// The threads of a process with what each waits for in the kernel.
fn threads(process: u32) -> String {
    let Ok(tasks) = std::fs::read_dir(format!("/proc/{process}/task")) else { return String::new() };
    let read = |path: PathBuf| std::fs::read_to_string(path).unwrap_or_default().trim().to_owned();
    let shown = |task: PathBuf| format!("{}: {}", read(task.join("comm")), read(task.join("wchan")));
    let lines: Vec<_> = tasks.filter_map(|task| Some(shown(task.ok()?.path()))).collect();
    lines.join("\n")
}

/// The error in a line of the log that says that the instance gives the stream up.
fn failure(line: &str) -> Option<String> {
    let line: serde_json::Value = serde_json::from_str(line).ok()?;
    (line["message"] == "giving up the watch").then(|| line["error"].as_str().unwrap_or_default().to_owned())
}

impl Drop for Runner {
    fn drop(&mut self) {
        let _ = self.kill();
    }
}

/// Makes an empty file, so that a log is there from the beginning.
pub(super) fn empty(path: &Path) -> Result<(), Trouble> {
    File::create(path).map(drop).map_err(io("a file"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_threads_of_a_process_are_shown() {
        let me = std::process::id();
        assert!(threads(me).contains(": "), "{}", threads(me));
    }

    #[test]
    fn a_stream_that_is_given_up_is_found_in_the_log() {
        let line =
            r#"{"level":"ERROR","message":"giving up the watch","stream":"history","epoch":2,"error":"no table"}"#;
        assert_eq!(failure(line).as_deref(), Some("no table"));
        assert_eq!(failure(r#"{"level":"INFO","message":"state"}"#), None);
        assert_eq!(failure("panicked at"), None);
    }
}
