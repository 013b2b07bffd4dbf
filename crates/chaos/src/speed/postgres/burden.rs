//! What the log costs those who write: the same writes into tables without triggers, with a plain audit trigger, with those of the log, and
//! with NOTIFY.

use std::sync::Arc;
use std::time::Instant;

use tokio::task::JoinSet;
use watchkeeper_core::{Error, Result};
use watchkeeper_postgres::changelog::{Wake, install};
use watchkeeper_postgres::tokio_postgres::Client;
use watchkeeper_postgres::{Client as Pool, Config};
use watchkeeper_testkit::servers::postgres::Server;

use super::history::{insert, table, update};
use super::{connect, unavailable};
use crate::cluster::cx;
use crate::speed::verdict::{Bar, quartiles};

/// The database.
const BURDENED: &str = "burdened";

/// Without triggers, with a plain audit trigger, with those of the log, and with those that also notify readers.
const TABLES: [&str; 4] = ["plain", "audited", "logged", "told"];
const PLAIN: usize = 0;
const AUDITED: usize = 1;
const LOGGED: usize = 2;
const NOTIFYING: usize = 3;

/// A statement-level trigger as many write one to keep an audit trail, and no more than that.
const AUDIT: &str = "
    CREATE TABLE audit (id bigserial PRIMARY KEY, at timestamptz NOT NULL DEFAULT now(), txid bigint NOT NULL DEFAULT txid_current(),
        relation text NOT NULL, operation text NOT NULL, before jsonb, after jsonb);
    CREATE FUNCTION audit() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$ BEGIN
        IF TG_OP = 'INSERT' THEN
            INSERT INTO audit (relation, operation, after) SELECT TG_TABLE_NAME, TG_OP, to_jsonb(n) FROM new_rows n;
        ELSIF TG_OP = 'UPDATE' THEN
            INSERT INTO audit (relation, operation, before, after)
                SELECT TG_TABLE_NAME, TG_OP, to_jsonb(o), to_jsonb(n) FROM old_rows o JOIN new_rows n USING (id);
        ELSE
            INSERT INTO audit (relation, operation, before) SELECT TG_TABLE_NAME, TG_OP, to_jsonb(o) FROM old_rows o;
        END IF;
        RETURN NULL; END $$;
    CREATE TRIGGER audit_insert AFTER INSERT ON audited REFERENCING NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION audit();
    CREATE TRIGGER audit_update AFTER UPDATE ON audited REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows
        FOR EACH STATEMENT EXECUTE FUNCTION audit();
    CREATE TRIGGER audit_delete AFTER DELETE ON audited REFERENCING OLD TABLE AS old_rows FOR EACH STATEMENT EXECUTE FUNCTION audit()";

/// What is written: by how many writers at once, how many transactions each, how many rows in one; and what that is compared with.
pub(super) struct Load {
    name: &'static str,
    writers: i64,
    transactions: i64,
    rows: i64,
    updates: bool,
    peer: usize,
}

/// Many rows at once, where the work for each row counts, and one row by several writers, where that for a statement does.
const LOADS: [Load; 3] = [
    Load { name: "1,000-row inserts", writers: 1, transactions: 20, rows: 1_000, updates: false, peer: AUDITED },
    Load { name: "200-row updates", writers: 1, transactions: 60, rows: 200, updates: true, peer: AUDITED },
    Load { name: "1-row inserts of 4 writers", writers: 4, transactions: 250, rows: 1, updates: false, peer: PLAIN },
];

/// How much longer than with its peer a write may take.
const LONGER_MAX: f64 = 1.3;

/// A server process makes plans for a table, and compiles its triggers, with its first write. Applications keep their connections, so that this
/// is measured by itself.
const FIRST: i64 = 1;

/// How long the writes of a load took into each table: the first ones of its connections, and all others.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Round {
    first: [f64; TABLES.len()],
    others: [f64; TABLES.len()],
}

/// All rounds of a load.
pub(super) type Measurement = Vec<Round>;

