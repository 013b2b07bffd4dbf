//! What the log costs those who write: the same writes into tables without triggers, with them, and with NOTIFY.

use std::time::Instant;

use tokio::task::JoinSet;
use watchkeeper_core::{Error, Result};
use watchkeeper_postgres::changelog::{Wake, install};
use watchkeeper_postgres::tokio_postgres::Client;
use watchkeeper_postgres::{Client as Pool, Config};
use watchkeeper_testkit::servers::postgres::Server;

use super::history::{insert, table};
use super::{connect, unavailable};
use crate::fleet::cx;
use crate::speed::verdict::quartiles;

/// The database.
const BURDENED: &str = "burdened";

/// Without triggers, with them, and with those that also tell readers.
const TABLES: [&str; 3] = ["plain", "logged", "told"];

/// What is written: by how many writers at once, how many transactions each, how many rows in one.
struct Load {
    writers: i64,
    transactions: i64,
    rows: i64,
}

/// Much at once, where the triggers themselves are seen, and little by many, where a lock at the commit is.
const LOADS: [Load; 2] =
    [Load { writers: 1, transactions: 100, rows: 100 }, Load { writers: 4, transactions: 250, rows: 1 }];

/// Prints how much longer the same writes take, by the median of so many rounds.
pub(super) async fn measure(server: &Server, rounds: usize) -> Result<()> {
    let url = server.url(BURDENED);
    connect(&server.url("postgres"))
        .await?
        .batch_execute(&format!("CREATE DATABASE {BURDENED}"))
        .await
        .map_err(unavailable)?;
    let tables = TABLES.map(table).join(";");
    connect(&url).await?.batch_execute(&tables).await.map_err(unavailable)?;
    let (cx, [_, logged, told]) = (cx(), TABLES);
    let pool = Pool::open(&cx, Config::new(&url)?).await?;
    install(&cx, &pool, &[logged], Wake::Silent).await?;
    install(&cx, &pool, &[told], Wake::Notify).await?;
    // Telling is cheaper where nobody listens.
    let listener = connect(&url).await?;
    listener.batch_execute("LISTEN watchkeeper_log").await.map_err(unavailable)?;
    let mut next = 0;
    for load in LOADS {
        let mut took = Vec::new();
        for _ in 0..rounds {
            let mut round = [0.0; 3];
            for (seconds, table) in round.iter_mut().zip(TABLES) {
                *seconds = write(&url, table, &load, next).await?;
            }
            next += load.writers * load.transactions * load.rows;
            took.push(round);
        }
        tell(&load, &took);
    }
    drop(listener);
    Ok(())
}

fn tell(load: &Load, took: &[[f64; 3]]) {
    let [logged, told] = [1, 2].map(|which| {
        let [low, middle, high] = quartiles(took.iter().map(|round| round[which] / round[0]));
        format!("{middle:.2} x ({low:.2} to {high:.2})")
    });
    let Load { writers, rows, .. } = load;
    println!("time of writes, {writers} at once, rows in a transaction {rows}: triggers {logged}, with NOTIFY {told}");
}

/// Writes new rows from this number on; how long that took.
async fn write(url: &str, table: &'static str, load: &Load, first: i64) -> Result<f64> {
    let mut clients = Vec::new();
    for _ in 0..load.writers {
        clients.push(connect(url).await?);
    }
    let Load { transactions, rows, .. } = *load;
    let began = Instant::now();
    let mut writing = JoinSet::new();
    for (client, writer) in clients.into_iter().zip(0..) {
        let first = first + writer * transactions * rows;
        writing.spawn(async move { write_alone(&client, table, first, transactions, rows).await });
    }
    while let Some(written) = writing.join_next().await {
        written.map_err(|error| Error::internal("a writer broke").caused_by(error))??;
    }
    Ok(began.elapsed().as_secs_f64())
}

async fn write_alone(client: &Client, table: &str, first: i64, transactions: i64, rows: i64) -> Result<()> {
    let statement = client.prepare(&insert(table)).await.map_err(unavailable)?;
    for transaction in 0..transactions {
        let first = first + transaction * rows;
        client.execute(&statement, &[&first, &(first + rows - 1)]).await.map_err(unavailable)?;
    }
    Ok(())
}
