//! A service on MongoDB: a typed handler of a change stream, which ends in order on SIGTERM.
//! `MONGODB_URL='mongodb://127.0.0.1/shop?replicaSet=rs0' cargo run -p watchkeeper --example service_mongodb`, as often as you like.

use serde::Deserialize;
use tokio::signal::unix::{SignalKind, signal};
use watchkeeper::mongodb::mongodb::bson::{Document, doc};
use watchkeeper::mongodb::mongodb::error::{Error as NativeError, ErrorKind, WriteFailure};
use watchkeeper::mongodb::mongodb::{Client, Collection};
use watchkeeper::{
    Change, Error, Grade, HandlerError, HandlerSettings, OnReject, Operation, Park, Result, StartAt, Stream,
    Watchkeeper, open,
};

/// A document of the collection `orders`: fields that are not named here are left out.
#[derive(Debug, Deserialize)]
struct Order {
    #[serde(rename = "_id")]
    id: i64,
    item: String,
    amount: i64,
}

/// Keeps one shipment per order. A change that comes again, or late, finds its version or a newer one and changes nothing.
async fn keep(shipments: Collection<Document>, change: Change) -> Result<(), HandlerError> {
    let Some(order) = change.after::<Order>()? else { return Ok(()) };
    let version = change.version();
    let version = format!("{:020}.{:020}", version.time, version.ordinal);
    let older = doc! { "_id": order.id, "version": { "$lt": &version } };
    let shipment = doc! { "$set": { "item": order.item, "amount": order.amount, "version": &version } };
    match shipments.update_one(older, shipment).upsert(true).await {
        // The shipment is there, and it is not older.
        Err(error) if is_duplicate(&error) => Ok(()),
        // An error by `?` says that the database is away: the same change is tried again.
        kept => Ok(kept.map(drop)?),
    }
}

fn is_duplicate(error: &NativeError) -> bool {
    matches!(&*error.kind, ErrorKind::Write(WriteFailure::WriteError(write)) if write.code == 11_000)
}

/// Runs until `end`.
pub async fn run(url: &str, end: impl Future<Output = ()>) -> Result<()> {
    let source =
        open::source_at(url).set("collection", "orders").set("full_document", "updateLookup").set("wait", true);
    let source = source.open("shop", "orders").await?;
    let wrong =
        |error: NativeError| Error::config(format!("no client can be made: {error}")).remedy("correct MONGODB_URL");
    let client = Client::with_uri_str(url).await.map_err(wrong)?;
    let shipments = client.database("shipping").collection::<Document>("shipments");
    let orders = Stream::new("orders", source)
        .start_at(StartAt::Snapshot)
        .concurrency(4)
        // Late writes find a newer version and change nothing, so a takeover after a crash does not wait for them.
        .handlers(HandlerSettings { grade: Grade::Versioned, ..HandlerSettings::default() })
        .on_reject(OnReject::DeadLetter { park: Park::Key })
        .on("orders", [Operation::Read, Operation::Insert, Operation::Replace, Operation::Update], move |change| {
            keep(shipments.clone(), change)
        });
    let store = open::stores(url).await?;
    let watch = Watchkeeper::builder("shop").store(store).stream(orders).start().await?;
    // Drains, commits and releases the watch when the signal has come, so that another instance goes on at once.
    watch.until(end).await
}

#[tokio::main]
async fn main() -> Result<()> {
    tracing_subscriber::fmt().init();
    let usual = || "mongodb://127.0.0.1/shop?replicaSet=rs0".to_owned();
    let url = std::env::var("MONGODB_URL").unwrap_or_else(|_| usual());
    let mut terminate = signal(SignalKind::terminate()).expect("signals can be taken");
    let end = async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = tokio::signal::ctrl_c() => {}
        }
    };
    run(&url, end).await
}
