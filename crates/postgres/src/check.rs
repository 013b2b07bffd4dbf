//! Looks at servers and users that change nothing.

use tokio_postgres::types::Type;
use watchkeeper_core::{Cx, Finding, Result, Severity};

use crate::client::{Client, Schema, quoted};
use crate::sink::Table;
use crate::{checkpoint, lease, records};

mod columns;
mod references;

pub(crate) use columns::{Column, EVENTS, MIRROR, VERSIONED};

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
            WHERE backend_type = 'client backend'), current_setting('default_transaction_read_only') = 'on'";
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
    if !standby && row.get(5) {
        let what = format!("{} takes no writes of this user: default_transaction_read_only is on", client.place());
        let remedy =
            "set it off for this user (ALTER ROLE … SET default_transaction_read_only = off), unless that is meant";
        found.push(finding(Severity::Error, what, remedy));
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
    // Without a second connection it is not known; that there is none was told above.
    if client.can_listen() && client.shares_sessions(cx).await.unwrap_or(false) {
        let what =
            format!("{} is a pooler in transaction mode, through which no hints of others arrive", client.place());
        let remedy = "write pooled = true beside the url, so that nobody waits for them, or name the server itself";
        found.push(finding(Severity::Warning, what, remedy));
    }
    Ok(found)
}

/// Whether the tables of a store are there and may be used, or may be made.
pub(crate) async fn store(cx: &Cx, client: &Client, roles: &[Schema]) -> Result<Vec<Finding>> {
    let mut missing = Vec::new();
    for role in roles {
        if client.inspect(cx, *role).await?.is_none() {
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
    let remedy = format!("run `{}` once, as a user who may create schemas", client.setup_command());
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
        if all || ["meta", "checkpoints", "ledger"].contains(&table) {
            found.extend(lacking(cx, client, &client.sql(&format!("{{schema}}.{table}")), words).await?);
        }
    }
    let numbers = client.sql("{schema}.revisions");
    let sql = "SELECT has_sequence_privilege($1, 'USAGE')";
    if all && !client.read(cx, sql, &[(&numbers, Type::TEXT)]).await?.first().is_some_and(|row| row.get(0)) {
        let user = user(client);
        let remedy = format!("GRANT USAGE ON SEQUENCE {numbers} TO {}", quoted(&user));
        found.push(finding(Severity::Error, format!("{user} may not take numbers of {numbers}"), remedy));
    }
    Ok(found)
}

fn user(client: &Client) -> String {
    client.config().map_or("this user", |config| config.user()).to_owned()
}

/// Which of these privileges the user does not have on a table, whose name is as SQL has it.
pub(crate) async fn lacking(cx: &Cx, client: &Client, name: &str, words: &str) -> Result<Vec<Finding>> {
    let words: Vec<&str> = words.split(", ").collect();
    let sql =
        "SELECT word FROM unnest($2) WITH ORDINALITY AS w (word, n) WHERE NOT has_table_privilege($1, word) ORDER BY n";
    let rows = client.read(cx, sql, &[(&name, Type::TEXT), (&words, Type::TEXT_ARRAY)]).await?;
    let user = user(client);
    let finding = |word: String| {
        let remedy = format!("GRANT {word} ON {name} TO {}", quoted(&user));
        finding(Severity::Error, format!("{user} may not {word} in {name}"), remedy)
    };
    Ok(rows.iter().map(|row| finding(row.get(0))).collect())
}

/// Whether the table of a sink is there with these columns and may be written, or may be made.
pub(crate) async fn target(
    cx: &Cx,
    client: &Client,
    table: &Table,
    words: &str,
    columns: &[Column],
) -> Result<Vec<Finding>> {
    table.require_foreign(cx, client).await?;
    if table.exists(cx, client).await? {
        let mut found = lacking(cx, client, table.sql(), words).await?;
        found.extend(columns::unfit(cx, client, table, columns).await?);
        found.extend(references::warnings(cx, client, table).await?);
        return Ok(found);
    }
    let what = format!("the table {:?} is not there yet", table.written());
    Ok(vec![match refusal(cx, client, table).await? {
        Some((cause, remedy)) => finding(Severity::Error, format!("{what}, and {cause}"), remedy),
        None => Finding { severity: Severity::Note, what: format!("{what} and will be made"), remedy: None },
    }])
}

/// Why a table cannot be made, and what to do about it.
async fn refusal(cx: &Cx, client: &Client, table: &Table) -> Result<Option<(String, String)>> {
    let named = table.schema();
    let sql = "SELECT nspname::text, has_schema_privilege(oid, 'CREATE') FROM pg_catalog.pg_namespace
        WHERE nspname = coalesce($1, current_schema())";
    let rows = client.read(cx, sql, &[(&named, Type::TEXT)]).await?;
    let Some(row) = rows.first() else {
        let schema = named.unwrap_or("of the search path");
        return Ok(Some((format!("neither is the schema {schema}"), format!("CREATE SCHEMA {}", quoted(schema)))));
    };
    let (schema, may): (String, bool) = (row.get(0), row.get(1));
    let user = user(client);
    let remedy = format!("GRANT CREATE ON SCHEMA {} TO {}, or make it for this user", quoted(&schema), quoted(&user));
    Ok((!may).then(|| (format!("{user} may not make it in the schema {schema}"), remedy)))
}
