//! What is found out before a stream runs.

use watchkeeper_core::source::Severity;
use watchkeeper_core::{
    Backend, ErrorKind, Finding, OperationTime, Options, Origin, Pedigree, Position, Purpose, Source, SourceTime,
    StartAt, WrittenSetting,
};
use watchkeeper_mongodb::mongodb::bson::doc;
use watchkeeper_mongodb::{Before, Client, Config, Feed, MongoDb, Scope, Shown, View};
use watchkeeper_testkit::servers::mongodb::ReplicaSet;

use crate::source::{Shop, read};
use crate::support::{Base, admin, assert_error, block_on, cx, shared, url};

fn reported(found: &[Finding], severity: Severity, what: &str) -> bool {
    found.iter().any(|finding| finding.severity == severity && finding.what.contains(what) && finding.remedy.is_some())
}

async fn check(shop: &Shop, view: View) -> Vec<Finding> {
    shop.feed(view).check(&cx()).await.expect("it can be checked")
}

#[test]
fn a_good_stream_on_a_young_server_has_only_a_short_history() {
    block_on(async {
        let shop = Shop::open().await;
        let found = check(&shop, View::collection("orders")).await;
        assert!(reported(&found, Severity::Warning, "the oplog reaches back "), "{found:?}");
        assert!(!reported(&found, Severity::Warning, "reaches back 0h"), "{found:?}");
        assert_eq!(found.len(), 1, "{found:?}");
    });
}

#[test]
fn what_is_asked_for_and_not_there_is_found() {
    block_on(async {
        let shop = Shop::open().await;
        let view = View { full_document_before_change: Before::Required, ..View::collection("orders") };
        let found = check(&shop, view).await;
        assert!(reported(&found, Severity::Error, "orders stores no images"), "{found:?}");
        let view = View { full_document: Shown::WhenAvailable, ..View::collection("orders") };
        let found = check(&shop, view).await;
        assert!(reported(&found, Severity::Warning, "orders stores no images"), "{found:?}");
        let found = check(&shop, View::collection("ordres")).await;
        assert!(reported(&found, Severity::Error, "there is no collection \"ordres\""), "{found:?}");
    });
}

#[test]
fn a_view_or_a_time_series_among_others_is_found() {
    block_on(async {
        let shop = Shop::open().await;
        let view = doc! { "create": "rich", "viewOn": "orders", "pipeline": [] };
        shop.database.run_command(view).await.expect("it is taken");
        let series = doc! { "create": "weather", "timeseries": { "timeField": "at" } };
        shop.database.run_command(series).await.expect("it is taken");
        let names = ["orders", "rich", "weather"].map(str::to_owned).to_vec();
        for wait in [false, true] {
            let found = check(&shop, View { wait, ..View::of(Scope::Collections(names.clone())) }).await;
            assert!(reported(&found, Severity::Error, "rich is a view"), "{found:?}");
            assert!(reported(&found, Severity::Error, "weather is a time series"), "{found:?}");
        }
    });
}

#[test]
fn a_condition_on_the_whole_document_is_warned_of() {
    block_on(async {
        let shop = Shop::open().await;
        let pipeline = vec![doc! { "$match": { "$or": [{ "fullDocument.total": { "$gte": 1 } }] } }];
        let mut view = View { pipeline, ..View::collection("orders") };
        assert!(reported(&check(&shop, view.clone()).await, Severity::Warning, "never sees updates"));
        view.full_document = Shown::UpdateLookup;
        assert!(reported(&check(&shop, view).await, Severity::Warning, "may be hidden later"));
    });
}

/// What is found about a place to start.
async fn preflight(feed: &Feed, start: StartAt, pedigree: Option<&Pedigree>) -> Vec<Finding> {
    feed.preflight(&cx(), &start, pedigree).await.expect("it can be looked at")
}

/// A start with the first operation of a second.
fn operation(seconds: u64) -> StartAt {
    StartAt::Operation(OperationTime { seconds: u32::try_from(seconds).expect("it fits"), increment: 1 })
}

