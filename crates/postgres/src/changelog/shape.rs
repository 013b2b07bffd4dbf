//! What the catalogue says of tables.

use tokio_postgres::types::Type;
use watchkeeper_core::{Cx, Error, Result};

use super::columns::Columns;
use super::columns::literal;
use super::triggers::{ROW, STATEMENT, WAKE};
use crate::client::{Client, Work, quoted};
use crate::table_name::table_name;

/// A table that can be logged.
#[derive(Debug, Clone)]
pub(super) struct Shape {
    pub(super) oid: u32,
    /// With its schema, as changes name it.
    pub(super) entity: String,
    /// As SQL names it.
    pub(super) name: String,
    pub(super) is_partitioned: bool,
    /// Whether its triggers run once per statement, not once per row.
    pub(super) is_logged_by_statement: bool,
    pub(super) key_index: u32,
    pub(super) has_virtual_columns: bool,
    /// The columns of its primary key.
    pub(super) key: Vec<String>,
    /// What its triggers have to know of it.
    pub(super) traits: String,
    /// The schema of another log that logs it already.
    pub(super) other_log: Option<String>,
    /// Partitions that hold rows, as SQL names them.
    pub(super) leaves: Vec<String>,
}

const LOOK: &str = "SELECT c.oid, n.nspname::text, c.relname::text, c.relkind::text, c.relpersistence::text,
    (SELECT array_agg(a.attname::text ORDER BY k.n) FROM pg_index i
        CROSS JOIN LATERAL unnest(i.indkey::int2[]) WITH ORDINALITY AS k(attnum, n)
        JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = k.attnum
        WHERE i.indrelid = c.oid AND i.indisprimary AND k.n <= i.indnkeyatts),
    (SELECT min(a.attname::text) FROM pg_index i JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = ANY ((i.indkey::int2[])[0:i.indnkeyatts - 1])
        JOIN pg_type t ON t.oid = a.atttypid LEFT JOIN pg_collation l ON l.oid = a.attcollation
        WHERE i.indrelid = c.oid AND i.indisprimary AND (t.typname = 'citext' OR NOT l.collisdeterministic)),
    ARRAY(SELECT quote_ident(pn.nspname) || '.' || quote_ident(p.relname) FROM pg_partition_tree(c.oid) AS tree
        JOIN pg_class p ON p.oid = tree.relid JOIN pg_namespace pn ON pn.oid = p.relnamespace
        WHERE tree.isleaf AND tree.relid <> c.oid),
    EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.oid AND i.indisprimary AND NOT i.indimmediate),
    EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = c.oid AND NOT a.attisdropped AND a.attgenerated = 'v'),
    c.relname = ANY ('{meta,log,log_meta,log_tables,log_consumers,log_marks,leases,checkpoints,ledger,records,logs}')
        AND (n.nspname = $2 OR EXISTS (SELECT FROM pg_class m WHERE m.relnamespace = n.oid AND m.relname = 'log_meta')),
    (SELECT min(pn.nspname::text) FROM pg_trigger g JOIN pg_proc p ON p.oid = g.tgfoid
        JOIN pg_namespace pn ON pn.oid = p.pronamespace WHERE g.tgrelid = c.oid AND g.tgname = $3 AND pn.nspname <> $2),
    row_security_active(c.oid), has_table_privilege(c.oid, 'SELECT'), current_user::text,
    (SELECT i.indexrelid FROM pg_index i WHERE i.indrelid = c.oid AND i.indisprimary),
    EXISTS (SELECT FROM pg_inherits WHERE c.oid IN (inhrelid, inhparent)) OR c.relispartition,
    EXISTS (SELECT FROM pg_trigger g WHERE g.tgrelid = c.oid AND NOT g.tgisinternal AND g.tgenabled <> 'D'
        AND g.tgtype & 3 = 1 AND g.tgname <> ALL ($4)),
    ";
const OF_TABLE: &str = "FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = to_regclass($1)";

