//! Whether a sink writes into a table that its own stream watches: such a stream would be fed by its own sink for ever.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use watchkeeper_core::options::WRONG_SETTING;
use watchkeeper_core::{Backend, Cx, Error, Purpose, Result};

use crate::Sqlite;
use crate::backend::SourceSettings;
use crate::tools::plain;

/// Refuses a table that the source's settings name, without looking at the file.
///
/// # Errors
/// `Config`.
pub(crate) fn refuse_named(purpose: &Purpose, file: &Path, table: &str) -> Result<()> {
    let Some(source) = source_in(purpose, file) else { return Ok(()) };
    let named = source.tables.iter().flatten().map(|name| plain(name)).collect();
    refuse_watched(purpose, named, table)
}

/// Refuses a table whose changes the source's log tells of now.
///
/// # Errors
/// `Config`.
pub(crate) async fn refuse(cx: &Cx, purpose: &Purpose, file: &Path, table: &str) -> Result<()> {
    let Some(source) = source_in(purpose, file) else { return Ok(()) };
    // A log that cannot be read is reported by the source itself.
    let Ok(log) = source.only_looking().open(cx, purpose).await else { return Ok(()) };
    let client = log.client().clone();
    let watched = client.read(cx, move |transaction| log.watched(transaction)).await.unwrap_or_default();
    refuse_watched(purpose, watched, table)
}

fn refuse_watched(purpose: &Purpose, watched: Vec<String>, table: &str) -> Result<()> {
    let Some(name) = watched.into_iter().find(|name| name.eq_ignore_ascii_case(table)) else { return Ok(()) };
    let cause = format!(
        "the stream {:?} watches {name}, which this sink writes to: it would be fed by itself for ever",
        purpose.stream
    );
    let remedy = "write into another table or file, or name the tables to watch (tables)";
    Err(Error::config(cause).remedy(remedy).classed(WRONG_SETTING))
}

/// The source of the stream, if that is in the same file.
fn source_in(purpose: &Purpose, file: &Path) -> Option<SourceSettings> {
    let reading = purpose.reading.as_ref().filter(|reading| reading.backend == Sqlite.name())?;
    let mut options = reading.options.clone();
    options.collect_into(None);
    // Settings that make no source are reported by the source itself.
    let source = SourceSettings::take(&mut options).ok()?;
    is_same(&source.config.path, file).then_some(source)
}

/// Whether two paths lead to one file, or would.
fn is_same(one: &Path, other: &Path) -> bool {
    match (one.metadata(), other.metadata()) {
        (Ok(one), Ok(other)) => (one.dev(), one.ino()) == (other.dev(), other.ino()),
        _ => absolute(one) == absolute(other),
    }
}

fn absolute(file: &Path) -> PathBuf {
    std::path::absolute(file).unwrap_or_else(|_| file.to_owned()).components().collect()
}
