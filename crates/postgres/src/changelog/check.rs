//! What is so, before anything is read.

use tokio_postgres::types::Type;
use watchkeeper_core::source::Severity;
use watchkeeper_core::{Cx, Error, Finding, Result};

use super::install::GRANTS;
use super::named::install_command;
use super::triggers::PART;
use super::{ChangeLog, Table, guard, outbox, shape, since_installed};
use crate::check::{finding, lacking};
use crate::client::Client;
use crate::table_name::written;

/// What a look at the log finds.
pub(super) async fn findings(cx: &Cx, log: &ChangeLog) -> Result<Vec<Finding>> {
    match &log.table {
        Table::Own => own(cx, log).await,
        Table::Outbox { name, columns, .. } => outbox::findings(cx, &log.client, name, columns).await,
    }
}

async fn own(cx: &Cx, log: &ChangeLog) -> Result<Vec<Finding>> {
    let mut found = Vec::new();
    for (table, words) in GRANTS {
        found.extend(lacking(cx, &log.client, &log.client.sql(&format!("{{schema}}.{table}")), words).await?);
    }
    for (entity, why) in shape::unlogged(cx, &log.client, log.wanted.as_deref()).await? {
        found.push(finding(Severity::Error, format!("{entity} {why}"), again(&log.client, &entity)));
    }
    found.extend(guard::findings(cx, log).await?);
    found.extend(tables_without_partitions(cx, log).await?);
    for entity in shape::blank(cx, &log.client).await? {
        let what = format!("{entity} has virtual columns since it was logged, which are told as null");
        found.push(finding(Severity::Warning, what, again(&log.client, &entity)));
    }
    found.extend(since_installed::findings(cx, log).await?);
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
        found.push(finding(Severity::Warning, what, again(&log.client, &entity)));
    }
    if !shape::all_wake(cx, &log.client).await? {
        let what = "writers do not tell of their changes: they are looked for from time to time".to_owned();
        found.push(finding(Severity::Note, what, "install without --silent where latency counts".to_owned()));
    }
    Ok(found)
}

/// Tables that have lost partitions.
pub(super) async fn tables_without_partitions(cx: &Cx, log: &ChangeLog) -> Result<Vec<Finding>> {
    if !log.is_own() {
        return Ok(Vec::new());
    }
    let finding = |entity: String| {
        let what = format!(
            "partitions of {entity} were dropped or detached since it was installed: nobody told of their rows"
        );
        let remedy =
            format!("delete those rows in the targets if they should go too, then {}", again(&log.client, &entity));
        finding(Severity::Warning, what, remedy)
    };
    Ok(shape::tables_without_partitions(cx, &log.client, log.wanted.as_deref())
        .await?
        .into_iter()
        .map(finding)
        .collect())
}

pub(super) fn again(client: &Client, entity: &str) -> String {
    format!("run `{}` again", install_command(client, &written(entity)))
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
        again(&log.client, entity)
    )))
}
