//! The examples as they stand in `examples/`, run in folders of their own.

use std::time::Duration;

use tempfile::TempDir;
use watchkeeper::mongodb::mongodb;
use watchkeeper::mongodb::mongodb::bson::{Document, doc};
use watchkeeper::sqlite::{Client, Config};
use watchkeeper::{Epoch, open};
use watchkeeper_testkit::servers::mongodb::ReplicaSet;
use watchkeeper_testkit::servers::postgres::{Server, Version};

/// Their `main` is for those who run them by hand.
#[path = "../../examples/election.rs"]
#[allow(dead_code, unreachable_pub)]
mod election;
#[path = "../../examples/handler.rs"]
#[allow(dead_code, unreachable_pub)]
mod handler;
#[path = "../../examples/listeners.rs"]
#[allow(dead_code, unreachable_pub)]
mod listeners;
#[path = "../../examples/materialised_view.rs"]
#[allow(dead_code, unreachable_pub)]
mod materialised_view;
#[path = "../../examples/open_session.rs"]
#[allow(dead_code, unreachable_pub)]
mod open_session;
#[path = "../../examples/pull.rs"]
#[allow(dead_code, unreachable_pub)]
mod pull;
#[path = "../../examples/service_mongodb.rs"]
#[allow(dead_code, unreachable_pub)]
mod service_mongodb;
#[path = "../../examples/service_postgres.rs"]
#[allow(dead_code, unreachable_pub)]
mod service_postgres;

fn folder() -> TempDir {
    tempfile::tempdir().expect("a temporary folder can be made")
}

async fn soon<T>(example: impl Future<Output = watchkeeper::Result<T>>) -> T {
    let ended = tokio::time::timeout(Duration::from_secs(60), example).await;
    ended.expect("it ends soon").expect("it succeeds")
}

#[tokio::test]
async fn the_handler_gets_every_insert_once_over_two_runs() {
    let folder = folder();
    for _ in 0..2 {
        let lines = soon(handler::run(folder.path())).await;
        let items: Vec<_> = ["rope", "lamp", "oil"].map(|item| format!("insert of a {item}")).into();
        assert_eq!(lines, items, "the second run goes on where the first has ended");
    }
}

#[tokio::test]
async fn pulling_goes_on_after_what_was_acknowledged() {
    let folder = folder();
    assert_eq!(soon(pull::run(folder.path(), 2)).await, ["insert of orders"; 2]);
    let rest = soon(pull::run(folder.path(), 4)).await;
    let expected = ["delete of orders", "insert of orders", "insert of orders", "delete of orders"];
    assert_eq!(rest, expected, "the third of the first run, and the three of the second");
}

#[tokio::test]
async fn the_view_counts_every_order_exactly_once() {
    let folder = folder();
    let orders = "INSERT INTO orders(customer, cents) VALUES ('ann', 100), ('bob', 50), ('ann', 200)";
    for (round, cents) in [(1, 350), (2, 700), (3, 1_050)] {
        assert_eq!(soon(materialised_view::run(folder.path(), orders, 3 * round)).await, cents);
    }
    let view = Client::open(&open::cx(), Config::existing(folder.path().join("view.db"))).await.expect("it is there");
    let ann = "SELECT orders || ' orders, ' || cents || ' cents' FROM totals WHERE customer = 'ann'";
    let line: String =
        view.read(&open::cx(), |view| Ok(view.query_row(ann, [], |row| row.get(0))?)).await.expect("ann");
    assert_eq!(line, "6 orders, 900 cents");
}

#[tokio::test]
async fn two_candidates_lead_one_after_the_other() {
    let folder = folder();
    let both = async { tokio::join!(election::run(folder.path(), "ann"), election::run(folder.path(), "bob")) };
    let (ann, bob) = tokio::time::timeout(Duration::from_secs(30), both).await.expect("both win in the end");
    let epochs = [ann.expect("ann has led"), bob.expect("bob has led")];
    let last = epochs[0].max(epochs[1]);
    assert!(epochs[0] != epochs[1] && last > Epoch(1), "{epochs:?}");
    let report = std::fs::read_to_string(folder.path().join("report.txt")).expect("the report is written");
    let name = if last == epochs[0] { "ann" } else { "bob" };
    assert_eq!(report, format!("{last} written by {name}"));
}

#[tokio::test]
async fn orders_are_counted_exactly_once_in_the_open_session() {
    let set = ReplicaSet::start(1);
    let url = set.url("shop");
    let client = mongodb::Client::with_uri_str(&url).await.expect("the server is there");
    let orders = client.database("shop").collection::<Document>("orders");
    for round in 1..=3 {
        orders.insert_many((0..50).map(|n| doc! { "n": n })).await.expect("orders are taken");
        assert_eq!(soon(open_session::run(&url, 50 * round)).await, 50 * round, "round {round}");
    }
}

