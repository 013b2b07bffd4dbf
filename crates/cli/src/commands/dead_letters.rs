//! `dead-letters`: what sinks rejected, to be looked at, delivered again or given up.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use serde_json::Value;
use watchkeeper::core::{LedgerKind, LedgerQuery, LedgerRecord, Payload, Report, Resolution};
use watchkeeper::engine::checkpoint::operator::Move;
use watchkeeper::engine::group::control::{PurgeRequest, ReplayRequest};
use watchkeeper::{Change, Error, Operation, Result};

use super::status::count;
use super::tail::{content, readable};
use crate::answer::{confirm, report};
use crate::args::{DeadLetters, LetterSelection, Patience};
use crate::config::Stream;
use crate::console::until;
use crate::site::Site;
use crate::when::iso;

/// Records read at once.
const PAGE: usize = 500;

/// How long the commit that settles letters may come after the request was struck off: so many intervals of commits, and
/// not less than this.
const COMMITS: (u32, Duration) = (2, Duration::from_secs(1));

/// Runs a command about dead letters; with whether everything was done that was asked for.
pub(crate) async fn run(site: &Site, command: &DeadLetters) -> Result<(Report, bool)> {
    match command {
        DeadLetters::List { which, all, limit, content } => {
            Ok((list(site, which, *all, *limit, *content).await?, true))
        }
        DeadLetters::Replay { which, patience } => replay(site, which, *patience).await,
        DeadLetters::Purge { which, decision } => purge(site, which, decision.yes, decision.patience).await,
    }
}

/// An entry of the ledger. Its content is shown only when it is asked for: it may hold anything.
#[derive(Debug, Serialize)]
struct Letter {
    number: u64,
    kind: LedgerKind,
    sink: String,
    change: String,
    operation: Option<Operation>,
    namespace: Option<String>,
    key: Option<String>,
    time: Option<String>,
    cause: String,
    /// The code of that error; none of what only waits behind another entry.
    code: Option<String>,
    resolution: Option<Resolution>,
    /// The position that the stream had committed before: what was given up comes after it.
    after_position: Option<String>,
    /// The time of that position, if it has one.
    after_time: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    content: Option<Value>,
}

impl Letter {
    fn of(record: LedgerRecord) -> Self {
        let (entry, change) = (record.entry, record.number);
        let kept = entry.change.as_ref();
        Self {
            number: change,
            kind: entry.kind,
            operation: kept.map(|change| change.operation),
            namespace: kept.map(|change| change.namespace.to_string()),
            key: kept.and_then(|change| change.key.as_deref().map(readable)),
            time: kept.map(|change| iso(change.time.0)),
            code: entry.code().map(str::to_owned),
            sink: entry.sink,
            change: entry.change_id,
            cause: entry.cause,
            after_position: entry.before.as_ref().map(ToString::to_string),
            after_time: entry.before.as_ref().and_then(|before| before.time).map(|time| iso(time.0)),
            resolution: record.resolution,
            content: None,
        }
    }

    /// The same with the content of its change, as changes of its source are read.
    fn with_content(record: LedgerRecord, payload: &Arc<dyn Payload>) -> Self {
        let kept = record.entry.change.as_ref();
        let batch = kept.and_then(|change| change.to_batch(Arc::clone(payload)));
        let content = batch.map(|batch| content(&Change::new(Arc::new(batch), 0)));
        Self { content, ..Self::of(record) }
    }

    fn line(&self) -> String {
        let kind = self.kind.as_str().replace('-', " ");
        let what = match (self.operation, &self.namespace, &self.key) {
            (Some(operation), Some(namespace), key) => {
                format!("{operation} of {} in {namespace}", key.as_deref().unwrap_or("-"))
            }
            _ => match (&self.after_position, &self.after_time) {
                (Some(position), Some(time)) => format!("history after {time} (position {position})"),
                (Some(position), None) => format!("history after position {position}"),
                (None, _) => "history".to_owned(),
            },
        };
        let settled = match self.resolution {
            Some(Resolution::Replayed) => ", replayed",
            Some(Resolution::Purged) => ", purged",
            None => "",
        };
        let sink = if self.sink.is_empty() { String::new() } else { format!(" at {}", self.sink) };
        let content = self.content.as_ref().map(|content| format!("\n    {content}")).unwrap_or_default();
        // The ledger does not say when an entry was written.
        let time = self.time.as_ref().map(|time| format!(", changed at {time}")).unwrap_or_default();
        format!("{}  {kind}{settled}: {what}{sink}{time}: {}{content}", self.number, self.cause)
    }
}

