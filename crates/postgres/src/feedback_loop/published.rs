//! Of what a publication tells, and what of it is given out.

use tokio_postgres::types::Type;
use watchkeeper_core::{Cx, Options, Purpose, Result};

use super::Keys;
use crate::client::{Client, Value};
use crate::replication::Settings;
use crate::sink::Table;

/// The publication of a stream that reads the write-ahead log.
#[derive(Debug, Clone)]
pub(super) struct Published {
    settings: Settings,
    /// The schema of Watchkeeper's own tables, as the source has it.
    own: String,
}

/// Whether the table `c` in the schema `n` is told under its own name. `$1` the publication, `$2` the tables of which one is
/// made if it is not there.
const IS_PUBLISHED: &str = "CASE WHEN EXISTS (SELECT FROM pg_catalog.pg_publication WHERE pubname = $1)
    THEN EXISTS (SELECT FROM pg_catalog.pg_publication_tables p
        WHERE p.pubname = $1 AND p.schemaname = n.nspname AND p.tablename = c.relname)
    ELSE n.nspname || '.' || c.relname = ANY ($2) END";

impl Published {
    /// As the settings of a source say.
    pub(super) fn from_options(client: &Client, purpose: &Purpose, options: &mut Options) -> Result<Self> {
        let settings = Settings::from_options(purpose, options)?;
        Ok(Self { settings, own: client.schema().to_owned() })
    }

    fn gives_out(&self, table: &str) -> bool {
        self.settings.gives_out(table, &self.own)
    }

    /// The tables that are given out, with the columns that the log tells their rows apart by.
    pub(super) async fn keys(&self, cx: &Cx, client: &Client) -> Result<Keys> {
        let sql = format!(
            "SELECT n.nspname || '.' || c.relname, array_agg(a.attname::text)
            FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
            JOIN pg_catalog.pg_index i ON i.indrelid = c.oid
                AND CASE c.relreplident WHEN 'i' THEN i.indisreplident WHEN 'n' THEN false ELSE i.indisprimary END
            JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid
                AND a.attnum = ANY ((i.indkey::int2[])[0:i.indnkeyatts - 1])
            WHERE c.relkind IN ('r', 'p') AND {IS_PUBLISHED} GROUP BY 1"
        );
        let (publication, tables) = (&self.settings.publication, self.settings.qualified());
        let rows = client.read(cx, &sql, &[(publication, Type::TEXT), (&tables, Type::TEXT_ARRAY)]).await?;
        let keys = rows.iter().map(|row| (row.get(0), row.get::<_, Vec<String>>(1).into_iter().collect()));
        Ok(keys.filter(|(table, _): &(String, _)| self.gives_out(table)).collect())
    }

    /// The tables that are given out.
    pub(super) async fn tables(&self, cx: &Cx, client: &Client) -> Result<Vec<String>> {
        let sql = format!(
            "SELECT n.nspname || '.' || c.relname FROM pg_catalog.pg_class c
            JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace WHERE c.relkind IN ('r', 'p') AND {IS_PUBLISHED} ORDER BY 1"
        );
        let (publication, tables) = (&self.settings.publication, self.settings.qualified());
        let rows = client.read(cx, &sql, &[(publication, Type::TEXT), (&tables, Type::TEXT_ARRAY)]).await?;
        Ok(rows.iter().map(|row| row.get(0)).filter(|table: &String| self.gives_out(table)).collect())
    }

    /// The name under which the log tells of a table, if it does and that is given out. One that is not there counts as if it were
    /// made.
    pub(super) async fn name_of(&self, cx: &Cx, client: &Client, table: &Table) -> Result<Option<String>> {
        let names = if table.exists(cx, client).await? {
            self.logged_tables(cx, client, table).await?
        } else {
            self.names_once_made(cx, client, table).await?
        };
        Ok(names.into_iter().find(|name| self.gives_out(name)))
    }

    /// The names under which is told what becomes of a table: a part may be told as its whole, a whole as its parts.
    async fn logged_tables(&self, cx: &Cx, client: &Client, table: &Table) -> Result<Vec<String>> {
        let sql = format!(
            "WITH kin AS (SELECT to_regclass($3)::oid AS oid
                UNION SELECT relid::oid FROM pg_catalog.pg_partition_ancestors(to_regclass($3))
                UNION SELECT relid::oid FROM pg_catalog.pg_partition_tree(to_regclass($3)))
            SELECT n.nspname || '.' || c.relname FROM kin JOIN pg_catalog.pg_class c ON c.oid = kin.oid
            JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace WHERE {IS_PUBLISHED} ORDER BY 1"
        );
        let (publication, tables, name) = (&self.settings.publication, self.settings.qualified(), table.sql());
        let values: &[Value<'_>] = &[(publication, Type::TEXT), (&tables, Type::TEXT_ARRAY), (&name, Type::TEXT)];
        Ok(client.read(cx, &sql, values).await?.iter().map(|row| row.get(0)).collect())
    }

    /// The name under which a table would be told as soon as it is made: publications of all tables, or of all of a schema, take
    /// it in by themselves.
    async fn names_once_made(&self, cx: &Cx, client: &Client, table: &Table) -> Result<Vec<String>> {
        let (schema, name) = (table.schema(), table.name());
        let sql = "SELECT coalesce($2, current_schema()::text), current_setting('server_version_num')::int4,
            coalesce((SELECT puballtables FROM pg_catalog.pg_publication WHERE pubname = $1), false)";
        let publication = &self.settings.publication;
        let rows = client.read(cx, sql, &[(publication, Type::TEXT), (&schema, Type::TEXT)]).await?;
        let Some(row) = rows.first() else { return Ok(Vec::new()) };
        let (Some(schema), version, all): (Option<String>, i32, bool) = (row.get(0), row.get(1), row.get(2)) else {
            return Ok(Vec::new());
        };
        // Schemas can be published since then.
        let is_published = all || (version >= 150_000 && self.takes_in(cx, client, &schema).await?);
        Ok(if is_published { vec![format!("{schema}.{name}")] } else { Vec::new() })
    }

    /// Whether all tables of a schema are published.
    async fn takes_in(&self, cx: &Cx, client: &Client, schema: &str) -> Result<bool> {
        let sql = "SELECT EXISTS (SELECT FROM pg_catalog.pg_publication_namespace s
            JOIN pg_catalog.pg_publication p ON p.oid = s.pnpubid JOIN pg_catalog.pg_namespace n ON n.oid = s.pnnspid
            WHERE p.pubname = $1 AND n.nspname = $2)";
        let rows = client.read(cx, sql, &[(&self.settings.publication, Type::TEXT), (&schema, Type::TEXT)]).await?;
        Ok(rows.first().is_some_and(|row| row.get(0)))
    }
}
