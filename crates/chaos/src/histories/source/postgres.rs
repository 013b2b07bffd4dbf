//! Tables of PostgreSQL, with a change log or by replication.

use async_trait::async_trait;
use std::time::{Duration, Instant};
use watchkeeper_postgres::changelog::{Wake, install};
use watchkeeper_postgres::tokio_postgres::{self, Client, NoTls};
use watchkeeper_testkit::histories::{Plan, SchemaChange, Statement};

use super::super::Trouble;
use super::super::config::Paths;
use super::super::extjson::plain;
use super::super::literal::{Dialect, sql};
use super::super::target::Content;
use super::Database;
use crate::cluster::cx;

/// How long a slot may take to be made.
const SLOT: Duration = Duration::from_secs(20);

pub(super) struct Tables {
    url: String,
    client: Client,
    replication: bool,
}

fn to_trouble(error: tokio_postgres::Error) -> Trouble {
    let cause = error.as_db_error().map(ToString::to_string);
    format!("the source: {}", cause.unwrap_or_else(|| error.to_string()))
}

/// A connection that ends with its client.
pub(in super::super) async fn connect(url: &str) -> Result<Client, tokio_postgres::Error> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
    tokio::spawn(connection);
    Ok(client)
}

/// Makes a database.
pub(in super::super) async fn create_database(url: &str) -> Result<(), tokio_postgres::Error> {
    let (server, name) = url.rsplit_once('/').unwrap_or((url, "postgres"));
    connect(&format!("{server}/postgres")).await?.batch_execute(&format!("CREATE DATABASE {name}")).await
}

/// Rows of the target that the source does not have, and the other way round. The target's are taken for rows of the source's
/// table, so that the server itself says which values are equal.
fn comparison(table: &str) -> String {
    format!(
        "WITH target AS (SELECT r::text AS line FROM jsonb_populate_recordset(NULL::\"{table}\", $1::text::jsonb) r),
              source AS (SELECT t::text AS line FROM \"{table}\" t)
         SELECT '{table}: only in the target: ' || line FROM (TABLE target EXCEPT ALL TABLE source) more
         UNION ALL
         SELECT '{table}: only in the source: ' || line FROM (TABLE source EXCEPT ALL TABLE target) less"
    )
}

impl Tables {
    pub(super) async fn open(places: &Paths, replication: bool) -> Result<Self, Trouble> {
        create_database(&places.source).await.map_err(to_trouble)?;
        let client = connect(&places.source).await.map_err(to_trouble)?;
        Ok(Self { url: places.source.clone(), client, replication })
    }

    fn slot(&self) -> &str {
        self.url.rsplit('/').next().unwrap_or_default()
    }
}

#[async_trait(?Send)]
impl Database for Tables {
    async fn create(&mut self, plan: &Plan) -> Result<(), Trouble> {
        for table in &plan.tables {
            self.client.batch_execute(&Dialect::Postgres.create(table, "id")).await.map_err(to_trouble)?;
        }
        if self.replication {
            return Ok(());
        }
        let names: Vec<_> = plan.tables.iter().map(|table| table.name.as_str()).collect();
        let installed = async {
            let config = watchkeeper_postgres::Config::new(&self.url)?;
            let client = watchkeeper_postgres::Client::open(&cx(), config).await?;
            install(&cx(), &client, &names, Wake::Notify).await
        };
        installed.await.map(drop).map_err(|error| error.to_string())
    }

    async fn transact(&mut self, statements: &[Statement], commit: bool) -> Result<(), Trouble> {
        let lines: String = statements.iter().map(|statement| sql(Dialect::Postgres, statement) + ";\n").collect();
        let end = if commit { "COMMIT" } else { "ROLLBACK" };
        self.client.batch_execute(&format!("BEGIN;\n{lines}{end}")).await.map_err(to_trouble)
    }

    async fn change_schema(&mut self, change: &SchemaChange) -> Result<(), Trouble> {
        let statement = match change {
            SchemaChange::AddColumn { table, column } => {
                format!("ALTER TABLE \"{table}\" ADD \"{}\" {}", column.name, Dialect::Postgres.name(column.kind))
            }
            SchemaChange::DropColumn { table, column } => format!("ALTER TABLE \"{table}\" DROP \"{column}\""),
            SchemaChange::RenameColumn { table, from, to, rev } => format!(
                "BEGIN; ALTER TABLE \"{table}\" RENAME \"{from}\" TO \"{to}\"; UPDATE \"{table}\" SET rev = {rev}; COMMIT"
            ),
            SchemaChange::RenameAndBack { table, meanwhile } => format!(
                "ALTER TABLE \"{table}\" RENAME TO \"{meanwhile}\"; ALTER TABLE \"{meanwhile}\" RENAME TO \"{table}\""
            ),
            SchemaChange::DropTable { table } => format!("DROP TABLE \"{table}\""),
            SchemaChange::RebuildTable { table } => format!(
                "BEGIN; CREATE TABLE rebuilt (LIKE \"{table}\" INCLUDING ALL); DROP TABLE \"{table}\"; ALTER TABLE rebuilt RENAME TO \"{table}\"; COMMIT"
            ),
            SchemaChange::Rename { table, to } => format!("ALTER TABLE \"{table}\" RENAME TO \"{to}\""),
            SchemaChange::DropCollection { .. } | SchemaChange::RenameOver { .. } | SchemaChange::Out { .. } => {
                return Err(format!("PostgreSQL has no {change:?}"));
            }
        };
        self.client.batch_execute(&statement).await.map_err(to_trouble)
    }

    async fn await_reader(&mut self) -> Result<(), Trouble> {
        let since = Instant::now();
        // Until it has found where to begin it has no such place.
        let sql =
            "SELECT 1 FROM pg_replication_slots WHERE slot_name = $1 AND active AND confirmed_flush_lsn IS NOT NULL";
        while self.replication && self.client.query_opt(sql, &[&self.slot()]).await.map_err(to_trouble)?.is_none() {
            if since.elapsed() > SLOT {
                return Err("the slot was never read".to_owned());
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    }

    async fn differences(&mut self, plan: &Plan, content: &Content) -> Result<Vec<String>, Trouble> {
        let mut found = Vec::new();
        for table in &plan.tables {
            let rows = content.rows.get(&table.name).map(Vec::as_slice).unwrap_or_default();
            let rows = rows.iter().map(|row| plain(row)).collect::<Result<Vec<_>, _>>()?.join(",");
            let rows =
                self.client.query(&comparison(&table.name), &[&format!("[{rows}]")]).await.map_err(to_trouble)?;
            found.extend(rows.iter().map(|row| row.get::<_, String>(0)));
        }
        Ok(found)
    }

    /// A slot would keep the log for good.
    async fn clean_up(&mut self) -> Result<(), Trouble> {
        let end = "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = $1 AND active";
        let drop =
            "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = $1 AND NOT active";
        let slot = self.slot().to_owned();
        self.client.execute(end, &[&slot]).await.map_err(to_trouble)?;
        self.client.execute(drop, &[&slot]).await.map(|_| ()).map_err(to_trouble)
    }
}
