//! `pause` and `resume`: what people want of a stream, and waiting until it is so.

use std::time::Duration;

use serde::Serialize;
use watchkeeper::core::{Halted, Holder, Report};
use watchkeeper::engine::checkpoint::history::HistoryEntry;
use watchkeeper::engine::checkpoint::lost;
use watchkeeper::engine::checkpoint::operator::{Move, MoveReport};
use watchkeeper::{Checkpoint, CheckpointStore, Epoch, Error, ErrorKind, Result};

use crate::answer::report;
use crate::args::Patience;
use crate::config::Stream;
use crate::console::until;
use crate::overview::{self, in_words};
use crate::site::Site;
use crate::when::{millis, span};

#[derive(Debug, Serialize)]
struct Paused<'a> {
    stream: &'a str,
    /// Who had the watch and left.
    left: Option<String>,
    took_millis: u64,
}

/// Lets nobody run `name`, and waits until its holder has left.
pub(crate) async fn pause(site: &Site, name: &str, patience: Patience) -> Result<Report> {
    let stream = site.stream(name)?;
    let cx = site.read_context();
    let holder = site.holder(&cx, stream).await?;
    let began = cx.now();
    let controls = site.controls();
    cx.run(controls.update(&cx, name, |control| control.pause())).await?;
    let Some(holder) = holder else {
        let line = format!("{name} is paused; nobody had its watch.");
        return report(vec![line], &Paused { stream: name, left: None, took_millis: 0 });
    };
    let left = async || Ok(site.holder(&site.read_context(), stream).await?.is_none().then_some(()));
    let holder = holder.candidate.name;
    if until(&site.wait(patience), left).await?.is_none() {
        let cause = format!("{name} is to be paused, but {holder} has not left yet");
        return Err(
            Error::unavailable(cause).remedy("it leaves when it has drained; look at it with `watchkeeper status`")
        );
    }
    let took = cx.now().since(began);
    let line = format!("{name} is paused; {holder} left after {}.", span(took));
    report(vec![line], &Paused { stream: name, left: Some(holder), took_millis: millis(took) })
}

#[derive(Debug, Serialize)]
struct Resumed<'a> {
    stream: &'a str,
    /// The halt that was lifted.
    lifted: Option<watchkeeper::core::Halted>,
    was_paused: bool,
    /// Who has the watch now.
    running_on: Option<String>,
    epoch: Option<u64>,
    /// What keeps it from being delivered all the same.
    trouble: Option<String>,
}

/// Lets `name` run again, has instances that stay away from it try it at once, and waits until someone has its watch. A stream that
/// was halted is looked at for a while longer, since what halted it may do so again.
///
/// # Errors
/// `PositionLost` when its halt was lifted for nothing: it halts again as soon as an instance takes it. The kind and the cause of the
/// new halt when it has halted again.
pub(crate) async fn resume(site: &Site, name: &str, patience: Patience) -> Result<Report> {
    let stream = site.stream(name)?;
    let (done, unseen) = match site.checkpoint(&site.read_context(), stream).await {
        Ok(checkpoint) => (lift(site, stream, checkpoint, patience).await?, None),
        // What is paused runs again although nobody knows whether it is halted, too: a halt holds by itself.
        Err(error) if error.kind().is_away() && is_paused(site, name).await? => (None, Some(error.to_string())),
        Err(error) => return Err(error),
    };
    let was_paused = run_again(site, name).await?;
    if let Some(cause) = done.as_ref().and_then(|done| done.halts_again.as_ref()) {
        let newest = lost::newest(&site.read_context(), &site.history(stream)).await;
        return Err(halts_again(name, cause, newest.as_ref()));
    }
    let lifted = done.and_then(|done| done.lifted);
    let mut lines: Vec<_> =
        lifted.iter().map(|halted| format!("The halt of {name} is lifted; it was: {}", halted.cause)).collect();
    let is_manned = site.is_manned(&site.read_context(), name).await?;
    let holder = match is_manned {
        false => None,
        true => resumed(site, stream, lifted.is_some(), patience).await?,
    };
    let trouble = match &holder {
        Some(holder) => trouble(site, name, holder).await?,
        None => None,
    };
    lines.push(match (&holder, lifted.is_some() || was_paused) {
        (Some(holder), true) => format!("{name} runs again: {} has it, epoch {}.", holder.candidate.name, holder.epoch),
        (Some(holder), false) => {
            format!("{name} was not paused: {} has it, epoch {}.", holder.candidate.name, holder.epoch)
        }
        (None, _) if is_manned => {
            format!("{name} may run and is tried at once, but nobody has taken its watch yet; see why with `watchkeeper why {name}`.")
        }
        (None, _) => format!("{name} may run, but nobody is there; start an instance with `watchkeeper run`."),
    });
    lines.extend(trouble.iter().map(|trouble| format!("It does not deliver yet: {trouble}.")));
    lines.extend(unseen.map(|error| {
        format!("Whether it is halted could not be seen ({error}); if it is, `watchkeeper resume {name}` lifts that when its checkpoint can be read again.")
    }));
    let running_on = holder.as_ref().map(|holder| holder.candidate.name.clone());
    let epoch = holder.map(|holder| holder.epoch.0);
    report(lines, &Resumed { stream: name, lifted, was_paused, running_on, epoch, trouble })
}

