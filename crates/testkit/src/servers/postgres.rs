//! PostgreSQL: single servers of two versions.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use rustix::process::Signal;

use super::guard::{Folder, Program};
use super::{cache, free_port, program, wait_for};
use crate::lock;

/// The user that owns everything.
pub const SUPERUSER: &str = "postgres";

mod pooler;

pub use pooler::Pooler;

/// Which PostgreSQL.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Version {
    /// 15: what distributions ship.
    V15,
    /// 18: the newest, with failover slots.
    V18,
}

impl Version {
    /// Both, to run a test on each.
    pub const ALL: [Self; 2] = [Self::V15, Self::V18];

    /// The number before the point.
    pub fn major(self) -> u32 {
        match self {
            Self::V15 => 15,
            Self::V18 => 18,
        }
    }

    fn folder(self) -> &'static str {
        match self {
            Self::V15 => cache::POSTGRESQL_15,
            Self::V18 => cache::POSTGRESQL_18,
        }
    }
}

/// How a server is started.
#[derive(Debug, Clone)]
pub struct ServerSettings {
    /// Which version.
    pub version: Version,
    /// Further lines of `postgresql.conf`, such as `wal_level = replica`; later ones win.
    pub config: Vec<String>,
    /// Lines of `pg_hba.conf`, in place of one that trusts everyone who comes over TCP.
    pub hba: Vec<String>,
    /// Files that are put into the data folder, readable by the server alone: certificates and keys.
    pub files: Vec<(String, Vec<u8>)>,
}

impl ServerSettings {
    /// Logical replication on, fast and not durable, no password asked for.
    pub fn new(version: Version) -> Self {
        Self { version, config: Vec::new(), hba: Vec::new(), files: Vec::new() }
    }
}

/// A running server.
#[derive(Debug)]
pub struct Server {
    // Dropped in this order: the process before its folder.
    node: Mutex<Node>,
    version: Version,
    folder: Folder,
}

#[derive(Debug)]
struct Node {
    port: u16,
    binaries: PathBuf,
    data: PathBuf,
    log: PathBuf,
    program: Option<Program>,
}

impl Server {
    /// A server of this version, as [`ServerSettings::new`] says.
    ///
    /// # Panics
    /// When PostgreSQL is not installed, with the command that does it, or does not start.
    pub fn start(version: Version) -> Self {
        Self::with(&ServerSettings::new(version))
    }

    /// A server by these settings.
    ///
    /// # Panics
    /// As [`start`](Self::start).
    pub fn with(settings: &ServerSettings) -> Self {
        let folder = Folder::new("postgres");
        give_away(folder.path());
        let (data, log) = (folder.path().join("data"), folder.path().join("log"));
        let binaries = reachable_binaries(settings.version);
        initialise(&binaries, &data);
        configure(&data, settings);
        let mut node = Node { port: 0, binaries, data, log, program: None };
        node.start_anywhere();
        Self { node: Mutex::new(node), version: settings.version, folder }
    }

    /// A server on a copy of this one's data, as after the restoring of a backup. This one must not be running.
    ///
    /// # Panics
    /// When it runs, or the copy does not start.
    pub fn restored(&self) -> Self {
        self.copied(|_| {})
    }

    /// A standby on a copy of this one's data, which follows this one through its physical slot `standby` as soon as that runs
    /// again, and keeps its failover slots where the version can. This one must not be running.
    ///
    /// # Panics
    /// As [`restored`](Self::restored).
    pub fn standby(&self) -> Self {
        let (port, can_keep_slots) = (self.port(), self.version == Version::V18);
        self.copied(|data| {
            std::fs::write(data.join("standby.signal"), "").expect("the data folder is ours");
            let primary = format!("host=127.0.0.1 port={port} user={SUPERUSER} dbname=postgres");
            let primary = format!("primary_conninfo = '{primary}'");
            let lines = [
                primary.as_str(),
                "primary_slot_name = 'standby'",
                "hot_standby_feedback = on",
                "wal_retrieve_retry_interval = '100ms'",
                "wal_receiver_status_interval = '1s'",
                if can_keep_slots { "sync_replication_slots = on" } else { "" },
            ];
            append(&data.join("postgresql.conf"), &lines.join("\n"));
        })
    }

