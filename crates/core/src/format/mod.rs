//! Output formats, written over [`Payload::walk`](crate::Payload::walk) so that they know no backend.

mod cloudevents;
mod debezium;
mod json;
mod native;

pub use cloudevents::CloudEvents;
pub use debezium::Debezium;
pub use json::JsonWriter;
pub(crate) use json::iso_date;
pub use native::Native;

use crate::change::Change;
use crate::error::Result;

/// Turns a change into bytes.
///
/// The bytes depend on the change alone: a change that is delivered twice looks the same twice.
pub trait Format: Send + Sync + std::fmt::Debug {
    /// The name that settings use.
    fn name(&self) -> &'static str;

    /// Appends `change` to `out`, without a line break.
    ///
    /// # Errors
    /// The body cannot be decoded. A part of the change may have been appended.
    fn write(&self, change: &Change, out: &mut Vec<u8>) -> Result<()>;
}

/// The names of all formats, for messages that list them.
pub const NAMES: [&str; 3] = ["native", "debezium", "cloudevents"];

/// The format of this name.
pub fn named(name: &str) -> Option<Box<dyn Format>> {
    match name {
        "native" => Some(Box::new(Native)),
        "debezium" => Some(Box::new(Debezium)),
        "cloudevents" => Some(Box::new(CloudEvents)),
        _ => None,
    }
}