#[derive(Debug, Serialize)]
struct Listing<'a> {
    stream: &'a str,
    letters: Vec<Letter>,
    /// Whether there are more than were asked for.
    more: bool,
}

async fn list(site: &Site, which: &LetterSelection, all: bool, limit: usize, content: bool) -> Result<Report> {
    let stream = checked(site, which)?;
    let mut records = entries(site, stream, which, all, limit.saturating_add(1)).await?;
    let more = records.len() > limit;
    records.truncate(limit);
    // Only the source knows how its changes are read.
    let payload = if content { Some(site.source(stream).await?.payload()) } else { None };
    let letter = |record| match &payload {
        Some(payload) => Letter::with_content(record, payload),
        None => Letter::of(record),
    };
    let letters: Vec<_> = records.into_iter().map(letter).collect();
    let mut lines: Vec<_> = letters.iter().map(Letter::line).collect();
    if lines.is_empty() {
        lines.push(format!(
            "{} has no {}.",
            which.stream,
            if all { "entries in its ledger" } else { "open dead letters" }
        ));
    }
    if more {
        lines.push(format!("… and more than {limit}; raise --limit to see them."));
    }
    report(lines, &Listing { stream: &which.stream, letters, more })
}

/// The stream, if it has the sink that is asked for.
fn checked<'a>(site: &'a Site, which: &LetterSelection) -> Result<&'a Stream> {
    let stream = site.stream(&which.stream)?;
    let Some(sink) = &which.sink else { return Ok(stream) };
    if stream.sinks.iter().any(|spec| spec.name == *sink) {
        return Ok(stream);
    }
    let known: Vec<_> = stream.sinks.iter().map(|spec| spec.name.as_str()).collect();
    let cause = format!("stream {:?} has no sink {sink:?}", which.stream);
    Err(Error::config(cause).remedy(format!("known are: {}", known.join(", "))))
}

/// Open letters, or all entries, of those that `which` means.
async fn entries(
    site: &Site,
    stream: &Stream,
    which: &LetterSelection,
    all: bool,
    limit: usize,
) -> Result<Vec<LedgerRecord>> {
    let (store, key) = (site.keeper(stream).await??, site.key(stream));
    let mut found = Vec::new();
    let mut query = LedgerQuery { after: 0, limit: PAGE, open_only: !all };
    while found.len() < limit {
        let cx = site.read_context();
        let page = cx.run(store.ledger(&cx, &key, &query)).await?;
        let Some(last) = page.last() else { break };
        query.after = last.number;
        found.extend(page.into_iter().filter(|record| (all || record.entry.kind.is_letter()) && meant(which, record)));
    }
    found.truncate(limit);
    Ok(found)
}

fn meant(which: &LetterSelection, record: &LedgerRecord) -> bool {
    let sink = which.sink.as_ref().is_none_or(|sink| *sink == record.entry.sink);
    sink && (which.numbers.is_empty() || which.numbers.contains(&record.number))
}

/// The open letters that `which` means.
///
/// # Errors
/// `Config` when a number is not among them.
async fn open(site: &Site, stream: &Stream, which: &LetterSelection) -> Result<Vec<LedgerRecord>> {
    let letters = entries(site, stream, which, false, usize::MAX).await?;
    let missing = |number: &&u64| !letters.iter().any(|record| record.number == **number);
    match which.numbers.iter().find(missing) {
        Some(number) => Err(Error::config(format!("{} has no open dead letter {number}", which.stream))
            .remedy(format!("list them with `watchkeeper dead-letters list {}`", which.stream))),
        None => Ok(letters),
    }
}

#[derive(Debug, Serialize)]
struct Settled<'a> {
    stream: &'a str,
    asked: usize,
    settled: usize,
    /// What is still open of it, with what was said about it.
    left: Vec<Letter>,
}

fn settled(which: &LetterSelection, asked: usize, left: Vec<LedgerRecord>, done: &str) -> Result<(Report, bool)> {
    let is_done = left.is_empty();
    let settled = asked - left.len().min(asked);
    let left: Vec<_> = left.into_iter().map(Letter::of).collect();
    let mut lines = vec![format!("{}: {} {done}.", which.stream, count(settled as u64, "dead letter"))];
    if !left.is_empty() {
        lines.push(format!("{} still open:", if left.len() == 1 { "1 is" } else { "These are" }));
        lines.extend(left.iter().map(Letter::line));
    }
    Ok((report(lines, &Settled { stream: &which.stream, asked, settled, left })?, is_done))
}