    fn copied(&self, change: impl FnOnce(&Path)) -> Self {
        let node = self.node();
        assert!(node.program.is_none(), "stop a server before its data is copied");
        let folder = Folder::new("postgres");
        give_away(folder.path());
        let (data, log) = (folder.path().join("data"), folder.path().join("log"));
        done(Command::new("cp").arg("-a").arg(&node.data).arg(&data));
        change(&data);
        give_away(&data);
        let mut copy = Node { port: 0, binaries: node.binaries.clone(), data, log, program: None };
        copy.start_anywhere();
        Self { node: Mutex::new(copy), version: self.version, folder }
    }

    fn node(&self) -> MutexGuard<'_, Node> {
        lock(&self.node)
    }

    /// Which version it is.
    pub fn version(&self) -> Version {
        self.version
    }

    /// Where it listens, on loopback.
    pub fn port(&self) -> u16 {
        self.node().port
    }

    /// A URL of the superuser, for this database.
    pub fn url(&self, database: &str) -> String {
        self.url_of(SUPERUSER, database)
    }

    /// A URL of this user (`name` or `name:password`), for this database.
    pub fn url_of(&self, user: &str, database: &str) -> String {
        format!("postgres://{user}@127.0.0.1:{}/{database}", self.port())
    }

    /// The folder that holds its data folder and its log.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// What it has logged.
    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.node().log).unwrap_or_default()
    }

    /// The process, if it runs.
    pub fn pid(&self) -> Option<u32> {
        self.node().program.as_ref().map(Program::pid)
    }

    /// Kills it (SIGKILL to the postmaster; the others end when they see it gone). Its data stays.
    pub fn kill(&self) {
        self.node().program = None;
    }

    /// Stops it in order: connections are ended, and a checkpoint is written.
    pub fn stop(&self) {
        let mut node = self.node();
        if let Some(program) = node.program.take() {
            program.signal(Signal::INT);
            wait_for("a shutdown", || (!program.runs()).then_some(()));
        }
    }

    /// Starts it again on its port and its data; one that runs is stopped in order first.
    ///
    /// # Panics
    /// When it does not start.
    pub fn restart(&self) {
        self.stop();
        let mut node = self.node();
        // The processes of a killed server hold its shared memory until they have noticed.
        wait_for("a restart", || node.start().then_some(()));
    }

    /// Appends to `postgresql.conf`; to be followed by [`restart`](Self::restart).
    pub fn set(&self, line: &str) {
        let path = self.node().data.join("postgresql.conf");
        append(&path, line);
    }

    /// Stops its postmaster where it is (SIGSTOP) until [`go_on`](Self::go_on): nobody new is let in.
    pub fn freeze(&self) {
        self.node().program.as_ref().expect("the server runs").signal(Signal::STOP);
    }

    /// Lets a stopped postmaster go on.
    pub fn go_on(&self) {
        self.node().program.as_ref().expect("the server runs").signal(Signal::CONT);
    }
}

impl Node {
    /// Starts it on a new port; another program may take a free port first, so it is tried again.
    fn start_anywhere(&mut self) {
        for _ in 0..5 {
            self.port = free_port();
            if self.start() {
                return;
            }
        }
        panic!("postgres does not start:\n{}", std::fs::read_to_string(&self.log).unwrap_or_default());
    }

    /// Whether it lets clients in now; not if it ended by itself.
    fn start(&mut self) -> bool {
        let port = self.port;
        let mut line = unprivileged();
        line.extend([self.binaries.join("postgres").display().to_string(), "-D".to_owned()]);
        line.extend([self.data.display().to_string(), "-p".to_owned(), port.to_string()]);
        let started = Program::start(&line, &self.log);
        let ready = wait_for("postgres", || if started.runs() { admits(port).then_some(true) } else { Some(false) });
        self.program = ready.then_some(started);
        ready
    }
}

