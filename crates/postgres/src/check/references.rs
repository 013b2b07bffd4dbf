//! Foreign keys of a target.

use tokio_postgres::types::Type;
use watchkeeper_core::{Cx, Finding, Result, Severity};

use super::{finding, user};
use crate::client::{Client, quoted};
use crate::sink::Table;

/// Warns of foreign keys from and to the table of a sink. Changes come in the order of their own stream, and what they refer to comes in
/// that of another, so that a good change may be refused.
pub(super) async fn warnings(cx: &Cx, client: &Client, table: &Table) -> Result<Vec<Finding>> {
    let sql = "SELECT conname::text, conrelid::regclass::text, confrelid::regclass::text FROM pg_catalog.pg_constraint
        WHERE contype = 'f' AND to_regclass($1) IN (conrelid, confrelid) AND conrelid <> confrelid
            AND current_setting('session_replication_role') <> 'replica' ORDER BY 1";
    let rows = client.read(cx, sql, &[(&table.sql(), Type::TEXT)]).await?;
    let finding = |row: &tokio_postgres::Row| {
        let (name, from, to): (String, String, String) = (row.get(0), row.get(1), row.get(2));
        let what = format!(
            "the foreign key {name} of {from} refers to {to}: a change that comes before what it refers to is rejected"
        );
        let remedy = format!(
            "a copy needs no foreign keys: drop it, or let them rest for the role that writes (ALTER ROLE {} SET \
             session_replication_role = replica)",
            quoted(&user(client))
        );
        finding(Severity::Warning, what, remedy)
    };
    Ok(rows.iter().map(finding).collect())
}
