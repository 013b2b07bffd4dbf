//! Settings, and the relations between them that are checked when they are built.
//!
//! The keeper's tick is bounded by the margin: `LeaseSettings::validate` refuses a margin below TTL/20, so the tick
//! cannot come after the lease has expired. A lease above 6 s is renewed every 2 s, and at most 1 s of it (at least
//! TTL/20) stays unused, because what counts is how much is left when the store falls silent: 15 s have to outlast an
//! election that takes 12 s. `give_up` belongs to the stream, since it depends on the sink.

use std::time::Duration;

use watchkeeper_core::{Error, Limits, Result, StartAt};

use crate::delivery::backoff::Backoff;
use crate::delivery::breaker::BreakerSettings;
use crate::hooks::{Hooks, Mutant};

/// How leases are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeaseSettings {
    /// For how long a lease is granted.
    pub ttl: Duration,
    /// How much of it is left unused, for clocks that run at different speeds and for the tick.
    pub margin: Duration,
    /// How often leases are renewed.
    pub renew_every: Duration,
    /// How soon a failed renewal is tried again.
    pub retry_every: Duration,
    /// How long one call to the lease store may take.
    pub call_timeout: Duration,
    /// How long after its time-out a call counts as stuck.
    pub stall_grace: Duration,
}

impl LeaseSettings {
    /// The longest lease that makes sense.
    const TTL_MAX: Duration = Duration::from_secs(24 * 3_600);

    /// The usual relations for a lease of `ttl`: renewed every third of it. A long one is renewed every two seconds, and little
    /// of it is left unused, since whoever wants a long lease wants to outlast its store: what counts is how much of it is
    /// left when the store falls silent.
    pub fn new(ttl: Duration) -> Self {
        let unused_min = ttl / 20;
        Self {
            ttl,
            margin: (ttl / 8).min(Duration::from_secs(1)).max(unused_min),
            renew_every: (ttl / 3).min(Duration::from_secs(2)),
            retry_every: (ttl / 12).min(Duration::from_millis(500)),
            call_timeout: (ttl / 4).min(Duration::from_millis(1_500)),
            stall_grace: ttl / 2,
        }
    }

    /// The longest time between two looks at the deadline.
    pub fn tick(&self) -> Duration {
        self.ttl / 20
    }

    /// For how long a holder may act, counted from before its request.
    pub(crate) fn acting_time(&self, hooks: Hooks) -> Duration {
        if hooks.breaks(Mutant::NoSelfFencing) {
            return Duration::from_secs(u64::from(u32::MAX));
        }
        self.ttl - self.margin
    }

    /// TTL > deadline of the holder > renewal interval > retry interval.
    pub fn validate(&self) -> Result<()> {
        let rules = [
            (self.ttl >= Duration::from_millis(100), "the lease is shorter than 100 ms: write 100 ms or more".to_owned()),
            (
                self.ttl <= Self::TTL_MAX,
                "the lease is longer than a day, and without proof of a holder's death nobody takes over before it has expired: \
                 write \"1day\" or less".to_owned(),
            ),
            (
                self.margin >= self.tick(),
                "the margin is smaller than a twentieth of the lease, which is how often the deadline is looked at: raise it".to_owned(),
            ),
            (
                self.ttl > self.margin + self.renew_every,
                self.too_rarely(),
            ),
            (
                self.renew_every > self.call_timeout,
                "a renewal may take longer than the interval between renewals: lower the time-out".to_owned(),
            ),
            (
                self.renew_every > self.retry_every,
                "failed renewals are tried again later than the next one is due: lower the retry interval".to_owned(),
            ),
            (!self.retry_every.is_zero(), "the retry interval is zero: set one".to_owned()),
        ];
        first_broken(&rules)
    }

    /// What is said when the lease would end before it is renewed, with the numbers that do not fit.
    fn too_rarely(&self) -> String {
        let Self { ttl, renew_every, margin, .. } = self;
        let (longer, sooner) = (renew_every.saturating_mul(3), Duration::from_millis(ttl.as_millis() as u64 / 3));
        format!(
            "the lease of {ttl:?} is not longer than its renewal interval of {renew_every:?} and its margin of {margin:?} \
             together: lengthen the lease or renew more often, say a lease of {longer:?}, or renewals every {sooner:?}"
        )
    }
}

impl Default for LeaseSettings {
    fn default() -> Self {
        Self::new(Duration::from_secs(5))
    }
}

fn first_broken(rules: &[(bool, impl AsRef<str>)]) -> Result<()> {
    match rules.iter().find(|(holds, _)| !holds) {
        Some((_, sentence)) => {
            let sentence = sentence.as_ref();
            let (cause, remedy) = sentence.split_once(": ").unwrap_or((sentence, "change it"));
            Err(Error::config(cause).remedy(remedy))
        }
        None => Ok(()),
    }
}

