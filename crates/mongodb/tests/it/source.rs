//! Change streams on a real replica set: the laws, scopes, operations, images, positions.

use std::sync::Arc;
use std::time::Duration;

use watchkeeper_core::format::Format;
use watchkeeper_core::{Change, ChangeStream, Limits, Operation, OperationTime, Position, Source, StartAt};
use watchkeeper_mongodb::mongodb::bson::{Document, doc};
use watchkeeper_mongodb::mongodb::{Collection, Database};
use watchkeeper_mongodb::{Client, Feed, Scope, Shown, View};

use crate::support::{Base, block_on, cx};

pub(crate) const LIMITS: Limits = Limits { rows: 100, bytes: 1 << 20, wait: Duration::from_secs(2) };

/// A database with a collection `orders`, and a client that watches.
pub(crate) struct Shop {
    pub(crate) base: Base,
    pub(crate) client: Client,
    pub(crate) database: Database,
}

impl Shop {
    pub(crate) async fn open() -> Self {
        Self::on(Base::new()).await
    }

    pub(crate) async fn on(base: Base) -> Self {
        let client = base.client().await;
        let database = client.database(&cx()).await.expect("it is there");
        database.create_collection("orders").await.expect("it can be made");
        Self { base, client, database }
    }

    /// The same shop by new connections, after its servers were away.
    pub(crate) async fn again(self) -> Self {
        let client = self.base.client().await;
        let database = client.database(&cx()).await.expect("it is there");
        Self { client, database, ..self }
    }

    pub(crate) fn orders(&self) -> Collection<Document> {
        self.database.collection("orders")
    }

    pub(crate) async fn insert(&self, order: Document) {
        self.orders().insert_one(order).await.expect("it is taken");
    }

    pub(crate) fn feed(&self, view: View) -> Feed {
        Feed::new(self.client.clone(), view)
    }

    pub(crate) async fn watch(&self, view: View) -> Box<dyn ChangeStream> {
        self.feed(view).open(&cx(), StartAt::Now).await.expect("it opens")
    }
}

/// Reads until the invalidate, which is the last change.
pub(crate) async fn read_to_the_end(stream: &mut dyn ChangeStream) -> Vec<Change> {
    let mut changes: Vec<Change> = Vec::new();
    for _ in 0..20 {
        if changes.last().map(Change::operation) == Some(Operation::Invalidate) {
            break;
        }
        changes.extend(read_batch(stream).await);
    }
    assert_eq!(changes.last().map(Change::operation), Some(Operation::Invalidate), "{:?}", operations(&changes));
    changes
}

async fn read_batch(stream: &mut dyn ChangeStream) -> Vec<Change> {
    let batch = Arc::new(stream.next_batch(&cx(), LIMITS).await.expect("it reads"));
    (0..).take(batch.len()).map(|row| Change::new(Arc::clone(&batch), row)).collect()
}

/// Reads so many changes.
pub(crate) async fn read(stream: &mut dyn ChangeStream, count: usize) -> Vec<Change> {
    let mut changes = Vec::new();
    for _ in 0..count + 5 {
        if changes.len() >= count {
            break;
        }
        changes.extend(read_batch(stream).await);
    }
    assert_eq!(changes.len(), count, "{:?}", operations(&changes));
    changes
}

/// Reads so many changes, however slow the machine is.
pub(crate) async fn read_patiently(stream: &mut dyn ChangeStream, count: usize) -> Vec<Change> {
    let until = std::time::Instant::now() + Duration::from_secs(60);
    let mut changes = Vec::new();
    while changes.len() < count && std::time::Instant::now() < until {
        changes.extend(read_batch(stream).await);
    }
    assert_eq!(changes.len(), count, "{:?}", operations(&changes));
    changes
}

pub(crate) fn operations(changes: &[Change]) -> Vec<Operation> {
    changes.iter().map(Change::operation).collect()
}

pub(crate) fn text(format: &dyn Format, change: &Change) -> String {
    let mut out = Vec::new();
    format.write(change, &mut out).expect("it can be written");
    String::from_utf8(out).expect("JSON is text")
}

mod laws {
    use async_trait::async_trait;
    use watchkeeper_core::{Cx, Error, Result};
    use watchkeeper_testkit::laws::{Law, LawOf, SourceBench};

    use super::*;

    struct Things {
        cx: Cx,
        shop: Shop,
        view: View,
    }

    fn id(key: u64) -> Document {
        doc! { "_id": key.cast_signed() }
    }

