//! What a user of the library sees, through the facade only.

mod files;
#[cfg(feature = "sqlite")]
mod listener;
mod relief;
