//! Streams that would be fed by themselves.

use std::sync::Arc;

use watchkeeper_core::{
    Backend, Change, ChangeStream, Error, ErrorKind, Limits, Options, Origin, Purpose, Source, StartAt, ValueRef,
    WrittenSetting,
};
use watchkeeper_mongodb::mongodb::bson::doc;
use watchkeeper_mongodb::{Events, MongoDb, Scope, View};
use watchkeeper_testkit::servers::mongodb::ReplicaSet;

use crate::sink::SinkFixture;
use crate::source::{LIMITS, Shop, read};
use crate::support::{Base, assert_error, block_on, cx, fresh_name, shared, url};

pub(crate) fn options(url: &str, settings: &[(&str, &str)]) -> Options {
    let place = Origin::new("watchkeeper.toml:9");
    let mut options = Options::new("stream.orders", place.clone());
    options.insert("url", WrittenSetting::text(url, place.clone()));
    for (name, value) in settings {
        options.insert(*name, WrittenSetting::text(*value, place.clone()));
    }
    options
}

/// What is said of a sink into this collection of the database at `url`, first by a look at it, then when it is made.
async fn said(source: (&str, &[(&str, &str)]), url: &str, sink: &[(&str, &str)]) -> [Result<(), Error>; 2] {
    let purpose = Purpose::new("shop", "orders").reading(&MongoDb, &options(source.0, source.1));
    let inspected = MongoDb.check_sink(&cx(), &purpose, &mut options(url, sink)).await;
    let made = MongoDb.sink(&cx(), &purpose, &mut options(url, sink)).await;
    [inspected.map(drop), made.map(drop)]
}

/// Reads on until a change of this namespace has come, which is the last. Other tests write into the same cluster.
async fn read_until(stream: &mut dyn ChangeStream, namespace: &str) -> Vec<Change> {
    let mut changes: Vec<Change> = Vec::new();
    let one = Limits { rows: 1, ..LIMITS };
    while changes.last().is_none_or(|change| change.namespace() != namespace) {
        let batch = Arc::new(stream.next_batch(&cx(), one).await.expect("it reads"));
        changes.extend((0..).take(batch.len()).map(|row| Change::new(Arc::clone(&batch), row)));
    }
    changes
}

#[test]
fn a_stream_on_everything_is_not_reported_its_own_checkpoints() {
    block_on(async {
        let shop = Shop::open().await;
        let mut fixture = SinkFixture::new(&shop.base, Events::into("log").expect("a name")).await;
        let [orders, log] = ["orders", "log"].map(|name| format!("{}.{name}", shop.client.config().database()));
        for scope in [Scope::Database, Scope::Cluster] {
            let mut stream = shop.watch(View::of(scope)).await;
            shop.insert(doc! { "n": 1 }).await;
            let first = read_until(&mut *stream, &orders).await.pop().expect("it has come");
            // In one transaction with a checkpoint.
            fixture.deliver(&[first]).await;
            shop.insert(doc! { "n": 2 }).await;
            let reported = read_until(&mut *stream, &orders).await;
            assert!(reported.iter().any(|change| change.namespace() == log), "the sink itself is told of");
            let own = reported.iter().filter(|change| change.namespace().contains(".watchkeeper_"));
            assert_eq!(own.map(Change::namespace).collect::<Vec<_>>(), Vec::<&str>::new());
        }
    });
}

#[test]
fn a_position_at_a_change_that_is_left_out_is_gone_on_from() {
    block_on(async {
        let shop = Shop::open().await;
        let orders = format!("{}.orders", shop.client.config().database());
        let mut fixture = SinkFixture::new(&shop.base, Events::into("log").expect("a name")).await;
        let mut all = shop.watch(View::of(Scope::Database)).await;
        shop.insert(doc! { "n": 1 }).await;
        // After a write that is not of the checkpoint: a stream that begins now may be told of the last write before it.
        let mut own = shop.watch(View::collection("watchkeeper_checkpoints")).await;
        fixture.deliver(&read_until(&mut *all, &orders).await).await;
        // Checkpoints from before they were left out may lie there.
        let committed = read(&mut *own, 1).await.remove(0);
        shop.insert(doc! { "n": 2 }).await;
        let feed = shop.feed(View::of(Scope::Database));
        let mut again = feed.open(&cx(), StartAt::After(committed.position())).await.expect("it opens");
        let reported = read_until(&mut *again, &orders).await;
        let second = reported.last().expect("it has come");
        let n = second.batch().payload().get(second.body(), &["fullDocument", "n"]).expect("it is an event");
        assert_eq!(n, Some(ValueRef::Int32(2)), "what lies after the position comes first");
    });
}

