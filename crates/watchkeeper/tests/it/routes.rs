//! Routes and typed decoding on every source: one handler, one type, the same values.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde::Deserialize;
use tokio::sync::mpsc;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Metadata, Subscriber, span};
use watchkeeper::core::Source;
use watchkeeper::mongodb::mongodb::bson::{Decimal128, doc};
use watchkeeper::postgres::changelog::{Unread, Wake, install, uninstall};
use watchkeeper::postgres::tokio_postgres::{NoTls, connect};
use watchkeeper::{
    Change, ErrorKind, HandlerError, Operation, Operations, Result, StartAt, Stores, Stream, StreamStatus, Watch,
    Watchkeeper, mongodb, open, postgres, sqlite,
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
    source: Arc<dyn Source>,
    route: &str,
) -> (Result<Watch>, mpsc::Receiver<(Order, u64)>) {
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

/// What a change decodes into: the row before, the row after, and the fields that were set and removed.
#[derive(Debug, PartialEq)]
struct Decoded {
    operation: Operation,
    before: Option<Order>,
    after: Option<Order>,
    update: Option<(BTreeMap<String, String>, Vec<String>)>,
}

impl Decoded {
    fn of(change: &Change) -> Result<Self> {
        let update = change.update::<BTreeMap<String, String>>()?;
        Ok(Self {
            operation: change.operation(),
            before: change.before()?,
            after: change.after()?,
            update: update.map(|update| (update.set, update.removed)),
        })
    }

    /// An insert, an update of the price, and a delete of what [`Order::expected`] is; the update also removes these fields.
    fn expected(removed: &[&str]) -> [Self; 3] {
        let (old, new) = (Order::expected, || Order { price: "1.30".to_owned(), ..Order::expected() });
        let set = BTreeMap::from([("price".to_owned(), "1.30".to_owned())]);
        let removed = removed.iter().map(|field| (*field).to_owned()).collect();
        let change = |operation, before, after, update| Self { operation, before, after, update };
        [
            change(Operation::Insert, None, Some(old()), None),
            change(Operation::Update, Some(old()), Some(new()), Some((set, removed))),
            change(Operation::Delete, Some(new()), None, None),
        ]
    }
}

/// Starts a stream whose handler sends on what every change of `orders` decodes into.
async fn start_decoding(folder: &tempfile::TempDir, source: Arc<dyn Source>) -> (Watch, mpsc::Receiver<Decoded>) {
    let (sender, received) = mpsc::channel(10);
    let orders = Stream::new("orders", source).start_at(StartAt::Now).on("orders", Operations::ANY, move |change| {
        let sender = sender.clone();
        async move { Ok(sender.send(Decoded::of(&change)?).await?) }
    });
    let watch = Watchkeeper::builder("shop").store(stores(folder).await).stream(orders).start().await;
    let watch = watch.expect("the route is right");
    opened(&watch).await;
    (watch, received)
}

async fn receive_three(received: &mut mpsc::Receiver<Decoded>) -> [Decoded; 3] {
    let mut next = async || {
        let next = tokio::time::timeout(Duration::from_secs(20), received.recv()).await;
        next.expect("the handler is called").expect("it lives")
    };
    [next().await, next().await, next().await]
}

/// The update leaves out a value that is stored out of line: PostgreSQL does not send it again.
const UPDATES: [&str; 3] = [
    "INSERT INTO orders SELECT 1, 'rope', 1.20, NULL, '{a,b}', string_agg(md5(g::text), '') FROM generate_series(1, 1000) g",
    "UPDATE orders SET price = 1.30",
    "DELETE FROM orders",
];

#[tokio::test]
async fn postgres_rows_before_and_updates_decode_alike_from_log_and_replication() {
    let server = Server::start(Version::V15);
    let url = server.url("postgres");
    let (session, connection) = connect(&url, NoTls).await.expect("the server is there");
    let driving = tokio::spawn(connection);
    session.batch_execute(TABLE).await.expect("a table can be made");
    let full = "ALTER TABLE orders ADD note text; ALTER TABLE orders REPLICA IDENTITY FULL";
    session.batch_execute(full).await.expect("a table can be changed");
    let client =
        postgres::Client::open(&open::cx(), postgres::Config::new(&url).expect("a URL")).await.expect("it opens");
    install(&open::cx(), &client, &["orders"], Wake::Notify).await.expect("it can be logged");
    let (log_folder, slot_folder) = (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder"));
    let log = open::source(&url, "shop", "orders").await.expect("it is logged");
    let slot = open::source_at(&url).set("mode", "replication").set("tables", ["orders"]);
    let slot = slot.open("shop", "orders").await.expect("it can be published");
    let (by_log, mut from_log) = start_decoding(&log_folder, log).await;
    let (by_slot, mut from_slot) = start_decoding(&slot_folder, slot).await;
    for statement in UPDATES {
        session.batch_execute(statement).await.expect("a row can be written");
    }
    assert_eq!(receive_three(&mut from_log).await, Decoded::expected(&[]), "from the change log");
    assert_eq!(receive_three(&mut from_slot).await, Decoded::expected(&[]), "from replication");
    by_log.shutdown().await.expect("it ends in order");
    by_slot.shutdown().await.expect("it ends in order");
    driving.abort();
}

#[tokio::test]
async fn mongodb_documents_before_and_updates_decode_into_the_same_type() {
    let set = ReplicaSet::start(1);
    let url = set.url("shop");
    let folder = tempfile::tempdir().expect("a folder");
    let client = mongodb::Client::open(&open::cx(), mongodb::Config::new(&url).expect("a URL")).await;
    let database = client.expect("the server is there").database(&open::cx()).await.expect("it is open");
    let create = doc! { "create": "orders", "changeStreamPreAndPostImages": { "enabled": true } };
    database.run_command(create).await.expect("a collection can be made");
    let source = open::source_at(&url).set("collection", "orders").set("full_document", "required");
    let source = source.set("full_document_before_change", "required").open("shop", "orders").await;
    let (watch, mut received) = start_decoding(&folder, source.expect("the server is there")).await;
    let orders = database.collection("orders");
    let price = |price: &str| price.parse::<Decimal128>().expect("a number");
    let tags = ["a", "b"];
    let order = doc! { "_id": 1, "item": "rope", "price": price("1.20"), "amount": null, "tags": tags, "note": "wet" };
    orders.insert_one(order).await.expect("an order can be written");
    let update = doc! { "$set": { "price": price("1.30") }, "$unset": { "note": "" } };
    orders.update_one(doc! { "_id": 1 }, update).await.expect("an order can be changed");
    orders.delete_one(doc! { "_id": 1 }).await.expect("an order can be removed");
    assert_eq!(receive_three(&mut received).await, Decoded::expected(&["note"]));
    watch.shutdown().await.expect("it ends in order");
}

#[tokio::test]
async fn a_route_of_the_postgres_change_log_that_nothing_can_match_is_refused_at_start() {
    let server = Server::start(Version::V15);
    let url = server.url("postgres");
    let (session, connection) = connect(&url, NoTls).await.expect("the server is there");
    let driving = tokio::spawn(connection);
    let tables = "CREATE TABLE items (id bigint PRIMARY KEY); CREATE TABLE prices (id bigint PRIMARY KEY)";
    session.batch_execute(&[TABLE, tables].join(";")).await.expect("tables can be made");
    let client =
        postgres::Client::open(&open::cx(), postgres::Config::new(&url).expect("a URL")).await.expect("it opens");
    install(&open::cx(), &client, &["orders", "items"], Wake::Notify).await.expect("they can be logged");
    let source = async |tables: Option<&str>| {
        let source = tables.into_iter().fold(open::source_at(&url), |source, table| source.set("tables", [table]));
        source.open("shop", "orders").await.expect("it is logged")
    };
    let cases = [
        (None, "ordres", "the table ordres is not logged"),
        (None, "public.ordres", "the table public.ordres is not logged"),
        (None, "prices", "the table prices is not logged"),
        (Some("orders"), "ordres", "the table ordres is not logged"),
        (Some("orders"), "items", "does not watch public.items"),
    ];
    for (tables, route, cause) in cases {
        assert_refused(source(tables).await, route, cause).await;
    }
    let folder = tempfile::tempdir().expect("a folder");
    for (tables, route) in [(None, "items"), (None, "public.orders"), (Some("orders"), "orders")] {
        let (started, _) = start(&folder, source(tables).await, route).await;
        started.expect("the log has changes of this table").shutdown().await.expect("it ends in order");
    }
    uninstall(&open::cx(), &client, &["orders"], Unread::Discard).await.expect("it is logged");
    let (started, _) = start(&folder, source(None).await, "orders").await;
    started.expect("the log may have changes of this table").shutdown().await.expect("it ends in order");
    driving.abort();
}

/// Expects that a stream with this route is not started, alone and next to a route that matches everything.
async fn assert_refused(source: Arc<dyn Source>, route: &str, cause: &str) {
    let folder = tempfile::tempdir().expect("a folder");
    let stream = || Stream::new("orders", Arc::clone(&source)).on(route, Operations::ANY, |_| async { Ok(()) });
    for stream in [stream(), stream().on("*", Operations::ANY, |_| async { Ok(()) })] {
        let started = Watchkeeper::builder("shop").store(stores(&folder).await).stream(stream).start().await;
        let refused = started.expect_err("no change can have that name");
        assert_eq!(refused.kind(), ErrorKind::Config, "{refused}");
        assert!(refused.to_string().contains("a handler would never be called"), "{refused}");
        assert!(refused.to_string().contains(cause), "{refused}");
    }
}

/// A file with tables of which all but `prices` are logged.
async fn shop(folder: &tempfile::TempDir) -> (sqlite::Client, String) {
    let file = folder.path().join("shop.db");
    let client = sqlite::Client::open(&open::cx(), sqlite::Config::new(&file)).await.expect("a file can be made");
    let tables = ["orders", "items", "prices"].map(|table| format!("CREATE TABLE {table}(id INTEGER PRIMARY KEY);"));
    write(&client, tables.concat()).await;
    sqlite::tools::install(&open::cx(), &client, &["orders", "items"]).await.expect("they can be logged");
    (client, format!("sqlite:{}", file.display()))
}

async fn write(client: &sqlite::Client, sql: String) {
    client.write(&open::cx(), move |shop| Ok(shop.execute_batch(&sql)?)).await.expect("it can be written");
}

#[tokio::test]
async fn a_sqlite_route_that_nothing_can_match_is_refused_at_start() {
    let folder = tempfile::tempdir().expect("a folder");
    let (client, address) = shop(&folder).await;
    write(&client, "INSERT INTO items VALUES (1)".to_owned()).await;
    let source = async |tables: Option<&str>| {
        let source = tables.into_iter().fold(open::source_at(&address), |source, table| source.set("tables", [table]));
        source.open("shop", "orders").await.expect("it is logged")
    };
    let cases = [
        (None, "ordres", "ordres"),
        (None, "prices", "the table prices is not logged"),
        (Some("orders"), "ordres", "does not watch ordres"),
        (Some("orders"), "items", "does not watch items"),
    ];
    for (tables, route, cause) in cases {
        assert_refused(source(tables).await, route, cause).await;
    }
    let names = async |tables: Option<&str>, route: &str| {
        let source = source(tables).await;
        source.resolve_names(&open::cx(), vec![route.to_owned()]).await
    };
    for (tables, route, name) in
        [(None, "Orders", "orders"), (None, "main.\"items\"", "items"), (Some("ORDERS"), "orders", "orders")]
    {
        assert_eq!(names(tables, route).await.expect("it is logged"), [name]);
    }
    let unread = sqlite::tools::Unread::Discard;
    sqlite::tools::uninstall(&open::cx(), &client, &["items"], unread).await.expect("it is logged");
    assert_eq!(names(None, "items").await.expect("the log has a change of it"), ["items"]);
}

#[tokio::test]
async fn a_route_of_a_file_without_a_log_is_refused_at_start() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("shop.db");
    let client = sqlite::Client::open(&open::cx(), sqlite::Config::new(&file)).await.expect("a file can be made");
    write(&client, "CREATE TABLE orders(id INTEGER PRIMARY KEY)".to_owned()).await;
    let source =
        open::source(&format!("sqlite:{}", file.display()), "shop", "orders").await.expect("the file is there");
    assert_refused(source, "orders", "no table of this database is logged").await;
}

/// The routes and messages of the warnings on this thread.
#[derive(Clone, Default)]
struct Warnings(Arc<Mutex<Vec<String>>>);

impl Warnings {
    /// The warnings of routes that matched nothing.
    fn unmatched(&self) -> Vec<String> {
        let warnings = self.0.lock().expect("nobody panics with it");
        warnings.iter().filter(|warning| warning.contains("matched none of the changes")).cloned().collect()
    }
}

struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        self.0 += &format!("{}={value:?} ", field.name());
    }
}

