//! Names of collections that changes give to a mirror.

use watchkeeper_core::{Backend, Change, ErrorKind, Operation, Purpose, Source, StartAt, Transacted};
use watchkeeper_mongodb::mongodb::bson::{Document, doc};
use watchkeeper_mongodb::{Client, Config, Feed, Mirror, MongoDb, Scope, Shown, View};

use crate::feedback_loop::options;
use crate::sink::{SinkFixture, versioned};
use crate::source::{Shop, read, read_to_the_end};
use crate::support::{assert_error, block_on, cx, fresh_name, in_order, shared, url};

/// The changes of a collection `watchkeeper.checkpoints` of an application: an insert, and its drop.
async fn of_the_application() -> Vec<Change> {
    let client =
        Client::open(&cx(), Config::new(url(shared(), "watchkeeper")).expect("a URL")).await.expect("it is there");
    let database = client.database(&cx()).await.expect("it is open");
    database.create_collection("checkpoints").await.expect("it can be made");
    let view = View { full_document: Shown::UpdateLookup, ..View::collection("checkpoints") };
    let mut stream = Feed::new(client, view).open(&cx(), StartAt::Now).await.expect("it opens");
    let checkpoints = database.collection::<Document>("checkpoints");
    checkpoints.insert_one(doc! { "_id": 1 }).await.expect("it is taken");
    checkpoints.drop().await.expect("it can be dropped");
    let mut changes = read_to_the_end(&mut *stream).await;
    changes.truncate(2);
    assert_eq!(changes[1].operation(), Operation::Drop);
    changes
}

/// The checkpoints that lie in a database, without the sessions that are noted there.
async fn checkpoints(shop: &Shop) -> Vec<Document> {
    let mut stored = in_order(&shop.client, "watchkeeper_checkpoints").await;
    stored.iter_mut().for_each(|checkpoint| drop(checkpoint.remove("sessions")));
    stored
}

