//! Whether a sink writes into what its own stream watches, and whether its rows have the key that they have there.
//!
//! Such a stream would be fed by its own sink for ever. Whoever has a sink made says what the stream reads ([`Purpose`]).

use std::collections::{BTreeMap, BTreeSet};

use tokio_postgres::types::Type;
use watchkeeper_core::{Backend, Cx, Error, Purpose, Result};

use crate::backend::reads_replication;
use crate::changelog::ROW_TRIGGER;
use crate::client::Client;
use crate::sink::{Rows, Table};
use crate::{ChangeLog, Config, Postgres};

/// What a change log watches.
#[derive(Debug, Clone)]
pub(crate) struct Watched {
    database: String,
    /// The schema of the log.
    schema: String,
    /// The tables whose changes are given out, with the columns of their primary keys.
    keys: BTreeMap<String, BTreeSet<String>>,
}

/// Which database of which server it is, whatever names lead there.
async fn database(cx: &Cx, client: &Client) -> Result<String> {
    let sql = "SELECT (SELECT system_identifier::text FROM pg_control_system()) || '/' || current_database()";
    let rows = client.read(cx, sql, &[]).await?;
    Ok(rows.first().map(|row| row.get(0)).unwrap_or_default())
}

impl Watched {
    /// What the source of a stream watches, if that is a log of ours. One that can not be looked at is told of by the source itself.
    pub(crate) async fn of(cx: &Cx, purpose: &Purpose) -> Option<Self> {
        let reading = purpose.reading.as_ref().filter(|reading| reading.backend == Postgres.name())?;
        let mut options = reading.options.clone();
        let config = Config::from_options(&mut options).ok()?;
        if reads_replication(&mut options).ok()? {
            return None;
        }
        let client = Client::open(cx, config).await.ok()?;
        let log = ChangeLog::from_options(cx, client.clone(), &purpose.stream, &mut options).await.ok()?;
        Self::look(cx, &client, log.watched()?).await.ok()
    }

    /// All that the log of this schema tells of, or these tables of it.
    async fn look(cx: &Cx, client: &Client, wanted: Option<Vec<String>>) -> Result<Self> {
        let sql = client.sql(
            "SELECT l.entity, array_agg(a.attname::text) FROM {schema}.log_tables l
                JOIN pg_index i ON i.indrelid = l.relation AND i.indisprimary
                JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = ANY ((i.indkey::int2[])[0:i.indnkeyatts - 1])
                WHERE $1::text[] IS NULL OR l.entity = ANY ($1) GROUP BY l.entity",
        );
        let rows = client.read(cx, &sql, &[(&wanted, Type::TEXT_ARRAY)]).await?;
        let keys = rows.iter().map(|row| (row.get(0), row.get::<_, Vec<String>>(1).into_iter().collect())).collect();
        Ok(Self { database: database(cx, client).await?, schema: client.schema().to_owned(), keys })
    }
}

/// Refuses a table of which the stream's own log would tell.
///
/// # Errors
/// `Config`.
pub(crate) async fn refuse(
    cx: &Cx,
    purpose: &Purpose,
    watched: Option<&Watched>,
    client: &Client,
    table: &Table,
) -> Result<()> {
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
    if !watched.keys.contains_key(&entity) || database(cx, client).await? != watched.database {
        return Ok(());
    }
    let cause = format!(
        "the stream {:?} watches {entity}, which this sink writes to: it would be fed by itself for ever",
        purpose.stream
    );
    Err(Error::config(cause).remedy("write into another table, or name the tables to watch (tables)"))
}

/// Refuses typed rows whose key is that of no table that the stream's own log watches: rows of the source would overwrite one another,
/// or could not be found again. The rows' table has been looked at.
///
/// # Errors
/// `Config`.
pub(crate) fn require_key(watched: Option<&Watched>, rows: &Rows) -> Result<()> {
    let Some(watched) = watched else { return Ok(()) };
    let fields: BTreeSet<String> = rows.key_fields()?.into_iter().collect();
    // A sink may have a filter, so that one table of several is enough.
    if watched.keys.is_empty() || watched.keys.values().any(|key| *key == fields) {
        return Ok(());
    }
    let list = |names: &BTreeSet<String>| names.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
    let sources: Vec<_> =
        watched.keys.iter().map(|(entity, key)| format!("that of {entity} is ({})", list(key))).collect();
    let cause = format!(
        "the primary key of {:?} is taken from ({}), but {}",
        rows.table().written(),
        list(&fields),
        sources.join(", ")
    );
    Err(Error::config(cause)
        .remedy("give it the primary key of the source, or name the fields of that one in `columns`"))
}
