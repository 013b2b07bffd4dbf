//! The pipelines that people write, and what they must not break.

use watchkeeper_core::format::{CloudEvents, Debezium, NAMES, named};
use watchkeeper_core::{Change, ErrorKind, Finding, Operation, Severity, Source, StartAt};
use watchkeeper_mongodb::mongodb::bson::{Document, doc};
use watchkeeper_mongodb::{Client, Feed, Scope, Shown, View};

use crate::feedback_loop::options;
use crate::source::{LIMITS, Shop, operations, read, read_to_the_end, text};
use crate::support::{assert_error, block_on, cx};

/// Two inserts, an update, a delete and the end of the collection, seen through a pipeline.
async fn seen(pipeline: Vec<Document>, count: usize) -> Vec<Change> {
    let shop = Shop::open().await;
    let view = View { pipeline, full_document: Shown::UpdateLookup, ..View::collection("orders") };
    let mut stream = shop.watch(view).await;
    shop.insert(doc! { "_id": 1, "total": 1500, "status": "new", "customerId": 7 }).await;
    shop.insert(doc! { "_id": 2, "total": 10, "status": "new", "customerId": 8 }).await;
    let one = || doc! { "_id": 1 };
    shop.orders().update_one(one(), doc! { "$set": { "status": "paid" } }).await.expect("it is taken");
    // Until the update was looked up, the document has to stay.
    let mut changes = read(&mut *stream, count).await;
    shop.orders().delete_one(one()).await.expect("it is taken");
    shop.orders().drop().await.expect("it can be dropped");
    changes.extend(read_to_the_end(&mut *stream).await);
    changes
}

const INVALIDATE: Operation = Operation::Invalidate;

#[test]
fn only_inserts() {
    block_on(async {
        let changes = seen(vec![doc! { "$match": { "operationType": "insert" } }], 2).await;
        assert_eq!(operations(&changes), [Operation::Insert, Operation::Insert, INVALIDATE]);
    });
}

#[test]
fn only_orders_of_high_value() {
    block_on(async {
        let condition =
            doc! { "fullDocument.total": { "$gte": 1000 }, "operationType": { "$in": ["insert", "update"] } };
        let changes = seen(vec![doc! { "$match": condition }], 2).await;
        assert_eq!(operations(&changes), [Operation::Insert, Operation::Update, INVALIDATE]);
    });
}

#[test]
fn only_changes_of_the_status() {
    block_on(async {
        let status = doc! { "operationType": "update", "updateDescription.updatedFields.status": { "$exists": true } };
        let changes = seen(vec![doc! { "$match": { "$or": [{ "operationType": "insert" }, status] } }], 3).await;
        assert_eq!(operations(&changes), [Operation::Insert, Operation::Insert, Operation::Update, INVALIDATE]);
    });
}

#[test]
fn a_collation_decides_what_a_condition_matches() {
    block_on(async {
        let shop = Shop::open().await;
        let pipeline = vec![doc! { "$match": { "operationType": { "$ne": "DELETE" }, "ns.coll": "Orders" } }];
        let collation = Some(doc! { "locale": "en", "strength": 2 });
        let view = View { pipeline, collation, full_document: Shown::UpdateLookup, ..View::collection("orders") };
        let mut stream = shop.watch(view.clone()).await;
        shop.insert(doc! { "_id": 1 }).await;
        shop.orders().delete_one(doc! {}).await.expect("it is taken");
        shop.insert(doc! { "_id": 2 }).await;
        let changes = read(&mut *stream, 2).await;
        assert_eq!(operations(&changes), [Operation::Insert, Operation::Insert], "the delete is hidden");
        let refused = shop.feed(view).require_all_changes();
        assert_error(refused, ErrorKind::Config, "by a collation");
    });
}

