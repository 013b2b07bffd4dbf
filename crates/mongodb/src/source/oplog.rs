//! How far the oplog reaches, and how fast it is written.

use std::time::Duration;

use mongodb::bson::{Document, doc};
use watchkeeper_core::{Cx, ErrorKind, Result, Room, Window};

use super::Feed;
use crate::client::number;
use crate::position::source_time;

/// How many of the newest entries tell how fast the oplog is written of late.
const RECENT_ENTRIES: i32 = 1_000;

/// `None` for what this user may not know, or this server does not have.
fn permitted<T>(answer: Result<T>) -> Result<Option<T>> {
    match answer {
        Ok(found) => Ok(Some(found)),
        Err(error) if matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Unknown) => Err(error),
        Err(_) => Ok(None),
    }
}

impl Feed {
    /// What can be found out about the oplog; without ends when this user may not read it.
    pub(crate) async fn history(&self, cx: &Cx) -> Result<Window> {
        let time = |entry: Option<Document>| entry.and_then(|entry| entry.get_timestamp("ts").ok()).map(source_time);
        let (oldest, newest) = (time(self.oldest(cx).await?), time(self.newest(cx).await?));
        let readable = oldest.is_some() && newest.is_some();
        Ok(Window { oldest, newest, room: if readable { self.room(cx).await? } else { None } })
    }

    /// How much room it has; `None` when this user may not know.
    async fn room(&self, cx: &Cx) -> Result<Option<Room>> {
        let stats = permitted(self.ask(cx, "local", doc! { "collStats": "oplog.rs" }).await)?;
        let sizes = stats.and_then(|stats| Some((number(stats.get("size"))?, number(stats.get("maxSize"))?)));
        let Some((bytes, bytes_max)) = sizes else { return Ok(None) };
        let status = permitted(self.ask(cx, "admin", doc! { "serverStatus": 1 }).await)?;
        let truncation = status.as_ref().and_then(|status| status.get_document("oplogTruncation").ok());
        let hours = truncation.and_then(|truncation| truncation.get_f64("oplogMinRetentionHours").ok());
        let kept = hours.and_then(|hours| Duration::try_from_secs_f64(hours * 3_600.0).ok()).unwrap_or_default();
        // An estimate: the server ends its scan where a small oplog is cut off meanwhile.
        let bytes_per_second = self.recent_rate(cx).await.unwrap_or_else(|error| {
            tracing::debug!(%error, "how fast the oplog grows is not known");
            0
        });
        Ok(Some(Room { bytes, bytes_max, bytes_per_second, kept }))
    }

    /// How many bytes per second the newest entries are.
    async fn recent_rate(&self, cx: &Cx) -> Result<u64> {
        let sum = doc! {
            "_id": null, "bytes": { "$sum": { "$bsonSize": "$$ROOT" } },
            "first": { "$min": "$ts" }, "last": { "$max": "$ts" },
        };
        let stages = vec![doc! { "$limit": RECENT_ENTRIES }, doc! { "$group": sum }];
        // From the end on.
        let backwards = doc! { "$natural": -1 };
        let ask = doc! { "aggregate": "oplog.rs", "pipeline": stages, "cursor": {}, "hint": backwards };
        let Some(found) = self.first(cx, "local", ask).await? else { return Ok(0) };
        let at = |field: &str| found.get_timestamp(field).map_or(0, |at| at.time);
        let seconds = at("last").saturating_sub(at("first")).max(1);
        Ok(number(found.get("bytes")).unwrap_or(0) / u64::from(seconds))
    }
}
