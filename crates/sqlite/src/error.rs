//! One table from SQLite's codes to kinds.

use std::path::Path;

use rusqlite::ErrorCode as Code;
use watchkeeper_core::{Error, ErrorKind, FaultKind};

use crate::client::Process;

/// Why work on the database thread failed. Made by `?` from both kinds of error.
#[derive(Debug)]
pub enum Failure {
    /// SQLite said so, before the commit: nothing was changed.
    Native(rusqlite::Error),
    /// SQLite said so at the commit.
    Commit(rusqlite::Error),
    /// Known already what it means.
    Described(Error),
    /// A change that can never be applied: the stream's policy for rejected changes decides.
    Refused(Error),
    /// This instance must not go on: it releases at once.
    Fatal(Error),
}

impl From<rusqlite::Error> for Failure {
    fn from(error: rusqlite::Error) -> Self {
        Self::Native(error)
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Described(error)
    }
}

impl Failure {
    /// A change can never be applied, for this reason.
    pub fn refuse(reason: impl Into<String>) -> Self {
        Self::Refused(Error::config(reason))
    }

    /// This instance must not go on, for this reason: it gives up the watch, and another one tries.
    pub fn fatal(reason: impl Into<String>) -> Self {
        Self::Fatal(Error::internal(reason))
    }

    /// What is to become of the change that this happened at; `None` when repeating it unchanged may do.
    pub(crate) fn of_the_change(&self) -> Option<FaultKind> {
        let rejects = match self {
            Self::Fatal(_) => return Some(FaultKind::Fatal),
            Self::Refused(_) => true,
            // A payload that cannot be read.
            Self::Described(error) => error.kind() == ErrorKind::Corrupt,
            Self::Native(native) => matches!(
                native.sqlite_error_code(),
                Some(Code::ConstraintViolation | Code::TypeMismatch | Code::TooBig)
            ),
            Self::Commit(native) => native.sqlite_error_code() == Some(Code::ConstraintViolation),
        };
        rejects.then_some(FaultKind::Reject)
    }

    /// Why a change was rejected that the target in the file at `path` can never take.
    pub(crate) fn into_rejection(self, path: &Path) -> Error {
        match self {
            Self::Native(native) if native.sqlite_error_code() == Some(Code::ConstraintViolation) => {
                let cause = format!("{}: the change violates a constraint of the table ({native})", path.display());
                let remedy = "change the constraint, or skip the change";
                Error::rejected(cause).remedy(remedy).caused_by(native)
            }
            other => other.into_error(path),
        }
    }

    /// What it means for the file at `path`.
    pub fn into_error(self, path: &Path) -> Error {
        match self {
            Self::Described(error) | Self::Refused(error) | Self::Fatal(error) => error,
            Self::Native(native) => translate(native, false, path),
            Self::Commit(native) => translate(native, true, path),
        }
    }
}

/// A row of the table: what to do, the cause in words, the remedy.
type Meaning = (ErrorKind, &'static str, &'static str);

const BUSY: &str = "another process has been writing for longer than the time-out";
const BUSY_REMEDY: &str = "keep leases in a file of their own and write transactions short";

fn meaning(code: Code, at_commit: bool) -> Meaning {
    use ErrorKind::{Config, Corrupt, Denied, Internal, Unavailable, Unknown};
    match code {
        Code::DatabaseBusy | Code::DatabaseLocked => (Unavailable, BUSY, BUSY_REMEDY),
        Code::FileLockingProtocolFailed => (Unavailable, "too many processes opened it at once", "try again"),
        Code::SchemaChanged => (Unavailable, "its schema was changed meanwhile", "try again"),
        Code::OperationInterrupted | Code::OperationAborted => (Unavailable, "the call was interrupted", "try again"),
        Code::OutOfMemory => (Unavailable, "there is not enough memory", "give the process more memory"),
        Code::DiskFull => (Unavailable, "the disk is full", "free some space; nothing was changed"),
        // The frames may have reached the disk although the system call said no.
        Code::SystemIoFailure if at_commit => (Unknown, "the disk failed at the commit", "look at the disk"),
        Code::SystemIoFailure => (Unavailable, "the disk failed", "look at the disk"),
        Code::ReadOnly => (Denied, "it is read-only", "make the file and its folder writable for this user"),
        Code::PermissionDenied | Code::AuthorizationForStatementDenied => {
            (Denied, "access is denied", "give this user access to the file and its folder")
        }
        Code::CannotOpen => (Config, "it cannot be opened", "create its folder, or correct the path"),
        Code::NotADatabase => (Config, "it is not a SQLite database", "correct the path, or remove the file"),
        Code::NoLargeFileSupport => (Config, "the filesystem takes no large files", "use another filesystem"),
        Code::TooBig => (Config, "a value is too large", "keep values below SQLite's limits"),
        Code::DatabaseCorrupt => (Corrupt, "it is damaged", "restore it from a backup"),
        Code::NotFound | Code::ConstraintViolation | Code::TypeMismatch | Code::ApiMisuse => OTHER,
        Code::ParameterOutOfRange => OTHER,
        Code::InternalMalfunction => (Internal, "SQLite found a bug in itself", "report it"),
        _ => OTHER,
    }
}

const OTHER: Meaning =
    (ErrorKind::Internal, "a statement was refused", "look at the cause; if nobody changed the tables, report it");

