//! Documents that drivers seldom write and servers store: with fields that are there twice, and with text that is not UTF-8.

use std::sync::Arc;

use watchkeeper_core::{Change, SinkWriter, Transacted};
use watchkeeper_mongodb::mongodb::bson::raw::{CString, cstr};
use watchkeeper_mongodb::mongodb::bson::{Document, RawBson, RawDocument, RawDocumentBuf, doc, rawdoc};
use watchkeeper_mongodb::{Audit, Events, Mirror, Shown, View};

use crate::sink::{SinkFixture, versioned};
use crate::source::{Shop, read};
use crate::support::{block_on, cx};

fn whole() -> View {
    View { full_document: Shown::UpdateLookup, ..View::collection("orders") }
}

/// A document of these fields, whatever their names.
fn fields(fields: &[(&str, RawBson)]) -> RawDocumentBuf {
    let mut document = RawDocumentBuf::new();
    for (name, value) in fields {
        document.append(CString::try_from(*name).expect("no zero"), value.clone());
    }
    document
}

/// Inserts documents as they are.
async fn insert(shop: &Shop, documents: Vec<RawDocumentBuf>) {
    for document in documents {
        let mut command = rawdoc! { "insert": "orders" };
        let mut list = watchkeeper_mongodb::mongodb::bson::RawArrayBuf::new();
        list.push(document);
        command.append(cstr!("documents"), list);
        let answer: Document = shop.database.run_raw_command(command).await.expect("it is taken");
        assert!(answer.get("writeErrors").is_none(), "{answer}");
    }
}

/// The bytes of all documents of a collection, in the order of a field.
async fn stored(shop: &Shop, collection: &str, order: &str) -> Vec<RawDocumentBuf> {
    let documents = shop.database.collection::<RawDocumentBuf>(collection);
    let mut found = documents.find(doc! {}).sort(doc! { order: 1 }).await.expect("it can be read");
    let mut all = Vec::new();
    while found.advance().await.expect("it can be read") {
        all.push(found.current().to_owned());
    }
    all
}

/// Documents in which a field is there twice: at the top, within another, in a list, beside a dollar sign, in the `_id`.
fn with_fields_twice() -> Vec<RawDocumentBuf> {
    let twice = fields(&[("a", 1.into()), ("b", 2.into()), ("a", 3.into())]);
    vec![
        fields(&[("_id", 1.into()), ("at", 1.into()), ("a", 1.into()), ("a", 2.into())]),
        fields(&[("_id", 2.into()), ("at", 2.into()), ("in", twice.clone().into())]),
        rawdoc! { "_id": 3, "at": 3, "list": [1, { "deep": twice.clone() }] },
        fields(&[("_id", 4.into()), ("at", 4.into()), ("$a", 1.into()), ("a", 1.into()), ("a", 2.into())]),
        fields(&[("_id", twice.into()), ("at", 5.into())]),
    ]
}

/// The changes of documents in which a field is there twice, of one that is like any other, and of their deletion.
async fn changes_of_fields_twice(shop: &Shop) -> Vec<Change> {
    let mut stream = shop.watch(whole()).await;
    insert(shop, with_fields_twice()).await;
    insert(shop, vec![rawdoc! { "_id": 6, "at": 6, "a": 1, "in": { "a": 1 } }]).await;
    read(&mut *stream, 6).await
}

/// Writes changes one by one; the places of those that were rejected, with what was said.
async fn write(writer: &Arc<dyn SinkWriter>, changes: &[Change]) -> Vec<(usize, String)> {
    let mut rejected = Vec::new();
    for (at, change) in changes.iter().enumerate() {
        let written = writer.write(&cx(), 0, change.batch(), &[change.row()]).await.expect("the server answers");
        rejected.extend(written.rejected.iter().map(|fault| (at, fault.error.to_string())));
    }
    rejected
}

/// Offers changes one by one; the places of those that were rejected, with what was said.
async fn offer(fixture: &mut SinkFixture, changes: &[Change]) -> Vec<(usize, String)> {
    let mut rejected = Vec::new();
    for (at, change) in changes.iter().enumerate() {
        match fixture.offer(change).await {
            Transacted::Committed => {}
            Transacted::Rejected(faults) => rejected.push((at, faults[0].error.to_string())),
            other => panic!("{other:?}"),
        }
    }
    rejected
}

fn places(rejected: &[(usize, String)]) -> Vec<usize> {
    rejected.iter().map(|(at, _)| *at).collect()
}

