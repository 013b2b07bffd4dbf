//! What only this system does: several processes on one file, and every way in which a file can refuse.

use std::sync::mpsc;
use std::time::Duration;

use watchkeeper_core::{
    AcquireRequest, Acquired, Candidate, CheckpointStore, Cx, Ending, Entropy, Epoch, ErrorKind, LeaseKey, LeaseStore,
    Records, Released,
};
use watchkeeper_sqlite::{Checkpoints, Client, Config, Leases, RecordStore};

use crate::support::{Folder, assert_error, block_on, column, cx, execute};

pub(crate) fn ask(key: &str, entropy: &Entropy) -> AcquireRequest {
    let (instance, tenure) = (entropy.instance(), entropy.tenure());
    let candidate = Candidate { instance, name: "it".to_owned(), address: None, tenure };
    let ttl = Duration::from_secs(30);
    AcquireRequest { key: LeaseKey::new(key), candidate, ttl, floor: Epoch::ZERO, break_holder: None }
}

/// Asks a hundred times; the epochs that were granted.
async fn a_hundred_attempts(folder: &Folder) -> Vec<u64> {
    let (cx, entropy) = (cx(), Entropy::from_system());
    let leases = Leases::open(&cx, folder.client("leases.db").await).await.expect("the leases can be opened");
    let mut epochs = Vec::new();
    for _ in 0..100 {
        let answer = leases.try_acquire(&cx, &ask("stream", &entropy)).await.expect("the store answers");
        if let Acquired::Granted { grant, .. } = answer {
            assert_eq!(leases.release(&cx, &grant).await.expect("the store answers"), Released::Released);
            epochs.push(grant.epoch.0);
        }
    }
    epochs
}

#[test]
fn four_at_once_on_a_new_file_never_share_an_epoch() {
    let folder = Folder::new();
    let mut epochs: Vec<u64> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(|| block_on(a_hundred_attempts(&folder)))).collect();
        threads.into_iter().flat_map(|thread| thread.join().expect("no attempt fails")).collect()
    });
    let granted = epochs.len();
    epochs.sort_unstable();
    epochs.dedup();
    assert_eq!(epochs.len(), granted, "an epoch was granted twice");
    assert!(granted >= 100, "of 400 attempts only {granted} were granted");
}

#[test]
fn a_lease_of_another_boot_has_expired() {
    let folder = Folder::new();
    block_on(async {
        let (cx, entropy, client) = (cx(), Entropy::from_system(), folder.client("leases.db").await);
        let leases = Leases::open(&cx, client.clone()).await.unwrap();
        let first = leases.try_acquire(&cx, &ask("stream", &entropy)).await.unwrap();
        assert!(matches!(first, Acquired::Granted { .. }), "{first:?}");
        execute(&client, "UPDATE watchkeeper_leases SET boot = 'before the crash'").await.unwrap();
        assert_eq!(leases.holders(&cx, &[LeaseKey::new("stream")]).await.unwrap(), [None]);
        let second = leases.try_acquire(&cx, &ask("stream", &entropy)).await.unwrap();
        let Acquired::Granted { grant, previous } = second else { panic!("still held: {second:?}") };
        assert_eq!(grant.epoch, Epoch(2));
        assert_eq!(previous.map(|previous| previous.ending), Some(Ending::Expired));
    });
}

#[test]
fn a_release_by_the_same_client_wakes_too() {
    let folder = Folder::new();
    block_on(async {
        let (cx, entropy) = (cx().within(Duration::from_secs(10)), Entropy::from_system());
        let leases = Leases::open(&cx, folder.client("leases.db").await).await.unwrap();
        let answer = leases.try_acquire(&cx, &ask("stream", &entropy)).await.unwrap();
        let Acquired::Granted { grant, .. } = answer else { panic!("held: {answer:?}") };
        let mut wakeups = leases.wakeups(&cx).await.unwrap();
        leases.release(&cx, &grant).await.unwrap();
        cx.run(wakeups.next(&cx)).await.expect("the release is noticed");
    });
}

