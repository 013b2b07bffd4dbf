//! What is so, before anything is read.

use tokio_postgres::types::Type;
use watchkeeper_core::source::Severity;
use watchkeeper_core::{Cx, Error, Finding, Result};

use super::install::GRANTS;
use super::triggers::PART;
use super::{ChangeLog, Table, shape};
use crate::check::lacking;
use crate::client::{Client, quoted};

/// What a look at the log finds.
pub(super) async fn findings(cx: &Cx, log: &ChangeLog) -> Result<Vec<Finding>> {
    match &log.table {
        Table::Own => own(cx, log).await,
        Table::Outbox { name, columns } => {
            let sql = "SELECT FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[0]
                WHERE i.indrelid = to_regclass($1) AND a.attname = $2";
            let values: &[crate::client::Value<'_>] = &[(&&**name, Type::TEXT), (&columns.xid, Type::TEXT)];
            let mut found = Vec::new();
            if log.client.read(cx, sql, values).await?.is_empty() {
                let what = format!(
                    "the outbox {name} has no index on {:?}: each look for changes reads all of it",
                    columns.xid
                );
                found.push(finding(
                    Severity::Warning,
                    what,
                    format!("CREATE INDEX ON {name} ({})", quoted(&columns.xid)),
                ));
            }
            Ok(found)
        }
    }
}

/// Refuses an outbox whose numbers do not tell the order of changes.
pub(super) async fn require_order(cx: &Cx, client: &Client, table: &str, id: &str) -> Result<()> {
    let sql = "SELECT s.seqrelid::regclass::text FROM pg_sequence s
        WHERE s.seqrelid = pg_get_serial_sequence($1, $2)::regclass AND s.seqcache > 1";
    let rows = client.read(cx, sql, &[(&table, Type::TEXT), (&id, Type::TEXT)]).await?;
    let Some(row) = rows.first() else { return Ok(()) };
    let cause =
        format!("sessions keep numbers of the outbox {table} in stock, so that a later change may get a lower one");
    Err(Error::config(cause).remedy(format!("ALTER SEQUENCE {} CACHE 1", row.get::<_, String>(0))))
}

/// That the numbers of an outbox began anew since the change `highest` was read: they are versions, and those of new changes are lower.
pub(super) async fn restarted(cx: &Cx, log: &ChangeLog, highest: u64) -> Result<Option<Finding>> {
    let Table::Outbox { name, columns } = &log.table else { return Ok(None) };
    let sql = "SELECT c.oid::regclass::text, CASE WHEN has_sequence_privilege(c.oid, 'SELECT, USAGE') THEN pg_sequence_last_value(c.oid) END
        FROM pg_class c WHERE c.oid = pg_get_serial_sequence($1, $2)::regclass";
    let rows = log.client.read(cx, sql, &[(&&**name, Type::TEXT), (&columns.id, Type::TEXT)]).await?;
    let Some(row) = rows.first() else { return Ok(None) };
    let Some(last) = row.get::<_, Option<i64>>(1).filter(|last| last.unsigned_abs() < highest) else { return Ok(None) };
    let what = format!(
        "change {highest} of the outbox {name} was read, and its numbers are at {last}: they began anew, so that targets which keep the newest version of each key take what is new for old"
    );
    let remedy = format!("let them go on: SELECT setval('{}', {highest})", row.get::<_, String>(0));
    Ok(Some(finding(Severity::Warning, what, remedy)))
}

fn finding(severity: Severity, what: String, remedy: String) -> Finding {
    Finding { severity, what, remedy: Some(remedy) }
}

async fn own(cx: &Cx, log: &ChangeLog) -> Result<Vec<Finding>> {
    let mut found = Vec::new();
    for (table, words) in GRANTS {
        found.extend(lacking(cx, &log.client, &log.client.sql(&format!("{{schema}}.{table}")), words).await?);
    }
    for (entity, why) in shape::unlogged(cx, &log.client, log.wanted.as_deref()).await? {
        found.push(finding(Severity::Error, format!("{entity} {why}"), again(&entity)));
    }
    found.extend(bereft(cx, log).await?);
    for entity in shape::blank(cx, &log.client).await? {
        let what = format!("{entity} has virtual columns since it was logged, which are told as null");
        found.push(finding(Severity::Warning, what, again(&entity)));
    }
    for (entity, child) in shape::children(cx, &log.client).await? {
        let what = format!("{child} inherits from {entity}, and its rows are not logged with those of {entity}");
        found.push(finding(Severity::Warning, what, format!("install {child} too, or leave it if that is meant")));
    }
    let sql = log.client.sql(
        "SELECT entity, min(tree.relid::regclass::text) FROM {schema}.log_tables
            CROSS JOIN LATERAL pg_partition_tree(relation) AS tree WHERE relation <> 0 AND tree.isleaf AND tree.relid <> relation
            AND NOT EXISTS (SELECT FROM pg_trigger WHERE tgrelid = tree.relid AND tgname = $1) GROUP BY entity ORDER BY entity",
    );
    for row in &log.client.read(cx, &sql, &[(&PART, Type::TEXT)]).await? {
        let (entity, leaf): (String, String) = (row.get(0), row.get(1));
        let what = format!(
            "{entity} has partitions since it was logged, such as {leaf}: that they are truncated would not be told"
        );
        found.push(finding(Severity::Warning, what, again(&entity)));
    }
    if !shape::all_wake(cx, &log.client).await? {
        let what = "writers do not tell of their changes: they are looked for from time to time".to_owned();
        found.push(finding(Severity::Note, what, "install without --silent where latency counts".to_owned()));
    }
    Ok(found)
}

/// Tables that have lost partitions.
pub(super) async fn bereft(cx: &Cx, log: &ChangeLog) -> Result<Vec<Finding>> {
    if !log.is_own() {
        return Ok(Vec::new());
    }
    let told = |entity: String| {
        let what = format!(
            "partitions of {entity} were dropped or detached since it was installed: nobody told of their rows"
        );
        let remedy = format!("delete those rows in the targets if they should go too, then {}", again(&entity));
        finding(Severity::Warning, what, remedy)
    };
    Ok(shape::bereft(cx, &log.client, log.wanted.as_deref()).await?.into_iter().map(told).collect())
}

fn again(entity: &str) -> String {
    format!("run `watchkeeper postgres install --url URL --table {entity}` again")
}

/// Refuses to go on as if nothing happened when a table is not logged any more.
pub(super) async fn require_logged(cx: &Cx, log: &ChangeLog) -> Result<()> {
    if !log.is_own() {
        return Ok(());
    }
    let unlogged = shape::unlogged(cx, &log.client, log.wanted.as_deref()).await?;
    let Some((entity, why)) = unlogged.first() else { return Ok(()) };
    Err(Error::position_lost(format!("{entity} {why}")).remedy(format!(
        "{}, copy the table, and accept the gap: watchkeeper accept-gap STREAM; or uninstall it if it was dropped",
        again(entity)
    )))
}
