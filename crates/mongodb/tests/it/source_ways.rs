//! The ways round what a server refuses: events that are too large, and images that are missing.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use watchkeeper_core::{Change, Error, ErrorKind, Limits, Operation, Position, Source, StartAt, ValueRef};
use watchkeeper_mongodb::mongodb::bson::{Document, RawDocument, doc};
use watchkeeper_mongodb::{Before, Large, Shown, View};
use watchkeeper_testkit::servers::mongodb::{ReplicaSet, ReplicaSetSettings};

use crate::source::{LIMITS, Shop, operations, read_patiently};
use crate::support::{Base, assert_error, block_on, cx};

/// Two of these do not fit into one event.
const LARGE: usize = 9 * 1024 * 1024;

/// A set whose oplog has room for large documents and many changes.
pub(crate) fn spacious() -> &'static ReplicaSet {
    static SET: OnceLock<ReplicaSet> = OnceLock::new();
    let arguments = ["--oplogSize", "700"].map(str::to_owned).to_vec();
    SET.get_or_init(|| ReplicaSet::with(&ReplicaSetSettings { nodes: 1, arguments, ..ReplicaSetSettings::default() }))
}

async fn shop_with_images(enabled: bool) -> Shop {
    let shop = Shop::on(Base::on(spacious())).await;
    set_images(&shop, enabled).await;
    shop
}

async fn set_images(shop: &Shop, enabled: bool) {
    let images = doc! { "collMod": "orders", "changeStreamPreAndPostImages": { "enabled": enabled } };
    shop.database.run_command(images).await.expect("it is taken");
}

fn images(full_document: Shown, full_document_before_change: Before) -> View {
    View { full_document, full_document_before_change, ..View::collection("orders") }
}

/// The names in the field `degraded`, in order.
fn degraded(change: &Change) -> Vec<String> {
    let event = RawDocument::from_bytes(change.body()).expect("it is BSON");
    let Ok(names) = event.get_array("degraded") else { return Vec::new() };
    let mut names: Vec<String> = names
        .into_iter()
        .map(|name| name.expect("it is BSON").as_str().expect("a name is a text").to_owned())
        .collect();
    names.sort();
    names
}

fn has(change: &Change, field: &str) -> bool {
    !matches!(change.get(&[field]).expect("it is BSON"), None | Some(ValueRef::Null))
}

/// Reads the rest again from after every change: it is the same.
async fn assert_repeatable(shop: &Shop, view: &View, changes: &[Change]) {
    for (at, change) in changes.iter().enumerate() {
        let rest = &changes[at + 1..];
        let feed = shop.feed(view.clone());
        let mut again = feed.open(&cx(), StartAt::After(change.position())).await.expect("it opens");
        let again = read_patiently(&mut *again, rest.len()).await;
        for (first, second) in rest.iter().zip(&again) {
            assert_eq!(first.id().to_string(), second.id().to_string());
            assert_eq!(degraded(first), degraded(second));
        }
    }
}

#[test]
fn an_event_that_is_too_large_is_reported_in_its_place_with_what_fits() {
    block_on(async {
        let shop = shop_with_images(true).await;
        let view = images(Shown::WhenAvailable, Before::WhenAvailable);
        let mut stream = shop.watch(view.clone()).await;
        shop.insert(doc! { "_id": 0 }).await;
        shop.insert(doc! { "_id": 1, "text": "x".repeat(LARGE) }).await;
        shop.orders().update_one(doc! { "_id": 1 }, doc! { "$set": { "n": 1 } }).await.expect("it is taken");
        shop.insert(doc! { "_id": 2 }).await;
        let changes = read_patiently(&mut *stream, 4).await;
        use Operation::{Insert, Update};
        assert_eq!(operations(&changes), [Insert, Insert, Update, Insert]);
        assert_eq!(degraded(&changes[2]), ["fullDocumentBeforeChange"]);
        assert!(has(&changes[2], "fullDocument") && has(&changes[2], "updateDescription"));
        assert_eq!(changes[2].key(), Some(&b"1"[..]));
        assert!([0, 1, 3].iter().all(|at| degraded(&changes[*at]).is_empty()));
        assert!(!has(&changes[2], "_watchkeeper"));
        assert_repeatable(&shop, &view, &changes).await;
    });
}

