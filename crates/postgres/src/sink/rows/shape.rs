//! The columns of a table that rows are written into.

use tokio_postgres::Row;
use tokio_postgres::types::Type;
use watchkeeper_core::{Cx, Error, Result};

use super::super::{Failure, Open, Table};
use super::encode::Kind;
use super::field::Column;
use super::known_fields::KnownFields;
use crate::client::{Client, quoted};

/// What becomes of a column whose field the source does not have.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Missing {
    /// A change of a source that always tells whole rows is rejected: the column would lose its values without a word. Documents may
    /// lack fields, and have null there.
    #[default]
    Refuse,
    /// The column is left as it is, and has its default in a row that comes.
    Keep,
}

/// Which columns of a table are written, and from where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Shape {
    pub(super) columns: Vec<Column>,
    pub(super) missing: Missing,
    /// As it stands in SQL.
    pub(super) table: String,
    /// What is known of the fields, where columns are taken from those of their names.
    pub(super) follows: Option<KnownFields>,
    /// The types of the columns, where some column of the table has a domain: that may refuse to be null, and so be no part of rows that
    /// do not tell it. Otherwise rows are of the table's own type, whatever becomes of it.
    types: Option<Vec<String>>,
}

/// A column as the server has it.
struct Found {
    name: String,
    is_generated: bool,
    in_key: bool,
    /// Whether its key is looked at only when a transaction ends.
    is_late: bool,
    /// Its type, as it stands in SQL.
    type_name: String,
    is_domain: bool,
    kind: Kind,
    /// Whether the server numbers it and takes no other number in an update.
    is_numbered: bool,
}

/// The columns of the table `$1`. An index may have more columns than its key (INCLUDE). The innermost type of a column is that of its
/// elements, and none is a domain.
const COLUMNS: &str = "WITH RECURSIVE types (number, type, is_array) AS (
        SELECT attnum, atttypid, false FROM pg_catalog.pg_attribute WHERE attrelid = to_regclass($1) AND attnum > 0 AND NOT attisdropped
        UNION ALL SELECT number, CASE t.typtype WHEN 'd' THEN t.typbasetype ELSE t.typelem END, is_array OR t.typtype <> 'd'
        FROM types JOIN pg_catalog.pg_type t ON t.oid = type
            WHERE t.typtype = 'd' OR t.typcategory = 'A' AND t.typelem <> 0 AND t.oid NOT IN ('int2vector'::regtype, 'oidvector'::regtype))
    SELECT a.attname::text, a.attgenerated <> '',
        coalesce(a.attnum = ANY ((i.indkey::int2[])[0:i.indnkeyatts - 1]), false), coalesce(NOT i.indimmediate, false),
        format_type(a.atttypid, a.atttypmod), t.typtype = 'd', a.attidentity = 'a', inner_t.typname::text, inner_t.typcategory::text, is_array
    FROM pg_catalog.pg_attribute a JOIN pg_catalog.pg_type t ON t.oid = a.atttypid LEFT JOIN pg_catalog.pg_index i ON i.indrelid = a.attrelid AND i.indisprimary
    JOIN types ON number = a.attnum JOIN pg_catalog.pg_type inner_t ON inner_t.oid = type AND inner_t.typtype <> 'd'
        AND (inner_t.typcategory <> 'A' OR inner_t.typelem = 0 OR inner_t.oid IN ('int2vector'::regtype, 'oidvector'::regtype))
    WHERE a.attrelid = to_regclass($1) AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum";

impl Shape {
    /// As the table is now. Without `fields` every column that can be written is taken from the field of its name.
    pub(super) async fn inspect(
        cx: &Cx,
        client: &Client,
        table: &Table,
        fields: &[(String, String)],
        missing: Missing,
    ) -> Result<Self> {
        table.require_foreign(cx, client).await?;
        let rows = client.read(cx, COLUMNS, &[(&table.sql(), Type::TEXT)]).await?;
        Self::of(&rows, table, fields, missing)
    }