impl Subscriber for Warnings {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() == Level::WARN
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut line = Line(String::new());
        event.record(&mut line);
        self.0.lock().expect("nobody panics with it").push(line.0);
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

/// Waits until change `number` of a SQLite log is committed.
async fn committed(watch: &Watch, number: u64) {
    let mut status = watch.status("orders").expect("there is such a stream");
    let is_committed = |status: &StreamStatus| {
        let position = status.position.as_ref();
        position.is_some_and(|position| sqlite::ChangeLog::number(position).expect("a position of the log") >= number)
    };
    let committing = async {
        while !is_committed(&status.see()) {
            status.changed().await.expect("it lives");
        }
    };
    tokio::time::timeout(Duration::from_secs(20), committing).await.expect("it is committed");
}

#[tokio::test]
async fn a_route_that_none_of_many_changes_matched_is_warned_of_once() {
    let warnings = Warnings::default();
    let _capturing = tracing::subscriber::set_default(warnings.clone());
    let folder = tempfile::tempdir().expect("a folder");
    let (client, address) = shop(&folder).await;
    let source = open::source(&address, "shop", "orders").await.expect("it is logged");
    let (sender, mut arrived) = mpsc::channel(10_000);
    let stream = Stream::new("orders", source)
        .start_at(StartAt::Oldest)
        .on("items", Operations::ANY, |_| async { Ok(()) })
        .on("orders", Operation::Delete, |_| async { Ok(()) })
        .on("*", Operations::ANY, move |_| {
            let sender = sender.clone();
            async move { Ok(sender.send(()).await?) }
        });
    let watch = Watchkeeper::builder("shop").store(stores(&folder).await).stream(stream).start().await;
    let watch = watch.expect("all routes can match");
    for (first, last, expected) in [(1, 999, 0), (1_000, 1_000, 1), (1_001, 4_000, 1)] {
        let numbers =
            format!("WITH RECURSIVE n(n) AS (VALUES ({first}) UNION ALL SELECT n + 1 FROM n WHERE n < {last})");
        write(&client, format!("INSERT INTO orders {numbers} SELECT n FROM n")).await;
        for _ in first..=last {
            arrived.recv().await.expect("the handler lives");
        }
        committed(&watch, last).await;
        let unmatched = warnings.unmatched();
        assert_eq!(unmatched.len(), expected, "after {last} changes: {unmatched:?}");
        assert!(unmatched.iter().all(|warning| warning.contains("route=items ")), "{unmatched:?}");
    }
    watch.shutdown().await.expect("it ends in order");
}

#[tokio::test]
async fn an_unknown_setting_of_a_source_is_refused_with_the_nearest_name() {
    let refused = open::source_at("postgres://app@localhost/shop").set("mode", "replication").set("tabels", ["orders"]);
    let refused = refused.open("shop", "orders").await.expect_err("there is no such setting");
    assert!(refused.to_string().contains("did you mean \"table"), "{refused}");
}
