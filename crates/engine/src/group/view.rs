//! What this instance last heard of the others. It may be stale, and only ever hurries or delays.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use watchkeeper_core::{Follower, InstanceId, Latest};

use super::registry::{Listed, Member};
use super::report::StreamReport;

/// The members as last listed.
#[derive(Debug)]
pub struct GroupView {
    me: InstanceId,
    /// Their streams and reports are sorted by the stream's name.
    members: Mutex<Vec<Listed>>,
    place: Latest<bool>,
    /// Those whose other settings were told of.
    reported: Mutex<BTreeSet<InstanceId>>,
}

impl GroupView {
    /// Nobody has been heard of yet.
    pub fn new(me: InstanceId) -> Self {
        Self { me, members: Mutex::default(), place: Latest::new(true), reported: Mutex::default() }
    }

    /// Takes in a new list.
    pub fn update(&self, mut members: Vec<Listed>) {
        // An instance may have a thousand streams, and each of them is searched for at every look.
        for member in members.iter_mut().map(|listed| &mut listed.member) {
            member.streams.sort_unstable();
            member.reports.sort_by(|a, b| a.stream.cmp(&b.stream));
        }
        *self.lock() = members;
    }

    /// The healthy instances that run a stream of `mine` with other settings, each named once.
    pub fn with_other_settings(&self, mine: &Member) -> Vec<String> {
        let shares = |listed: &Listed| mine.streams.iter().any(|stream| runs(listed, stream));
        let differs = |listed: &&Listed| {
            listed.healthy
                && listed.member.instance != self.me
                && shares(listed)
                && listed.member.config_hash != mine.config_hash
        };
        let mut reported = self.reported.lock().unwrap_or_else(PoisonError::into_inner);
        let members = self.lock();
        let news = members.iter().filter(differs).filter(|listed| reported.insert(listed.member.instance));
        news.map(|listed| listed.member.name.clone()).collect()
    }

    /// What the other healthy instances report of `stream`, each with the age of the report.
    pub fn reports_of_others(&self, stream: &str) -> Vec<(StreamReport, Duration)> {
        let members = self.lock();
        let others = members.iter().filter(|listed| listed.healthy && listed.member.instance != self.me);
        others.filter_map(|listed| Some((report_of(listed, stream)?.clone(), listed.age))).collect()
    }

    /// Leaves out an instance that is known to be dead.
    pub fn forget(&self, dead: InstanceId) {
        self.lock().retain(|listed| listed.member.instance != dead);
    }

    /// Says whether this instance has a place in the group; whether that is news.
    pub fn set_place(&self, has_place: bool) -> bool {
        self.place.change_if(|current| std::mem::replace(current, has_place) != has_place)
    }

    /// Whether this instance has a place in the group. Without one it runs nothing.
    pub fn has_place(&self) -> bool {
        *self.place.get()
    }

    /// Follows whether this instance has a place in the group.
    pub fn place(&self) -> Follower<bool> {
        self.place.follow()
    }

    /// Whether another instance could run `stream`, and perhaps do better than this one. One that stays away from it, since it failed
    /// there, could not.
    pub fn has_healthy_peer(&self, stream: &str) -> bool {
        self.any_healthy_peer(|listed| runs(listed, stream) && !stays_away(listed, stream))
    }

    /// Whether another instance of this name is there.
    pub fn has_healthy_named(&self, name: &str) -> bool {
        self.any_healthy_peer(|listed| listed.member.name == name)
    }

    fn any_healthy_peer(&self, wanted: impl Fn(&Listed) -> bool) -> bool {
        self.lock().iter().any(|listed| listed.healthy && listed.member.instance != self.me && wanted(listed))
    }

    /// The healthy instances that can run `stream`, this one perhaps among them.
    pub fn able_to_run(&self, stream: &str) -> Vec<InstanceId> {
        let members = self.lock();
        let able = members.iter().filter(|listed| listed.healthy && runs(listed, stream));
        able.map(|listed| listed.member.instance).collect()
    }

    /// The instances as last listed.
    pub fn instances(&self) -> Vec<InstanceId> {
        self.lock().iter().map(|listed| listed.member.instance).collect()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Listed>> {
        self.members.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether an instance can run `stream`.
fn runs(listed: &Listed, stream: &str) -> bool {
    listed.member.streams.binary_search_by(|known| known.as_str().cmp(stream)).is_ok()
}

/// What an instance reports of `stream`.
fn report_of<'l>(listed: &'l Listed, stream: &str) -> Option<&'l StreamReport> {
    let reports = &listed.member.reports;
    reports.binary_search_by(|report| report.stream.as_str().cmp(stream)).ok().map(|at| &reports[at])
}

/// Whether an instance stays away from `stream` for a while, as it reported and as time has gone on since.
fn stays_away(listed: &Listed, stream: &str) -> bool {
    let left = report_of(listed, stream).and_then(|report| report.trouble.as_ref()?.left_to_others_millis);
    left.is_some_and(|millis| listed.age < Duration::from_millis(millis))
}
