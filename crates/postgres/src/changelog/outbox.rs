//! What an application promises of its outbox: numbers that tell the order of changes, and a transaction in every row.

use tokio_postgres::types::Type;
use watchkeeper_core::source::Severity;
use watchkeeper_core::{Cx, Error, ErrorKind, Finding, Result};

use super::columns::Columns;
use super::{ChangeLog, Table};
use crate::check::finding;
use crate::client::{Client, Value, quoted};

/// The sequences that number the column `$2` of the table `$1`, as `s`: the one that the column owns, or that its default takes numbers
/// from. A default that names it by a text is not known to depend on it.
const NUMBERED_BY: &str = r"pg_sequence s WHERE s.seqrelid = pg_get_serial_sequence($1, $2)::regclass
    OR s.seqrelid IN (SELECT d.refobjid FROM pg_attrdef f JOIN pg_attribute a ON a.attrelid = f.adrelid AND a.attnum = f.adnum
        JOIN pg_depend d ON d.classid = 'pg_attrdef'::regclass AND d.objid = f.oid AND d.refclassid = 'pg_class'::regclass
        WHERE f.adrelid = to_regclass($1) AND a.attname = $2)
    OR s.seqrelid IN (SELECT to_regclass(substring(pg_get_expr(f.adbin, f.adrelid) FROM 'nextval\(+''([^'']+)'''))
        FROM pg_attrdef f JOIN pg_attribute a ON a.attrelid = f.adrelid AND a.attnum = f.adnum
        WHERE f.adrelid = to_regclass($1) AND a.attname = $2)";

/// What a look at an outbox finds.
pub(super) async fn findings(cx: &Cx, client: &Client, name: &str, columns: &Columns) -> Result<Vec<Finding>> {
    let mut found = Vec::new();
    found.extend(without_index(cx, client, name, &columns.xid).await?);
    found.extend(without_transactions(cx, client, name, columns).await?);
    match require_order(cx, client, name, &columns.id).await {
        Err(error) if error.kind() == ErrorKind::Config => {
            found.push(finding(Severity::Error, error.message(), error.advice().unwrap_or_default()));
        }
        answer => answer?,
    }
    let sql = format!("SELECT FROM {NUMBERED_BY}");
    if client.read(cx, &sql, &[(&name, Type::TEXT), (&columns.id, Type::TEXT)]).await?.is_empty() {
        let what = format!("no sequence is known that numbers {:?} of the outbox {name}", columns.id);
        let remedy = "a later change needs a higher number than an earlier one of the same key: number rows from a sequence with CACHE 1";
        found.push(finding(Severity::Note, what, remedy));
    }
    Ok(found)
}

async fn without_index(cx: &Cx, client: &Client, name: &str, xid: &str) -> Result<Option<Finding>> {
    let sql = "SELECT FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[0]
        WHERE i.indrelid = to_regclass($1) AND a.attname = $2";
    if !client.read(cx, sql, &[(&name, Type::TEXT), (&xid, Type::TEXT)]).await?.is_empty() {
        return Ok(None);
    }
    let what = format!("the outbox {name} has no index on {xid:?}: each look for changes reads all of it");
    Ok(Some(finding(Severity::Warning, what, format!("CREATE INDEX ON {name} ({})", quoted(xid)))))
}

/// Rows that lack the transaction by which they are read, or may lack it.
async fn without_transactions(cx: &Cx, client: &Client, name: &str, columns: &Columns) -> Result<Option<Finding>> {
    let unreachable = client.read(cx, &format!("SELECT {}", first_unreachable(name, columns)), &[]).await?;
    if let Some(row) = unreachable.first().and_then(|row| row.get::<_, Option<String>>(0)) {
        return Ok(Some(finding(Severity::Error, missing(name, columns, &row), repair(name, columns))));
    }
    let sql = "SELECT FROM pg_attribute WHERE attrelid = to_regclass($1) AND attname = $2 AND NOT attnotnull";
    if client.read(cx, sql, &[(&name, Type::TEXT), (&columns.xid, Type::TEXT)]).await?.is_empty() {
        return Ok(None);
    }
    let xid = quoted(&columns.xid);
    let what = format!("{xid} of the outbox {name} may be NULL: the stream halts at a row without a transaction");
    let remedy = format!(
        "ALTER TABLE {name} ALTER COLUMN {xid} SET DEFAULT pg_current_xact_id(), ALTER COLUMN {xid} SET NOT NULL"
    );
    Ok(Some(finding(Severity::Warning, what, remedy)))
}

