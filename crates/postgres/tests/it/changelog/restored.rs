//! Servers that are not what they were.

use std::time::Duration;

use watchkeeper_core::{ErrorKind, Position, Source, StartAt};
use watchkeeper_postgres::changelog::{Wake, install};
use watchkeeper_postgres::{ChangeLog, Client, Config};
use watchkeeper_testkit::servers::postgres::{Server, ServerSettings, Version};

use super::support::{Shop, THINGS, read};
use crate::support::{assert_error, block_on, connect, cx};

pub(super) async fn log_on(url: &str) -> ChangeLog {
    let client = Client::open(&cx(), Config::new(url).unwrap()).await.unwrap();
    ChangeLog::open(&cx(), client, "it").await.unwrap()
}

async fn read_all(log: &ChangeLog, count: usize) -> Position {
    let mut stream = log.open(&cx(), StartAt::Oldest).await.unwrap();
    read(&mut *stream, count).await[count - 1].position()
}

/// As a dump that is restored beside the original, or in its place.
#[test]
fn a_copy_of_the_database_is_another_log() {
    for version in Version::ALL {
        block_on(async {
            let shop = Shop::new(version).await;
            shop.run("INSERT INTO things VALUES (1)").await;
            let log = shop.log().await;
            let (pedigree, position) = (log.identity(&cx()).await.unwrap(), read_all(&log, 1).await);
            log.verify(&cx(), &position, &pedigree).await.unwrap();
            // The schema as a dump would bring it back: the same rows in another table.
            shop.run(
                "CREATE TABLE watchkeeper.copy (LIKE watchkeeper.log INCLUDING ALL);
                INSERT INTO watchkeeper.copy OVERRIDING SYSTEM VALUE SELECT * FROM watchkeeper.log;
                DROP TABLE watchkeeper.log; ALTER TABLE watchkeeper.copy RENAME TO log",
            )
            .await;
            assert_error(
                log.verify(&cx(), &position, &pedigree).await,
                ErrorKind::PositionLost,
                "was a dump restored?",
            );
        });
    }
}

#[test]
fn a_server_that_went_back_in_time_is_recognised() {
    for version in Version::ALL {
        let server = Server::start(version);
        block_on(async {
            let application = connect(&server.url("postgres")).await;
            application.batch_execute(THINGS).await.unwrap();
            let client = Client::open(&cx(), Config::new(&server.url("postgres")).unwrap()).await.unwrap();
            install(&cx(), &client, &["things"], Wake::Notify).await.unwrap();
            application.batch_execute("INSERT INTO things VALUES (1)").await.unwrap();
        });
        server.stop();
        let backup = server.restored();
        server.restart();
        block_on(async {
            let log = log_on(&server.url("postgres")).await;
            let application = connect(&server.url("postgres")).await;
            application.batch_execute("INSERT INTO things VALUES (2); INSERT INTO things VALUES (3)").await.unwrap();
            let (pedigree, position) = (log.identity(&cx()).await.unwrap(), read_all(&log, 3).await);
            let restored = log_on(&backup.url("postgres")).await;
            let answer = restored.verify(&cx(), &position, &pedigree).await;
            assert_error(answer, ErrorKind::PositionLost, "was it restored from a backup?");
            // Written to again it has other changes under the same numbers.
            tokio::time::sleep(Duration::from_millis(5)).await;
            let application = connect(&backup.url("postgres")).await;
            for id in 10..20 {
                application.batch_execute(&format!("INSERT INTO things VALUES ({id})")).await.unwrap();
            }
            let answer = restored.verify(&cx(), &position, &pedigree).await;
            assert_error(answer, ErrorKind::PositionLost, "is not the one that was read");
            assert_error(
                restored.open(&cx(), StartAt::After(position)).await.map(drop),
                ErrorKind::PositionLost,
                "was read",
            );
        });
    }
}

