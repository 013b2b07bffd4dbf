//! A view that is never wrong: every change and the checkpoint that passes it are one transaction, so each order is
//! counted exactly once, whatever crashes. `cargo run -p watchkeeper --example materialised_view`

use std::path::Path;

use watchkeeper::sqlite::rusqlite::Transaction;
use watchkeeper::sqlite::{Client, Config, Failure, Transactional, tools};
use watchkeeper::{Change, Operation, Result, StartAt, Stream, ValueRef, Watchkeeper, open};

const SHOP: &str = "CREATE TABLE IF NOT EXISTS orders(id INTEGER PRIMARY KEY, customer TEXT NOT NULL, cents INTEGER)";
const VIEW: &str = "CREATE TABLE IF NOT EXISTS totals(customer TEXT PRIMARY KEY, orders INTEGER, cents INTEGER)";
const ADD: &str = "INSERT INTO totals VALUES (?1, 1, ?2)
    ON CONFLICT(customer) DO UPDATE SET orders = orders + 1, cents = cents + excluded.cents";
const SUM: &str = "SELECT coalesce(sum(orders), 0), coalesce(sum(cents), 0) FROM totals";

/// Gets the open transaction, in which the checkpoint is written too.
fn count(transaction: &Transaction<'_>, change: &Change) -> Result<(), Failure> {
    let (customer, cents) = (change.get(&["after", "customer"])?, change.get(&["after", "cents"])?);
    match (change.operation(), customer, cents) {
        (Operation::Insert, Some(ValueRef::Str(customer)), Some(ValueRef::Int64(cents))) => {
            transaction.prepare_cached(ADD)?.execute((customer, cents))?;
            Ok(())
        }
        (operation, ..) => Err(Failure::refuse(format!("an order is written once: {operation}"))),
    }
}

/// Takes an order, keeps the view up to date until it has counted `orders`, and answers with the sum of all.
pub async fn run(folder: &Path, order: &'static str, orders: i64) -> Result<i64> {
    let (cx, path) = (open::cx(), folder.join("shop.db"));
    let shop = Client::open(&cx, Config::new(&path)).await?;
    shop.write(&cx, |transaction| Ok(transaction.execute_batch(SHOP)?)).await?;
    tools::install(&cx, &shop, &["orders"]).await?;
    shop.write(&cx, move |transaction| Ok(transaction.execute_batch(order)?)).await?;
    let client = Client::open(&cx, Config::new(folder.join("view.db"))).await?;
    client.write(&cx, |transaction| Ok(transaction.execute_batch(VIEW)?)).await?;
    let view = Transactional::open(&cx, client.clone(), count).await?;
    let source = open::source(&format!("sqlite:{}", path.display()), "shop", "totals").await?;
    let stream = Stream::new("totals", source).start_at(StartAt::Oldest);
    let stream = stream.checkpoints(view.checkpoints().clone()).sink("view", view);
    let store = open::stores(&format!("sqlite:{}", folder.join("state.db").display())).await?;
    let watch = Watchkeeper::builder("shop").store(store).stream(stream).start().await?;
    loop {
        let read = |view: &Transaction<'_>| Ok(view.query_row(SUM, [], |row| Ok((row.get(0)?, row.get(1)?)))?);
        let (counted, cents): (i64, i64) = client.read(&open::cx(), read).await?;
        if counted >= orders {
            return watch.shutdown().await.map(|()| cents);
        }
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let folder = std::env::temp_dir().join("watchkeeper-view");
    std::fs::create_dir_all(&folder).expect("a temporary folder can be made");
    let order = "INSERT INTO orders(customer, cents) VALUES ('ann', 100)";
    run(&folder, order, 1).await.map(|cents| println!("{cents} cents in all"))
}
