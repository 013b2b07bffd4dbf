//! CPU time and allocations per change.
//!
//! The cases take turns within a round, so that a slow moment of the machine meets all of them.

use std::sync::Arc;
use std::time::Duration;

use watchkeeper_core::memory::TransactionalTable;
use watchkeeper_core::{Batch, BootClock, Cx, Error, Grade, Limits, Result, Sink, SinkWriter, Source, StartAt};
use watchkeeper_engine::delivery::executor::{HandlerSettings, HandlerSink, ObserverExecutor};
use watchkeeper_engine::delivery::handler::{HandlerError, handler};
use watchkeeper_engine::delivery::routes::{Operations, Routes};
use watchkeeper_engine::settings::CheckpointPolicy;

use crate::args::Options;
use crate::generator::{Bodies, Generator};
use crate::group::{Group, WORKERS, runtime, single_thread, stream};
use crate::meter::{Cost, Meter};
use crate::report::{Report, Spread, Table, millions};
use crate::sinks::{NullSink, SinkBehaviour};
use crate::tally::Tally;

/// CPU seconds per million changes, source and sink included.
const CPU_SECONDS_MAX: f64 = 1.0;

/// Allocations per change, without those of source and sink.
const ALLOCATIONS_MAX: f64 = 0.1;

/// What is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Case {
    /// Source and sink without an engine between them.
    Baseline,
    /// One lane to a sink that only counts: what the bars are for.
    Null,
    /// The same on one thread.
    NullOneThread,
    /// Four lanes.
    NullFourLanes,
    /// One lane, and a commit is wanted after every single change.
    EveryChange,
    /// A handler that only counts.
    Handler,
    /// Changes and checkpoint in one transaction.
    Transactional,
}

const CASES: [Case; 7] = [
    Case::Baseline,
    Case::Null,
    Case::NullOneThread,
    Case::NullFourLanes,
    Case::EveryChange,
    Case::Handler,
    Case::Transactional,
];

impl Case {
    fn name(self) -> &'static str {
        match self {
            Self::Baseline => "source and sink alone",
            Self::Null => "null sink, 1 lane",
            Self::NullOneThread => "null sink, 1 lane, one thread",
            Self::NullFourLanes => "null sink, 4 lanes",
            Self::EveryChange => "null sink, 1 lane, commit after every change *",
            Self::Handler => "handler, 1 lane",
            Self::Transactional => "transactional memory sink *",
        }
    }

    fn lanes(self) -> usize {
        if self == Self::NullFourLanes { 4 } else { 1 }
    }

    /// The slow ones are given less; and the memory sink keeps all that it is given.
    fn changes(self, changes: u64) -> u64 {
        if matches!(self, Self::EveryChange | Self::Transactional) { changes / 5 } else { changes }
    }

    fn run(self, changes: u64) -> Result<Cost> {
        let runtime = if self == Self::NullOneThread { single_thread() } else { runtime() }?;
        match self {
            Self::Baseline => runtime.block_on(baseline(changes)),
            Self::NullOneThread => runtime.block_on(engine(self, changes)),
            // Spawned: the thread that blocks is not one of the workers.
            _ => runtime.block_on(async move {
                let run = tokio::spawn(engine(self, changes)).await;
                run.map_err(|error| Error::internal("a run panicked").caused_by(error))?
            }),
        }
    }
}

/// What one run cost, per change.
struct PerChange {
    cpu_nanos: f64,
    rate: f64,
    allocations: f64,
}

