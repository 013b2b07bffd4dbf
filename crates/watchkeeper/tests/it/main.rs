//! What a user of the library sees, through the facade only.

#[cfg(feature = "sqlite")]
mod builder;
mod conformance;
#[cfg(all(feature = "mongodb", feature = "postgres", feature = "sqlite"))]
mod examples;
#[cfg(feature = "file")]
mod files;
#[cfg(feature = "postgres")]
mod held;
#[cfg(all(feature = "postgres", feature = "sqlite"))]
mod listener;
#[cfg(feature = "mongodb")]
mod mongodb;
mod operate;
mod pull;
#[cfg(all(feature = "mongodb", feature = "postgres", feature = "sqlite"))]
mod routes;
mod takeover;
#[cfg(all(feature = "file", feature = "mongodb", feature = "postgres", feature = "sqlite"))]
mod values;
