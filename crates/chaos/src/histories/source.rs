//! The databases that histories are written to.

mod mongodb;
mod postgres;
mod sqlite;

use async_trait::async_trait;
use serde_json::Value;
use watchkeeper_testkit::histories::{Plan, SchemaChange, Source, Statement};

use super::Trouble;
use super::config::Paths;
use super::target::Content;

pub(super) use mongodb::connect as connect_mongodb;
pub(super) use postgres::{connect as connect_postgres, create_database as postgres_database};

/// A source.
#[async_trait(?Send)]
pub(super) trait Database {
    /// Makes the tables, and lets their changes be read.
    async fn create(&mut self, plan: &Plan) -> Result<(), Trouble>;

    /// Executes the statements in one transaction.
    async fn transact(&mut self, statements: &[Statement], commit: bool) -> Result<(), Trouble>;

    /// Changes the schema.
    async fn change_schema(&mut self, change: &SchemaChange) -> Result<(), Trouble>;

    /// Waits until a stream that starts now tells of what is written after this.
    async fn await_reader(&mut self) -> Result<(), Trouble> {
        Ok(())
    }

    /// How the rows of a target differ from those of each table here.
    async fn differences(&mut self, plan: &Plan, content: &Content) -> Result<Vec<String>, Trouble>;

    /// Removes what would be in the way of later histories.
    async fn clean_up(&mut self) -> Result<(), Trouble> {
        Ok(())
    }
}

pub(super) async fn open(plan: &Plan, places: &Paths) -> Result<Box<dyn Database>, Trouble> {
    Ok(match plan.source {
        Source::Sqlite => Box::new(sqlite::File::open(places)?),
        Source::ChangeLog => Box::new(postgres::Tables::open(places, false).await?),
        Source::Replication => Box::new(postgres::Tables::open(places, true).await?),
        Source::Mongodb => Box::new(mongodb::Collections::open(places).await?),
    })
}

/// JSON by which rows are compared: without fields that are null, which may as well be missing, with one form of numbers, of whole seconds,
/// which may have milliseconds or not, and of bytes: SQLite's log marks them, documents have them as extended JSON.
pub(super) fn normal(value: Value) -> Value {
    if let Some(seconds) = value.get("$date").and_then(Value::as_str).and_then(|date| date.strip_suffix(".000Z")) {
        return serde_json::json!({ "$date": format!("{seconds}Z") });
    }
    if value.as_object().is_some_and(|fields| fields.len() == 1)
        && let Some(binary) = value.get("$binary").filter(|binary| binary["subType"] == "00")
        && let Some(base64) = binary["base64"].as_str()
    {
        let digits: String = super::extjson::bytes(base64).iter().map(|byte| format!("{byte:02X}")).collect();
        return serde_json::json!({ "$hex": digits });
    }
    match value {
        Value::Object(fields) => {
            let present = fields.into_iter().filter(|(_, value)| !value.is_null());
            Value::Object(present.map(|(name, value)| (name, normal(value))).collect())
        }
        Value::Array(values) => Value::Array(values.into_iter().map(normal).collect()),
        Value::Number(number) => match number.as_f64() {
            Some(float) if number.is_f64() && float.fract() == 0.0 && float.abs() < 9e15 => Value::from(float as i64),
            _ => Value::Number(number),
        },
        other => other,
    }
}

/// What stands in one of two lists only.
pub(super) fn unequal(table: &str, mut source: Vec<String>, mut target: Vec<String>) -> Vec<String> {
    source.sort();
    target.sort();
    let mut found = Vec::new();
    let (mut left, mut right) = (source.iter().peekable(), target.iter().peekable());
    loop {
        match (left.peek(), right.peek()) {
            (None, None) => return found,
            (Some(a), Some(b)) if a == b => {
                left.next();
                right.next();
            }
            (Some(a), Some(b)) if a > b => {
                found.push(format!("{table}: only in the target: {b}"));
                right.next();
            }
            (Some(a), _) => {
                found.push(format!("{table}: only in the source: {a}"));
                left.next();
            }
            (None, Some(b)) => {
                found.push(format!("{table}: only in the target: {b}"));
                right.next();
            }
        }
    }
}

/// The rows of a target in the form in which they are compared.
pub(super) fn normal_rows(content: &Content, table: &str) -> Result<Vec<String>, Trouble> {
    let normal_row = |row: &String| {
        let value =
            serde_json::from_str(row).map_err(|error| format!("a row of the target is no JSON: {error}: {row}"))?;
        Ok(normal(value).to_string())
    };
    content.rows.get(table).map_or(Ok(Vec::new()), |rows| rows.iter().map(normal_row).collect())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_forms_of_one_value_are_the_same() {
        let same = |a: Value, b: Value| normal(a) == normal(b);
        let date = |text: &str| json!({ "at": { "$date": text } });
        assert!(same(date("2002-08-10T03:17:57.000Z"), date("2002-08-10T03:17:57Z")));
        assert!(!same(date("2002-08-10T03:17:57.001Z"), date("2002-08-10T03:17:57Z")));
        assert!(same(json!({ "$hex": "00FF" }), json!({ "$binary": { "base64": "AP8=", "subType": "00" } })));
        assert!(!same(json!({ "$hex": "00FF" }), json!({ "$binary": { "base64": "AP8=", "subType": "04" } })));
        assert!(
            same(json!({ "a": 1, "b": null }), json!({ "a": 1.0 })) && !same(json!({ "a": 1 }), json!({ "a": 1.5 }))
        );
    }
}
