//! Values as SQL.

use std::fmt::Write;

use watchkeeper_testkit::histories::{Column, Kind, Table, Value};

/// Which SQL.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Dialect {
    Sqlite,
    Postgres,
}

impl Dialect {
    /// The name of a type.
    pub(super) fn name(self, kind: Kind) -> &'static str {
        match (self, kind) {
            (Self::Sqlite, Kind::Integer) => "INTEGER",
            (Self::Sqlite, Kind::Float) => "REAL",
            (Self::Sqlite, Kind::Text) => "TEXT",
            (Self::Sqlite, Kind::Bytes) => "BLOB",
            (Self::Sqlite, _) => "",
            (Self::Postgres, Kind::Integer) => "bigint",
            (Self::Postgres, Kind::Float) => "double precision",
            (Self::Postgres, Kind::Text | Kind::Any) => "text",
            (Self::Postgres, Kind::Boolean) => "boolean",
            (Self::Postgres, Kind::Bytes) => "bytea",
            (Self::Postgres, Kind::Decimal) => "numeric",
            (Self::Postgres, Kind::Time) => "timestamptz",
            (Self::Postgres, Kind::Date) => "date",
            (Self::Postgres, Kind::Uuid) => "uuid",
            (Self::Postgres, Kind::Json) => "jsonb",
            (Self::Postgres, Kind::Integers) => "bigint[]",
            (Self::Postgres, Kind::Texts) => "text[]",
        }
    }

    /// The statement that makes a table, whose key column is called `key`.
    pub(super) fn create(self, table: &Table, key: &str) -> String {
        let column = |column: &Column| format!(", \"{}\" {}", column.name, self.name(column.kind));
        let columns: String = table.columns.iter().map(column).collect();
        let (name, kind) = (&table.name, self.name(table.key));
        format!("CREATE TABLE \"{name}\" (\"{key}\" {kind} PRIMARY KEY, rev bigint NOT NULL{columns})")
    }

    /// A value as an expression.
    pub(super) fn literal(self, value: &Value) -> String {
        match value {
            Value::Null => "NULL".to_owned(),
            // SQLite reads the digits of the smallest integer as those of a floating point number.
            Value::Integer(i64::MIN) => "(-9223372036854775807 - 1)".to_owned(),
            Value::Integer(number) => format!("({number})"),
            Value::Float(number) if self == Self::Sqlite => format!("({number:e})"),
            Value::Float(number) => format!("'{number:e}'::double precision"),
            Value::Text(text) if self == Self::Postgres && text.contains('\\') => {
                format!("E'{}'", text.replace('\\', "\\\\").replace('\'', "''"))
            }
            Value::Text(text) => format!("'{}'", text.replace('\'', "''")),
            Value::Boolean(value) => value.to_string(),
            Value::Bytes(bytes) if self == Self::Sqlite => format!("x'{}'", hex(bytes)),
            Value::Bytes(bytes) => format!("'\\x{}'::bytea", hex(bytes)),
            Value::Decimal(text) => format!("'{text}'::numeric"),
            Value::Time(millis) => format!("to_timestamp({millis} / 1000.0)"),
            Value::Date(days) => format!("(date '1970-01-01' + ({days}))"),
            Value::Uuid(number) => format!("'{number:032x}'::uuid"),
            Value::Json(..) => format!("{}::jsonb", self.literal(&Value::Text(json(value)))),
            Value::List(values) => {
                let of = if values.iter().all(|value| matches!(value, Value::Integer(_))) { "bigint" } else { "text" };
                let values: Vec<_> = values.iter().map(|value| self.literal(value)).collect();
                // An empty list is one of either type.
                if values.is_empty() { "'{}'".to_owned() } else { format!("ARRAY[{}]::{of}[]", values.join(", ")) }
            }
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing to a string does not fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// A value as JSON.
fn json(value: &Value) -> String {
    match value {
        Value::Null => "null".to_owned(),
        Value::Integer(number) => number.to_string(),
        Value::Boolean(value) => value.to_string(),
        Value::Text(text) => serde_json::Value::from(text.as_str()).to_string(),
        Value::Json(name, inner) => format!("{{{}:{}}}", serde_json::Value::from(name.as_str()), json(inner)),
        Value::List(values) => format!("[{}]", values.iter().map(json).collect::<Vec<_>>().join(",")),
        other => serde_json::Value::from(format!("{other:?}")).to_string(),
    }
}

/// The statements of a table's change, in this dialect.
pub(super) fn sql(dialect: Dialect, statement: &watchkeeper_testkit::histories::Statement) -> String {
    use watchkeeper_testkit::histories::Statement;
    let literal = |value| dialect.literal(value);
    match statement {
        Statement::Insert { table, key, rev, fields } => {
            let names: String = fields.iter().map(|(name, _)| format!(", \"{name}\"")).collect();
            let values: String = fields.iter().map(|(_, value)| format!(", {}", literal(value))).collect();
            format!("INSERT INTO \"{table}\" (id, rev{names}) VALUES ({}, {rev}{values})", literal(key))
        }
        Statement::Update { table, key, rev, fields } | Statement::Replace { table, key, rev, fields } => {
            let sets: String =
                fields.iter().map(|(name, value)| format!(", \"{name}\" = {}", literal(value))).collect();
            format!("UPDATE \"{table}\" SET rev = {rev}{sets} WHERE id = {}", literal(key))
        }
        Statement::MoveKey { table, from, to, rev } => {
            format!("UPDATE \"{table}\" SET id = {}, rev = {rev} WHERE id = {}", literal(to), literal(from))
        }
        Statement::Delete { table, key } => format!("DELETE FROM \"{table}\" WHERE id = {}", literal(key)),
        Statement::Truncate { table } => format!("TRUNCATE \"{table}\""),
    }
}
