use std::sync::Arc;
use std::time::Duration;

use watchkeeper_core::memory::{Checkpoints, Leases, Log, NewChange, RecordStore, Table, TableSink};
use watchkeeper_core::{
    Batch, CheckpointStore, CheckpointWrite, Claim, Commit, Cx, Epoch, ErrorKind, Facts, FaultKind, Grade, Grant,
    LeaseKey, Limits, OpenedSink, Operation, PutOutcome, Reason, Records, Sink, SinkContext, SinkWriter, Source,
    SourceTime, StartAt, StoreIdentity,
};
use watchkeeper_testkit::World;
use watchkeeper_testkit::faults::{Fault, FaultyCheckpoints, FaultyLeases, FaultyRecords, FaultySink, FaultySource};
use watchkeeper_testkit::faults::{Gate, Script};
use watchkeeper_testkit::laws::{Law, LawOf, LeaseBench, SinkBench, SourceBench, in_world};

fn grant(world: &World, epoch: u64) -> Grant {
    Grant { key: LeaseKey::new("k"), tenure: world.entropy().tenure(), epoch: Epoch(epoch) }
}

fn write(grant: &Grant, seq: u64) -> CheckpointWrite {
    CheckpointWrite {
        grant: grant.clone(),
        seq,
        position: None,
        pedigree: None,
        reason: Reason::Progress,
        halted: None,
        facts: Facts::default(),
        ledger: Vec::new(),
        resolve: Vec::new(),
    }
}

async fn claim_and_commit(cx: &Cx, store: &dyn CheckpointStore, grant: &Grant) -> watchkeeper_core::Result<Commit> {
    store.claim(cx, grant).await?;
    Ok(store.commit(cx, &[write(grant, 1)]).await?[0])
}

fn checkpoints(world: &World, script: &Script) -> (Checkpoints, Arc<dyn CheckpointStore>) {
    let inner = Checkpoints::new(StoreIdentity(world.entropy().uuid()));
    (inner.clone(), Arc::new(FaultyCheckpoints::new(Arc::new(inner), script.clone())))
}

#[test]
fn a_rejected_call_has_no_effect_and_a_lost_one_has() {
    let (world, script) = (World::new(1), Script::new());
    let (inner, store) = checkpoints(&world, &script);
    let (cx, grant) = (world.cx(), grant(&world, 1));
    script.next("commit", Fault::Reject(ErrorKind::Unavailable));
    script.next("commit", Fault::Lose);
    world
        .block_on(async {
            let kind = claim_and_commit(&cx, &*store, &grant).await.unwrap_err().kind();
            assert_eq!(kind, ErrorKind::Unavailable);
            assert_eq!(inner.load(&cx, &grant.key).await.unwrap(), None);
            let kind = claim_and_commit(&cx, &*store, &grant).await.unwrap_err().kind();
            assert_eq!(kind, ErrorKind::Unknown);
            assert!(inner.load(&cx, &grant.key).await.unwrap().is_some());
            assert_eq!(claim_and_commit(&cx, &*store, &grant).await.unwrap(), Commit::AlreadyDone);
        })
        .unwrap();
    assert_eq!((script.calls("commit"), script.pending("commit")), (3, 0));
}

#[test]
fn a_held_call_takes_effect_after_its_caller_has_died() {
    let world = World::new(1);
    let server = world.node("server");
    let (script, gate) = (Script::new().served_by(server.spawner()), Gate::default());
    let (inner, store) = checkpoints(&world, &script);
    let (cx, old, holder) = (world.cx(), grant(&world, 1), world.node("holder"));
    script.next("commit", Fault::Hold(gate.clone()));
    let (own, own_cx) = (old.clone(), cx.clone());
    holder.spawner().launch("commits", Box::pin(async move { drop(claim_and_commit(&own_cx, &*store, &own).await) }));
    world.block_on(gate.reached()).unwrap();
    holder.kill();
    assert_eq!(world.block_on(inner.load(&cx, &old.key)).unwrap().unwrap(), None);
    gate.open();
    world.run_for(Duration::from_secs(1)).unwrap();
    assert!(world.block_on(inner.load(&cx, &old.key)).unwrap().unwrap().is_some());
    assert_eq!(gate.arrived(), 1);
}

#[test]
fn a_held_answer_comes_after_the_effect_and_a_delay_before_it() {
    let (world, script, gate) = (World::new(1), Script::new(), Gate::default());
    let notes = RecordStore::new(world.clock());
    let records = FaultyRecords::new(Arc::new(notes.clone()), script.clone());
    let cx = world.cx();
    script.next("put_if", Fault::HoldAnswer(gate.clone()));
    script.always("get", Fault::Delay(Duration::from_secs(3)));
    world
        .block_on(async {
            let brief = cx.within(Duration::from_secs(1));
            let answer = brief.run(records.put_if(&brief, "n", None, "text".into())).await;
            assert_eq!(answer.unwrap_err().kind(), ErrorKind::Unknown);
            assert!(notes.get(&cx, "n").await.unwrap().is_some());
            let before = cx.now();
            records.get(&cx, "n").await.unwrap();
            assert_eq!(cx.now().since(before), Duration::from_secs(3));
            script.heal("get");
            records.get(&cx, "n").await.unwrap();
            assert_eq!(cx.now().since(before), Duration::from_secs(3));
            assert_eq!(records.put_if(&cx, "n", None, "other".into()).await.unwrap(), PutOutcome::Conflict);
        })
        .unwrap();
}

