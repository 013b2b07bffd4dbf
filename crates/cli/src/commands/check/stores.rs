//! Whether the group's stores can work: they answer, and take writes.

use bytes::Bytes;
use watchkeeper::core::{Cx, Finding, PutOutcome, Records, Severity};
use watchkeeper::{Error, Result};

use super::{INSPECT_WITHIN, Part, lease, titled};
use crate::config::{Config, System};

/// What is wrong with the group's stores.
pub(super) async fn inspect(cx: &Cx, config: &Config) -> Vec<Part> {
    let group = &config.group;
    let named = [("store", Some(&group.store)), ("leases", group.leases.as_ref()), ("records", group.records.as_ref())];
    let mut parts = Vec::new();
    for (name, system) in named.into_iter().filter_map(|(name, system)| Some((name, system?))) {
        let cx = cx.within(INSPECT_WITHIN);
        let mut found = system.open(async |backend, options| backend.check_store(&cx, options).await).await;
        let keeps_records = name == "records" || (name == "store" && group.records.is_none());
        // What is known to be wrong already is named better than by the write that it prevents.
        let is_sound = |findings: &Vec<Finding>| findings.iter().all(|finding| finding.severity != Severity::Error);
        if found.as_ref().is_ok_and(is_sound)
            && keeps_records
            && let Err(error) = try_to_write(&cx, config, system).await
        {
            found = Err(error);
        }
        parts.push(Part { file: system.store_file(), ..Part::of(titled(name, system), found) });
    }
    if parts.iter().all(|part| part.failed.is_none()) {
        parts.extend(lease(cx, config).await);
    }
    parts
}

/// Writes a small record to a store that is there already, and takes it back: one that answers may still take no writes, as on a full disk.
async fn try_to_write(cx: &Cx, config: &Config, system: &System) -> Result<()> {
    let name = format!("{}/check", config.group.settings.group);
    let written = system.open(async |backend, options| {
        let records = backend.writable_records(cx, options).await?;
        match records {
            Some(records) => cx.run(write_and_remove(cx, &*records, &name)).await,
            None => Ok(()),
        }
    });
    written.await.map_err(|error| {
        let described =
            Error::new(error.kind(), format!("it takes no writes, so no instance can run: {}", error.message()));
        let described =
            described.remedy(error.advice().unwrap_or("look at the disk and the rights of the store").to_owned());
        if let Some(place) = error.place() { described.at(place) } else { described }
    })
}

async fn write_and_remove(cx: &Cx, records: &dyn Records, name: &str) -> Result<()> {
    let revision = match records.put_if(cx, name, None, Bytes::from_static(b"{}")).await? {
        PutOutcome::Done(revision) => Some(revision),
        // Left behind by a check that was interrupted, or of one that runs now.
        _ => records.get(cx, name).await?.map(|record| record.revision),
    };
    match revision {
        Some(revision) => records.delete_if(cx, name, revision).await.map(drop),
        None => Ok(()),
    }
}
