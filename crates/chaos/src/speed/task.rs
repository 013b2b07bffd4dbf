//! What one consumer is told to do.

use std::path::PathBuf;
use std::process::Command;

use super::consumer::Consumer;
use crate::cluster::Trouble;

/// What to consume, and how.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct BenchTask {
    pub(crate) by: Consumer,
    pub(crate) url: String,
    /// Its group, and whatever else has to be its own.
    pub(crate) group: String,
    /// A place in the history, as a number: the cluster time at which it begins, or the place in the write-ahead log at which
    /// it ends.
    pub(crate) mark: u64,
    pub(crate) changes: u64,
    /// Whether what is written from now on is to be read, and how late it is, instead of what was written.
    pub(crate) live: bool,
    /// Where files are written to.
    pub(crate) folder: PathBuf,
}

impl BenchTask {
    /// The name of the database, which stands between the last slash and the settings.
    pub(super) fn database(&self) -> &str {
        let path = self.url.rsplit_once('/').map_or("", |(_, path)| path);
        path.split_once('?').map_or(path, |(database, _)| database)
    }

    /// The command that makes a process of this program do it.
    pub(super) fn command(&self, name: &str) -> Result<Command, Trouble> {
        let mut command = Command::new(std::env::current_exe().map_err(|error| format!("this program: {error}"))?);
        command.args(["consume", "--by", self.by.name(), "--name", name, "--url", &self.url]);
        command.args(["--group", &self.group, "--changes", &self.changes.to_string()]);
        command.args(["--mark", &self.mark.to_string(), "--folder"]).arg(&self.folder);
        if self.live {
            command.arg("--live");
        }
        Ok(command)
    }
}
