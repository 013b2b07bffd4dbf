//! `handoff`: the watch goes to another instance, in order.

use serde::Serialize;
use watchkeeper::core::{Holder, Moment, Report};
use watchkeeper::engine::group::registry::Listed;
use watchkeeper::{Epoch, Error, Result};

use crate::answer::report;
use crate::args::Patience;
use crate::config::Stream;
use crate::console::until;
use crate::site::Site;
use crate::when::millis;

/// How often the watch is moved on when another one than the one that was named took it.
const ATTEMPTS: usize = 3;

#[derive(Debug, Serialize)]
struct Handoff<'a> {
    stream: &'a str,
    from: String,
    to: String,
    epoch: u64,
    /// From the request to the new holder, as seen from here.
    took_millis: u64,
    /// How long nobody had the watch, as the journal has it.
    vacant_millis: Option<u64>,
}

/// Hands the watch of `name` over: to the instance `to`, or to any other one.
pub(crate) async fn handoff(site: &Site, name: &str, to: Option<&str>, patience: Patience) -> Result<Report> {
    let stream = site.stream(name)?;
    let cx = site.read_context();
    let able = site.able(&cx, name).await?;
    let Some(holder) = site.holder(&cx, stream).await? else {
        return Err(Error::unavailable(format!("nobody has the watch of {name}, so there is nothing to hand over"))
            .remedy(format!("see why with `watchkeeper why {name}`")));
    };
    if let Some(to) = to.filter(|to| *to == holder.candidate.name) {
        return report(
            vec![format!("{to} has the watch of {name} already, epoch {}.", holder.epoch)],
            &already(name, &holder),
        );
    }
    check(name, to, &holder, &able)?;
    let began = cx.now();
    let meant = |next: &Holder| match to {
        Some(to) => next.candidate.name == to,
        None => next.candidate.instance != holder.candidate.instance,
    };
    let handed = prefer(site, stream, to, holder.epoch, patience, meant).await?;
    report_handoff(site, name, &holder, to, handed, began).await
}

fn already<'a>(stream: &'a str, holder: &Holder) -> Handoff<'a> {
    let name = holder.candidate.name.clone();
    Handoff { stream, from: name.clone(), to: name, epoch: holder.epoch.0, took_millis: 0, vacant_millis: None }
}

/// Refuses what cannot work, before the holder is asked to leave for nothing.
fn check(name: &str, to: Option<&str>, holder: &Holder, able: &[Listed]) -> Result<()> {
    let others: Vec<_> = able.iter().filter(|listed| listed.member.instance != holder.candidate.instance).collect();
    if others.is_empty() {
        let cause = format!("nobody but {} is there to run {name}", holder.candidate.name);
        return Err(Error::unavailable(cause).remedy("start another instance first"));
    }
    let Some(to) = to else { return Ok(()) };
    if others.iter().any(|listed| listed.member.name == to) {
        return Ok(());
    }
    let known: Vec<_> = others.iter().map(|listed| listed.member.name.as_str()).collect();
    Err(Error::config(format!("no instance {to:?} is there to run {name}"))
        .remedy(format!("known are: {}", known.join(", "))))
}

/// Asks whoever holds `epoch` to leave, and waits for the next one.
async fn request_release(site: &Site, stream: &Stream, epoch: Epoch, patience: Patience) -> Result<Option<Holder>> {
    let cx = site.read_context();
    let controls = site.controls();
    let ask =
        controls.update(&cx, &stream.settings.name, |control| control.hand_over = control.hand_over.max(Some(epoch)));
    cx.run(ask).await?;
    let newer = async || Ok(site.holder(&site.read_context(), stream).await?.filter(|holder| holder.epoch > epoch));
    until(&site.wait(patience), newer).await
}

