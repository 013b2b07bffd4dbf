//! Output formats, written over [`Payload::walk`](crate::Payload::walk) so that they know no backend.

mod json;
mod native;

pub use json::JsonWriter;
pub use native::Native;

use crate::change::Change;
use crate::error::Result;

/// Turns a change into bytes.
pub trait Format: Send + Sync + std::fmt::Debug {
    /// The name that settings use.
    fn name(&self) -> &'static str;

    /// Appends `change` to `out`.
    fn write(&self, change: &Change, out: &mut Vec<u8>) -> Result<()>;
}