    /// The same, as an open transaction sees it.
    pub(super) async fn inspect_within(open: &Open<'_>, table: &Table, missing: Missing) -> Result<Self, Failure> {
        let asked = async { Ok(open.query_typed(COLUMNS, &[(&table.sql(), Type::TEXT)]).await) };
        let rows = open.cx().run(asked).await??;
        Ok(Self::of(&rows, table, &[], missing)?)
    }

    fn of(rows: &[Row], table: &Table, fields: &[(String, String)], missing: Missing) -> Result<Self> {
        if rows.is_empty() {
            return Err(Error::config(format!("there is no table {:?} to write rows into", table.written()))
                .remedy("create it with the columns and types that you want; only you can know them"));
        }
        let found = |row: &Row| Found {
            name: row.get(0),
            is_generated: row.get(1),
            in_key: row.get(2),
            is_late: row.get(3),
            type_name: row.get(4),
            is_domain: row.get(5),
            is_numbered: row.get(6),
            kind: Kind::new(row.get(7), row.get(8), row.get(9)),
        };
        let found: Vec<_> = rows.iter().map(found).collect();
        let columns = if fields.is_empty() { all(&found) } else { chosen(table, &found, fields)? };
        require_key(table, &found, &columns)?;
        refuse_numbered(table, &found, &columns)?;
        let follows = fields.is_empty().then(|| KnownFields::of(&columns));
        let kind =
            |column: &Column| found.iter().find(|found| found.name == column.name).map(|found| found.type_name.clone());
        let types = found.iter().any(|found| found.is_domain).then(|| columns.iter().filter_map(kind).collect());
        Ok(Self { columns, missing, table: table.sql().to_owned(), follows, types })
    }

    /// The error of a change whose source has no field for the column at this place.
    pub(super) fn missing_field(&self, at: usize, source: &str) -> Error {
        let (Column { name, path, .. }, table) = (&self.columns[at], &self.table);
        let field = &path[0];
        let cause = format!(
            "{table} has a column {name:?}, but {source} reports no column {field:?} (any more) to fill it from"
        );
        let remedy = format!(
            "rename or drop {name:?} in {table}, name the columns to write (columns), or leave it as it is (missing = \"keep\"); then resume the stream"
        );
        Error::config(cause).remedy(remedy)
    }

    /// The error of a change whose value does not fit into the column at this place.
    pub(super) fn unfit(&self, at: usize, cause: &str) -> Error {
        let (name, table) = (&self.columns[at].name, &self.table);
        Error::config(format!("{name:?} of {table} does not take this value: {cause}"))
            .remedy("give the column a type that holds it, or choose what becomes of refused changes (on_reject)")
    }

    /// Leaves out the columns that are not to be kept, each with its type.
    pub(super) fn retain(&mut self, is_kept: impl Fn(&Column) -> bool) {
        let kept: Vec<bool> = self.columns.iter().map(is_kept).collect();
        let mut at = kept.iter();
        self.columns.retain(|_| at.next().is_none_or(|kept| *kept));
        if let Some(types) = &mut self.types {
            let mut at = kept.iter();
            types.retain(|_| at.next().is_none_or(|kept| *kept));
        }
    }

    fn names<'a>(&'a self, wanted: impl Fn(usize, &Column) -> bool + 'a) -> impl Iterator<Item = String> + 'a {
        let chosen = self.columns.iter().enumerate().filter(move |(at, column)| wanted(*at, column));
        chosen.map(|(_, column)| quoted(&column.name))
    }

    /// The rows of a JSON array, of which these columns are told.
    fn rows(&self, array: &str, name: &str, present: impl Fn(usize, &Column) -> bool) -> String {
        let Some(types) = &self.types else {
            return format!("json_populate_recordset(NULL::{}, {array}::json) AS {name}", self.table);
        };
        let typed = self.columns.iter().zip(types).enumerate().filter(|(at, (column, _))| present(*at, column));
        let typed: Vec<_> = typed.map(|(_, (column, kind))| format!("{} {kind}", quoted(&column.name))).collect();
        format!("json_to_recordset({array}::json) AS {name} ({})", typed.join(", "))
    }

