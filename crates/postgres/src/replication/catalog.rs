//! The key of a table whose description in the log does not tell it.
//!
//! With REPLICA IDENTITY FULL every column counts, so that the primary key is looked up in the catalog. That is the catalog of
//! now, and the log may be older: a column of the key may have had another name then.

use std::collections::BTreeSet;

use super::wire::{Failure, Wire};

/// A column as it is now.
#[derive(Debug, Clone)]
pub(super) struct Column {
    name: String,
    kind: u32,
    is_key: bool,
}

/// A table as it is now.
#[derive(Debug, Clone)]
pub(super) struct CatalogTable {
    /// Schema and table, with a point between; none if it is not there any more.
    pub(super) name: Option<String>,
    /// Its columns, in their order.
    pub(super) columns: Vec<Column>,
}

/// The table of this number.
pub(super) async fn table(wire: &mut Wire, relation: u32) -> Result<CatalogTable, Failure> {
    let sql = format!(
        "SELECT a.attname, a.atttypid, coalesce(a.attnum = ANY ((i.indkey::int2[])[0:i.indnkeyatts - 1]), false),
            n.nspname || '.' || c.relname
        FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
        JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid
        LEFT JOIN pg_catalog.pg_index i ON i.indrelid = a.attrelid AND i.indisprimary
        WHERE a.attrelid = {relation} AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum"
    );
    let column = |row: Vec<Option<String>>| {
        let text = |at: usize| row.get(at).and_then(Option::as_deref).unwrap_or_default();
        let kind = text(1).parse().map_err(std::io::Error::other)?;
        Ok(Column { name: text(0).to_owned(), kind, is_key: text(2) == "t" })
    };
    let rows = wire.query(&sql).await?;
    let name = rows.first().and_then(|row| row.get(3)?.clone());
    Ok(CatalogTable { name, columns: rows.into_iter().map(column).collect::<Result<_, Failure>>()? })
}

/// Which of the columns of `then`, of which names and types are given, are the key of `now`. `None` when that cannot be found out:
/// the table is gone, or a column of its key was not there then, or cannot be recognised.
pub(super) fn key_of(then: &[(String, u32)], now: &[Column]) -> Option<BTreeSet<usize>> {
    if now.is_empty() {
        return None;
    }
    (0..now.len()).filter(|at| now[*at].is_key).map(|at| place_of(at, then, now)).collect()
}

/// Where a column of now stood then: under its name, or between the same neighbours as the only one of its type whose name is
/// not there any more.
fn place_of(at: usize, then: &[(String, u32)], now: &[Column]) -> Option<usize> {
    let named = |column: &Column| then.iter().position(|(name, _)| *name == column.name);
    if let Some(place) = named(&now[at]) {
        return Some(place);
    }
    let first = now[..at].iter().rev().find_map(named).map_or(0, |place| place + 1);
    let end = now[at + 1..].iter().find_map(named).unwrap_or(then.len());
    let is_gone = |place: &usize| !now.iter().any(|column| column.name == then[*place].0);
    let mut places = (first..end).filter(|place| then[*place].1 == now[at].kind && is_gone(place));
    places.next().filter(|_| places.next().is_none())
}

#[cfg(test)]
mod tests {
    use super::{Column, key_of};

    /// Columns by their names, with the type after a colon and the key in capitals.
    fn now(columns: &str) -> Vec<Column> {
        let column = |text: &str| {
            let (name, kind) = text.split_once(':').expect("a name and a type");
            Column { name: name.to_lowercase(), kind: kind.parse().unwrap(), is_key: name.to_lowercase() != name }
        };
        columns.split_whitespace().map(column).collect()
    }

    fn key(then: &str, columns: &str) -> Option<Vec<String>> {
        let then: Vec<_> = now(then).into_iter().map(|column| (column.name, column.kind)).collect();
        Some(key_of(&then, &now(columns))?.into_iter().map(|place| then[place].0.clone()).collect())
    }

    #[test]
    fn a_key_is_found_under_the_names_of_then() {
        let found = |names: &[&str]| Some(names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>());
        assert_eq!(key("id:1 v:2", "ID:1 v:2"), found(&["id"]));
        assert_eq!(key("id:1 v:2", "NR:1 v:2"), found(&["id"]));
        assert_eq!(key("id:1 v:2", "NR:1 w:2 more:1"), found(&["id"]));
        assert_eq!(key("a:1 id:1 b:1 v:2", "a:1 NR:1 B:1"), found(&["id", "b"]));
        assert_eq!(key("v:2 id:1", "v:2 id:1"), found(&[]), "there is none");
    }

    #[test]
    fn what_may_be_another_column_is_not_taken_for_it() {
        assert_eq!(key("id:1 k:1 v:2", "NR:1 v:2"), None, "one of the two was dropped");
        assert_eq!(key("id:1 v:2", "NR:3 v:2"), None, "it has another type");
        assert_eq!(key("id:1 v:2", "id:1 v:2 NR:1"), None, "it was not there");
        assert_eq!(key("id:1 v:2", ""), None, "the table is gone");
    }
}
