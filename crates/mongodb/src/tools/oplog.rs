//! `watchkeeper mongodb oplog`: how far the history reaches, and how much of it each stream has left.

use std::time::Duration;

use async_trait::async_trait;
use mongodb::bson::{Document, doc};
use serde_json::{Value, json};
use watchkeeper_core::{Argument, Checkpoint, Cx, ErrorKind, Options, Report, Result, SourceTime, Takes, Tool, Window};

use super::URL;
use crate::client::{Client, number};
use crate::config::Config;
use crate::position::source_time;
use crate::source::{Feed, Scope, View, cluster_of};

/// A window below this does not outlast a bad night.
const WINDOW_MIN: Duration = Duration::from_secs(24 * 60 * 60);

/// How many of the newest entries tell how fast the oplog is written of late.
const RECENT_ENTRIES: i32 = 1_000;

const ARGUMENTS: &[Argument] = &[
    URL,
    Argument {
        name: "store",
        takes: Takes::One,
        help: "Where the checkpoints of the streams are kept, if not in the same database",
    },
];

/// Looks at the oplog.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Oplog;

/// What is known of an oplog.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Facts {
    oldest: SourceTime,
    newest: SourceTime,
    /// Bytes that it has, and may have; `None` when this user may not know.
    size: Option<(u64, u64)>,
    /// Bytes per second that are written of late.
    recent: f64,
    /// For how long entries are kept whatever their size.
    retention: Option<Duration>,
}

/// A stream that reads this oplog.
#[derive(Debug, Clone, PartialEq)]
struct Reader {
    stream: String,
    at: SourceTime,
}

fn between(from: SourceTime, to: SourceTime) -> Duration {
    Duration::from_millis(to.0.saturating_sub(from.0))
}

impl Facts {
    fn window(&self) -> Duration {
        between(self.oldest, self.newest)
    }

    /// Bytes per second since the oldest entry.
    fn average(&self) -> Option<f64> {
        Some(self.size?.0 as f64 / self.window().as_secs_f64().max(1.0))
    }

    /// How long a stream that stood still from now on would keep its place, at the faster of both rates. It has what lies
    /// before its position, and the room that is not used yet.
    fn left(&self, headroom: Duration) -> Option<Duration> {
        let (size, max) = self.size?;
        let before = size as f64 * headroom.as_secs_f64() / self.window().as_secs_f64().max(1.0);
        let rate = self.recent.max(self.average()?).max(1.0);
        let seconds = (before.min(size as f64) + max.saturating_sub(size) as f64) / rate;
        let by_size = Duration::try_from_secs_f64(seconds).ok()?;
        Some(by_size.max(self.retention.unwrap_or_default().saturating_sub(self.window().saturating_sub(headroom))))
    }

    fn warnings(&self, readers: &[Reader]) -> Vec<String> {
        let mut warnings = Vec::new();
        let window = self.window();
        if window < WINDOW_MIN {
            let remedy = "enlarge it, or set storage.oplogMinRetentionHours";
            warnings.push(format!("the oplog reaches back {}, less than a day; {remedy}", shown(window)));
        }
        for Reader { stream, at } in readers {
            let headroom = between(self.oldest, *at);
            if *at < self.oldest {
                let gone = shown(between(*at, self.oldest));
                warnings.push(format!("{stream} has lost its place: the oplog begins {gone} after it; accept the gap"));
            } else if headroom < window / 2 {
                let left = shown(headroom);
                let remedy = "let it catch up, or enlarge the oplog";
                warnings.push(format!("{stream} has used up more than half of the window: {left} are left; {remedy}"));
            }
        }
        warnings
    }

    fn lines(&self, readers: &[Reader]) -> Vec<String> {
        let mut lines = Vec::new();
        match self.size {
            Some((size, max)) => {
                let percent = size.saturating_mul(100) / max.max(1);
                lines.push(format!("size        {} of {} ({percent} %; a full one is usual)", mib(size), mib(max)));
            }
            None => lines.push("size        not known: this user may not run collStats on local.oplog.rs".to_owned()),
        }
        lines.push(format!("window      {}", shown(self.window())));
        let average = self.average().map(|rate| format!("{} on average, ", kib(rate))).unwrap_or_default();
        lines.push(format!("burn rate   {average}{} of late", kib(self.recent)));
        lines.push(format!("checkpoint  every {} or more often", shown(Window::commit_every(self.window()))));
        for Reader { stream, at } in readers.iter().filter(|reader| reader.at >= self.oldest) {
            let (headroom, behind) = (between(self.oldest, *at), between(*at, self.newest));
            let left =
                self.left(headroom).map(|left| format!("; standing still it loses its place in {}", shown(left)));
            let left = left.unwrap_or_default();
            lines.push(format!("{stream}: {} of headroom, {} behind{left}", shown(headroom), shown(behind)));
        }
        lines.extend(self.warnings(readers).into_iter().map(|warning| format!("warning: {warning}")));
        lines
    }

