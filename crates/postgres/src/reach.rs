//! Whether a sink writes into what its own stream watches.
//!
//! Such a stream would be fed by its own sink for ever. A backend makes the source and the sinks of a stream one by one, and is told of
//! neither by the other; so what a change log watches is remembered here, by group and stream, until the sinks are made.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use tokio_postgres::types::Type;
use watchkeeper_core::{Cx, Error, Purpose, Result};

use crate::changelog::ROW_TRIGGER;
use crate::client::Client;
use crate::sink::Table;

/// What a change log watches.
#[derive(Debug, Clone)]
pub(crate) struct Watched {
    database: String,
    /// The schema of the log.
    schema: String,
    /// The only tables whose changes are given out.
    wanted: Option<Vec<String>>,
}

/// By group and stream. The newest look at a stream counts, as its sinks are looked at next.
static STREAMS: Mutex<BTreeMap<(String, String), Watched>> = Mutex::new(BTreeMap::new());

fn key(purpose: &Purpose) -> (String, String) {
    (purpose.group.clone(), purpose.stream.clone())
}

/// Which database of which server it is, whatever names lead there.
async fn database(cx: &Cx, client: &Client) -> Result<String> {
    let sql = "SELECT (SELECT system_identifier::text FROM pg_control_system()) || '/' || current_database()";
    let rows = client.read(cx, sql, &[]).await?;
    Ok(rows.first().map(|row| row.get(0)).unwrap_or_default())
}

/// Keeps in mind what the log of a stream watches; `None` where there is nothing to keep a sink from.
pub(crate) async fn remember(cx: &Cx, purpose: &Purpose, client: &Client, wanted: Option<Vec<String>>) -> Result<()> {
    let watched = Watched { database: database(cx, client).await?, schema: client.schema().to_owned(), wanted };
    STREAMS.lock().unwrap_or_else(PoisonError::into_inner).insert(key(purpose), watched);
    Ok(())
}

/// Keeps nothing in mind of a stream that reads no log of ours.
pub(crate) fn forget(purpose: &Purpose) {
    STREAMS.lock().unwrap_or_else(PoisonError::into_inner).remove(&key(purpose));
}

/// Refuses a table of which the stream's own log would tell.
///
/// # Errors
/// `Config`.
pub(crate) async fn refuse(cx: &Cx, purpose: &Purpose, client: &Client, table: &Table) -> Result<()> {
    let watched = STREAMS.lock().unwrap_or_else(PoisonError::into_inner).get(&key(purpose)).cloned();
    let Some(watched) = watched else { return Ok(()) };
    // The first argument of the trigger is the table as the log names it: a partition has the name of its whole table.
    let sql = "SELECT convert_from(substring(g.tgargs FROM 1 FOR position('\\x00'::bytea IN g.tgargs) - 1), getdatabaseencoding())
        FROM pg_trigger g JOIN pg_proc p ON p.oid = g.tgfoid
        JOIN pg_namespace n ON n.oid = p.pronamespace
        WHERE g.tgrelid = to_regclass($1) AND g.tgname = $2 AND n.nspname = $3";
    let name = table.sql();
    let values: &[crate::client::Value<'_>] =
        &[(&name, Type::TEXT), (&ROW_TRIGGER, Type::TEXT), (&watched.schema, Type::TEXT)];
    let rows = client.read(cx, sql, values).await?;
    let Some(entity) = rows.first().map(|row| row.get::<_, String>(0)) else { return Ok(()) };
    let is_wanted = watched.wanted.as_ref().is_none_or(|wanted| wanted.contains(&entity));
    if !is_wanted || database(cx, client).await? != watched.database {
        return Ok(());
    }
    let cause = format!(
        "the stream {:?} watches {entity}, which this sink writes to: it would be fed by itself for ever",
        purpose.stream
    );
    Err(Error::config(cause).remedy("write into another table, or name the tables to watch (tables)"))
}