/// Measures all cases.
pub(crate) fn measure(options: Options, report: &mut Report) -> Result<()> {
    let mut runs: Vec<Vec<PerChange>> = CASES.iter().map(|_| Vec::new()).collect();
    for _ in 0..options.rounds {
        for (case, runs) in CASES.iter().zip(&mut runs) {
            let changes = case.changes(options.changes);
            let Cost { cpu, wall, allocations } = case.run(changes)?;
            let changes = changes as f64;
            let cpu_nanos = cpu.as_secs_f64() * 1e9 / changes;
            runs.push(PerChange {
                cpu_nanos,
                rate: changes / wall.as_secs_f64(),
                allocations: allocations as f64 / changes,
            });
        }
    }
    let spread = |at: usize, figure: fn(&PerChange) -> f64| Spread::of(runs[at].iter().map(figure));
    let title =
        format!("Overhead: {} small changes in batches of 1,000; tokio, {WORKERS} workers", millions(options.changes));
    let heads = ["", "CPU s per million changes", "million changes/s", "allocations per change"];
    let mut table = Table::new(&title, &heads);
    for (at, case) in CASES.iter().enumerate() {
        table.row([
            case.name().to_owned(),
            spread(at, |run| run.cpu_nanos / 1e3).show(3),
            spread(at, |run| run.rate / 1e6).show(2),
            spread(at, |run| run.allocations).show(4),
        ]);
    }
    table.print();
    println!("  * a fifth of the changes; the transactional memory sink copies and keeps each");
    let cpu = spread(1, |run| run.cpu_nanos / 1e3).median;
    let limit = format!("at most {CPU_SECONDS_MAX:.1} s");
    report.bar("CPU per million changes, null sink", format!("{cpu:.3} s"), limit, cpu <= CPU_SECONDS_MAX);
    let allocations = spread(1, |run| run.allocations).median - spread(0, |run| run.allocations).median;
    let limit = format!("below {ALLOCATIONS_MAX}");
    report.bar(
        "allocations per change, less source and sink",
        format!("{allocations:.4}"),
        limit,
        allocations < ALLOCATIONS_MAX,
    );
    Ok(())
}

/// Source and sink without an engine between them.
async fn baseline(changes: u64) -> Result<Cost> {
    let source = Generator::new(changes, Bodies::Shared);
    let delivered = Arc::new(Tally::up_to(changes));
    let sink: Arc<dyn SinkWriter> = Arc::new(NullSink::new(SinkBehaviour::Takes, &delivered));
    let limits = Limits { rows: 1_000, bytes: 4 << 20, wait: Duration::from_secs(1) };
    let cx = Cx::new(Arc::new(BootClock));
    let meter = Meter::start();
    let mut reading = source.open(&cx, StartAt::Oldest).await?;
    while delivered.count() < changes {
        let batch: Arc<Batch> = Arc::new(reading.next_batch(&cx, limits).await?);
        let rows: Vec<u32> = (0..batch.len() as u32).collect();
        sink.write(&cx, 0, &batch, &rows).await?;
    }
    let wall = meter.wall();
    Ok(meter.cost(wall))
}

/// A whole instance, from its start to the last commit and its end.
async fn engine(case: Case, changes: u64) -> Result<Cost> {
    let source = Generator::new(changes, Bodies::Shared);
    let delivered = Arc::new(Tally::up_to(changes));
    let group = Group::new();
    let mut spec = match case {
        Case::Handler => stream("orders", source.clone(), handlers(&delivered)?),
        Case::Transactional => stream("orders", source.clone(), TransactionalTable::new(group.checkpoints.clone())),
        _ => stream("orders", source.clone(), NullSink::new(SinkBehaviour::Takes, &delivered)),
    };
    spec.settings.concurrency = case.lanes();
    if case == Case::EveryChange {
        spec.settings.checkpoint = CheckpointPolicy::every_event();
    }
    let meter = Meter::start();
    let mut running = group.start("one", vec![spec]).await?;
    if case == Case::Transactional {
        source.acknowledged().reached().await?;
    } else {
        delivered.reached().await?;
    }
    let wall = meter.wall();
    running.shutdown();
    running.join().await?;
    let cost = meter.cost(wall);
    prove(&group, changes).await?;
    Ok(cost)
}

/// A figure counts only if everything was delivered and committed.
async fn prove(group: &Group, changes: u64) -> Result<()> {
    let checkpoint = group.checkpoint("orders").await?;
    let committed = checkpoint.as_ref().map_or(0, |checkpoint| checkpoint.facts.changes);
    let position = checkpoint.and_then(|checkpoint| checkpoint.position).map(|position| Generator::number(&position));
    if committed == changes && matches!(position, Some(Ok(number)) if number == changes) {
        return Ok(());
    }
    Err(Error::internal(format!("{committed} of {changes} changes were committed, at {position:?}")))
}

fn handlers(delivered: &Arc<Tally>) -> Result<impl Sink + use<>> {
    let delivered = Arc::clone(delivered);
    let count = handler(move |_| {
        delivered.add(1);
        async { Ok::<(), HandlerError>(()) }
    });
    let settings = HandlerSettings { grade: Grade::Plain, settle: Duration::ZERO, acts_on_barriers: false };
    let executor = ObserverExecutor::new(Routes::new().on("*", Operations::ANY, count)).with_settings(settings)?;
    let sink: HandlerSink = executor.sink();
    Ok(sink)
}
