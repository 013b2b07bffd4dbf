//! MongoDB: replica sets of one node or of three.

use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard};

use rustix::process::Signal;

use super::guard::{Folder, Program};
use super::wire::{Value, command, document};
use super::{cache, free_port, listens, program, wait_for};
use crate::lock;

const INSTALL: &str = "cargo xtask servers mongodb";

/// The name of every set.
pub const SET: &str = "rs0";

/// A replica set of real `mongod` processes, with fail points enabled.
#[derive(Debug)]
pub struct ReplicaSet {
    // Dropped in this order: processes before their folder.
    nodes: Vec<Mutex<Node>>,
    _folder: Folder,
}

#[derive(Debug)]
struct Node {
    port: u16,
    data: PathBuf,
    set: Option<&'static str>,
    arguments: Vec<String>,
    program: Option<Program>,
}

/// How a set is started.
#[derive(Debug, Clone, Default)]
pub struct ReplicaSetSettings {
    /// How many nodes: 1 or 3.
    pub nodes: usize,
    /// Further arguments of every `mongod`.
    pub arguments: Vec<String>,
    /// After how many milliseconds without a primary an election is called; MongoDB's own default is 10,000.
    pub election_timeout_ms: Option<i32>,
}

/// A single `mongod` that is no member of a replica set: what Watchkeeper cannot work with.
#[derive(Debug)]
pub struct Standalone {
    node: Node,
    _folder: Folder,
}

impl Standalone {
    /// Starts it.
    ///
    /// # Panics
    /// As [`ReplicaSet::start`].
    pub fn start() -> Self {
        let folder = Folder::new("mongodb");
        Self { node: Node::new(folder.path().join("node"), None, &[]), _folder: folder }
    }

    /// Its URL, for this database.
    pub fn url(&self, database: &str) -> String {
        format!("mongodb://127.0.0.1:{}/{database}", self.node.port)
    }
}

impl Node {
    /// Starts it on a new port; another program may take a free port first, so it is tried again.
    fn new(data: PathBuf, set: Option<&'static str>, arguments: &[String]) -> Self {
        std::fs::create_dir_all(&data).expect("a folder can be made");
        let mut node = Self { port: 0, data, set, arguments: arguments.to_vec(), program: None };
        for _ in 0..5 {
            node.port = free_port();
            if node.start() {
                return node;
            }
        }
        panic!("mongod does not start:\n{}", node.log());
    }

    fn log(&self) -> String {
        let log = std::fs::read_to_string(self.data.join("log")).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(5)..].join("\n")
    }

    /// Whether it listens now; not if it ended by itself.
    fn start(&mut self) -> bool {
        let program = program(cache::MONGODB, "mongod", INSTALL);
        let (program, data, port) = (program.display().to_string(), self.data.display().to_string(), self.port);
        let mut line = vec![program, "--dbpath".to_owned(), data, "--port".to_owned(), port.to_string()];
        line.extend(["--bind_ip", "127.0.0.1", "--nounixsocket"].map(str::to_owned));
        line.extend(self.set.into_iter().flat_map(|set| ["--replSet".to_owned(), set.to_owned()]));
        line.extend(["--wiredTigerCacheSizeGB", "0.25"].map(str::to_owned));
        line.extend(["--setParameter", "enableTestCommands=1"].map(str::to_owned));
        // Without it a stopping server keeps its clients waiting for fifteen seconds.
        line.extend(["--setParameter", "shutdownTimeoutMillisForSignaledShutdown=100"].map(str::to_owned));
        if !self.arguments.iter().any(|argument| argument == "--oplogSize") {
            line.extend(["--oplogSize", "64"].map(str::to_owned));
        }
        line.extend(self.arguments.iter().cloned());
        let started = Program::start(&line, &self.data.join("log"));
        let listens = wait_for("mongod", || if started.runs() { listens(port).then_some(true) } else { Some(false) });
        self.program = Some(started);
        listens
    }

    fn hello(&self, question: &str) -> bool {
        let asked = self.program.as_ref().is_some_and(Program::runs);
        asked && command(self.port, [("hello", 1.into())]).is_ok_and(|answer| answer.flag(question))
    }
}

impl ReplicaSet {
    /// A set of `nodes` (1 or 3) with a primary.
    ///
    /// # Panics
    /// When `mongod` is not installed, with the command that does it, or does not start.
    pub fn start(nodes: usize) -> Self {
        Self::with(&ReplicaSetSettings { nodes, ..ReplicaSetSettings::default() })
    }

