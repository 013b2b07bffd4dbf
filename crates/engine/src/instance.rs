//! One process of a group: validates, joins, stands by, and shuts down in order.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use watchkeeper_core::{
    Address, Candidate, CheckpointStore, Cx, Error, ErrorKind, Follower, HeldTenures, InstanceId, Latest, LeaseStore,
    Listening, Moment, Records, Result, Task, TenureId,
};

use crate::connect::{Connecting, StreamEntry};
use crate::group::agent::GroupAgent;
use crate::group::control::{Control, Controls};
use crate::group::journal::Journal;
use crate::group::poison::Poison;
use crate::group::registry::Member;
use crate::group::view::GroupView;
use crate::keeper::Keeper;
use crate::listener::{ListenerState, StreamSlot, StreamStatus};
use crate::seams::Seams;
use crate::settings::InstanceSettings;
use crate::standby::Standby;
use crate::stream::StreamSpec;

/// What a group shares.
#[derive(Debug, Clone)]
pub struct Stores {
    /// Leases.
    pub leases: Arc<dyn LeaseStore>,
    /// Checkpoints of streams that do not bring their own.
    pub checkpoints: Arc<dyn CheckpointStore>,
    /// Registry, control, journal, history.
    pub records: Arc<dyn Records>,
}

impl Stores {
    /// Where the checkpoint of `stream` is kept: with its transactional sink if it brings one, with the group otherwise.
    pub fn checkpoints_of(&self, stream: &StreamSpec) -> Arc<dyn CheckpointStore> {
        Arc::clone(stream.checkpoints.as_ref().unwrap_or(&self.checkpoints))
    }
}

/// What all parts of one instance share.
#[derive(Debug)]
pub struct Instance {
    /// This process.
    pub id: InstanceId,
    /// When this process began.
    pub began: Moment,
    /// Where it answers its peers.
    pub address: Option<Address>,
    /// Time, tasks, peers, randomness.
    pub seams: Seams,
    /// Settings.
    pub settings: InstanceSettings,
    /// The lease store, for acquiring and releasing; the keeper has one of its own.
    pub leases: Arc<dyn LeaseStore>,
    /// The group's records.
    pub records: Arc<dyn Records>,
    /// Renews.
    pub keeper: Keeper,
    /// The tenures that it answers for.
    pub held_tenures: HeldTenures,
    /// What it hears of the others.
    pub view: Arc<GroupView>,
    /// Failovers.
    pub journal: Journal,
    /// Changes that handlers called fatal.
    pub poison: Poison,
    /// What people want.
    pub controls: Controls,
}

impl Instance {
    /// The context of calls that no tenure bounds.
    pub fn cx(&self) -> Cx {
        self.seams.cx().within(self.settings.lease.call_timeout)
    }

    /// This instance as a candidate.
    pub fn candidate(&self, tenure: TenureId) -> Candidate {
        let (name, address) = (self.settings.name.clone(), self.address.clone());
        Candidate { instance: self.id, name, address, tenure }
    }
}

/// A running instance. Dropping it ends it at once, as a crash would; [`shutdown`](Self::shutdown)
/// ends it in order.
#[derive(Debug)]
pub struct Running {
    instance: Arc<Instance>,
    posts: Vec<Arc<StreamSlot>>,
    shutdown: CancellationToken,
    task: Task<Result<()>>,
}

impl Running {
    /// Starts an instance with these streams.
    ///
    /// # Errors
    /// `Config` when settings are wrong, or what listening for peers says. A store that does not answer
    /// is no error: it is tried again.
    pub async fn start(
        seams: Seams,
        stores: Stores,
        settings: InstanceSettings,
        streams: Vec<StreamSpec>,
    ) -> Result<Self> {
        Self::start_with(seams, stores, settings, streams.into_iter().map(StreamEntry::from).collect()).await
    }

