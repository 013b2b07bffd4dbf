//! What a user of the library sees, through the facade only.

#[cfg(feature = "sqlite")]
mod builder;
#[cfg(feature = "sqlite")]
mod examples;
#[cfg(feature = "file")]
mod files;
mod pull;
mod relief;
