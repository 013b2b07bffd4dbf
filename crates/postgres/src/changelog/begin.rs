//! Where to begin when there is no position.

use tokio_postgres::types::Type;
use watchkeeper_core::{Cx, Pedigree, Result, Source, SourceTime, StartAt};

use super::pedigree::Look;
use super::place::Place;
use super::{ChangeLog, Line};
use crate::client::quoted;

impl ChangeLog {
    /// Everything that is looked at before reading begins. The log is not held back for whoever only asks.
    pub(super) async fn vetted(&self, cx: &Cx, start: &StartAt, pedigree: Option<&Pedigree>) -> Result<()> {
        if let (StartAt::After(position), Some(pedigree)) = (start, pedigree) {
            self.verify(cx, position, pedigree).await?;
        }
        let line = Line::Pooled(self.client.get(cx).await?);
        self.start(cx, &line, start.clone()).await?;
        line.give_back();
        Ok(())
    }

    /// Before everything that is there. What lies before a loss can not be gone on from, past the loss, as if nothing had
    /// happened; so the newest loss is where a log begins.
    pub(super) async fn oldest(&self, cx: &Cx, look: &Look) -> Result<Place> {
        let oldest = Place::at(look.pruned.clone());
        if !self.is_own() {
            return Ok(oldest);
        }
        // Said in full, so that the index of the losses is used: there may be millions of other rows.
        let sql = self.client.sql(
            "SELECT max(id) FROM {schema}.log WHERE operation = 'lost' AND pg_visible_in_snapshot(xid, $1::pg_snapshot)
                AND ($2::text[] IS NULL OR entity = ANY ($2))",
        );
        let (now, wanted) = (look.now.to_string(), self.wanted.as_deref().map(<[String]>::to_vec));
        let values: &[crate::client::Value<'_>] = &[(&now, Type::TEXT), (&wanted, Type::TEXT_ARRAY)];
        let rows = self.client.read(cx, &sql, values).await?;
        let lost: Option<i64> = rows.first().and_then(|row| row.get(0));
        let Some(lost) = lost else { return Ok(oldest) };
        Ok(Place { target: Some(look.now.clone()), last: lost.unsigned_abs(), ..oldest })
    }

    /// Before the first change at or after a time.
    pub(super) async fn first_at(&self, cx: &Cx, look: &Look, time: SourceTime) -> Result<Place> {
        let (script, now) = (self.script(), look.now.to_string());
        let Some(column) = &script.columns.time else { return self.oldest(cx, look).await };
        let (id, xid, column) = (quoted(&script.columns.id), quoted(&script.columns.xid), quoted(column));
        let sql = format!(
            "SELECT {id}::bigint FROM {} WHERE {column} >= to_timestamp($1 / 1000) AND
                pg_visible_in_snapshot({xid}, $2::pg_snapshot) ORDER BY {id} LIMIT 1",
            script.table
        );
        // Exact up to the year 287396.
        #[expect(clippy::cast_precision_loss, reason = "milliseconds of this age of the world are below 2^53")]
        let millis = time.0 as f64;
        let rows = self.client.read(cx, &sql, &[(&millis, Type::FLOAT8), (&now, Type::TEXT)]).await?;
        let Some(first) = rows.first().map(|row| row.get::<_, i64>(0).unsigned_abs()) else {
            return Ok(Place::at(look.now.clone()));
        };
        let oldest = self.oldest(cx, look).await?;
        let last = oldest.last.max(first.saturating_sub(1));
        Ok(Place { target: Some(look.now.clone()), last, ..oldest })
    }
}
