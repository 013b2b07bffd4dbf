//! Pulling changes and acknowledging them: `cargo run -p watchkeeper --example pull`.

use std::path::Path;

use watchkeeper::sqlite::{Client, Config, tools};
use watchkeeper::{Result, StartAt, Stream, Watchkeeper, open, pull};

/// Takes so many changes of a table, and acknowledges each of them.
pub async fn run(folder: &Path, changes: usize) -> Result<Vec<String>> {
    let app = folder.join("shop.db");
    prepare(&app).await?;
    let source = open::source(&format!("sqlite:{}", app.display()), "shop", "audit").await?;
    let stream = Stream::new("audit", source).start_at(StartAt::Oldest);
    let (stream, mut pulled) = stream.pull(pull::Settings::default())?;
    let store = open::stores(&format!("sqlite:{}", folder.join("state.db").display())).await?;
    let watch = Watchkeeper::builder("shop").store(store).stream(stream).start().await?;

    let mut lines = Vec::new();
    while lines.len() < changes {
        match pulled.next().await {
            Some(Ok(change)) => {
                lines.push(format!("{} of {}", change.operation(), change.namespace()));
                // Only now the checkpoint may pass it.
                change.ack();
            }
            Some(Err(interrupted)) => eprintln!("{interrupted}"),
            None => break,
        }
    }
    watch.begin_shutdown();
    // Whatever else had been handed out is left to the next instance.
    drop(pulled);
    watch.join().await?;
    Ok(lines)
}

async fn prepare(path: &Path) -> Result<()> {
    let client = Client::open(&open::cx(), Config::new(path)).await?;
    let table = "CREATE TABLE IF NOT EXISTS orders(id INTEGER PRIMARY KEY, item TEXT NOT NULL)";
    client.write(&open::cx(), move |transaction| Ok(transaction.execute_batch(table)?)).await?;
    tools::install(&open::cx(), &client, &["orders"]).await?;
    let changes = "INSERT INTO orders(item) VALUES ('rope'), ('lamp'); DELETE FROM orders WHERE item = 'rope'";
    client.write(&open::cx(), move |transaction| Ok(transaction.execute_batch(changes)?)).await
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let folder = std::env::temp_dir().join("watchkeeper-pull");
    std::fs::create_dir_all(&folder).expect("a temporary folder can be made");
    for line in run(&folder, 3).await? {
        println!("{line}");
    }
    Ok(())
}
