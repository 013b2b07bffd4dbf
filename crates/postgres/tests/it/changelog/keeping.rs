//! How long changes are kept, and for whom.

use std::time::Duration;

use watchkeeper_core::{ChangeStream, Entropy, ErrorKind, Limits, Position, Source, StartAt};
use watchkeeper_postgres::ChangeLog;
use watchkeeper_postgres::changelog::{Retention, Unread, prune};
use watchkeeper_testkit::servers::postgres::Version;

use super::support::{LIMITS, Shop, is_quiet, moved_on, read, read_with, received};
use crate::support::{assert_error, block_on, cx};

async fn rows(shop: &Shop) -> i64 {
    shop.application.query_one("SELECT count(*) FROM watchkeeper.log", &[]).await.unwrap().get(0)
}

/// Acknowledges what was read until so many rows are left in the log, for at most a minute.
async fn acknowledge_until(shop: &Shop, stream: &mut dyn ChangeStream, left: i64) {
    let begun = cx().now();
    while rows(shop).await != left {
        assert!(cx().now().since(begun) < Duration::from_secs(60), "{} rows are left", rows(shop).await);
        let end = stream.next_batch(&cx(), LIMITS).await.unwrap().end;
        stream.acknowledge(&cx(), &end).await.unwrap();
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

#[test]
fn what_all_have_acknowledged_goes_and_nothing_else() {
    block_on(async {
        let shop = Shop::new(Version::V15).await;
        let retention = Retention { rewind: Duration::ZERO, ..Retention::default() };
        let fast = shop.log().await.keep(retention);
        let slow =
            watchkeeper_postgres::ChangeLog::open(&cx(), shop.client.clone(), "slow").await.unwrap().keep(retention);
        let beginning = slow.open(&cx(), StartAt::Now).await.unwrap();
        let start = beginning.position().unwrap();
        beginning.close(&cx()).await.unwrap();
        let mut stream = fast.open(&cx(), StartAt::Now).await.unwrap();
        for id in 1..=5 {
            shop.run(&format!("INSERT INTO things VALUES ({id})")).await;
        }
        let end = read(&mut *stream, 5).await[4].position();
        stream.acknowledge(&cx(), &end).await.unwrap();
        stream.close(&cx()).await.unwrap();
        assert_eq!(rows(&shop).await, 5, "the other one has not read them");
        assert_eq!(prune(&cx(), &shop.client, Unread::Keep).await.unwrap(), 0);
        let mut behind = slow.open(&cx(), StartAt::After(start.clone())).await.unwrap();
        assert_eq!(read(&mut *behind, 5).await.len(), 5);
        let mut stream = fast.open(&cx(), StartAt::After(end)).await.unwrap();
        assert!(is_quiet(&mut *stream).await);
        let quiet = stream.next_batch(&cx(), LIMITS).await.unwrap().end;
        stream.acknowledge(&cx(), &quiet).await.unwrap();
        // Once both have read everything, the log becomes empty; whoever would go back is told.
        shop.run("UPDATE watchkeeper.log_consumers SET acknowledged = pg_current_snapshot() WHERE name = 'it'").await;
        acknowledge_until(&shop, &mut *behind, 0).await;
        assert_error(
            slow.open(&cx(), StartAt::After(start.clone())).await.map(drop),
            ErrorKind::PositionLost,
            "pruned",
        );
        let pedigree = slow.identity(&cx()).await.unwrap();
        assert_error(slow.verify(&cx(), &start, &pedigree).await, ErrorKind::PositionLost, "pruned");
        shop.run("INSERT INTO things VALUES (6)").await;
        assert_eq!(read(&mut *behind, 1).await[0].key(), Some(&b"[6]"[..]), "reading goes on");
    });
}

/// Goes on from a position to the end of a log in which nothing happens, and acknowledges that.
async fn pass(log: &ChangeLog, from: Position) -> Position {
    let mut stream = log.open(&cx(), StartAt::After(from.clone())).await.unwrap();
    let end = moved_on(log, &from).await;
    stream.acknowledge(&cx(), &end).await.unwrap();
    stream.close(&cx()).await.unwrap();
    end
}

#[test]
fn a_slow_consumer_keeps_what_it_has_not_read() {
    for version in Version::ALL {
        block_on(async {
            let shop = Shop::new(version).await;
            let retention = Retention { rewind: Duration::ZERO, ..Retention::default() };
            let log = async |consumer: &str| {
                ChangeLog::open(&cx(), shop.client.clone(), consumer).await.unwrap().keep(retention)
            };
            let (fast, slow) = (log("fast").await, log("slow").await);
            let beginning = slow.open(&cx(), StartAt::Now).await.unwrap();
            let start = beginning.position().unwrap();
            beginning.close(&cx()).await.unwrap();
            shop.run("INSERT INTO things VALUES (1), (2), (3), (4), (5)").await;
            let read_by = async |log: &ChangeLog| {
                let mut stream = log.open(&cx(), StartAt::After(start.clone())).await.unwrap();
                read(&mut *stream, 5).await[4].position()
            };
            let mut of_fast = read_by(&fast).await;
            for _ in 0..4 {
                of_fast = pass(&fast, of_fast).await;
            }
            assert_eq!(rows(&shop).await, 5, "the slow one has read nothing");
            let mut of_slow = read_by(&slow).await;
            // So often is enough for both.
            for _ in 0..4 {
                of_fast = pass(&fast, of_fast).await;
                of_slow = pass(&slow, of_slow).await;
            }
            assert_eq!(rows(&shop).await, 0);
        });
    }
}

/// What a consumer has acknowledged, as the log knows it.
async fn noted(shop: &Shop) -> String {
    shop.application.query_one("SELECT acknowledged::text FROM watchkeeper.log_consumers", &[]).await.unwrap().get(0)
}

#[test]
fn an_opening_further_on_lets_go_of_nothing() {
    block_on(async {
        let shop = Shop::new(Version::V15).await;
        let log = shop.log().await;
        let first = log.open(&cx(), StartAt::Now).await.unwrap();
        let known = noted(&shop).await;
        shop.run("INSERT INTO things VALUES (1)").await;
        let mut aside = log.peek(&cx(), StartAt::After(first.position().unwrap())).await.unwrap();
        let read = read(&mut *aside, 1).await[0].batch().end.clone();
        let end = moved_on(&log, &read).await;
        let second = log.open(&cx(), StartAt::After(end.clone())).await.unwrap();
        assert_eq!(noted(&shop).await, known, "the first one may still read it");
        second.close(&cx()).await.unwrap();
        pass(&log, end).await;
        assert_ne!(noted(&shop).await, known, "what is acknowledged is let go");
    });
}

#[test]
fn nothing_is_noted_in_a_log_that_is_another_one_by_now() {
    block_on(async {
        let shop = Shop::new(Version::V18).await;
        let log = shop.log().await;
        let mut stream = log.open(&cx(), StartAt::Now).await.unwrap();
        let known = noted(&shop).await;
        shop.run("INSERT INTO things VALUES (1)").await;
        let read = read(&mut *stream, 1).await[0].batch().end.clone();
        let end = moved_on(&log, &read).await;
        shop.run("UPDATE watchkeeper.log_meta SET log_uuid = gen_random_uuid()").await;
        stream.acknowledge(&cx(), &end).await.unwrap();
        stream.close(&cx()).await.unwrap();
        assert_eq!(noted(&shop).await, known);
    });
}

#[test]
fn who_only_looks_on_holds_nothing_back_and_is_reported_the_loss() {
    block_on(async {
        let shop = Shop::new(Version::V18).await;
        shop.run("INSERT INTO things VALUES (1), (2), (3)").await;
        let log = shop.log().await;
        let mut stream = log.peek(&cx(), StartAt::Oldest).await.unwrap();
        let one = Limits { rows: 1, ..LIMITS };
        let first = read_with(&mut *stream, 1, one).await;
        stream.acknowledge(&cx(), &first[0].position()).await.unwrap();
        stream.close(&cx()).await.unwrap();
        let consumers = shop.application.query("SELECT FROM watchkeeper.log_consumers", &[]).await.unwrap();
        assert!(consumers.is_empty());
        let mut stream = log.peek(&cx(), StartAt::After(first[0].position())).await.unwrap();
        assert_eq!(prune(&cx(), &shop.client, Unread::Discard).await.unwrap(), 3);
        assert_error(stream.next_batch(&cx(), LIMITS).await, ErrorKind::PositionLost, "pruned");
    });
}

#[test]
fn a_time_is_found_in_the_log() {
    block_on(async {
        let shop = Shop::new(Version::V15).await;
        shop.run("INSERT INTO things VALUES (1), (2)").await;
        // Times have milliseconds here.
        tokio::time::sleep(Duration::from_millis(5)).await;
        shop.run("INSERT INTO things VALUES (3)").await;
        let log = shop.log().await;
        let mut stream = log.open(&cx(), StartAt::Oldest).await.unwrap();
        let all = read(&mut *stream, 3).await;
        let window = stream.window(&cx()).await.unwrap();
        assert_eq!((window.oldest, window.newest), (Some(all[0].time()), Some(all[2].time())));
        // The two before may have been committed after that time, as far as anybody knows.
        let mut late = log.open(&cx(), StartAt::Time(all[2].time())).await.unwrap();
        assert_eq!(read(&mut *late, 3).await[2].id().to_string(), all[2].id().to_string());
        assert!(is_quiet(&mut *late).await);
        let note = late.opening_note().expect("it begins before the time");
        assert!(note.starts_with(&format!("reading begins with change {}", all[0].version().time)), "{note}");
        assert!(note.ends_with("changes from before that time may come again"), "{note}");
        let future = watchkeeper_core::SourceTime(all[2].time().0 + 60_000);
        assert!(is_quiet(&mut *log.open(&cx(), StartAt::Time(future)).await.unwrap()).await);
        assert_error(
            log.open(&cx(), StartAt::Snapshot).await.map(drop),
            ErrorKind::Config,
            "cannot begin with a snapshot",
        );
    });
}

/// What was open at a time is read again from there on, with everything that began after it.
#[test]
fn a_time_before_a_place_is_known_to_be_before_it() {
    block_on(async {
        let shop = Shop::new(Version::V15).await;
        let late = shop.session().await;
        late.batch_execute("BEGIN; INSERT INTO things VALUES (1)").await.unwrap();
        shop.run("INSERT INTO things VALUES (2)").await;
        tokio::time::sleep(Duration::from_millis(5)).await;
        shop.run("INSERT INTO things VALUES (3)").await;
        let log = shop.log().await;
        let mut stream = log.open(&cx(), StartAt::Oldest).await.unwrap();
        let read_so_far = read(&mut *stream, 2).await;
        let current = stream.position().expect("it is somewhere");
        late.batch_execute("COMMIT").await.unwrap();
        let then = log.peek(&cx(), StartAt::Time(read_so_far[1].time())).await.unwrap().position().expect("a place");
        assert_eq!(log.compare(&then, &current), Some(std::cmp::Ordering::Less));
        let mut again = log.open(&cx(), StartAt::After(then)).await.unwrap();
        let keys: Vec<_> = received(&read(&mut *again, 3).await).into_iter().map(|(_, key, _)| key).collect();
        assert_eq!(keys, ["[1]", "[2]", "[3]"]);
        assert!(is_quiet(&mut *again).await);
    });
}

/// Batches that end anywhere in a large window, and calls that are dropped anywhere.
#[test]
fn a_large_window_is_read_in_parts() {
    block_on(async {
        let shop = Shop::new(Version::V18).await;
        shop.run("INSERT INTO things SELECT g FROM generate_series(1, 9500) g").await;
        let (log, entropy) = (shop.log().await, Entropy::seeded(7));
        let mut stream = log.open(&cx(), StartAt::Oldest).await.unwrap();
        let (mut ids, mut positions, begun) = (Vec::new(), Vec::new(), cx().now());
        while ids.len() < 9_500 {
            assert!(cx().now().since(begun) < Duration::from_secs(60), "{} came", ids.len());
            let limits = Limits { rows: 1 + entropy.below(900) as usize, bytes: 200_000, ..LIMITS };
            let brief = cx().within(Duration::from_micros(entropy.below(20_000)));
            let cx = cx();
            let call = stream.next_batch(&cx, limits);
            let Ok(batch) = brief.run(async { Ok(call.await) }).await else { continue };
            let batch = batch.unwrap();
            ids.extend((0..).take(batch.len()).map(|row| String::from_utf8(batch.key(row).unwrap().to_vec()).unwrap()));
            positions.push((batch.end.clone(), ids.len()));
        }
        assert_eq!(ids, (1..=9_500).map(|id| format!("[{id}]")).collect::<Vec<_>>());
        let (position, passed) = &positions[positions.len() / 2];
        let mut again = log.open(&cx(), StartAt::After(position.clone())).await.unwrap();
        assert_eq!(read(&mut *again, 9_500 - passed).await[0].key(), Some(ids[*passed].as_bytes()));
    });
}
