//! `why`: the last changes of the watch in sentences, and why nobody has it now.

use std::time::Duration;

use serde::Serialize;
use watchkeeper::Result;
use watchkeeper::core::{Reason, Report};
use watchkeeper::engine::group::journal::Takeover;
use watchkeeper::engine::group::report::Trouble;

use super::status::not_delivering;
use crate::answer::report;
use crate::overview::{State, gather};
use crate::site::Site;
use crate::when::{iso, span};

/// A change of the watch.
#[derive(Debug, Serialize)]
struct TakeoverLine {
    at: String,
    #[serde(flatten)]
    takeover: Takeover,
    sentence: String,
}

#[derive(Debug, Serialize)]
struct Explanation {
    stream: String,
    state: State,
    now: String,
    not_delivering_millis: Option<u64>,
    not_delivering_since: Option<String>,
    takeovers: Vec<TakeoverLine>,
}

/// Tells the last `last` changes of the watch of `name`, the oldest first.
pub(crate) async fn why(site: &Site, name: &str, last: usize) -> Result<Report> {
    let mut overview = gather(site, Some(name)).await?;
    let stream = overview.streams.remove(0);
    let cx = site.read_context();
    let journal = site.journal();
    let mut takeovers = cx.run(journal.recent(&cx, name, last)).await?;
    takeovers.reverse();
    // An operator who settled dead letters since has written the checkpoint anew: who halted it is not known then.
    let halt = stream.checkpoint.as_ref().filter(|at| stream.state == State::Halted && at.reason != Reason::Operator);
    let mut now = match (&stream.watch, &stream.cause, halt) {
        (Some(watch), None, _) => format!("Now {} has the watch, epoch {}.", watch.name, watch.epoch),
        (_, Some(cause), Some(at)) => format!("Now it is halted, by {} at {}: {cause}.", at.by, at.committed_at),
        (_, Some(cause), None) => format!("Now it is {}: {cause}.", stream.state),
        (None, None, _) => format!("Now it is {}.", stream.state),
    };
    if let Some(lasting) = not_delivering(&stream) {
        now += &format!(" Delivery: {lasting}{}.", stream.trouble.as_ref().map(tried).unwrap_or_default());
    }
    if let Some(said) = &stream.release_notice {
        now +=
            &format!(" The last to leave said, {} ago: {}.", span(Duration::from_millis(said.age_millis)), said.text);
    }
    let shown =
        |takeover: Takeover| TakeoverLine { at: iso(takeover.at_millis), sentence: takeover.sentence(), takeover };
    let takeovers: Vec<_> = takeovers.into_iter().map(shown).collect();
    let mut lines: Vec<_> = takeovers.iter().map(|shown| shown.sentence.clone()).collect();
    if lines.is_empty() {
        lines.push("Nobody has ever had the watch.".to_owned());
    }
    lines.push(now.clone());
    let (not_delivering_millis, not_delivering_since) = (stream.not_delivering_millis, stream.not_delivering_since);
    let state = stream.state;
    report(
        lines,
        &Explanation { stream: name.to_owned(), state, now, not_delivering_millis, not_delivering_since, takeovers },
    )
}

fn tried(trouble: &Trouble) -> String {
    let attempts = trouble.attempts;
    format!(", tried {}", if attempts == 1 { "once".to_owned() } else { format!("{attempts} times") })
}
