use std::path::{Path, PathBuf};
use std::time::Duration;

use watchkeeper_core::{Error, Result};

/// Which file, and how to wait for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// The database file. Its folder has to exist.
    pub path: PathBuf,
    /// Whether to create the file when it is missing.
    pub create: bool,
    /// Whether nothing may be changed: not even what Watchkeeper keeps there is made. For people who look.
    pub read_only: bool,
    /// How long a call waits for another writer before it is `Unavailable`. Never longer than the
    /// call's own deadline.
    pub busy: Duration,
    /// How often to look whether another connection has written. A look costs a few microseconds.
    pub tick: Duration,
    /// Whether a claim, an acquire or the opening of a log may kill the process that it replaces, when that one is stopped (`SIGSTOP`, a debugger) inside a
    /// write transaction and so blocks the file. Off by default.
    pub evict: bool,
}

impl Config {
    /// The file at `path`, created when missing; waits 5 s for other writers and looks for changes every 5 ms.
    pub fn new(path: impl AsRef<Path>) -> Self {
        let path = path.as_ref().to_owned();
        let (busy, tick) = (Duration::from_secs(5), Duration::from_millis(5));
        Self { path, create: true, read_only: false, busy, tick, evict: false }
    }

    /// The file at `path`, which has to exist: an application's own database.
    pub fn existing(path: impl AsRef<Path>) -> Self {
        Self { create: false, ..Self::new(path) }
    }

    /// The same file, to look at only.
    #[must_use]
    pub fn for_reading(self) -> Self {
        Self { create: false, read_only: true, ..self }
    }

    /// Refuses what cannot work.
    pub fn validate(&self) -> Result<()> {
        if self.path.as_os_str().is_empty() || self.path.as_os_str() == ":memory:" {
            return Err(Error::config("a database in memory is not shared with other processes")
                .remedy("name a file, such as sqlite:state.db"));
        }
        let tick_max = Duration::from_secs(1);
        if self.tick.is_zero() || self.tick > tick_max {
            return Err(Error::config(format!("a tick of {:?} is not between 1ms and {tick_max:?}", self.tick))
                .remedy("leave it at 5ms"));
        }
        Ok(())
    }
}