#[test]
fn a_change_of_records_is_hinted_at() {
    let folder = Folder::new();
    block_on(async {
        let cx = cx().within(Duration::from_secs(10));
        let notes = RecordStore::open(&cx, folder.client("leases.db").await).await.unwrap();
        let other = RecordStore::open(&cx, folder.client("leases.db").await).await.unwrap();
        let write = async {
            // The hint is for changes after the call, which may not have begun to look yet: so there are many.
            loop {
                other.append(&cx, "log", "entry".into(), 3).await.unwrap();
            }
        };
        tokio::select! {
            biased;
            hint = notes.changed(&cx) => hint.expect("a change is noticed"),
            () = write => {}
        }
    });
}

/// Holds the write lock of a file until it is told to stop, and answers when it has it.
fn hold(client: &Client) -> (mpsc::Sender<()>, mpsc::Receiver<()>, std::thread::JoinHandle<()>) {
    let (stop, stopped) = mpsc::channel();
    let (have, held) = mpsc::channel();
    let client = client.clone();
    let thread = std::thread::spawn(move || {
        let wait = move |_: &watchkeeper_sqlite::rusqlite::Transaction<'_>| {
            have.send(()).expect("the test waits for it");
            // Also when the test has failed and is gone.
            let _ = stopped.recv();
            Ok(())
        };
        block_on(client.write(&cx(), wait)).expect("an empty transaction is committed");
    });
    (stop, held, thread)
}

async fn ensure_unavailable(folder: &Folder, cx: &Cx, busy: Duration) {
    let blocker = folder.client("leases.db").await;
    let config = Config { busy, ..Config::new(folder.file("leases.db")) };
    let leases = Leases::open(cx, Client::open(cx, config).await.unwrap()).await.unwrap();
    let (stop, held, thread) = hold(&blocker);
    held.recv().expect("the lock is taken");
    let begun = cx.now();
    let brief = cx.within(Duration::from_secs(5));
    let answer = leases.try_acquire(&brief, &ask("stream", &Entropy::from_system())).await;
    assert_error(answer, ErrorKind::Unavailable, "another process has been writing");
    assert!(cx.now().since(begun) < Duration::from_secs(4), "it waited for longer than the time-out");
    stop.send(()).expect("the lock is held until now");
    thread.join().expect("the blocker ends in order");
    let holders = leases.holders(cx, &[LeaseKey::new("stream")]).await.unwrap();
    assert_eq!(holders, [None], "a call that was unavailable changed something");
}

#[test]
fn busy_beyond_the_time_out_is_unavailable_and_changes_nothing() {
    let folder = Folder::new();
    block_on(ensure_unavailable(&folder, &cx(), Duration::from_millis(60)));
}

#[test]
fn a_call_does_not_wait_for_the_lock_beyond_its_deadline() {
    let folder = Folder::new();
    block_on(async {
        let (cx, blocker) = (cx(), folder.client("leases.db").await);
        let leases = Leases::open(&cx, folder.client("leases.db").await).await.unwrap();
        let (stop, held, thread) = hold(&blocker);
        held.recv().expect("the lock is taken");
        let begun = cx.now();
        let brief = cx.within(Duration::from_millis(60));
        let error = leases.try_acquire(&brief, &ask("stream", &Entropy::from_system())).await.unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Unknown), "{error}");
        assert!(cx.now().since(begun) < Duration::from_secs(3), "it waited for longer than its deadline");
        // Readers wait for no writer.
        assert_eq!(leases.holders(&cx, &[LeaseKey::new("stream")]).await.unwrap(), [None]);
        stop.send(()).expect("the lock is held until now");
        thread.join().expect("the blocker ends in order");
    });
}

#[test]
fn files_that_cannot_be_opened_say_why() {
    let folder = Folder::new();
    std::fs::write(folder.file("letter.txt"), "Dear reader, this is no database. ".repeat(40)).unwrap();
    std::fs::create_dir(folder.file("folder.db")).unwrap();
    let cases = [
        (Config::new(folder.file("missing/state.db")), "cannot be opened"),
        (Config::existing(folder.file("missing.db")), "there is no such file"),
        (Config::new(folder.file("folder.db")), "this is a folder"),
        (Config::new(folder.file("letter.txt")), "is not a SQLite database"),
        (Config::new(":memory:"), "in memory"),
        (Config { tick: Duration::ZERO, ..Config::new(folder.file("state.db")) }, "tick"),
    ];
    for (config, cause) in cases {
        assert_error(block_on(Client::open(&cx(), config)), ErrorKind::Config, cause);
    }
    assert!(!folder.file("missing.db").exists(), "a database that has to exist was created");
}

