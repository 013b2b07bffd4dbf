//! The instances: started, killed, paused, shut down and started again.

use std::sync::Arc;
use std::time::Duration;

use watchkeeper_core::memory::{Checkpoints, Leases, Log, Notes};
use watchkeeper_core::{CheckpointStore, Clock, Entropy, Error, LeaseKey, Result, Sink};
use watchkeeper_engine::hooks::Hooks;
use watchkeeper_engine::instance::{Running, Stores};
use watchkeeper_engine::listener::{ListenerState, Post};
use watchkeeper_engine::seams::Seams;
use watchkeeper_engine::stream::{SinkSpec, StreamSpec};
use watchkeeper_testkit::World;
use watchkeeper_testkit::world::Node;

use crate::book::Book;
use crate::feed::FarLog;
use crate::mood::Moods;
use crate::net::Net;
use crate::peers::Harbour;
use crate::plan::{Plan, instance_settings};
use crate::stores::{FarCheckpoints, FarLeases, FarRecords};
use crate::target::{FarSink, FarTransactional, Kind, Target, Wharf};
use crate::truth::{Truth, sink_name};

/// All servers, and everything that instances are made of.
#[derive(Debug)]
pub struct Sea {
    /// The world.
    pub world: World,
    /// The history.
    pub book: Book,
    /// What is so.
    pub truth: Truth,
    /// The network.
    pub net: Net,
    /// Where processes watch each other.
    pub harbour: Harbour,
    /// How handlers feel.
    pub moods: Moods,
    /// The lease server.
    pub leases: Leases,
    /// The checkpoint server.
    pub checkpoints: Checkpoints,
    /// The checkpoint server as instances reach it; flawed for some mutants.
    pub front: Arc<dyn CheckpointStore>,
    /// The record server.
    pub notes: Notes,
    /// The servers of each stream.
    pub streams: Vec<Course>,
    /// What the seed stands for.
    pub plan: Plan,
    /// The engine's test hooks.
    pub hooks: Hooks,
    /// Seeds for the instances.
    pub entropy: Arc<Entropy>,
}

/// The servers of one stream.
#[derive(Debug, Clone)]
pub struct Course {
    /// What its lease and checkpoint are kept under.
    pub key: LeaseKey,
    /// Where its changes come from.
    pub log: Log,
    /// Where they go; the one of a transactional sink is not used.
    pub targets: Vec<Target>,
}

/// One instance, alive or dead.
#[derive(Debug)]
pub struct Ship {
    number: usize,
    start: u64,
    node: Node,
    address: String,
    running: Option<Running>,
    posts: Vec<Arc<Post>>,
}

impl Sea {
    /// Starts instance number `number` for the `start`th time.
    pub async fn launch(&self, number: usize, start: u64) -> Result<Ship> {
        let name = format!("instance-{number}");
        let address = format!("{name}:{start}");
        let node = self.world.node(&address);
        let (offset, rate) = self.plan.clocks[number];
        let clock = node.clock(offset, rate);
        let seams = Seams {
            clock: Arc::clone(&clock),
            spawn: node.spawner(),
            peers: Arc::new(self.harbour.peers(&address)),
            entropy: Arc::new(Entropy::seeded(self.entropy.next())),
        };
        let mut settings = instance_settings(&name);
        settings.hooks = self.hooks;
        let reign = settings.lease.ttl - settings.lease.margin;
        let stores = self.stores(number, &clock, reign);
        let streams = self.specs(number, &clock, &stores);
        self.book.event(format_args!("launch {address}"));
        let running = Running::start(seams, stores, settings, streams).await?;
        let posts = running.posts().to_vec();
        Ok(Ship { number, start, node, address, running: Some(running), posts })
    }

    fn stores(&self, number: usize, clock: &Arc<dyn Clock>, reign: Duration) -> Stores {
        let (lines, truth, book) = (self.net.lines(number), self.truth.clone(), self.book.clone());
        let leases = FarLeases {
            server: self.leases.clone(),
            lines: lines.clone(),
            clock: Arc::clone(clock),
            truth: truth.clone(),
            book: book.clone(),
            reign,
        };
        let checkpoints = FarCheckpoints { server: Arc::clone(&self.front), lines: lines.clone(), truth, book };
        let records = FarRecords { server: self.notes.clone(), lines };
        Stores { leases: Arc::new(leases), checkpoints: Arc::new(checkpoints), records: Arc::new(records) }
    }

    fn specs(&self, number: usize, clock: &Arc<dyn Clock>, stores: &Stores) -> Vec<StreamSpec> {
        let wharf = Wharf {
            lines: self.net.lines(number),
            clock: Arc::clone(clock),
            truth: self.truth.clone(),
            book: self.book.clone(),
            moods: self.moods.clone(),
        };
        let spec = |(at, plan): (usize, &crate::plan::StreamPlan)| {
            let course = &self.streams[at];
            let sink = |(sink, kind): (usize, &Kind)| {
                let far: Arc<dyn Sink> = match *kind {
                    Kind::Transactional => {
                        Arc::new(FarTransactional { server: self.checkpoints.clone(), sink, wharf: wharf.clone() })
                    }
                    kind => Arc::new(FarSink { server: course.targets[sink].clone(), wharf: wharf.clone(), kind }),
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

impl Ship {
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
        let on_watch =
            |post: &Arc<Post>| matches!(post.machine().state(), ListenerState::Running | ListenerState::Recovering);
        self.is_alive() && self.posts.iter().any(on_watch)
    }

    /// Whether it runs.
    pub fn is_alive(&self) -> bool {
        self.node.is_alive() && self.running.is_some()
    }

    /// SIGKILL.
    pub fn kill(&mut self, sea: &Sea) {
        sea.book.event(format_args!("kill {}", self.address));
        sea.book.count("kills");
        // The kernel tells the peers before anything that the simulation drops can.
        sea.harbour.killed(&self.address);
        self.node.kill();
        self.count(sea);
        self.running = None;
    }

    /// SIGSTOP.
    pub fn pause(&self, sea: &Sea) {
        sea.book.event(format_args!("pause {}", self.address));
        sea.book.count("pauses");
        self.node.pause();
    }

    /// SIGCONT.
    pub fn resume(&self, sea: &Sea) {
        if self.node.is_paused() {
            sea.book.event(format_args!("resume {}", self.address));
            self.node.resume();
        }
    }

    /// SIGTERM: begins to shut down in order.
    pub fn shut_down(&self, sea: &Sea) {
        sea.book.event(format_args!("shut down {}", self.address));
        sea.book.count("shutdowns");
        if let Some(running) = &self.running {
            running.shutdown();
        }
    }

    /// Waits for the end of a shutdown.
    pub async fn join(&mut self, sea: &Sea) -> Result<()> {
        let Some(mut running) = self.running.take() else { return Err(Error::internal("it was not running")) };
        let ended = running.join().await;
        self.count(sea);
        ended
    }

    /// Takes what is known of its tenures into the counts, at its end.
    pub fn count(&self, sea: &Sea) {
        for post in &self.posts {
            let status = post.status();
            sea.book.count_many("deadline hits", status.get().deadlines_hit);
        }
    }
}
