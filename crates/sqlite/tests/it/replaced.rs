//! A file that is removed, or another one in its place, while it is open.

use std::fs::{remove_file, rename};
use std::time::Duration;

use watchkeeper_core::{
    Acquired, ChangeStream, Entropy, ErrorKind, Lease, LeaseStore, Limits, Renewal, Source, StartAt,
};
use watchkeeper_sqlite::{Leases, rusqlite};

use crate::log::{LIMITS, with_table};
use crate::restored::{at_thirty, copy, grow, let_a_millisecond_pass};
use crate::specifics::ask;
use crate::support::{Folder, assert_error, block_on, cx};

const CAUSE: &str = "the file was replaced or removed under this process";

/// Removes a database with all that is beside it.
fn remove(folder: &Folder, name: &str) {
    for end in ["", "-wal", "-shm"] {
        remove_file(folder.file(&format!("{name}{end}"))).unwrap();
    }
}

/// Moves one database to the place of another, with nothing left of the old one.
fn replace(folder: &Folder, from: &str, to: &str) {
    remove(folder, to);
    rename(folder.file(from), folder.file(to)).unwrap();
}

async fn held(folder: &Folder) -> (Leases, [Lease; 1]) {
    let leases = Leases::open(&cx(), folder.client("state.db").await).await.unwrap();
    let ask = ask("stream", &Entropy::from_system());
    let Acquired::Granted { grant, .. } = leases.try_acquire(&cx(), &ask).await.unwrap() else {
        panic!("a free lease is granted")
    };
    (leases, [Lease { grant, ttl: ask.ttl }])
}

#[test]
fn no_lease_is_renewed_in_a_file_that_is_gone_and_the_new_group_is_joined() {
    let folder = Folder::new();
    block_on(async {
        let (leases, mine) = held(&folder).await;
        assert_eq!(leases.renew(&cx(), &mine).await.unwrap(), [Renewal::Held]);
        remove(&folder, "state.db");
        assert_error(leases.renew(&cx(), &mine).await, ErrorKind::Unavailable, CAUSE);
        assert_error(leases.renew(&cx(), &mine).await, ErrorKind::Unavailable, CAUSE);
        assert_error(leases.separate(&cx()).await.map(drop), ErrorKind::Unavailable, CAUSE);
        assert!(leases.wakeups(&cx()).await.is_err());
        assert!(!folder.file("state.db").exists(), "who misses the file must not make another");
        let (others, theirs) = held(&folder).await;
        assert_error(leases.renew(&cx(), &mine).await, ErrorKind::Unavailable, CAUSE);
        assert_eq!(leases.renew(&cx(), &mine).await.unwrap(), [Renewal::Lost]);
        assert_eq!(others.renew(&cx(), &theirs).await.unwrap(), [Renewal::Held]);
        let keys = [theirs[0].grant.key.clone()];
        let seen = leases.holders(&cx(), &keys).await.unwrap();
        assert!(seen[0].is_some(), "both see one holder now");
    });
}

#[test]
fn a_file_that_comes_back_is_the_same_and_an_empty_one_is_filled() {
    let folder = Folder::new();
    block_on(async {
        let (leases, mine) = held(&folder).await;
        rename(folder.file("state.db"), folder.file("away.db")).unwrap();
        assert_error(leases.renew(&cx(), &mine).await, ErrorKind::Unavailable, CAUSE);
        rename(folder.file("away.db"), folder.file("state.db")).unwrap();
        assert_eq!(leases.renew(&cx(), &mine).await.unwrap(), [Renewal::Held]);
        std::fs::write(folder.file("empty.db"), "").unwrap();
        replace(&folder, "empty.db", "state.db");
        assert_error(leases.renew(&cx(), &mine).await, ErrorKind::Unavailable, CAUSE);
        assert_eq!(leases.renew(&cx(), &mine).await.unwrap(), [Renewal::Lost]);
    });
}

#[test]
fn what_cannot_be_used_is_reported_until_it_is_good() {
    let folder = Folder::new();
    block_on(async {
        let (leases, mine) = held(&folder).await;
        std::fs::write(folder.file("text.db"), "this is no database, but long enough to look like one").unwrap();
        replace(&folder, "text.db", "state.db");
        for _ in 0..2 {
            assert_error(leases.renew(&cx(), &mine).await, ErrorKind::Unavailable, "the new one cannot be used");
        }
        remove_file(folder.file("state.db")).unwrap();
        std::fs::write(folder.file("state.db"), "").unwrap();
        assert_error(leases.renew(&cx(), &mine).await, ErrorKind::Unavailable, CAUSE);
        assert_eq!(leases.renew(&cx(), &mine).await.unwrap(), [Renewal::Lost]);
    });
}

