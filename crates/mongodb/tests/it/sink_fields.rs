//! Documents whose fields have names that statements of the server give a meaning to.

use std::slice::from_ref;
use std::sync::Arc;

use watchkeeper_core::Change;
use watchkeeper_mongodb::mongodb::bson::{Bson, Document, doc};
use watchkeeper_mongodb::{Audit, Events, Mirror, Shown, View};

use crate::sink::{SinkFixture, versioned};
use crate::source::{Shop, read};
use crate::support::{block_on, cx, in_order};

fn whole() -> View {
    View { full_document: Shown::UpdateLookup, ..View::collection("orders") }
}

/// Documents with dollar signs and dots in the names of their fields, at every depth.
fn odd() -> Vec<Document> {
    vec![
        doc! { "_id": 1, "$price": 1, "n": 1 },
        doc! { "_id": 2, "n": 1, "a.b": 1, "": 1, "nested": { "$inner": { "c.d": 1 }, "list": [{ "$in": [1] }] } },
        doc! { "_id": 3, "$set": { "n": 7 }, "n": 1 },
        doc! { "_id": { "k": 1, "a.b": 2 }, "$unset": "n", "n": 1, "ref": { "$ref": "c", "$id": 1 } },
    ]
}

/// A statement that sets the field of exactly this name.
fn set_field(input: &str, field: &str, value: i32) -> Document {
    doc! { "$setField": { "field": { "$literal": field }, "input": input, "value": value } }
}

/// Inserts the documents and updates each of them several times. Every update is read before the next is made, since it comes
/// with the document as it is when it is read.
async fn written(shop: &Shop) -> Vec<Change> {
    let mut stream = shop.watch(whole()).await;
    let mut changes = Vec::new();
    for document in odd() {
        shop.insert(document).await;
    }
    changes.extend(read(&mut *stream, odd().len()).await);
    for document in odd() {
        let id = document.get("_id").expect("it has one");
        let updates = [
            vec![doc! { "$replaceWith": set_field("$$ROOT", "$price", 2) }],
            vec![doc! { "$replaceWith": set_field("$$ROOT", "a.b", 3) }],
            vec![doc! { "$set": { "nested": set_field("$nested", "$inner", 4) } }],
        ];
        for update in updates {
            shop.orders().update_one(doc! { "_id": { "$eq": id } }, update).await.expect("it is taken");
            changes.extend(read(&mut *stream, 1).await);
        }
        shop.orders()
            .update_one(doc! { "_id": { "$eq": id } }, doc! { "$inc": { "n": 1 } })
            .await
            .expect("it is taken");
        changes.extend(read(&mut *stream, 1).await);
    }
    shop.orders().delete_one(doc! { "_id": 3 }).await.expect("it is taken");
    changes.extend(read(&mut *stream, 1).await);
    changes
}

#[test]
fn documents_with_dollars_and_dots_in_their_field_names_follow_every_update() {
    block_on(async {
        let shop = Shop::open().await;
        let changes = written(&shop).await;
        let now = in_order(&shop.client, "orders").await;
        assert_eq!(now.len(), 3);
        assert!(now.iter().all(|document| document.contains_key("$price") && document.contains_key("a.b")), "{now:?}");

        let mut one_by_one = SinkFixture::new(&shop.base, Mirror::into("copy").expect("a name")).await;
        one_by_one.deliver(&changes).await;
        assert_eq!(in_order(&shop.client, "copy").await, now);

        let writer = versioned(&shop.base, "other").await;
        for change in &changes {
            let written = writer.write(&cx(), 0, change.batch(), &[change.row()]).await.expect("the server answers");
            assert!(written.rejected.is_empty(), "{:?}", written.rejected);
        }
        let mut copies = in_order(&shop.client, "other").await;
        copies.retain(|copy| !copy.get_document("_watchkeeper").is_ok_and(|mark| mark.contains_key("deleted")));
        copies.iter_mut().for_each(|copy| drop(copy.remove("_watchkeeper")));
        assert_eq!(copies, now);

        SinkFixture::new(&shop.base, Events::into("log").expect("a name")).await.deliver(&changes).await;
        assert_eq!(in_order(&shop.client, "log").await.len(), changes.len());
        SinkFixture::new(&shop.base, Audit::into("audit").expect("a name")).await.deliver(&changes).await;
        let audited = in_order(&shop.client, "audit").await;
        assert_eq!(audited.len(), changes.len());
        let updates: Vec<_> = audited.iter().filter_map(|record| record.get_document("changes").ok()).collect();
        let priced = doc! { "$price": 2 }.into();
        assert!(updates.iter().any(|changes| changes.get("updatedFields") == Some(&priced)), "{updates:?}");
    });
}

