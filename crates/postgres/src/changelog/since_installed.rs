//! What a table has become since it was installed: it is logged, but no longer as well as it could be.

use tokio_postgres::types::Type;
use watchkeeper_core::{Cx, Finding, Result, Severity};

use super::ChangeLog;
use super::check::again;
use super::schema::{EXACT_VALUES, SCHEMA};
use super::shape::is_cyclic;
use super::triggers::ROW;
use crate::check::finding;

/// What `install` would mend.
pub(super) async fn findings(cx: &Cx, log: &ChangeLog) -> Result<Vec<Finding>> {
    if log.client.version(cx, SCHEMA).await? < EXACT_VALUES {
        return Ok(Vec::new());
    }
    let sql = log.client.sql(&format!(
        "SELECT l.entity, w.what FROM {{schema}}.log_tables l JOIN pg_class c ON c.oid = l.relation
            JOIN pg_trigger r ON r.tgrelid = l.relation AND r.tgname = $1
            LEFT JOIN pg_proc p ON p.proname = 'log_of_' || l.relation AND p.pronamespace = (SELECT f.pronamespace FROM pg_proc f WHERE f.oid = r.tgfoid)
            CROSS JOIN LATERAL (VALUES
                (r.tgenabled = 'R' AND p.prosrc NOT LIKE '%log_exact(%' AND EXISTS (SELECT FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
                        WHERE a.attrelid = l.relation AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated <> 'v'
                            AND (t.typcategory = 'A' AND t.typname NOT IN ('int2vector', 'oidvector')
                                OR 'json'::regtype IN (t.oid, t.typbasetype) OR 'jsonb'::regtype IN (t.oid, t.typbasetype))),
                    'has columns of JSON or arrays since it was installed, of which the JSON null and the bounds of arrays are not logged'),
                (r.tgenabled = 'R' AND {},
                    'has a foreign key since it was installed that leads back to it and acts on its rows: a MERGE would not be logged'),
                (NOT EXISTS (SELECT FROM pg_class i WHERE i.oid = substring(encode(r.tgargs, 'escape') FROM 'key=([0-9]+)')::oid),
                    'has a new index for its key since it was installed (REINDEX CONCURRENTLY?): writers pay more for what is logged than they need to')
                ) AS w (is_so, what)
            WHERE w.is_so AND ($2::text[] IS NULL OR l.entity = ANY ($2)) ORDER BY 1, 2",
        is_cyclic("l.relation"),
    ));
    let wanted = log.wanted.as_deref().map(<[String]>::to_vec);
    let rows = log.client.read(cx, &sql, &[(&ROW, Type::TEXT), (&wanted, Type::TEXT_ARRAY)]).await?;
    let finding = |row: &tokio_postgres::Row| {
        let (entity, what): (String, String) = (row.get(0), row.get(1));
        finding(Severity::Warning, format!("{entity} {what}"), again(&log.client, &entity))
    };
    Ok(rows.iter().map(finding).collect())
}
