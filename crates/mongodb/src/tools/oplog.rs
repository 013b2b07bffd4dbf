//! `watchkeeper mongodb oplog`: how far the history reaches, and how much of it each stream has left.

use std::time::Duration;

use async_trait::async_trait;
use mongodb::bson::doc;
use serde_json::{Value, json};
use watchkeeper_core::{Argument, Checkpoint, Cx, Options, Report, Result, Room, SourceTime, Takes, Tool, Window};

use super::URL;
use crate::client::Client;
use crate::config::Config;
use crate::source::{Feed, Scope, View, cluster_of};

/// A window below this does not outlast a bad night.
const WINDOW_MIN: Duration = Duration::from_secs(24 * 60 * 60);

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

/// What is known of an oplog that can be read.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Facts {
    oldest: SourceTime,
    newest: SourceTime,
    window: Window,
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
    /// `None` when this user may not read it.
    fn of(window: Window) -> Option<Self> {
        Some(Self { oldest: window.oldest?, newest: window.newest?, window })
    }

    fn length(&self) -> Duration {
        between(self.oldest, self.newest)
    }

    /// Bytes per second since the oldest entry.
    fn average(&self) -> Option<f64> {
        Some(self.window.room?.bytes as f64 / self.length().as_secs_f64().max(1.0))
    }

    fn warnings(&self, readers: &[Reader]) -> Vec<String> {
        let mut warnings = Vec::new();
        let window = self.length();
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
        match self.window.room {
            Some(Room { bytes, bytes_max, .. }) => {
                let percent = bytes.saturating_mul(100) / bytes_max.max(1);
                let (size, max) = (mib(bytes), mib(bytes_max));
                lines.push(format!("size        {size} of {max} ({percent} %; a full one is usual)"));
            }
            None => lines.push("size        not known: this user may not run collStats on local.oplog.rs".to_owned()),
        }
        lines.push(format!("window      {}", shown(self.length())));
        let average = self.average().map(|rate| format!("{} on average, ", kib(rate))).unwrap_or_default();
        let recent = self.window.room.map(|room| format!("{} of late", kib(room.bytes_per_second as f64)));
        lines.push(format!("burn rate   {average}{}", recent.unwrap_or_else(|| "not known".to_owned())));
        lines.push(format!("checkpoint  every {} or more often", every(Window::commit_every(self.length()))));
        for Reader { stream, at } in readers.iter().filter(|reader| reader.at >= self.oldest) {
            let (headroom, behind) = (between(self.oldest, *at), between(*at, self.newest));
            let left = self.window.time_to_loss(*at);
            let left = left.map(|left| format!("; standing still it loses its place in {}", shown(left)));
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
                "seconds_to_loss": self.window.time_to_loss(reader.at).map(|left| left.as_secs()),
            })
        };
        let room = self.window.room;
        json!({
            "readable": true,
            "size_bytes": room.map(|room| room.bytes),
            "max_bytes": room.map(|room| room.bytes_max),
            "usage": room.map(|room| room.bytes as f64 / room.bytes_max.max(1) as f64),
            "window_seconds": self.length().as_secs(),
            "bytes_per_second": { "average": self.average(), "recent": room.map(|room| room.bytes_per_second) },
            "checkpoint_every_seconds": Window::commit_every(self.length()).as_secs_f64(),
            "streams": readers.iter().map(of_reader).collect::<Vec<_>>(),
            "warnings": self.warnings(readers),
        })
    }
}

fn shown(duration: Duration) -> String {
    humantime::format_duration(Duration::from_secs(duration.as_secs())).to_string()
}

/// An interval as it can be written into a file: a short one is not rounded down to nothing.
fn every(interval: Duration) -> String {
    let millis = Duration::from_millis(u64::try_from(interval.as_millis()).unwrap_or(u64::MAX));
    if millis < Duration::from_secs(10) { humantime::format_duration(millis).to_string() } else { shown(interval) }
}

fn mib(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / 1_048_576.0)
}

fn kib(rate: f64) -> String {
    format!("{:.1} KiB/s", rate / 1_024.0)
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
        let Some(facts) = Facts::of(feed.history(cx).await?) else {
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

    fn facts(hours: u64, room: Option<Room>) -> Facts {
        let (oldest, newest) = (SourceTime(HOUR_MS), SourceTime(HOUR_MS * (1 + hours)));
        Facts { oldest, newest, window: Window { oldest: Some(oldest), newest: Some(newest), room } }
    }

    #[test]
    fn an_interval_of_nothing_is_never_advised() {
        let length = |millis| Window::commit_every(Duration::from_millis(millis));
        assert_eq!(
            [0, 5_000, 15_000, 3_600_000].map(|millis| every(length(millis))),
            ["100ms", "500ms", "1s 500ms", "6m"]
        );
    }

    fn reader(hours: u64) -> Reader {
        Reader { stream: "orders".to_owned(), at: SourceTime(HOUR_MS * hours) }
    }

    #[test]
    fn window_and_headroom_are_warned_of_and_usage_is_not() {
        let full = Some(Room { bytes: 1_000, bytes_max: 1_000, ..Room::default() });
        assert!(facts(30, full).warnings(&[reader(31)]).is_empty());
        assert!(facts(23, full).warnings(&[])[0].contains("less than a day"));
        assert!(facts(30, full).warnings(&[reader(10)])[0].contains("more than half of the window: 9h are left"));
        assert!(facts(30, full).warnings(&[reader(0)])[0].contains("has lost its place"));
    }
}
