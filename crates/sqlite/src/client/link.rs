//! A connection that notices when its path comes to mean another file.
//!
//! An open file stays the same when another is moved to its place, and even when it is removed. What is written then
//! nobody else ever sees: leases would be renewed in a file of which the other instances know nothing.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rusqlite::Connection;
use watchkeeper_core::{Error, Result};

use super::connect;
use super::schema::Maintained;
use crate::config::Config;

/// Device and inode.
type Identity = (u64, u64);

/// The file that a path means now.
fn identity(path: &Path) -> Option<Identity> {
    std::fs::metadata(path).ok().map(|file| (file.dev(), file.ino()))
}

/// A connection, with the file that it has open.
#[derive(Debug)]
pub(super) struct Link {
    connection: Connection,
    config: Config,
    file: Identity,
    /// The write-ahead log and its index, which SQLite finds by their names alone.
    beside: [Option<Identity>; 2],
}

impl Link {
    /// Opens the file.
    pub(super) fn open(config: &Config) -> Result<Self> {
        // A relative path would mean another file after a change of the working directory.
        let path = std::path::absolute(&config.path).unwrap_or_else(|_| config.path.clone());
        let before = identity(&path);
        let connection = connect(config)?;
        let file = identity(&path).filter(|after| before.is_none_or(|before| before == *after));
        let file = file.ok_or_else(|| replaced(&path, "while it was opened", "try again"))?;
        // What takes its place is made by those who put it there, not by those who miss it.
        let config = Config { path, create: false, ..config.clone() };
        Ok(Self { connection, config, file, beside: [None; 2] })
    }

    /// Whether the path still means the file that is open.
    pub(super) fn is_current(&mut self) -> bool {
        let is_current = identity(&self.config.path) == Some(self.file);
        // They are made with the first transaction, and stay as long as a connection does.
        if is_current && self.beside.contains(&None) {
            self.beside = beside(&self.config.path).map(|path| identity(&path));
        }
        is_current
    }

    /// The connection, if the path still means its file. If it means another one, that is opened, for the next call.
    ///
    /// # Errors
    /// `Unavailable` when the file was replaced or removed.
    pub(super) fn current(&mut self, maintained: &Maintained) -> Result<&mut Connection> {
        if self.is_current() {
            return Ok(&mut self.connection);
        }
        let path = self.config.path.clone();
        let Some(file) = identity(&path) else {
            let remedy = "put it back, or stop the processes that use it and start them again";
            return Err(replaced(&path, "under this process", remedy));
        };
        self.reopen(file, maintained)?;
        let remedy = "the new one is used from now on; to replace a file, first stop the processes that use it";
        Err(replaced(&path, "under this process", remedy))
    }

    /// For a call that wrote: whether it did so in the file that the path still means.
    ///
    /// # Errors
    /// `Unknown` when the file was replaced or removed meanwhile.
    pub(super) fn require_unreplaced(&mut self) -> Result<()> {
        if self.is_current() {
            return Ok(());
        }
        let cause = format!("{}: the file was replaced or removed during the call", self.config.path.display());
        Err(Error::unknown(cause).remedy("to replace a file, first stop the processes that use it"))
    }

    /// Opens what is at the path now.
    fn reopen(&mut self, file: Identity, maintained: &Maintained) -> Result<()> {
        let path = &self.config.path;
        // SQLite would play the old log into the new file.
        let left =
            beside(path).into_iter().zip(self.beside).find(|(path, old)| old.is_some() && identity(path) == *old);
        if let Some((left, _)) = left {
            let cause = format!("under this process, and {} is still that of the old one", left.display());
            let remedy = "stop the processes that use the file, remove its -wal and -shm, and put it there again";
            return Err(replaced(path, &cause, remedy));
        }
        let failed = |error: Error| {
            let cause = format!("under this process, and the new one cannot be used: {}", error.message());
            replaced(path, &cause, error.advice().unwrap_or("put a good file there"))
        };
        let mut link = Self::open(&self.config).map_err(failed)?;
        maintained.ensure_on(&mut link.connection).map_err(|failure| failed(failure.into_error(path)))?;
        if link.file == file {
            *self = link;
        }
        Ok(())
    }

    pub(super) fn connection(&self) -> &Connection {
        &self.connection
    }
}

/// The paths of the write-ahead log and its index.
fn beside(path: &Path) -> [PathBuf; 2] {
    ["-wal", "-shm"].map(|end| {
        let mut name = path.as_os_str().to_owned();
        name.push(end);
        PathBuf::from(name)
    })
}

fn replaced(path: &Path, how: &str, remedy: &str) -> Error {
    Error::unavailable(format!("{}: the file was replaced or removed {how}", path.display())).remedy(remedy)
}
