//! Real servers for tests, on free loopback ports, in folders of their own.
//!
//! They end with whoever started them: when dropped, and also when the test process is killed, since each is watched by a
//! small shell that waits for the end of a pipe. Their programs are installed by `cargo xtask servers`; a missing one
//! is a panic that says so, never a test that is passed over.

mod cache;
mod guard;
pub mod mongodb;
pub mod postgres;
mod wire;

use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// How long a server may take to be ready. Machines that build and test at once are slow.
const READY: Duration = Duration::from_secs(60);

/// The folder of Node's driver for MongoDB, which the benchmark compares with.
pub const NODE_DRIVER: &str = cache::NODE_DRIVER;

/// The folder of Python's driver for MongoDB, which the benchmark compares with.
pub const PYMONGO: &str = cache::PYMONGO;

/// The folder of Debezium's libraries, which the benchmark compares with.
pub const DEBEZIUM: &str = cache::DEBEZIUM;

/// The folder of Python's driver for PostgreSQL, which the benchmark compares with.
pub const PSYCOPG: &str = cache::PSYCOPG;

/// A program of PostgreSQL's client: the machine's own, or an installed one.
///
/// # Panics
/// When there is none, with the command that installs it.
pub fn postgres_tool(name: &str, command: &str) -> PathBuf {
    cache::postgres_tool(name).unwrap_or_else(|| program(cache::POSTGRESQL_CLIENT, name, command))
}

/// What is installed as `name` in `folder` of the cache: the program of a server, or what a peer needs.
///
/// # Panics
/// When it is not installed, with the command that does it.
pub fn program(folder: &str, name: &str, command: &str) -> PathBuf {
    let program = cache::folder().join(folder).join(name);
    assert!(program.exists(), "{} is missing; run: {command}", program.display());
    program
}

/// A port that was free a moment ago.
fn free_port() -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("there is a free port");
    listener.local_addr().expect("a listener has an address").port()
}

/// Whether someone listens there.
fn listens(port: u16) -> bool {
    TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok()
}

/// Waits until `ready` answers; `what` is named when it takes too long.
fn wait_for<T>(what: &str, mut ready: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(answer) = ready() {
            return answer;
        }
        assert!(begun.elapsed() < READY, "{what} took longer than {READY:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
}
