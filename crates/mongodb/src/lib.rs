//! MongoDB.
#![deny(missing_docs)]

mod payload;

pub use payload::{BsonPayload, canonical_key};
