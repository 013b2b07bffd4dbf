//! Whether a sink writes into what its own stream watches, and whether its rows have the key that they have there.
//!
//! Such a stream would be fed by its own sink for ever. Whoever has a sink made says what the stream reads ([`Purpose`]).

mod log;
mod named;
mod published;

use std::collections::{BTreeMap, BTreeSet};

use watchkeeper_core::{Backend, Cx, Error, Purpose, Result};

pub(crate) use self::named::{resolved, unwatched, watched};

use self::log::Log;
use self::published::Published;
use crate::backend::reads_replication;
use crate::client::Client;
use crate::sink::{Rows, Table};
use crate::{Config, Postgres};

/// The columns of keys, by the tables whose rows they tell apart.
type Keys = BTreeMap<String, BTreeSet<String>>;

/// So many tables are named in one message.
const NAMED_MAX: usize = 3;

/// What the source of a stream watches.
#[derive(Debug, Clone)]
pub(crate) struct Watched {
    database: String,
    method: ReadMethod,
    /// The tables whose changes are given out, with the columns of their keys.
    keys: Keys,
}

/// By what changes are told.
#[derive(Debug, Clone)]
enum ReadMethod {
    Log(Log),
    Publication(Published),
}

/// Which database of which server it is, whatever names lead there.
async fn database(cx: &Cx, client: &Client) -> Result<String> {
    let sql = "SELECT (SELECT system_identifier::text FROM pg_control_system()) || '/' || current_database()";
    let rows = client.read(cx, sql, &[]).await?;
    Ok(rows.first().map(|row| row.get(0)).unwrap_or_default())
}

impl Watched {
    /// What the source of a stream watches, if that is a log of ours or the write-ahead log. One that cannot be looked at is told
    /// of by the source itself.
    pub(crate) async fn of(cx: &Cx, purpose: &Purpose) -> Option<Self> {
        let reading = purpose.reading.as_ref().filter(|reading| reading.backend == Postgres.name())?;
        let mut options = reading.options.clone();
        let config = Config::from_options(&mut options).ok()?;
        let is_replicated = reads_replication(&mut options).ok()?;
        let client = Client::open(cx, config).await.ok()?;
        let (method, keys) = if is_replicated {
            let published = Published::from_options(&client, purpose, &mut options).ok()?;
            let keys = published.keys(cx, &client).await.ok()?;
            (ReadMethod::Publication(published), keys)
        } else {
            let (log, keys) = Log::inspect(cx, &client, purpose, &mut options).await?;
            (ReadMethod::Log(log), keys)
        };
        Some(Self { database: database(cx, &client).await.ok()?, method, keys })
    }

    /// Whether it tells of more than one table.
    pub(crate) fn has_several(&self) -> bool {
        self.keys.len() > 1
    }

    /// The name under which the source would tell of what is written into a table of its database.
    async fn name_of(&self, cx: &Cx, client: &Client, table: &Table) -> Result<Option<String>> {
        match &self.method {
            ReadMethod::Log(log) => {
                Ok(log.name_of(cx, client, table).await?.filter(|name| self.keys.contains_key(name)))
            }
            ReadMethod::Publication(published) => published.name_of(cx, client, table).await,
        }
    }
}

/// Refuses tables of which the stream's own source would tell.
///
/// # Errors
/// `Config`.
pub(crate) async fn refuse(
    cx: &Cx,
    purpose: &Purpose,
    watched: Option<&Watched>,
    client: &Client,
    tables: &[Table],
) -> Result<()> {
    let Some(watched) = watched else { return Ok(()) };
    if database(cx, client).await? != watched.database {
        return Ok(());
    }
    for table in tables {
        let Some(name) = watched.name_of(cx, client, table).await? else { continue };
        let cause = format!(
            "the stream {:?} watches {name}, which this sink writes to: it would be fed by itself for ever",
            purpose.stream
        );
        return Err(Error::config(cause).remedy("write into another table, or name the tables to watch (tables)"));
    }
    Ok(())
}

/// Refuses typed rows whose key is that of no table that the stream's own source watches: rows of the source would overwrite one
/// another, or could not be found again. The rows' table has been looked at.
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
    let sources = watched.keys.iter().map(|(table, key)| format!("that of {table} is ({})", list(key)));
    let mut sources: Vec<_> = sources.take(NAMED_MAX).collect();
    if watched.keys.len() > NAMED_MAX {
        sources.push(format!("and {} more have other keys", watched.keys.len() - NAMED_MAX));
    }
    let cause = format!(
        "the primary key of {:?} is taken from ({}), but {}",
        rows.table().written(),
        list(&fields),
        sources.join(", ")
    );
    Err(Error::config(cause)
        .remedy("give it the primary key of the source, or name the fields of that one in `columns`"))
}
