//! What a user of the library sees, through the facade only.

#[cfg(feature = "sqlite")]
mod builder;
mod conformance;
#[cfg(feature = "sqlite")]
mod examples;
#[cfg(feature = "file")]
mod files;
mod pull;
#[cfg(feature = "sqlite")]
mod listener;
mod relief;