#[test]
fn a_read_only_database_is_denied() {
    let folder = Folder::new();
    block_on(async {
        let client = folder.client("state.db").await;
        execute(&client, "PRAGMA query_only = ON").await.unwrap();
        assert_error(execute(&client, "CREATE TABLE t(x)").await, ErrorKind::Denied, "read-only");
        assert_error(Leases::open(&cx(), client).await, ErrorKind::Denied, "read-only");
    });
}

#[test]
fn a_full_disk_is_unavailable_and_changes_nothing() {
    let folder = Folder::new();
    block_on(async {
        let (cx, client) = (cx(), folder.client("state.db").await);
        let notes = RecordStore::open(&cx, client.clone()).await.unwrap();
        execute(&client, "PRAGMA max_page_count = 16").await.unwrap();
        let answer = notes.put_if(&cx, "large", None, vec![7; 60_000].into()).await;
        assert_error(answer, ErrorKind::Unavailable, "the disk is full");
        assert_eq!(notes.get(&cx, "large").await.unwrap(), None);
        let small = notes.put_if(&cx, "small", None, "fits".into()).await;
        assert!(small.is_ok(), "the client is of no use any more: {small:?}");
    });
}

#[test]
fn a_damaged_file_is_corrupt() {
    let folder = Folder::new();
    let path = folder.file("state.db");
    let connection = watchkeeper_sqlite::rusqlite::Connection::open(&path).unwrap();
    connection.execute_batch("CREATE TABLE t(x); INSERT INTO t VALUES (randomblob(9000))").unwrap();
    connection.close().unwrap();
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[4096..].fill(0x5a);
    std::fs::write(&path, bytes).unwrap();
    block_on(async {
        let client = folder.client("state.db").await;
        let answer = execute(&client, "INSERT INTO t VALUES (1)").await;
        assert_error(answer, ErrorKind::Corrupt, "damaged");
    });
}

#[test]
fn stored_values_that_are_not_ours_are_corrupt() {
    let folder = Folder::new();
    block_on(async {
        let (cx, entropy, client) = (cx(), Entropy::from_system(), folder.client("leases.db").await);
        let leases = Leases::open(&cx, client.clone()).await.unwrap();
        leases.try_acquire(&cx, &ask("stream", &entropy)).await.unwrap();
        execute(&client, "UPDATE watchkeeper_leases SET holder = 'me'").await.unwrap();
        let answer = leases.holders(&cx, &[LeaseKey::new("stream")]).await;
        assert_error(answer, ErrorKind::Corrupt, "not what it should be");
    });
}

#[test]
fn tables_of_another_version_are_refused() {
    let folder = Folder::new();
    block_on(async {
        let (cx, client) = (cx(), folder.client("state.db").await);
        let once = Checkpoints::open(&cx, client.clone()).await.unwrap();
        let again = Checkpoints::open(&cx, client.clone()).await.unwrap();
        assert_eq!(once.identity(&cx).await.unwrap(), again.identity(&cx).await.unwrap());
        execute(&client, "UPDATE watchkeeper_meta SET value = 99 WHERE name = 'schema/checkpoint'").await.unwrap();
        assert_error(Checkpoints::open(&cx, client).await, ErrorKind::Config, "version 99");
    });
}

#[test]
fn work_that_panics_is_rolled_back_and_the_client_goes_on() {
    let folder = Folder::new();
    block_on(async {
        let (cx, client) = (cx(), folder.client("state.db").await);
        execute(&client, "CREATE TABLE t(x TEXT)").await.unwrap();
        let panics = |transaction: &watchkeeper_sqlite::rusqlite::Transaction<'_>| {
            transaction.execute("INSERT INTO t VALUES ('half')", [])?;
            if transaction.changes() == 1 {
                panic!("on purpose");
            }
            Ok(())
        };
        let error = client.write(&cx, panics).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Internal);
        assert!(error.to_string().contains("on purpose"), "{error}");
        assert_eq!(column(&client, "SELECT x FROM t").await, Vec::<String>::new());
    });
}
