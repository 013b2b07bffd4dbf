//! What the user of a stream may do, asked before anything is made: publish tables, make a slot, read what exists.

use watchkeeper_core::{Cx, Error, ErrorKind, Finding, Result, Severity};

use super::publication;
use super::settings::{Choice, Settings, identifier, literal, table_identifier};
use super::wire::{Failure, Wire};
use super::{PreparedConnection, Replication};

/// A table, and what this user may do with it.
#[derive(Debug)]
struct Table {
    /// Schema and table, with a point between.
    name: String,
    is_owned: bool,
    /// Whether names in its schema may be looked up.
    is_reached: bool,
    /// Whether all of its published columns may be selected.
    is_readable: bool,
    /// Whether policies would hide rows of it.
    is_guarded: bool,
}

/// The tables that a stream reads: those that are published, or would be.
async fn tables(wire: &mut Wire, settings: &Settings, is_published: bool) -> Result<Vec<Table>, Failure> {
    let names: Vec<_> = settings.qualified().iter().map(|name| literal(name)).collect();
    let which = match is_published {
        true => {
            format!("SELECT * FROM pg_catalog.pg_publication_tables WHERE pubname = {}", literal(&settings.publication))
        }
        false => format!(
            "SELECT rn.nspname AS schemaname, r.relname AS tablename FROM pg_catalog.pg_class r
            JOIN pg_catalog.pg_namespace rn ON rn.oid = r.relnamespace
            WHERE r.relkind IN ('r', 'p') AND rn.nspname || '.' || r.relname IN ({})",
            names.join(", ")
        ),
    };
    // Columns are told since version 15. Whoever may select each of them need not be allowed to select whatever is added.
    let sql = format!(
        "SELECT t.schemaname || '.' || t.tablename, pg_catalog.pg_has_role(c.relowner, 'USAGE'),
            pg_catalog.has_schema_privilege(n.oid, 'USAGE'),
            (SELECT pg_catalog.bool_and(pg_catalog.has_column_privilege(c.oid, a.attnum, 'SELECT'))
                FROM pg_catalog.pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
                AND a.attgenerated = '' AND coalesce(pg_catalog.to_jsonb(t) -> 'attnames' ? a.attname::text, true)),
            pg_catalog.row_security_active(c.oid)
        FROM ({which}) t
        JOIN pg_catalog.pg_namespace n ON n.nspname = t.schemaname
        JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = t.tablename
        ORDER BY 1"
    );
    let rows = wire.query(&sql).await?;
    let table = |row: Vec<Option<String>>| {
        let is = |at: usize| row.get(at).and_then(Option::as_deref) != Some("f");
        let name = row.first().cloned().flatten().unwrap_or_default();
        Table { name, is_owned: is(1), is_reached: is(2), is_readable: is(3), is_guarded: is(4) }
    };
    Ok(rows.into_iter().map(table).collect())
}

fn error(what: String, remedy: String) -> Finding {
    Finding { severity: Severity::Error, what, remedy: Some(remedy) }
}

/// What keeps this user from making the publication, which is not there.
pub(super) async fn to_publish(wire: &mut Wire, settings: &Settings, user: &str) -> Result<Vec<Finding>, Failure> {
    let sql = "SELECT pg_catalog.current_database(),
        pg_catalog.has_database_privilege(pg_catalog.current_database(), 'CREATE')";
    let rows = wire.query(sql).await?;
    let field = |at: usize| rows.first().and_then(|row| row.get(at)).and_then(Option::as_deref);
    let others = publication::by_an_administrator(settings);
    let mut found = Vec::new();
    if field(1) == Some("f") {
        let what = format!("{user} may not make publication {}, which is not there yet", settings.publication);
        let database = identifier(field(0).unwrap_or_default());
        found.push(error(what, format!("GRANT CREATE ON DATABASE {database} TO {}, {others}", identifier(user))));
    }
    for table in tables(wire, settings, false).await?.iter().filter(|table| !table.is_owned) {
        let what = format!("{user} may not publish {}, which belongs to another role", table.name);
        found.push(error(what, format!("let it own the table, {others}")));
    }
    Ok(found)
}

/// What keeps anybody from making a slot, which is not there.
pub(super) async fn to_hold(wire: &mut Wire, settings: &Settings) -> Result<Option<Finding>, Failure> {
    let sql = "SELECT pg_catalog.current_setting('max_replication_slots') FROM pg_catalog.pg_replication_slots
        HAVING count(*) >= pg_catalog.current_setting('max_replication_slots')::int";
    let rows = wire.query(sql).await?;
    let most = rows.first().and_then(|row| row.first()).and_then(Option::as_deref);
    Ok(most.map(|most| {
        let what = format!("there is no room for slot {}: all {most} slots of the server are taken", settings.slot);
        error(what, "raise max_replication_slots, or drop a slot that nobody reads".to_owned())
    }))
}

impl Replication {
    /// Refuses a stream that is to begin with what exists, where its user may not read that, or not all of it.
    pub(super) async fn require_readable(&self, cx: &Cx) -> Result<()> {
        let PreparedConnection { mut wire, outlook, .. } = self.inspect(cx).await?;
        let listed = tables(&mut wire, &self.0.settings, outlook.has_publication());
        let listed = cx.run(async { listed.await.map_err(|failure| self.to_error(failure)) }).await?;
        let wanted = self.choice();
        self.refuse_unreadable(&wanted, &listed)
    }

    fn refuse_unreadable(&self, wanted: &Choice, listed: &[Table]) -> Result<()> {
        let user = self.0.endpoint.0.user();
        let denied = |cause: String| Error::new(ErrorKind::Denied, cause);
        for table in listed.iter().filter(|table| wanted.has(&table.name)) {
            let (name, role) = (&table.name, identifier(user));
            if !table.is_reached {
                let schema = identifier(name.split('.').next().unwrap_or_default());
                let cause = format!("{user} may not use the schema of {name}, which a snapshot reads");
                return Err(denied(cause).remedy(format!("GRANT USAGE ON SCHEMA {schema} TO {role}")));
            }
            if !table.is_readable {
                let cause = format!("{user} may not read {name}, as a snapshot does");
                return Err(denied(cause).remedy(format!("GRANT SELECT ON {} TO {role}", table_identifier(name)?)));
            }
            if table.is_guarded {
                let cause =
                    format!("policies hide rows of {name} from {user}, so that a snapshot would leave them out");
                return Err(
                    denied(cause).remedy(format!("ALTER ROLE {role} BYPASSRLS, or use a role that sees all rows"))
                );
            }
        }
        Ok(())
    }
}