#[test]
fn a_versioned_copy_rejects_documents_with_a_field_twice() {
    block_on(async {
        let shop = Shop::open().await;
        let mut stream = shop.watch(whole()).await;
        let mut changes = changes_of_fields_twice(&shop).await;
        let writer = versioned(&shop.base, "copy").await;
        let rejected = write(&writer, &changes).await;
        assert_eq!(places(&rejected), [0, 1, 2, 3, 4], "{rejected:?}");
        for (_, said) in &rejected {
            assert!(said.contains("has the field a twice") && said.contains("; "), "{said}");
        }
        let copies = stored(&shop, "copy", "at").await;
        assert_eq!(copies.len(), 1, "{copies:?}");
        assert_eq!(copies[0].get_i32("_id").ok(), Some(6));

        // What is there already is compared with what it becomes, by which a server may end itself.
        shop.orders().update_many(doc! {}, doc! { "$set": { "n": 1 } }).await.expect("it is taken");
        changes = read(&mut *stream, 12).await.split_off(6);
        assert_eq!(places(&write(&writer, &changes).await), [0, 1, 2, 3, 4]);
        assert_eq!(stored(&shop, "copy", "at").await[0].get_i32("n").ok(), Some(1));

        shop.orders().delete_many(doc! {}).await.expect("it is taken");
        changes = read(&mut *stream, 6).await;
        // A tombstone has nothing of a document but its `_id`.
        assert_eq!(places(&write(&writer, &changes).await), [4]);
    });
}

#[test]
fn a_versioned_copy_takes_the_other_changes_of_a_batch() {
    block_on(async {
        let shop = Shop::open().await;
        let mut stream = shop.watch(whole()).await;
        insert(&shop, with_fields_twice()).await;
        insert(&shop, vec![rawdoc! { "_id": 6, "at": 6 }]).await;
        let changes = read(&mut *stream, 6).await;
        let writer = versioned(&shop.base, "copy").await;
        for changes in changes.chunk_by(|one, next| Arc::ptr_eq(one.batch(), next.batch())) {
            let rows: Vec<u32> = changes.iter().map(Change::row).collect();
            let written = writer.write(&cx(), 0, changes[0].batch(), &rows).await.expect("the server answers");
            assert_eq!(written.done, rows.len());
        }
        assert_eq!(stored(&shop, "copy", "at").await.len(), 1);
    });
}

#[test]
fn a_mirror_has_documents_with_a_field_twice_as_they_are_or_rejects_them() {
    block_on(async {
        let shop = Shop::open().await;
        let changes = changes_of_fields_twice(&shop).await;
        let originals = stored(&shop, "orders", "at").await;
        let mut fixture = SinkFixture::new(&shop.base, Mirror::into("copy").expect("a name")).await;
        let rejected = offer(&mut fixture, &changes).await;
        let kept: Vec<RawDocumentBuf> = (0..)
            .zip(originals)
            .filter(|(at, _)| !places(&rejected).contains(at))
            .map(|(_, original)| original)
            .collect();
        assert_eq!(stored(&shop, "copy", "at").await, kept);
        // Only with a name that begins with a dollar sign a document is written by a pipeline.
        assert_eq!(places(&rejected), [3], "{rejected:?}");
        assert!(rejected[0].1.contains("has the field a twice"), "{rejected:?}");
    });
}

#[test]
fn a_mirror_follows_updates_of_documents_with_a_field_twice() {
    block_on(async {
        let shop = Shop::open().await;
        let mut stream = shop.watch(whole()).await;
        insert(&shop, with_fields_twice()).await;
        let mut changes = read(&mut *stream, 5).await;
        // The fourth has a dollar sign in a name.
        shop.orders().delete_one(doc! { "_id": 4 }).await.expect("it is taken");
        shop.orders().update_many(doc! {}, doc! { "$set": { "n": 1 } }).await.expect("it is taken");
        changes.extend(read(&mut *stream, 5).await);
        // One is replaced by a document that is written by a pipeline.
        shop.orders().delete_one(doc! { "_id": 1 }).await.expect("it is taken");
        insert(&shop, vec![rawdoc! { "_id": 1, "at": 1, "$a": 1 }]).await;
        let replaced = read(&mut *stream, 2).await;
        let mut fixture = SinkFixture::new(&shop.base, Mirror::into("copy").expect("a name")).await;
        assert_eq!(places(&offer(&mut fixture, &changes).await), [3]);
        fixture.deliver_together(&replaced).await;
        assert_eq!(stored(&shop, "copy", "at").await, stored(&shop, "orders", "at").await);
        shop.orders().delete_many(doc! {}).await.expect("it is taken");
        fixture.deliver_together(&read(&mut *stream, 4).await).await;
        assert_eq!(stored(&shop, "copy", "at").await.len(), 0);
    });
}

#[test]
fn events_tell_of_documents_with_a_field_twice_as_they_are() {
    block_on(async {
        let shop = Shop::open().await;
        let changes = changes_of_fields_twice(&shop).await;
        let mut log = SinkFixture::new(&shop.base, Events::into("log").expect("a name")).await;
        log.deliver(&changes).await;
        let logged = stored(&shop, "log", "_id").await;
        for (change, entry) in changes.iter().zip(&logged) {
            assert_eq!(entry.get_document("event").expect("the event").as_bytes(), change.body());
        }
        let mut audit = SinkFixture::new(&shop.base, Audit::into("audit").expect("a name")).await;
        audit.deliver(&changes).await;
        let audited = stored(&shop, "audit", "_id").await;
        let originals = stored(&shop, "orders", "at").await;
        for (original, entry) in originals.iter().zip(&audited) {
            assert_eq!(entry.get_document("document").expect("the document"), &**original);
        }
    });
}

