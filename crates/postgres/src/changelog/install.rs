//! Puts tables under watch, and takes them off it.

use tokio_postgres::types::Type;
use watchkeeper_core::{Cx, Error, Result};

use super::read::LOST;
use super::schema::SCHEMA;
use super::shape::{KEY, LOGGED_AS, OF_OWN, PARTS, Shape, is_logging};
use super::triggers::{self, PART};
use crate::client::{Client, Work, is_race, quoted};
use crate::table_name::table_name;

/// Whether writers tell readers of their changes. NOTIFY takes a lock on the whole server at every commit that has one to
/// send; without it readers look for changes from time to time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wake {
    /// Once in a transaction.
    Notify,
    /// Never.
    Silent,
}

/// What becomes of changes that a consumer has not read yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unread {
    /// They are kept: nothing is done as long as there are some.
    Keep,
    /// They are lost.
    Discard,
}

/// Whether the server lets transactions be prepared. One that has notified somebody cannot be.
pub(super) async fn can_prepare(cx: &Cx, client: &Client) -> Result<bool> {
    let rows = client.read(cx, "SELECT current_setting('max_prepared_transactions')::int4 > 0", &[]).await?;
    Ok(rows.first().is_some_and(|row| row.get(0)))
}

/// The channel on which writers tell readers of their changes.
pub(super) fn channel(client: &Client) -> String {
    format!("{}_log", client.schema())
}

/// Begins to log the changes of these tables; the answer is their names in the log. Repeating it is harmless.
///
/// A table whose triggers are gone, or that was not logged for a while, gets a mark in the log: whoever reads up to it
/// is told that history is lost.
///
/// # Errors
/// `Config` for a table that cannot be followed, with the reason; then nothing was changed.
pub async fn install(cx: &Cx, client: &Client, tables: &[&str], wake: Wake) -> Result<Vec<String>> {
    install_for(cx, client, tables, Triggers { wake, level: Level::Best }, None).await
}

/// How tables are logged.
#[derive(Debug, Clone, Copy)]
pub(super) struct Triggers {
    pub(super) wake: Wake,
    pub(super) level: Level,
}

/// What fires the triggers of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Level {
    /// Statements where the table allows it, which costs its writers least.
    Best,
    /// Each row, which goes on when the table becomes a partition.
    Row,
}

/// The same, and grants a role the least that it needs ([`grant`]), all of it or nothing.
pub(super) async fn install_for(
    cx: &Cx,
    client: &Client,
    tables: &[&str],
    triggers: Triggers,
    role: Option<&str>,
) -> Result<Vec<String>> {
    let work = begin(cx, client).await?;
    let entities = install_within(cx, client, &work, tables, triggers).await?;
    if let Some(role) = role {
        grant_within(cx, client, &work, role).await?;
    }
    work.commit(cx).await?;
    Ok(entities)
}

/// How often to look again when another one makes the same log at the same time.
const TRIES: usize = 5;

/// Begins a transaction in which the log is there, in the shape that this program knows. One that is new is made by the same transaction. One
/// that has writers is brought up to date before it: that takes locks on the log, for which a writer would wait while we wait for its table.
async fn begin(cx: &Cx, client: &Client) -> Result<Work> {
    for _ in 0..TRIES {
        if client.version(cx, SCHEMA).await? > 0 {
            client.ensure(cx, SCHEMA).await?;
            return client.begin(cx).await;
        }
        let work = client.begin(cx).await?;
        match client.make_within(cx, &work, SCHEMA).await {
            Ok(()) => return Ok(work),
            Err(error) if is_race(&error) => work.rollback(cx).await,
            Err(error) => return Err(error),
        }
    }
    Err(Error::unavailable(format!("{}: the log is made and removed all the time", client.place()))
        .remedy("look who else installs it"))
}

async fn install_within(
    cx: &Cx,
    client: &Client,
    work: &Work,
    tables: &[&str],
    Triggers { wake, level }: Triggers,
) -> Result<Vec<String>> {
    work.run(cx, &client.sql("LOCK TABLE {schema}.log_tables IN SHARE ROW EXCLUSIVE MODE")).await?;
    let mut entities = Vec::new();
    for table in tables {
        let mut shape = Shape::inspect(cx, client, work, table).await?;
        shape.is_logged_by_statement &= level == Level::Best;
        shape.require_unlogged_elsewhere()?;
        refuse_kin(cx, client, work, &shape).await?;
        install_one(cx, client, work, &shape, wake).await?;
        entities.push(shape.entity);
    }
    Ok(entities)
}

