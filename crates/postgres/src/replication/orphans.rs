//! Slots of streams that are not in the file any more.

use watchkeeper_core::{Cx, Finding, Result, Severity};

use super::Replication;
use super::settings::{literal, own_name};

impl Replication {
    /// Slots of this server that bear the default names of `departed` streams of `group`, unless this stream reads them. The server keeps its
    /// log for them until its disk is full.
    pub(crate) async fn orphaned_slots(&self, cx: &Cx, group: &str, departed: &[String]) -> Result<Vec<Finding>> {
        let by_slot = |stream: &String| (own_name(group, stream), stream.clone());
        let candidates: Vec<_> =
            departed.iter().map(by_slot).filter(|(slot, _)| *slot != self.0.settings.slot).collect();
        if candidates.is_empty() {
            return Ok(Vec::new());
        }
        let names: Vec<_> = candidates.iter().map(|(slot, _)| literal(slot)).collect();
        let sql = format!(
            "SELECT slot_name, coalesce(confirmed_flush_lsn::text, 'its beginning') FROM pg_catalog.pg_replication_slots
            WHERE database = pg_catalog.current_database() AND NOT active AND slot_name IN ({})",
            names.join(", ")
        );
        let mut wire = self.0.endpoint.connect_to_ask(cx).await?;
        let rows = cx.run(async { wire.query(&sql).await.map_err(|failure| self.to_error(failure)) }).await?;
        let found = rows.iter().filter_map(|row| {
            let field = |at: usize| row.get(at).and_then(Option::as_deref).unwrap_or_default();
            let (slot, stream) = candidates.iter().find(|(slot, _)| slot == field(0))?;
            Some(Finding {
                severity: Severity::Warning,
                what: format!(
                    "slot {slot} belongs to stream {stream:?}, which is not in this file: it stands at {}, and the server keeps its log \
                     since then",
                    field(1)
                ),
                remedy: Some(format!(
                    "if the stream was renamed, give it its old name again, so that it goes on there; if it is not needed any more: \
                     SELECT pg_drop_replication_slot('{slot}')"
                )),
            })
        });
        Ok(found.collect())
    }
}
