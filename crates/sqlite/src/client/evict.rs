use std::path::Path;
use std::time::Duration;

use rusqlite::{Connection, ErrorCode, Transaction};

use super::{Process, write_on};
use crate::error::Failure;

/// How long a call waits for the write lock before it looks for somebody to evict.
const BEFORE_EVICTION: Duration = Duration::from_millis(100);

/// Runs `work` in a write transaction. If that has to wait for the process that is `replaced` by it, and that process is
/// stopped, it is killed.
///
/// A stopped process inside a write transaction blocks the file until it goes on or dies, and the one that replaces it
/// could not even begin. It is matched by its number and its start, as it had written them down itself.
pub(crate) fn write_or_evict<T>(
    connection: &mut Connection,
    path: &Path,
    work: impl Fn(&Transaction<'_>) -> Result<T, Failure>,
    replaced: impl Fn(&Connection) -> Result<Option<(i32, i64)>, Failure>,
) -> Result<T, Failure> {
    let patience = connection.query_row("PRAGMA busy_timeout", [], |row| row.get::<_, u32>(0))?;
    let patience = Duration::from_millis(patience.into());
    connection.busy_timeout(patience.min(BEFORE_EVICTION))?;
    let brief = write_on(connection, &work);
    connection.busy_timeout(patience)?;
    match brief {
        Err(Failure::Native(native)) if native.sqlite_error_code() == Some(ErrorCode::DatabaseBusy) => {
            if let Some(replaced) = replaced(connection)? {
                let is_it = |process: &Process| process.is_stopped() && process.identity() == replaced;
                let _ = Process::writing(path).filter(is_it).is_some_and(|process| process.kill());
            }
            write_on(connection, work)
        }
        answer => answer,
    }
}
