use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use watchkeeper_core::{Batch, StartAt, ValueRef};
use watchkeeper_testkit::servers::postgres::Version;

use super::bench::{Base, LIMITS, Watch, block_on, cx, server};

const WRITERS: usize = 100;
const KEYS_EACH: usize = 10;

/// 100,000, or as many as `WATCHKEEPER_CHANGES` says; on each server.
fn changes() -> usize {
    std::env::var("WATCHKEEPER_CHANGES").map_or(100_000, |text| text.parse().expect("a number of changes"))
}

/// Takes an xid, waits a random time, then changes ten random keys that others change, too; again and again. The keys are
/// changed in their order, so that the writers wait for each other without a deadlock.
const WRITER: &str = "CREATE PROCEDURE work(transactions int) LANGUAGE plpgsql AS $$ DECLARE key int; BEGIN
    FOR i IN 1..transactions LOOP
        PERFORM pg_current_xact_id();
        PERFORM pg_sleep(random() * 0.01);
        FOR key IN SELECT k FROM (SELECT DISTINCT (random() * 999)::int AS k FROM generate_series(1, 30) LIMIT 10) d ORDER BY k LOOP
            UPDATE things SET version = version + 1 WHERE id = key;
        END LOOP;
        COMMIT;
    END LOOP; END $$";

/// The newest version of every key, each of which has to follow on the one before.
#[derive(Default)]
struct Newest {
    versions: BTreeMap<i32, i32>,
    changes: usize,
}

impl Newest {
    fn take(&mut self, batch: &Batch) {
        for row in (0..).take(batch.len()) {
            let number = |name: &str| match batch.payload().get(batch.body(row), &["after", name]) {
                Ok(Some(ValueRef::Int32(number))) => number,
                other => panic!("{name} is {other:?}"),
            };
            let before = self.versions.insert(number("id"), number("version")).unwrap_or(0);
            assert_eq!(number("version"), before + 1, "key {} is lost or out of order", number("id"));
            self.changes += 1;
        }
    }

    /// Reads until so many changes came. Nothing for a minute means that they never will.
    async fn read(&mut self, watch: &mut Watch, count: usize) {
        let mut moved = Instant::now();
        while self.changes < count {
            let batch = watch.stream.next_batch(&cx(), LIMITS).await.expect("the stream goes on");
            if !batch.is_empty() {
                moved = Instant::now();
            }
            assert!(moved.elapsed() < Duration::from_secs(60), "{} of {count} changes came", self.changes);
            self.take(&batch);
        }
        assert_eq!(self.changes, count, "so many changes were made");
    }
}

#[test]
fn a_hundred_writers_lose_nothing_and_keep_the_order_of_every_key() {
    for version in Version::ALL {
        // A server of its own: the writers would hold up every new slot of another test.
        let server = server(version, &[]);
        block_on(async {
            let schema = "CREATE TABLE things(id int PRIMARY KEY, version int);
                INSERT INTO things SELECT g, 0 FROM generate_series(0, 999) g";
            let base = Base::new(&server, &format!("{schema}; {WRITER}")).await;
            let mut watch = Watch::open(&base.source(), StartAt::Now).await;
            let transactions = changes() / WRITERS / KEYS_EACH;
            let writers = join_all((0..WRITERS).map(|_| async {
                let sql = super::bench::connect(&base.url()).await;
                sql.batch_execute(&format!("CALL work({transactions})")).await.expect("a writer writes");
            }));
            let (begun, mut newest) = (Instant::now(), Newest::default());
            tokio::join!(writers, newest.read(&mut watch, WRITERS * transactions * KEYS_EACH));
            println!("{} changes of 100 writers on {version:?} in {:?}", newest.changes, begun.elapsed());
            let reported: i64 = newest.versions.values().map(|version| i64::from(*version)).sum();
            assert_eq!(base.ask("SELECT sum(version)::text FROM things").await, reported.to_string());
            watch.close().await;
        });
    }
}
