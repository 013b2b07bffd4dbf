//! Failover from end to end, between real processes: this test program started again, as a listener.
//!
//! Each process writes a line for every change that it is given, and only then asks for more. All append to one
//! file, so its order is the order in which things happened.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use watchkeeper::core::Records;
use watchkeeper::sqlite::Config;
use watchkeeper::{ChangeLogListener, FailoverManager, ObserverError, SqliteCheckpointStore};

use super::servers::{App, Servers};
use super::support::{PATIENCE, Shop, cx, number, on_each_store, settings, until};

on_each_store! {
    a_killed_listener_is_relieved_with_nothing_lost,
    a_listener_that_slept_through_its_lease_commits_nothing,
    a_listener_that_is_asked_to_hands_over_with_every_change_once,
}

const FOLDER: &str = "WATCHKEEPER_TEST_FOLDER";
const SERVERS: &str = "WATCHKEEPER_TEST_GROUND";
const NAME: &str = "WATCHKEEPER_TEST_NAME";
/// The number of the order that is worked on until a file `go` is there.
const PONDERED: &str = "WATCHKEEPER_TEST_PONDERED";

/// What one of the processes wrote.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Line {
    who: String,
    what: String,
    number: u64,
}

impl Line {
    fn parse(line: &str) -> Self {
        let words: Vec<&str> = line.split(' ').collect();
        let number = words[2].parse().expect("the last word is a number");
        Self { who: words[0].to_owned(), what: words[1].to_owned(), number }
    }
}

/// The listener's process. Without the variables, as one of all tests, it has nothing to listen to.
#[test]
fn other_process() {
    let (Some(folder), Ok(servers)) = (std::env::var_os(FOLDER), std::env::var(SERVERS)) else { return };
    let name = std::env::var(NAME).expect("a listener has a name");
    // It ends with the one who started it, at the latest.
    std::thread::spawn(|| {
        std::io::stdin().lines().for_each(drop);
        std::process::exit(0);
    });
    let pondered = std::env::var(PONDERED).ok().and_then(|number| number.parse().ok());
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.expect("a runtime can be made").block_on(listen(
        Path::new(&folder),
        &Servers::heard(servers),
        &name,
        pondered,
    ));
}

async fn listen(folder: &Path, servers: &Servers, name: &str, pondered: Option<u64>) {
    let mut journal = std::fs::File::options().append(true).create(true).open(folder.join("told")).expect("it opens");
    let mut tell = |what: &str, number: u64| {
        // One write per line, so that lines of two processes do not mix.
        journal.write_all(format!("{name} {what} {number}\n").as_bytes()).expect("the disk has room");
    };
    let coordinator = servers.coordinator(settings(name));
    let config = servers.change_log(name).await;
    let listener = ChangeLogListener::new(config).with_coordinator(coordinator).expect("the settings are right");
    loop {
        match listener.next_batch().await {
            Ok(entries) => {
                for entry in &entries {
                    tell("had", number(entry));
                }
                if entries.iter().any(|entry| Some(number(entry)) == pondered) {
                    until("it may go on", async || folder.join("go").exists().then_some(())).await;
                }
            }
            Err(ObserverError::ListenerFailover { checkpoint, .. }) => tell("relieved", checkpoint.unsigned_abs()),
            Err(error) => panic!("{error}"),
        }
    }
}

/// A process, killed at the end of its test, however that ends.
struct Listener(Child);

