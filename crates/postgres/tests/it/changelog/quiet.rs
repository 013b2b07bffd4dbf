//! A log in which nothing happens, and what may be told of it.

use watchkeeper_core::{Source, StartAt};
use watchkeeper_postgres::changelog::{Wake, install};
use watchkeeper_postgres::{Client, Config};
use watchkeeper_testkit::servers::postgres::{Server, ServerSettings, Version};

use super::restored::{log_on, undo};
use super::support::{LIMITS, Shop, THINGS, ahead, moved_on, read};
use crate::support::{block_on, connect, cx};

/// A place that was told although nothing happened has to hold after a crash, too: the transactions that it knows to have ended are
/// forgotten otherwise, and others get their numbers.
#[test]
fn a_crash_undoes_no_place_of_a_quiet_log() {
    for version in Version::ALL {
        let config = ["wal_writer_delay = 10s", "wal_writer_flush_after = 100MB"].map(str::to_owned).to_vec();
        let server = Server::with(&ServerSettings { config, ..ServerSettings::new(version) });
        let position = block_on(async {
            let application = connect(&server.url("postgres")).await;
            application.batch_execute(THINGS).await.unwrap();
            let client = Client::open(&cx(), Config::new(&server.url("postgres")).unwrap()).await.unwrap();
            install(&cx(), &client, &["things"], Wake::Silent).await.unwrap();
            let mut stream = log_on(&server.url("postgres")).await.open(&cx(), StartAt::Now).await.unwrap();
            undo(&application).await;
            let received = stream.next_batch(&ahead(), LIMITS).await.unwrap();
            assert!(received.is_empty());
            received.end
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
            assert_eq!(first.as_deref(), Some(&b"[10]"[..]), "{version:?}");
        });
    }
}

#[test]
fn a_quiet_log_moves_on() {
    block_on(async {
        let shop = Shop::new(Version::V18).await;
        let log = shop.log().await;
        let begin = log.peek(&cx(), StartAt::Now).await.unwrap().position().unwrap();
        shop.run("CREATE TABLE other ()").await;
        moved_on(&log, &begin).await;
    });
}
