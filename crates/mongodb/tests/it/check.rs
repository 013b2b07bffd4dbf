//! Looks at servers and users.

use std::time::Duration;

use watchkeeper_core::{
    Backend, ErrorKind, Finding, Inspection, Options, Origin, Purpose, Severity, Source, StartAt, WrittenSetting,
};
use watchkeeper_mongodb::mongodb::bson::{Document, doc};
use watchkeeper_mongodb::{Feed, MongoDb, Scope, View};
use watchkeeper_testkit::servers::mongodb::{ReplicaSet, ReplicaSetSettings};

use crate::source::read;
use crate::support::{Guarded, assert_error, block_on, cx, url};
use crate::tools::run_at;

fn options(settings: &[(&str, &str)]) -> Options {
    let place = Origin::new("watchkeeper.toml:9");
    let mut options = Options::new("stream.orders", place.clone());
    for (name, value) in settings {
        options.insert(*name, WrittenSetting::text(*value, place.clone()));
    }
    options
}

async fn store(url: &str) -> Vec<Finding> {
    MongoDb.check_store(&cx(), &mut options(&[("url", url)])).await.expect("it can be looked at")
}

async fn source(url: &str) -> Vec<Finding> {
    let purpose = Purpose::new("shop", "orders");
    let mut options = options(&[("url", url), ("collection", "orders")]);
    MongoDb.check_source(&cx(), &purpose, &mut options).await.expect("it can be looked at")
}

async fn sink(url: &str) -> Inspection {
    let purpose = Purpose::new("shop", "orders");
    let mut options = options(&[("url", url), ("collection", "copies"), ("mode", "versioned")]);
    MongoDb.check_sink(&cx(), &purpose, &mut options).await.expect("it can be looked at")
}

fn errors(found: &[Finding]) -> Vec<&str> {
    found.iter().filter(|finding| finding.severity == Severity::Error).map(|finding| finding.what.as_str()).collect()
}

fn on(collection: &str, actions: &[&str]) -> Document {
    doc! { "resource": { "db": "shop", "collection": collection }, "actions": actions.to_vec() }
}

#[test]
fn what_a_user_may_not_do_is_named_one_by_one() {
    block_on(async {
        let guarded = Guarded::start().await;
        let keeper = guarded.client("keeper", "shop").await;
        let database = keeper.database(&cx()).await.expect("it is open");
        database.create_collection("orders").await.expect("it can be made");

        let anyone = url(guarded.set(), "shop");
        let purpose = Purpose::new("shop", "orders");
        let mut settings = options(&[("url", &anyone), ("collection", "orders")]);
        let nobody = "lets nobody in without a user";
        let refused = MongoDb.check_source(&cx(), &purpose, &mut settings).await;
        assert_error(refused, ErrorKind::Denied, nobody);
        let refused = MongoDb.check_store(&cx(), &mut options(&[("url", &anyone)])).await;
        assert_error(refused, ErrorKind::Denied, nobody);

        guarded
            .user("reader", vec![on("orders", &["find", "listCollections"]), on("copies", &["find", "insert"])])
            .await;
        let reader = guarded.url("reader", "shop");
        assert_eq!(errors(&source(&reader).await), ["this user lacks the privilege changeStream on shop.orders"]);
        let found = sink(&reader).await.findings;
        let lacks = |action: &str| format!("this user lacks the privilege {action} on shop.copies");
        assert_eq!(errors(&found), ["update", "remove", "createCollection", "createIndex"].map(lacks));
        let found = store(&reader).await;
        let errors_of_store = errors(&found);
        assert!(errors_of_store.iter().any(|what| what.contains("insert on shop.watchkeeper_meta")), "{found:?}");
        let reported = run_at("oplog", &reader, &[]).await.expect("that is no error");
        assert_eq!(reported.data["readable"], false, "{reported:?}");
        assert!(
            reported.lines[0].contains("may not read the oplog") && reported.lines[0].contains("; grant "),
            "{reported:?}"
        );

        guarded.user("watcher", vec![on("", &["find", "changeStream", "listCollections"])]).await;
        let found = source(&guarded.url("watcher", "shop")).await;
        assert!(errors(&found).is_empty(), "{found:?}");
        assert!(found.iter().any(|finding| finding.what.contains("may not read the oplog")), "{found:?}");
        for url in [guarded.url("keeper", "shop")] {
            assert!(errors(&store(&url).await).is_empty() && errors(&sink(&url).await.findings).is_empty());
        }
    });
}