/// A row is logged once: with its table, or with the partition that it lies in.
async fn refuse_kin(cx: &Cx, client: &Client, work: &Work, shape: &Shape) -> Result<()> {
    let sql = client.sql(
        "SELECT min(entity) FROM {schema}.log_tables WHERE relation <> $1 AND relation IN
            (SELECT relid FROM pg_partition_tree($1::regclass) UNION SELECT relid FROM pg_partition_ancestors($1::regclass))",
    );
    let rows = work.query(cx, &sql, &[(&shape.oid, Type::OID)]).await?;
    let Some(kin) = rows.first().and_then(|row| row.get::<_, Option<String>>(0)) else { return Ok(()) };
    let cause = format!(
        "{kin} is logged already, and has rows in common with {}: it is a part of it, or the whole",
        shape.entity
    );
    Err(Error::config(cause).remedy(format!(
        "log one of them only: watchkeeper postgres uninstall --url {} --table {kin}, or leave {} out",
        client.url_for_command(),
        shape.entity
    )))
}

async fn install_one(cx: &Cx, client: &Client, work: &Work, shape: &Shape, wake: Wake) -> Result<()> {
    // Waits for those who are writing, and lets nobody write between an old trigger and a new one.
    work.run(cx, &format!("LOCK TABLE {} IN SHARE ROW EXCLUSIVE MODE", shape.name)).await?;
    drop_from_namesake(cx, client, work, shape).await?;
    end_former_name(cx, client, work, shape).await?;
    let sql = client.sql(&format!(
        "SELECT relation = $3 AND key = {KEY} AND {} FROM {{schema}}.log_tables WHERE entity = $1",
        is_logging()
    ));
    let values: &[crate::client::Value<'_>] =
        &[(&shape.entity, Type::TEXT), (&client.schema(), Type::TEXT), (&shape.oid, Type::OID)];
    let was_logged: Option<bool> = work.query(cx, &sql, values).await?.first().map(|row| row.get(0));
    if was_logged == Some(false) {
        note_loss(cx, client, work, vec![shape.entity.clone()]).await?;
    }
    if shape.is_logged_by_statement {
        let sql = client.sql("SELECT {schema}.log_make_best($1, $2, $3, $4, $5)");
        let values: &[crate::client::Value<'_>] = &[
            (&shape.oid, Type::OID),
            (&shape.key_index, Type::OID),
            (&shape.key, Type::TEXT_ARRAY),
            (&shape.has_virtual_columns, Type::BOOL),
            (&shape.entity, Type::TEXT),
        ];
        work.query(cx, &sql, values).await?;
    }
    work.run(cx, &triggers::make_all(client, shape, wake)).await?;
    let sql = client.sql(&format!(
        "INSERT INTO {{schema}}.log_tables (entity, relation, key, parts) SELECT $1, relation, {KEY}, {PARTS} FROM (VALUES ($2::oid)) AS t (relation)
            ON CONFLICT (entity) DO UPDATE SET relation = excluded.relation, key = excluded.key, parts = excluded.parts",
    ));
    work.query(cx, &sql, &[(&shape.entity, Type::TEXT), (&shape.oid, Type::OID)]).await?;
    Ok(())
}

/// A table that had this name when it was logged would go on to tell of its changes under it.
async fn drop_from_namesake(cx: &Cx, client: &Client, work: &Work, shape: &Shape) -> Result<()> {
    let sql = client.sql(
        "SELECT relation FROM {schema}.log_tables JOIN pg_class c ON c.oid = relation WHERE entity = $1 AND relation <> $2",
    );
    let rows = work.query(cx, &sql, &[(&shape.entity, Type::TEXT), (&shape.oid, Type::OID)]).await?;
    match rows.first() {
        Some(row) => drop_own(cx, client, work, row.get(0), "").await,
        None => Ok(()),
    }
}

/// A table that was logged under another name is told under its new one from now on: whoever reads it by the old one has to know.
async fn end_former_name(cx: &Cx, client: &Client, work: &Work, shape: &Shape) -> Result<()> {
    let sql =
        client.sql("UPDATE {schema}.log_tables SET relation = 0 WHERE relation = $1 AND entity <> $2 RETURNING entity");
    let rows = work.query(cx, &sql, &[(&shape.oid, Type::OID), (&shape.entity, Type::TEXT)]).await?;
    note_loss(cx, client, work, rows.iter().map(|row| row.get(0)).collect()).await
}

/// Says in the log that history of these was lost: whoever reads up to here has to know.
async fn note_loss(cx: &Cx, client: &Client, work: &Work, entities: Vec<String>) -> Result<()> {
    let sql = client.sql(
        "WITH noted AS (INSERT INTO {schema}.log (entity, operation) SELECT unnest($1::text[]), $2 RETURNING entity, id)
            UPDATE {schema}.log_tables AS t SET lost = n.id || ARRAY(SELECT l.id FROM {schema}.log l WHERE l.id = ANY (t.lost))
            FROM noted n WHERE t.entity = n.entity",
    );
    work.query(cx, &sql, &[(&entities, Type::TEXT_ARRAY), (&LOST, Type::TEXT)]).await.map(drop)
}

/// What a reader needs, by table.
pub(super) const GRANTS: [(&str, &str); 6] = [
    ("meta", "SELECT"),
    ("log", "SELECT, DELETE"),
    ("log_meta", "SELECT, UPDATE"),
    ("log_tables", "SELECT"),
    ("log_consumers", "SELECT, INSERT, UPDATE, DELETE"),
    ("log_marks", "SELECT, INSERT, UPDATE, DELETE"),
];

/// Grants a role the least that it needs to read the log, and to prune what everybody has read.
///
/// # Errors
/// As the server says; then nothing was changed.
pub async fn grant(cx: &Cx, client: &Client, role: &str) -> Result<()> {
    let work = client.begin(cx).await?;
    grant_within(cx, client, &work, role).await?;
    work.commit(cx).await
}

async fn grant_within(cx: &Cx, client: &Client, work: &Work, role: &str) -> Result<()> {
    let role = quoted(role);
    work.run(cx, &client.sql(&format!("GRANT USAGE ON SCHEMA {{schema}} TO {role}"))).await?;
    for (table, words) in GRANTS {
        work.run(cx, &client.sql(&format!("GRANT {words} ON {{schema}}.{table} TO {role}"))).await?;
    }
    Ok(())
}

/// Stops logging these tables. With the last of them the log itself is removed.
///
/// # Errors
/// `Config` for a table that is not logged, and for changes that somebody has not read yet, unless they may be discarded;
/// then nothing was changed.
pub async fn uninstall(cx: &Cx, client: &Client, tables: &[&str], unread: Unread) -> Result<()> {
    if client.version(cx, SCHEMA).await? == 0 {
        return Err(Error::config("no table of this database is logged").remedy("there is nothing to uninstall"));
    }
    let work = client.begin(cx).await?;
    work.run(cx, &client.sql("LOCK TABLE {schema}.log_tables IN SHARE ROW EXCLUSIVE MODE")).await?;
    let mut entities = Vec::new();
    for table in tables {
        entities.push(uninstall_one(cx, client, &work, table).await?);
    }
    let sql = client.sql("SELECT FROM {schema}.log_tables WHERE relation <> 0");
    let is_last = work.query(cx, &sql, &[]).await?.is_empty();
    if unread == Unread::Keep {
        // The whole log goes with the last table, with what is left of tables that went before.
        refuse_unread(cx, client, &work, (!is_last).then_some(entities)).await?;
    }
    if is_last {
        work.run(cx, &client.sql(REMOVE)).await?;
        work.run(cx, &client.sql(super::guard::REMOVE)).await?;
    }
    work.commit(cx).await
}

/// A log that is installed again is another one, so its identity goes too.
const REMOVE: &str = "DROP TABLE {schema}.log, {schema}.log_meta, {schema}.log_tables, {schema}.log_consumers,
        {schema}.log_marks;
    DROP FUNCTION {schema}.log_row(), {schema}.log_truncate(), {schema}.log_wake(), {schema}.log_part(),
        {schema}.log_whole(), {schema}.log_key(json, text[]), {schema}.log_key_now(json, oid), {schema}.log_look(oid),
        {schema}.log_columns(oid, boolean, text, text);
    DROP FUNCTION IF EXISTS {schema}.log_open(), {schema}.log_make(oid, oid, text[], boolean),
        {schema}.log_move(text, bigint, bigint, text[]), {schema}.log_doubts_sql(oid, text, text[]),
        {schema}.log_statement_sql(oid, text, boolean, boolean, text, text[]), {schema}.log_key_names(oid, oid, text[]),
        {schema}.log_key_sql(oid, text[]), {schema}.log_key_part(json), {schema}.log_exact(oid, json, text),
        {schema}.log_exact_sql(oid), {schema}.log_inexact(oid, text, int), {schema}.log_needs(oid, text[]),
        {schema}.log_fits(oid, int2[], text[], oid[], oid[]), {schema}.log_plain_types(text[]),
        {schema}.log_plain_key_types(), {schema}.log_key_column(oid, int), {schema}.log_plain_sql(oid, text[], text[], text, text),
        {schema}.log_make_plain(oid, oid, text[], text[], text), {schema}.log_make_best(oid, oid, text[], boolean, text);
    DELETE FROM {schema}.meta WHERE name = 'schema/log'";

async fn uninstall_one(cx: &Cx, client: &Client, work: &Work, table: &str) -> Result<String> {
    // A table that was dropped has no shape, and no triggers any more.
    let rows = work.query(cx, "SELECT to_regclass($1)::oid", &[(&table_name(table)?, Type::TEXT)]).await?;
    let oid: Option<u32> = rows.first().and_then(|row| row.get(0));
    let sql = client.sql(
        "UPDATE {schema}.log_tables SET relation = 0 WHERE relation <> 0 AND (relation = $1 OR entity = $2) RETURNING entity",
    );
    let rows = work.query(cx, &sql, &[(&oid.unwrap_or(0), Type::OID), (&table, Type::TEXT)]).await?;
    let Some(entity) = rows.first().map(|row| row.get::<_, String>(0)) else {
        return Err(Error::config(format!("the table {table} is not logged"))
            .remedy(format!("look at {}.log_tables for those that are", client.schema())));
    };
    drop_own(cx, client, work, oid.unwrap_or(0), &entity).await?;
    Ok(entity)
}

/// Drops the triggers of this log, not those of another one, from a table, its partitions, and those that were its partitions and are
/// not logged by themselves.
async fn drop_own(cx: &Cx, client: &Client, work: &Work, oid: u32, entity: &str) -> Result<()> {
    let sql = client.sql(&format!(
        "SELECT format('DROP TRIGGER %I ON %s', t.tgname, t.tgrelid::regclass) FROM pg_trigger t
        WHERE {OF_OWN} AND t.tgparentid = 0 AND NOT t.tgisinternal
            AND (t.tgrelid = $1 OR t.tgrelid IN (SELECT relid FROM pg_partition_tree($1::regclass))
                OR t.tgrelid IN (SELECT g.tgrelid FROM pg_trigger g WHERE g.tgname = $3 AND {OF_OWN} AND {LOGGED_AS} = $4
                    AND g.tgrelid NOT IN (SELECT relation FROM {{schema}}.log_tables)))"
    ));
    let values: &[crate::client::Value<'_>] =
        &[(&oid, Type::OID), (&client.schema(), Type::TEXT), (&PART, Type::TEXT), (&entity, Type::TEXT)];
    for row in work.query(cx, &sql, values).await? {
        work.run(cx, row.get(0)).await?;
    }
    drop_unused(cx, client, work).await
}

/// Drops the functions of tables that no trigger calls: those of tables that are not logged by statements any more, or are gone.
async fn drop_unused(cx: &Cx, client: &Client, work: &Work) -> Result<()> {
    let sql = "SELECT format('DROP FUNCTION %I.%I()', n.nspname, p.proname) FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
        WHERE n.nspname = $1 AND p.proname ~ '^log_(of|open)_[0-9]+$' AND NOT EXISTS (SELECT FROM pg_trigger WHERE tgfoid = p.oid)";
    for row in work.query(cx, sql, &[(&client.schema(), Type::TEXT)]).await? {
        work.run(cx, row.get(0)).await?;
    }
    Ok(())
}

/// Refuses to go on when a consumer has not acknowledged all changes of these tables, or of all without them.
async fn refuse_unread(cx: &Cx, client: &Client, work: &Work, entities: Option<Vec<String>>) -> Result<()> {
    let sql = client.sql(
        "SELECT name, (SELECT count(*) FROM {schema}.log WHERE NOT pg_visible_in_snapshot(xid, acknowledged)
                AND operation <> $1 AND ($2::text[] IS NULL OR entity = ANY ($2)))
            FROM {schema}.log_consumers ORDER BY name",
    );
    let rows = work.query(cx, &sql, &[(&LOST, Type::TEXT), (&entities, Type::TEXT_ARRAY)]).await?;
    let mut unread = Vec::new();
    for row in rows.iter().filter(|row| row.get::<_, i64>(1) > 0) {
        let (name, count): (String, i64) = (row.get(0), row.get(1));
        let changes = if count == 1 { "change" } else { "changes" };
        unread.push(format!("{name} has {count} {changes} to read"));
    }
    if unread.is_empty() {
        return Ok(());
    }
    Err(Error::config(format!("changes would be lost: {}", unread.join(", ")))
        .remedy("let it read them first, or discard them with --yes"))
}