/// When a dead holder may be replaced before its lease expires.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum FastTakeover {
    /// Where the peer is on this machine, or no sink is exposed to late writes.
    #[default]
    WhereSafe,
    /// Everywhere: the operator accepts that an exposed sink waits for `settle` only.
    Always,
    /// Nowhere.
    Never,
}

/// Settings of an instance.
#[derive(Debug, Clone)]
pub struct InstanceSettings {
    /// Instances of one group share the work.
    pub group: String,
    /// A label for people, by default of the program the name of the host, `-` and the number of the process.
    pub name: String,
    /// How leases are kept.
    pub lease: LeaseSettings,
    /// The longest time between two looks at free leases; jittered.
    pub retry_floor: Duration,
    /// How often this instance says that it is alive.
    pub heartbeat_every: Duration,
    /// After which silence an instance counts as unhealthy. Takeover follows the lease, not this.
    pub unhealthy_after: Duration,
    /// How many instances may be in the group.
    pub max_listeners: Option<usize>,
    /// How long a graceful shutdown may take.
    pub shutdown_grace: Duration,
    /// How long this instance leaves a stream that failed here to the others, as long as one of them can and does take it.
    pub bar: Duration,
    /// See [`FastTakeover`].
    pub takeover: FastTakeover,
    /// Stands for everything that instances of a group should agree on, so that those who do not are told apart. Made of
    /// the names of the streams when it is empty.
    pub fingerprint: String,
    /// Test hooks; nothing in ordinary builds.
    pub hooks: Hooks,
}

impl InstanceSettings {
    /// The usual settings.
    pub fn new(group: &str, name: &str) -> Self {
        Self {
            group: group.to_owned(),
            name: name.to_owned(),
            lease: LeaseSettings::default(),
            retry_floor: Duration::from_secs(1),
            heartbeat_every: Duration::from_secs(5),
            unhealthy_after: Duration::from_secs(60),
            max_listeners: None,
            shutdown_grace: Duration::from_secs(10),
            bar: Duration::from_secs(60),
            takeover: FastTakeover::WhereSafe,
            fingerprint: String::new(),
            hooks: Hooks::default(),
        }
    }

    /// Checks the relations.
    pub fn validate(&self) -> Result<()> {
        self.lease.validate()?;
        let rules = [
            (!self.group.is_empty(), "the group has no name: give it one"),
            (!self.group.contains('/'), "the group's name contains a slash: leave it out"),
            (!self.name.is_empty(), "the instance has no name: give it one"),
            (
                self.retry_floor <= Duration::from_secs(1),
                "standbys look at free leases less than once a second: lower the retry floor",
            ),
            (!self.retry_floor.is_zero(), "standbys would look at free leases without a pause: raise the retry floor"),
            (
                self.unhealthy_after > self.heartbeat_every,
                "instances count as unhealthy before their next heartbeat is due: raise the threshold",
            ),
            (self.max_listeners != Some(0), "no instance may join the group: let at least 1 in"),
        ];
        first_broken(&rules)
    }
}

/// When checkpoints are committed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CheckpointPolicy {
    /// At the latest after this time.
    pub every: Duration,
    /// And as soon as so many changes are safe.
    pub events: Option<u64>,
}

impl CheckpointPolicy {
    /// After every single change. Changes that become safe together, in one flush, share a commit, so a
    /// crash repeats at most what was in flight.
    pub fn every_event() -> Self {
        Self { events: Some(1), ..Self::default() }
    }
}

impl Default for CheckpointPolicy {
    fn default() -> Self {
        Self { every: Duration::from_secs(1), events: None }
    }
}

/// What to do when history is lost (G4). None of them is silent.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum OnHistoryLost {
    /// Halt the stream until a person decides.
    #[default]
    Halt,
    /// Write a gap to the ledger and to every sink, then go on from here: the oldest change, now, or a
    /// snapshot that repairs the gap.
    GoOn(StartAt),
}

/// How often and how long things are tried again.
#[derive(Debug, Clone, Copy)]
pub struct RetrySettings {
    /// Attempts at one change before it counts as rejected. `None`: as long as its target does not take it, since most often the
    /// target is away and not the change at fault; only panics count, up to [`Self::PANICS_MAX`].
    pub attempts: Option<u32>,
    /// Between attempts at a change or a sink.
    pub backoff: Backoff,
    /// Reopenings of a source within a tenure, reset by the first commit.
    pub recoveries: u32,
    /// Between reopenings: the first soon, since what was cut off can most often be had again at once, and then less and
    /// less soon, so that ten of them outlast an election of servers.
    pub recovery_backoff: Backoff,
    /// After how many instances called one change fatal the stream is halted.
    pub fatal_instances: usize,
}

