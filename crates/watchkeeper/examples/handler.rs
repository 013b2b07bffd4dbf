//! A handler on a table: `cargo run -p watchkeeper --example handler`.

use std::path::Path;
use std::time::Duration;

use tokio::sync::mpsc;
use watchkeeper::sqlite::{Client, Config, tools};
use watchkeeper::{HandlerError, Operation, Result, StartAt, Stream, ValueRef, Watchkeeper, open};

/// Puts the application's table under watch and gives its inserts to a handler, until three have come.
pub async fn run(folder: &Path) -> Result<Vec<String>> {
    let (app, state) = (folder.join("shop.db"), folder.join("state.db"));
    let shop = prepare(&app).await?;

    let (reported, mut arrived) = mpsc::channel(10);
    let source = open::source(&format!("sqlite:{}", app.display()), "shop", "orders").await?;
    let orders =
        Stream::new("orders", source).start_at(StartAt::Oldest).on("orders", Operation::Insert, move |change| {
            let reported = reported.clone();
            async move {
                let Some(ValueRef::Str(item)) = change.get(&["after", "item"])? else { return Ok(()) };
                reported.send(format!("{} of a {item}", change.operation())).await.map_err(HandlerError::retry)
            }
        });
    let store = open::stores(&format!("sqlite:{}", state.display())).await?;
    let builder = Watchkeeper::builder("shop").store(store).lease(Duration::from_secs(5));
    let watch = builder.stream(orders).start().await?;

    // What an application does, in this process or another.
    let insert = "INSERT INTO orders(item) VALUES ('rope'), ('lamp'), ('oil')";
    shop.write(&open::cx(), move |transaction| Ok(transaction.execute_batch(insert)?)).await?;
    let mut lines = Vec::new();
    while lines.len() < 3 {
        lines.extend(arrived.recv().await);
    }
    watch.shutdown().await?;
    Ok(lines)
}

/// The application's own database, and the log of its table.
async fn prepare(path: &Path) -> Result<Client> {
    let client = Client::open(&open::cx(), Config::new(path)).await?;
    let table = "CREATE TABLE IF NOT EXISTS orders(id INTEGER PRIMARY KEY, item TEXT NOT NULL)";
    client.write(&open::cx(), move |transaction| Ok(transaction.execute_batch(table)?)).await?;
    tools::install(&open::cx(), &client, &["orders"]).await?;
    Ok(client)
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let folder = std::env::temp_dir().join("watchkeeper-handler");
    std::fs::create_dir_all(&folder).expect("a temporary folder can be made");
    for line in run(&folder).await? {
        println!("{line}");
    }
    Ok(())
}
