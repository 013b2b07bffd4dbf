//! Where a stream would begin, looked at before anything is made for it.

use watchkeeper_core::{Error, OperationTime, Result, StartAt};

/// The log of PostgreSQL has places and times, but no operation times.
pub(super) fn unknown(time: OperationTime) -> Error {
    time.unknown_to("replication from PostgreSQL")
}

/// Refuses an operation time before a slot or a publication is made for it.
pub(super) fn refuse_operation(start: &StartAt) -> Result<()> {
    match start {
        StartAt::Operation(time) => Err(unknown(*time)),
        _ => Ok(()),
    }
}
