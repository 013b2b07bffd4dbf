//! What becomes of documents of a change stream in the collections of a sink.

use std::slice::from_ref;
use std::sync::Arc;

use watchkeeper_core::{Change, SinkWriter, Source, StartAt, Transacted};
use watchkeeper_mongodb::mongodb::bson::{
    Bson, Document, JavaScriptCodeWithScope, RawDocumentBuf, Timestamp, doc, oid::ObjectId,
};
use watchkeeper_mongodb::{Audit, Events, Mirror, Shown, View};

use crate::sink::{SinkFixture, versioned};
use crate::source::{Shop, read};
use crate::support::{block_on, cx, in_order};

fn whole(pipeline: Vec<Document>) -> View {
    View { full_document: Shown::UpdateLookup, pipeline, ..View::collection("orders") }
}

async fn fixture(shop: &Shop) -> SinkFixture {
    SinkFixture::new(&shop.base, Mirror::into("copy").expect("a name")).await
}

/// Writes changes one by one; what was said of those that were rejected.
async fn write(writer: &Arc<dyn SinkWriter>, changes: &[Change]) -> Vec<String> {
    let mut said = Vec::new();
    for change in changes {
        let written = writer.write(&cx(), 0, change.batch(), &[change.row()]).await.expect("the server answers");
        said.extend(written.rejected.iter().map(|fault| fault.error.to_string()));
    }
    said
}

/// Why a change was rejected.
async fn refusal(fixture: &mut SinkFixture, change: &Change) -> String {
    match fixture.offer(change).await {
        Transacted::Rejected(faults) => faults[0].error.to_string(),
        other => panic!("{other:?}"),
    }
}

/// The documents that are no tombstones, without their marks.
async fn living(shop: &Shop, collection: &str) -> Vec<Document> {
    let mut copies = in_order(&shop.client, collection).await;
    copies.retain(|copy| !copy.get_document("_watchkeeper").is_ok_and(|mark| mark.contains_key("deleted")));
    copies.iter_mut().for_each(|copy| drop(copy.remove("_watchkeeper")));
    copies
}

#[test]
fn an_update_of_a_document_that_is_gone_when_it_is_looked_up_is_passed_over() {
    block_on(async {
        let shop = Shop::open().await;
        let mut stream = shop.watch(whole(Vec::new())).await;
        shop.insert(doc! { "_id": 2, "n": 1 }).await;
        let mut changes = read(&mut *stream, 1).await;
        drop(stream);
        shop.insert(doc! { "_id": 1, "n": 1 }).await;
        shop.orders().update_one(doc! { "_id": 1 }, doc! { "$set": { "n": 2 } }).await.expect("it is taken");
        shop.orders().delete_one(doc! { "_id": 1 }).await.expect("it is taken");
        // A stream that was open meanwhile might have looked it up before it was gone.
        let behind = StartAt::After(changes[0].position());
        let mut stream = shop.feed(whole(Vec::new())).open(&cx(), behind).await.expect("it opens");
        changes.extend(read(&mut *stream, 3).await);
        let reported = changes[2].batch().payload().get(changes[2].body(), &["fullDocument"]).expect("it is an event");
        assert_eq!(reported, Some(watchkeeper_core::ValueRef::Null), "it was gone when it was looked up");

        let mut fixture = fixture(&shop).await;
        fixture.deliver(&changes[..3]).await;
        let before = [doc! { "_id": 1, "n": 1 }, doc! { "_id": 2, "n": 1 }];
        assert_eq!(in_order(&shop.client, "copy").await, before, "its delete has not come yet");
        fixture.deliver(&changes[3..]).await;
        assert_eq!(in_order(&shop.client, "copy").await, before[1..]);

        let writer = versioned(&shop.base, "other").await;
        assert_eq!(write(&writer, &changes).await, Vec::<String>::new());
        assert_eq!(living(&shop, "other").await, before[1..]);
    });
}

