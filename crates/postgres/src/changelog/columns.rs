//! Where the parts of a change stand: in a log of our own, or in an outbox that an application fills itself.

use watchkeeper_core::{Options, Result};

use crate::client::quoted;

/// The columns of a table that changes are read from.
///
/// What is not named is not there: without an `operation` every row is an insert, without a `time` changes have none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Columns {
    /// A number from a sequence without a cache, by default `id`.
    pub id: String,
    /// The transaction that wrote the row, of type `xid8`, by default `xid`.
    pub xid: String,
    /// What the change is about: changes of one key of one entity stay in order.
    pub key: String,
    /// What kind of thing it is about.
    pub entity: Option<String>,
    /// `insert`, `update`, `delete`, `truncate`, or `rekey` for an update that changes the key.
    pub operation: Option<String>,
    /// The key before an update that changes it.
    pub old_key: Option<String>,
    /// The row before, as JSON.
    pub before: Option<String>,
    /// The row after, or whatever the event says, as JSON.
    pub after: Option<String>,
    /// The names of the columns that an update changed, as a JSON array.
    pub changed: Option<String>,
    /// When it was, as `timestamptz`.
    pub time: Option<String>,
}

impl Columns {
    /// Those of a log of our own.
    pub(super) fn own() -> Self {
        let named = |name: &str| Some(name.to_owned());
        Self {
            id: "id".to_owned(),
            xid: "xid".to_owned(),
            key: "key".to_owned(),
            entity: named("entity"),
            operation: named("operation"),
            old_key: named("old_key"),
            before: named("before"),
            after: named("after"),
            changed: named("changed"),
            time: named("time"),
        }
    }

    /// Those of an outbox, with the key in this column and nothing else beside `id` and `xid`.
    pub fn of_outbox(key: &str) -> Self {
        let (id, xid, key) = ("id".to_owned(), "xid".to_owned(), key.to_owned());
        let nothing = None;
        Self {
            id,
            xid,
            key,
            entity: nothing.clone(),
            operation: nothing.clone(),
            old_key: nothing.clone(),
            before: nothing.clone(),
            after: nothing.clone(),
            changed: nothing.clone(),
            time: nothing,
        }
    }

    /// Those that someone wrote as a table of settings.
    ///
    /// # Errors
    /// `Config` without a `key`.
    pub fn from_options(options: &mut Options) -> Result<Self> {
        let mut columns = Self::of_outbox(&options.required("key", "order_id")?);
        let mut take = |name: &str| options.text(name);
        if let Some(id) = take("id")? {
            columns.id = id;
        }
        if let Some(xid) = take("xid")? {
            columns.xid = xid;
        }
        columns.entity = take("entity")?;
        columns.operation = take("operation")?;
        columns.old_key = take("old_key")?;
        columns.before = take("before")?;
        columns.after = take("after")?;
        columns.changed = take("changed")?;
        columns.time = take("time")?;
        options.finish()?;
        Ok(columns)
    }

    /// All that are named, with the name of their part.
    pub(super) fn named(&self) -> Vec<(&'static str, &str)> {
        let certain = [("id", &self.id), ("xid", &self.xid), ("key", &self.key)].map(|(part, name)| (part, Some(name)));
        let others = [
            ("entity", self.entity.as_ref()),
            ("operation", self.operation.as_ref()),
            ("old_key", self.old_key.as_ref()),
            ("before", self.before.as_ref()),
            ("after", self.after.as_ref()),
            ("changed", self.changed.as_ref()),
            ("time", self.time.as_ref()),
        ];
        let all = certain.into_iter().chain(others);
        all.filter_map(|(part, name)| Some((part, name?.as_str()))).collect()
    }

    /// What is selected, in the order in which [`Line`](super::read) takes it apart. Of other entities than the wanted ones only the place is told.
    pub(super) fn selected(&self, wanted: Option<&[String]>, raw: bool) -> String {
        let cast = |name: &String| format!("{}{}", quoted(name), if raw { "" } else { "::text" });
        let text = |column: &Option<String>| column.as_ref().map_or_else(|| "NULL::text".to_owned(), cast);
        let entity = text(&self.entity);
        let image = |column: &Option<String>| match (column, wanted) {
            (None, _) => blank(raw).to_owned(),
            (Some(name), Some(wanted)) => {
                let list: Vec<_> = wanted.iter().map(|name| literal(name)).collect();
                format!("CASE WHEN {entity} IN ({}) THEN {} END", list.join(", "), cast(name))
            }
            _ => text(column),
        };
        let time = self
            .time
            .as_ref()
            .map_or_else(|| "NULL::timestamptz".to_owned(), |name| format!("{}::timestamptz", quoted(name)));
        [
            format!("{}::bigint", quoted(&self.id)),
            time,
            entity.clone(),
            text(&self.operation),
            text(&Some(self.key.clone())),
            text(&self.old_key),
            image(&self.before),
            image(&self.after),
            image(&self.changed),
        ]
        .join(", ")
    }
}

/// Nothing, of the type of an image: `raw` are the types of a log of our own, whose bytes are their text.
pub(super) fn blank(raw: bool) -> &'static str {
    if raw { "NULL::json" } else { "NULL::text" }
}

/// A text in SQL.
pub(super) fn literal(text: &str) -> String {
    let escaped = text.replace('\'', "''");
    if escaped.contains('\\') { format!("E'{}'", escaped.replace('\\', "\\\\")) } else { format!("'{escaped}'") }
}
