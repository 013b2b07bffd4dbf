//! Routes and typed decoding on every source: one handler, one type, the same values.

use std::time::Duration;

use serde::Deserialize;
use tokio::sync::mpsc;
use watchkeeper::core::Source;
use watchkeeper::mongodb::mongodb::bson::{Decimal128, doc};
use watchkeeper::postgres::changelog::{Wake, install};
use watchkeeper::postgres::tokio_postgres::{NoTls, connect};
use watchkeeper::{
    ErrorKind, HandlerError, Operation, StartAt, Stores, Stream, Watch, Watchkeeper, mongodb, open, postgres,
};
use watchkeeper_testkit::servers::mongodb::ReplicaSet;
use watchkeeper_testkit::servers::postgres::{Server, Version};

#[derive(Debug, PartialEq, Deserialize)]
struct Order {
    item: String,
    price: String,
    amount: Option<i64>,
    tags: Vec<String>,
}

impl Order {
    fn expected() -> Self {
        let tags = vec!["a".to_owned(), "b".to_owned()];
        Self { item: "rope".to_owned(), price: "1.20".to_owned(), amount: None, tags }
    }
}

async fn stores(folder: &tempfile::TempDir) -> Stores {
    open::stores(&format!("sqlite:{}", folder.path().join("state.db").display())).await.expect("a file can be made")
}

/// Starts a stream whose handler of `route` sends on what it decodes.
async fn start(
    folder: &tempfile::TempDir,
    source: std::sync::Arc<dyn Source>,
    route: &str,
) -> (watchkeeper::Result<Watch>, mpsc::Receiver<(Order, u64)>) {
    let (sender, received) = mpsc::channel(10);
    let orders = Stream::new("orders", source).start_at(StartAt::Now).on_with(route, Operation::Insert, {
        move |change, context| {
            let sender = sender.clone();
            async move {
                assert_eq!(&*context.stream, "orders");
                let order = change.after::<Order>()?.ok_or_else(|| HandlerError::reject("an insert without a row"))?;
                Ok(sender.send((order, context.epoch().0)).await?)
            }
        }
    });
    (Watchkeeper::builder("shop").store(stores(folder).await).stream(orders).start().await, received)
}

async fn opened(watch: &Watch) {
    let mut status = watch.status("orders").expect("there is such a stream");
    let running = async {
        while status.see().openings == 0 {
            status.changed().await.expect("it lives");
        }
    };
    tokio::time::timeout(Duration::from_secs(20), running).await.expect("it is opened");
}

async fn receive(received: &mut mpsc::Receiver<(Order, u64)>) -> (Order, u64) {
    let next = tokio::time::timeout(Duration::from_secs(20), received.recv()).await;
    next.expect("the handler is called").expect("it lives")
}

const TABLE: &str = "CREATE TABLE orders (id bigint PRIMARY KEY, item text, price numeric, amount bigint, tags text[])";
const ROW: &str = "INSERT INTO orders VALUES (1, 'rope', 1.20, NULL, '{a,b}')";

#[tokio::test]
async fn postgres_routes_need_no_schema_and_decode_alike_from_log_and_replication() {
    let server = Server::start(Version::V15);
    let url = server.url("postgres");
    let (session, connection) = connect(&url, NoTls).await.expect("the server is there");
    let driving = tokio::spawn(connection);
    session.batch_execute(TABLE).await.expect("a table can be made");
    let client =
        postgres::Client::open(&open::cx(), postgres::Config::new(&url).expect("a URL")).await.expect("it opens");
    install(&open::cx(), &client, &["orders"], Wake::Notify).await.expect("it can be logged");
    let (log_folder, slot_folder) = (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder"));
    let log = open::source(&url, "shop", "orders").await.expect("it is logged");
    let slot = open::source_at(&url).set("mode", "replication").set("tables", ["orders"]);
    let slot = slot.open("shop", "orders").await.expect("it can be published");
    let (by_log, mut from_log) = start(&log_folder, log, "orders").await;
    let (by_slot, mut from_slot) = start(&slot_folder, slot, "orders").await;
    let (by_log, by_slot) = (by_log.expect("the route is right"), by_slot.expect("the route is right"));
    opened(&by_log).await;
    opened(&by_slot).await;
    session.batch_execute(ROW).await.expect("a row can be written");
    assert_eq!(receive(&mut from_log).await, (Order::expected(), 1));
    assert_eq!(receive(&mut from_slot).await, (Order::expected(), 1));
    by_log.shutdown().await.expect("it ends in order");
    by_slot.shutdown().await.expect("it ends in order");
    driving.abort();
}

#[tokio::test]
async fn a_postgres_route_that_nothing_can_match_is_refused_at_start() {
    let server = Server::start(Version::V15);
    let source = open::source_at(&server.url("postgres")).set("mode", "replication").set("tables", ["orders"]);
    let source = source.open("shop", "orders").await.expect("nothing is asked of the server yet");
    let folder = tempfile::tempdir().expect("a folder");
    let (refused, _) = start(&folder, source, "ordres").await;
    let refused = refused.expect_err("no change can have that name");
    assert_eq!(refused.kind(), ErrorKind::Config);
    assert!(refused.to_string().contains("does not watch public.ordres"), "{refused}");
}

#[tokio::test]
async fn mongodb_routes_need_no_database_and_decode_into_the_same_type() {
    let set = ReplicaSet::start(1);
    let url = set.url("shop");
    let folder = tempfile::tempdir().expect("a folder");
    let config = mongodb::Config::new(&url).expect("a URL");
    let client = mongodb::Client::open(&open::cx(), config).await.expect("the server is there");
    let database = client.database(&open::cx()).await.expect("it is open");
    database.create_collection("orders").await.expect("a collection can be made");
    let source = || open::source_at(&url).set("collection", "orders").open("shop", "orders");
    let (refused, _) = start(&folder, source().await.expect("the server is there"), "items").await;
    assert!(refused.expect_err("another collection").to_string().contains("does not watch shop.items"));
    let (watch, mut received) = start(&folder, source().await.expect("the server is there"), "orders").await;
    let watch = watch.expect("the route is right");
    opened(&watch).await;
    let price: Decimal128 = "1.20".parse().expect("a number");
    let order = doc! { "_id": 1, "item": "rope", "price": price, "amount": null, "tags": ["a", "b"] };
    database.collection("orders").insert_one(order).await.expect("an order can be written");
    assert_eq!(receive(&mut received).await.0, Order::expected());
    watch.shutdown().await.expect("it ends in order");
}

#[tokio::test]
async fn an_unknown_setting_of_a_source_is_refused_with_the_nearest_name() {
    let refused = open::source_at("postgres://app@localhost/shop").set("mode", "replication").set("tabels", ["orders"]);
    let refused = refused.open("shop", "orders").await.expect_err("there is no such setting");
    assert!(refused.to_string().contains("did you mean \"table"), "{refused}");
}