#[tokio::test]
async fn one_listener_goes_on_where_the_other_has_ended() {
    let server = Server::start(Version::V18);
    let url = server.url("postgres");
    let config = watchkeeper::postgres::Config::new(&url).expect("it is a URL");
    let client = watchkeeper::postgres::Client::open(&open::cx(), config).await.expect("the server is there");
    let make = "CREATE TABLE orders (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, item text)";
    client.write(&open::cx(), make, &[]).await.expect("it is new");
    let wake = watchkeeper::postgres::changelog::Wake::Notify;
    watchkeeper::postgres::changelog::install(&open::cx(), &client, &["orders"], wake).await.expect("it has a key");
    for (name, had) in [("listener-1", ["1 insert", "2 insert"]), ("listener-2", ["3 insert", "4 insert"])] {
        let orders = "INSERT INTO orders (item) VALUES ('rope'), ('lamp')";
        client.write(&open::cx(), orders, &[]).await.expect("orders are taken");
        let listened = tokio::time::timeout(Duration::from_secs(60), listeners::run(&url, name, 2)).await;
        assert_eq!(listened.expect("it ends soon").expect("it succeeds"), had);
    }
}

/// Runs a service until `is_done`; it ends in order then.
async fn serve<F>(service: impl FnOnce(tokio::sync::oneshot::Receiver<()>) -> F, is_done: impl AsyncFn() -> bool)
where
    F: Future<Output = watchkeeper::Result<()>>,
{
    let (end, ended) = tokio::sync::oneshot::channel();
    let watch = async {
        while !is_done().await {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        end.send(()).expect("the service runs");
        Ok(())
    };
    soon(async { tokio::try_join!(service(ended), watch) }).await;
}

#[tokio::test]
async fn the_service_on_postgres_keeps_a_shipment_per_order_over_two_runs() {
    let server = Server::start(Version::V18);
    let url = server.url("postgres");
    let config = watchkeeper::postgres::Config::new(&url).expect("it is a URL");
    let client = watchkeeper::postgres::Client::open(&open::cx(), config).await.expect("the server is there");
    let write = async |sql: &str| client.write(&open::cx(), sql, &[]).await.expect("the statement is good");
    write("CREATE TABLE orders (id bigint PRIMARY KEY, item text, amount int, note text)").await;
    write("CREATE TABLE shipments (order_id bigint PRIMARY KEY, item text, amount int, version text)").await;
    write("INSERT INTO orders VALUES (1, 'rope', 2, 'before the start')").await;
    for (change, expected) in [
        ("INSERT INTO orders VALUES (2, 'lamp', 1)", "rope 2, lamp 1"),
        ("UPDATE orders SET amount = 5 WHERE id = 1", "rope 5, lamp 1"),
    ] {
        write(change).await;
        let kept = "SELECT coalesce(string_agg(item || ' ' || amount, ', ' ORDER BY order_id), '') FROM shipments";
        let is_kept = async || {
            let rows = client.read(&open::cx(), kept, &[]).await.expect("the statement is good");
            rows.first().map(|row| row.get::<_, String>(0)).as_deref() == Some(expected)
        };
        serve(|ended| service_postgres::run(&url, async { drop(ended.await) }), is_kept).await;
    }
}

#[tokio::test]
async fn the_service_on_mongodb_keeps_a_shipment_per_order_over_two_runs() {
    let set = ReplicaSet::start(1);
    let url = set.url("shop");
    let client = mongodb::Client::with_uri_str(&url).await.expect("the server is there");
    let orders = client.database("shop").collection::<Document>("orders");
    let shipments = client.database("shipping").collection::<Document>("shipments");
    orders.insert_one(doc! { "_id": 1_i64, "item": "rope", "amount": 2_i64 }).await.expect("orders are taken");
    for round in [1_i64, 2] {
        let amount = doc! { "$set": { "amount": 10 * round } };
        orders.update_one(doc! { "_id": 1_i64 }, amount).await.expect("orders are changed");
        let is_kept = async || {
            let kept = shipments.find_one(doc! { "_id": 1_i64 }).await.expect("the server is there");
            kept.is_some_and(|kept| kept.get_i64("amount").ok() == Some(10 * round))
        };
        serve(|ended| service_mongodb::run(&url, async { drop(ended.await) }), is_kept).await;
    }
}

#[test]
fn the_guide_shows_the_services_as_they_are() {
    let guide = include_str!("../../../../docs/guide/library.md");
    for service in
        [include_str!("../../examples/service_postgres.rs"), include_str!("../../examples/service_mongodb.rs")]
    {
        let (_, code) = service.split_once("\n\n").expect("the code follows the description");
        assert!(guide.contains(code.trim_end()), "the guide shows another program than this:\n{code}");
    }
}
