//! Positions with many entries of other collections behind them: the server has to search the oplog before it can answer.

use std::time::Duration;

use watchkeeper_core::{ErrorKind, Limits, Operation, Source, SourceTime, StartAt};
use watchkeeper_mongodb::View;
use watchkeeper_mongodb::mongodb::bson::{Document, doc};

use crate::errors::in_turn;
use crate::source::{LIMITS, Shop, operations, read_patiently};
use crate::support::{Base, admin, block_on, cx};

/// A time in which no search of these tests ends.
const SHORT: Duration = Duration::from_secs(1);

/// Writes so many documents into another collection.
pub(crate) async fn write_elsewhere(shop: &Shop, count: usize) {
    let elsewhere = shop.database.collection::<Document>("elsewhere");
    for _ in 0..count / 1_000 {
        elsewhere.insert_many(vec![doc! {}; 1_000]).await.expect("they are taken");
    }
}

/// Makes the server rest so often, each time so long, when it yields during a search of the oplog: after a thousand entries.
pub(crate) async fn slow_down_searches(shop: &Shop, rest: Duration, times: i32) {
    let rest_ms = i32::try_from(rest.as_millis()).expect("it is short");
    let data = doc! { "namespace": "local.oplog.rs", "waitForMillis": rest_ms };
    let point = doc! { "configureFailPoint": "setYieldAllLocksWait", "mode": { "times": times }, "data": data };
    admin(&shop.client, point).await;
}

#[test]
fn a_stream_opens_in_time_however_long_the_server_has_to_search_for_its_next_change() {
    in_turn(|set| {
        block_on(async {
            let shop = Shop::on(Base::on(set)).await;
            let feed = shop.feed(View::collection("orders"));
            let begin = feed.open(&cx(), StartAt::Now).await.expect("it opens").position().expect("it is known");
            write_elsewhere(&shop, 20_000).await;
            shop.insert(doc! { "_id": 1 }).await;
            let time = SourceTime(begin.time.expect("it has one").0);
            for start in [StartAt::After(begin.clone()), StartAt::Time(time)] {
                slow_down_searches(&shop, Duration::from_millis(150), 20).await;
                let opened = feed.open(&cx().within(3 * SHORT), start).await;
                let mut stream = opened.expect("opening does not wait for the search");
                let soon = Limits { wait: Duration::from_millis(100), ..LIMITS };
                let batch = stream.next_batch(&cx(), soon).await.expect("it reads");
                assert!(batch.is_empty(), "the search was over too soon to show anything");
                assert_eq!(read_patiently(&mut *stream, 1).await[0].key(), Some(&b"1"[..]));
            }
        });
    });
}

#[test]
fn a_search_for_the_end_of_a_collection_goes_on_over_openings_that_are_too_short_for_it() {
    in_turn(|set| {
        block_on(async {
            let shop = Shop::on(Base::on(set)).await;
            let feed = shop.feed(View::collection("orders"));
            let begin = feed.open(&cx(), StartAt::Now).await.expect("it opens").position().expect("it is known");
            let pedigree = feed.identity(&cx()).await.expect("it is known");
            write_elsewhere(&shop, 20_000).await;
            shop.orders().drop().await.expect("it can be dropped");
            shop.insert(doc! { "_id": 1 }).await;
            // Enough rests for all attempts: none that begins anew would ever be through.
            slow_down_searches(&shop, Duration::from_millis(150), 200).await;
            let mut refusals = Vec::new();
            let verified = loop {
                match feed.verify(&cx().within(SHORT), &begin, &pedigree).await {
                    Err(error) if refusals.len() < 15 => refusals.push(error),
                    verified => break verified,
                }
            };
            slow_down_searches(&shop, Duration::ZERO, 1).await;
            verified.expect("the stream will tell of the end");
            assert!(!refusals.is_empty(), "the search was over too soon to show anything");
            for refusal in refusals {
                assert_eq!(refusal.kind(), ErrorKind::Unavailable, "{refusal}");
                let text = refusal.to_string();
                assert!(text.contains("the search goes on") && text.contains("raise timeouts.open"), "{text}");
            }
            let mut stream = feed.open(&cx(), StartAt::After(begin)).await.expect("it opens");
            let changes = read_patiently(&mut *stream, 3).await;
            assert_eq!(operations(&changes), [Operation::Drop, Operation::Invalidate, Operation::Insert]);
        });
    });
}
