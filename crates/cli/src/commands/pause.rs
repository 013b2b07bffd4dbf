//! `pause` and `resume`: what people want of a stream, and waiting until it is so.

use serde::Serialize;
use watchkeeper::core::Report;
use watchkeeper::engine::checkpoint::operator::Move;
use watchkeeper::{Error, Result};

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

/// Lets `name` run again, and waits until someone has its watch.
pub(crate) async fn resume(site: &Site, name: &str, patience: Patience) -> Result<Report> {
    let stream = site.stream(name)?;
    let lifted = lift(site, stream, patience).await?;
    let cx = site.look();
    let controls = site.controls();
    let was_paused = cx.run(controls.read(&cx, name)).await?.paused;
    cx.run(controls.update(&cx, name, |control| {
        control.unpause();
        control.halted_hint = false;
    }))
    .await?;
    let mut lines: Vec<_> =
        lifted.iter().map(|halted| format!("The halt of {name} is lifted; it was: {}", halted.cause)).collect();
    let is_manned = site.is_manned(&cx, name).await?;
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
            format!("{name} may run, but nobody has taken its watch yet; see why with `watchkeeper why {name}`.")
        }
        (None, _) => format!("{name} may run, but nobody is there; start an instance with `watchkeeper run`."),
    });
    let running_on = holder.as_ref().map(|holder| holder.candidate.name.clone());
    let epoch = holder.map(|holder| holder.epoch.0);
    report(lines, &Resumed { stream: name, lifted, was_paused, running_on, epoch })
}

/// Lifts a halt, which only a commit can.
async fn lift(site: &Site, stream: &Stream, patience: Patience) -> Result<Option<watchkeeper::core::Halted>> {
    let checkpoint = site.checkpoint(&site.look(), stream).await?;
    if checkpoint.is_none_or(|checkpoint| checkpoint.halted.is_none()) {
        return Ok(None);
    }
    let done = site.perform_apart(stream, Move::Resume, patience).await?;
    done.remarks.iter().for_each(|remark| tracing::warn!("{remark}"));
    Ok(done.lifted)
}
