//! Settings of files.

use std::path::PathBuf;
use std::time::Duration;

use watchkeeper_core::{Error, Result};

/// When what was written is forced to the disk. See the crate's page for what each can lose.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Fsync {
    /// At every flush, so before any checkpoint.
    #[default]
    EveryFlush,
    /// At the first flush after so long.
    Interval(Duration),
    /// When the system likes.
    Never,
}

/// Where and how lines are written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// The folder; it has to exist.
    pub folder: PathBuf,
    /// What file names begin with. Partitions beyond the first add `.p<partition>` to it.
    pub prefix: String,
    /// No file gets larger than this, unless a single line is.
    pub rotate_bytes: Option<u64>,
    /// No line is added to a file so long after its first line, or after it was opened if it is
    /// another tenure's. Judged when lines are written, so that there are no empty files.
    pub rotate_after: Option<Duration>,
    /// When the disk is waited for.
    pub fsync: Fsync,
}

impl Settings {
    /// Files in `folder`, without rotation, synced at every flush.
    pub fn new(folder: impl Into<PathBuf>, prefix: impl Into<String>) -> Self {
        let (folder, prefix) = (folder.into(), prefix.into());
        Self { folder, prefix, rotate_bytes: None, rotate_after: None, fsync: Fsync::EveryFlush }
    }

    /// Looks whether the settings make sense.
    pub fn validate(&self) -> Result<()> {
        if self.prefix.is_empty() || self.prefix.starts_with('.') || self.prefix.contains(['/', '\0']) {
            let cause = format!("{:?} cannot begin the names of files", self.prefix);
            return Err(Error::config(cause).remedy("write a prefix such as \"orders\", without slash or leading dot"));
        }
        if self.folder.as_os_str().is_empty() {
            return Err(Error::config("no folder is named for the files").remedy("name one, \".\" for the current one"));
        }
        if self.rotate_bytes == Some(0) {
            return Err(
                Error::config("a file of at most 0 bytes holds no line").remedy("write a size such as \"64MiB\"")
            );
        }
        let no_time = Some(Duration::ZERO);
        if self.rotate_after == no_time || self.fsync == Fsync::Interval(Duration::ZERO) {
            return Err(Error::config("a rotation or sync after no time at all")
                .remedy("write a time such as \"1h\", or leave it out"));
        }
        Ok(())
    }
}
