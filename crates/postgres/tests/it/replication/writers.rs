use std::collections::BTreeMap;

use futures_util::future::join_all;
use watchkeeper_core::{StartAt, ValueRef};
use watchkeeper_testkit::servers::postgres::Version;

use super::bench::{Base, Watch, block_on, server};

const WRITERS: usize = 100;
const TRANSACTIONS: usize = 50;
const KEYS_EACH: usize = 10;

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
            let writers = join_all((0..WRITERS).map(|_| async {
                let sql = super::bench::connect(&base.url()).await;
                sql.batch_execute(&format!("CALL work({TRANSACTIONS})")).await.expect("a writer writes");
            }));
            let count = WRITERS * TRANSACTIONS * KEYS_EACH;
            let (_, batches) = tokio::join!(writers, watch.batches(count));
            let mut newest = BTreeMap::new();
            for batch in &batches {
                for row in 0..batch.len() as u32 {
                    let payload = batch.payload();
                    let number = |name: &str| match payload.get(batch.body(row), &["after", name]) {
                        Ok(Some(ValueRef::Int32(number))) => number,
                        other => panic!("{name} is {other:?}"),
                    };
                    let before = newest.insert(number("id"), number("version")).unwrap_or(0);
                    assert_eq!(number("version"), before + 1, "key {} is lost or out of order", number("id"));
                }
            }
            let told: i64 = newest.values().map(|version| i64::from(*version)).sum();
            assert_eq!(base.ask("SELECT sum(version)::text FROM things").await, told.to_string());
            watch.close().await;
        });
    }
}