/// SQLite finds the write-ahead log by its name, and would play the old one into the new file.
#[test]
fn a_file_beside_the_log_of_the_old_one_is_not_opened() {
    let folder = Folder::new();
    block_on(async {
        let (client, log) = at_thirty(&folder).await;
        let mut stream = log.open(&cx(), StartAt::Now).await.unwrap();
        rename(folder.file("backup.db"), folder.file("app.db")).unwrap();
        for _ in 0..2 {
            let answer = stream.next_batch(&cx(), LIMITS).await.map(drop);
            assert_error(answer, ErrorKind::Unavailable, "app.db-wal is still that of the old one");
        }
        drop(client);
    });
}

/// The first answer from the new file. A reader that looked between the removal of the old one and the arrival of the
/// new one has to be told once more.
async fn once_reopened(stream: &mut Box<dyn ChangeStream>) -> watchkeeper_core::Result<()> {
    match stream.next_batch(&cx(), LIMITS).await.map(drop) {
        Err(error) if error.kind() == ErrorKind::Unavailable => stream.next_batch(&cx(), LIMITS).await.map(drop),
        answer => answer,
    }
}

#[test]
fn a_waiting_reader_is_woken_when_a_backup_takes_the_place_of_its_file() {
    let folder = Folder::new();
    block_on(async {
        let (_client, log) = at_thirty(&folder).await;
        let mut stream = log.open(&cx(), StartAt::Now).await.unwrap();
        let pedigree = log.identity(&cx()).await.unwrap();
        let position = stream.position().unwrap();
        let patient = Limits { wait: Duration::from_secs(60), ..LIMITS };
        let began = std::time::Instant::now();
        let context = cx();
        let (answer, ()) = tokio::join!(stream.next_batch(&context, patient), async {
            replace(&folder, "backup.db", "app.db");
        });
        assert_error(answer.map(drop), ErrorKind::Unavailable, CAUSE);
        assert!(began.elapsed() < patient.wait / 2, "it took {:?}", began.elapsed());
        let cause = "after the newest one, 5";
        assert_error(once_reopened(&mut stream).await, ErrorKind::PositionLost, cause);
        assert_error(log.verify(&cx(), &position, &pedigree).await, ErrorKind::PositionLost, cause);
    });
}

#[test]
fn a_copy_that_goes_on_where_the_file_ended_is_read_on() {
    let folder = Folder::new();
    block_on(async {
        let (_client, log) = at_thirty(&folder).await;
        let mut stream = log.open(&cx(), StartAt::Now).await.unwrap();
        copy(&folder, "app.db", "copy.db");
        let copied = rusqlite::Connection::open(folder.file("copy.db")).unwrap();
        copied.execute_batch("INSERT INTO orders VALUES (31)").unwrap();
        copied.close().unwrap();
        replace(&folder, "copy.db", "app.db");
        assert_error(stream.next_batch(&cx(), LIMITS).await.map(drop), ErrorKind::Unavailable, CAUSE);
        assert_eq!(stream.next_batch(&cx(), LIMITS).await.unwrap().len(), 1);
    });
}

#[test]
fn another_log_in_the_place_of_the_one_that_was_read_is_recognised() {
    let (folder, elsewhere) = (Folder::new(), Folder::new());
    block_on(async {
        let (_client, log) = at_thirty(&folder).await;
        let mut stream = log.open(&cx(), StartAt::Oldest).await.unwrap();
        let other = with_table(&elsewhere, "CREATE TABLE orders(id INTEGER PRIMARY KEY)", "orders").await;
        let_a_millisecond_pass();
        grow(&other, 50).await;
        copy(&elsewhere, "app.db", "copy.db");
        remove(&folder, "app.db");
        rename(elsewhere.file("copy.db"), folder.file("app.db")).unwrap();
        assert_error(stream.next_batch(&cx(), LIMITS).await.map(drop), ErrorKind::Unavailable, CAUSE);
        let cause = "belongs to another log";
        assert_error(stream.next_batch(&cx(), LIMITS).await.map(drop), ErrorKind::PositionLost, cause);
        // Who accepts the gap reads the new log.
        let mut stream = log.open(&cx(), StartAt::Oldest).await.unwrap();
        assert_eq!(stream.next_batch(&cx(), LIMITS).await.unwrap().len(), 50);
    });
}
