//! Where to begin when there is no position.

use tokio_postgres::types::Type;
use watchkeeper_core::{Cx, Pedigree, Result, Source, SourceTime, StartAt};

use super::pedigree::{Identity, LogObservation};
use super::position::LogPosition;
use super::schema::{LOSSES_BY_TABLE, SCHEMA};
use super::{ChangeLog, Line, times};

/// Where reading begins.
pub(super) struct Beginning {
    pub(super) identity: Identity,
    pub(super) place: LogPosition,
    /// What a person should know of it.
    pub(super) note: Option<String>,
}

impl ChangeLog {
    /// Everything that is looked at before reading begins; the answer is what a person should know of that. The log is not held back for
    /// whoever only asks.
    pub(super) async fn vetted(&self, cx: &Cx, start: &StartAt, pedigree: Option<&Pedigree>) -> Result<Option<String>> {
        if let (StartAt::After(position), Some(pedigree)) = (start, pedigree) {
            self.verify(cx, position, pedigree).await?;
        }
        let log = self.settled(cx, start).await?;
        let line = Line::Pooled(self.client.get(cx).await?);
        let beginning = log.start(cx, &line, start.clone()).await?;
        line.give_back();
        Ok(beginning.note)
    }

    /// Before everything that is there. What lies before a loss cannot be gone on from, past the loss, as if nothing had
    /// happened; so the newest loss is where a log begins.
    pub(super) async fn oldest(&self, cx: &Cx, observation: &LogObservation) -> Result<LogPosition> {
        let oldest = LogPosition::at(observation.pruned.clone());
        if !self.is_own() {
            return Ok(oldest);
        }
        // By the numbers that are kept with the tables: there may be millions of other rows. Earlier versions of the log had an index instead.
        let has_numbers = self.client.version(cx, SCHEMA).await? >= LOSSES_BY_TABLE;
        let sql = self.client.sql(if has_numbers {
            "SELECT max(l.id) FROM {schema}.log_tables t CROSS JOIN unnest(t.lost) AS lost (id) JOIN {schema}.log l ON l.id = lost.id
                WHERE l.operation = 'lost' AND pg_visible_in_snapshot(l.xid, $1::pg_snapshot)
                    AND ($2::text[] IS NULL OR l.entity = ANY ($2))"
        } else {
            "SELECT max(id) FROM {schema}.log WHERE operation = 'lost' AND pg_visible_in_snapshot(xid, $1::pg_snapshot)
                AND ($2::text[] IS NULL OR entity = ANY ($2))"
        });
        let (now, wanted) = (observation.now.to_string(), self.wanted.as_deref().map(<[String]>::to_vec));
        let values: &[crate::client::Value<'_>] = &[(&now, Type::TEXT), (&wanted, Type::TEXT_ARRAY)];
        let rows = self.client.read(cx, &sql, values).await?;
        let lost: Option<i64> = rows.first().and_then(|row| row.get(0));
        let Some(lost) = lost else { return Ok(oldest) };
        Ok(LogPosition { target: Some(observation.now.clone()), last: lost.unsigned_abs(), ..oldest })
    }

    /// A place after which everything comes that was committed at or after a time, and a note of what comes from before it.
    pub(super) async fn at_time(
        &self,
        cx: &Cx,
        observation: &LogObservation,
        time: SourceTime,
    ) -> Result<(LogPosition, Option<String>)> {
        let place = match times::ended_before(cx, self, observation, time).await? {
            times::Ended::All => LogPosition::at(observation.now.clone()),
            times::Ended::Below(xid) => {
                let oldest = self.oldest(cx, observation).await?;
                LogPosition { read: oldest.read.with_all_below(xid), ..oldest }
            }
            times::Ended::Unknown => self.oldest(cx, observation).await?,
        };
        let note = times::note(cx, self, &place, time).await?;
        Ok((place, note))
    }
}
