//! What a check finds of the filters of sinks.

use watchkeeper::core::{Cx, Finding, Options, Purpose, Severity};
use watchkeeper::{Error, Result};

use crate::config::{Stream, Target};

/// So many names are told in one message.
const NAMED_MAX: usize = 5;

/// What is to be said of the names in a sink's filter: one that no watched table has passes over everything.
pub(super) async fn findings(cx: &Cx, stream: &Stream, purpose: &Purpose, target: &Target) -> Result<Vec<Finding>> {
    let Some(names) = stream.namespaces(cx, purpose, target).await? else { return Ok(Vec::new()) };
    let mut options = stream.source.options.clone();
    let Some(watched) = stream.source.backend.watched(cx, purpose, &mut options).await? else { return Ok(Vec::new()) };
    let unknown = names.into_iter().filter(|name| !name.ends_with('*') && !watched.contains(name));
    let finding = |name: String| {
        let (shown, more) = watched.split_at(watched.len().min(NAMED_MAX));
        let more = if more.is_empty() { String::new() } else { format!(", and {} more", more.len()) };
        Finding {
            severity: Severity::Warning,
            what: format!(
                "its filter names {name}, and the stream watches nothing of that name; what it watches: {}{more}",
                shown.join(", ")
            ),
            remedy: Some("correct the name in `namespaces`, or leave it if it is yet to come".to_owned()),
        }
    };
    Ok(unknown.map(finding).collect())
}

/// Refuses a name in a sink's filter that none of the listed tables has, as far as the file alone shows it.
///
/// # Errors
/// `Config` with the tables that are listed.
pub(super) fn require_listed_names(stream: &Stream, target: &Target) -> Result<()> {
    let Some(tables) = listed_tables(&stream.source.options) else { return Ok(()) };
    let is_known = |name: &str| name.contains(['*', '"']) || tables.iter().any(|table| may_be_same(table, name));
    let Some(name) = target.namespaces.iter().flatten().find(|name| !is_known(name)) else { return Ok(()) };
    let cause = format!("the filter names {name}, which is none of the stream's tables: it would pass over everything");
    let remedy = format!("correct `namespaces`; the stream watches: {}", tables.join(", "));
    Err(Error::config(cause).remedy(remedy).at(target.system.options.origin()))
}

/// The tables that a source lists, where changes are named after them: an outbox has entities, and quotes may hide a dot.
fn listed_tables(source: &Options) -> Option<Vec<String>> {
    let mut source = source.clone();
    let mut tables = source.texts("tables").ok()?.unwrap_or_default();
    tables.extend(source.text("table").ok()?);
    let is_plain = source.peek("outbox").is_none() && tables.iter().all(|table| !table.contains('"'));
    (is_plain && !tables.is_empty()).then_some(tables)
}

/// Whether two names may be those of one table: one may lack the schema or be in another case.
fn may_be_same(table: &str, name: &str) -> bool {
    let last = |name: &str| name.rsplit('.').next().unwrap_or_default().to_ascii_lowercase();
    last(table) == last(name)
}
