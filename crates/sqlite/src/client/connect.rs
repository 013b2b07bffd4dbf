use std::path::Path;
use std::time::{Duration, Instant};

use rusqlite::{Connection, ErrorCode, OpenFlags};
use watchkeeper_core::{Error, ErrorKind, Result};

use crate::config::Config;
use crate::error::Failure;

/// Opens a connection with durable settings.
pub(crate) fn connect(config: &Config) -> Result<Connection> {
    refuse_network(&config.path)?;
    refuse_folder(&config.path)?;
    refuse_missing(config)?;
    let mut flags = OpenFlags::SQLITE_OPEN_NO_MUTEX;
    flags.set(OpenFlags::SQLITE_OPEN_READ_ONLY, config.read_only);
    flags.set(OpenFlags::SQLITE_OPEN_READ_WRITE, !config.read_only);
    flags.set(OpenFlags::SQLITE_OPEN_CREATE, config.create && !config.read_only);
    if !config.read_only {
        refuse_unwritable(&config.path)?;
    }
    let opened = Connection::open_with_flags(&config.path, flags).map_err(Failure::from);
    let set_up = opened.and_then(|connection| {
        connection.busy_timeout(config.busy)?;
        if config.read_only {
            // Reads the file's head, so that what is no database is told now.
            connection.query_row("SELECT count(*) FROM sqlite_schema", [], |_| Ok(()))?;
            return Ok(connection);
        }
        write_ahead(&connection, config)?;
        connection.pragma_update(None, "synchronous", "FULL")?;
        Ok(connection)
    });
    set_up.map_err(|failure| failure.into_error(&config.path))
}

/// Refuses a folder where a file is expected: SQLite calls that a failure of the disk.
fn refuse_folder(path: &Path) -> Result<()> {
    if !path.is_dir() {
        return Ok(());
    }
    Err(Error::config(format!("{}: this is a folder, not a file", path.display()))
        .remedy(format!("name a file in it, such as sqlite:{}", path.join("state.db").display())))
}

/// Refuses a file that cannot be written by this user, or be made: SQLite does not tell that apart from a wrong path.
pub(crate) fn refuse_unwritable(path: &Path) -> Result<()> {
    let writable = |path: &Path| rustix::fs::access(path, rustix::fs::Access::WRITE_OK).is_ok();
    let folder = folder(path);
    if !folder.is_dir() || (writable(folder) && (!path.exists() || writable(path))) {
        return Ok(());
    }
    let remedy = "make the file and its folder writable for this user";
    Err(Error::new(ErrorKind::Denied, format!("{} cannot be written", path.display())).remedy(remedy))
}

/// Refuses a file that is not there and not to be made, where its folder is: SQLite does not tell the two apart.
fn refuse_missing(config: &Config) -> Result<()> {
    let is_missing = !config.create && folder(&config.path).is_dir() && !config.path.exists();
    if !is_missing {
        return Ok(());
    }
    Err(Error::config(format!("{}: there is no such file", config.path.display()))
        .remedy("correct the path, or create the database first"))
}

fn folder(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Switches to write-ahead logging, so that readers wait for no writer.
///
/// The switch asks for a lock without the busy handler, so the wait for others who open the new file at the
/// same time is made here, within the same bound.
fn write_ahead(connection: &Connection, config: &Config) -> Result<(), Failure> {
    let pause = Duration::from_millis(2);
    // By the clock: a file whose readers are locked out lets each attempt wait by itself.
    let began = Instant::now();
    let mode: String = loop {
        match connection.query_row("PRAGMA journal_mode=WAL", [], |row| row.get(0)) {
            Err(error) if is_busy(&error) && began.elapsed() < config.busy => std::thread::sleep(pause),
            answer => break answer?,
        }
    };
    if mode.eq_ignore_ascii_case("wal") {
        return Ok(());
    }
    Err(Failure::Described(
        Error::config(format!("{}: write-ahead logging is not possible, only {mode}", config.path.display()))
            .remedy("keep the file on a local disk"),
    ))
}

pub(super) fn is_busy(error: &rusqlite::Error) -> bool {
    matches!(error.sqlite_error_code(), Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked))
}

/// Filesystems whose locks or shared memory cannot be believed, by their magic numbers.
const NETWORKS: [(u64, &str); 8] = [
    (0x6969, "NFS"),
    (0x517b, "SMB"),
    (0xff53_4d42, "CIFS"),
    (0xfe53_4d42, "SMB2"),
    (0x5346_414f, "AFS"),
    (0x00c3_6400, "Ceph"),
    (0x0102_1997, "9P"),
    (0x0bd0_0bd0, "Lustre"),
];

/// Refuses a file whose folder is on a network filesystem.
pub(crate) fn refuse_network(path: &Path) -> Result<()> {
    let folder = folder(path);
    // A folder that cannot be looked at is told by the opening itself, with its cause.
    let Ok(found) = rustix::fs::statfs(folder) else { return Ok(()) };
    // Sign extension on some platforms must not hide a number.
    refuse(path, u64::from(found.f_type as u32))
}

/// Refuses a file on a filesystem with this magic number.
fn refuse(path: &Path, magic: u64) -> Result<()> {
    network(magic).map_or(Ok(()), |name| {
        Err(Error::config(format!("{}: SQLite cannot share a file over {name}", path.display()))
            .remedy("keep the file on a local disk, or use a server as the store"))
    })
}

fn network(magic: u64) -> Option<&'static str> {
    NETWORKS.iter().find(|(number, _)| *number == magic).map(|(_, name)| *name)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::{network, refuse};

    #[test]
    fn network_filesystems_are_known_by_their_numbers() {
        assert_eq!(network(0x6969), Some("NFS"));
        assert_eq!(network(0xff53_4d42), Some("CIFS"));
        // ext4, tmpfs, btrfs.
        for local in [0xef53, 0x0102_1994, 0x9123_683e] {
            assert_eq!(network(local), None);
            refuse(Path::new("state.db"), local).expect("it is local");
        }
    }

    #[test]
    fn a_file_on_one_is_refused_with_what_to_do() {
        let error = refuse(Path::new("/mnt/shop/state.db"), 0x6969).expect_err("it is on NFS").to_string();
        assert_eq!(
            error,
            "/mnt/shop/state.db: SQLite cannot share a file over NFS [WK-CONFIG]; \
             keep the file on a local disk, or use a server as the store"
        );
    }
}
