//! The instances: started, killed, paused, shut down and started again.

use std::sync::Arc;
use std::time::Duration;

use watchkeeper_core::memory::{Checkpoints, Leases, Log, RecordStore};
use watchkeeper_core::{CheckpointStore, Clock, Entropy, Error, LeaseKey, Result, Sink};
use watchkeeper_engine::hooks::Hooks;
use watchkeeper_engine::instance::{Running, Stores};
use watchkeeper_engine::listener::{ListenerState, StreamSlot};
use watchkeeper_engine::seams::Seams;
use watchkeeper_engine::stream::{SinkSpec, StreamSpec};
use watchkeeper_testkit::World;
use watchkeeper_testkit::world::Node;

use crate::book::Book;
use crate::feed::FarLog;
use crate::ground_truth::{GroundTruth, sink_name};
use crate::injected_outcome::InjectedOutcomes;
use crate::net::Net;
use crate::peers::PeerDirectory;
use crate::plan::{Plan, instance_settings};
use crate::stores::{FarCheckpoints, FarLeases, FarRecords};
use crate::target::{FarSink, FarTransactional, Kind, SimSinkEnv, Target};

/// All servers, and everything that instances are made of.
#[derive(Debug)]
pub struct SimCluster {
    /// The world.
    pub world: World,
    /// The history.
    pub book: Book,
    /// What is so.
    pub truth: GroundTruth,
    /// The network.
    pub net: Net,
    /// Where processes watch each other.
    pub directory: PeerDirectory,
    /// How handlers feel.
    pub outcomes: InjectedOutcomes,
    /// The lease server.
    pub leases: Leases,
    /// The checkpoint server.
    pub checkpoints: Checkpoints,
    /// The checkpoint server as instances reach it; flawed for some mutants.
    pub front: Arc<dyn CheckpointStore>,
    /// The record server.
    pub notes: RecordStore,
    /// The servers of each stream.
    pub streams: Vec<StreamServers>,
    /// What the seed stands for.
    pub plan: Plan,
    /// The engine's test hooks.
    pub hooks: Hooks,
    /// Seeds for the instances.
    pub entropy: Arc<Entropy>,
}

/// The servers of one stream.
#[derive(Debug, Clone)]
pub struct StreamServers {
    /// What its lease and checkpoint are kept under.
    pub key: LeaseKey,
    /// Where its changes come from.
    pub log: Log,
    /// Where they go; the one of a transactional sink is not used.
    pub targets: Vec<Target>,
}

/// One instance, alive or dead.
#[derive(Debug)]
pub struct SimInstance {
    number: usize,
    start: u64,
    node: Node,
    address: String,
    running: Option<Running>,
    posts: Vec<Arc<StreamSlot>>,
}

impl SimCluster {
    /// Starts instance number `number` for the `start`th time.
    pub async fn launch(&self, number: usize, start: u64) -> Result<SimInstance> {
        let name = format!("instance-{number}");
        let address = format!("{name}:{start}");
        let node = self.world.node(&address);
        let (offset, rate) = self.plan.clocks[number];
        let clock = node.clock(offset, rate);
        let seams = Seams {
            clock: Arc::clone(&clock),
            spawn: node.spawner(),
            peers: Arc::new(self.directory.peers(&address)),
            entropy: Arc::new(Entropy::seeded(self.entropy.next())),
        };
        let mut settings = instance_settings(&name);
        settings.hooks = self.hooks;
        let acting_time = settings.lease.ttl - settings.lease.margin;
        let stores = self.stores(number, &clock, acting_time);
        let streams = self.specs(number, &clock, &stores);
        self.book.event(format_args!("launch {address}"));
        let running = Running::start(seams, stores, settings, streams).await?;
        let posts = running.posts().to_vec();
        Ok(SimInstance { number, start, node, address, running: Some(running), posts })
    }

