//! Tables of SQLite with a change log.

use std::time::Duration;

use async_trait::async_trait;
use serde_json::{Map, Value, json};
use watchkeeper_sqlite::rusqlite::types::ValueRef;
use watchkeeper_sqlite::rusqlite::{self, Connection};
use watchkeeper_sqlite::{Client, Config, tools};
use watchkeeper_testkit::histories::{Column, Plan, SchemaChange, Statement, Step};

use super::super::Trouble;
use super::super::config::Paths;
use super::super::literal::{Dialect, sql};
use super::super::target::Content;
use super::{Database, normal, normal_rows, unequal};
use crate::cluster::cx;

pub(super) struct File {
    path: std::path::PathBuf,
    connection: Connection,
}

fn to_trouble(error: rusqlite::Error) -> Trouble {
    format!("the source: {error}")
}

impl File {
    pub(super) fn open(places: &Paths) -> Result<Self, Trouble> {
        let path = places.folder.join("app.db");
        let connection = Connection::open(&path).map_err(to_trouble)?;
        connection.busy_timeout(Duration::from_secs(30)).map_err(to_trouble)?;
        Ok(Self { path, connection })
    }

    /// Has the triggers know all columns of these tables.
    async fn install(&self, tables: &[&str]) -> Result<(), Trouble> {
        let client = Client::open(&cx(), Config::new(&self.path)).await.map_err(|error| error.to_string())?;
        tools::install(&cx(), &client, tables).await.map_err(|error| error.to_string())
    }

    /// Changes a table with the tool that takes the triggers out of the way.
    async fn alter(&self, sql: &str) -> Result<(), Trouble> {
        let client = Client::open(&cx(), Config::new(&self.path)).await.map_err(|error| error.to_string())?;
        tools::alter(&cx(), &client, sql).await.map_err(|error| error.to_string())?;
        // This connection learns of the new columns only when it executes something. Until then it prepares statements for the old ones.
        self.connection.query_row("SELECT count(*) FROM sqlite_schema", [], |_| Ok(())).map_err(to_trouble)
    }

    fn execute(&self, sql: &str) -> Result<(), Trouble> {
        self.connection.execute_batch(sql).map_err(to_trouble)
    }

    /// Rows of a target without the columns that the source no longer has: no change took these from rows that were not changed since.
    fn without_dropped(&self, plan: &Plan, table: &str, rows: Vec<String>) -> Result<Vec<String>, Trouble> {
        let statement = self.connection.prepare(&format!("SELECT * FROM \"{table}\"")).map_err(to_trouble)?;
        let present: Vec<_> = statement.column_names().collect();
        let gone: Vec<_> = dropped(plan, table).into_iter().filter(|column| !present.contains(column)).collect();
        let strip = |row: String| {
            let mut fields: Map<String, Value> =
                serde_json::from_str(&row).map_err(|error| format!("{error}: {row}"))?;
            fields.retain(|name, _| !gone.contains(&name.as_str()));
            Ok(Value::Object(fields).to_string())
        };
        rows.into_iter().map(strip).collect()
    }

    fn rows(&self, table: &str) -> rusqlite::Result<Vec<String>> {
        let mut statement = self.connection.prepare(&format!("SELECT * FROM \"{table}\""))?;
        let names: Vec<String> = statement.column_names().map(str::to_owned).collect();
        let rows = statement.query_map([], |row| {
            let mut fields = serde_json::Map::new();
            for (at, name) in names.iter().enumerate() {
                fields.insert(name.clone(), value(row.get_ref(at)?));
            }
            Ok(normal(Value::Object(fields)).to_string())
        })?;
        rows.collect()
    }
}

/// The columns that a plan takes from a table.
fn dropped<'a>(plan: &'a Plan, name: &str) -> Vec<&'a str> {
    let column = |step: &'a Step| match step {
        Step::Schema(SchemaChange::DropColumn { table, column }) if table == name => Some(column.as_str()),
        Step::Schema(SchemaChange::RenameColumn { table, from, .. }) if table == name => Some(from.as_str()),
        _ => None,
    };
    plan.steps.iter().filter_map(column).collect()
}

/// A value as the change log has it.
fn value(value: ValueRef<'_>) -> Value {
    match value {
        ValueRef::Null => Value::Null,
        ValueRef::Integer(number) => json!(number),
        ValueRef::Real(number) => json!(number),
        ValueRef::Text(text) => json!(String::from_utf8_lossy(text)),
        ValueRef::Blob(bytes) => {
            let digits: String = bytes.iter().map(|byte| format!("{byte:02X}")).collect();
            json!({ "$hex": digits })
        }
    }
}

#[async_trait(?Send)]
impl Database for File {
    async fn create(&mut self, plan: &Plan) -> Result<(), Trouble> {
        for table in &plan.tables {
            self.connection.execute_batch(&Dialect::Sqlite.create(table, "id")).map_err(to_trouble)?;
        }
        let names: Vec<_> = plan.tables.iter().map(|table| table.name.as_str()).collect();
        self.install(&names).await
    }

    async fn transact(&mut self, statements: &[Statement], commit: bool) -> Result<(), Trouble> {
        let lines: String = statements.iter().map(|statement| sql(Dialect::Sqlite, statement) + ";\n").collect();
        let end = if commit { "COMMIT" } else { "ROLLBACK" };
        self.connection.execute_batch(&format!("BEGIN IMMEDIATE;\n{lines}{end}")).map_err(to_trouble)
    }

    async fn change_schema(&mut self, change: &SchemaChange) -> Result<(), Trouble> {
        match change {
            SchemaChange::AddColumn { table, column: Column { name, kind } } => {
                let kind = Dialect::Sqlite.name(*kind);
                self.execute(&format!("ALTER TABLE \"{table}\" ADD COLUMN \"{name}\" {kind}"))?;
                self.install(&[table]).await
            }
            SchemaChange::DropColumn { table, column } => {
                self.alter(&format!("ALTER TABLE \"{table}\" DROP COLUMN \"{column}\"")).await
            }
            SchemaChange::RenameColumn { table, from, to, rev } => {
                self.alter(&format!("ALTER TABLE \"{table}\" RENAME COLUMN \"{from}\" TO \"{to}\"")).await?;
                self.execute(&format!("UPDATE \"{table}\" SET rev = {rev}"))
            }
            SchemaChange::DropTable { table } => self.execute(&format!("DROP TABLE \"{table}\"")),
            SchemaChange::RebuildTable { table } => self.execute(&format!(
                "BEGIN IMMEDIATE; CREATE TABLE rebuilt (id PRIMARY KEY, rev); DROP TABLE \"{table}\"; \
                 ALTER TABLE rebuilt RENAME TO \"{table}\"; COMMIT"
            )),
            SchemaChange::Rename { table, to } => self.execute(&format!("ALTER TABLE \"{table}\" RENAME TO \"{to}\"")),
            _ => Err(format!("SQLite has no {change:?}")),
        }
    }

    async fn differences(&mut self, plan: &Plan, content: &Content) -> Result<Vec<String>, Trouble> {
        let mut found = Vec::new();
        for table in &plan.tables {
            let source = self.rows(&table.name).map_err(to_trouble)?;
            let target = self.without_dropped(plan, &table.name, normal_rows(content, &table.name)?)?;
            found.extend(unequal(&table.name, source, target));
        }
        Ok(found)
    }
}