/// Measures all loads, so many rounds.
pub(super) async fn measure(server: &Server, rounds: usize) -> Result<Vec<(&'static Load, Measurement)>> {
    let url = server.url(BURDENED);
    connect(&server.url("postgres"))
        .await?
        .batch_execute(&format!("CREATE DATABASE {BURDENED}"))
        .await
        .map_err(unavailable)?;
    let tables = TABLES.map(table).join(";");
    connect(&url).await?.batch_execute(&format!("{tables}; {AUDIT}")).await.map_err(unavailable)?;
    let cx = cx();
    let pool = Pool::open(&cx, Config::new(&url)?).await?;
    install(&cx, &pool, &[TABLES[LOGGED]], Wake::Silent).await?;
    install(&cx, &pool, &[TABLES[NOTIFYING]], Wake::Notify).await?;
    // Telling is cheaper where nobody listens.
    let listener = connect(&url).await?;
    listener.batch_execute("LISTEN watchkeeper_log").await.map_err(unavailable)?;
    let (mut next, mut measured) = (0, Vec::new());
    for load in &LOADS {
        let mut took = Measurement::new();
        for round in 0..rounds {
            // Updates change the first rows again and again, which the inserts before them have written.
            let first = if load.updates { 0 } else { next };
            let mut seconds = Round::default();
            for turn in 0..TABLES.len() {
                // Each is the first as often as the others.
                let which = (turn + round) % TABLES.len();
                (seconds.first[which], seconds.others[which]) = write(&url, TABLES[which], load, first).await?;
            }
            next += load.writers * (FIRST + load.transactions) * load.rows;
            took.push(seconds);
        }
        measured.push((load, took));
    }
    drop(listener);
    Ok(measured)
}

/// Prints how much longer the same writes take, by the median of all rounds; the bars of it.
pub(super) fn bars(measured: &[(&'static Load, Measurement)]) -> Vec<Bar> {
    println!("what triggers cost the writers, as multiples of the time without triggers:");
    measured.iter().map(|(load, took)| bar(load, took)).collect()
}

fn bar(load: &Load, took: &Measurement) -> Bar {
    let compared = |which: usize, with: usize| {
        let [low, middle, high] = quartiles(took.iter().map(|round| round.others[which] / round.others[with]));
        (middle, format!("{middle:.2} x ({low:.2} to {high:.2})"))
    };
    let first = |which: usize| 1_000.0 * quartiles(took.iter().map(|round| round.first[which]))[1];
    let [audited, logged, notified] = [AUDITED, LOGGED, NOTIFYING].map(|which| compared(which, PLAIN).1);
    println!("  {}: plain audit trigger {audited}, log {logged}, log with NOTIFY {notified}", load.name);
    let [plain, audited, logged] = [PLAIN, AUDITED, LOGGED].map(first);
    println!(
        "    first write of a connection: {plain:.1} ms, with a plain audit trigger {audited:.1} ms, with the log {logged:.1} ms"
    );
    let (ratio, shown) = compared(LOGGED, load.peer);
    let peer = if load.peer == PLAIN { "no trigger" } else { "plain statement-level audit trigger" };
    Bar::at_most(format!("{}, log / {peer}: {shown}", load.name), ratio, LONGER_MAX)
}

/// Writes rows from this number on; how long the first writes of all connections took, and all others.
async fn write(url: &str, table: &'static str, load: &Load, first: i64) -> Result<(f64, f64)> {
    let mut clients = Vec::new();
    for _ in 0..load.writers {
        clients.push(Arc::new(connect(url).await?));
    }
    let began = Instant::now();
    write_each(&clients, table, load, first, FIRST).await?;
    let first_took = began.elapsed().as_secs_f64();
    let began = Instant::now();
    write_each(&clients, table, load, first + load.writers * FIRST * load.rows, load.transactions).await?;
    Ok((first_took, began.elapsed().as_secs_f64()))
}

/// Writes so many transactions with each connection, all at once.
async fn write_each(clients: &[Arc<Client>], table: &str, load: &Load, first: i64, transactions: i64) -> Result<()> {
    let Load { rows, updates, .. } = *load;
    let mut writing = JoinSet::new();
    for (client, writer) in clients.iter().map(Arc::clone).zip(0..) {
        let first = first + writer * transactions * rows;
        let sql = if updates { update(table) } else { insert(table) };
        writing.spawn(async move { write_alone(&client, &sql, first, transactions, rows).await });
    }
    while let Some(written) = writing.join_next().await {
        written.map_err(|error| Error::internal("a writer broke").caused_by(error))??;
    }
    Ok(())
}

async fn write_alone(client: &Client, sql: &str, first: i64, transactions: i64, rows: i64) -> Result<()> {
    let statement = client.prepare(sql).await.map_err(unavailable)?;
    for transaction in 0..transactions {
        let first = first + transaction * rows;
        client.execute(&statement, &[&first, &(first + rows - 1)]).await.map_err(unavailable)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::speed::verdict;

    #[test]
    fn each_load_is_compared_with_its_peer_within_its_round() {
        let round = |others| Round { others, ..Round::default() };
        let good: Measurement = vec![round([1.0, 4.0, 5.0, 6.0]), round([10.0, 40.0, 50.0, 60.0])];
        assert!(bar(&LOADS[0], &good).kept);
        let missed = verdict::missed(vec![bar(&LOADS[2], &good)]);
        assert_eq!(missed, ["1-row inserts of 4 writers, log / no trigger: 5.00 x (5.00 to 5.00), at most 1.3"]);
        assert!(!bar(&LOADS[1], &Measurement::new()).kept, "nothing was measured");
    }
}