/// The first row that belongs to no window, since it says no transaction: a query in parentheses, of a text.
///
/// The smallest number itself would be looked for along all numbers, through rows that all say a transaction.
pub(super) fn first_unreachable(name: &str, columns: &Columns) -> String {
    let (id, xid) = (quoted(&columns.id), quoted(&columns.xid));
    format!("(SELECT min({id}::bigint + 0)::text FROM {name} WHERE {xid} IS NULL)")
}

fn missing(name: &str, columns: &Columns, row: &str) -> String {
    format!("row {row} of the outbox {name} has no {}, and so would never be delivered", quoted(&columns.xid))
}

fn repair(name: &str, columns: &Columns) -> String {
    let xid = quoted(&columns.xid);
    format!(
        "UPDATE {name} SET {xid} = pg_current_xact_id() WHERE {xid} IS NULL, then ALTER TABLE {name} ALTER COLUMN {xid} \
         SET DEFAULT pg_current_xact_id(), ALTER COLUMN {xid} SET NOT NULL, and resume the stream"
    )
}

/// That a new window begins with rows that no window holds. Nothing of it is given out: the remedy makes these rows changes of a window that
/// ends later, so that newer changes of their keys would come before them.
pub(super) fn without_transaction(log: &ChangeLog, row: &str) -> Option<Error> {
    let Table::Outbox { name, columns, .. } = &log.table else { return None };
    Some(Error::corrupt(missing(name, columns, row)).remedy(repair(name, columns)))
}

/// Refuses an outbox whose numbers do not tell the order of changes.
pub(super) async fn require_order(cx: &Cx, client: &Client, table: &str, id: &str) -> Result<()> {
    let sql = format!("SELECT s.seqrelid::regclass::text, s.seqcache > 1 FROM {NUMBERED_BY}");
    let rows = client.read(cx, &sql, &[(&table, Type::TEXT), (&id, Type::TEXT)]).await?;
    let Some(row) = rows.iter().find(|row| row.get(1)) else { return Ok(()) };
    let cause =
        format!("sessions keep numbers of the outbox {table} in stock, so that a later change may get a lower one");
    Err(Error::config(cause).remedy(format!("ALTER SEQUENCE {} CACHE 1", row.get::<_, String>(0))))
}

/// That the numbers of an outbox began anew since the change `highest` was read: they are versions, and those of new changes are lower.
pub(super) async fn restarted(cx: &Cx, log: &ChangeLog, highest: u64) -> Result<Option<Finding>> {
    let Table::Outbox { name, columns, .. } = &log.table else { return Ok(None) };
    let sql = format!(
        "SELECT s.seqrelid::regclass::text,
            CASE WHEN has_sequence_privilege(s.seqrelid, 'SELECT, USAGE') THEN pg_sequence_last_value(s.seqrelid) END FROM {NUMBERED_BY}"
    );
    let values: &[Value<'_>] = &[(&&**name, Type::TEXT), (&columns.id, Type::TEXT)];
    let rows = log.client.read(cx, &sql, values).await?;
    let Some(row) = rows.first() else { return Ok(None) };
    let Some(last) = row.get::<_, Option<i64>>(1).filter(|last| last.unsigned_abs() < highest) else { return Ok(None) };
    let what = format!(
        "change {highest} of the outbox {name} was read, and its numbers are at {last}: they began anew, so that targets which keep the newest version of each key take what is new for old"
    );
    let remedy = format!("let them go on: SELECT setval('{}', {highest})", row.get::<_, String>(0));
    Ok(Some(finding(Severity::Warning, what, remedy)))
}