#[test]
fn an_update_without_the_image_that_was_wanted_is_no_sign_that_the_document_is_gone() {
    block_on(async {
        let shop = Shop::open().await;
        let view = View { full_document: Shown::WhenAvailable, ..View::collection("orders") };
        let mut stream = shop.watch(view).await;
        shop.insert(doc! { "_id": 1, "n": 1 }).await;
        shop.orders().update_one(doc! {}, doc! { "$set": { "n": 2 } }).await.expect("it is taken");
        let changes = read(&mut *stream, 2).await;
        let mut fixture = fixture(&shop).await;
        fixture.deliver(&changes[..1]).await;
        let said = refusal(&mut fixture, &changes[1]).await;
        assert!(said.contains("does not tell the whole document") && said.contains("setup --images"), "{said}");
        let writer = versioned(&shop.base, "other").await;
        assert_eq!(write(&writer, &changes).await, [said], "it lives on, so nothing may be passed over");
    });
}

#[test]
fn a_document_that_a_pipeline_hides_is_not_taken_for_deleted() {
    let open = doc! { "$cond": ["$fullDocument.open", "$fullDocument", null] };
    let update = doc! { "$eq": ["$operationType", "update"] };
    for (hidden, places) in [
        (doc! { "$set": { "fullDocument": null } }, &[0, 1, 2][..]),
        (
            doc! { "$project": { "operationType": 1, "documentKey": 1, "fullDocument": { "$literal": null } } },
            &[0, 1, 2],
        ),
        (doc! { "$set": { "fullDocument": open } }, &[2]),
        (doc! { "$set": { "fullDocument": { "$cond": [update, null, "$fullDocument"] } } }, &[1, 2]),
    ] {
        block_on(async {
            let shop = Shop::open().await;
            let mut stream = shop.watch(whole(vec![hidden.clone()])).await;
            shop.insert(doc! { "_id": 1, "open": true }).await;
            let mut changes = read(&mut *stream, 1).await;
            for set in [doc! { "n": 1 }, doc! { "open": false }] {
                shop.orders().update_one(doc! {}, doc! { "$set": set }).await.expect("it is taken");
                // Each is read before the next, since it comes with the document as it is then.
                changes.extend(read(&mut *stream, 1).await);
            }
            let mut fixture = fixture(&shop).await;
            let mut rejected = Vec::new();
            for (at, change) in changes.iter().enumerate() {
                if let Transacted::Rejected(faults) = fixture.offer(change).await {
                    rejected.push(at);
                    let said = faults[0].error.to_string();
                    assert!(said.contains("does not tell the whole document") && said.contains("; "), "{said}");
                }
            }
            assert_eq!(rejected, places, "{hidden}");
            let writer = versioned(&shop.base, "other").await;
            assert_eq!(write(&writer, &changes).await.len(), places.len(), "{hidden}");
        });
    }
}

/// A document with a value of every type that drivers seldom write.
fn rare() -> Document {
    let pointer =
        serde_json::json!({ "$dbPointer": { "$ref": "db.c", "$id": { "$oid": "070707070707070707070707" } } });
    let pointer: Bson = serde_json::from_value(pointer).expect("a pointer");
    let scope = doc! { "x": 1, "y": Bson::MaxKey };
    let code = JavaScriptCodeWithScope { code: "g()".to_owned(), scope };
    doc! {
        "_id": Bson::MinKey, "max": Bson::MaxKey, "code": Bson::JavaScriptCode("f()".to_owned()),
        "scoped": Bson::JavaScriptCodeWithScope(code), "symbol": Bson::Symbol("s".to_owned()),
        "undefined": Bson::Undefined, "pointer": pointer, "at": Timestamp { time: 1, increment: 2 },
        "many": [Bson::MinKey, { "deep": Bson::Symbol("t".to_owned()) }], "id": ObjectId::from_bytes([7; 12]),
        "_x": 1, "null": null,
    }
}