/// The same bytes with `0xff`, which no text in UTF-8 has, for every `?`.
fn spoilt(document: &RawDocument) -> RawDocumentBuf {
    let bytes = document.as_bytes().iter().map(|byte| if *byte == b'?' { 0xff } else { *byte }).collect();
    RawDocumentBuf::from_bytes(bytes).expect("its length is the same")
}

/// Documents whose `_id` holds text that is not UTF-8: as a value, as a name, in a list.
fn with_spoilt_ids() -> Vec<RawDocumentBuf> {
    let ids = [rawdoc! { "a": "x?" }, rawdoc! { "?": 1 }, rawdoc! { "a": [{ "b": "?" }] }];
    ids.into_iter().zip(1..).map(|(id, at)| spoilt(&rawdoc! { "_id": id, "at": at })).collect()
}

#[test]
fn a_change_whose_id_is_no_text_in_utf_8_is_rejected() {
    block_on(async {
        let shop = Shop::open().await;
        let mut stream = shop.watch(whole()).await;
        insert(&shop, with_spoilt_ids()).await;
        insert(&shop, vec![rawdoc! { "_id": { "a": "x" }, "at": 4 }]).await;
        let changes = read(&mut *stream, 4).await;
        let mut fixture = SinkFixture::new(&shop.base, Mirror::into("copy").expect("a name")).await;
        let writer = versioned(&shop.base, "other").await;
        for rejected in [offer(&mut fixture, &changes).await, write(&writer, &changes).await] {
            assert_eq!(places(&rejected), [0, 1, 2], "{rejected:?}");
            for (_, said) in &rejected {
                assert!(said.contains("its _id holds text that is not UTF-8") && said.contains("; "), "{said}");
            }
        }
        for copy in ["copy", "other"] {
            assert_eq!(stored(&shop, copy, "at").await.len(), 1, "{copy}");
        }
        shop.orders().delete_many(doc! {}).await.expect("it is taken");
        let deletes = read(&mut *stream, 4).await;
        assert_eq!(places(&offer(&mut fixture, &deletes).await), [0; 0], "what is not there can be deleted");
        assert_eq!(places(&write(&writer, &deletes).await), [0, 1, 2], "a tombstone would have that _id");

        SinkFixture::new(&shop.base, Events::into("log").expect("a name")).await.deliver(&changes).await;
        assert_eq!(stored(&shop, "log", "_id").await.len(), 4);
    });
}

#[test]
fn a_document_with_text_that_is_not_utf_8_beside_its_id_is_mirrored_as_it_is() {
    block_on(async {
        let shop = Shop::open().await;
        let mut stream = shop.watch(whole()).await;
        insert(&shop, vec![spoilt(&rawdoc! { "_id": 1, "text": "?", "in": { "?": "x?" } })]).await;
        let changes = read(&mut *stream, 1).await;
        SinkFixture::new(&shop.base, Mirror::into("copy").expect("a name")).await.deliver(&changes).await;
        assert_eq!(stored(&shop, "copy", "_id").await, stored(&shop, "orders", "_id").await);
    });
}

#[test]
fn a_tombstone_takes_the_place_of_a_stored_document_with_a_field_twice() {
    block_on(async {
        let shop = Shop::open().await;
        let mut stream = shop.watch(whole()).await;
        insert(&shop, vec![rawdoc! { "_id": 1, "at": 1 }]).await;
        shop.orders().delete_one(doc! {}).await.expect("it is taken");
        let deleted = read(&mut *stream, 2).await.split_off(1);
        // As an earlier build may have written it.
        let mark = rawdoc! { "time": 1_i64, "ordinal": 0_i64 };
        let stale = fields(&[("_id", 1.into()), ("a", 1.into()), ("a", 2.into()), ("_watchkeeper", mark.into())]);
        let mut list = watchkeeper_mongodb::mongodb::bson::RawArrayBuf::new();
        list.push(stale);
        let mut command = rawdoc! { "insert": "copy" };
        command.append(cstr!("documents"), list);
        shop.database.run_raw_command(command).await.expect("it is taken");
        let writer = versioned(&shop.base, "copy").await;
        assert_eq!(write(&writer, &deleted).await, []);
        let copies = stored(&shop, "copy", "_id").await;
        assert!(
            copies[0].get_document("_watchkeeper").is_ok_and(|mark| mark.get("deleted").is_ok_and(|at| at.is_some()))
        );
    });
}
