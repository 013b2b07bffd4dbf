//! Commands of this backend.

mod setup;

use watchkeeper_core::{Argument, Takes};

pub(crate) use setup::Setup;

/// Where to.
pub(crate) const URL: Argument = Argument {
    name: "url",
    takes: Takes::Required,
    help: "The database: postgres://user@host/database, with PG* variables as libpq has them",
};