    /// Converts rows and writes nothing. `$1` rows, as a JSON array, of which these columns are told.
    pub(super) fn conversion(&self, present: impl Fn(usize, &Column) -> bool) -> String {
        format!("SELECT count(*) FROM {}", self.rows("$1", "d", present))
    }

    /// What a column is taken from: a row `other`, unless it has the null of JSON.
    fn taken(&self, other: &str, at: usize, json_nulls: &[usize]) -> String {
        if json_nulls.contains(&at) {
            "'null'::jsonb".to_owned()
        } else {
            format!("{other}.{}", quoted(&self.columns[at].name))
        }
    }

    /// Inserts rows, or updates those that are there, in the columns that are `into_values`. `$1` rows, as a JSON array.
    pub(super) fn upsert(&self, present: &[bool], json_nulls: &[usize]) -> String {
        let values = (0..present.len()).filter(|at| present[*at]).map(|at| self.taken("d", at, json_nulls));
        let values = values.collect::<Vec<_>>().join(", ");
        let (table, all) = (&self.table, self.names(|at, _| present[at]).collect::<Vec<_>>().join(", "));
        let key = self.names(|_, column| column.in_key).collect::<Vec<_>>().join(", ");
        let others = self.names(|at, column| present[at] && !column.in_key);
        let set: Vec<_> = others.map(|name| format!("{name} = excluded.{name}")).collect();
        let conflict = if set.is_empty() { "NOTHING".to_owned() } else { format!("UPDATE SET {}", set.join(", ")) };
        format!(
            "INSERT INTO {table} ({all}) OVERRIDING SYSTEM VALUE
            SELECT {values} FROM {rows} ON CONFLICT ({key}) DO {conflict}",
            rows = self.rows("$1", "d", |at, _| present[at]),
        )
    }

    /// Updates rows that are there, in the columns that are `into_values`. `$1` rows, as a JSON array.
    pub(super) fn update(&self, present: &[bool], json_nulls: &[usize]) -> String {
        let (table, same) = (&self.table, self.same("d"));
        let is_set = |at: &usize| present[*at] && !self.columns[*at].in_key;
        let set = |at: usize| format!("{} = {}", quoted(&self.columns[at].name), self.taken("d", at, json_nulls));
        let set: Vec<_> = (0..present.len()).filter(is_set).map(set).collect();
        let rows = self.rows("$1", "d", |at, column| present[at] || column.in_key);
        if set.is_empty() {
            return format!("SELECT FROM {table} t JOIN {rows} ON {same}");
        }
        format!("UPDATE {table} t SET {} FROM {rows} WHERE {same}", set.join(", "))
    }

    /// Takes a row away under its old key and brings it under its new one, in one statement: columns that are not `into_values` are
    /// as they were. `$1` the row, `$2` its old key, each alone in a JSON array.
    pub(super) fn rename(&self, present: &[bool], json_nulls: &[usize]) -> String {
        let (table, same, key) = (&self.table, self.same("o"), self.names(|_, column| column.in_key));
        let key = key.collect::<Vec<_>>().join(", ");
        let all: Vec<_> = self.names(|_, _| true).collect();
        let from = |(at, present): (usize, &bool)| self.taken(if *present { "d" } else { "old" }, at, json_nulls);
        let values: Vec<_> = present.iter().enumerate().map(from).collect();
        let set: Vec<_> =
            self.names(|_, column| !column.in_key).map(|name| format!("{name} = excluded.{name}")).collect();
        format!(
            "WITH old AS (DELETE FROM {table} t USING {keys}
                WHERE {same} RETURNING t.*)
            INSERT INTO {table} ({all}) OVERRIDING SYSTEM VALUE
            SELECT {values} FROM {rows} CROSS JOIN old
            ON CONFLICT ({key}) DO UPDATE SET {set}",
            all = all.join(", "),
            values = values.join(", "),
            set = set.join(", "),
            keys = self.rows("$2", "o", |_, column| column.in_key),
            rows = self.rows("$1", "d", |at, _| present[at]),
        )
    }

    /// Whether a row of the table `t` has the key of a row `other`.
    fn same(&self, other: &str) -> String {
        let same = self.names(|_, column| column.in_key).map(|name| format!("t.{name} = {other}.{name}"));
        same.collect::<Vec<_>>().join(" AND ")
    }

    /// Removes rows. `$1` their keys, as a JSON array.
    pub(super) fn delete(&self) -> String {
        let (table, same) = (&self.table, self.same("d"));
        format!("DELETE FROM {table} t USING {} WHERE {same}", self.rows("$1", "d", |_, column| column.in_key))
    }

    /// Removes all rows.
    pub(super) fn clear(&self) -> String {
        format!("DELETE FROM {}", self.table)
    }
}