/// SQLite has one code for all statements that do not fit the tables; what it says tells them from a bug.
const MISSING: [&str; 5] =
    ["no such table", "no such column", "has no column named", "no such view", "values were supplied"];

const MISSING_MEANING: Meaning = (
    ErrorKind::Config,
    "a table or a column that is written or read is not there",
    "restore it, or correct the name of the table",
);

fn is_missing(native: &rusqlite::Error) -> bool {
    let (error, said) = match native {
        rusqlite::Error::SqliteFailure(error, Some(said)) => (error, said),
        rusqlite::Error::SqlInputError { error, msg, .. } => (error, msg),
        _ => return false,
    };
    error.extended_code == rusqlite::ffi::SQLITE_ERROR && MISSING.iter().any(|part| said.contains(part))
}

fn translate(native: rusqlite::Error, at_commit: bool, path: &Path) -> Error {
    let known = native.sqlite_error_code().map_or(OTHER, |code| meaning(code, at_commit));
    let (kind, cause, remedy) = if is_missing(&native) { MISSING_MEANING } else { known };
    let busy = matches!(native.sqlite_error_code(), Some(Code::DatabaseBusy | Code::DatabaseLocked));
    let who = busy.then(|| Process::writing(path)).flatten().map(|process| format!(": {process}")).unwrap_or_default();
    Error::new(kind, format!("{}: {cause}{who} ({native})", path.display())).remedy(remedy).caused_by(native)
}

#[cfg(test)]
mod tests {
    use rusqlite::ffi;

    use super::*;

    fn kind(code: i32, at_commit: bool) -> ErrorKind {
        let native = rusqlite::Error::SqliteFailure(ffi::Error::new(code), None);
        let failure = if at_commit { Failure::Commit(native) } else { Failure::Native(native) };
        failure.into_error(Path::new("state.db")).kind()
    }

    #[test]
    fn every_row_of_the_table_has_its_kind() {
        let rows = [
            (ffi::SQLITE_BUSY, ErrorKind::Unavailable),
            (ffi::SQLITE_BUSY_SNAPSHOT, ErrorKind::Unavailable),
            (ffi::SQLITE_LOCKED, ErrorKind::Unavailable),
            (ffi::SQLITE_PROTOCOL, ErrorKind::Unavailable),
            (ffi::SQLITE_SCHEMA, ErrorKind::Unavailable),
            (ffi::SQLITE_INTERRUPT, ErrorKind::Unavailable),
            (ffi::SQLITE_NOMEM, ErrorKind::Unavailable),
            (ffi::SQLITE_FULL, ErrorKind::Unavailable),
            (ffi::SQLITE_IOERR_WRITE, ErrorKind::Unavailable),
            (ffi::SQLITE_READONLY, ErrorKind::Denied),
            (ffi::SQLITE_READONLY_DBMOVED, ErrorKind::Denied),
            (ffi::SQLITE_PERM, ErrorKind::Denied),
            (ffi::SQLITE_AUTH, ErrorKind::Denied),
            (ffi::SQLITE_CANTOPEN, ErrorKind::Config),
            (ffi::SQLITE_NOTADB, ErrorKind::Config),
            (ffi::SQLITE_NOLFS, ErrorKind::Config),
            (ffi::SQLITE_TOOBIG, ErrorKind::Config),
            (ffi::SQLITE_CORRUPT, ErrorKind::Corrupt),
            (ffi::SQLITE_CONSTRAINT_UNIQUE, ErrorKind::Internal),
            (ffi::SQLITE_MISUSE, ErrorKind::Internal),
            (ffi::SQLITE_ERROR, ErrorKind::Internal),
        ];
        for (code, expected) in rows {
            assert_eq!(kind(code, false), expected, "code {code}");
        }
    }

    #[test]
    fn a_table_or_column_that_is_missing_is_no_bug() {
        let connection = rusqlite::Connection::open_in_memory().expect("there is memory");
        connection.execute_batch("CREATE TABLE present(a)").expect("the statement is good");
        for (sql, part) in [
            ("INSERT INTO orders_copy VALUES (1)", "no such table: orders_copy"),
            ("SELECT b FROM present", "no such column: b"),
            ("INSERT INTO present(b) VALUES (1)", "has no column named b"),
            ("INSERT INTO present VALUES (1, 2)", "has 1 columns but 2 values were supplied"),
        ] {
            let native = connection.prepare(sql).expect_err("the table is another");
            let error = Failure::Native(native).into_error(Path::new("mirror.db"));
            assert_eq!(error.kind(), ErrorKind::Config, "{error}");
            assert!(error.message().contains(part) && error.advice().is_some_and(|advice| advice.contains("restore")));
        }
        let native = connection.prepare("SELEKT").expect_err("it is no statement");
        assert_eq!(Failure::Native(native).into_error(Path::new("mirror.db")).kind(), ErrorKind::Internal);
    }

    #[test]
    fn only_a_disk_that_fails_at_the_commit_leaves_it_open() {
        assert_eq!(kind(ffi::SQLITE_IOERR_FSYNC, true), ErrorKind::Unknown);
        assert_eq!(kind(ffi::SQLITE_FULL, true), ErrorKind::Unavailable);
        assert_eq!(kind(ffi::SQLITE_BUSY, true), ErrorKind::Unavailable);
    }
}