fn log_of(count: u64) -> Log {
    let log = Log::new("log");
    for n in 1..=count {
        let (operation, key) = (Operation::Insert, Some(n.to_be_bytes().to_vec().into()));
        let (namespace, body) = ("t".to_owned(), "{}".into());
        log.append(NewChange { operation, namespace, key, body, first_half: false }, SourceTime(n));
    }
    log
}

async fn read(cx: &Cx, source: &dyn Source) -> watchkeeper_core::Result<Batch> {
    let mut stream = source.open(cx, StartAt::Oldest).await?;
    stream.next_batch(cx, Limits { rows: 100, bytes: 1 << 20, wait: Duration::from_secs(1) }).await
}

#[test]
fn a_source_fails_where_the_script_says() {
    let (world, script) = (World::new(1), Script::new());
    let source = FaultySource::new(Arc::new(log_of(3)), script.clone());
    let cx = world.cx();
    script.next("open", Fault::Reject(ErrorKind::PositionLost));
    script.next("next_batch", Fault::Reject(ErrorKind::Unavailable));
    let kinds = [ErrorKind::PositionLost, ErrorKind::Unavailable];
    for expected in kinds {
        let answer = world.block_on(read(&cx, &source)).unwrap();
        assert_eq!(answer.unwrap_err().kind(), expected);
    }
    assert_eq!(world.block_on(read(&cx, &source)).unwrap().unwrap().len(), 3);
}

async fn open(cx: &Cx, sink: &dyn Sink, grant: Grant) -> Arc<dyn SinkWriter> {
    let store = watchkeeper_core::StoreIdentity(uuid::Uuid::nil());
    let stream = "s".to_owned();
    let context = SinkContext { grant, stream, sink: "k".to_owned(), partition: 0, lanes: 1, store };
    match sink.open(cx, &context).await.unwrap() {
        OpenedSink::Plain(writer) => writer,
        OpenedSink::Transactional(_) => panic!("a table of this grade is not transactional"),
    }
}

#[test]
fn single_rows_are_rejected_or_stop_the_writer() {
    let (world, script) = (World::new(1), Script::new());
    let table = Table::default();
    let sink = FaultySink::new(Arc::new(TableSink::new(table.clone(), Grade::Plain)), script.clone());
    let cx = world.cx();
    world
        .block_on(async {
            let batch = Arc::new(read(&cx, &log_of(5)).await.unwrap());
            let writer = open(&cx, &sink, grant(&world, 1)).await;
            script.refuse_row(batch.id(1).to_string(), FaultKind::Reject, 1);
            script.refuse_row(batch.id(3).to_string(), FaultKind::Retry, 1);
            let written = writer.write(&cx, 0, &batch, &[0, 1, 2, 3, 4]).await.unwrap();
            assert_eq!(written.done, 3);
            assert_eq!(written.rejected.iter().map(|fault| fault.row).collect::<Vec<_>>(), [1]);
            assert_eq!(written.stopped.map(|fault| (fault.row, fault.kind)), Some((3, FaultKind::Retry)));
            let written = writer.write(&cx, 0, &batch, &[3, 4]).await.unwrap();
            assert_eq!((written.done, written.stopped.is_none()), (2, true));
            writer.flush(&cx).await.unwrap();
        })
        .unwrap();
    let times: Vec<_> = table.delivered().iter().map(|delivered| delivered.version.time).collect();
    assert_eq!(times, [1, 3, 4, 5]);
}

/// Without faults the wrappers keep every law.
mod without_faults {
    use super::*;

    fn leases(law: &LawOf<LeaseBench>) -> Law {
        in_world(law, |world| {
            let faulty = FaultyLeases::new(Arc::new(Leases::new(world.clock())), Script::new());
            Box::new(LeaseBench::in_world(world, Arc::new(faulty.clone()), Arc::new(faulty)))
        })
    }

    watchkeeper_testkit::lease_laws!(leases);

    mod source {
        use super::*;

        fn run(law: &LawOf<dyn SourceBench>) -> Law {
            in_world(law, |world| {
                <dyn SourceBench>::around(world, |log| Arc::new(FaultySource::new(Arc::new(log), Script::new())))
            })
        }

        watchkeeper_testkit::source_laws!(run);
    }

    mod sink {
        use super::*;

        fn run(law: &LawOf<dyn SinkBench>) -> Law {
            in_world(law, |world| {
                let wrap = |sink| -> Arc<dyn Sink> { Arc::new(FaultySink::new(sink, Script::new())) };
                <dyn SinkBench>::around(world, Grade::Fenced, wrap)
            })
        }

        watchkeeper_testkit::sink_laws!(run);
    }
}

#[test]
fn a_stale_commit_that_was_held_is_fenced_when_it_arrives() {
    let world = World::new(1);
    let server = world.node("server");
    let (script, gate) = (Script::new().served_by(server.spawner()), Gate::default());
    let (inner, store) = checkpoints(&world, &script);
    let (cx, old, new) = (world.cx(), grant(&world, 1), grant(&world, 2));
    script.next("commit", Fault::Hold(gate.clone()));
    let late = async {
        let commit = claim_and_commit(&cx, &*store, &old);
        let takeover = async {
            gate.reached().await;
            let claim = inner.claim(&cx, &new).await.unwrap();
            gate.open();
            claim
        };
        futures_util::future::join(commit, takeover).await
    };
    let (commit, claim) = world.block_on(late).unwrap();
    assert_eq!(claim, Claim::Claimed(None));
    assert_eq!(commit.unwrap(), Commit::Fenced);
}