    fn reported(error: watchkeeper_mongodb::mongodb::error::Error) -> Error {
        Error::internal(error.to_string())
    }

    #[async_trait]
    impl SourceBench for Things {
        fn cx(&self) -> &Cx {
            &self.cx
        }

        fn source(&self) -> Arc<dyn Source> {
            Arc::new(self.shop.feed(self.view.clone()))
        }

        async fn insert(&self, key: u64) -> Result<()> {
            self.shop.orders().insert_one(id(key)).await.map(drop).map_err(reported)
        }

        async fn update(&self, key: u64) -> Result<()> {
            self.shop.orders().update_one(id(key), doc! { "$inc": { "n": 1 } }).await.map(drop).map_err(reported)
        }

        async fn delete(&self, key: u64) -> Result<()> {
            self.shop.orders().delete_one(id(key)).await.map(drop).map_err(reported)
        }

        async fn barrier(&self) -> Result<bool> {
            // A database stream is told of a collection's end, and goes on.
            if self.view.scope != Scope::Database {
                return Ok(false);
            }
            self.shop.orders().drop().await.map_err(reported)?;
            Ok(true)
        }
    }

    fn run(law: &LawOf<dyn SourceBench>, view: View) -> Law {
        block_on(async { law.holds_on(&Things { cx: cx(), shop: Shop::open().await, view }).await })
    }

    mod of_a_collection {
        use super::*;

        fn run(law: &LawOf<dyn SourceBench>) -> Law {
            super::run(law, View::collection("orders"))
        }

        watchkeeper_testkit::source_laws!(run);
    }

    mod of_a_database {
        use super::*;

        fn run(law: &LawOf<dyn SourceBench>) -> Law {
            super::run(law, View::of(Scope::Database))
        }

        watchkeeper_testkit::source_laws!(run);
    }

    mod with_fields_kept_aside {
        use super::*;

        fn run(law: &LawOf<dyn SourceBench>) -> Law {
            let pipeline = vec![doc! { "$project": { "fullDocument": 1 } }];
            super::run(law, View { pipeline, ..View::collection("orders") })
        }

        watchkeeper_testkit::source_laws!(run);
    }
}

#[test]
fn a_database_tells_of_all_its_collections() {
    block_on(async {
        let shop = Shop::open().await;
        let mut stream = shop.watch(View::of(Scope::Database)).await;
        shop.insert(doc! { "_id": 1 }).await;
        shop.database.collection("lines").insert_one(doc! { "_id": 1 }).await.expect("it is taken");
        let changes = read(&mut *stream, 2).await;
        let names: Vec<_> =
            changes.iter().map(|change| change.namespace().rsplit_once('.').map(|(_, name)| name)).collect();
        assert_eq!(names, [Some("orders"), Some("lines")]);
        assert_eq!(changes[0].key(), Some(&b"1"[..]));
    });
}

#[test]
fn a_cluster_tells_of_all_its_databases() {
    block_on(async {
        let shop = Shop::open().await;
        // Other tests write into the same cluster: the server sends only what is of this one.
        let own = shop.client.config().database().to_owned();
        let pipeline = vec![doc! { "$match": { "ns.db": { "$in": [&own, format!("{own}_too")] } } }];
        let mut stream = shop.watch(View { pipeline, ..View::of(Scope::Cluster) }).await;
        shop.insert(doc! { "_id": 1 }).await;
        let other = shop.client.driver(&cx()).await.expect("it is open").database(&format!("{own}_too"));
        other.collection("b").insert_one(doc! { "_id": 2 }).await.expect("it is taken");
        let changes = read(&mut *stream, 2).await;
        assert_eq!(changes[0].namespace(), format!("{own}.orders"));
        assert_eq!(changes[1].namespace(), format!("{own}_too.b"));
    });
}

#[test]
fn several_collections_are_picked_by_the_server() {
    block_on(async {
        let shop = Shop::open().await;
        shop.database.create_collection("lines").await.expect("it can be made");
        let scope = Scope::Collections(vec!["orders".into(), "lines".into()]);
        let mut stream = shop.watch(View::of(scope)).await;
        for name in ["orders", "others", "lines"] {
            shop.database.collection(name).insert_one(doc! { "_id": name }).await.expect("it is taken");
        }
        let changes = read(&mut *stream, 2).await;
        assert_eq!(changes[0].key(), Some(&b"\"orders\""[..]));
        assert_eq!(changes[1].key(), Some(&b"\"lines\""[..]));
    });
}