fn all(found: &[Found]) -> Vec<Column> {
    let column = |found: &Found| {
        let (name, path) = (found.name.clone(), vec![found.name.clone()]);
        Column { name, path, in_key: found.in_key, kind: found.kind }
    };
    found.iter().filter(|found| !found.is_generated).map(column).collect()
}

fn chosen(table: &Table, found: &[Found], fields: &[(String, String)]) -> Result<Vec<Column>> {
    let column = |(name, field): &(String, String)| {
        let written = table.written();
        let Some(found) = found.iter().find(|found| found.name == *name) else {
            return Err(Error::config(format!("{written:?} has no column {name:?} to write {field:?} into"))
                .remedy("correct its name in `columns`"));
        };
        if found.is_generated {
            return Err(Error::config(format!("the server computes {name:?} of {written:?} by itself"))
                .remedy("leave it out of `columns`"));
        }
        let path = field.split('.').map(str::to_owned).collect();
        Ok(Column { name: name.clone(), path, in_key: found.in_key, kind: found.kind })
    };
    fields.iter().map(column).collect()
}

/// The server refuses to update such a column, so that rows could be inserted once and never written again.
fn refuse_numbered(table: &Table, found: &[Found], columns: &[Column]) -> Result<()> {
    let is_written = |name: &str| columns.iter().any(|column| column.name == name && !column.in_key);
    let Some(numbered) = found.iter().find(|found| found.is_numbered && is_written(&found.name)) else { return Ok(()) };
    let (name, written) = (&numbered.name, table.written());
    let cause = format!("{name:?} of {written:?} is GENERATED ALWAYS AS IDENTITY, which no update can write");
    let column = quoted(name);
    Err(Error::config(cause).remedy(format!(
        "ALTER TABLE {} ALTER COLUMN {column} SET GENERATED BY DEFAULT, or name the columns to write without it (columns)",
        table.sql()
    )))
}

/// Without its key in the columns a row could be neither found again nor taken away.
fn require_key(table: &Table, found: &[Found], columns: &[Column]) -> Result<()> {
    let written = table.written();
    let mut key = found.iter().filter(|found| found.in_key).peekable();
    if key.peek().is_none() {
        return Err(Error::config(format!("{written:?} has no primary key, so its rows cannot be told apart"))
            .remedy(format!("ALTER TABLE {} ADD PRIMARY KEY (…)", table.sql())));
    }
    if key.peek().is_some_and(|found| found.is_late) {
        let cause = format!(
            "the primary key of {written:?} is DEFERRABLE, so the server finds no row by it before it writes one"
        );
        return Err(Error::config(cause).remedy(format!(
            "make it NOT DEFERRABLE: drop the constraint and ALTER TABLE {} ADD PRIMARY KEY (…)",
            table.sql()
        )));
    }
    let missing = key.find(|found| !columns.iter().any(|column| column.name == found.name));
    missing.map_or(Ok(()), |found| {
        let cause = format!("{:?}, which is in the primary key of {written:?}, is taken from nothing", found.name);
        Err(Error::config(cause).remedy("name the field that it is taken from in `columns`"))
    })
}
