//! The launcher itself: servers are ready when it says so, and end with whoever started them.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use watchkeeper_testkit::servers::mongodb::{ReplicaSet, ReplicaSetSettings};
use watchkeeper_testkit::servers::postgres::{Server, Version};

fn runs(pid: u32) -> bool {
    Path::new(&format!("/proc/{pid}/exe")).read_link().is_ok()
}

fn wait_until(what: &str, done: impl Fn() -> bool) {
    let begun = Instant::now();
    while !done() {
        assert!(begun.elapsed() < Duration::from_secs(20), "{what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_killed_node_comes_back_on_its_data_and_nothing_is_left_after_a_drop() {
    let set = ReplicaSet::start(1);
    let (hosts, first) = (set.hosts(), set.pid(0).expect("it runs"));
    assert_eq!(set.kill_primary(), 0);
    assert!(!runs(first), "the killed node is gone");
    set.restart(0);
    assert_eq!((set.primary(), set.hosts()), (0, hosts), "the same node on the same port");
    let second = set.pid(0).expect("it runs again");
    drop(set);
    assert!(!runs(second), "a dropped set has no process any more");
}

#[test]
fn three_nodes_elect_another_primary() {
    let set = ReplicaSet::with(&ReplicaSetSettings {
        nodes: 3,
        election_timeout_ms: Some(1_000),
        ..ReplicaSetSettings::default()
    });
    let first = set.primary();
    set.step_down();
    let second = set.primary();
    assert_ne!(first, second, "the one that stepped down may not come back at once");
    assert_eq!(set.kill_primary(), second);
    assert_ne!(set.primary(), second);
}

#[test]
fn a_postgres_server_of_each_version_comes_back_on_its_data_and_ends_when_dropped() {
    for version in Version::ALL {
        let server = Server::start(version);
        let (port, first) = (server.port(), server.pid().expect("it runs"));
        server.kill();
        assert!(!runs(first), "the killed server is gone");
        server.restart();
        assert_eq!(server.port(), port);
        server.stop();
        let copy = server.restored();
        assert_ne!(copy.port(), port, "a copy is a server of its own");
        server.restart();
        let pids = [&server, &copy].map(|server| server.pid().expect("it runs"));
        drop((server, copy));
        assert!(!pids.into_iter().any(runs), "a dropped server has no process any more");
    }
}

/// Set for the process that the last test starts and kills.
const CHILD: &str = "WATCHKEEPER_TESTKIT_CHILD";

#[test]
fn a_server_ends_with_a_process_that_is_killed() {
    if std::env::var_os(CHILD).is_some() {
        let set = ReplicaSet::start(1);
        println!("pid {}", set.pid(0).expect("it runs"));
        std::thread::park();
    }
    let name = "servers::a_server_ends_with_a_process_that_is_killed";
    let mut child = Command::new(std::env::current_exe().expect("this program has a path"))
        .args(["--exact", name, "--nocapture"])
        .env(CHILD, "1")
        .stdout(Stdio::piped())
        .spawn()
        .expect("this program can be started again");
    let output = BufReader::new(child.stdout.take().expect("its output is a pipe"));
    let reported = |line: String| line.split("pid ").nth(1).and_then(|pid| pid.trim().parse::<u32>().ok());
    let pid = output.lines().map_while(Result::ok).find_map(reported).expect("the child tells its server's number");
    assert!(runs(pid));
    child.kill().expect("a child can be killed");
    child.wait().expect("a killed child ends");
    wait_until("the server outlived its process", || !runs(pid));
}