#[test]
fn expanded_events_are_reported_as_barriers_in_their_place() {
    block_on(async {
        let shop = Shop::open().await;
        let mut stream = shop.watch(View { show_expanded_events: true, ..View::of(Scope::Database) }).await;
        let run = async |command: Document| shop.database.run_command(command).await.expect("it is taken");
        run(doc! { "create": "lines" }).await;
        run(doc! { "createIndexes": "lines", "indexes": [{ "key": { "a": 1 }, "name": "a" }] }).await;
        run(doc! { "collMod": "lines", "changeStreamPreAndPostImages": { "enabled": true } }).await;
        run(doc! { "dropIndexes": "lines", "index": "a" }).await;
        shop.database.collection("lines").insert_one(doc! { "_id": 1 }).await.expect("it is taken");
        shop.database.drop().await.expect("it can be dropped");
        let changes = read_to_the_end(&mut *stream).await;
        assert!(changes.iter().all(|change| change.key().is_none() != change.operation().has_row()));
        use Operation::*;
        let expected = [Create, CreateIndexes, Modify, DropIndexes, Insert, Drop, Drop, DropDatabase, Invalidate];
        assert_eq!(operations(&changes), expected);
    });
}

#[test]
fn a_stream_goes_on_after_its_collection_was_dropped_and_made_again() {
    block_on(async {
        let shop = Shop::open().await;
        let feed = shop.feed(View::collection("orders"));
        let mut stream = shop.watch(View::collection("orders")).await;
        shop.insert(doc! { "_id": 1 }).await;
        shop.orders().drop().await.expect("it can be dropped");
        let changes = read(&mut *stream, 3).await;
        assert_eq!(operations(&changes), [Operation::Insert, Operation::Drop, Operation::Invalidate]);
        assert_eq!(changes[2].key(), None);
        shop.insert(doc! { "_id": 2 }).await;
        let after = read(&mut *stream, 1).await;
        assert_eq!(after[0].key(), Some(&b"2"[..]));
        // Also for whoever takes over between the two, with the pedigree that was stored beside the invalidate or before.
        let pedigree = feed.identity(&cx()).await.expect("it is known");
        feed.verify(&cx(), &changes[2].position(), &pedigree).await.expect("the position is good");
        let mut again = feed.open(&cx(), StartAt::After(changes[2].position())).await.expect("it opens");
        assert_eq!(read(&mut *again, 1).await[0].id().to_string(), after[0].id().to_string());
        // And from before the drop.
        let mut again = feed.open(&cx(), StartAt::After(changes[0].position())).await.expect("it opens");
        let again = read(&mut *again, 3).await;
        assert_eq!(operations(&again), [Operation::Drop, Operation::Invalidate, Operation::Insert]);
    });
}

#[test]
fn the_end_of_a_silence_after_an_invalidate_can_be_resumed_from() {
    block_on(async {
        let shop = Shop::open().await;
        let mut stream = shop.watch(View::collection("orders")).await;
        shop.orders().drop().await.expect("it can be dropped");
        read(&mut *stream, 2).await;
        let silence = stream.next_batch(&cx(), LIMITS).await.expect("it reads");
        assert!(silence.is_empty());
        shop.insert(doc! { "_id": 3 }).await;
        let feed = shop.feed(View::collection("orders"));
        let mut again = feed.open(&cx(), StartAt::After(silence.end)).await.expect("it opens");
        assert_eq!(read(&mut *again, 1).await[0].key(), Some(&b"3"[..]));
    });
}

#[test]
fn an_idle_stream_moves_on_with_the_cluster() {
    block_on(async {
        let shop = Shop::open().await;
        let feed = shop.feed(View::collection("orders"));
        let mut stream = shop.watch(View::collection("orders")).await;
        let first = stream.position().expect("it is known");
        let mut end: Position = first.clone();
        for n in 0..20 {
            shop.database.collection("elsewhere").insert_one(doc! { "_id": n }).await.expect("it is taken");
            end = stream
                .next_batch(&cx(), Limits { wait: Duration::from_millis(300), ..LIMITS })
                .await
                .expect("it reads")
                .end;
            if end != first {
                break;
            }
        }
        assert_eq!(feed.compare(&first, &end), Some(std::cmp::Ordering::Less), "the position did not move");
    });
}

