//! The demo: three processes of this program on an embedded database, faults in turn, and a verdict.
//!
//! It needs nothing but this program. What it shows is counted from what the sink really received.

mod event;
mod fault_hooks;
mod faults;
mod instance;
mod report;
mod run;
mod script;
mod show;
mod sink;
mod state;
mod target;
mod workspace;
mod writer;

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use tokio::runtime::Runtime;
use tokio::signal::unix::{SignalKind, signal};
use watchkeeper::engine::group::control::Controls;
use watchkeeper::{Error, ErrorKind, Result, Seams};
use watchkeeper_drill::{Ledger, Verdict};

use event::DemoEvent;
use faults::Operator;
pub(crate) use instance::{Args as InstanceArgs, run as run_instance};
use report::Report;
use run::{DemoRun, Interrupts, NAMES, millis};
use script::{Quota, Script};
use show::Show;
use target::Target;
use workspace::{GROUP, LEASE, Workspace};
use writer::Writer;

/// How long the first one may take to have the watch.
const FIRST: Duration = Duration::from_secs(15);

/// How long what was written may take to arrive, once nothing disturbs it.
const CATCH_UP: Duration = Duration::from_secs(15);

/// How long processes may take to stop in order.
const STOP: Duration = Duration::from_secs(5);

/// How long, and how it is shown.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// For how long faults are made
    #[arg(long, default_value_t = 25, value_parser = clap::value_parser!(u64).range(5..=600))]
    seconds: u64,
    /// Lines instead of a live picture
    #[arg(long)]
    no_tty: bool,
    /// Keep the folder with the databases and logs, and say where it is
    #[arg(long)]
    keep: bool,
}

/// Runs the demo. The exit code is 1 when a promise was broken, or too little was tried to tell.
pub(crate) fn run(runtime: &Runtime, args: &Args, json: bool) -> Result<ExitCode> {
    let folder = tempfile::Builder::new().prefix("watchkeeper-demo-").tempdir();
    let mut folder = folder.map_err(|error| {
        Error::new(ErrorKind::Denied, format!("no temporary folder can be made: {error}"))
            .remedy("set TMPDIR to a folder that can be written")
    })?;
    folder.disable_cleanup(args.keep);
    let place = Workspace::new(folder.path());
    let interrupts = listen(runtime)?;
    let mut show = Show::new(json, args.no_tty);
    show.greet();
    let (mut demo_run, operator) = set_up(runtime, &place, args, (show, interrupts))?;
    play(&mut demo_run, &operator, args)?;
    let report = conclude(demo_run)?;
    if args.keep {
        eprintln!("kept: {}", place.folder().display());
    }
    Ok(if report.is_good() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Counts Ctrl-C and its kin.
fn listen(runtime: &Runtime) -> Result<Interrupts> {
    let interrupts = Arc::new(AtomicUsize::new(0));
    let _inside = runtime.enter();
    for kind in [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()] {
        let signals = signal(kind).map_err(|error| Error::internal("no signal can be heard").caused_by(error));
        let (mut signals, count) = (signals?, Arc::clone(&interrupts));
        runtime.spawn(async move {
            while signals.recv().await.is_some() {
                count.fetch_add(1, Ordering::Relaxed);
            }
        });
    }
    Ok(interrupts)
}

fn set_up(
    runtime: &Runtime,
    place: &Workspace,
    args: &Args,
    audience: (Show, Interrupts),
) -> Result<(DemoRun, Operator)> {
    let operator = runtime.block_on(async {
        let cx = Seams::system().cx();
        place.set_up(&cx).await?;
        let controls = Controls::new(place.stores(&cx).await?.records, GROUP);
        Ok::<_, Error>(Operator { runtime: runtime.handle().clone(), controls, cx })
    })?;
    let origin = Instant::now();
    let target = Target::open(&place.received(), origin)?;
    let writer = Writer::start(&place.shop(), origin)?;
    let demo_run = DemoRun::new(place.clone(), writer, target, Duration::from_secs(args.seconds), audience)?;
    Ok((demo_run, operator))
}

/// Makes faults until the time is over.
fn play(demo_run: &mut DemoRun, operator: &Operator, args: &Args) -> Result<()> {
    let instances = NAMES.map(str::to_owned).to_vec();
    let folder = args.keep.then(|| demo_run.place.folder().to_owned());
    demo_run.emit(DemoEvent::Started { seconds: args.seconds, lease_ms: millis(LEASE), instances, folder });
    NAMES.iter().try_for_each(|name| demo_run.start(name))?;
    if !demo_run.wait(FIRST, |demo_run| demo_run.target.received() > 0 && demo_run.standing_by() == 2)?
        && !demo_run.is_interrupted()
    {
        demo_run.replace_the_lost()?;
        return Err(Error::unavailable("nobody took the watch").remedy("look into the logs that --keep leaves"));
    }
    demo_run.began = Instant::now();
    let mut script = Script::new(demo_run.length);
    loop {
        demo_run.wait(script.calm, |_| false)?;
        if demo_run.is_interrupted() {
            break;
        }
        let left = demo_run.length.saturating_sub(demo_run.began.elapsed());
        let Some(fault) = script.next(left) else { break };
        demo_run.inject(fault, operator)?;
    }
    Ok(())
}

/// Stops writing, waits until everything has arrived, stops the processes, and counts.
fn conclude(mut demo_run: DemoRun) -> Result<Report> {
    let interrupted = demo_run.is_interrupted();
    demo_run.wake_all();
    demo_run.doing = "no more faults; the last changes are on their way".to_owned();
    let (written, delivered) = (demo_run.writer.written(), demo_run.target.received());
    demo_run.emit(DemoEvent::CatchingUp { written, delivered });
    let ledger = demo_run.writer.stop()?;
    let due = ledger.len() as u64;
    if !demo_run.wait(CATCH_UP, |demo_run| demo_run.target.received() >= due)? && demo_run.is_urged() {
        return Err(Error::unavailable("ended before everything could be counted").remedy("press Ctrl-C only once"));
    }
    demo_run.doing = "the writer has stopped; what arrived is counted".to_owned();
    demo_run.draw_last();
    // Whoever still had something in hand has said so, or never will.
    demo_run.stop_all(STOP)?;
    let report = judge(&demo_run, &ledger, interrupted);
    demo_run.show.conclude(&report);
    Ok(report)
}

fn judge(demo_run: &DemoRun, ledger: &Ledger, interrupted: bool) -> Report {
    let verdict = Verdict::new(ledger, demo_run.target.arrivals(), demo_run.refused);
    let done = |fault| demo_run.done.iter().filter(|it| **it == fault).count();
    let (takeovers, faults) = (demo_run.takeovers.clone(), demo_run.done.clone());
    let mut missing = if interrupted { Vec::new() } else { Quota::new(demo_run.length).missing(done) };
    if !interrupted && takeovers.len() < faults.len() {
        missing.push(format!("takeover: {} of {}", takeovers.len(), faults.len()));
    }
    Report { verdict, takeovers, faults, missing, interrupted }
}
