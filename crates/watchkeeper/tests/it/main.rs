//! What a user of the library sees, through the facade only.

mod files;
#[cfg(feature = "mongodb")]
mod mongodb;
mod relief;
