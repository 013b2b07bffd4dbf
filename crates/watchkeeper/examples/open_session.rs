//! A handler that is given the session of an open transaction of MongoDB: what it writes there and the checkpoint that passes the
//! change are committed together, so each order is counted exactly once, whatever crashes.
//! `cargo run -p watchkeeper --example open_session 'mongodb://127.0.0.1/shop?replicaSet=rs0'`

use std::sync::Arc;

use watchkeeper::mongodb::mongodb::bson::{Document, doc};
use watchkeeper::mongodb::{Client, Config, Feed, Handle, Open, PerChange, Transactional, View, mongodb::error};
use watchkeeper::{Change, Operation, Result, StartAt, Stream, Watchkeeper, open};

/// Counts orders.
struct Count;

#[async_trait::async_trait]
impl Handle for Count {
    async fn handle(&self, open: &mut Open<'_>, change: &Change) -> Result<(), error::Error> {
        if matches!(change.operation(), Operation::Insert | Operation::Read) {
            let totals = open.database().collection::<Document>("totals");
            let count = totals.update_one(doc! { "_id": "orders" }, doc! { "$inc": { "count": 1 } });
            // Only what is done in the session belongs to the transaction.
            count.upsert(true).session(open.session()).await?;
        }
        Ok(())
    }
}

/// Counts the orders that exist and those that come, until there are `orders` of them.
pub async fn run(url: &str, orders: i32) -> Result<i32> {
    let cx = open::cx();
    let client = Client::open(&cx, Config::new(url)?).await?;
    let sink = Transactional::open(&cx, client.clone(), PerChange(Count)).await?;
    let source = Arc::new(Feed::new(client.clone(), View { wait: true, ..View::collection("orders") }));
    let stream = Stream::new("count", source).start_at(StartAt::Snapshot);
    let stream = stream.checkpoints(sink.checkpoints().clone()).sink("totals", sink);
    let watch = Watchkeeper::builder("shop").store(open::stores(url).await?).stream(stream).start().await?;
    let totals = client.database(&cx).await?.collection::<Document>("totals");
    loop {
        let total = totals.find_one(doc! { "_id": "orders" }).await;
        let total = total.map_err(|native| client.error(native, watchkeeper::mongodb::CallPurpose::Reading))?;
        let counted = total.and_then(|total| total.get_i32("count").ok()).unwrap_or(0);
        if counted >= orders {
            return watch.shutdown().await.map(|()| counted);
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let usual = "mongodb://127.0.0.1/shop?replicaSet=rs0".to_owned();
    let url = std::env::args().nth(1).unwrap_or(usual);
    run(&url, 1).await.map(|counted| println!("{counted} orders so far"))
}
