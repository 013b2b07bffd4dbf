//! Whether a table that is there already is one that a sink can write.

use tokio_postgres::types::Type;
use watchkeeper_core::{Cx, Finding, Result, Severity};

use super::finding;
use crate::client::{Client, quoted};
use crate::sink::Table;

/// A column by its name, and the type of what is written to it.
pub(crate) type Column = (&'static str, &'static str);

/// What is written of every change into a table of events.
pub(crate) const EVENTS: [Column; 11] = [
    ("id", "text"),
    ("operation", "text"),
    ("namespace", "text"),
    ("key", "bytea"),
    ("time", "timestamptz"),
    ("version_time", "bigint"),
    ("version_ordinal", "bigint"),
    ("event", "json"),
    ("epoch", "bigint"),
    ("tenure", "uuid"),
    ("seq", "bigint"),
];

/// What is written of every key into a mirror.
pub(crate) const MIRROR: [Column; 6] = [
    ("namespace", "text"),
    ("key", "bytea"),
    ("document", "json"),
    ("time", "timestamptz"),
    ("version_time", "bigint"),
    ("version_ordinal", "bigint"),
];

/// The same, with the mark of what was deleted.
pub(crate) const VERSIONED: [Column; 7] =
    [MIRROR[0], MIRROR[1], MIRROR[2], MIRROR[3], MIRROR[4], MIRROR[5], ("deleted", "timestamptz")];

/// By what a mirror finds its rows again.
const KEY: [&str; 2] = ["namespace", "key"];

/// What each column is; nothing of one that is not there. A value goes into a column of its own type, of one that it is turned into when
/// it is stored, and into text.
const LOOK: &str = "SELECT w.name, w.kind::regtype::text, format_type(a.atttypid, a.atttypmod), a.attgenerated <> '',
        a.atttypid = w.kind::regtype OR t.typcategory = 'S' OR EXISTS (SELECT FROM pg_catalog.pg_cast c
            WHERE c.castsource = w.kind::regtype AND c.casttarget = a.atttypid AND c.castcontext IN ('a', 'i'))
    FROM unnest($2, $3) WITH ORDINALITY AS w (name, kind, n)
    LEFT JOIN pg_catalog.pg_attribute a ON a.attrelid = to_regclass($1) AND a.attname = w.name AND a.attnum > 0 AND NOT a.attisdropped
    LEFT JOIN pg_catalog.pg_type t ON t.oid = a.atttypid ORDER BY w.n";

/// Columns that nothing is written to, and that cannot be empty.
const DEMANDING: &str = "SELECT a.attname::text FROM pg_catalog.pg_attribute a
    WHERE a.attrelid = to_regclass($1) AND a.attnum > 0 AND NOT a.attisdropped AND a.attnotnull AND NOT a.atthasdef
        AND a.attidentity = '' AND a.attname <> ALL ($2) ORDER BY a.attnum";

/// Whether something keeps the columns that rows are found by apart.
const UNIQUE: &str =
    "SELECT EXISTS (SELECT FROM pg_catalog.pg_index i WHERE i.indrelid = to_regclass($1) AND i.indisunique
    AND i.indimmediate AND i.indpred IS NULL AND (SELECT array_agg(a.attname::text ORDER BY a.attname)
        FROM pg_catalog.pg_attribute a WHERE a.attrelid = i.indrelid
        AND a.attnum = ANY ((i.indkey::int2[])[0:i.indnkeyatts - 1])) = $2)";

/// What keeps a sink from writing these columns of a table. None are looked at where none are asked for.
pub(super) async fn unfit(cx: &Cx, client: &Client, table: &Table, columns: &[Column]) -> Result<Vec<Finding>> {
    if columns.is_empty() {
        return Ok(Vec::new());
    }
    let (name, shown) = (table.sql(), table.written());
    let (names, kinds): (Vec<&str>, Vec<&str>) = columns.iter().copied().unzip();
    let wrong = |what: String, remedy: String| {
        finding(Severity::Error, what, format!("{remedy}, or name a table that is not there: it will be made"))
    };
    let values: &[crate::client::Value<'_>] =
        &[(&name, Type::TEXT), (&names, Type::TEXT_ARRAY), (&kinds, Type::TEXT_ARRAY)];
    let mut found = Vec::new();
    for row in client.read(cx, LOOK, values).await? {
        let (column, kind): (String, String) = (row.get(0), row.get(1));
        let Some(is) = row.get::<_, Option<String>>(2) else {
            let remedy = format!("ALTER TABLE {name} ADD COLUMN {} {kind}", quoted(&column));
            found.push(wrong(format!("the table {shown:?} has no column {column:?}"), remedy));
            continue;
        };
        let remedy = format!("let it be a column of type {kind}");
        if row.get(3) {
            found.push(wrong(format!("the column {column:?} of {shown:?} is generated"), remedy));
        } else if !row.get::<_, bool>(4) {
            let what = format!("the column {column:?} of {shown:?} is {is}, and does not take a {kind}");
            found.push(wrong(what, remedy));
        }
    }
    for row in client.read(cx, DEMANDING, &[(&name, Type::TEXT), (&names, Type::TEXT_ARRAY)]).await? {
        let column: String = row.get(0);
        let what = format!("the column {column:?} of {shown:?} cannot be empty, and nothing is written to it");
        found.push(wrong(what, format!("ALTER TABLE {name} ALTER COLUMN {} DROP NOT NULL", quoted(&column))));
    }
    if found.is_empty() && columns.len() < EVENTS.len() {
        found.extend(keyless(cx, client, table).await?);
    }
    Ok(found)
}

/// Whether nothing keeps two rows of one key out of a mirror.
async fn keyless(cx: &Cx, client: &Client, table: &Table) -> Result<Option<Finding>> {
    let mut key = KEY.to_vec();
    key.sort_unstable();
    let rows = client.read(cx, UNIQUE, &[(&table.sql(), Type::TEXT), (&key, Type::TEXT_ARRAY)]).await?;
    if rows.first().is_some_and(|row| row.get(0)) {
        return Ok(None);
    }
    let what = format!("nothing keeps two rows of one namespace and key out of the table {:?}", table.written());
    let remedy = format!("ALTER TABLE {} ADD PRIMARY KEY ({})", table.sql(), KEY.join(", "));
    Ok(Some(finding(Severity::Error, what, remedy)))
}