#[test]
fn a_start_that_cannot_be_is_found_and_refused() {
    block_on(async {
        let shop = Shop::open().await;
        let feed = shop.feed(View::collection("orders"));
        let hello = admin(&shop.client, doc! { "hello": 1 }).await;
        let now = hello.get_datetime("localTime").expect("it tells the time").timestamp_millis().cast_unsigned();
        for (start, cause) in [
            (StartAt::Time(SourceTime(now + 3_600_000)), "in the future of this cluster"),
            (StartAt::Time(SourceTime(u64::MAX)), "in the future of this cluster"),
            (operation(now / 1_000 + 3_600), "in the future of this cluster"),
        ] {
            assert!(reported(&preflight(&feed, start.clone(), None).await, Severity::Error, cause));
            assert_error(feed.open(&cx(), start).await.map(drop), ErrorKind::Config, cause);
        }
        let create = doc! { "create": "log", "capped": true, "size": 1_000_000 };
        shop.database.run_command(create).await.expect("it is taken");
        let found = preflight(&shop.feed(View::collection("log")), StartAt::Snapshot, None).await;
        assert!(reported(&found, Severity::Error, "log is a capped collection"), "{found:?}");
        let (time, operation) = (StartAt::Time(SourceTime(now)), operation(now / 1_000));
        for start in [StartAt::Now, StartAt::Oldest, StartAt::Snapshot, time, operation] {
            assert_eq!(preflight(&feed, start.clone(), None).await, [], "{start:?}");
            feed.open(&cx(), start).await.expect("it opens");
        }
    });
}

#[test]
fn a_stored_position_is_vetted_without_a_trace() {
    block_on(async {
        let shop = Shop::open().await;
        let comment = shop.client.config().database().to_owned();
        let view = View { comment: Some(comment.clone()), ..View::collection("orders") };
        let feed = shop.feed(view.clone());
        let pedigree = feed.identity(&cx()).await.expect("it is known");
        let mut stream = shop.watch(View::collection("orders")).await;
        shop.insert(doc! { "_id": 1 }).await;
        let position = read(&mut *stream, 1).await[0].position();
        let after = |position: &Position| StartAt::After(position.clone());
        assert_eq!(preflight(&feed, after(&position), Some(&pedigree)).await, []);
        let idle = doc! { "$currentOp": { "idleCursors": true, "allUsers": true } };
        let own = doc! { "$match": { "cursor.originatingCommand.comment": &comment } };
        let list = doc! { "aggregate": 1, "pipeline": [idle, own], "cursor": {} };
        let left = admin(&shop.client, list).await;
        let left = left.get_document("cursor").and_then(|cursor| cursor.get_array("firstBatch")).expect("a list");
        assert!(left.is_empty(), "a cursor was left open: {left:?}");
        // It still can be used.
        feed.open(&cx(), after(&position)).await.expect("it opens");

        let forged = |at: usize, by: u8| {
            let mut bytes = position.bytes.to_vec();
            bytes[at] = bytes[at].wrapping_add(by);
            Position::new(bytes, position.time)
        };
        // A byte for the kind, two for the length and one for the type lie before the seconds. One more in their
        // first byte is half a year later; a lower byte would wrap around every half year.
        let cases = [
            (forged(4, 1), "in the future"),
            (forged(4, 0xff), "left the oplog"),
            (forged(12, 0x99), "damaged"),
            (Position::new(&b"xyz"[..], None), "not one of a MongoDB change stream"),
        ];
        for (position, cause) in cases {
            let found = preflight(&feed, after(&position), Some(&pedigree)).await;
            assert!(reported(&found, Severity::Error, cause), "{cause}: {found:?}");
        }
        let pipeline = vec![doc! { "$match": { "operationType": "insert" } }];
        let found = preflight(&shop.feed(View { pipeline, ..view }), after(&position), Some(&pedigree)).await;
        assert!(reported(&found, Severity::Error, "another scope, pipeline or options"), "{found:?}");
    });
}

