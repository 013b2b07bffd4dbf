//! `[group]` and `[instance]`.

use watchkeeper::core::{Options, Origin};
use watchkeeper::{Error, FastTakeover, InstanceSettings, LeaseSettings, Result};

use super::system::System;

/// What instances of one group share, and what this one is.
#[derive(Debug, Clone)]
pub(crate) struct Group {
    pub(crate) settings: InstanceSettings,
    /// Leases, checkpoints and records, unless the next two say otherwise.
    pub(crate) store: System,
    pub(crate) leases: Option<System>,
    pub(crate) records: Option<System>,
    /// Where peers are answered; nowhere without it.
    pub(crate) peers: Option<watchkeeper_peers::Settings>,
    /// Where it is written where peers are answered.
    pub(crate) peers_origin: Origin,
    /// Where the length of leases is written.
    pub(crate) lease_origin: Origin,
}

impl Group {
    /// The systems that keep leases, checkpoints and records.
    pub(crate) fn stores(&self) -> impl Iterator<Item = &System> {
        [Some(&self.store), self.leases.as_ref(), self.records.as_ref()].into_iter().flatten()
    }
}

/// Reads the group; `None` when something that it cannot be without was reported instead.
pub(super) fn read(root: &mut Options) -> Result<Option<Group>> {
    let mut group = root.table("group")?.ok_or_else(|| {
        let error = root.wrong("group", "this table is missing");
        error.remedy("write [group] with name = \"shop\" and store = \"sqlite:state.db\"")
    })?;
    let instance = root.table("instance")?;
    let mut instance = instance.unwrap_or_else(|| Options::new("instance", root.origin().clone()));
    let name = group.required("name", "\"shop\"");
    let name = group.reported(name)?;
    let instance_name = instance.text("name")?.unwrap_or_else(own_name);
    let mut settings = InstanceSettings::new(name.as_deref().unwrap_or("shop"), &instance_name);
    let names = if instance_name.is_empty() { instance.origin_of("name") } else { group.origin_of("name") };
    let named = settings.validate().map_err(|error| error.at(names));
    if group.reported(named)?.is_none() {
        settings = InstanceSettings::new("shop", "shop-1");
    }
    settings.lease = lease(&mut group)?;
    let lease_origin = group.origin_of("lease").clone();
    take_rest(&mut group, &mut settings)?;
    let store = System::take(&mut group, "store").and_then(|store| {
        let missing = || group.missing("store", "\"sqlite:state.db\"");
        store.ok_or_else(missing)
    });
    let store = group.reported(store)?;
    let [leases, records] = ["leases", "records"].map(|name| {
        let taken = System::take(&mut group, name);
        group.reported(taken)
    });
    let (leases, records) = (leases?.flatten(), records?.flatten());
    let peers = peers(&mut instance);
    let peers = instance.reported(peers)?.flatten();
    let peers_origin = instance.origin_of("listen").clone();
    group.finish()?;
    instance.finish()?;
    if let Some(collector) = group.collector() {
        for system in [&store, &leases, &records].into_iter().flatten() {
            system.validated(collector, |backend, options| backend.validate_store(options));
        }
    }
    let read = |store| Group { settings, store, leases, records, peers, peers_origin, lease_origin };
    Ok(name.and(store).map(read))
}

fn lease(group: &mut Options) -> Result<LeaseSettings> {
    let usual = LeaseSettings::default();
    let is_written = group.peek("lease").is_some();
    let length = group.duration("lease")?;
    let mut lease = length.map_or(usual, LeaseSettings::new);
    let mut origin = group.origin_of("lease").clone();
    if let Some(renew_every) = group.duration("renew_every")? {
        origin = group.origin_of("renew_every").clone();
        lease.renew_every = renew_every;
        // Whoever renews more often than usual has less time for each call.
        lease.call_timeout = lease.call_timeout.min(renew_every * 3 / 4);
        lease.retry_every = lease.retry_every.min(renew_every / 4);
    }
    // A length that could not be read was reported, and nothing can be said of how the two fit together.
    if is_written && length.is_none() {
        return Ok(usual);
    }
    let fits = lease.validate().map_err(|error| error.at(origin));
    Ok(group.reported(fits)?.map_or(usual, |()| lease))
}

