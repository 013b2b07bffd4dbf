//! What a seed stands for: the streams, their settings and the faults to come.

use std::time::Duration;

use watchkeeper_core::{Entropy, Grade, Limits, StartAt};
use watchkeeper_engine::delivery::parking::{OnReject, Park};
use watchkeeper_engine::delivery::{Backoff, BreakerSettings};
use watchkeeper_engine::settings::{
    CheckpointPolicy, InstanceSettings, LeaseSettings, RetrySettings, StreamSettings, Timeouts,
};

use crate::target::Kind;

/// The lease of every simulated group.
pub const TTL: Duration = Duration::from_secs(2);

/// For how long faults come.
pub const STORM: Duration = Duration::from_secs(40);

/// How long a healed group may take to come to rest.
pub const CALM: Duration = Duration::from_secs(180);

/// How many instances there are.
pub const INSTANCES: usize = 3;

/// One stream of a plan.
#[derive(Debug, Clone)]
pub struct StreamPlan {
    /// How each of its targets is written to.
    pub kinds: Vec<Kind>,
    /// Its settings.
    pub settings: StreamSettings,
    /// What happens to a rejected change.
    pub on_reject: OnReject,
    /// Changes per second.
    pub rate: u64,
}

/// What a seed stands for.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The streams.
    pub streams: Vec<StreamPlan>,
    /// Whether handlers may reject.
    pub rejects: bool,
    /// Offsets and speeds of the instances' clocks.
    pub clocks: Vec<(Duration, i64)>,
}

impl Plan {
    /// The plan of a seed.
    pub fn of(entropy: &Entropy) -> Self {
        let count = 1 + entropy.below(2);
        let rejects = entropy.below(2) == 0;
        let streams = (0..count).map(|number| stream(entropy, number, rejects)).collect();
        let clock = |_| {
            let offset = Duration::from_secs(entropy.below(100_000));
            let rate = i64::try_from(entropy.below(401)).unwrap_or(0) - 200;
            (offset, rate)
        };
        Self { streams, rejects, clocks: (0..INSTANCES).map(clock).collect() }
    }
}

fn kind(entropy: &Entropy) -> Kind {
    match entropy.below(8) {
        0 | 1 => Kind::Transactional,
        2 => Kind::Direct(Grade::Fenced),
        3 => Kind::Buffered(Grade::Fenced),
        4 => Kind::Direct(Grade::Versioned),
        5 => Kind::Buffered(Grade::Plain),
        _ => Kind::Handlers,
    }
}

fn stream(entropy: &Entropy, number: u64, rejects: bool) -> StreamPlan {
    let mut kinds = vec![kind(entropy)];
    if entropy.below(3) == 0 {
        // A second sink beside it; at most one of them can be transactional.
        let second = kind(entropy);
        kinds.extend((second != Kind::Transactional || kinds[0] != second).then_some(second));
    }
    let mut settings = StreamSettings::new(&format!("stream-{number}"));
    settings.start = StartAt::Oldest;
    settings.concurrency = [1, 2, 4][entropy.below(3) as usize];
    settings.limits = Limits { rows: 1 + entropy.below(20) as usize, bytes: 1 << 16, wait: Duration::from_millis(300) };
    settings.window_pieces = 4 + entropy.below(12) as usize;
    settings.checkpoint = match entropy.below(4) {
        0 => CheckpointPolicy { every: Duration::from_millis(500), events: Some(1) },
        1 => CheckpointPolicy { every: Duration::from_secs(1), events: Some(7) },
        2 => CheckpointPolicy { every: Duration::from_millis(100), events: None },
        _ => CheckpointPolicy::default(),
    };
    settings.timeouts = Timeouts {
        open: Duration::from_secs(3),
        read: Duration::from_secs(3),
        write: Duration::from_millis(250),
        commit: Duration::from_millis(500),
    };
    let quick =
        |first, max| Backoff { first: Duration::from_millis(first), factor: 2, max: Duration::from_millis(max) };
    settings.retry = RetrySettings {
        attempts: Some(60),
        backoff: quick(20, 400),
        recoveries: 10,
        recovery_backoff: quick(50, 1_000),
        fatal_instances: 2,
    };
    settings.breaker = BreakerSettings { open_for: Duration::from_millis(200), ..BreakerSettings::default() };
    settings.give_up = Duration::from_secs(4);
    let on_reject = if rejects { OnReject::DeadLetter { park: Park::Key } } else { OnReject::Stop };
    StreamPlan { kinds, settings, on_reject, rate: 20 + entropy.below(60) }
}

/// The settings of an instance.
pub fn instance_settings(name: &str) -> InstanceSettings {
    let mut settings = InstanceSettings::new("sim", name);
    settings.lease = LeaseSettings::new(TTL);
    settings.retry_floor = Duration::from_millis(500);
    settings.heartbeat_every = Duration::from_secs(1);
    settings.unhealthy_after = Duration::from_secs(5);
    settings.shutdown_grace = Duration::from_secs(3);
    settings.bar = Duration::from_secs(3);
    settings
}