/// The condition that foreign keys which act on their rows lead from a table back to itself. What they write belongs to the same query: where
/// that is a MERGE, the server forgets the rows of MERGE for the statement-level triggers.
pub(super) fn is_cyclic(relation: &str) -> String {
    format!(
        "EXISTS (WITH RECURSIVE keys AS (SELECT k.conrelid AS child, k.confrelid AS parent FROM pg_constraint k
                WHERE k.contype = 'f' AND (k.confdeltype IN ('c', 'n', 'd') OR k.confupdtype IN ('c', 'n', 'd'))),
            touched AS (SELECT child FROM keys WHERE parent = {relation}
                UNION SELECT k.child FROM keys k JOIN touched t ON t.child = k.parent)
            SELECT FROM touched WHERE child = {relation})"
    )
}

impl Shape {
    /// Looks at a table.
    ///
    /// # Errors
    /// `Config` for one that cannot be logged, with the reason.
    pub(super) async fn inspect(cx: &Cx, client: &Client, work: &Work, table: &str) -> Result<Self> {
        let (name, own) = (table_name(table)?, client.schema());
        let own_triggers: Vec<&str> = std::iter::once(ROW).chain(STATEMENT).collect();
        let rows = work
            .query(
                cx,
                &format!("{LOOK}{} {OF_TABLE}", is_cyclic("c.oid")),
                &[(&name, Type::TEXT), (&own, Type::TEXT), (&ROW, Type::TEXT), (&own_triggers, Type::TEXT_ARRAY)],
            )
            .await?;
        let Some(row) = rows.first() else {
            return Err(Error::config(format!("there is no table {table}"))
                .remedy("write its name as the database does, with its schema where that is not on the search path"));
        };
        let (schema, name, kind): (String, String, String) = (row.get(1), row.get(2), row.get(3));
        let refuse = |cause: String, remedy: &str| Err(Error::config(cause).remedy(remedy));
        if !["r", "p"].contains(&kind.as_str()) || row.get::<_, String>(4) != "p" {
            return refuse(
                format!("{table} is not a table that lasts"),
                "name a table, not a view, and none that is temporary or unlogged",
            );
        }
        if schema.contains('.') {
            return refuse(
                format!(
                    "the schema {schema:?} has a dot in its name: changes of {table} could not be told from those of another table"
                ),
                "move the table into a schema without one",
            );
        }
        if row.get(10) {
            return refuse(
                format!("{table} is one of Watchkeeper's own tables, whose changes would be logged for ever"),
                "name a table of the application",
            );
        }
        let key: Vec<String> = row.get::<_, Option<_>>(5).unwrap_or_default();
        if key.is_empty() {
            let remedy = format!("give it one: ALTER TABLE {table} ADD PRIMARY KEY (…)");
            return refuse(
                format!("the table {table} has no primary key, so that its rows cannot be told apart"),
                &remedy,
            );
        }
        if let Some(column) = row.get::<_, Option<String>>(6) {
            let cause = format!("the key column {column} of {table} holds different texts to be equal");
            return refuse(cause, "give the table a primary key of a type or collation that compares byte by byte");
        }
        let user: String = row.get(14);
        if row.get(12) {
            return refuse(
                format!(
                    "row-level security hides rows of {table} from {user}, so that its triggers would not see them"
                ),
                "install as its owner (without FORCE ROW LEVEL SECURITY), or as a role with BYPASSRLS",
            );
        }
        if !row.get::<_, bool>(13) {
            let remedy = format!("GRANT SELECT ON {table} TO {}", quoted(&user));
            return refuse(format!("{user} may not read {table}, as its triggers have to"), &remedy);
        }
        let (is_deferrable, has_virtual_columns, key_index): (bool, bool, u32) = (row.get(8), row.get(9), row.get(15));
        let (is_related, has_row_triggers, is_cyclic): (bool, bool, bool) = (row.get(16), row.get(17), row.get(18));
        let is_logged_by_statement = kind == "r" && !is_deferrable && !is_related && !has_row_triggers && !is_cyclic;
        Ok(Self {
            oid: row.get(0),
            entity: format!("{schema}.{name}"),
            name: format!("{}.{}", quoted(&schema), quoted(&name)),
            is_partitioned: kind == "p",
            is_logged_by_statement,
            key_index,
            has_virtual_columns,
            key,
            leaves: row.get(7),
            traits: traits(is_deferrable, has_virtual_columns, key_index),
            other_log: row.get(11),
        })
    }