    fn data(&self, readers: &[Reader]) -> Value {
        let of_reader = |reader: &Reader| {
            let headroom = between(self.oldest, reader.at);
            let lost = reader.at < self.oldest;
            json!({
                "stream": reader.stream,
                "lost": lost,
                "headroom_seconds": headroom.as_secs(),
                "behind_seconds": between(reader.at, self.newest).as_secs(),
                "seconds_to_loss": if lost { Some(0) } else { self.left(headroom).map(|left| left.as_secs()) },
            })
        };
        json!({
            "readable": true,
            "size_bytes": self.size.map(|(size, _)| size),
            "max_bytes": self.size.map(|(_, max)| max),
            "usage": self.size.map(|(size, max)| size as f64 / max.max(1) as f64),
            "window_seconds": self.window().as_secs(),
            "bytes_per_second": { "average": self.average(), "recent": self.recent },
            "checkpoint_every_seconds": Window::commit_every(self.window()).as_secs_f64(),
            "streams": readers.iter().map(of_reader).collect::<Vec<_>>(),
            "warnings": self.warnings(readers),
        })
    }
}

fn shown(duration: Duration) -> String {
    humantime::format_duration(Duration::from_secs(duration.as_secs())).to_string()
}

fn mib(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / 1_048_576.0)
}

fn kib(rate: f64) -> String {
    format!("{:.1} KiB/s", rate / 1_024.0)
}

/// `None` for what this user may not know, or this server does not have.
fn permitted(answer: Result<Document>) -> Result<Option<Document>> {
    match answer {
        Ok(found) => Ok(Some(found)),
        Err(error) if matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Unknown) => Err(error),
        Err(_) => Ok(None),
    }
}

/// What can be found out about the oplog; `None` when this user may not read it.
async fn look(cx: &Cx, feed: &Feed, client: &Client) -> Result<Option<Facts>> {
    let time = |entry: Option<Document>| entry.and_then(|entry| entry.get_timestamp("ts").ok()).map(source_time);
    let (oldest, newest) = (time(feed.oldest(cx).await?), time(feed.newest(cx).await?));
    let (Some(oldest), Some(newest)) = (oldest, newest) else { return Ok(None) };
    let stats = permitted(client.ask(cx, "local", doc! { "collStats": "oplog.rs" }).await)?;
    let size = stats.and_then(|stats| Some((number(stats.get("size"))?, number(stats.get("maxSize"))?)));
    let status = permitted(client.admin(cx, doc! { "serverStatus": 1 }).await)?;
    let truncation = status.as_ref().and_then(|status| status.get_document("oplogTruncation").ok());
    let hours = truncation.and_then(|truncation| truncation.get_f64("oplogMinRetentionHours").ok());
    let retention = hours.and_then(|hours| Duration::try_from_secs_f64(hours * 3_600.0).ok());
    Ok(Some(Facts { oldest, newest, size, recent: recent(cx, feed).await?, retention }))
}

/// How many bytes per second the newest entries are.
async fn recent(cx: &Cx, feed: &Feed) -> Result<f64> {
    let sum = doc! {
        "_id": null, "bytes": { "$sum": { "$bsonSize": "$$ROOT" } },
        "first": { "$min": "$ts" }, "last": { "$max": "$ts" },
    };
    let stages = vec![doc! { "$limit": RECENT_ENTRIES }, doc! { "$group": sum }];
    // From the end on.
    let backwards = doc! { "$natural": -1 };
    let ask = doc! { "aggregate": "oplog.rs", "pipeline": stages, "cursor": {}, "hint": backwards };
    let found = feed.first(cx, "local", ask).await?;
    let Some(found) = found else { return Ok(0.0) };
    let at = |field: &str| found.get_timestamp(field).map_or(0, |at| at.time);
    let bytes = number(found.get("bytes")).unwrap_or(0);
    Ok(bytes as f64 / f64::from(at("last").saturating_sub(at("first")).max(1)))
}

