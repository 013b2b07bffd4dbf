//! A process that is stopped inside a write transaction blocks the file.

use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use watchkeeper_core::{
    AcquireRequest, Acquired, Candidate, CheckpointStore, Claim, Entropy, Epoch, ErrorKind, Grant, LeaseKey,
    LeaseStore, Result, Source, StartAt,
};
use watchkeeper_sqlite::{ChangeLog, Checkpoints, Client, Config, Leases, tools};

use crate::support::{Folder, assert_error, block_on, cx, execute};

const FILE: &str = "WATCHKEEPER_TEST_FILE";
const KEY: &str = "WATCHKEEPER_TEST_KEY";

fn grant(key: &str, epoch: u64) -> Grant {
    Grant { key: LeaseKey::new(key), tenure: Entropy::from_system().tenure(), epoch: Epoch(epoch) }
}

/// The key of a lease that lasts longer than its test.
const LASTING: &str = "a lasting stream";

fn ask(key: &str) -> AcquireRequest {
    let entropy = Entropy::from_system();
    let (instance, tenure) = (entropy.instance(), entropy.tenure());
    let candidate = Candidate { instance, name: "other".to_owned(), address: None, tenure };
    let ttl = if key == LASTING { Duration::from_secs(600) } else { Duration::from_millis(100) };
    AcquireRequest { key: LeaseKey::new(key), candidate, ttl, floor: Epoch::ZERO, break_holder: None }
}

async fn leases(file: &Path) -> Leases {
    let config = Config { evict: true, busy: Duration::from_millis(300), ..Config::new(file) };
    Leases::open(&cx(), Client::open(&cx(), config).await.unwrap()).await.unwrap()
}

/// The other process: it claims and acquires, reads the log if there is one, opens a write transaction, says so, and never ends it. Without the variables, as one of
/// all tests, it has nothing to hold.
#[test]
fn other_process() {
    let (Some(file), Ok(key)) = (std::env::var_os(FILE), std::env::var(KEY)) else { return };
    block_on(async {
        let client = Client::open(&cx(), Config::new(file)).await.unwrap();
        Checkpoints::open(&cx(), client.clone()).await.unwrap().claim(&cx(), &grant(&key, 1)).await.unwrap();
        Leases::open(&cx(), client.clone()).await.unwrap().try_acquire(&cx(), &ask(&key)).await.unwrap();
        if let Ok(log) = ChangeLog::open(&cx(), client.clone(), &key).await {
            log.open(&cx(), StartAt::Now).await.unwrap();
        }
        let hold = |_: &watchkeeper_sqlite::rusqlite::Transaction<'_>| {
            println!("\nholding");
            // Ends with the one who started it, at the latest.
            std::io::stdin().lines().for_each(drop);
            Ok(())
        };
        client.write(&cx(), hold).await.unwrap();
    });
}

/// Starts the other process, and stops it inside its transaction.
fn stopped_in_a_transaction(file: &Path, key: &str) -> Other {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "evict::other_process", "--nocapture"]).env(FILE, file).env(KEY, key);
    let mut other = Other(command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap());
    let lines = BufReader::new(other.0.stdout.as_mut().unwrap()).lines();
    assert!(lines.map_while(Result::ok).any(|line| line == "holding"), "it never held the lock");
    kill_process(Pid::from_child(&other.0), Signal::STOP).unwrap();
    let stat = format!("/proc/{}/stat", other.0.id());
    // The signal is delivered when the process next runs.
    while !std::fs::read_to_string(&stat).unwrap().contains(") T ") {
        std::thread::yield_now();
    }
    other
}

async fn checkpoints(file: &Path, evict: bool) -> Checkpoints {
    let config = Config { evict, busy: Duration::from_millis(300), ..Config::new(file) };
    Checkpoints::open(&cx(), Client::open(&cx(), config).await.unwrap()).await.unwrap()
}

/// Killed at the end of its test, however that ends: a stopped process would stay for ever.
struct Other(Child);

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_stopped_writer_is_named() {
    let folder = Folder::new();
    let file = folder.file("state.db");
    let mut other = stopped_in_a_transaction(&file, "stream");
    let named = format!("process {} (", other.0.id());
    let answer = block_on(async { checkpoints(&file, false).await.claim(&cx(), &grant("stream", 2)).await });
    assert_eq!(other.0.try_wait().unwrap(), None, "it was killed without being asked for");
    assert_error(answer, ErrorKind::Unavailable, &named);
}