impl RetrySettings {
    /// How often a handler may panic on one change, and a dead letter be tried in one replay, where no number of attempts is set.
    pub const PANICS_MAX: u32 = 5;

    /// Attempts at one change where each of them counts.
    pub(crate) fn counted_attempts(&self) -> u32 {
        self.attempts.unwrap_or(Self::PANICS_MAX)
    }
}

impl Default for RetrySettings {
    fn default() -> Self {
        Self {
            attempts: None,
            backoff: Backoff { first: Duration::from_millis(100), factor: 2, max: Duration::from_secs(10) },
            recoveries: 10,
            recovery_backoff: Backoff { first: Duration::from_millis(100), factor: 3, max: Duration::from_secs(30) },
            fatal_instances: 2,
        }
    }
}

/// How long calls may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timeouts {
    /// Opening a source or a sink.
    pub open: Duration,
    /// One read, beyond the wait for changes.
    pub read: Duration,
    /// One write or flush.
    pub write: Duration,
    /// One claim or commit.
    pub commit: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            open: Duration::from_secs(30),
            read: Duration::from_secs(30),
            write: Duration::from_secs(30),
            commit: Duration::from_secs(10),
        }
    }
}

/// Settings of a stream.
#[derive(Debug, Clone)]
pub struct StreamSettings {
    /// Its name: what leases, checkpoints and records are kept under.
    pub name: String,
    /// Where to start when there is no checkpoint.
    pub start: StartAt,
    /// How many lanes write beside each other; keys keep their order.
    pub concurrency: usize,
    /// How much is read at once.
    pub limits: Limits,
    /// How many bytes may be in flight between reading and safe point.
    pub window_bytes: usize,
    /// How many pieces of batches may be in flight.
    pub window_pieces: usize,
    /// When checkpoints are committed.
    pub checkpoint: CheckpointPolicy,
    /// What to do when history is lost.
    pub on_history_lost: OnHistoryLost,
    /// Trying again.
    pub retry: RetrySettings,
    /// The circuit breaker in front of each sink.
    pub breaker: BreakerSettings,
    /// After how long behind an open breaker another instance should try, if there is one.
    pub give_up: Duration,
    /// How long calls may take.
    pub timeouts: Timeouts,
    /// How many checkpoints the history keeps.
    pub history: usize,
}

impl StreamSettings {
    /// The usual settings.
    pub fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            start: StartAt::Now,
            concurrency: 1,
            limits: Limits { rows: 1_000, bytes: 4 << 20, wait: Duration::from_secs(1) },
            window_bytes: 32 << 20,
            window_pieces: 64,
            checkpoint: CheckpointPolicy::default(),
            on_history_lost: OnHistoryLost::Halt,
            retry: RetrySettings::default(),
            breaker: BreakerSettings::default(),
            give_up: Duration::from_secs(10),
            timeouts: Timeouts::default(),
            history: 1_000,
        }
    }

    /// Checks the relations.
    pub fn validate(&self) -> Result<()> {
        let rules = [
            (!self.name.is_empty(), "a stream has no name: give it one"),
            (!self.name.contains('/'), "a stream's name contains a slash: leave it out"),
            ((1..=1024).contains(&self.concurrency), "concurrency is not between 1 and 1024: write 1 to 1024"),
            (self.limits.rows > 0 && self.limits.bytes > 0, "nothing may be read at once: raise the limits"),
            (self.limits.bytes < 1 << 30, "a batch may have more than 1 GiB: lower the limit"),
            (
                self.window_pieces > 1,
                "only one piece may be in flight, so reading cannot overlap writing: raise the window",
            ),
            (self.window_bytes >= self.limits.bytes, "the window is smaller than one batch: raise it"),
            (!self.checkpoint.every.is_zero(), "checkpoints are committed without a pause: set an interval"),
            (self.checkpoint.events != Some(0), "checkpoints are committed after zero changes: set at least 1"),
            (self.retry.attempts != Some(0), "a change is never tried: set at least 1 attempt"),
            (self.retry.fatal_instances > 0, "a fatal change halts nothing and nobody: set at least 1"),
        ];
        first_broken(&rules).map_err(|error| {
            let described = Error::config(format!("stream {:?}: {}", self.name, error.message()));
            match error.advice() {
                Some(advice) => described.remedy(advice),
                None => described,
            }
        })
    }
}

#[cfg(test)]
mod tests;
