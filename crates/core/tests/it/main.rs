//! Tests of core itself. What its in-memory references must do is said by the laws, in the testkit.

mod batch;
mod clock;
mod cx;
mod decode;
mod entropy;
mod error;
mod format;
mod formats;
mod ledger;
mod names;
mod payload;
mod support;
mod task;
