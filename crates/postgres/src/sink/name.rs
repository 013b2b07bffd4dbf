use tokio_postgres::types::Type;
use watchkeeper_core::{Cx, Error, Result, SinkTarget};

use crate::client::{Client, is_race, quoted};
use crate::table_name::TableName;

/// The server cuts longer names off, so that two of them would be one.
const NAME_MAX: usize = 63;

/// The name of a table of a sink: `events`, or `audit.events` for one in a schema of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Table {
    written: String,
    name: TableName,
    quoted: String,
}

/// All tables that Watchkeeper may keep in its schema.
const OWN: [&str; 11] = [
    "meta",
    "leases",
    "checkpoints",
    "ledger",
    "records",
    "logs",
    "log",
    "log_meta",
    "log_tables",
    "log_consumers",
    "log_marks",
];

/// Whether the table $1 lies beside the table by which a schema of Watchkeeper's own is known, in whichever schema that is; or would
/// be made in $2.
const LIES_AMONG_OWN: &str = "SELECT coalesce(
    (SELECT EXISTS (SELECT FROM pg_catalog.pg_class m JOIN pg_catalog.pg_attribute a ON a.attrelid = m.oid
        WHERE m.relnamespace = c.relnamespace AND m.relname = 'meta' AND a.attname = 'value')
        FROM pg_catalog.pg_class c WHERE c.oid = to_regclass($1)),
    pg_catalog.current_schema() = $2, false)";

impl Table {
    /// By its name: `table` or `schema.table`, and either part in double quotes where it has a dot in it.
    ///
    /// # Errors
    /// `Config` when it cannot be one.
    pub fn new(name: &str) -> Result<Self> {
        Self::of(name.to_owned(), TableName::parse(name)?)
    }

    /// One of a schema, by names that have no dots and no quotes in them.
    pub(crate) fn in_schema(schema: &str, name: &str) -> Self {
        let parsed = TableName { schema: Some(schema.to_owned()), table: name.to_owned() };
        Self { written: format!("{schema}.{name}"), quoted: parsed.sql(), name: parsed }
    }

    /// The table in the same schema with this text behind its name.
    ///
    /// # Errors
    /// `Config` when the name is too long.
    pub(crate) fn suffixed(&self, suffix: &str) -> Result<Self> {
        let name = TableName { table: format!("{}{suffix}", self.name.table), ..self.name.clone() };
        Self::of(name.written(), name)
    }

    fn of(written: String, name: TableName) -> Result<Self> {
        let usable = |part: &String| part.len() <= NAME_MAX && !part.contains('\0');
        if !name.schema.iter().chain(std::iter::once(&name.table)).all(usable) {
            let cause = format!("{written:?} cannot be a table of a sink");
            return Err(Error::config(cause)
                .remedy("write \"events\", or \"schema.events\", with at most 63 bytes in each name"));
        }
        Ok(Self { written, quoted: name.sql(), name })
    }

    /// As it was written.
    pub fn written(&self) -> &str {
        &self.written
    }

    /// Its schema, if it was written.
    pub(crate) fn schema(&self) -> Option<&str> {
        self.name.schema.as_deref()
    }

    /// Its name in its schema.
    pub(crate) fn name(&self) -> &str {
        &self.name.table
    }

    /// As it stands in SQL.
    pub(crate) fn sql(&self) -> &str {
        &self.quoted
    }

    /// Whether it is there.
    pub(crate) async fn exists(&self, cx: &Cx, client: &Client) -> Result<bool> {
        let rows = client.read(cx, "SELECT to_regclass($1) IS NOT NULL", &[(&self.quoted, Type::TEXT)]).await?;
        Ok(rows.first().is_some_and(|row| row.get(0)))
    }

    /// Refuses a table that belongs to Watchkeeper itself, whatever the search path makes of its name.
    pub(crate) async fn require_foreign(&self, cx: &Cx, client: &Client) -> Result<()> {
        if self.quoted.starts_with(&format!("{}.", quoted(client.schema()))) {
            let cause = format!("{:?} lies in the schema of Watchkeeper's own tables", self.written);
            return Err(Error::config(cause).remedy("choose another schema"));
        }
        if !OWN.contains(&self.name()) {
            return Ok(());
        }
        let (table, schema) = (self.quoted.clone(), client.schema().to_owned());
        let values = [(&table as _, Type::TEXT), (&schema as _, Type::TEXT)];
        let rows = client.read(cx, LIES_AMONG_OWN, &values).await?;
        if !rows.first().is_some_and(|row| row.get(0)) {
            return Ok(());
        }
        let cause = format!("{:?} is one of Watchkeeper's own tables", self.written);
        Err(Error::config(cause).remedy("choose another name, or another schema"))
    }

    /// Refuses a table of which policies hide rows from this role: those would be neither deleted nor overwritten.
    pub(crate) async fn require_seen(&self, cx: &Cx, client: &Client) -> Result<()> {
        let sql = "SELECT coalesce(row_security_active(to_regclass($1)::oid), false)";
        let rows = client.read(cx, sql, &[(&self.quoted, Type::TEXT)]).await?;
        if !rows.first().is_some_and(|row| row.get(0)) {
            return Ok(());
        }
        let cause = format!("policies of {:?} (row level security) hide rows from this role", self.written);
        Err(Error::config(cause).remedy(crate::error::UNHIDE))
    }

    /// Whether it is there, and can be used. In as few round trips as [`ensure`](Self::ensure) takes for a table that is there.
    pub(crate) async fn is_usable(&self, cx: &Cx, client: &Client) -> Result<bool> {
        self.require_foreign(cx, client).await?;
        if !self.exists(cx, client).await? {
            return Ok(false);
        }
        self.require_seen(cx, client).await.map(|()| true)
    }

    /// The table as the target of a sink, in the database of this identity.
    pub(crate) fn target(&self, database: &str, client: &Client) -> SinkTarget {
        let name = format!("table {} in {}", self.written, client.place());
        SinkTarget { identity: format!("{database}/{}", self.quoted), name }
    }

    /// Makes it where it is missing. Only then is the right to create something asked for.
    pub(crate) async fn ensure(&self, cx: &Cx, client: &Client, columns: &str) -> Result<()> {
        self.require_foreign(cx, client).await?;
        while !self.exists(cx, client).await? {
            let work = client.begin(cx).await?;
            match work.run(cx, &format!("CREATE TABLE {} ({columns})", self.quoted)).await {
                Ok(()) => match work.commit(cx).await {
                    Err(error) if !is_race(&error) => return Err(error),
                    _ => {}
                },
                // Another instance made it just now.
                Err(error) if is_race(&error) => {}
                Err(error) => return Err(error),
            }
        }
        self.require_seen(cx, client).await
    }
}