/// Changes a setting. One that does not fit the others is reported, and they stay as they were.
fn change(
    group: &Options,
    name: &str,
    settings: &mut InstanceSettings,
    change: impl FnOnce(&mut InstanceSettings),
) -> Result<()> {
    let mut changed = settings.clone();
    change(&mut changed);
    let fits = changed.validate().map_err(|error| error.at(group.origin_of(name)));
    if group.reported(fits)?.is_some() {
        *settings = changed;
    }
    Ok(())
}

/// Under which of its two names a setting was written.
fn either<'a>(group: &mut Options, name: &'a str, alias: &'a str) -> Result<&'a str> {
    if group.peek(alias).is_none() {
        return Ok(name);
    }
    if group.peek(name).is_some() {
        let error = group.wrong(alias, format!("this is another name of {name:?}, which is there too"));
        group.take(name);
        group.report(error.remedy("write one of the two"))?;
    }
    Ok(alias)
}

fn take_rest(group: &mut Options, settings: &mut InstanceSettings) -> Result<()> {
    let takeovers =
        [("where_safe", FastTakeover::WhereSafe), ("fast", FastTakeover::Always), ("lease", FastTakeover::Never)];
    settings.takeover = group.choice("takeover", &takeovers)?.unwrap_or_default();
    let max_key = either(group, "max_instances", "max_listeners")?;
    let max_instances = group.size(max_key)?;
    change(group, max_key, settings, |settings| settings.max_listeners = max_instances)?;
    if let Some(retry_floor) = group.duration("retry_floor")? {
        change(group, "retry_floor", settings, |settings| settings.retry_floor = retry_floor)?;
    }
    settings.shutdown_grace = group.duration("shutdown_grace")?.unwrap_or(settings.shutdown_grace);
    settings.bar = group.duration("bar")?.unwrap_or(settings.bar);
    let heartbeat_key = either(group, "heartbeat_every", "health_check_interval")?;
    let unhealthy_key = either(group, "unhealthy_after", "failover_threshold")?;
    let (heartbeat_every, unhealthy_after) = (group.duration(heartbeat_key)?, group.duration(unhealthy_key)?);
    // Of two that do not fit together, the one that was written.
    let last = if unhealthy_after.is_some() { unhealthy_key } else { heartbeat_key };
    change(group, last, settings, |settings| {
        settings.heartbeat_every = heartbeat_every.unwrap_or(settings.heartbeat_every);
        settings.unhealthy_after = unhealthy_after.unwrap_or(settings.unhealthy_after);
    })
}

/// `listen` and `advertise`: by default peers on this machine are answered.
fn peers(instance: &mut Options) -> Result<Option<watchkeeper_peers::Settings>> {
    let mut peers = watchkeeper_peers::Settings { publish: instance.text("advertise")?, ..Default::default() };
    match instance.text("listen")?.as_deref() {
        None => {}
        Some("off") => return Ok(None),
        Some(address) => {
            peers.listen = address.parse().map_err(|_| {
                let error = instance.wrong("listen", format!("{address:?} is no address"));
                error.remedy("write an address and a port, such as \"0.0.0.0:7400\", or \"off\"")
            })?;
        }
    }
    let origin = instance.origin_of(if peers.publish.is_some() { "advertise" } else { "listen" });
    let validated = peers.validate().map_err(|error| match error.advice() {
        Some(advice) if peers.publish.is_none() => {
            let remedy = format!("{advice}: advertise = \"shop-1.internal:0\"");
            Error::config(error.message()).remedy(remedy).at(origin)
        }
        _ => error.at(origin),
    });
    validated.map(|()| Some(peers))
}

/// The name of this machine or pod, and the number of this process, so that two on one machine are told apart.
fn own_name() -> String {
    format!("{}-{}", rustix::system::uname().nodename().to_string_lossy(), std::process::id())
}
