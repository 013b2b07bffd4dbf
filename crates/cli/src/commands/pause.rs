//! `pause` and `resume`: what people want of a stream, and waiting until it is so.

use serde::Serialize;
use watchkeeper::core::Report;
use watchkeeper::engine::checkpoint::operator::{Move, MoveReport};
use watchkeeper::{Error, ErrorKind, Result};

use crate::answer::report;
use crate::args::Patience;
use crate::config::Stream;
use crate::console::until;
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
    let cx = site.look();
    let holder = site.holder(&cx, stream).await?;
    let began = cx.now();
    let controls = site.controls();
    cx.run(controls.update(&cx, name, |control| control.pause())).await?;
    let Some(holder) = holder else {
        let line = format!("{name} is paused; nobody had its watch.");
        return report(vec![line], &Paused { stream: name, left: None, took_millis: 0 });
    };
    let left = async || Ok(site.holder(&site.look(), stream).await?.is_none().then_some(()));
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
}

/// Lets `name` run again, has instances that stay away from it try it at once, and waits until someone has its watch.
///
/// # Errors
/// `PositionLost` when its halt was lifted for nothing: it halts again as soon as an instance takes it.
pub(crate) async fn resume(site: &Site, name: &str, patience: Patience) -> Result<Report> {
    let stream = site.stream(name)?;
    let done = lift(site, stream, patience).await?;
    let was_paused = run_again(site, name).await?;
    if let Some(cause) = done.as_ref().and_then(|done| done.halts_again.as_ref()) {
        return Err(halts_again(name, cause));
    }
    let lifted = done.and_then(|done| done.lifted);
    let mut lines: Vec<_> =
        lifted.iter().map(|halted| format!("The halt of {name} is lifted; it was: {}", halted.cause)).collect();
    let is_manned = site.is_manned(&site.look(), name).await?;
    let holder = match is_manned {
        false => None,
        true => until(&site.wait(patience), async || site.holder(&site.look(), stream).await).await?,
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
    let running_on = holder.as_ref().map(|holder| holder.candidate.name.clone());
    let epoch = holder.map(|holder| holder.epoch.0);
    report(lines, &Resumed { stream: name, lifted, was_paused, running_on, epoch })
}

/// Writes that people want `name` to run, at once. The answer is whether it was paused.
async fn run_again(site: &Site, name: &str) -> Result<bool> {
    let (cx, controls) = (site.look(), site.controls());
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
fn halts_again(name: &str, cause: &str) -> Error {
    // The halt has a code and a remedy of its own.
    let cause = cause.split(" [WK-").next().unwrap_or(cause);
    let cause = format!("{name} is not running: it halts again at once, since its position is lost: {cause}");
    Error::new(ErrorKind::PositionLost, cause).remedy(choose_position(name))
}

/// How a person decides where a stream goes on that has lost its position.
pub(super) fn choose_position(name: &str) -> String {
    format!(
        "choose where it goes on: `watchkeeper checkpoint set {name} POSITION` (`watchkeeper checkpoint history {name}` lists its last \
         positions), or begin anew with `watchkeeper checkpoint reset {name}`"
    )
}

/// Lifts a halt, which only a commit can. `None` of a stream that is not halted.
async fn lift(site: &Site, stream: &Stream, patience: Patience) -> Result<Option<MoveReport>> {
    let checkpoint = site.checkpoint(&site.look(), stream).await?;
    if checkpoint.is_none_or(|checkpoint| checkpoint.halted.is_none()) {
        return Ok(None);
    }
    let done = site.perform_apart(stream, Move::Resume, patience).await?;
    if done.halts_again.is_none() {
        done.remarks.iter().for_each(|remark| tracing::warn!("{remark}"));
    }
    Ok(Some(done))
}