#[test]
fn events_of_one_transaction_are_ordered_by_their_versions() {
    block_on(async {
        let shop = Shop::open().await;
        let mut stream = shop.watch(View::collection("orders")).await;
        let driver = shop.client.driver(&cx()).await.expect("it is open");
        let mut session = driver.start_session().await.expect("it starts");
        session.start_transaction().await.expect("it begins");
        for n in 0..300 {
            shop.orders().insert_one(doc! { "_id": n }).session(&mut session).await.expect("it is taken");
        }
        session.commit_transaction().await.expect("it is committed");
        let changes = read(&mut *stream, 300).await;
        assert!(changes.windows(2).all(|pair| pair[0].version() < pair[1].version()));
        assert!(changes.iter().all(|change| change.version().time == changes[0].version().time));
        let feed = shop.feed(View::collection("orders"));
        let mut again = feed.open(&cx(), StartAt::After(changes[149].position())).await.expect("it opens");
        let rest = read(&mut *again, 150).await;
        assert_eq!(rest[0].id().to_string(), changes[150].id().to_string());
    });
}

#[test]
fn a_stream_begins_at_a_time_or_with_the_oldest_change() {
    block_on(async {
        let shop = Shop::open().await;
        shop.insert(doc! { "_id": 1 }).await;
        let feed = shop.feed(View::collection("orders"));
        let mut oldest = feed.open(&cx(), StartAt::Oldest).await.expect("it opens");
        let first = read(&mut *oldest, 1).await;
        let mut timed = feed.open(&cx(), StartAt::Time(first[0].time())).await.expect("it opens");
        let position = timed.position().expect("a time moves on, so a position is told");
        let again = read(&mut *timed, 1).await;
        assert_eq!(again[0].id().to_string(), first[0].id().to_string());
        let mut resumed = feed.open(&cx(), StartAt::After(position)).await.expect("it opens");
        assert_eq!(read(&mut *resumed, 1).await[0].id().to_string(), first[0].id().to_string());
    });
}

#[test]
fn a_stream_begins_with_one_of_several_operations_of_a_second() {
    block_on(async {
        let shop = Shop::open().await;
        let mut stream = shop.watch(View::collection("orders")).await;
        let mut all = Vec::new();
        // Writes go on until two of one second lie between others of it.
        let middle = loop {
            let n = i32::try_from(all.len()).expect("it is found soon");
            assert!(n < 10_000, "no four of ten thousand writes are of one second");
            shop.insert(doc! { "_id": n }).await;
            all.extend(read(&mut *stream, 1).await);
            let seconds = |at: usize| all[at].version().time >> 32;
            if n > 2 && seconds(all.len() - 4) == seconds(all.len() - 1) {
                break all.len() - 2;
            }
        };
        let time = all[middle].version().time;
        let time = OperationTime { seconds: (time >> 32) as u32, increment: time as u32 };
        let feed = shop.feed(View::collection("orders"));
        let mut timed = feed.open(&cx(), StartAt::Operation(time)).await.expect("it opens");
        let position = timed.position().expect("an operation time may leave the oplog, so a position is told");
        let ids = |changes: &[Change]| changes.iter().map(|change| change.id().to_string()).collect::<Vec<_>>();
        assert_eq!(ids(&read(&mut *timed, 2).await), ids(&all[middle..]));
        let mut resumed = feed.open(&cx(), StartAt::After(position)).await.expect("it opens");
        assert_eq!(ids(&read(&mut *resumed, 2).await), ids(&all[middle..]));
    });
}

#[test]
fn images_are_shown_as_asked_for() {
    block_on(async {
        let shop = Shop::open().await;
        let images = doc! { "collMod": "orders", "changeStreamPreAndPostImages": { "enabled": true } };
        shop.database.run_command(images).await.expect("it is taken");
        let view = View {
            full_document: Shown::Required,
            full_document_before_change: watchkeeper_mongodb::Before::Required,
            ..View::collection("orders")
        };
        let mut stream = shop.watch(view).await;
        shop.insert(doc! { "_id": 1, "n": 1 }).await;
        let update = doc! { "$set": { "n": 2 }, "$unset": { "gone": 1 } };
        shop.orders().update_one(doc! { "_id": 1 }, update).await.expect("it is taken");
        let changes = read(&mut *stream, 2).await;
        let line = text(&watchkeeper_core::format::Debezium, &changes[1]);
        let images = concat!(
            r#"{"before":{"_id":1,"n":1},"after":{"_id":1,"n":2},"#,
            r#""updateDescription":{"updatedFields":{"n":2},"removedFields":[],"truncatedArrays":[]},"source":"#
        );
        assert!(line.starts_with(images), "{line}");
        let event = text(&watchkeeper_core::format::Native, &changes[1]);
        assert!(
            event.starts_with(r#"{"_id":{"_data":"82"#) && event.contains(r#""operationType":"update""#),
            "{event}"
        );
    });
}