/// A standby does not know which transactions are in progress: it would tell later ones and pass over those.
#[test]
fn a_standby_is_refused_and_another_timeline_recognised() {
    let server = Server::start(Version::V15);
    let (pedigree, position) = block_on(async {
        let application = connect(&server.url("postgres")).await;
        application.batch_execute(THINGS).await.unwrap();
        let client = Client::open(&cx(), Config::new(&server.url("postgres")).unwrap()).await.unwrap();
        install(&cx(), &client, &["things"], Wake::Notify).await.unwrap();
        application.batch_execute("INSERT INTO things VALUES (1)").await.unwrap();
        let log = log_on(&server.url("postgres")).await;
        (log.identity(&cx()).await.unwrap(), read_all(&log, 1).await)
    });
    server.stop();
    std::fs::write(server.folder().join("data/standby.signal"), "").unwrap();
    server.restart();
    block_on(async {
        let url = format!("{}?target_session_attrs=any", server.url("postgres"));
        let log = log_on(&url).await;
        assert_error(log.identity(&cx()).await, ErrorKind::Config, "a standby cannot tell");
        let admin = connect(&url).await;
        admin.execute("SELECT pg_promote(true, 60)", &[]).await.unwrap();
        let log = log_on(&url).await;
        let answer = log.verify(&cx(), &position, &pedigree).await;
        assert_error(answer, ErrorKind::PositionLost, "timeline 00000002, was 00000001");
    });
}

/// Undoes transactions until the disk does not know of some dozens of them. Whole pages of the write-ahead log are written in any case.
pub(super) async fn undo(application: &tokio_postgres::Client) {
    let some = "DO $$ BEGIN FOR n IN 1 .. 30 LOOP PERFORM pg_current_xact_id(); ROLLBACK; END LOOP; END $$";
    let known = "SELECT pg_current_wal_insert_lsn() - pg_current_wal_flush_lsn() < 1500";
    while application.query_one(known, &[]).await.unwrap().get(0) {
        application.batch_execute(some).await.unwrap();
    }
}

/// Transactions that were undone do not wait for the disk. A crash forgets them, and others get their numbers: what those write is
/// new all the same.
#[test]
fn numbers_that_a_crash_gives_again_are_new() {
    let both = |peeks: bool| Version::ALL.map(|version| (version, peeks));
    for (version, peeks) in both(true).into_iter().chain(both(false)) {
        let config = ["wal_writer_delay = 10s", "wal_writer_flush_after = 100MB"].map(str::to_owned).to_vec();
        let server = Server::with(&ServerSettings { config, ..ServerSettings::new(version) });
        let position = block_on(async {
            let application = connect(&server.url("postgres")).await;
            application.batch_execute(THINGS).await.unwrap();
            let client = Client::open(&cx(), Config::new(&server.url("postgres")).unwrap()).await.unwrap();
            install(&cx(), &client, &["things"], Wake::Silent).await.unwrap();
            let log = log_on(&server.url("postgres")).await;
            if peeks {
                undo(&application).await;
                return log.peek(&cx(), StartAt::Now).await.unwrap().position().unwrap();
            }
            let mut stream = log.open(&cx(), StartAt::Now).await.unwrap();
            application.batch_execute("INSERT INTO things VALUES (1)").await.unwrap();
            undo(&application).await;
            // What is committed when all of the batch is.
            read(&mut *stream, 1).await[0].batch().end.clone()
        });
        server.kill();
        server.restart();
        block_on(async {
            let application = connect(&server.url("postgres")).await;
            for id in 10..400 {
                application.batch_execute(&format!("INSERT INTO things VALUES ({id})")).await.unwrap();
            }
            let log = log_on(&server.url("postgres")).await;
            let mut stream = log.open(&cx(), StartAt::After(position)).await.unwrap();
            let first = read(&mut *stream, 390).await[0].key().map(<[u8]>::to_vec);
            assert_eq!(first.as_deref(), Some(&b"[10]"[..]), "{version:?}, {peeks}");
        });
    }
}
