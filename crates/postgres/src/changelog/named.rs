//! Tables that somebody has named, among those that the log knows.

use tokio_postgres::types::Type;
use watchkeeper_core::{Cx, Error, Result};

use super::shape::{LOGGED_AS, OF_OWN};
use super::triggers::ROW;
use crate::client::Client;
use crate::table_name::{TableName, written};

/// All tables of which the log tells.
pub(super) async fn entities(cx: &Cx, client: &Client) -> Result<Vec<String>> {
    let sql = client.sql("SELECT entity FROM {schema}.log_tables WHERE relation <> 0 ORDER BY entity");
    Ok(client.read(cx, &sql, &[]).await?.iter().map(|row| row.get(0)).collect())
}

/// The same, each with the relation that is logged under its name.
pub(super) async fn known(cx: &Cx, client: &Client) -> Result<Vec<(String, u32)>> {
    // A table that was logged under two names is told under that of its triggers.
    let sql = client.sql(&format!(
        "SELECT entity, relation FROM {{schema}}.log_tables WHERE relation <> 0 ORDER BY EXISTS (SELECT FROM pg_trigger g
            WHERE g.tgrelid = relation AND g.tgname = $1 AND {OF_OWN} AND {LOGGED_AS} = entity) DESC, entity",
    ));
    let rows = client.read(cx, &sql, &[(&ROW, Type::TEXT), (&client.schema(), Type::TEXT)]).await?;
    Ok(rows.iter().map(|row| (row.get(0), row.get(1))).collect())
}

/// A table that somebody has named.
pub(super) struct Named {
    /// With its schema, as changes name it, or would.
    pub(super) entity: String,
    /// Whether the log knows it, by its relation or at least by its name: then it can tell what became of it.
    is_logged: bool,
    /// Whether there is a table of this name, or its schema was written.
    is_certain: bool,
}

/// Finds a table by its name.
///
/// # Errors
/// `Config` for a text that names no table.
pub(super) async fn find(cx: &Cx, client: &Client, known: &[(String, u32)], table: &str) -> Result<Named> {
    let by_name = |name: &str| known.iter().find(|(entity, _)| entity == name).map(|(entity, _)| entity.clone());
    let logged = |entity: String| Named { entity, is_logged: true, is_certain: true };
    let name = match (TableName::parse(table), by_name(table)) {
        (Ok(name), _) => name,
        (Err(_), Some(entity)) => return Ok(logged(entity)),
        (Err(error), None) => return Err(error),
    };
    let sql = "SELECT c.oid, n.nspname || '.' || c.relname, current_schemas(false)::text[] FROM (SELECT) AS one
        LEFT JOIN pg_class c ON c.oid = to_regclass($1) LEFT JOIN pg_namespace n ON n.oid = c.relnamespace";
    let rows = client.read(cx, sql, &[(&name.sql(), Type::TEXT)]).await?;
    let row = rows.first().ok_or_else(|| Error::internal("a look for a table told nothing"))?;
    let (oid, there): (Option<u32>, Option<String>) = (row.get(0), row.get(1));
    if let Some((entity, _)) = known.iter().find(|(_, relation)| Some(*relation) == oid) {
        return Ok(logged(entity.clone()));
    }
    let is_certain = there.is_some() || name.schema.is_some();
    let schemas = name.schema.map_or_else(|| row.get::<_, Vec<String>>(2), |schema| vec![schema]);
    let mut names: Vec<String> = there.into_iter().collect();
    names.extend(schemas.iter().map(|schema| format!("{schema}.{}", name.table)));
    if let Some(entity) = names.iter().find_map(|name| by_name(name)) {
        return Ok(logged(entity));
    }
    Ok(Named { entity: names.into_iter().next().unwrap_or(name.table), is_logged: false, is_certain })
}

/// The tables as the log names them.
///
/// # Errors
/// `Config` for a table that the log does not know.
pub(super) async fn logged(cx: &Cx, client: &Client, tables: &[String]) -> Result<Vec<String>> {
    let known = known(cx, client).await?;
    let mut entities = Vec::new();
    for table in tables {
        let named = find(cx, client, &known, table).await?;
        if !named.is_logged {
            return Err(not_logged(client, table, &known));
        }
        entities.push(named.entity);
    }
    Ok(entities)
}

/// The names of tables with their schemas, as changes have them. The log may hold changes of tables that are gone, or whose logging is yet
/// to begin.
///
/// # Errors
/// `Config` for a name of which nobody knows anything.
pub(super) async fn spelled(
    cx: &Cx,
    client: &Client,
    known: &[(String, u32)],
    names: Vec<String>,
) -> Result<Vec<String>> {
    let mut spelled = Vec::new();
    for name in names {
        let named = find(cx, client, known, &name).await?;
        if !named.is_logged && !named.is_certain {
            return Err(not_logged(client, &name, known));
        }
        spelled.push(named.entity);
    }
    Ok(spelled)
}

/// The names of tables with their schemas, as changes have them. A table that is no longer logged may still have changes in the log.
///
/// # Errors
/// `Config` for a table that was never logged.
pub(super) async fn ever_logged(cx: &Cx, client: &Client, names: Vec<String>) -> Result<Vec<String>> {
    let known = known(cx, client).await?;
    let sql = client.sql("SELECT FROM {schema}.log_tables WHERE entity = $1");
    let mut entities = Vec::new();
    for name in names {
        let named = find(cx, client, &known, &name).await?;
        let was_logged = named.is_logged || !client.read(cx, &sql, &[(&named.entity, Type::TEXT)]).await?.is_empty();
        if !was_logged {
            return Err(not_logged(client, &name, &known));
        }
        entities.push(named.entity);
    }
    Ok(entities)
}

/// The command that logs a table.
pub(super) fn install_command(client: &Client, table: &str) -> String {
    format!("{} --table {table}", client.granting_command("install"))
}

fn not_logged(client: &Client, table: &str, known: &[(String, u32)]) -> Error {
    let mut names: Vec<_> = known.iter().map(|(entity, _)| written(entity)).collect();
    names.sort();
    Error::config(format!("the table {table} is not logged; those that are: {}", names.join(", ")))
        .remedy(format!("run `{}`", install_command(client, table)))
}
