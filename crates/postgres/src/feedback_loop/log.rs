//! Of what a change log tells.

use tokio_postgres::types::Type;
use watchkeeper_core::{Cx, Options, Purpose, Result};

use super::Keys;
use crate::ChangeLog;
use crate::changelog::ROW_TRIGGER;
use crate::client::{Client, Value};
use crate::sink::Table;

/// A change log of ours.
#[derive(Debug, Clone)]
pub(super) struct Log {
    schema: String,
}

impl Log {
    /// The log that these settings of a source name and the tables of it that are given out, if it is ours and can be read.
    pub(super) async fn inspect(
        cx: &Cx,
        client: &Client,
        purpose: &Purpose,
        options: &mut Options,
    ) -> Option<(Self, Keys)> {
        let log = ChangeLog::from_options(cx, client.clone(), &purpose.stream, options).await.ok()?;
        let keys = keys(cx, client, log.watched(cx).await?).await.ok()?;
        Some((Self { schema: client.schema().to_owned() }, keys))
    }

    /// The name under which it tells of a table, if it does.
    pub(super) async fn name_of(&self, cx: &Cx, client: &Client, table: &Table) -> Result<Option<String>> {
        // The first argument of the trigger is the table as the log names it: a partition has the name of its whole table.
        let sql = "SELECT convert_from(substring(g.tgargs FROM 1 FOR position(decode('00', 'hex') IN g.tgargs) - 1), getdatabaseencoding())
            FROM pg_trigger g JOIN pg_proc p ON p.oid = g.tgfoid
            JOIN pg_namespace n ON n.oid = p.pronamespace
            WHERE g.tgrelid = to_regclass($1) AND g.tgname = $2 AND n.nspname = $3";
        let name = table.sql();
        let values: &[Value<'_>] = &[(&name, Type::TEXT), (&ROW_TRIGGER, Type::TEXT), (&self.schema, Type::TEXT)];
        let rows = client.read(cx, sql, values).await?;
        Ok(rows.first().map(|row| row.get(0)))
    }
}

/// All that the log of this schema tells of, or these tables of it.
async fn keys(cx: &Cx, client: &Client, wanted: Option<Vec<String>>) -> Result<Keys> {
    let sql = client.sql(
        "SELECT l.entity, array_agg(a.attname::text) FROM {schema}.log_tables l
            JOIN pg_index i ON i.indrelid = l.relation AND i.indisprimary
            JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = ANY ((i.indkey::int2[])[0:i.indnkeyatts - 1])
            WHERE $1::text[] IS NULL OR l.entity = ANY ($1) GROUP BY l.entity",
    );
    let rows = client.read(cx, &sql, &[(&wanted, Type::TEXT_ARRAY)]).await?;
    Ok(rows.iter().map(|row| (row.get(0), row.get::<_, Vec<String>>(1).into_iter().collect())).collect())
}
