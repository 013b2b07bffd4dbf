//! `run`: the streams of the file, until the process is asked to end.
//!
//! Only the file itself and the group's stores concern all: without them there is nothing to run. What is wrong with the
//! source or the sinks of one stream keeps that stream waiting, and nothing else.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::mpsc;
use watchkeeper::core::Severity;
use watchkeeper::engine::connect::StreamEntry;
use watchkeeper::engine::delivery::backoff::Backoff;
use watchkeeper::{Error, ErrorKind, Result, Running};
use watchkeeper_peers::TcpPeers;

use super::connect::Described;
use super::departed;
use crate::args::Common;
use crate::config::{self, Config};
use crate::logging;
use crate::signals::Signals;
use crate::site::Site;
use crate::when::span;

/// Between two attempts to open the group's stores.
const AGAIN: Backoff = Backoff { first: Duration::from_millis(500), factor: 2, max: Duration::from_secs(15) };

/// How often the same cause is logged.
const REPORT_EVERY: Duration = Duration::from_secs(60);

pub(crate) async fn run(common: &Common) -> Result<ExitCode> {
    let config = config::load(&common.config)?;
    config.refuse_idle()?;
    refuse_sinkless(&config)?;
    logging::name_instance(&config.group.settings.name);
    let mut signals = Signals::take()?.with_output(config.writes_to_stdout());
    let site = tokio::select! {
        biased;
        asked = signals.next() => {
            tracing::info!(signal = asked.name, "ending before anything was opened");
            return Ok(ExitCode::SUCCESS);
        }
        site = open_with_retries(&config) => site?,
    };
    warn_of_departed(&config, &site).await;
    let (say_wrong, mut wrong) = mpsc::channel(1);
    let mut running = start(&config, site, &say_wrong).await?;
    let asked = tokio::select! {
        biased;
        asked = signals.next() => asked,
        Some(error) = wrong.recv() => {
            running.shutdown();
            running.join().await?;
            return Err(error);
        }
        ended = running.join() => return ended.map(|()| ExitCode::SUCCESS),
    };
    tracing::info!(signal = asked.name, "draining and releasing; a second signal ends at once");
    running.shutdown();
    tokio::select! {
        biased;
        asked = signals.next() => {
            tracing::warn!(signal = asked.name, "ended at once; what was not committed will be delivered again");
            std::process::exit(i32::from(asked.code));
        }
        ended = running.join() => ended?,
    }
    let unfinished = running.unfinished();
    if !unfinished.is_empty() {
        return Err(cut_off(&unfinished));
    }
    tracing::info!("released everything");
    Ok(ExitCode::SUCCESS)
}

/// Refuses a stream that has nowhere to deliver to.
fn refuse_sinkless(config: &Config) -> Result<()> {
    match config.streams.iter().find(|stream| stream.sinks.is_empty()) {
        Some(stream) => {
            let error = Error::config(format!("stream {:?} has no sink", stream.settings.name));
            Err(error.remedy("give it at least one").at(&stream.origin))
        }
        None => Ok(()),
    }
}

/// The error of a shutdown that could not finish what it had begun.
fn cut_off(unfinished: &[(String, String)]) -> Error {
    let parts: Vec<_> = unfinished.iter().map(|(stream, what)| format!("stream {stream}: {what}")).collect();
    Error::unavailable(format!("the shutdown was not completed: {}", parts.join("; ")))
        .remedy("the next instance delivers what was not committed; raise shutdown_grace if draining takes longer")
}

/// Opens the group's stores, however long they do not answer. What waiting cannot mend is an error.
async fn open_with_retries(config: &Config) -> Result<Site> {
    let entropy = watchkeeper::core::Entropy::from_system();
    let (began, mut logged) = (Instant::now(), BTreeMap::new());
    for attempt in 0.. {
        let error = match Site::of(config).await {
            Ok(site) => return Ok(site),
            Err(error) => error,
        };
        if !matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Unknown) {
            return Err(error);
        }
        logged.retain(|_, logged: &mut Instant| logged.elapsed() < REPORT_EVERY);
        if let Entry::Vacant(cause) = logged.entry(error.to_string()) {
            cause.insert(Instant::now());
            let waiting_for = (began.elapsed().as_secs() > 0).then(|| span(began.elapsed()));
            tracing::warn!(%error, waiting_for, "the group's store cannot be opened yet; trying again");
        }
        tokio::time::sleep(AGAIN.delay(attempt, &entropy)).await;
    }
    Err(Error::internal("gave up opening"))
}

/// How long it may take to look for streams that are not in the file any more.
const INSPECT_WITHIN: Duration = Duration::from_secs(5);

/// Tells of streams that were renamed or removed, before those that are in the file begin.
async fn warn_of_departed(config: &Config, site: &Site) {
    let cx = site.seams.cx().within(INSPECT_WITHIN);
    for finding in departed::findings(&cx, config).await {
        if finding.severity >= Severity::Warning {
            tracing::warn!(remedy = finding.remedy.as_deref().unwrap_or_default(), "{}", finding.what);
        }
    }
}

async fn start(config: &Config, mut site: Site, say_wrong: &mpsc::Sender<Error>) -> Result<Running> {
    if let Some(peers) = &config.group.peers {
        site.seams.peers = Arc::new(TcpPeers::new(peers.clone())?);
    }
    let names: Vec<_> = site.streams.iter().map(|stream| stream.settings.name.clone()).collect();
    let group = site.settings.group.clone();
    let entry = |stream| StreamEntry::Unconnected(Arc::new(Described::new(&group, stream, say_wrong.clone())));
    let streams = site.streams.into_iter().map(entry).collect();
    let running = Running::start_with(site.seams, site.stores, site.settings, streams).await;
    // All settings were validated where they are written: what is left is where to listen.
    let running = running.map_err(|error| error.at(&config.group.peers_origin))?;
    let (process, streams) = (running.id(), names.join(", "));
    tracing::info!(group, %process, streams, "started");
    Ok(running)
}