/// Whether the server is past its start: before, it answers every client with an error.
fn admits(port: u16) -> bool {
    let ask = || -> std::io::Result<u8> {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
        stream.set_read_timeout(Some(Duration::from_secs(10)))?;
        let parameters = format!("user\0{SUPERUSER}\0database\0postgres\0\0");
        let length = u32::try_from(parameters.len() + 8).unwrap_or(u32::MAX);
        stream.write_all(&length.to_be_bytes())?;
        stream.write_all(&196_608_u32.to_be_bytes())?;
        stream.write_all(parameters.as_bytes())?;
        let mut tag = [0];
        stream.read_exact(&mut tag)?;
        Ok(tag[0])
    };
    // `R` asks for authentication or grants it. `E` is also the answer to one who is not let in by `pg_hba.conf`, but no
    // test bars the superuser.
    ask().is_ok_and(|tag| tag == b'R')
}

/// Words before a command that must not run as root, which PostgreSQL refuses.
fn unprivileged() -> Vec<String> {
    if !rustix::process::geteuid().is_root() {
        return Vec::new();
    }
    ["setpriv", "--reuid", "nobody", "--regid", "nogroup", "--clear-groups"].map(str::to_owned).to_vec()
}

/// Makes a path the property of the user that the server runs as.
fn give_away(path: &Path) {
    if rustix::process::geteuid().is_root() {
        done(Command::new("chown").arg("-R").arg("nobody:nogroup").arg(path));
    }
}

/// The folder of the programs of a version.
fn reachable_binaries(version: Version) -> PathBuf {
    let install = format!("cargo xtask servers postgresql-{}", version.major());
    reachable(version.folder(), "bin/postgres", &install).join("bin")
}

/// The folder that a server is installed in, where the user that it runs as can reach it. Nobody can look into root's home,
/// so that there it is copied out of it, once.
fn reachable(folder: &str, name: &str, install: &str) -> PathBuf {
    let installed = program(folder, name, install);
    let depth = Path::new(name).components().count();
    let home = installed.ancestors().nth(depth).expect("the program lies in this folder").to_owned();
    if !rustix::process::geteuid().is_root() {
        return home;
    }
    let copy = std::env::temp_dir().join(format!("watchkeeper-{folder}"));
    if !copy.join(name).exists() {
        let scratch = copy.with_extension(std::process::id().to_string());
        done(Command::new("cp").arg("-a").arg(&home).arg(&scratch));
        done(Command::new("chmod").args(["-R", "a+rX"]).arg(&scratch));
        // Another one may have been quicker: its copy is as good.
        if std::fs::rename(&scratch, &copy).is_err() {
            let _ = std::fs::remove_dir_all(&scratch);
        }
    }
    copy
}

fn initialise(binaries: &Path, data: &Path) {
    let mut words = unprivileged();
    words.push(binaries.join("initdb").display().to_string());
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]).arg("-D").arg(data);
    done(command.args(["-U", SUPERUSER, "--no-sync", "-E", "UTF8", "--locale=C", "--auth=trust"]));
}

fn configure(data: &Path, settings: &ServerSettings) {
    let fixed = [
        "listen_addresses = '127.0.0.1'",
        "unix_socket_directories = ''",
        "timezone = 'UTC'",
        "wal_level = logical",
        "max_wal_senders = 32",
        "max_replication_slots = 32",
        "max_connections = 300",
        "shared_buffers = 32MB",
        "fsync = off",
    ];
    let lines = fixed.into_iter().map(str::to_owned).chain(settings.config.iter().cloned());
    append(&data.join("postgresql.conf"), &lines.collect::<Vec<_>>().join("\n"));
    if !settings.hba.is_empty() {
        std::fs::write(data.join("pg_hba.conf"), settings.hba.join("\n") + "\n").expect("the data folder is ours");
    }
    for (name, content) in &settings.files {
        std::fs::write(data.join(name), content).expect("the data folder is ours");
        done(Command::new("chmod").arg("600").arg(data.join(name)));
        give_away(&data.join(name));
    }
}

fn append(path: &Path, line: &str) {
    let mut file = std::fs::OpenOptions::new().append(true).open(path).expect("the server's own file is there");
    writeln!(file, "{line}").expect("the server's own file can be written");
}

/// Runs a command to its end.
fn done(command: &mut Command) {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?} does not start: {error}"));
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}