    /// Starts an instance with these streams, some of which have yet to be connected. It joins the group first; each stream is
    /// then connected on its own, however long that takes, and runs here from then on.
    ///
    /// # Errors
    /// As [`start`](Self::start). A stream that cannot be connected is no error.
    pub async fn start_with(
        seams: Seams,
        stores: Stores,
        settings: InstanceSettings,
        streams: Vec<StreamEntry>,
    ) -> Result<Self> {
        validate(&stores, &settings, &streams)?;
        if let Some(warning) = platform_warning(std::env::consts::OS) {
            tracing::warn!("{warning}");
        }
        let held_tenures = HeldTenures::default();
        let cx = seams.cx();
        let listening = seams.peers.listen(&cx, held_tenures.clone()).await?;
        let stop_keeper = CancellationToken::new();
        let keeper_leases = stores.leases.separate(&cx).await?;
        let (keeper, keeping) =
            Keeper::start(&seams, keeper_leases, settings.lease, settings.hooks, stop_keeper.clone())?;
        let id = seams.entropy.instance();
        let instance = Arc::new(Instance {
            id,
            began: seams.clock.now(),
            address: listening.address(),
            leases: Arc::clone(&stores.leases),
            records: Arc::clone(&stores.records),
            keeper,
            held_tenures,
            view: Arc::new(GroupView::new(id)),
            journal: Journal::new(Arc::clone(&stores.records), &settings.group),
            poison: Poison::new(Arc::clone(&stores.records), &settings.group),
            controls: Controls::new(Arc::clone(&stores.records), &settings.group),
            settings,
            seams,
        });
        let InstanceParts { posts, connecting, agent } = furnish(&instance, &stores, streams);
        let shutdown = CancellationToken::new();
        let tasks = InstanceTasks {
            instance: Arc::clone(&instance),
            posts: posts.clone(),
            connecting,
            agent,
            listening,
            keeping,
            stop_keeper,
        };
        let task = Task::spawn(&*instance.seams.spawn, "instance", tasks.run(shutdown.clone()));
        Ok(Self { instance, posts, shutdown, task })
    }

    /// This process.
    pub fn id(&self) -> InstanceId {
        self.instance.id
    }

    /// What all its parts share.
    pub fn instance(&self) -> &Arc<Instance> {
        &self.instance
    }

    /// Follows what people see of a stream; `None` when there is no such stream.
    pub fn status(&self, stream: &str) -> Option<Follower<StreamStatus>> {
        self.posts.iter().find(|stream_slot| stream_slot.name() == stream).map(|stream_slot| stream_slot.status())
    }

    /// All its posts.
    pub fn posts(&self) -> &[Arc<StreamSlot>] {
        &self.posts
    }

    /// Begins to shut down in order: drain, commit, close, release. [`join`](Self::join) waits for it.
    pub fn shutdown(&self) {
        self.shutdown.cancel();
    }

    /// What the shutdown left unfinished, by stream.
    pub fn unfinished(&self) -> Vec<(String, String)> {
        let left = |stream_slot: &Arc<StreamSlot>| {
            Some((stream_slot.name().to_owned(), stream_slot.status().get().unfinished.clone()?))
        };
        self.posts.iter().filter_map(left).collect()
    }

    /// Waits until it has ended.
    ///
    /// # Errors
    /// Why it could not join the group.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub async fn join(&mut self) -> Result<()> {
        self.task.join().await?
    }
}

/// What to say when an instance starts on this operating system.
///
/// Only Linux is tested. Elsewhere the clock may stand still in suspend, and a stopped writer of a SQLite file is not killed.
fn platform_warning(os: &str) -> Option<String> {
    (os != "linux").then(|| {
        format!(
            "this is {os}: Watchkeeper runs here for development only; in production it runs on Linux, where its clock \
             counts the time in suspend"
        )
    })
}

fn validate(stores: &Stores, settings: &InstanceSettings, streams: &[StreamEntry]) -> Result<()> {
    settings.validate()?;
    let shortest = stores.leases.profile().shortest;
    if settings.lease.ttl < shortest {
        let cause = format!("the lease is {:?}, but this store takes none below {shortest:?}", settings.lease.ttl);
        return Err(Error::config(cause).remedy("lengthen the lease"));
    }
    for (at, stream) in streams.iter().enumerate() {
        stream.validate()?;
        let name = &stream.settings().name;
        if streams[..at].iter().any(|earlier| earlier.settings().name == *name) {
            return Err(Error::config(format!("two streams are named {name:?}")).remedy("name them apart"));
        }
    }
    Ok(())
}

/// What an instance is made of before it runs.
struct InstanceParts {
    posts: Vec<Arc<StreamSlot>>,
    /// Those of them that have to be connected.
    connecting: Vec<Connecting>,
    agent: GroupAgent,
}

