//! Many writers at once.

use std::collections::HashMap;
use std::time::Duration;

use watchkeeper_core::{Entropy, Source, StartAt, ValueRef};
use watchkeeper_testkit::servers::postgres::Version;

use super::support::{LIMITS, Shop};
use crate::support::{connect, cx};

const WRITERS: u64 = 100;
const KEYS: u64 = 400;
const CHANGES_OF_ONE: u64 = 10;

/// 100,000, or as many as `WATCHKEEPER_CHANGES` says.
fn changes() -> u64 {
    std::env::var("WATCHKEEPER_CHANGES").map_or(100_000, |text| text.parse().expect("a number of changes"))
}

/// Takes its transaction, waits, and then changes keys that others change too, lowest first: nobody deadlocks.
async fn write(url: String, transactions: u64, seed: u64) {
    let (session, entropy) = (connect(&url).await, Entropy::seeded(seed));
    for _ in 0..transactions {
        session.batch_execute("BEGIN; SELECT pg_current_xact_id()").await.expect("a transaction can begin");
        tokio::time::sleep(Duration::from_micros(entropy.below(3_000))).await;
        let mut keys: Vec<u64> = Vec::new();
        while (keys.len() as u64) < CHANGES_OF_ONE {
            let key = entropy.below(KEYS);
            if !keys.contains(&key) {
                keys.push(key);
            }
        }
        keys.sort_unstable();
        let updates: String = keys.iter().map(|key| format!("UPDATE things SET n = n + 1 WHERE id = {key};")).collect();
        session.batch_execute(&(updates + "COMMIT")).await.expect("it can be changed");
    }
}

#[test]
fn a_hundred_writers_lose_nothing_and_every_key_is_in_order() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let shop = Shop::new(Version::V18).await;
        shop.run(&format!("INSERT INTO things SELECT g FROM generate_series(0, {KEYS} - 1) g")).await;
        let mut stream = shop.log().await.open(&cx(), StartAt::Now).await.unwrap();
        let transactions = changes() / WRITERS / CHANGES_OF_ONE;
        let writers: Vec<_> =
            (0..WRITERS).map(|seed| tokio::spawn(write(shop.base.url(), transactions, seed))).collect();
        let (mut newest, mut count): (HashMap<Vec<u8>, i64>, u64) = (HashMap::new(), 0);
        let (expected, begun) = (transactions * WRITERS * CHANGES_OF_ONE, cx().now());
        let mut moved = begun;
        while count < expected {
            let batch = std::sync::Arc::new(stream.next_batch(&cx(), LIMITS).await.unwrap());
            for row in (0..).take(batch.len()) {
                let change = watchkeeper_core::Change::new(batch.clone(), row);
                let Some(ValueRef::Int64(n)) = change.get(&["after", "n"]).unwrap() else { panic!("it has no n") };
                let before = newest.insert(change.key().unwrap().to_vec(), n).unwrap_or(0);
                assert_eq!(n, before + 1, "{} of key {:?} came after {before}", change.id(), change.key());
                count += 1;
                moved = cx().now();
            }
            assert!(cx().now().since(moved) < Duration::from_secs(60), "{count} of {expected} changes came");
        }
        println!("{count} changes of 100 writers in {:?}", cx().now().since(begun));
        for writer in writers {
            writer.await.expect("nobody failed");
        }
        let sum = shop.application.query_one("SELECT sum(n)::bigint FROM things", &[]).await.unwrap();
        assert_eq!(sum.get::<_, i64>(0).unsigned_abs(), count);
        assert!(super::support::is_quiet(&mut *stream).await);
    });
}