impl Listener {
    fn start(shop: &Shop, name: &str, pondered: Option<u64>) -> Self {
        let mut command = Command::new(std::env::current_exe().expect("this program has a file"));
        command.args(["--exact", "listener::processes::other_process", "--nocapture"]);
        command.env(FOLDER, shop.path()).env(SERVERS, shop.servers().reported()).env(NAME, name);
        command.stdin(Stdio::piped()).stdout(Stdio::null());
        if let Some(number) = pondered {
            command.env(PONDERED, number.to_string());
        }
        Self(command.spawn().expect("this program can be started again"))
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.0), signal).expect("it is there");
    }

    /// Stops the process wherever it is.
    async fn stop_anywhere(&self) {
        self.signal(Signal::STOP);
        let stat = format!("/proc/{}/stat", self.0.id());
        // The signal is delivered when the process next runs.
        while !std::fs::read_to_string(&stat).expect("it is there").contains(") T ") {
            tokio::task::yield_now().await;
        }
    }

    /// Stops the process; in files outside of any transaction: one that is stopped inside blocks the file for all, which is
    /// another test. A server ends such a transaction.
    async fn stop(&self, shop: &Shop) {
        if matches!(shop.servers(), Servers::Database(_)) {
            return self.stop_anywhere().await;
        }
        let config = Config { busy: Duration::from_millis(200), ..Config::new(shop.state()) };
        let probe = SqliteCheckpointStore::with_config(config).expect("the path can work");
        until("it is stopped outside of a transaction", async || {
            self.stop_anywhere().await;
            if probe.append(&cx(), "probe", "".into(), 1).await.is_ok() {
                return Some(());
            }
            self.signal(Signal::CONT);
            None
        })
        .await;
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn reported(shop: &Shop) -> Vec<Line> {
    let path: PathBuf = shop.path().join("told");
    let text = std::fs::read_to_string(path).unwrap_or_default();
    text.lines().map(Line::parse).collect()
}

fn had(shop: &Shop, who: &str) -> Vec<u64> {
    let lines = reported(shop).into_iter().filter(|line| line.who == who && line.what == "had");
    lines.map(|line| line.number).collect()
}

/// Waits until `who` has had order `number`.
async fn until_had(shop: &Shop, who: &str, number: u64) {
    until(&format!("{who} has had {number}"), async || had(shop, who).contains(&number).then_some(())).await;
}

async fn until_committed(shop: &Shop, changes: u64) {
    until(&format!("{changes} are committed"), async || (shop.committed().await == changes).then_some(())).await;
}

/// Waits until `who` is registered and stands by.
async fn until_standing_by(shop: &Shop, who: &str) {
    let coordinator = shop.coordinator();
    let connecting = watchkeeper::ListenerState::Connecting;
    until(&format!("{who} stands by"), async || {
        (coordinator.get_listener_state(who).await.ok() == Some(connecting)).then_some(())
    })
    .await;
}

/// Asserts that `who` had its orders in order and without a hole; the answer is the first and the last.
fn assert_in_order(shop: &Shop, who: &str) -> (u64, u64) {
    let had = had(shop, who);
    let first = *had.first().expect("it had some");
    let expected: Vec<u64> = (first..).take(had.len()).collect();
    assert_eq!(had, expected, "{who} had them out of order, twice or with a hole");
    (first, *had.last().expect("it had some"))
}

async fn order_slowly(app: &App, numbers: std::ops::RangeInclusive<u64>) {
    for number in numbers {
        app.order(number..=number).await;
    }
}

async fn a_killed_listener_is_relieved_with_nothing_lost(shop: Shop) {
    let app = shop.open().await;
    let mut first = Listener::start(&shop, "a", None);
    order_slowly(&app, 1..=40).await;
    until_had(&shop, "a", 1).await;
    let _second = Listener::start(&shop, "b", None);
    until_standing_by(&shop, "b").await;
    assert_eq!(had(&shop, "b"), Vec::<u64>::new(), "one has the watch at a time");

    order_slowly(&app, 41..=60).await;
    until_had(&shop, "a", 41).await;
    first.0.kill().expect("it is there");
    first.0.wait().expect("it is ours");
    let committed = shop.committed().await;
    order_slowly(&app, 61..=100).await;
    until_committed(&shop, 100).await;

    let (first_of_a, last_of_a) = assert_in_order(&shop, "a");
    let (first_of_b, last_of_b) = assert_in_order(&shop, "b");
    assert_eq!((first_of_a, last_of_b), (1, 100), "nothing was lost at either end");
    assert_eq!(first_of_b, committed + 1, "it goes on where the dead one has committed");
    assert!(first_of_b <= last_of_a + 1, "nor between them");
    assert!(last_of_a < first_of_b + 10, "only what was not committed comes again: {first_of_b} to {last_of_a}");
    let checkpoint = shop.checkpoint().await.expect("a hundred are committed");
    assert_eq!((checkpoint.facts.processed_by.as_str(), checkpoint.facts.failovers), ("b", 1));
}

async fn a_listener_that_slept_through_its_lease_commits_nothing(shop: Shop) {
    let app = shop.open().await;
    app.order(1..=20).await;
    // It has 16 to 20 in its hands when it falls asleep.
    let first = Listener::start(&shop, "a", Some(20));
    until_had(&shop, "a", 20).await;
    let _second = Listener::start(&shop, "b", None);
    until_standing_by(&shop, "b").await;
    until_committed(&shop, 15).await;
    first.stop(&shop).await;

    order_slowly(&app, 21..=50).await;
    until_committed(&shop, 50).await;
    assert_eq!(assert_in_order(&shop, "b"), (16, 50), "it goes on where the sleeper has committed");
    let before = shop.checkpoint().await.expect("fifty are committed");

    // Awake again, it asks for more, and so tries to commit what it had.
    std::fs::write(shop.path().join("go"), "").expect("the disk has room");
    first.signal(Signal::CONT);
    let taken_over = until("the sleeper hears that it was relieved", async || {
        reported(&shop).into_iter().find(|line| line.who == "a" && line.what == "relieved")
    });
    assert_eq!(taken_over.await.number, 50, "it hears what the other one has committed");
    assert_eq!(shop.checkpoint().await, Some(before), "the stale one wrote nothing");
    order_slowly(&app, 51..=60).await;
    until_committed(&shop, 60).await;
    assert_eq!(assert_in_order(&shop, "a"), (1, 20), "it had nothing more");
    assert_eq!(assert_in_order(&shop, "b"), (16, 60));
    let after = shop.checkpoint().await.expect("sixty are committed");
    assert_eq!((after.facts.processed_by.as_str(), after.facts.failovers), ("b", 1), "the watch changed hands once");
}

async fn a_listener_that_is_asked_to_hands_over_with_every_change_once(shop: Shop) {
    let app = shop.open().await;
    let _first = Listener::start(&shop, "a", None);
    order_slowly(&app, 1..=30).await;
    until_had(&shop, "a", 1).await;
    let _second = Listener::start(&shop, "b", None);
    until_standing_by(&shop, "b").await;

    let failover = FailoverManager::new(shop.coordinator());
    let orders = async { order_slowly(&app, 31..=150).await };
    let asked = async {
        until_had(&shop, "a", 31).await;
        failover.trigger_failover("a").await.expect("b could take over")
    };
    let (event, ()) =
        tokio::time::timeout(PATIENCE, async { tokio::join!(asked, orders) }).await.expect("it is soon done");
    assert_eq!((event.failed_listener_id.as_str(), event.failover_target_id.as_str()), ("a", "b"));
    until_had(&shop, "b", 150).await;
    until_committed(&shop, 150).await;

    let (first_of_a, last_of_a) = assert_in_order(&shop, "a");
    let (first_of_b, last_of_b) = assert_in_order(&shop, "b");
    assert_eq!((first_of_a, first_of_b, last_of_b), (1, last_of_a + 1, 150), "every change once");
    let taken_over = reported(&shop).into_iter().find(|line| line.what == "relieved").expect("the first one was told");
    assert_eq!(taken_over.who, "a", "and it alone");
    assert!(taken_over.number >= last_of_a, "all that it had is committed");
    assert!(i64::try_from(taken_over.number).expect("small") >= event.checkpoint);
    let checkpoint = shop.checkpoint().await.expect("all are committed");
    assert_eq!((checkpoint.facts.processed_by.as_str(), checkpoint.facts.failovers), ("b", 1));
}
