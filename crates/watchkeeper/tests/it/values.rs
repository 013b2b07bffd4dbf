//! Every type from every source to every target: a value arrives equal, or its change is rejected. It never arrives different.
//!
//! Values are generated from a seed. `WATCHKEEPER_VALUES_SEED` gives another one, `WATCHKEEPER_VALUES_CASES` the number of random
//! values of each type beside its edge values.

mod carry;
mod documents;
mod from_mongodb;
mod from_outbox;
mod from_postgres;
mod from_sqlite;
mod generate;
mod json;
mod types;
