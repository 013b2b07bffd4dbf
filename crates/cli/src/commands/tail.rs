//! `tail`: changes as they happen, read beside the stream.
//!
//! It takes no lease and acknowledges nothing, and the source keeps nothing for it: whoever has the watch does not
//! notice.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use watchkeeper::core::{Limits, Moment};
use watchkeeper::{Change, ChangeStream, Cx, Operation, Position, Result, StartAt};

use crate::answer;
use crate::args::{From, Tail};
use crate::config::Stream;
use crate::signals::{Signals, output_closed};
use crate::site::Site;
use crate::when::iso;

/// How much is read at once, and how long a read waits.
const LIMITS: Limits = Limits { rows: 1_000, bytes: 1 << 20, wait: Duration::from_secs(1) };

/// Shows changes until the time is over, enough were seen, or a person interrupts.
pub(crate) async fn tail(site: &Site, args: &Tail, json: bool) -> Result<()> {
    let stream = site.stream(&args.stream)?;
    let mut signals = Signals::take()?;
    let cx = site.read_context();
    let start = start(site, &cx, stream, args.from).await?;
    let source = site.source(stream).await?;
    let mut log = cx.run(source.peek(&cx, start)).await?;
    let mut tally = Tally { json, content: args.content, ..Tally::default() };
    // On standard error, so that what reads the changes sees nothing else.
    eprintln!("watching {}, waiting for changes…", args.stream);
    let cx = site.seams.cx();
    let until = args.lasting.map(|lasting| cx.now() + lasting);
    let ended = follow(&cx, &mut *log, &mut tally, until, args.max, &mut signals).await;
    // What was seen is worth telling however it ended.
    let finished = tally.finish();
    let closing = site.read_context();
    let closed = closing.run(log.close(&closing)).await;
    ended.and(closed)?;
    answer::written(finished)
}

async fn start(site: &Site, cx: &Cx, stream: &Stream, from: From) -> Result<StartAt> {
    Ok(match from {
        From::Now => StartAt::Now,
        From::Oldest => StartAt::Oldest,
        From::Checkpoint => {
            let checkpoint = site.checkpoint(cx, stream).await?;
            let position: Option<Position> = checkpoint.and_then(|checkpoint| checkpoint.position);
            position.map_or_else(|| stream.settings.start.clone(), StartAt::After)
        }
    })
}

async fn follow(
    cx: &Cx,
    log: &mut dyn ChangeStream,
    tally: &mut Tally,
    until: Option<Moment>,
    max: Option<u64>,
    signals: &mut Signals,
) -> Result<()> {
    let mut closed = std::pin::pin!(output_closed());
    while max.is_none_or(|max| tally.total < max) {
        let over = async {
            match until {
                Some(moment) => cx.clock().sleep_until(moment).await,
                None => std::future::pending().await,
            }
        };
        let batch = tokio::select! {
            biased;
            _ = signals.next() => return Ok(()),
            () = over => return Ok(()),
            () = &mut closed => return Ok(()),
            batch = log.next_batch(cx, LIMITS) => Arc::new(batch?),
        };
        for row in (0_u32..).take(batch.len()) {
            if max.is_some_and(|max| tally.total >= max) {
                return Ok(());
            }
            if let Err(error) = tally.show(&Change::new(Arc::clone(&batch), row)) {
                return answer::written(Err(error));
            }
        }
        if let Err(error) = io::stdout().flush() {
            return answer::written(Err(error));
        }
    }
    Ok(())
}

/// What was seen.
#[derive(Debug, Default)]
struct Tally {
    json: bool,
    /// Whether the content of changes is shown.
    content: bool,
    total: u64,
    counts: BTreeMap<Operation, u64>,
}

impl Tally {
    fn show(&mut self, change: &Change) -> io::Result<()> {
        self.total += 1;
        *self.counts.entry(change.operation()).or_default() += 1;
        let (time, operation, namespace) = (iso(change.time().0), change.operation(), change.namespace());
        let key = change.key().map(readable);
        let content = self.content.then(|| content(change));
        let mut out = io::stdout().lock();
        match self.json {
            true => {
                let id = change.id().to_string();
                let mut line =
                    json!({ "time": time, "operation": operation, "namespace": namespace, "key": key, "id": id });
                content.into_iter().for_each(|content| line["content"] = content);
                writeln!(out, "{line}")
            }
            false => {
                let content = content.map(|content| format!("  {content}")).unwrap_or_default();
                let key = key.as_deref().unwrap_or("-");
                writeln!(out, "{time}  {:8}  {namespace}  {key}{content}", operation.as_str())
            }
        }
    }

    /// The total and one count per operation; those that nearly every log has also when there were none.
    fn finish(&mut self) -> io::Result<()> {
        for usual in [Operation::Insert, Operation::Update, Operation::Replace, Operation::Delete] {
            self.counts.entry(usual).or_default();
        }
        let mut out = io::stdout().lock();
        if self.json {
            let counts: BTreeMap<_, _> =
                self.counts.iter().map(|(operation, count)| (operation.as_str(), count)).collect();
            writeln!(out, "{}", json!({ "total": self.total, "operations": counts }))?;
        } else {
            writeln!(out, "total: {}", self.total)?;
            for (operation, count) in &self.counts {
                writeln!(out, "{operation}: {count}")?;
            }
        }
        out.flush()
    }
}

/// The content of a change as JSON, whatever its source; as a text why it cannot be read.
pub(super) fn content(change: &Change) -> Value {
    match change.json() {
        Ok(text) => serde_json::from_str(&text).unwrap_or(Value::String(text)),
        Err(error) => Value::String(error.to_string()),
    }
}

/// A key as people read it: text where it is text, hexadecimal otherwise.
pub(super) fn readable(key: &[u8]) -> String {
    match std::str::from_utf8(key) {
        Ok(text) if !text.chars().any(char::is_control) => text.to_owned(),
        _ => key.iter().map(|byte| format!("{byte:02x}")).collect(),
    }
}