    /// Refuses a table that another log logs: it has room for the triggers of one.
    pub(super) fn require_unlogged_elsewhere(&self) -> Result<()> {
        let Some(other) = &self.other_log else { return Ok(()) };
        let cause = format!("{} is logged already, by the log in schema {other:?}", self.entity);
        Err(Error::config(cause).remedy(format!(
            "read that one (schema = {other:?}), or end it first: watchkeeper postgres uninstall --url URL --schema {other} --table {}",
            self.entity
        )))
    }
}

/// The index of the key is the last of them, by its number: it tells the names that the columns of the key have when a row changes.
fn traits(is_deferrable: bool, has_virtual: bool, index: u32) -> String {
    let words = [(is_deferrable, "deferrable "), (has_virtual, "virtual ")];
    let words: String = words.into_iter().filter_map(|(is_so, word)| is_so.then_some(word)).collect();
    format!("{words}key={index}")
}

/// The condition that a trigger calls a function of the log's own schema, which is `$2`.
pub(super) const OF_OWN: &str =
    "tgfoid IN (SELECT p.oid FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace WHERE n.nspname = $2)";

/// The name under which the trigger `g` tells of changes: its first argument.
pub(super) const LOGGED_AS: &str =
    "convert_from(substring(g.tgargs FROM 1 FOR position(decode('00', 'hex') IN g.tgargs) - 1), getdatabaseencoding())";

/// The condition that all triggers which log the rows of a `relation` exist and fire. The row-level trigger is one for replicas exactly where
/// statement-level ones log too. `$2` is the log's own schema.
pub(super) fn is_logging() -> String {
    let statement = STATEMENT.map(literal).join(", ");
    format!(
        "EXISTS (SELECT FROM pg_trigger r WHERE r.tgrelid = relation AND r.tgname = {} AND r.{OF_OWN} AND (r.tgenabled = 'A'
            OR r.tgenabled = 'R' AND (SELECT count(*) FROM pg_trigger s WHERE s.tgrelid = relation AND s.tgname IN ({statement})
                AND s.tgenabled = 'O' AND s.{OF_OWN}) = {}))",
        literal(ROW),
        STATEMENT.len()
    )
}

/// The condition that a `relation` whose statements are logged has become part of an inheritance tree. Statements on a parent do not fire
/// the triggers of its children, and log their rows as its own. Partitions are not concerned: their rows are logged one by one.
const INHERITS_SINCE: &str = "EXISTS (SELECT FROM pg_inherits h JOIN pg_class c ON c.oid = h.inhrelid
    JOIN pg_trigger r ON r.tgrelid = relation AND r.tgname = $1 AND r.tgenabled = 'R'
    WHERE relation IN (h.inhrelid, h.inhparent) AND NOT c.relispartition)";

/// Whether all who write to logged tables tell of it.
pub(super) async fn all_wake(cx: &Cx, client: &Client) -> Result<bool> {
    let sql = client.sql(&format!(
        "SELECT coalesce(bool_and(EXISTS (SELECT FROM pg_trigger WHERE tgrelid = relation AND tgname = $1 AND {OF_OWN})), false)
            FROM {{schema}}.log_tables WHERE relation <> 0",
    ));
    let rows = client.read(cx, &sql, &[(&WAKE, Type::TEXT), (&client.schema(), Type::TEXT)]).await?;
    Ok(rows.first().is_some_and(|row| row.get(0)))
}