/// As [`request_release`], until the next one is one that was `meant`. A standby that has not heard of a preference may be faster,
/// and one that has just handed the stream over itself lets others go first; whoever took it is asked to leave in turn.
async fn hand_over_to(
    site: &Site,
    stream: &Stream,
    mut epoch: Epoch,
    patience: Patience,
    attempts: usize,
    meant: impl Fn(&Holder) -> bool,
) -> Result<Option<Holder>> {
    let mut last = None;
    for _ in 0..attempts {
        last = request_release(site, stream, epoch, patience).await?;
        match &last {
            Some(holder) if !meant(holder) => epoch = holder.epoch,
            _ => break,
        }
    }
    Ok(last)
}

/// As [`hand_over_to`], with this preference while it lasts: without one, also the usual one does not count.
async fn prefer(
    site: &Site,
    stream: &Stream,
    to: Option<&str>,
    epoch: Epoch,
    patience: Patience,
    meant: impl Fn(&Holder) -> bool,
) -> Result<Option<Holder>> {
    let (cx, controls, name) = (site.read_context(), site.controls(), &stream.settings.name);
    // Whoever names nobody asks for one hand-over, whatever comes of it.
    let attempts = if to.is_some() { ATTEMPTS } else { 1 };
    let usual = cx.run(controls.read(&cx, name)).await?.preferred;
    cx.run(controls.update(&cx, name, |control| control.preferred = to.map(str::to_owned))).await?;
    let handed = hand_over_to(site, stream, epoch, patience, attempts, meant).await;
    let cx = site.read_context();
    let restore = controls.update(&cx, name, |control| {
        if control.preferred.as_deref() == to {
            control.preferred.clone_from(&usual);
        }
    });
    cx.run(restore).await?;
    handed
}

async fn report_handoff(
    site: &Site,
    name: &str,
    from: &Holder,
    wished: Option<&str>,
    handed: Option<Holder>,
    began: Moment,
) -> Result<Report> {
    let Some(holder) = handed else {
        let cause = format!("{} was asked to leave {name}, but nobody else has it yet", from.candidate.name);
        return Err(Error::unavailable(cause).remedy(format!("see why with `watchkeeper why {name}`")));
    };
    let to = &holder.candidate.name;
    if let Some(wished) = wished.filter(|wished| wished != to) {
        let cause = format!("{to} took the watch of {name}, epoch {}, and not {wished}", holder.epoch);
        let remedy = format!("look whether {wished} can run it, in its log, and try again");
        return Err(Error::unavailable(cause).remedy(remedy));
    }
    if holder.candidate.instance == from.candidate.instance {
        let cause = format!("{to} left {name} and took its watch again, epoch {}: nobody else did", holder.epoch);
        return Err(
            Error::unavailable(cause).remedy("look whether the others can run it, in their logs, and try again")
        );
    }
    let took = millis(site.seams.clock.now().since(began));
    let vacant_millis = vacancy(site, name, holder.epoch).await?;
    let vacant = vacant_millis.map(|vacant| format!("; nobody had it for {vacant} ms")).unwrap_or_default();
    let (from, to) = (from.candidate.name.clone(), to.clone());
    let line = format!("{to} relieved {from} after {took} ms, epoch {}{vacant}.", holder.epoch);
    let handed = Handoff { stream: name, from, to, epoch: holder.epoch.0, took_millis: took, vacant_millis };
    report(vec![line], &handed)
}

/// How long nobody had the watch before `epoch`. The journal is written beside the work, so it may take a moment.
async fn vacancy(site: &Site, name: &str, epoch: Epoch) -> Result<Option<u64>> {
    let journal = site.journal();
    let cx = site.seams.cx().within(std::time::Duration::from_secs(1));
    until(&cx, async || {
        let cx = site.read_context();
        let recent = cx.run(journal.recent(&cx, name, 1)).await?;
        Ok(recent.into_iter().find(|takeover| takeover.epoch == epoch).map(|takeover| takeover.vacant_millis))
    })
    .await
}