#[test]
fn a_document_that_comes_again_has_the_type_of_its_new_id() {
    block_on(async {
        let shop = Shop::open().await;
        let mut stream = shop.watch(whole()).await;
        // Equal numbers are one key, and each is deleted before the next comes.
        let ids = [Bson::Double(0.0), Bson::Int32(0), Bson::Int64(0), Bson::Int32(0)];
        for (at, id) in ids.iter().enumerate() {
            shop.insert(doc! { "_id": id, "$n": 1, "at": i32::try_from(at).expect("few") }).await;
            if at + 1 < ids.len() {
                shop.orders().delete_one(doc! {}).await.expect("it is taken");
            }
        }
        let changes = read(&mut *stream, 2 * ids.len() - 1).await;
        let now = in_order(&shop.client, "orders").await;
        assert_eq!(now[0].get("_id"), Some(&Bson::Int32(0)));
        let of = |collection: &'static str| async { in_order(&shop.client, collection).await[0].get("_id").cloned() };

        let mut fixture = SinkFixture::new(&shop.base, Mirror::into("copy").expect("a name")).await;
        fixture.deliver(&changes).await;
        assert_eq!(of("copy").await, Some(Bson::Int32(0)));
        let mut fixture = SinkFixture::new(&shop.base, Mirror::into("copy_together").expect("a name")).await;
        fixture.deliver(&changes[..1]).await;
        fixture.deliver_together(&changes[1..]).await;
        assert_eq!(of("copy_together").await, Some(Bson::Int32(0)));
        for (name, apart) in [("other", true), ("other_together", false)] {
            let writer = versioned(&shop.base, name).await;
            for changes in changes.chunk_by(|one, next| !apart && Arc::ptr_eq(one.batch(), next.batch())) {
                let rows: Vec<u32> = changes.iter().map(Change::row).collect();
                let written = writer.write(&cx(), 0, changes[0].batch(), &rows).await.expect("the server answers");
                assert!(written.rejected.is_empty(), "{:?}", written.rejected);
            }
            assert_eq!(of(name).await, Some(Bson::Int32(0)), "{name}");
        }
    });
}

#[test]
fn a_document_with_a_dollar_in_a_field_name_keeps_its_place_among_others() {
    block_on(async {
        let shop = Shop::open().await;
        let mut fixture = SinkFixture::new(&shop.base, Mirror::into("copy").expect("a name")).await;
        let mut stream = shop.watch(whole()).await;
        let documents = [doc! { "_id": 1, "n": 1 }, doc! { "_id": 2, "$n": 1 }, doc! { "_id": 3, "n": { "$n": 1 } }];
        shop.orders().insert_many(&documents).await.expect("they are taken");
        fixture.deliver_together(&read(&mut *stream, 3).await).await;
        assert_eq!(in_order(&shop.client, "copy").await, documents);
        shop.orders().update_many(doc! {}, doc! { "$set": { "m": 1 } }).await.expect("it is taken");
        fixture.deliver_together(&read(&mut *stream, 3).await).await;
        let now = in_order(&shop.client, "orders").await;
        assert_eq!(in_order(&shop.client, "copy").await, now);
        assert_eq!(now[1], doc! { "_id": 2, "$n": 1, "m": 1 });
        assert_ne!(from_ref(&now[0]), &documents[..1]);
    });
}
