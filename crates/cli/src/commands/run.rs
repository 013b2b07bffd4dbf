//! `run`: the streams of the file, until the process is asked to end.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use watchkeeper::core::Severity;
use watchkeeper::engine::delivery::backoff::Backoff;
use watchkeeper::{Error, ErrorKind, OnHistoryLost, Result, Running, StartAt};
use watchkeeper_peers::TcpPeers;

use super::departed;
use crate::args::Common;
use crate::config::{self, Config};
use crate::signals::Signals;
use crate::site::Site;

/// Between two attempts to open what does not answer.
const AGAIN: Backoff = Backoff { first: Duration::from_millis(500), factor: 2, max: Duration::from_secs(15) };

pub(crate) async fn run(common: &Common) -> Result<ExitCode> {
    let config = config::load(&common.config)?;
    config.refuse_idle()?;
    let mut signals = Signals::take()?.with_output(config.writes_to_stdout());
    let site = tokio::select! {
        biased;
        asked = signals.next() => {
            tracing::info!(signal = asked.name, "ending before anything was opened");
            return Ok(ExitCode::SUCCESS);
        }
        site = patiently(&config) => site?,
    };
    refuse_beyond_repair(&config, &site).await?;
    warn_of_departed(&config, &site).await;
    let mut running = start(&config, site).await?;
    let asked = tokio::select! {
        biased;
        asked = signals.next() => asked,
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

/// The error of a shutdown that could not finish what it had begun.
fn cut_off(unfinished: &[(String, String)]) -> Error {
    let parts: Vec<_> = unfinished.iter().map(|(stream, what)| format!("stream {stream}: {what}")).collect();
    Error::unavailable(format!("the shutdown was not completed: {}", parts.join("; ")))
        .remedy("the next instance delivers what was not committed; raise shutdown_grace if draining takes longer")
}

/// Opens everything, however long something does not answer. What waiting can not mend is an error.
async fn patiently(config: &Config) -> Result<Site> {
    let entropy = watchkeeper::core::Entropy::from_system();
    let mut told = String::new();
    for attempt in 0.. {
        let error = match Site::of(config).await {
            Ok(site) if site.absent.is_empty() => return Ok(site),
            Ok(site) => match site.absent.into_iter().next() {
                Some(absent) => absent.error,
                None => continue,
            },
            Err(error) => error,
        };
        if !matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Unknown) {
            return Err(error);
        }
        // Once per cause: the same line every few seconds says nothing new.
        if told != error.to_string() {
            told = error.to_string();
            tracing::warn!(%error, "not everything can be opened yet; trying again");
        }
        tokio::time::sleep(AGAIN.delay(attempt, &entropy)).await;
    }
    Err(Error::internal("gave up opening"))
}

/// How long it may take to look whether lost history could be repaired.
const LOOK_WITHIN: Duration = Duration::from_secs(10);

/// Refuses streams whose history is to be repaired by a snapshot if it is ever lost, where there can be none: it would be found
/// out only then.
async fn refuse_beyond_repair(config: &Config, site: &Site) -> Result<()> {
    let cx = site.seams.cx();
    for stream in &site.streams {
        if stream.settings.on_history_lost != OnHistoryLost::GoOn(StartAt::Snapshot) {
            continue;
        }
        let cx = cx.within(LOOK_WITHIN);
        // A source that is away just now may still be repaired when it is back.
        let found = cx.run(stream.source.vet(&cx, &StartAt::Snapshot, None)).await.unwrap_or_default();
        let Some(wrong) = found.into_iter().find(|finding| finding.severity == Severity::Error) else { continue };
        // The kind of what was found gives way to that of this error.
        let what = wrong.what.rsplit_once(" [WK-").map_or(wrong.what.as_str(), |(what, _)| what);
        let error = Error::config(format!("on_history_lost = \"snapshot\": {what}"));
        let error = error.remedy(wrong.remedy.unwrap_or_else(|| "choose another policy".to_owned()));
        let described = config.streams.iter().find(|described| described.settings.name == stream.settings.name);
        return Err(match described {
            Some(described) => error.at(&described.origin),
            None => error,
        });
    }
    Ok(())
}

/// Tells of streams that were renamed or removed, before those that are in the file begin.
async fn warn_of_departed(config: &Config, site: &Site) {
    let cx = site.seams.cx().within(LOOK_WITHIN);
    for finding in departed::findings(&cx, config).await {
        if finding.severity >= Severity::Warning {
            tracing::warn!(remedy = finding.remedy.as_deref().unwrap_or_default(), "{}", finding.what);
        }
    }
}

async fn start(config: &Config, mut site: Site) -> Result<Running> {
    if let Some(peers) = &config.group.peers {
        site.seams.peers = Arc::new(TcpPeers::new(peers.clone())?);
    }
    let names: Vec<_> = site.streams.iter().map(|stream| stream.settings.name.clone()).collect();
    let (group, name) = (site.settings.group.clone(), site.settings.name.clone());
    let running = Running::start(site.seams, site.stores, site.settings, site.streams).await;
    // All settings were validated where they are written: what is left is where to listen.
    let running = running.map_err(|error| error.at(&config.group.peers_origin))?;
    let (instance, streams) = (running.id(), names.join(", "));
    tracing::info!(group, name, %instance, streams, "started");
    Ok(running)
}
