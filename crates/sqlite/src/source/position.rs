//! Whether a position is one of this file's own past.

use rusqlite::{Connection, OptionalExtension};
use watchkeeper_core::{Error, Position, SourceTime};

use super::{ChangeLog, bounds};
use crate::error::Failure;

/// A place in the log: after a change, with the time of that change as far as it is known.
///
/// Numbers alone do not tell a log from its own backup: restored and written to again, it has the same numbers for
/// other changes. Those were written later than the ones that they stand in for, so their time is another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct LogPosition {
    pub(super) number: u64,
    pub(super) time: Option<SourceTime>,
}

impl LogPosition {
    /// After change `number`, with its time if it is still in the log.
    pub(super) fn after(connection: &Connection, number: u64) -> Result<Self, Failure> {
        Ok(Self { number, time: time_of(connection, number)? })
    }

    /// Where a position is.
    pub(super) fn of(position: &Position) -> Result<Self, Error> {
        // No time and the time 0 are the same: a told gap is given 0 where its source told no time.
        let time = position.time.filter(|time| time.0 != 0);
        Ok(Self { number: ChangeLog::number(position)?, time })
    }

    pub(super) fn position(self) -> Position {
        ChangeLog::position(self.number, self.time)
    }

    /// Refuses a place whose history is gone, or has not happened in this file.
    pub(super) fn still_there(self, connection: &Connection) -> Result<(), Failure> {
        let (number, (pruned, newest)) = (self.number, bounds(connection)?);
        if number < pruned {
            let cause = format!(
                "the changes after {number} are gone: the log is pruned through {pruned}, or changes up to there were deleted from it"
            );
            return lost(cause, "accept the gap, or copy the tables again; a longer retention prevents it");
        }
        let remedy = "copy the tables again, or move the checkpoint on purpose; was the file restored from a backup?";
        if number > newest {
            return lost(format!("change {number} is after the newest one, {newest}"), remedy);
        }
        let (Some(read), Some(there)) = (self.time, time_of(connection, number)?) else { return Ok(()) };
        if read != there {
            return lost(format!("change {number} is not the one that was read"), remedy);
        }
        Ok(())
    }
}

fn lost(cause: String, remedy: &str) -> Result<(), Failure> {
    Err(Error::position_lost(cause).remedy(remedy).into())
}

/// The time of a change that is still in the log.
fn time_of(connection: &Connection, number: u64) -> Result<Option<SourceTime>, Failure> {
    let sql = "SELECT millis FROM watchkeeper_changes WHERE seq = ?1";
    let mut statement = connection.prepare_cached(sql)?;
    let millis: Option<i64> = statement.query_row([number.cast_signed()], |row| row.get(0)).optional()?;
    Ok(millis.map(|millis| SourceTime(millis.cast_unsigned())))
}
