//! The programs that a cluster consists of.

use std::io;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use watchkeeper_drill::Children;

use crate::harness::Kind;
use crate::instance::STREAM;
use crate::program::{LOG, read_log_line};

/// How the instances of a cluster are started.
#[derive(Debug, Clone)]
pub(crate) struct LaunchPlan {
    /// The harness's name and its folder.
    pub(crate) harness: String,
    pub(crate) place: PathBuf,
    pub(crate) lease: Duration,
    /// The folder for log files.
    pub(crate) log: Option<PathBuf>,
    pub(crate) members: Members,
}

/// What an instance is.
#[derive(Debug, Clone)]
pub(crate) enum Members {
    /// A child of this program, whose sink holds and fails on request.
    Instances { kind: Kind, self_fencing: bool },
    /// A child of this program that embeds the library with a handler.
    Handlers,
    /// The shipped program with a configuration file, started as a user starts it.
    Shipped { program: PathBuf, config: PathBuf },
}

impl LaunchPlan {
    /// Children of this program with a sink of this kind, as they are in use.
    pub(crate) fn of_instances(
        harness: &str,
        place: PathBuf,
        kind: Kind,
        lease: Duration,
        log: Option<PathBuf>,
    ) -> Self {
        Self {
            harness: harness.to_owned(),
            place,
            lease,
            log,
            members: Members::Instances { kind, self_fencing: true },
        }
    }

    /// Children whose output can be read.
    pub(crate) fn children(&self) -> io::Result<Children> {
        match self.members {
            Members::Instances { .. } | Members::Handlers => Children::new(),
            Members::Shipped { .. } => Children::reading(read_log_line),
        }
    }

    /// Whether an instance takes the orders of its parent.
    pub(crate) fn takes_orders(&self) -> bool {
        matches!(self.members, Members::Instances { .. })
    }

    /// Whether the target shows under which epoch each change was written.
    pub(crate) fn shows_epochs(&self) -> bool {
        !matches!(self.members, Members::Shipped { .. })
    }

    /// The command that starts the instance of this name.
    pub(crate) fn command(&self, name: &str) -> io::Result<Command> {
        let mut command = Command::new(std::env::current_exe()?);
        match &self.members {
            Members::Instances { kind, self_fencing } => {
                command.args(["instance", "--sink", kind.as_str()]);
                if !self_fencing {
                    command.arg("--no-self-fencing");
                }
            }
            Members::Handlers => {
                command.arg("handler");
            }
            Members::Shipped { program, config } => {
                // Through this program, so that it ends with its parent, and its log is read.
                command
                    .arg("launch")
                    .arg(program)
                    .args(["run", "--log-format", "json", "--log", LOG, "--config"])
                    .arg(config);
                command.env("WATCHKEEPER__INSTANCE__NAME", name);
                return Ok(command);
            }
        }
        command.args(["--rig", &self.harness, "--name", name, "--lease-ms", &self.lease.as_millis().to_string()]);
        command.arg("--place").arg(&self.place);
        if let Some(folder) = &self.log {
            command.arg("--log").arg(folder);
        }
        Ok(command)
    }

    /// The command by which an operator hands the watch over; `None` where the parent asks for it itself.
    pub(crate) fn hand_over(&self) -> Option<Command> {
        let Members::Shipped { program, config } = &self.members else { return None };
        let mut command = Command::new(program);
        command.args(["handoff", STREAM, "--config"]).arg(config);
        Some(command)
    }
}