/// The columns of the primary key of a `relation`, by their numbers: those stay when a column gets another name.
pub(super) const KEY: &str = "(SELECT array_agg(k.attnum ORDER BY k.n) FROM pg_index i
    CROSS JOIN LATERAL unnest(i.indkey::int2[]) WITH ORDINALITY AS k(attnum, n)
    WHERE i.indrelid = relation AND i.indisprimary AND k.n <= i.indnkeyatts)";

/// The partitions of a `relation` that hold rows, by their numbers.
pub(super) const PARTS: &str =
    "ARRAY(SELECT relid::oid FROM pg_partition_tree(relation) WHERE isleaf AND relid <> relation)";

/// Logged tables of which partitions were dropped or detached since they were installed. Nobody tells of the rows that went with them.
pub(super) async fn tables_without_partitions(
    cx: &Cx,
    client: &Client,
    wanted: Option<&[String]>,
) -> Result<Vec<String>> {
    let sql = client.sql(&format!(
        "SELECT entity FROM {{schema}}.log_tables JOIN pg_class c ON c.oid = relation
            WHERE ($1::text[] IS NULL OR entity = ANY ($1)) AND parts <> '{{}}' AND NOT parts <@ {PARTS} ORDER BY entity",
    ));
    let wanted = wanted.map(<[String]>::to_vec);
    Ok(client.read(cx, &sql, &[(&wanted, Type::TEXT_ARRAY)]).await?.iter().map(|row| row.get(0)).collect())
}

/// Logged tables of which the log does not tell any more as it did, each with the reason.
pub(super) async fn unlogged(cx: &Cx, client: &Client, wanted: Option<&[String]>) -> Result<Vec<(String, String)>> {
    let is_logging = is_logging();
    let sql = client.sql(&format!(
        "SELECT * FROM (SELECT entity, CASE
            WHEN NOT EXISTS (SELECT FROM pg_class c WHERE c.oid = relation) AND EXISTS (SELECT FROM pg_class c
                    JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname || '.' || c.relname = entity)
                THEN 'is not logged any more: it was dropped and made again, and the new table has no trigger of the log'
            WHEN NOT EXISTS (SELECT FROM pg_class c WHERE c.oid = relation)
                THEN 'is not logged any more: it was dropped'
            WHEN NOT {is_logging}
                THEN 'is not logged any more: its trigger is gone or disabled'
            WHEN NOT EXISTS (SELECT FROM pg_trigger g WHERE g.tgrelid = relation AND g.tgname = $1 AND {OF_OWN} AND {LOGGED_AS} = entity)
                THEN 'is not logged any more: its triggers tell of it under another name'
            WHEN EXISTS (SELECT FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
                    WHERE n.nspname || '.' || c.relname = entity AND c.oid <> relation)
                THEN 'is not logged any more: it has another name, and another table has its name'
            WHEN key IS DISTINCT FROM {KEY}
                THEN 'has another primary key than when it was logged: its rows are told by the old one'
            WHEN {INHERITS_SINCE}
                THEN 'is not logged any more as it was: it inherits from another table since, or another table from it'
            END AS why FROM {{schema}}.log_tables WHERE relation <> 0 AND ($3::text[] IS NULL OR entity = ANY ($3))) AS t
            WHERE why IS NOT NULL ORDER BY entity",
    ));
    let wanted = wanted.map(<[String]>::to_vec);
    let values: &[crate::client::Value<'_>] =
        &[(&ROW, Type::TEXT), (&client.schema(), Type::TEXT), (&wanted, Type::TEXT_ARRAY)];
    let rows = client.read(cx, &sql, values).await?;
    Ok(rows.iter().map(|row| (row.get(0), row.get(1))).collect())
}