#[test]
fn a_stopped_writer_that_is_replaced_is_evicted() {
    let folder = Folder::new();
    let file = folder.file("state.db");
    let mut other = stopped_in_a_transaction(&file, "stream");
    let answer = block_on(async { checkpoints(&file, true).await.claim(&cx(), &grant("stream", 2)).await });
    assert_eq!(answer.expect("the file is free again"), Claim::Claimed(None));
    assert_eq!(other.0.wait().unwrap().signal(), Some(Signal::KILL.as_raw()));
}

#[test]
fn a_stopped_writer_of_another_key_is_spared() {
    let folder = Folder::new();
    let file = folder.file("state.db");
    // The one that is replaced is this very process, and not the one that blocks the file.
    let first = block_on(async { checkpoints(&file, true).await.claim(&cx(), &grant("stream", 1)).await });
    assert_eq!(first.expect("the file is new"), Claim::Claimed(None));
    let mut other = stopped_in_a_transaction(&file, "another stream");
    let answer = block_on(async { checkpoints(&file, true).await.claim(&cx(), &grant("stream", 2)).await });
    assert_eq!(other.0.try_wait().unwrap(), None, "a process that nobody replaces was killed");
    assert_error(answer, ErrorKind::Unavailable, "which is stopped");
}

#[test]
fn a_stopped_holder_whose_lease_has_expired_is_evicted() {
    let folder = Folder::new();
    let file = folder.file("state.db");
    let mut other = stopped_in_a_transaction(&file, "stream");
    let answer = block_on(async {
        let leases = leases(&file).await;
        let keys = [LeaseKey::new("stream")];
        // Ends when the lease of 100 ms does: readers wait for no writer.
        while leases.holders(&cx(), &keys).await.unwrap()[0].is_some() {
            std::thread::yield_now();
        }
        leases.try_acquire(&cx(), &ask("stream")).await
    });
    assert!(matches!(answer, Ok(Acquired::Granted { .. })), "{answer:?}");
    assert_eq!(other.0.wait().unwrap().signal(), Some(Signal::KILL.as_raw()));
}

#[test]
fn a_stopped_holder_whose_lease_lasts_is_spared() {
    let folder = Folder::new();
    let file = folder.file("state.db");
    let mut other = stopped_in_a_transaction(&file, LASTING);
    let answer = block_on(async { leases(&file).await.try_acquire(&cx(), &ask(LASTING)).await });
    assert_eq!(other.0.try_wait().unwrap(), None, "a holder in its own right was killed");
    assert_error(answer, ErrorKind::Unavailable, "which is stopped");
}

/// An application's database with a log.
fn shop(folder: &Folder) {
    block_on(async {
        let client = folder.client("app.db").await;
        execute(&client, "CREATE TABLE orders(id INTEGER PRIMARY KEY)").await.unwrap();
        tools::install(&cx(), &client, &["orders"]).await.unwrap();
    });
}

/// Reads the log on behalf of a consumer.
async fn read(file: &Path, consumer: &str) -> Result<()> {
    let config = Config { evict: true, busy: Duration::from_millis(300), ..Config::existing(file) };
    let log = ChangeLog::open(&cx(), Client::open(&cx(), config).await?, consumer).await?;
    log.open(&cx(), StartAt::Now).await.map(drop)
}

#[test]
fn a_stopped_reader_of_a_log_is_evicted_by_the_one_that_replaces_it() {
    let folder = Folder::new();
    shop(&folder);
    let file = folder.file("app.db");
    let mut other = stopped_in_a_transaction(&file, "shop/orders");
    block_on(read(&file, "shop/orders")).expect("the file is free again");
    assert_eq!(other.0.wait().unwrap().signal(), Some(Signal::KILL.as_raw()));
}

#[test]
fn a_stopped_reader_for_another_stream_is_spared() {
    let folder = Folder::new();
    shop(&folder);
    let file = folder.file("app.db");
    block_on(read(&file, "shop/orders")).expect("nobody blocks the file");
    let mut other = stopped_in_a_transaction(&file, "shop/users");
    let answer = block_on(read(&file, "shop/orders"));
    assert_eq!(other.0.try_wait().unwrap(), None, "a process that nobody replaces was killed");
    assert_error(answer, ErrorKind::Unavailable, "which is stopped");
}
