//! One of the demo's processes: an instance like any other, told what to do by the demo.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Notify;
use watchkeeper::{Error, Follower, Result, Running, Seams, StreamStatus};
use watchkeeper_drill::{Event, Order, obey};
use watchkeeper_peers::{Settings, TcpPeers};

use super::fault_hooks::FaultHooks;
use super::workspace::{STREAM, Workspace, instance_settings};

/// Where it works, and as whom.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    folder: PathBuf,
    name: String,
}

/// Runs until it is told to stop. Ends with the demo, whatever happens to that.
pub(crate) async fn run(args: Args) -> Result<ExitCode> {
    let served = serve(&args).await;
    if let Err(error) = &served {
        // If nobody listens, there is nobody to tell.
        let _ = Event::Failed { cause: error.to_string() }.emit();
    }
    served.map(|()| ExitCode::SUCCESS)
}

async fn serve(args: &Args) -> Result<()> {
    let (hooks, stop) = (Arc::new(FaultHooks::default()), Arc::new(Notify::new()));
    let (theirs, ordered) = (Arc::clone(&hooks), Arc::clone(&stop));
    let apply = move |order| match order {
        Order::Stop => ordered.notify_one(),
        other => theirs.take(other),
    };
    obey(apply).map_err(|error| Error::internal("no orders can be heard").caused_by(error))?;
    let terminate = signal(SignalKind::terminate());
    let mut terminate = terminate.map_err(|error| Error::internal("no signal can be heard").caused_by(error))?;

    let (place, seams) = (Workspace::new(&args.folder), seams()?);
    let cx = seams.cx();
    let (stores, stream) = (place.stores(&cx).await?, place.stream(&cx, &hooks).await?);
    let mut running = Running::start(seams, stores, instance_settings(&args.name), vec![stream]).await?;
    let leave = async {
        tokio::select! {
            biased;
            () = stop.notified() => {}
            _ = terminate.recv() => {}
        }
    };
    let status = running.status(STREAM).ok_or_else(|| Error::internal("the stream is not there"))?;
    tokio::select! {
        biased;
        () = leave => running.shutdown(),
        () = report(status) => running.shutdown(),
        ended = running.join() => return ended,
    }
    running.join().await
}

/// With peers, so that a death is proved and nobody waits for its lease to run out.
fn seams() -> Result<Seams> {
    let peers = Arc::new(TcpPeers::new(Settings::default())?);
    Ok(Seams { peers, ..Seams::system() })
}

/// Tells where it stands, whenever that changes, as long as anyone listens.
async fn report(mut status: Follower<StreamStatus>) {
    loop {
        let seen = status.see().clone();
        if emit(&seen).is_err() || status.changed().await.is_err() {
            return;
        }
    }
}

fn emit(status: &StreamStatus) -> std::io::Result<()> {
    let event = Event::State {
        stream: status.stream.clone(),
        state: status.state.to_string(),
        epoch: status.epoch.map(|epoch| epoch.0),
        holder: status.holder.clone(),
        error: status.last_error.clone(),
        deadlines_hit: status.deadlines_hit,
    };
    event.emit()
}
