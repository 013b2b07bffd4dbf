//! A service on PostgreSQL: a typed handler of what logical replication brings, which ends in order on SIGTERM.
//! `DATABASE_URL=postgres://localhost/shop cargo run -p watchkeeper --example service_postgres`, as often as you like.

use serde::Deserialize;
use tokio::signal::unix::{SignalKind, signal};
use watchkeeper::postgres::deadpool_postgres::{Manager, Pool};
use watchkeeper::postgres::tokio_postgres::{Config, NoTls};
use watchkeeper::{
    Change, Error, Grade, HandlerError, HandlerSettings, OnReject, Operation, Park, Result, StartAt, Stream,
    Watchkeeper, open,
};

/// A row of the table `orders`: columns that are not named here are left out.
#[derive(Debug, Deserialize)]
struct Order {
    id: i64,
    item: String,
    amount: i32,
}

/// Keeps one shipment per order. A change that comes again, or late, finds its version or a newer one and changes nothing.
const KEEP: &str = "INSERT INTO shipments (order_id, item, amount, version) VALUES ($1, $2, $3, $4)
    ON CONFLICT (order_id) DO UPDATE SET item = excluded.item, amount = excluded.amount, version = excluded.version
    WHERE shipments.version < excluded.version";

async fn keep(pool: Pool, change: Change) -> Result<(), HandlerError> {
    let Some(order) = change.after::<Order>()? else { return Ok(()) };
    let version = change.version();
    let version = format!("{:020}.{:020}", version.time, version.ordinal);
    // An error by `?` says that the database is away: the same change is tried again.
    let client = pool.get().await?;
    client.execute(KEEP, &[&order.id, &order.item, &order.amount, &version]).await?;
    Ok(())
}

/// Runs until `end`.
pub async fn run(url: &str, end: impl Future<Output = ()>) -> Result<()> {
    let source =
        open::source_at(url).set("mode", "replication").set("tables", ["orders"]).open("shop", "orders").await?;
    let pool = pool(url)?;
    let orders = Stream::new("orders", source)
        .start_at(StartAt::Snapshot)
        .concurrency(4)
        // Late writes find a newer version and change nothing, so a takeover after a crash does not wait for them.
        .handlers(HandlerSettings { grade: Grade::Versioned, ..HandlerSettings::default() })
        .on_reject(OnReject::DeadLetter { park: Park::Key })
        .on("orders", [Operation::Read, Operation::Insert, Operation::Update], move |change| {
            keep(pool.clone(), change)
        });
    let store = open::stores(url).await?;
    let watch = Watchkeeper::builder("shop").store(store).stream(orders).start().await?;
    // Drains, commits and releases the watch when the signal has come, so that another instance goes on at once.
    watch.until(end).await
}

/// The pool of the handler: below `timeouts.write` (30 s) the handler gives up by itself and is tried again.
fn pool(url: &str) -> Result<Pool> {
    let wrong = |cause: String| Error::config(cause).remedy("correct DATABASE_URL");
    let config: Config = url.parse().map_err(|error| wrong(format!("the URL cannot be read: {error}")))?;
    let pool = Pool::builder(Manager::new(config, NoTls)).max_size(8).build();
    pool.map_err(|error| wrong(format!("no pool can be made: {error}")))
}

#[tokio::main]
async fn main() -> Result<()> {
    tracing_subscriber::fmt().init();
    let url = std::env::var("DATABASE_URL").unwrap_or_else(|_| "postgres://localhost/shop".to_owned());
    let mut terminate = signal(SignalKind::terminate()).expect("signals can be taken");
    let end = async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = tokio::signal::ctrl_c() => {}
        }
    };
    run(&url, end).await
}