#[test]
fn the_description_of_an_update_is_left_out_before_the_document() {
    block_on(async {
        let shop = Shop::on(Base::on(spacious())).await;
        let mut stream = shop.watch(images(Shown::UpdateLookup, Before::Off)).await;
        shop.insert(doc! { "_id": 1 }).await;
        let text = doc! { "$set": { "text": "x".repeat(LARGE) } };
        shop.orders().update_one(doc! { "_id": 1 }, text).await.expect("it is taken");
        let changes = read_patiently(&mut *stream, 2).await;
        assert_eq!(degraded(&changes[1]), ["updateDescription"]);
        assert!(has(&changes[1], "fullDocument") && !has(&changes[1], "updateDescription"));
    });
}

#[test]
fn an_event_that_a_pipeline_makes_too_large_still_names_its_change() {
    block_on(async {
        let shop = Shop::on(Base::on(spacious())).await;
        let pipeline = vec![doc! { "$addFields": { "copy": "$fullDocument" } }];
        let view = View { pipeline, ..View::collection("orders") };
        let mut stream = shop.watch(view.clone()).await;
        shop.insert(doc! { "_id": 1, "text": "x".repeat(LARGE) }).await;
        shop.insert(doc! { "_id": 2 }).await;
        let changes = read_patiently(&mut *stream, 2).await;
        assert_eq!(operations(&changes), [Operation::Insert, Operation::Insert]);
        assert_eq!(degraded(&changes[0]), ["copy", "fullDocument"]);
        assert_eq!(changes[0].key(), Some(&b"1"[..]));
        assert!(has(&changes[1], "copy") && degraded(&changes[1]).is_empty());
        assert_repeatable(&shop, &view, &changes).await;
    });
}

#[test]
fn a_stream_may_halt_instead_before_an_event_that_is_too_large() {
    block_on(async {
        let shop = shop_with_images(true).await;
        let view = View { large_events: Large::Halt, ..images(Shown::WhenAvailable, Before::WhenAvailable) };
        let mut stream = shop.watch(view.clone()).await;
        shop.insert(doc! { "_id": 1, "text": "x".repeat(LARGE) }).await;
        let first = read_patiently(&mut *stream, 1).await;
        shop.orders().update_one(doc! { "_id": 1 }, doc! { "$set": { "n": 1 } }).await.expect("it is taken");
        // Calls that are dropped as soon as they wait forget nothing.
        for _ in 0..200 {
            if let Some(Err(error)) = stream.next_batch(&cx(), LIMITS).now_or_never() {
                assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
            }
            cx().sleep(std::time::Duration::from_millis(5)).await;
        }
        let error = loop {
            match stream.next_batch(&cx(), LIMITS).await {
                Ok(batch) => assert!(batch.is_empty(), "the event is not passed over"),
                Err(error) => break error,
            }
        };
        assert_error::<()>(Err(error), ErrorKind::Corrupt, "an event is larger than 16 MiB");
        // It is not read as it is again and again, and can be delivered when a person says so.
        let mut again = shop.feed(view).open(&cx(), StartAt::After(first[0].position())).await.expect("it opens");
        let refused = loop {
            match again.next_batch(&cx(), LIMITS).await {
                Ok(batch) => assert!(batch.is_empty(), "the event is not passed over"),
                refused => break refused,
            }
        };
        assert_error(refused, ErrorKind::Corrupt, "an event is larger than 16 MiB");
        let view = images(Shown::WhenAvailable, Before::WhenAvailable);
        let mut again = shop.feed(view).open(&cx(), StartAt::After(first[0].position())).await.expect("it opens");
        assert_eq!(degraded(&read_patiently(&mut *again, 1).await[0]), ["fullDocumentBeforeChange"]);
    });
}