async fn replay(site: &Site, which: &LetterSelection, patience: Patience) -> Result<(Report, bool)> {
    let stream = checked(site, which)?;
    let letters = open(site, stream, which).await?;
    if letters.is_empty() {
        return settled(which, 0, letters, "were there to replay");
    }
    let cx = site.read_context();
    if site.holder(&cx, stream).await?.is_none() {
        let cause = format!("nobody runs {}, and only whoever has the watch can deliver", which.stream);
        return Err(Error::unavailable(cause).remedy(format!("see why with `watchkeeper why {}`", which.stream)));
    }
    let wall = site.seams.clock.wall_millis();
    let controls = site.controls();
    let control = controls.update(&cx, &which.stream, |control| {
        let id = control.replay.as_ref().map_or(wall, |request| wall.max(request.id + 1));
        control.replay = Some(ReplayRequest { id, sink: which.sink.clone(), numbers: which.numbers.clone() });
    });
    let id = cx.run(control).await?.replay.map(|request| request.id);
    let left = serve(site, stream, which, &letters, patience, async || {
        let cx = site.read_context();
        let now = cx.run(controls.read(&cx, &which.stream)).await?;
        Ok((now.replay.map(|request| request.id) != id).then_some(()))
    });
    let left = left.await?;
    settled(which, letters.len(), left, "delivered after all")
}

/// Waits until a request is served; the answer is what is still open of `letters`.
async fn serve(
    site: &Site,
    stream: &Stream,
    which: &LetterSelection,
    letters: &[LedgerRecord],
    patience: Patience,
    served: impl AsyncFnMut() -> Result<Option<()>>,
) -> Result<Vec<LedgerRecord>> {
    if until(&site.wait(patience), served).await?.is_none() {
        let cause = format!("the request is made, but whoever runs {} has not served it yet", which.stream);
        return Err(Error::unavailable(cause).remedy("it is served between two batches; list the dead letters later"));
    }
    // What was settled is committed with the next commit, which may come after the request was struck off.
    let numbers: BTreeSet<_> = letters.iter().map(|record| record.number).collect();
    let still_open = async || {
        let mut left = entries(site, stream, which, false, usize::MAX).await?;
        left.retain(|record| numbers.contains(&record.number));
        Ok::<_, Error>(left)
    };
    let cx = site.seams.cx().within((stream.settings.checkpoint.every * COMMITS.0).max(COMMITS.1));
    let all_settled = async || Ok(still_open().await?.is_empty().then_some(()));
    until(&cx, all_settled).await?;
    still_open().await
}

async fn purge(site: &Site, which: &LetterSelection, yes: bool, patience: Patience) -> Result<(Report, bool)> {
    let stream = checked(site, which)?;
    let letters = open(site, stream, which).await?;
    if letters.is_empty() {
        return settled(which, 0, letters, "were there to purge");
    }
    let mut plan: Vec<_> = letters.iter().cloned().map(|record| Letter::of(record).line()).collect();
    plan.push(format!("{} would be given up for good: never delivered.", count(letters.len() as u64, "dead letter")));
    confirm(&plan, yes)?;
    // Exactly those that were shown; what comes later is not meant.
    let numbers: Vec<_> = letters.iter().map(|record| record.number).collect();
    let cx = site.read_context();
    if site.holder(&cx, stream).await?.is_none() {
        let requested = Move::Resolve { numbers, resolution: Resolution::Purged };
        site.perform_apart(stream, requested, patience).await?;
        let left = entries(site, stream, which, false, usize::MAX).await?;
        return settled(which, letters.len(), left, "given up");
    }
    let wall = site.seams.clock.wall_millis();
    let controls = site.controls();
    let control = controls.update(&cx, &which.stream, |control| {
        let id = control.purge.as_ref().map_or(wall, |request| wall.max(request.id + 1));
        control.purge = Some(PurgeRequest { id, sink: which.sink.clone(), numbers: numbers.clone() });
    });
    let id = cx.run(control).await?.purge.map(|request| request.id);
    let left = serve(site, stream, which, &letters, patience, async || {
        let cx = site.read_context();
        let now = cx.run(controls.read(&cx, &which.stream)).await?;
        Ok((now.purge.map(|request| request.id) != id).then_some(()))
    });
    let left = left.await?;
    settled(which, letters.len(), left, "given up")
}
