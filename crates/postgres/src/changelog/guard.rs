//! What the log notes about itself: deletions that are not pruning, and which transactions were open when a row was logged.

use tokio_postgres::types::Type;
use watchkeeper_core::{Cx, Finding, Result, Severity};

use super::{ChangeLog, named};
use crate::check::finding;

/// A step of the log's schema.
///
/// * `oldest_open` of a row is the oldest transaction that was open when the row was logged: all transactions before it had ended at the
///   row's time. Rows that were logged before this column was there say nothing. The default is set by a statement of its own: given with
///   the column, it would be evaluated once, now, for all rows that exist.
/// * A deletion from the log that is not pruning counts as pruning: `pruned_through` then holds the transactions of the rows that are gone,
///   so that no reader that has still to read one of them goes on as if nothing had happened. Pruning itself sets it first. Of the
///   transactions up to the newest one of the deleted rows, all that have ended by now count as pruned. A transaction's own rows are no loss:
///   nobody else has seen them.
pub(super) const STEP: &str = r#"
ALTER TABLE {schema}.log ADD COLUMN oldest_open xid8;
ALTER TABLE {schema}.log ALTER COLUMN oldest_open SET DEFAULT pg_snapshot_xmin(pg_current_snapshot());

CREATE FUNCTION {schema}.log_note_deletion(newest xid8, newest_id bigint) RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog AS $body$
DECLARE
    now pg_snapshot := pg_current_snapshot();
    pruned pg_snapshot;
    last numeric := newest::text::numeric;
    top numeric;
    running numeric[];
BEGIN
    SELECT pruned_through INTO pruned FROM {schema}.log_meta FOR UPDATE;
    top := greatest(last + 1, pg_snapshot_xmax(pruned)::text::numeric);
    SELECT array_agg(x ORDER BY x) INTO running FROM (
        SELECT x::text::numeric FROM pg_snapshot_xip(pruned) AS x WHERE x > newest
        UNION SELECT x::text::numeric FROM pg_snapshot_xip(now) AS x WHERE x <= newest
            AND NOT pg_visible_in_snapshot(x, pruned)) AS t (x);
    UPDATE {schema}.log_meta SET pruned_id = greatest(pruned_id, newest_id), pruned_through =
        format('%s:%s:%s', coalesce(running[1], top), top, array_to_string(running, ','))::pg_snapshot;
END $body$;

CREATE FUNCTION {schema}.log_deleted() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog AS $body$
DECLARE
    newest xid8;
BEGIN
    SELECT g.xid INTO newest FROM gone g, {schema}.log_meta m WHERE NOT pg_visible_in_snapshot(g.xid, m.pruned_through)
        AND g.xid <> pg_current_xact_id() ORDER BY g.xid DESC LIMIT 1;
    IF newest IS NOT NULL THEN PERFORM {schema}.log_note_deletion(newest, (SELECT max(id) FROM gone)); END IF;
    RETURN NULL;
END $body$;

CREATE FUNCTION {schema}.log_emptied() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog AS $body$
DECLARE
    newest xid8;
BEGIN
    SELECT l.xid INTO newest FROM {schema}.log l, {schema}.log_meta m WHERE NOT pg_visible_in_snapshot(l.xid, m.pruned_through)
        AND l.xid <> pg_current_xact_id() ORDER BY l.xid DESC LIMIT 1;
    IF newest IS NOT NULL THEN PERFORM {schema}.log_note_deletion(newest, (SELECT max(id) FROM {schema}.log)); END IF;
    RETURN NULL;
END $body$;

CREATE TRIGGER watchkeeper_deleted AFTER DELETE ON {schema}.log REFERENCING OLD TABLE AS gone
    FOR EACH STATEMENT EXECUTE FUNCTION {schema}.log_deleted();
CREATE TRIGGER watchkeeper_emptied BEFORE TRUNCATE ON {schema}.log
    FOR EACH STATEMENT EXECUTE FUNCTION {schema}.log_emptied();
ALTER TABLE {schema}.log ENABLE ALWAYS TRIGGER watchkeeper_deleted;
ALTER TABLE {schema}.log ENABLE ALWAYS TRIGGER watchkeeper_emptied;
"#;

/// Removes the functions of this step; its triggers go with the table.
pub(super) const REMOVE: &str = "DROP FUNCTION IF EXISTS {schema}.log_deleted(), {schema}.log_emptied(),
    {schema}.log_note_deletion(xid8, bigint)";

/// A log whose deletions are not noticed: made by an older version of this program, or with triggers that somebody has disabled.
pub(super) async fn findings(cx: &Cx, log: &ChangeLog) -> Result<Vec<Finding>> {
    let sql = "SELECT count(*) FROM pg_trigger g JOIN pg_class c ON c.oid = g.tgrelid JOIN pg_namespace n ON n.oid = c.relnamespace
        WHERE n.nspname = $1 AND c.relname = 'log' AND g.tgname IN ('watchkeeper_deleted', 'watchkeeper_emptied') AND g.tgenabled = 'A'";
    let rows = log.client.read(cx, sql, &[(&log.client.schema(), Type::TEXT)]).await?;
    if rows.first().is_some_and(|row| row.get::<_, i64>(0) == 2) {
        return Ok(Vec::new());
    }
    let what = "rows that somebody deletes from the log before they are read would be skipped without notice: its own triggers are missing or disabled";
    let install = named::install_command(&log.client, log.first_table());
    let remedy = format!(
        "run `{install}` for a logged table, which brings an older log up to date; or enable them: ALTER TABLE {}.log ENABLE ALWAYS \
         TRIGGER watchkeeper_deleted, ENABLE ALWAYS TRIGGER watchkeeper_emptied",
        log.client.schema()
    );
    Ok(vec![finding(Severity::Warning, what, remedy)])
}