#[test]
fn documents_in_a_pipeline_keep_the_order_of_their_fields() {
    block_on(async {
        let shop = Shop::open().await;
        let database = shop.client.config().database();
        let written = format!(r#"[{{"$match": {{"ns": {{"db": "{database}", "coll": "orders"}}}}}}]"#);
        let settings = [("scope", "database"), ("pipeline", written.as_str())];
        let view = |settings: &[(&str, &str)]| {
            let mut options = options("", settings);
            options.take("url");
            View::from_options(&mut options).expect("settings")
        };
        let mut stream = shop.watch(view(&settings)).await;
        shop.insert(doc! { "_id": 1 }).await;
        assert_eq!(operations(&read(&mut *stream, 1).await), [Operation::Insert]);

        // A checkpoint is known by what is watched, in whichever order the fields of a condition stand.
        let pipeline = |condition: &str| format!(r#"[{{"$match": {{{condition}}}}}]"#);
        let conditions =
            [r#""ns.coll": "a", "operationType": "insert""#, r#""operationType": "insert", "ns.coll": "a""#];
        let mut pedigrees = Vec::new();
        for condition in conditions {
            let written = pipeline(condition);
            let feed = shop.feed(view(&[("scope", "database"), ("pipeline", written.as_str())]));
            let pedigree = feed.identity(&cx()).await.expect("the server answers");
            let stored: serde_json::Value = serde_json::from_slice(&pedigree.0).expect("JSON");
            pedigrees.push(stored["view"].as_str().expect("a hash").to_owned());
        }
        assert_eq!(pedigrees[0], pedigrees[1]);
    });
}

#[test]
fn only_some_fields() {
    block_on(async {
        let pipeline = vec![
            doc! { "$match": { "operationType": { "$in": ["insert", "update"] } } },
            doc! { "$project": {
                "operationType": 1, "documentKey._id": 1,
                "fullDocument.customerId": 1, "fullDocument.status": 1, "fullDocument.total": 1,
            } },
        ];
        let changes = seen(pipeline, 3).await;
        assert_eq!(operations(&changes), [Operation::Insert, Operation::Insert, Operation::Update, INVALIDATE]);
        assert!(changes[0].namespace().ends_with(".orders"), "the namespace was projected away, and is known still");
        assert_eq!(changes[2].key(), Some(&b"1"[..]));
        assert!(changes[2].time().0 > 0 && changes[2].version() > changes[1].version());
        let event = text(&*named("native").expect("known"), &changes[2]);
        assert!(
            event.ends_with(r#""fullDocument":{"total":1500,"status":"paid","customerId":7},"documentKey":{"_id":1}}"#),
            "{event}"
        );
    });
}

#[test]
fn added_fields_appear_in_every_format() {
    block_on(async {
        let added = doc! { "processedAt": "$$NOW", "isHighValue": { "$gte": ["$fullDocument.total", 500] } };
        let changes = seen(vec![doc! { "$addFields": added }], 3).await;
        let kinds =
            [Operation::Insert, Operation::Insert, Operation::Update, Operation::Delete, Operation::Drop, INVALIDATE];
        assert_eq!(operations(&changes), kinds);
        for format in NAMES.map(|name| named(name).expect("a listed name is known")) {
            let line = text(&*format, &changes[0]);
            assert!(line.contains(r#""isHighValue":true"#) && line.contains("processedAt"), "{line}");
        }
        assert!(text(&Debezium, &changes[1]).contains(r#""isHighValue":false"#));
    });
}

#[test]
fn a_shape_of_ones_own() {
    block_on(async {
        let high =
            doc! { "$or": [{ "$gte": ["$fullDocument.total", 1000] }, { "$eq": ["$fullDocument.priority", "high"] }] };
        let pipeline = vec![
            doc! { "$match": { "operationType": { "$in": ["insert", "update"] }, "fullDocument.status": { "$exists": true } } },
            doc! { "$addFields": {
                "eventId": { "$toString": "$_id._data" }, "timestamp": "$clusterTime",
                "orderValue": "$fullDocument.total", "isHighPriority": high,
            } },
            doc! { "$project": {
                "eventId": 1, "timestamp": 1, "operationType": 1, "orderId": "$documentKey._id",
                "customerId": "$fullDocument.customerId", "status": "$fullDocument.status",
                "orderValue": 1, "isHighPriority": 1,
            } },
        ];
        let changes = seen(pipeline, 3).await;
        assert_eq!(operations(&changes), [Operation::Insert, Operation::Insert, Operation::Update, INVALIDATE]);
        assert_eq!(changes[0].key(), Some(&b"1"[..]));
        for format in NAMES.map(|name| named(name).expect("a listed name is known")) {
            let line = text(&*format, &changes[0]);
            assert!(line.contains(r#""orderValue":1500"#) && line.contains(r#""isHighPriority":true"#), "{line}");
            assert!(!line.contains("_watchkeeper"), "{line}");
        }
        assert!(text(&CloudEvents, &changes[0]).contains(r#""subject":"1""#));
    });
}

#[test]
fn a_new_root_keeps_what_is_needed() {
    block_on(async {
        let root = doc! { "_id": "$_id", "who": "$fullDocument.customerId" };
        let changes = seen(vec![doc! { "$replaceRoot": { "newRoot": root } }], 3).await;
        assert_eq!(changes.len(), 6);
        let native = text(&*named("native").expect("known"), &changes[0]);
        assert!(native.ends_with(r#""who":7}"#), "{native}");
    });
}

#[test]
fn a_pipeline_that_changes_the_token_is_refused() {
    block_on(async {
        let shop = Shop::open().await;
        let reported = "the pipeline changes or drops _id";
        for stage in [
            doc! { "$set": { "_id": 1 } },
            doc! { "$project": { "_id": 0 } },
            doc! { "$unset": "_id" },
            doc! { "$replaceWith": "$fullDocument" },
            doc! { "$replaceRoot": { "newRoot": "$fullDocument" } },
        ] {
            let feed = shop.feed(View { pipeline: vec![stage.clone()], ..View::collection("orders") });
            assert_error(feed.open(&cx(), StartAt::Now).await.map(drop), ErrorKind::Config, reported);
            let found = feed.check(&cx()).await.expect("it can be checked");
            assert!(
                found.iter().any(|found| found.severity == Severity::Error && found.what.contains(reported)),
                "{stage}"
            );
        }
        // Of what is not seen through here, the server tells with the first event.
        let other = doc! { "$setField": { "field": "_id", "input": "$$ROOT", "value": 1 } };
        let pipeline = vec![doc! { "$replaceWith": other }];
        let mut stream = shop.watch(View { pipeline, ..View::collection("orders") }).await;
        shop.insert(doc! { "_id": 1 }).await;
        assert_error(stream.next_batch(&cx(), LIMITS).await, ErrorKind::Config, reported);
    });
}

#[test]
fn fields_within_fields_are_left_out() {
    block_on(async {
        let left_out = doc! { "fullDocument": { "customerId": 0, "total": false } };
        let changes = seen(vec![doc! { "$project": left_out }], 3).await;
        let event = text(&*named("native").expect("known"), &changes[0]);
        assert!(event.contains(r#""fullDocument":{"_id":1,"status":"new"}"#), "{event}");
        assert_eq!(changes[0].key(), Some(&b"1"[..]));
    });
}

#[test]
fn a_pipeline_that_is_none_is_refused() {
    block_on(async {
        let shop = Shop::open().await;
        for (stage, said) in [
            (doc! { "$nonsense": {} }, "$nonsense"),
            (doc! { "$mtch": {} }, "$mtch"),
            (doc! {}, "exactly one field"),
            (doc! { "$match": { "$foo": 1 } }, "$foo"),
            (doc! { "$match": 5 }, "match filter"),
            (doc! { "$project": { "ns": 0, "documentKey": 1 } }, "documentKey"),
            (doc! { "$project": { "fullDocument": { "$nothing": 1 } } }, "$nothing"),
            (doc! { "$group": { "_id": null } }, "$group"),
        ] {
            let feed = shop.feed(View { pipeline: vec![stage], ..View::collection("orders") });
            assert_error(feed.open(&cx(), StartAt::Now).await.map(drop), ErrorKind::Config, said);
            let found = feed.check(&cx()).await.expect("it can be checked");
            let is_reported = |found: &Finding| {
                found.severity == Severity::Error && found.what.contains(said) && found.remedy.is_some()
            };
            assert!(found.iter().any(is_reported), "{found:?}");
        }
    });
}

#[test]
fn what_belongs_to_the_servers_is_not_watched() {
    block_on(async {
        let shop = Shop::open().await;
        let feed = shop.feed(View { wait: true, ..View::collection("system.profile") });
        assert_error(feed.open(&cx(), StartAt::Now).await.map(drop), ErrorKind::Config, "cannot be watched");
        let config = shop.base.config().in_database("admin");
        let admin = Feed::new(Client::open(&cx(), config).await.expect("it answers"), View::of(Scope::Database));
        assert_error(admin.open(&cx(), StartAt::Now).await.map(drop), ErrorKind::Config, "cannot be watched");
    });
}