/// The slots of the streams, and the agent that passes them the requests of operators.
fn furnish(instance: &Arc<Instance>, stores: &Stores, streams: Vec<StreamEntry>) -> InstanceParts {
    let mut controls = BTreeMap::new();
    let (mut posts, mut connecting) = (Vec::new(), Vec::new());
    let names: Vec<_> = streams.iter().map(|stream| stream.settings().name.clone()).collect();
    let (news, report_changed) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    for stream in streams {
        let latest = Latest::new(Control::default());
        let (control, settings) = (latest.follow(), stream.settings().clone());
        controls.insert(settings.name.clone(), latest);
        let (clock, report_changed) = (Arc::clone(&instance.seams.clock), Arc::clone(&report_changed));
        let stream_slot = Arc::new(StreamSlot::new(settings, &instance.settings.group, control, clock, report_changed));
        match stream {
            StreamEntry::Connected(spec) => stream_slot.connect(*spec, &stores.checkpoints),
            StreamEntry::Unconnected(connect) => connecting.push(Connecting {
                seams: instance.seams.clone(),
                stream_slot: Arc::clone(&stream_slot),
                connect,
                checkpoints: Arc::clone(&stores.checkpoints),
                news: Arc::clone(&news),
            }),
        }
        posts.push(stream_slot);
    }
    let member = Member {
        address: instance.address.clone(),
        config_hash: config_hash(&instance.settings, &names),
        streams: names,
        ..Member::new(instance.id, &instance.settings.name)
    };
    let agent = GroupAgent {
        seams: instance.seams.clone(),
        settings: instance.settings.clone(),
        records: Arc::clone(&instance.records),
        member,
        view: Arc::clone(&instance.view),
        controls: Arc::new(controls),
        posts: posts.clone(),
        report_changed,
        news,
    };
    InstanceParts { posts, connecting, agent }
}

fn config_hash(settings: &InstanceSettings, names: &[String]) -> String {
    let agreed = if settings.fingerprint.is_empty() { names.join("\n") } else { settings.fingerprint.clone() };
    format!("{:016x}", watchkeeper_core::change::key_hash_v1(agreed.as_bytes()))
}

/// The tasks of an instance, in the order in which they end.
struct InstanceTasks {
    instance: Arc<Instance>,
    posts: Vec<Arc<StreamSlot>>,
    connecting: Vec<Connecting>,
    agent: GroupAgent,
    listening: Box<dyn Listening>,
    keeping: Task<()>,
    stop_keeper: CancellationToken,
}

/// How long to wait before joining the group is tried again.
const JOIN_AGAIN: Duration = Duration::from_millis(500);

impl InstanceTasks {
    async fn run(mut self, shutdown: CancellationToken) -> Result<()> {
        let joined = self.join(&shutdown).await;
        if joined.is_ok() && !shutdown.is_cancelled() {
            self.serve(&shutdown).await;
        }
        let cause = joined.as_ref().err().map_or("shut down", |error| error.message());
        self.posts.iter().for_each(|stream_slot| stream_slot.go(ListenerState::Stopped, None, cause));
        self.stop_keeper.cancel();
        let _ = self.keeping.join().await;
        // The listener closes only now, after every release: a peer must not take a release for a death.
        drop(self.listening);
        let sinks =
            self.posts.iter().filter_map(|stream_slot| stream_slot.connected()).flat_map(|stream| &stream.spec.sinks);
        sinks.for_each(|sink| sink.sink.instance_ended());
        joined
    }

    /// Joins the group, however long its store does not answer.
    async fn join(&self, shutdown: &CancellationToken) -> Result<()> {
        loop {
            match self.agent.join().await {
                Err(error) if error.kind() == ErrorKind::Config => return Err(error),
                Err(error) => tracing::warn!(%error, "joining the group failed; trying again"),
                Ok(()) => return Ok(()),
            }
            let seams = &self.instance.seams;
            let again = seams.clock.now() + seams.entropy.jitter(JOIN_AGAIN);
            tokio::select! {
                biased;
                () = shutdown.cancelled() => return Ok(()),
                () = seams.clock.sleep_until(again) => {}
            }
        }
    }

    async fn serve(&mut self, shutdown: &CancellationToken) {
        let stop_agent = CancellationToken::new();
        let news = Arc::clone(&self.agent.news);
        let agent = self.agent.clone().run(stop_agent.clone());
        let mut agent = Task::spawn(&*self.instance.seams.spawn, "desk", agent);
        for stream_slot in self.posts.iter().filter(|stream_slot| stream_slot.connected().is_some()) {
            stream_slot.go(ListenerState::Connecting, None, "standing by");
        }
        let spawn = Arc::clone(&self.instance.seams.spawn);
        let connecting = self.connecting.drain(..).map(|connecting| Task::spawn(&*spawn, "connect", connecting.run()));
        // Ended with this call: nothing is connected any more once the shutdown has begun.
        let _connecting: Vec<_> = connecting.collect();
        Standby::new(Arc::clone(&self.instance), &self.posts, news, shutdown.clone()).run().await;
        stop_agent.cancel();
        let _ = agent.join().await;
    }
}

#[cfg(test)]
mod tests {
    use super::platform_warning;

    #[test]
    fn every_system_but_linux_is_for_development_only() {
        assert_eq!(platform_warning("linux"), None);
        for os in ["macos", "freebsd", "windows"] {
            let warning = platform_warning(os).expect("a warning");
            assert!(warning.contains(os) && warning.contains("for development only"), "{warning}");
        }
    }
}
