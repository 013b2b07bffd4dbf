//! Everything that a group keeps, in one store.

use std::sync::Arc;

use watchkeeper_core::{CheckpointStore, LeaseStore, Records};
use watchkeeper_engine::instance::Stores;

/// A store of leases, checkpoints and records: what a coordinator is made over.
///
/// Whatever implements the three contracts is one. Where they are three systems, make the coordinator over
/// [`Stores`] instead.
pub trait Store: LeaseStore + CheckpointStore + Records {}

impl<T: LeaseStore + CheckpointStore + Records> Store for T {}

/// The three roles of one store.
pub(super) fn roles(store: Arc<dyn Store>) -> Stores {
    let (leases, checkpoints): (Arc<dyn LeaseStore>, Arc<dyn CheckpointStore>) =
        (Arc::<dyn Store>::clone(&store), Arc::<dyn Store>::clone(&store));
    Stores { leases, checkpoints, records: store }
}
