//! Tables of SQLite with a change log.

use std::time::Duration;

use async_trait::async_trait;
use serde_json::{Value, json};
use watchkeeper_sqlite::rusqlite::types::ValueRef;
use watchkeeper_sqlite::rusqlite::{self, Connection};
use watchkeeper_sqlite::{Client, Config, tools};
use watchkeeper_testkit::histories::{Plan, SchemaChange, Statement};

use super::super::Trouble;
use super::super::config::Places;
use super::super::literal::{Dialect, sql};
use super::super::target::Content;
use super::{Database, normal, normal_rows, unequal};
use crate::fleet::cx;

pub(super) struct File {
    path: std::path::PathBuf,
    connection: Connection,
}

fn told(error: rusqlite::Error) -> Trouble {
    format!("the source: {error}")
}

impl File {
    pub(super) fn open(places: &Places) -> Result<Self, Trouble> {
        let path = places.folder.join("app.db");
        let connection = Connection::open(&path).map_err(told)?;
        connection.busy_timeout(Duration::from_secs(30)).map_err(told)?;
        Ok(Self { path, connection })
    }

    /// Has the triggers know all columns of these tables.
    async fn install(&self, tables: &[&str]) -> Result<(), Trouble> {
        let client = Client::open(&cx(), Config::new(&self.path)).await.map_err(|error| error.to_string())?;
        tools::install(&cx(), &client, tables).await.map_err(|error| error.to_string())
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
            self.connection.execute_batch(&Dialect::Sqlite.create(table, "id")).map_err(told)?;
        }
        let names: Vec<_> = plan.tables.iter().map(|table| table.name.as_str()).collect();
        self.install(&names).await
    }

    async fn transact(&mut self, statements: &[Statement], commit: bool) -> Result<(), Trouble> {
        let lines: String = statements.iter().map(|statement| sql(Dialect::Sqlite, statement) + ";\n").collect();
        let end = if commit { "COMMIT" } else { "ROLLBACK" };
        self.connection.execute_batch(&format!("BEGIN IMMEDIATE;\n{lines}{end}")).map_err(told)
    }

    async fn change_schema(&mut self, change: &SchemaChange) -> Result<(), Trouble> {
        let (table, column) = match change {
            SchemaChange::AddColumn { table, column } => (table, column),
            SchemaChange::DropTable { table } => {
                return self.connection.execute_batch(&format!("DROP TABLE \"{table}\"")).map_err(told);
            }
            _ => return Err(format!("SQLite has no {change:?}")),
        };
        let add =
            format!("ALTER TABLE \"{table}\" ADD COLUMN \"{}\" {}", column.name, Dialect::Sqlite.name(column.kind));
        self.connection.execute_batch(&add).map_err(told)?;
        self.install(&[table]).await
    }

    async fn differences(&mut self, plan: &Plan, content: &Content) -> Result<Vec<String>, Trouble> {
        let mut found = Vec::new();
        for table in &plan.tables {
            let source = self.rows(&table.name).map_err(told)?;
            found.extend(unequal(&table.name, source, normal_rows(content, &table.name)?));
        }
        Ok(found)
    }
}
