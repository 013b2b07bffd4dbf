//! A group as people see it: its streams, who has their watch, how far they are, and who is there.
//!
//! The shape is what `status --json` prints, and so is kept stable: fields are added, none changes its meaning.
//! It holds no address, no URL and no payload (of the store only which file of this machine it is, if it is one), so nothing secret can be in it.

mod health;
mod holder_reports;
mod stream;

use std::collections::BTreeMap;

use futures_util::future::join_all;
use serde::Serialize;
use watchkeeper::engine::group::registry::Listed;
use watchkeeper::{LeaseKey, Result};

pub(crate) use health::Health;
pub(crate) use holder_reports::{causes, in_words, report, silence};
pub(crate) use stream::{Committed, OnInstance, Sink, State, Stream};

use crate::site::Site;
use crate::when::{iso, millis};

/// A group.
#[derive(Debug, Serialize)]
pub(crate) struct Overview {
    /// Its name.
    pub(crate) group: String,
    /// The file that its store is, with its absolute path; none of a store that is no file.
    pub(crate) store_file: Option<String>,
    /// When this was looked at, by the clock of this machine.
    pub(crate) at: String,
    /// How well its streams are: as the worst of them.
    pub(crate) health: Health,
    /// Its streams, as the file names them.
    pub(crate) streams: Vec<Stream>,
    /// Who is there.
    pub(crate) members: Vec<Member>,
    /// What a person should know, a sentence each.
    pub(crate) remarks: Vec<String>,
}

/// An instance of the group.
#[derive(Debug, Serialize)]
pub(crate) struct Member {
    /// Its name.
    pub(crate) name: String,
    /// This start of its process.
    pub(crate) instance: String,
    /// Whether it was heard of recently: it has missed at most one heartbeat.
    pub(crate) healthy: bool,
    /// How long ago it was heard of, by the store's clock.
    pub(crate) silent_millis: u64,
    /// How often it should be heard of, if it publishes that.
    pub(crate) heartbeat_millis: Option<u64>,
    /// The version of its program.
    pub(crate) version: String,
    /// A hash of its settings.
    pub(crate) config_hash: String,
    /// The streams that it has the watch of.
    pub(crate) holds: Vec<String>,
    /// The streams that it could run.
    pub(crate) streams: Vec<String>,
}

/// Looks at the group, or at one stream of it.
///
/// # Errors
/// What the group's stores say when they do not answer. Sources and sinks are not asked.
pub(crate) async fn gather(site: &Site, only: Option<&str>) -> Result<Overview> {
    let wanted: Vec<_> = match only {
        Some(name) => vec![site.stream(name)?],
        None => site.streams.iter().collect(),
    };
    let cx = site.read_context();
    let keys: Vec<LeaseKey> = wanted.iter().map(|stream| site.key(stream)).collect();
    let holders = cx.run(site.stores.leases.holders(&cx, &keys)).await?;
    let mut members = site.members(&cx).await?;
    members.sort_by(|a, b| a.member.name.cmp(&b.member.name));
    let controls = site.controls();
    let mut controls = cx.run(controls.read_all(&cx)).await?;
    let parts = wanted.iter().zip(holders).map(|(described, holder)| {
        let control = controls.remove(&described.settings.name).unwrap_or_default();
        stream::inspect_stream(site, described, holder, control, &members)
    });
    let parts: Vec<_> = parts.collect();
    let streams = join_all(parts).await.into_iter().collect::<Result<Vec<_>>>()?;
    Ok(Overview {
        group: site.settings.group.clone(),
        store_file: site.store_file.as_ref().map(|file| file.display().to_string()),
        at: iso(site.seams.clock.wall_millis()),
        health: streams.iter().map(|stream| stream.health).max().unwrap_or(Health::Healthy),
        remarks: differences(&members),
        members: members.iter().map(|listed| member(listed, &streams)).collect(),
        streams,
    })
}

fn member(listed: &Listed, streams: &[Stream]) -> Member {
    let instance = listed.member.instance.to_string();
    let holds = |stream: &&Stream| stream.watch.as_ref().is_some_and(|watch| watch.instance == instance);
    Member {
        name: listed.member.name.clone(),
        healthy: !listed.is_silent(),
        silent_millis: millis(listed.age),
        heartbeat_millis: listed.member.heartbeat_millis,
        version: listed.member.version.clone(),
        config_hash: listed.member.config_hash.clone(),
        holds: streams.iter().filter(holds).map(|stream| stream.name.clone()).collect(),
        streams: listed.member.streams.clone(),
        instance,
    }
}

/// What the healthy instances do not agree on.
fn differences(members: &[Listed]) -> Vec<String> {
    let by = |what: fn(&Listed) -> &str| {
        let mut groups: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for listed in members.iter().filter(|listed| !listed.is_silent()) {
            groups.entry(what(listed)).or_default().push(&listed.member.name);
        }
        let parties = groups.iter().map(|(value, names)| format!("{value} on {}", names.join(", ")));
        (groups.len() > 1).then(|| parties.collect::<Vec<_>>().join("; "))
    };
    let settings = by(|listed| &listed.member.config_hash);
    let versions = by(|listed| &listed.member.version);
    let remarks = [
        settings.map(|parties| format!("The instances have different settings: {parties}.")),
        versions.map(|parties| format!("The instances run different versions: {parties}.")),
    ];
    remarks.into_iter().flatten().collect()
}

#[cfg(test)]
mod tests;
