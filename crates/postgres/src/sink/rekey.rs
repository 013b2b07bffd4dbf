//! Updates of a key, and values that their source did not send because they did not change.
//!
//! The first half of such an update takes the row away under its old key, the second brings it under its new one. What it leaves out
//! stands in the row under the old key only, so that it has to be taken from there before that goes.

use std::fmt;

use watchkeeper_core::{Change, Error, Operation};

/// The halves of the key update that these changes begin with, if they do.
pub(super) fn halves(changes: &[Change]) -> Option<(&Change, &Change)> {
    let [first, second, ..] = changes else { return None };
    let row = |change: &Change| change.batch().rows()[change.row() as usize].half;
    let follows = first.row().checked_add(1) == Some(second.row());
    let is_pair = first.operation() == Operation::Delete && row(first) == 0 && row(second) == 1;
    (follows && is_pair && first.namespace() == second.namespace()).then_some((first, second))
}

/// By which an error is known as the fault of a change, not of the server.
#[derive(Debug)]
struct Incomplete;

impl fmt::Display for Incomplete {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("values that did not change were not sent")
    }
}

impl std::error::Error for Incomplete {}

/// The error of a change that leaves out what did not change, where there is no row to take it from.
pub(super) fn incomplete() -> Error {
    Error::config(
        "this change leaves out large values that did not change, and the target has no row to take them from",
    )
    .remedy("let the source tell all of them (ALTER TABLE … REPLICA IDENTITY FULL), or begin with a snapshot of it")
    .caused_by(Incomplete)
}

/// The error of an update of a key that leaves values out, in a sink that may write its halves at different times.
pub(super) fn incomplete_key_update() -> Error {
    Error::config("this update of a key leaves out large values that did not change, which this sink cannot take over")
        .remedy("let the source tell all of them (ALTER TABLE … REPLICA IDENTITY FULL), or write beside the checkpoint (mode rows or mirror)")
        .caused_by(Incomplete)
}

/// Whether an error is one of these.
pub(super) fn is_incomplete(error: &Error) -> bool {
    std::error::Error::source(error).is_some_and(|cause| cause.is::<Incomplete>())
}
