//! Commands of MongoDB: `watchkeeper mongodb setup`, `oplog` and `audit-query`.

mod audit;
mod oplog;
mod setup;

pub(crate) use audit::QueryAudit;
pub(crate) use oplog::Oplog;
pub(crate) use setup::Setup;

use watchkeeper_core::{Argument, Takes};

/// Which servers and which database.
const URL: Argument =
    Argument { name: "url", takes: Takes::Required, help: "mongodb://HOSTS/DATABASE?replicaSet=NAME" };