#[test]
fn values_of_every_type_arrive_as_they_are() {
    block_on(async {
        let shop = Shop::open().await;
        let mut stream = shop.watch(whole(Vec::new())).await;
        shop.insert(rare()).await;
        shop.orders().update_one(doc! {}, doc! { "$set": { "_x": Bson::MaxKey } }).await.expect("it is taken");
        let changes = read(&mut *stream, 2).await;
        // An update is told with the document as it is when it is read.
        let now = in_order(&shop.client, "orders").await.remove(0);
        assert_eq!(now.get("_x"), Some(&Bson::MaxKey));

        fixture(&shop).await.deliver(&changes).await;
        assert_eq!(in_order(&shop.client, "copy").await, from_ref(&now));
        let writer = versioned(&shop.base, "other").await;
        assert_eq!(write(&writer, &changes).await, Vec::<String>::new());
        assert_eq!(living(&shop, "other").await, from_ref(&now));

        SinkFixture::new(&shop.base, Events::into("log").expect("a name")).await.deliver(&changes).await;
        let logged = in_order(&shop.client, "log").await;
        for (change, entry) in changes.iter().zip(&logged) {
            let event = RawDocumentBuf::from_bytes(change.body().to_vec()).expect("an event");
            let event = Document::try_from(event).expect("an event");
            assert_eq!(entry.get_document("event").expect("the event"), &event);
        }

        SinkFixture::new(&shop.base, Audit::into("audit").expect("a name")).await.deliver(&changes).await;
        let audited = in_order(&shop.client, "audit").await;
        assert_eq!(audited.len(), 2);
        for record in &audited {
            assert_eq!(record.get("documentId"), Some(&Bson::MinKey));
        }
        assert_eq!(audited[1].get_document("document").expect("the document"), &now);
        let difference = audited[1].get_document("changes").expect("the changes");
        assert_eq!(difference.get("updatedFields"), Some(&doc! { "_x": Bson::MaxKey }.into()));
    });
}

#[test]
fn a_document_keeps_its_id_when_the_pipeline_drops_the_key_of_its_event() {
    block_on(async {
        let shop = Shop::open().await;
        let mut stream = shop.watch(whole(vec![doc! { "$unset": "documentKey" }])).await;
        shop.insert(doc! { "_id": 1, "n": 1 }).await;
        let mut changes = read(&mut *stream, 1).await;
        shop.orders().delete_one(doc! {}).await.expect("it is taken");
        changes.extend(read(&mut *stream, 1).await);

        let mut fixture = fixture(&shop).await;
        fixture.deliver(&changes[..1]).await;
        let copy = [doc! { "_id": 1, "n": 1 }];
        assert_eq!(in_order(&shop.client, "copy").await, copy);
        let said = refusal(&mut fixture, &changes[1]).await;
        assert!(said.contains("does not tell the _id") && said.contains("keep documentKey"), "{said}");

        let writer = versioned(&shop.base, "other").await;
        assert_eq!(write(&writer, &changes).await, from_ref(&said));
        assert_eq!(living(&shop, "other").await, copy);

        let mut audit = SinkFixture::new(&shop.base, Audit::into("audit").expect("a name")).await;
        audit.deliver(&changes[..1]).await;
        assert_eq!(in_order(&shop.client, "audit").await[0].get("documentId"), Some(&Bson::Int32(1)));
        assert_eq!(refusal(&mut audit, &changes[1]).await, said);
    });
}

#[test]
fn every_collection_of_a_versioned_sink_forgets_its_tombstones() {
    block_on(async {
        let shop = Shop::open().await;
        let mut stream = shop.watch(whole(Vec::new())).await;
        shop.insert(doc! { "_id": 1 }).await;
        shop.orders().delete_one(doc! {}).await.expect("it is taken");
        let changes = read(&mut *stream, 2).await;
        let writer = versioned(&shop.base, "copy_of_{collection}").await;
        assert_eq!(write(&writer, &changes).await, Vec::<String>::new());
        let copies = shop.database.collection::<Document>("copy_of_orders");
        let names = copies.list_index_names().await.expect("they can be listed");
        assert!(names.iter().any(|name| name == "watchkeeper_tombstones"), "{names:?}");
    });
}
