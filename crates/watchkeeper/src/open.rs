//! Stores and sources by their address, for those who write no configuration file.

use std::sync::Arc;
use std::time::Duration;

use watchkeeper_core::{BootClock, Cx, Error, Options, Origin, Purpose, Result, Source, WrittenSetting};
use watchkeeper_engine::instance::Stores;

use crate::registry;

/// How long opening may take. A file that another process writes to may be waited for.
const WITHIN: Duration = Duration::from_secs(30);

/// The context of a call that opens something.
pub fn cx() -> Cx {
    Cx::new(Arc::new(BootClock)).within(WITHIN)
}

/// What a group shares, all in one place: `sqlite:state.db`, a file that is made where it is missing. Give it a
/// file of its own, since an application's long transactions would hold up the renewal of leases.
///
/// # Errors
/// `Config` for an address that no backend here understands or that is no store, and what the backend says.
pub async fn stores(address: &str) -> Result<Stores> {
    let backend = registry::of_url(address)?;
    let offer = backend.store(&cx(), &mut options(address)).await?;
    match (offer.leases, offer.checkpoints, offer.records) {
        (Some(leases), Some(checkpoints), Some(records)) => Ok(Stores { leases, checkpoints, records }),
        _ => Err(Error::config(format!("{} keeps not all that a group shares", backend.name()))
            .remedy("use another system, or open leases, checkpoints and records one by one")),
    }
}

/// A source: `sqlite:shop.db`, the log of an application's tables, made by `watchkeeper sqlite install`. It is read on
/// behalf of a stream of a group: what that one has not acknowledged is kept.
///
/// # Errors
/// `Config` for an address that no backend here understands, and what the backend says.
pub async fn source(address: &str, group: &str, stream: &str) -> Result<Arc<dyn Source>> {
    let purpose = Purpose::new(group.to_owned(), stream.to_owned());
    registry::of_url(address)?.source(&cx(), &purpose, &mut options(address)).await
}

fn options(address: &str) -> Options {
    let origin = Origin::new("this address");
    let mut options = Options::new("", origin.clone());
    options.insert("url", WrittenSetting::text(address, origin));
    options
}