/// How long a stream that was halted may take to commit, or to halt again, before it is left alone.
const PROVES_WITHIN: Duration = Duration::from_secs(3);

/// Waits until someone has the watch of `stream`, and, if it `was_halted`, until it commits or a few seconds have passed.
async fn resumed(site: &Site, stream: &Stream, was_halted: bool, patience: Patience) -> Result<Option<Holder>> {
    // A sink that keeps the checkpoint and does not answer cannot say whether the stream halted again.
    let store = site.keeper(stream).await?.ok();
    let refuse_halt = async || match &store {
        Some(store) => refuse_halt(site, stream, &**store).await,
        None => Ok(None),
    };
    let taken = async || {
        refuse_halt().await?;
        site.holder(&site.read_context(), stream).await
    };
    let Some(holder) = until(&site.wait(patience), taken).await? else { return Ok(None) };
    if !was_halted {
        return Ok(Some(holder));
    }
    let wait = patience.wait.unwrap_or(PROVES_WITHIN).min(PROVES_WITHIN);
    let has_committed = async || Ok(refuse_halt().await?.filter(|epoch| *epoch >= holder.epoch));
    until(&site.seams.cx().within(wait), has_committed).await?;
    site.holder(&site.read_context(), stream).await
}

/// The epoch of the newest checkpoint of `stream`.
///
/// # Errors
/// Its halt, if it is halted.
async fn refuse_halt(site: &Site, stream: &Stream, store: &dyn CheckpointStore) -> Result<Option<Epoch>> {
    let Some(checkpoint) = site.checkpoint_in(&site.read_context(), store, stream).await? else { return Ok(None) };
    match &checkpoint.halted {
        Some(halted) => Err(halted_again(&stream.settings.name, halted)),
        None => Ok(Some(checkpoint.epoch)),
    }
}

/// The error of a stream that was resumed, and halted again.
fn halted_again(name: &str, halted: &Halted) -> Error {
    let kind = ErrorKind::ALL.iter().find(|kind| kind.code() == halted.code).copied();
    // The halt has a code and a remedy of its own.
    let (cause, rest) = halted.cause.split_once(" [WK-").unwrap_or((&halted.cause, ""));
    let usual = format!("deal with the cause, then `watchkeeper resume {name}` again");
    let remedy = rest.split_once("]; ").map_or(usual.as_str(), |(_, remedy)| remedy);
    Error::new(kind.unwrap_or(ErrorKind::Internal), format!("{name} is not running: it halted again at once: {cause}"))
        .remedy(remedy)
}

/// What keeps `holder` from delivering `name`, as it reports itself.
async fn trouble(site: &Site, name: &str, holder: &Holder) -> Result<Option<String>> {
    let members = site.members(&site.read_context()).await?;
    let listed = members.iter().find(|listed| listed.member.instance == holder.candidate.instance);
    let report = listed.and_then(|listed| overview::report(name, listed));
    let report = report.filter(|report| report.epoch == Some(holder.epoch));
    Ok(report.and_then(|report| report.trouble).map(|trouble| in_words(&trouble)))
}

async fn is_paused(site: &Site, name: &str) -> Result<bool> {
    let cx = site.read_context();
    Ok(cx.run(site.controls().read(&cx, name)).await?.paused)
}

/// Writes that people want `name` to run, at once. The answer is whether it was paused.
async fn run_again(site: &Site, name: &str) -> Result<bool> {
    let (cx, controls) = (site.read_context(), site.controls());
    let was_paused = cx.run(controls.read(&cx, name)).await?.paused;
    cx.run(controls.update(&cx, name, |control| {
        control.unpause();
        control.try_now();
        control.halted_hint = false;
    }))
    .await?;
    Ok(was_paused)
}

/// The error of a halt that is lifted for nothing.
fn halts_again(name: &str, cause: &str, newest: Option<&HistoryEntry>) -> Error {
    // The halt has a code and a remedy of its own.
    let cause = cause.split(" [WK-").next().unwrap_or(cause);
    let cause = format!("{name} is not running: it halts again at once, since its position is lost: {cause}");
    Error::new(ErrorKind::PositionLost, cause).remedy(lost::choose_position(name, newest))
}

/// Lifts a halt, which only a commit can. `None` of a stream that is not halted.
async fn lift(
    site: &Site,
    stream: &Stream,
    checkpoint: Option<Checkpoint>,
    patience: Patience,
) -> Result<Option<MoveReport>> {
    if checkpoint.is_none_or(|checkpoint| checkpoint.halted.is_none()) {
        return Ok(None);
    }
    let done = site.perform_apart(stream, Move::Resume, patience).await?;
    if done.halts_again.is_none() {
        done.remarks.iter().for_each(|remark| tracing::warn!("{remark}"));
    }
    Ok(Some(done))
}