/// The streams with a checkpoint in this store that read the cluster of `feed`.
async fn readers(cx: &Cx, store: &Client, feed: &Feed) -> Result<Vec<Reader>> {
    let cluster = feed.cluster(cx).await?;
    let find = doc! { "find": crate::checkpoint::COLLECTION, "filter": {}, "sort": { "_id": 1 } };
    let mut readers = Vec::new();
    for stored in store.rows(cx, find).await? {
        let (Ok(key), Ok(checkpoint)) = (stored.get_str("_id"), stored.get_document("checkpoint")) else { continue };
        // Other sources keep their checkpoints here too, and newer builds may write them otherwise.
        let Ok(checkpoint) = mongodb::bson::deserialize_from_document::<Checkpoint>(checkpoint.clone()) else {
            continue;
        };
        let (Some(position), Some(pedigree)) = (checkpoint.position, checkpoint.pedigree) else { continue };
        if cluster.is_some()
            && cluster_of(&pedigree) == cluster
            && let Some(at) = position.time
        {
            readers.push(Reader { stream: key.to_owned(), at });
        }
    }
    Ok(readers)
}

#[async_trait]
impl Tool for Oplog {
    fn name(&self) -> &'static str {
        "oplog"
    }

    fn about(&self) -> &'static str {
        "Tell how far the history reaches back, and how much of it each stream has left"
    }

    fn arguments(&self) -> &'static [Argument] {
        ARGUMENTS
    }

    async fn run(&self, cx: &Cx, arguments: &mut Options) -> Result<Report> {
        let config = Config::from_options(arguments)?;
        let store = arguments.text("store")?.map(Config::new).transpose().map_err(|error| error.at("--store"))?;
        let client = Client::open(cx, config).await?;
        let feed = Feed::new(client.clone(), View::of(Scope::Cluster));
        let Some(facts) = look(cx, &feed, &client).await? else {
            let what = "this user may not read the oplog, so neither its window nor any headroom is known";
            let remedy = "grant the role read on the database local";
            let data = json!({ "readable": false, "cause": what, "remedy": remedy });
            return Ok(Report { lines: vec![format!("{what}; {remedy}")], data });
        };
        let store = match store {
            Some(config) => Client::open(cx, config).await?,
            None => client,
        };
        let readers = readers(cx, &store, &feed).await?;
        Ok(Report { lines: facts.lines(&readers), data: facts.data(&readers) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR_MS: u64 = 3_600_000;

    fn facts(hours: u64, size: Option<(u64, u64)>) -> Facts {
        let (oldest, newest) = (SourceTime(HOUR_MS), SourceTime(HOUR_MS * (1 + hours)));
        Facts { oldest, newest, size, recent: 0.0, retention: None }
    }

    fn reader(hours: u64) -> Reader {
        Reader { stream: "orders".to_owned(), at: SourceTime(HOUR_MS * hours) }
    }

    #[test]
    fn a_stream_keeps_its_place_as_long_as_its_history_lasts() {
        let full = facts(10, Some((36_000, 36_000)));
        assert_eq!(full.left(Duration::from_secs(5 * 3_600)), Some(Duration::from_secs(5 * 3_600)));
        // Half of the room is still free.
        let half = facts(10, Some((36_000, 72_000)));
        assert_eq!(half.left(Duration::from_secs(5 * 3_600)), Some(Duration::from_secs(15 * 3_600)));
        // Written faster of late, it goes sooner.
        let busy = Facts { recent: 2.0, ..full };
        assert_eq!(busy.left(Duration::from_secs(5 * 3_600)), Some(Duration::from_secs(2 * 3_600 + 1_800)));
        // But not before its time.
        let kept = Facts { retention: Some(Duration::from_secs(48 * 3_600)), ..busy };
        assert_eq!(kept.left(Duration::from_secs(10 * 3_600)), Some(Duration::from_secs(48 * 3_600)));
        assert_eq!(facts(10, None).left(Duration::ZERO), None);
    }

    #[test]
    fn window_and_headroom_are_warned_of_and_usage_is_not() {
        let full = Some((1_000, 1_000));
        assert!(facts(30, full).warnings(&[reader(31)]).is_empty());
        assert!(facts(23, full).warnings(&[])[0].contains("less than a day"));
        assert!(facts(30, full).warnings(&[reader(10)])[0].contains("more than half of the window: 9h are left"));
        assert!(facts(30, full).warnings(&[reader(0)])[0].contains("has lost its place"));
    }
}