#[test]
fn a_sink_into_what_its_own_stream_watches_is_refused() {
    block_on(async {
        let shop = Shop::open().await;
        let home = shop.base.url();
        // The same servers by another name, so that only their identity tells.
        let alias = home.replace("127.0.0.1", "localhost");
        let everything: &[(&str, &str)] = &[("scope", "cluster")];
        let database: &[(&str, &str)] = &[("scope", "database")];
        let orders: &[(&str, &str)] = &[("collection", "orders")];
        let audit: &[(&str, &str)] = &[("mode", "audit")];
        let into_orders: &[(&str, &str)] = &[("mode", "versioned"), ("collection", "orders")];
        let into_itself: &[(&str, &str)] = &[("mode", "mirror"), ("collection", "{collection}")];
        let other = url(shared(), &fresh_name());
        for (source, url, sink) in [
            (database, home, audit),
            (database, alias.as_str(), audit),
            (everything, other.as_str(), audit),
            (orders, home, into_orders),
            (orders, home, into_itself),
        ] {
            for said in said((home, source), url, sink).await {
                assert_error(said, ErrorKind::Config, "fed by itself for ever");
            }
        }
        let left_out = r#"[{"$match": {"ns.coll": {"$ne": "audit_log"}}}]"#;
        let chosen: &[(&str, &str)] = &[("scope", "database"), ("pipeline", left_out)];
        for (source, url, sink) in [
            (database, other.as_str(), audit),
            (orders, home, audit),
            (orders, other.as_str(), into_orders),
            (chosen, home, audit),
        ] {
            for said in said((home, source), url, sink).await {
                said.expect("that is no circle");
            }
        }
    });
}

#[test]
fn what_another_stream_of_the_process_watches_is_no_matter() {
    block_on(async {
        let shop = Shop::open().await;
        let (home, purpose) = (shop.base.url(), Purpose::new("shop", "orders"));
        let everything = options(home, &[("scope", "database")]);
        MongoDb.source(&cx(), &purpose, &mut everything.clone()).await.expect("it can be made");
        // The stream of this name reads something else by now, and nothing is remembered of before.
        let purpose = purpose.reading(&MongoDb, &options(home, &[("collection", "orders")]));
        let mut audit = options(home, &[("mode", "audit")]);
        MongoDb.sink(&cx(), &purpose, &mut audit).await.expect("that is no circle");
    });
}

#[test]
fn collections_of_several_databases_do_not_meet_in_one() {
    block_on(async {
        let (home, set) = (Base::new(), ReplicaSet::start(1));
        let other = url(&set, "copies");
        let everything: &[(&str, &str)] = &[("scope", "cluster")];
        for (name, mixes) in [("{collection}", true), ("{database}_{collection}", false), ("all", false)] {
            let sink: &[(&str, &str)] = &[("mode", "versioned"), ("collection", name)];
            for said in said((home.url(), everything), &other, sink).await {
                match mixes {
                    true => assert_error(said, ErrorKind::Config, "several databases"),
                    false => said.expect("each has a place of its own"),
                }
            }
        }
    });
}

/// Changes have the names of their collections with that of the database, which people leave out.
#[test]
fn collections_in_a_filter_are_named_as_changes_name_them() {
    block_on(async {
        let named = async |settings: &[(&str, &str)], names: &[&str]| {
            let (purpose, mut options) =
                (Purpose::new("shop", "orders"), options("mongodb://localhost/shop", settings));
            let names = names.iter().map(|name| (*name).to_owned()).collect();
            MongoDb.namespaces(&cx(), &purpose, &mut options, names).await
        };
        let orders = [("collection", "orders")];
        let reported = named(&orders, &["orders", "shop.orders", "shop"]).await.expect("all are watched");
        assert_eq!(reported, ["shop.orders", "shop.orders", "shop"]);
        let refused = named(&orders, &["items"]).await.expect_err("it is not watched");
        assert_eq!(refused.kind(), ErrorKind::Config);
        assert!(refused.message().contains("shop.items, of which the stream never tells"), "{refused}");
        assert!(refused.advice().is_some_and(|advice| advice.contains("shop.orders")), "{refused:?}");
        let database = named(&[("scope", "database")], &["items", "a.b"]).await.expect("they may come");
        assert_eq!(database, ["shop.items", "shop.a.b"]);
        let cluster = named(&[("scope", "cluster")], &["crm.items"]).await.expect("it may come");
        assert_eq!(cluster, ["crm.items"]);
    });
}