/// Whoever has what the guide asks for can run a stream, from now on or with a snapshot.
#[test]
fn a_user_who_may_find_and_watch_one_collection_needs_no_more() {
    block_on(async {
        let guarded = Guarded::start().await;
        let keeper = guarded.client("keeper", "shop").await;
        let database = keeper.database(&cx()).await.expect("it is open");
        let orders = database.collection::<Document>("orders");
        orders.insert_one(doc! { "_id": 1 }).await.expect("it is taken");
        let create = doc! { "create": "names", "collation": { "locale": "de" } };
        database.run_command(create).await.expect("it is taken");
        let named = ["orders", "names", "ordres"].map(|name| on(name, &["find", "changeStream"]));
        guarded.user("reader", named.to_vec()).await;
        let url = guarded.url("reader", "shop");
        let found = source(&url).await;
        assert!(errors(&found).is_empty(), "{found:?}");
        let client = guarded.client("reader", "shop").await;
        let feed = |name: &str| Feed::new(client.clone(), View::collection(name));

        let mut stream = feed("orders").open(&cx(), StartAt::Now).await.expect("it opens");
        orders.insert_one(doc! { "_id": 2 }).await.expect("it is taken");
        assert_eq!(read(&mut *stream, 1).await[0].key(), Some(&b"2"[..]));
        let mut stream = feed("orders").open(&cx(), StartAt::Snapshot).await.expect("it opens");
        assert_eq!(read(&mut *stream, 2).await[0].key(), Some(&b"1"[..]));

        let refused = feed("names").open(&cx(), StartAt::Snapshot).await.map(drop);
        assert_error(refused, ErrorKind::Config, "names has a collation");
        let refused = feed("ordres").open(&cx(), StartAt::Now).await.map(drop);
        assert_error(refused, ErrorKind::Config, "there is no collection \"ordres\"");
        let found = feed("ordres").check(&cx()).await.expect("it can be looked at");
        assert_eq!(errors(&found), ["there is no collection \"ordres\""]);
        let refused = feed("secrets").open(&cx(), StartAt::Now).await.map(drop);
        assert_error(refused, ErrorKind::Denied, "access is denied");
        let everything = Feed::new(client.clone(), View::of(Scope::Cluster));
        let refused = everything.open(&cx(), StartAt::Now).await.map(drop);
        assert_error(refused, ErrorKind::Denied, "; grant the role readAnyDatabase");
        let found = everything.check(&cx()).await.expect("it can be looked at");
        let remedies: Vec<_> = found.iter().filter_map(|finding| finding.remedy.as_deref()).collect();
        assert!(remedies.iter().any(|remedy| remedy.contains("readAnyDatabase")), "{found:?}");
    });
}

#[test]
fn members_that_are_down_and_leases_shorter_than_an_election_are_reported() {
    let set = ReplicaSet::with(&ReplicaSetSettings {
        nodes: 3,
        election_timeout_ms: Some(4_000),
        ..ReplicaSetSettings::default()
    });
    block_on(async {
        let url = url(&set, "shop");
        assert!(store(&url).await.is_empty(), "a whole set has nothing to be warned of");
        let leases = async |seconds: u64| {
            let lease = Duration::from_secs(seconds);
            MongoDb.check_leases(&cx(), &mut options(&[("url", &url)]), lease).await.expect("it can be looked at")
        };
        assert!(leases(9).await.is_empty());
        assert_eq!(leases(8).await.len(), 1, "some of it has passed when the primary goes, and some is left unused");
        let found = leases(5).await;
        assert!(found[0].what.contains("leases of 5s do not outlast an election"), "{found:?}");
        assert!(
            found[0].remedy.as_ref().is_some_and(|remedy| remedy.contains("lengthen the lease to 9s")),
            "{found:?}"
        );
        let other = (set.primary() + 1) % 3;
        set.kill(other);
        for _ in 0..600 {
            let found = store(&url).await;
            if found.iter().any(|found| found.what.contains("only 2 of 3 members of the replica set are up")) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        panic!("the set does not notice that a member is gone");
    });
}
