//! The one table from errors of the system to kinds, causes and remedies.

use std::borrow::Cow;
use std::io;
use std::path::Path;

use rustix::io::Errno;
use watchkeeper_core::{Error, ErrorKind, Finding, Severity};

/// What an error of the system means here.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Meaning {
    pub(crate) kind: ErrorKind,
    pub(crate) cause: &'static str,
    pub(crate) remedy: &'static str,
}

/// The table. `Unavailable` is only for what is known to have changed nothing, or is taken back.
pub(crate) fn meaning(error: &io::Error) -> Meaning {
    use ErrorKind::{Config, Denied, Unavailable, Unknown};
    let of = |kind, cause, remedy| Meaning { kind, cause, remedy };
    match error.kind() {
        io::ErrorKind::StorageFull => of(Unavailable, "the disk is full", "make room; nothing is lost meanwhile"),
        io::ErrorKind::QuotaExceeded => of(Unavailable, "the quota is used up", "raise it or make room"),
        io::ErrorKind::FileTooLarge => of(Unavailable, "the file is as large as it may be", "set a rotation by size"),
        io::ErrorKind::ReadOnlyFilesystem => of(Denied, "the file system is read-only", "mount it for writing"),
        io::ErrorKind::PermissionDenied => of(Denied, "this user may not write there", "give write permission"),
        io::ErrorKind::NotFound => {
            // On a volume that is not mounted just now, a folder that is made anew would fill the disk below.
            of(
                Config,
                "the folder does not exist",
                "mount the volume that it is on, or make the folder; lines that lay in one that is gone are not written again",
            )
        }
        io::ErrorKind::NotADirectory => of(Config, "a part of its path is no folder", "name a folder"),
        io::ErrorKind::IsADirectory => of(Config, "a folder has the file's name", "choose another prefix"),
        io::ErrorKind::AlreadyExists => {
            of(Unavailable, "someone else made that file", "leave names with this prefix to Watchkeeper")
        }
        io::ErrorKind::BrokenPipe => of(Denied, "nobody reads it any more", "keep the reading program running"),
        _ => match Errno::from_io_error(error) {
            Some(Errno::MFILE | Errno::NFILE) => {
                of(Unavailable, "too many files are open", "raise the limit of open files (ulimit -n)")
            }
            _ => of(Unknown, "the system reports an error", "look into the system's log, at the disk's health too"),
        },
    }
}

/// The path as it is named in an error: in full where a folder is missing, since it may be looked for in the wrong place.
fn shown<'p>(path: &'p Path, error: &io::Error) -> Cow<'p, Path> {
    match error.kind() {
        io::ErrorKind::NotFound => std::path::absolute(path).map_or(Cow::Borrowed(path), Cow::Owned),
        _ => Cow::Borrowed(path),
    }
}

/// The error of having tried to `verb` what lies at `path`.
pub(crate) fn failed(verb: &str, path: &Path, error: io::Error) -> Error {
    let Meaning { kind, cause, remedy } = meaning(&error);
    let path = shown(path, &error);
    Error::new(kind, format!("cannot {verb} {}: {cause}", path.display())).remedy(remedy).caused_by(error)
}

/// The same as a finding of a check.
pub(crate) fn finding(verb: &str, path: &Path, error: &io::Error) -> Finding {
    let Meaning { kind, cause, remedy } = meaning(error);
    let what = format!("cannot {verb} {}: {cause} [{}]", shown(path, error).display(), kind.code());
    Finding { severity: Severity::Error, what, remedy: Some(remedy.to_owned()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_of_the_table_has_its_kind() {
        let rows = [
            (Errno::NOSPC, ErrorKind::Unavailable, "the disk is full"),
            (Errno::DQUOT, ErrorKind::Unavailable, "the quota is used up"),
            (Errno::FBIG, ErrorKind::Unavailable, "the file is as large as it may be"),
            (Errno::ROFS, ErrorKind::Denied, "the file system is read-only"),
            (Errno::ACCESS, ErrorKind::Denied, "this user may not write there"),
            (Errno::PERM, ErrorKind::Denied, "this user may not write there"),
            (Errno::NOENT, ErrorKind::Config, "the folder does not exist"),
            (Errno::NOTDIR, ErrorKind::Config, "a part of its path is no folder"),
            (Errno::ISDIR, ErrorKind::Config, "a folder has the file's name"),
            (Errno::EXIST, ErrorKind::Unavailable, "someone else made that file"),
            (Errno::PIPE, ErrorKind::Denied, "nobody reads it any more"),
            (Errno::MFILE, ErrorKind::Unavailable, "too many files are open"),
            (Errno::NFILE, ErrorKind::Unavailable, "too many files are open"),
            (Errno::IO, ErrorKind::Unknown, "the system reports an error"),
        ];
        for (errno, kind, cause) in rows {
            let error = failed("write to", Path::new("/data/a-1.ndjson"), errno.into());
            assert_eq!(error.kind(), kind, "{errno:?}");
            let shown = error.to_string();
            assert!(shown.starts_with(&format!("cannot write to /data/a-1.ndjson: {cause} [WK-")), "{shown}");
            assert!(shown.contains("]; "), "no remedy: {shown}");
            let found = finding("write to", Path::new("/data/a-1.ndjson"), &errno.into());
            assert_eq!(format!("{}; {}", found.what, found.remedy.expect("there is one")), shown);
        }
    }
}