#[test]
fn privileges_that_are_missing_are_named_one_by_one() {
    block_on(async {
        let shop = Shop::open().await;
        let database = shop.client.config().database().to_owned();
        let place = doc! { "db": &database, "collection": "orders" };
        let role = doc! {
            "createRole": &database, "privileges": [{ "resource": place, "actions": ["find", "listCollections"] }], "roles": [],
        };
        admin(&shop.client, role).await;
        let user = doc! { "createUser": &database, "pwd": "secret", "roles": [&database] };
        admin(&shop.client, user).await;
        let url = url(shared(), &database).replace("mongodb://", &format!("mongodb://{database}:secret@"));
        let config = Config::new(format!("{url}&authSource=admin")).expect("it is one");
        let client = Client::open(&cx(), config).await.expect("the server is there");
        let found =
            Feed::new(client.clone(), View::collection("orders")).check(&cx()).await.expect("it can be checked");
        let named = |action: &str| format!("this user lacks the privilege {action} on {database}.orders");
        assert!(reported(&found, Severity::Error, &named("changeStream")), "{found:?}");
        assert!(!reported(&found, Severity::Error, &named("find")), "{found:?}");
        let found = Feed::new(client, View::of(Scope::Cluster)).check(&cx()).await.expect("it can be checked");
        assert!(reported(&found, Severity::Error, "changeStream on all databases"), "{found:?}");
        admin(&shop.client, doc! { "dropUser": &database }).await;
    });
}

#[test]
fn a_file_names_a_source_by_its_url() {
    let set: &ReplicaSet = shared();
    block_on(async {
        let shop = Shop::on(Base::on(set)).await;
        let place = Origin::new("watchkeeper.toml:3");
        let mut options = Options::new("stream.orders.source", place.clone());
        let url = url(set, shop.client.config().database());
        let pipeline = r#"[{"$match": {"operationType": "insert"}}, {"$project": {"fullDocument.total": 1}}]"#;
        for (name, value) in [
            ("url", url.as_str()),
            ("collection", "orders"),
            ("pipeline", pipeline),
            ("full_document", "updateLookup"),
            ("max_await_time", "200ms"),
            ("read_preference", "primaryPreferred"),
            ("comment", "the orders"),
        ] {
            options.insert(name, WrittenSetting::text(value, place.clone()));
        }
        let purpose = Purpose::new("shop", "orders");
        let source = MongoDb.source(&cx(), &purpose, &mut options).await.expect("it can be made");
        options.finish().expect("every setting is known");
        let mut stream = source.open(&cx(), StartAt::Now).await.expect("it opens");
        shop.insert(doc! { "_id": 1, "total": 3 }).await;
        let changes = read(&mut *stream, 1).await;
        assert_eq!(
            changes[0].get(&["fullDocument", "total"]).expect("it is BSON"),
            Some(watchkeeper_core::ValueRef::Int32(3))
        );

        let mut wrong = Options::new("stream.orders.source", place.clone());
        wrong.insert("url", WrittenSetting::text(url, place.clone()));
        let error = MongoDb.source(&cx(), &purpose, &mut wrong).await.expect_err("no collection is named");
        assert!(
            error.to_string().starts_with("watchkeeper.toml:3: stream.orders.source.collection: this is missing"),
            "{error}"
        );
    });
}

#[test]
fn a_source_is_outlined_with_its_history_and_what_its_updates_tell() {
    block_on(async {
        let shop = Shop::open().await;
        let place = Origin::new("watchkeeper.toml:3");
        let description = async |full_document: &str| {
            let mut options = Options::new("stream.orders.source", place.clone());
            let url = url(shared(), shop.client.config().database());
            for (name, value) in [("url", &*url), ("collection", "orders"), ("full_document", full_document)] {
                options.insert(name, WrittenSetting::text(value, place.clone()));
            }
            MongoDb.describe(&cx(), &mut options).await.expect("it can be looked at")
        };
        let shown = description("default").await;
        let room = shown.window.and_then(|window| window.room).expect("this user may know it");
        assert_eq!(room.bytes_max, 64 * 1024 * 1024);
        assert!(room.bytes > 0 && !shown.whole_rows, "{shown:?}");
        assert!(description("updateLookup").await.whole_rows);
    });
}