#[test]
fn a_stream_that_halts_before_a_large_event_delivers_what_comes_before_it() {
    block_on(async {
        let shop = shop_with_images(true).await;
        let view = View { large_events: Large::Halt, ..images(Shown::WhenAvailable, Before::WhenAvailable) };
        let begin = shop.watch(view.clone()).await.position().expect("it is known");
        for n in 0..5 {
            shop.insert(doc! { "_id": n }).await;
        }
        shop.insert(doc! { "_id": "large", "text": "x".repeat(LARGE) }).await;
        shop.orders().update_one(doc! { "_id": "large" }, doc! { "$set": { "n": 1 } }).await.expect("it is taken");
        shop.insert(doc! { "_id": 9 }).await;
        // All of it lies in one answer of the server, which refuses it as a whole.
        let mut stream = shop.feed(view).open(&cx(), StartAt::After(begin)).await.expect("it opens");
        let mut changes = 0;
        let error = loop {
            match stream.next_batch(&cx(), LIMITS).await {
                Ok(batch) => changes += batch.len(),
                Err(error) => break error,
            }
        };
        assert_eq!(changes, 6, "{error}");
        let (text, namespace) = (error.to_string(), format!("{}.orders", shop.client.config().database()));
        assert!(text.contains(&namespace) && text.contains("\"large\""), "it does not name the event: {text}");
        assert_error::<()>(Err(error), ErrorKind::Corrupt, "an event is larger than 16 MiB");
    });
}

#[test]
fn an_event_whose_required_image_is_missing_is_reported_without_it() {
    block_on(async {
        let shop = shop_with_images(false).await;
        let view = images(Shown::Required, Before::Required);
        let mut stream = shop.watch(view.clone()).await;
        let update = async |n: i32| {
            let updated = shop.orders().update_one(doc! { "_id": 1 }, doc! { "$set": { "n": n } }).await;
            updated.expect("it is taken");
        };
        shop.insert(doc! { "_id": 1 }).await;
        update(1).await;
        set_images(&shop, true).await;
        update(2).await;
        let mut changes = read_patiently(&mut *stream, 3).await;
        // The same again on the same stream.
        set_images(&shop, false).await;
        update(3).await;
        set_images(&shop, true).await;
        shop.orders().delete_one(doc! { "_id": 1 }).await.expect("it is taken");
        changes.extend(read_patiently(&mut *stream, 2).await);
        use Operation::{Delete, Insert, Update};
        assert_eq!(operations(&changes), [Insert, Update, Update, Update, Delete]);
        let both = ["fullDocument", "fullDocumentBeforeChange"];
        for (at, missing) in [(0, &[][..]), (1, &both), (2, &[]), (3, &both), (4, &[])] {
            assert_eq!(degraded(&changes[at]), missing, "{at}");
        }
        assert!(has(&changes[2], "fullDocument") && has(&changes[4], "fullDocumentBeforeChange"));
        assert_repeatable(&shop, &view, &changes).await;
    });
}

#[test]
fn a_condition_on_a_missing_image_is_not_guessed() {
    block_on(async {
        let shop = shop_with_images(false).await;
        let pipeline = vec![doc! { "$match": { "fullDocument.open": true } }];
        let mut stream = shop.watch(View { pipeline, ..images(Shown::Required, Before::Off) }).await;
        shop.insert(doc! { "_id": 1, "open": true }).await;
        shop.orders().update_one(doc! { "_id": 1 }, doc! { "$set": { "n": 1 } }).await.expect("it is taken");
        let limits = Limits { rows: 1, ..LIMITS };
        let error = loop {
            match stream.next_batch(&cx(), limits).await {
                Ok(_) => {}
                Err(error) => break error,
            }
        };
        assert_error::<()>(Err(error), ErrorKind::Config, "a $match decides by it");
    });
}