    fn stores(&self, number: usize, clock: &Arc<dyn Clock>, acting_time: Duration) -> Stores {
        let (lines, truth, book) = (self.net.lines(number), self.truth.clone(), self.book.clone());
        let leases = FarLeases {
            server: self.leases.clone(),
            lines: lines.clone(),
            clock: Arc::clone(clock),
            truth: truth.clone(),
            book: book.clone(),
            acting_time,
        };
        let checkpoints = FarCheckpoints { server: Arc::clone(&self.front), lines: lines.clone(), truth, book };
        let records = FarRecords { server: self.notes.clone(), lines };
        Stores { leases: Arc::new(leases), checkpoints: Arc::new(checkpoints), records: Arc::new(records) }
    }

    fn specs(&self, number: usize, clock: &Arc<dyn Clock>, stores: &Stores) -> Vec<StreamSpec> {
        let env = SimSinkEnv {
            lines: self.net.lines(number),
            clock: Arc::clone(clock),
            truth: self.truth.clone(),
            book: self.book.clone(),
            outcomes: self.outcomes.clone(),
        };
        let spec = |(at, plan): (usize, &crate::plan::StreamPlan)| {
            let course = &self.streams[at];
            let sink = |(sink, kind): (usize, &Kind)| {
                let far: Arc<dyn Sink> = match *kind {
                    Kind::Transactional => {
                        Arc::new(FarTransactional { server: self.checkpoints.clone(), sink, env: env.clone() })
                    }
                    kind => Arc::new(FarSink { server: course.targets[sink].clone(), env: env.clone(), kind }),
                };
                SinkSpec { on_reject: plan.on_reject, ..SinkSpec::new(&sink_name(sink), far) }
            };
            let (lines, truth) = (self.net.lines(number), self.truth.clone());
            let source = FarLog { server: course.log.clone(), lines, truth, key: course.key.clone() };
            StreamSpec {
                settings: plan.settings.clone(),
                source: Arc::new(source),
                sinks: plan.kinds.iter().enumerate().map(sink).collect(),
                checkpoints: Some(Arc::clone(&stores.checkpoints)),
            }
        };
        self.plan.streams.iter().enumerate().map(spec).collect()
    }
}

impl SimInstance {
    /// How often this instance had been started before.
    pub fn start(&self) -> u64 {
        self.start
    }

    /// Which instance.
    pub fn number(&self) -> usize {
        self.number
    }

    /// Whether it has any watch.
    pub fn is_on_watch(&self) -> bool {
        let on_watch = |post: &Arc<StreamSlot>| {
            matches!(post.machine().state(), ListenerState::Running | ListenerState::Recovering)
        };
        self.is_alive() && self.posts.iter().any(on_watch)
    }

    /// Whether it runs.
    pub fn is_alive(&self) -> bool {
        self.node.is_alive() && self.running.is_some()
    }

    /// SIGKILL.
    pub fn kill(&mut self, cluster: &SimCluster) {
        cluster.book.event(format_args!("kill {}", self.address));
        cluster.book.count("kills");
        // The kernel tells the peers before anything that the simulation drops can.
        cluster.directory.killed(&self.address);
        self.node.kill();
        self.count(cluster);
        self.running = None;
    }

    /// SIGSTOP.
    pub fn pause(&self, cluster: &SimCluster) {
        cluster.book.event(format_args!("pause {}", self.address));
        cluster.book.count("pauses");
        self.node.pause();
    }

    /// SIGCONT.
    pub fn resume(&self, cluster: &SimCluster) {
        if self.node.is_paused() {
            cluster.book.event(format_args!("resume {}", self.address));
            self.node.resume();
        }
    }

    /// SIGTERM: begins to shut down in order.
    pub fn shut_down(&self, cluster: &SimCluster) {
        cluster.book.event(format_args!("shut down {}", self.address));
        cluster.book.count("shutdowns");
        if let Some(running) = &self.running {
            running.shutdown();
        }
    }

    /// Waits for the end of a shutdown.
    pub async fn join(&mut self, cluster: &SimCluster) -> Result<()> {
        let Some(mut running) = self.running.take() else { return Err(Error::internal("it was not running")) };
        let ended = running.join().await;
        self.count(cluster);
        ended
    }

    /// Takes what is known of its tenures into the counts, at its end.
    pub fn count(&self, cluster: &SimCluster) {
        for post in &self.posts {
            let status = post.status();
            cluster.book.count_many("deadline hits", status.get().deadlines_hit);
        }
    }
}