    /// A set by these settings, with a primary and all its nodes in step.
    ///
    /// # Panics
    /// As [`start`](Self::start).
    pub fn with(settings: &ReplicaSetSettings) -> Self {
        let folder = Folder::new("mongodb");
        let made = |at: usize| Node::new(folder.path().join(format!("node{at}")), Some(SET), &settings.arguments);
        let nodes: Vec<_> = (0..settings.nodes).map(|at| Mutex::new(made(at))).collect();
        let set = Self { nodes, _folder: folder };
        set.initiate(settings);
        set.in_step();
        set
    }

    /// Waits until there is a primary and all other nodes follow it.
    pub fn in_step(&self) {
        self.primary();
        for node in &self.nodes {
            wait_for("joining", || {
                let node = lock(node);
                (node.hello("isWritablePrimary") || node.hello("secondary")).then_some(())
            });
        }
    }

    fn initiate(&self, settings: &ReplicaSetSettings) {
        let ports = self.nodes.iter().map(|node| lock(node).port).enumerate();
        let member = |(at, port): (usize, u16)| {
            let number = i32::try_from(at).expect("a set has few nodes");
            document([("_id", number.into()), ("host", format!("127.0.0.1:{port}").as_str().into())])
        };
        let timeout = settings.election_timeout_ms.unwrap_or(10_000);
        let config = document([
            ("_id", SET.into()),
            ("members", Value::List(ports.map(member).collect())),
            ("settings", document([("electionTimeoutMillis", timeout.into())])),
        ]);
        let answer = command(lock(&self.nodes[0]).port, [("replSetInitiate", config)]);
        answer.and_then(|answer| answer.ok()).expect("a new set can be initiated");
    }

    /// The addresses of all nodes, as `host:port`.
    pub fn hosts(&self) -> Vec<String> {
        self.nodes.iter().map(|node| format!("127.0.0.1:{}", lock(node).port)).collect()
    }

    /// A URL of the set, for this database.
    pub fn url(&self, database: &str) -> String {
        format!("mongodb://{}/{database}?replicaSet={SET}", self.hosts().join(","))
    }

    /// The number of the node that is primary now; waits for an election.
    pub fn primary(&self) -> usize {
        wait_for("an election", || self.nodes.iter().position(|node| lock(node).hello("isWritablePrimary")))
    }

    fn node(&self, node: usize) -> MutexGuard<'_, Node> {
        lock(&self.nodes[node])
    }

    /// The process of a node, if it runs.
    pub fn pid(&self, node: usize) -> Option<u32> {
        self.node(node).program.as_ref().map(Program::pid)
    }

    /// The folder of a node's data, to be copied while the node does not run.
    pub fn data(&self, node: usize) -> PathBuf {
        self.node(node).data.clone()
    }

    /// Kills a node (SIGKILL). Its data stays.
    pub fn kill(&self, node: usize) {
        // Its drop kills it and waits until it is gone.
        self.node(node).program = None;
    }

    /// Kills the primary, and tells which node it was.
    pub fn kill_primary(&self) -> usize {
        let primary = self.primary();
        self.kill(primary);
        primary
    }

    /// Starts a node that was killed, or restarts one in order, on its port and its data.
    pub fn restart(&self, node: usize) {
        let mut node = self.node(node);
        if let Some(program) = node.program.take() {
            program.signal(Signal::TERM);
            wait_for("a shutdown", || (!program.runs()).then_some(()));
        }
        assert!(node.start(), "mongod does not start again:\n{}", node.log());
    }

    /// Stops a node's process where it is (SIGSTOP) until [`go_on`](Self::go_on).
    pub fn freeze(&self, node: usize) {
        self.node(node).program.as_ref().expect("the node runs").signal(Signal::STOP);
    }

    /// Lets a stopped process go on.
    pub fn go_on(&self, node: usize) {
        self.node(node).program.as_ref().expect("the node runs").signal(Signal::CONT);
    }

    /// Makes the primary step down for some seconds, and waits until another one is elected.
    pub fn step_down(&self) {
        let primary = self.primary();
        let port = self.node(primary).port;
        let fields = [("replSetStepDown", 10.into()), ("secondaryCatchUpPeriodSecs", 5.into()), ("force", true.into())];
        // The server closes the connection instead of an answer when it may.
        let _ = command(port, fields);
        self.primary();
    }
}