/// What a stream halts with after so many changes, however often it has to be opened again before.
async fn halt_after(shop: &Shop, begin: Position, count: usize) -> (Position, Error) {
    let feed = shop.feed(View::collection("orders"));
    let until = Instant::now() + Duration::from_secs(60);
    let (mut end, mut changes) = (begin, 0);
    while Instant::now() < until {
        let mut stream = feed.open(&cx(), StartAt::After(end.clone())).await.expect("it opens");
        let error = loop {
            match stream.next_batch(&cx(), LIMITS).await {
                Ok(batch) => {
                    changes += batch.len();
                    end = batch.end.clone();
                }
                Err(error) => break error,
            }
            assert!(Instant::now() < until, "{changes} changes came, and no halt");
        };
        if error.kind() != ErrorKind::Unavailable {
            assert_eq!(changes, count, "{error}");
            return (end, error);
        }
    }
    panic!("{changes} changes came, and no halt");
}

#[test]
fn a_stream_halts_before_an_event_whose_id_is_too_large_and_may_be_led_past_it() {
    block_on(async {
        for bytes in [4_500_000, 5_500_000, 7_500_000] {
            let shop = Shop::on(Base::on(spacious())).await;
            let begin = shop.watch(View::collection("orders")).await.position().expect("it is known");
            shop.insert(doc! { "_id": 1 }).await;
            shop.insert(doc! { "_id": "x".repeat(bytes) }).await;
            shop.insert(doc! { "_id": 2 }).await;
            let (end, error) = halt_after(&shop, begin, 1).await;
            let cause = "the _id of a document is too large to be told by an event: insert of ";
            assert_error::<()>(Err(error), ErrorKind::Corrupt, cause);

            let feed = shop.feed(View::collection("orders"));
            let mut observer = feed.peek(&cx(), StartAt::After(end)).await.expect("it opens");
            let seen = read_patiently(&mut *observer, 2).await;
            assert_eq!((seen[0].operation(), seen[0].key()), (Operation::Insert, None));
            assert_eq!(seen[1].key(), Some(&b"2"[..]));
            let mut rest = feed.open(&cx(), StartAt::After(seen[0].position())).await.expect("it opens");
            assert_eq!(read_patiently(&mut *rest, 1).await[0].key(), Some(&b"2"[..]));
        }
    });
}

#[test]
fn those_who_look_on_are_shown_what_a_stream_halts_at() {
    block_on(async {
        let shop = Shop::on(Base::on(spacious())).await;
        let pipeline = vec![doc! { "$addFields": { "copy": "$fullDocument" } }];
        let feed = shop.feed(View { pipeline, large_events: Large::Halt, ..View::collection("orders") });
        let begin = feed.open(&cx(), StartAt::Now).await.expect("it opens").position().expect("it is known");
        shop.insert(doc! { "_id": 1, "text": "x".repeat(LARGE) }).await;
        shop.insert(doc! { "_id": 2 }).await;
        let mut observer = feed.peek(&cx(), StartAt::After(begin)).await.expect("it opens");
        let seen = read_patiently(&mut *observer, 2).await;
        assert_eq!(degraded(&seen[0]), ["copy", "fullDocument"]);
        let mut rest = feed.open(&cx(), StartAt::After(seen[0].position())).await.expect("it opens");
        assert_eq!(read_patiently(&mut *rest, 1).await[0].key(), Some(&b"2"[..]));
    });
}

#[test]
fn a_stream_can_begin_before_an_event_that_is_too_large() {
    block_on(async {
        let shop = Shop::on(Base::on(spacious())).await;
        let text = "x".repeat(LARGE);
        shop.insert(doc! { "_id": 1, "text": &text }).await;
        let pipeline = vec![doc! { "$addFields": { "copy": "$fullDocument" } }];
        let feed = shop.feed(View { pipeline, ..View::collection("orders") });
        let hello: Document = shop.database.run_command(doc! { "hello": 1 }).await.expect("it is taken");
        let now = hello.get_datetime("localTime").expect("it has a clock").timestamp_millis();
        let begin = watchkeeper_core::SourceTime(u64::try_from(now).expect("after 1970") - 600_000);
        // Before the first entry of all nothing is missing.
        let mut stream = feed.open(&cx(), StartAt::Time(begin)).await.expect("it opens");
        assert_eq!(degraded(&read_patiently(&mut *stream, 1).await[0]), ["copy", "fullDocument"]);
    });
}