#[test]
fn no_change_reaches_collections_of_watchkeepers_own() {
    block_on(async {
        let shop = Shop::open().await;
        let changes = of_the_application().await;
        let mut fixture = SinkFixture::new(&shop.base, Mirror::into("{database}_{collection}").expect("a name")).await;
        let before = checkpoints(&shop).await;
        assert!(!before.is_empty(), "the stage has claimed a checkpoint");
        let own = "\"watchkeeper_checkpoints\" is a name of Watchkeeper's own collections";
        for change in &changes {
            match fixture.offer(change).await {
                Transacted::Rejected(faults) => {
                    let said = faults[0].error.to_string();
                    assert!(said.contains(own) && said.contains("]; "), "{said}");
                }
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(checkpoints(&shop).await, before);

        let writer = versioned(&shop.base, "{database}_{collection}").await;
        for change in &changes {
            let written = writer.write(&cx(), 0, change.batch(), &[change.row()]).await.expect("the server answers");
            let said: Vec<_> = written.rejected.iter().map(|fault| fault.error.to_string()).collect();
            assert!(said.len() == 1 && said[0].contains(own), "{said:?}");
        }
        assert_eq!(checkpoints(&shop).await, before);
    });
}

#[test]
fn names_that_are_known_beforehand_are_refused_beforehand() {
    block_on(async {
        let shop = Shop::open().await;
        let source = options(&url(shared(), "watchkeeper"), &[("collection", "checkpoints")]);
        let purpose = Purpose::new("shop", "orders").reading(&MongoDb, &source);
        for (mode, name) in [
            ("mirror", "{database}_{collection}"),
            ("versioned", "{database}_{collection}"),
            ("mirror", "watchkeeper_{collection}"),
            ("versioned", "watchkeeper_checkpoints"),
            ("events", "watchkeeper_leases"),
            ("audit", "watchkeeper_pulses"),
        ] {
            let sink = || options(shop.base.url(), &[("mode", mode), ("collection", name)]);
            let inspected = MongoDb.check_sink(&cx(), &purpose, &mut sink()).await;
            assert_error(inspected, ErrorKind::Config, "a name of Watchkeeper's own collections");
            let made = MongoDb.sink(&cx(), &purpose, &mut sink()).await;
            assert_error(made, ErrorKind::Config, "a name of Watchkeeper's own collections");
        }
    });
}

/// One insert into this collection of a database.
async fn insert(database: &str, collection: &str) -> Change {
    let config = Config::new(url(shared(), database)).expect("a URL");
    let client = Client::open(&cx(), config).await.expect("it is there");
    let orders = client.database(&cx()).await.expect("it is open");
    orders.create_collection(collection).await.expect("it can be made");
    let mut stream = Feed::new(client, View::collection(collection)).open(&cx(), StartAt::Now).await.expect("it opens");
    orders.collection::<Document>(collection).insert_one(doc! { "_id": 1 }).await.expect("it is taken");
    read(&mut *stream, 1).await.remove(0)
}

fn refusal(answer: &Transacted) -> String {
    match answer {
        Transacted::Rejected(faults) => faults[0].error.to_string(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn collections_whose_names_come_to_the_same_are_not_mixed() {
    block_on(async {
        let shop = Shop::open().await;
        let name = fresh_name();
        let changes = [insert(&name, "a_b").await, insert(&format!("{name}_a"), "b").await];
        let mut fixture = SinkFixture::new(&shop.base, Mirror::into("{database}_{collection}").expect("a name")).await;
        fixture.deliver(&changes[..1]).await;
        let said = refusal(&fixture.offer(&changes[1]).await);
        assert!(said.contains(&format!("has the documents of {name}.a_b")), "{said}");
        assert!(said.contains("{database}.{collection}"), "{said}");
        let mut apart = SinkFixture::new(&shop.base, Mirror::into("{database}.{collection}").expect("a name")).await;
        apart.deliver(&changes).await;
        for change in &changes {
            assert_eq!(in_order(&shop.client, change.namespace()).await, [doc! { "_id": 1 }]);
        }
    });
}

#[test]
fn the_drop_of_one_of_several_collections_does_not_clear_the_others() {
    block_on(async {
        let (shop, target) = (Shop::open().await, Shop::open().await);
        let mut stream = shop.watch(View::of(Scope::Database)).await;
        shop.insert(doc! { "_id": 1 }).await;
        shop.database.collection::<Document>("items").insert_one(doc! { "_id": 2 }).await.expect("it is taken");
        shop.orders().drop().await.expect("it can be dropped");
        let changes = read(&mut *stream, 3).await;
        assert_eq!(changes[2].operation(), Operation::Drop);

        let mut fixture = SinkFixture::new(&target.base, Mirror::into("copy").expect("a name")).await;
        fixture.deliver(&changes[..2]).await;
        let said = refusal(&fixture.offer(&changes[2]).await);
        assert!(said.contains("would clear \"copy\"") && said.contains("skip this change"), "{said}");
        assert_eq!(in_order(&target.client, "copy").await, [doc! { "_id": 1 }, doc! { "_id": 2 }]);

        // It need not have come from there yet: another instance may have written it.
        let mut reported = SinkFixture::new(&target.base, Mirror::into("copy").expect("a name").of_several()).await;
        assert!(refusal(&reported.offer(&changes[2]).await).contains("would clear"));
        let mut alone = SinkFixture::new(&target.base, Mirror::into("copy").expect("a name")).await;
        alone.deliver(&changes[2..]).await;
        assert_eq!(in_order(&target.client, "copy").await, Vec::<Document>::new());

        let writer = versioned(&target.base, "other").await;
        let mut said = Vec::new();
        for change in &changes {
            let written = writer.write(&cx(), 0, change.batch(), &[change.row()]).await.expect("the server answers");
            said.extend(written.rejected.iter().map(|fault| fault.error.to_string()));
        }
        assert!(said.len() == 1 && said[0].contains("would clear \"other\""), "{said:?}");
    });
}
