//! Looks at servers and users that change nothing.

use tokio_postgres::types::Type;
use watchkeeper_core::{Cx, Finding, Result, Severity};

use crate::client::{Client, Schema, quoted};
use crate::sink::Table;
use crate::{checkpoint, lease, records};

/// What a store consists of.
pub(crate) const ROLES: [Schema; 3] = [lease::SCHEMA, checkpoint::SCHEMA, records::SCHEMA];

/// The tables of the roles, and what someone who uses them has to be allowed to do.
pub(crate) const GRANTS: [(&str, &str); 6] = [
    ("meta", "SELECT"),
    ("leases", "SELECT, INSERT, UPDATE"),
    ("checkpoints", "SELECT, INSERT, UPDATE"),
    ("ledger", "SELECT, INSERT, UPDATE"),
    ("records", "SELECT, INSERT, UPDATE, DELETE"),
    ("logs", "SELECT, INSERT, DELETE"),
];

pub(crate) fn finding(severity: Severity, what: impl Into<String>, remedy: impl Into<String>) -> Finding {
    Finding { severity, what: what.into(), remedy: Some(remedy.into()) }
}

/// Whether this server can keep what it is told, and lets enough clients in.
pub(crate) async fn server(cx: &Cx, client: &Client) -> Result<Vec<Finding>> {
    let sql =
        "SELECT pg_is_in_recovery(), current_setting('fsync') = 'off', current_setting('synchronous_commit') = 'off',
        current_setting('max_connections')::int8, (SELECT count(*) FROM pg_catalog.pg_stat_activity
            WHERE backend_type = 'client backend')";
    let rows = client.read(cx, sql, &[]).await?;
    let Some(row) = rows.first() else { return Ok(Vec::new()) };
    let (standby, unsafe_disk, lazy): (bool, bool, bool) = (row.get(0), row.get(1), row.get(2));
    let (most, used): (i64, i64) = (row.get(3), row.get(4));
    let mut found = Vec::new();
    if standby {
        let what = format!("{} is a standby, which takes no writes", client.place());
        found.push(finding(
            Severity::Error,
            what,
            "name the primary, or all servers with target_session_attrs=read-write",
        ));
    }
    if unsafe_disk {
        let what = "the server runs with fsync = off: after a crash of its machine committed checkpoints may be gone";
        found.push(finding(Severity::Warning, what, "set fsync = on"));
    }
    if lazy {
        let what = "synchronous_commit is off here; Watchkeeper's own transactions wait for the disk all the same";
        found.push(Finding { severity: Severity::Note, what: what.to_owned(), remedy: None });
    }
    if used * 10 >= most * 9 {
        let what = format!("{used} of {most} connections of the server are in use");
        found.push(finding(Severity::Warning, what, "raise max_connections, lower `connections`, or use a pooler"));
    }
    Ok(found)
}

/// Whether the tables of a store are there and may be used, or may be made.
pub(crate) async fn store(cx: &Cx, client: &Client, roles: &[Schema]) -> Result<Vec<Finding>> {
    let mut missing = Vec::new();
    for role in roles {
        if client.look(cx, *role).await?.is_none() {
            missing.push(role.role);
        }
    }
    if missing.is_empty() {
        return privileges(cx, client, roles).await;
    }
    let what = format!("the tables of {} are not there yet in schema {}", missing.join(", "), client.schema());
    if may_create(cx, client).await? {
        let what = format!("{what}, and will be made");
        return Ok(vec![Finding { severity: Severity::Note, what, remedy: None }]);
    }
    let remedy = "run `watchkeeper postgres setup --url … --role NAME` once, as a user who may create schemas";
    Ok(vec![finding(Severity::Error, format!("{what}, and this user may not make them"), remedy)])
}

/// Whether the user may make the schema or, where it is there, tables in it.
async fn may_create(cx: &Cx, client: &Client) -> Result<bool> {
    let sql =
        "SELECT coalesce((SELECT has_schema_privilege(oid, 'CREATE') FROM pg_catalog.pg_namespace WHERE nspname = $1),
        has_database_privilege(current_database(), 'CREATE'))";
    let rows = client.read(cx, sql, &[(&client.schema().to_owned(), Type::TEXT)]).await?;
    Ok(rows.first().is_some_and(|row| row.get(0)))
}

/// What is missing of the privileges that are granted by `setup`.
async fn privileges(cx: &Cx, client: &Client, roles: &[Schema]) -> Result<Vec<Finding>> {
    let all = roles.len() == ROLES.len();
    let mut found = Vec::new();
    for (table, words) in GRANTS {
        if !all && !["meta", "checkpoints", "ledger"].contains(&table) {
            continue;
        }
        let name = format!("{}.{table}", quoted(client.schema()));
        for word in words.split(", ") {
            let sql = "SELECT has_table_privilege($1, $2)";
            let rows = client.read(cx, sql, &[(&name, Type::TEXT), (&word, Type::TEXT)]).await?;
            if !rows.first().is_some_and(|row| row.get(0)) {
                found.push(not_granted(client, word, &name));
            }
        }
    }
    Ok(found)
}

fn not_granted(client: &Client, word: &str, name: &str) -> Finding {
    let user = client.config().map_or("this user", |config| config.user()).to_owned();
    let what = format!("{user} may not {word} in {name}");
    finding(Severity::Error, what, format!("GRANT {word} ON {name} TO {}", quoted(&user)))
}

/// Whether the table of a sink is there and may be written, or may be made.
pub(crate) async fn target(cx: &Cx, client: &Client, table: &Table, words: &str) -> Result<Vec<Finding>> {
    table.require_foreign(client)?;
    if !table.exists(cx, client).await? {
        let what = format!("the table {:?} is not there yet and will be made", table.written());
        return Ok(vec![Finding { severity: Severity::Note, what, remedy: None }]);
    }
    let mut found = Vec::new();
    for word in words.split(", ") {
        let name = table.sql().to_owned();
        let sql = "SELECT has_table_privilege($1, $2)";
        let rows = client.read(cx, sql, &[(&name, Type::TEXT), (&word, Type::TEXT)]).await?;
        if !rows.first().is_some_and(|row| row.get(0)) {
            found.push(not_granted(client, word, &name));
        }
    }
    Ok(found)
}