/// Logged tables that have virtual columns since, which their triggers do not look up: they are told as null.
pub(super) async fn blank(cx: &Cx, client: &Client) -> Result<Vec<String>> {
    let sql = client.sql(
        "SELECT entity FROM {schema}.log_tables WHERE relation <> 0
            AND EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = relation AND a.attgenerated = 'v' AND NOT a.attisdropped)
            AND NOT EXISTS (SELECT FROM pg_trigger WHERE tgrelid = relation AND tgname = $1
                AND position('virtual '::bytea IN tgargs) > 0) ORDER BY 1",
    );
    let rows = client.read(cx, &sql, &[(&ROW, Type::TEXT)]).await?;
    Ok(rows.iter().map(|row| row.get(0)).collect())
}

/// Tables that inherit from a logged one and are logged neither as its partitions nor by themselves.
pub(super) async fn children(cx: &Cx, client: &Client) -> Result<Vec<(String, String)>> {
    let sql = client.sql(
        "SELECT l.entity, n.nspname || '.' || c.relname FROM {schema}.log_tables l JOIN pg_inherits i ON i.inhparent = l.relation
            JOIN pg_class c ON c.oid = i.inhrelid JOIN pg_namespace n ON n.oid = c.relnamespace
            WHERE NOT c.relispartition AND c.oid NOT IN (SELECT relation FROM {schema}.log_tables) ORDER BY 1, 2",
    );
    let rows = client.read(cx, &sql, &[]).await?;
    Ok(rows.iter().map(|row| (row.get(0), row.get(1))).collect())
}

/// Refuses an outbox whose columns are not there, or of types that do not do.
pub(super) async fn require_columns(
    cx: &Cx,
    client: &Client,
    table: &str,
    name: &str,
    columns: &Columns,
) -> Result<()> {
    let sql = "SELECT a.attname::text, replace(format_type(a.atttypid, NULL), '\"', '') FROM pg_attribute a
        WHERE a.attrelid = to_regclass($1) AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum";
    let rows = client.read(cx, sql, &[(&name, Type::TEXT)]).await?;
    let there: Vec<(String, String)> = rows.iter().map(|row| (row.get(0), row.get(1))).collect();
    if there.is_empty() {
        return Err(Error::config(format!("there is no table {table}"))
            .remedy("correct `outbox`: `table` or `schema.table`, written as the database does"));
    }
    for (part, column) in columns.named() {
        let found = there.iter().find(|(known, _)| known == column).map(|(_, kind)| kind.as_str());
        fits(table, part, column, found, &there)?;
    }
    Ok(())
}

/// Whether a column can be what it is mapped to.
fn fits(table: &str, part: &str, column: &str, kind: Option<&str>, there: &[(String, String)]) -> Result<()> {
    let takes: &[&str] = match part {
        "id" => &["bigint", "integer"],
        "xid" => &["xid8"],
        "before" | "after" | "changed" => &["json", "jsonb"],
        "time" => &["timestamp with time zone"],
        _ => &[],
    };
    let remedy = match part {
        "xid" => format!(
            "add it: ALTER TABLE {table} ADD COLUMN xid xid8 NOT NULL DEFAULT pg_current_xact_id(); CREATE INDEX ON {table} (xid)"
        ),
        _ if kind.is_some() => format!("map `{part}` to a column of type {}", takes.join(" or ")),
        _ => {
            let names: Vec<_> = there.iter().map(|(name, _)| name.as_str()).collect();
            format!("map `{part}` to one of its columns: {}", names.join(", "))
        }
    };
    match kind {
        None => {
            Err(Error::config(format!("the outbox {table} has no column {column:?} to take `{part}` from"))
                .remedy(remedy))
        }
        Some(kind) if !takes.is_empty() && !takes.contains(&kind) => {
            let cause = format!("the column {column:?} of the outbox {table} is {kind}, which cannot be its `{part}`");
            Err(Error::config(cause).remedy(remedy))
        }
        Some(_) => Ok(()),
    }
}
