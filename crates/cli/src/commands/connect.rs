//! Connects one stream of the file, when the engine asks for it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::mpsc;
use watchkeeper::core::Severity;
use watchkeeper::core::options::WRONG_SETTING;
use watchkeeper::engine::connect::Connect;
use watchkeeper::{Cx, Error, OnHistoryLost, Result, StartAt, StreamSettings, StreamSpec};

use crate::config::Stream;
use crate::site::open_stream;

/// A stream as the file describes it.
#[derive(Debug)]
pub(super) struct Described {
    group: String,
    stream: Stream,
    /// Where an error of the file itself is told: it concerns all streams, and no waiting mends it.
    say_wrong: mpsc::Sender<Error>,
    was_tried: AtomicBool,
}

impl Described {
    pub(super) fn new(group: &str, stream: Stream, say_wrong: mpsc::Sender<Error>) -> Self {
        Self { group: group.to_owned(), stream, say_wrong, was_tried: AtomicBool::new(false) }
    }
}

#[async_trait]
impl Connect for Described {
    fn settings(&self) -> &StreamSettings {
        &self.stream.settings
    }

    async fn connect(&self, cx: &Cx) -> Result<StreamSpec> {
        let is_first = !self.was_tried.swap(true, Ordering::Relaxed);
        let opened = open_stream(cx, &self.group, &self.stream).await;
        let spec = opened.inspect_err(|error| {
            // Only at the start: whoever has run for a while is not ended for what others run on.
            if is_first && error.class() == WRONG_SETTING {
                // Another one was told before.
                let _ = self.say_wrong.try_send(again(error));
            }
        })?;
        refuse_beyond_repair(cx, &self.stream, &spec).await?;
        Ok(spec)
    }
}

fn again(error: &Error) -> Error {
    let described = Error::new(error.kind(), error.message()).remedy(error.advice().unwrap_or("correct the file"));
    match error.place() {
        Some(place) => described.at(place),
        None => described,
    }
}

/// How long it may take to look whether lost history could be repaired.
const INSPECT_WITHIN: Duration = Duration::from_secs(10);

/// Refuses a stream whose history is to be repaired by a snapshot if it is ever lost, where there can be none: it would be found out
/// only then.
async fn refuse_beyond_repair(cx: &Cx, described: &Stream, stream: &StreamSpec) -> Result<()> {
    if stream.settings.on_history_lost != OnHistoryLost::GoOn(StartAt::Snapshot) {
        return Ok(());
    }
    let cx = cx.within(INSPECT_WITHIN);
    // A source that is away just now may still be repaired when it is back.
    let found = cx.run(stream.source.preflight(&cx, &StartAt::Snapshot, None)).await.unwrap_or_default();
    let Some(wrong) = found.into_iter().find(|finding| finding.severity == Severity::Error) else { return Ok(()) };
    // The kind of what was found gives way to that of this error.
    let what = wrong.what.rsplit_once(" [WK-").map_or(wrong.what.as_str(), |(what, _)| what);
    let error = Error::config(format!("on_history_lost = \"snapshot\": {what}"));
    Err(error.remedy(wrong.remedy.unwrap_or_else(|| "choose another policy".to_owned())).at(&described.origin))
}
