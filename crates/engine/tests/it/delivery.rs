//! Handlers as a sink: order, isolation, and what runs again.

use std::collections::VecDeque;
use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::Context;
use async_trait::async_trait;
use futures_util::FutureExt;
use serde::Deserialize;
use uuid::Uuid;
use watchkeeper_core::clock::Sleep;
use watchkeeper_core::payload::JsonPayload;
use watchkeeper_core::{
    Batch, BatchBuilder, Change, Clock, Cx, Epoch, Error, ErrorKind, FaultKind, Grade, Grant, LeaseKey, Moment,
    OpenedSink, Operation, Position, RowParts, Sink, SinkContext, SinkWriter, SourceTime, TenureId, Version, Written,
};
use watchkeeper_engine::delivery::{
    Handler, HandlerContext, HandlerError, HandlerSettings, ObserverExecutor, Operations, Routes, handler, handler_with,
};

use crate::warnings::Warnings;

/// Runs what waits for nothing, without any runtime.
fn now<T>(future: impl Future<Output = T>) -> T {
    future.now_or_never().expect("these handlers wait for nothing")
}

/// A clock that is set by hand.
#[derive(Debug, Default)]
struct HandClock(AtomicU64);

impl Clock for HandClock {
    fn now(&self) -> Moment {
        Moment::from_nanos(self.0.load(Ordering::Relaxed))
    }

    fn sleep_until(&self, _moment: Moment) -> Sleep {
        Box::pin(std::future::pending())
    }

    fn wall_millis(&self) -> u64 {
        0
    }
}

fn cx() -> Cx {
    Cx::new(Arc::new(HandClock::default()))
}

/// Inserts into `shop.orders`, one for each of `names`; the name is key and position.
fn batch(seq: u64, names: &[&str]) -> Arc<Batch> {
    let rows: Vec<_> = names.iter().map(|name| ("shop.orders", Operation::Insert, *name)).collect();
    batch_of(seq, &rows)
}

fn batch_of(seq: u64, rows: &[(&str, Operation, &str)]) -> Arc<Batch> {
    let mut builder = BatchBuilder::new("log".into(), Arc::new(JsonPayload));
    for (namespace, operation, name) in rows {
        let namespace = builder.namespace(namespace);
        builder.push(RowParts {
            operation: *operation,
            namespace,
            half: 0,
            committable: true,
            key: Some(name.as_bytes()),
            position: name.as_bytes(),
            body: b"{}",
            time: SourceTime(1),
            version: Version::default(),
        });
    }
    let mut batch = builder.finish(Position::new("end", None));
    batch.seq = seq;
    Arc::new(batch)
}

fn open(executor: &ObserverExecutor) -> Arc<dyn SinkWriter> {
    let grant = Grant { key: LeaseKey::new("orders"), tenure: TenureId(Uuid::nil()), epoch: Epoch(1) };
    let store = watchkeeper_core::StoreIdentity(uuid::Uuid::nil());
    let (stream, sink) = ("orders".into(), "handlers".into());
    let context = SinkContext { grant, stream, sink, partition: 0, lanes: 2, store };
    match now(executor.sink().open(&cx(), &context)) {
        Ok(OpenedSink::Plain(writer)) => writer,
        other => panic!("handlers are written through lanes, not {other:?}"),
    }
}

/// What was called, in order, as `handler(change)`.
#[derive(Debug, Clone, Default)]
struct Calls(Arc<Mutex<Vec<String>>>);

impl Calls {
    fn note(&self, name: &str, change: &Change) {
        let key = String::from_utf8_lossy(change.key().expect("these changes have keys")).into_owned();
        self.0.lock().expect("no panic holds it").push(format!("{name}({key})"));
    }

    fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().expect("no panic holds it"))
    }
}

#[derive(Debug, Clone, Copy)]
enum Answer {
    Good,
    Retry,
    Reject,
    Fatal,
    Panic,
}
use Answer::{Fatal, Good, Panic, Reject, Retry};

/// Answers as scripted, then well.
struct Scripted {
    name: &'static str,
    calls: Calls,
    answers: Mutex<VecDeque<Answer>>,
}

#[async_trait]
impl Handler for Scripted {
    async fn handle(&self, change: Change, _context: &HandlerContext) -> Result<(), HandlerError> {
        self.calls.note(self.name, &change);
        let answer = self.answers.lock().expect("no panic holds it").pop_front();
        let cause = format!("{} of {}", change.id(), self.name);
        match answer.unwrap_or(Good) {
            Good => Ok(()),
            Retry => Err(HandlerError::retry(cause)),
            Reject => Err(HandlerError::reject(cause)),
            Fatal => Err(HandlerError::fatal(cause)),
            Panic => panic!("{} panics", self.name),
        }
    }
}

/// A writer over scripted handlers `a`, `b`, … for all changes, and what they are called with.
fn scripted(scripts: &[&[Answer]]) -> (Arc<dyn SinkWriter>, Calls) {
    let calls = Calls::default();
    let names = ["a", "b", "c", "d"];
    let routes = scripts.iter().zip(names).fold(Routes::new(), |routes, (script, name)| {
        let answers = Mutex::new(script.iter().copied().collect());
        routes.on("*", Operations::ANY, Scripted { name, calls: calls.clone(), answers })
    });
    (open(&ObserverExecutor::new(routes)), calls)
}

fn write(writer: &Arc<dyn SinkWriter>, batch: &Arc<Batch>, rows: &[u32]) -> Written {
    now(writer.write(&cx(), 0, batch, rows)).expect("nothing forbids the calls")
}

/// `done`, the rejected rows, and what it stopped with.
fn summary(written: &Written) -> (usize, Vec<u32>, Option<(u32, FaultKind)>) {
    let rejected = written.rejected.iter().map(|fault| fault.row).collect();
    (written.done, rejected, written.stopped.as_ref().map(|fault| (fault.row, fault.kind)))
}

#[test]
fn rows_are_in_order_and_so_are_the_handlers_of_a_row() {
    let (writer, calls) = scripted(&[&[], &[]]);
    let batch = batch(0, &["x", "y", "z"]);
    assert_eq!(summary(&write(&writer, &batch, &[0, 2])), (2, vec![], None));
    assert_eq!(calls.take(), ["a(x)", "b(x)", "a(z)", "b(z)"]);
    assert_eq!(summary(&write(&writer, &batch, &[])), (0, vec![], None));
    assert!(now(writer.flush(&cx())).expect("there is nothing to flush").is_empty());
}

#[test]
fn only_the_handlers_that_failed_run_again() {
    let (writer, calls) = scripted(&[&[Good], &[Good, Retry, Retry], &[Good, Panic], &[]]);
    let batch = batch(7, &["x", "y", "z"]);
    let written = write(&writer, &batch, &[0, 1, 2]);
    assert_eq!(summary(&written), (1, vec![], Some((1, FaultKind::Retry))));
    let cause = written.stopped.expect("it stopped").error;
    assert_eq!(cause.kind(), ErrorKind::Unavailable);
    assert_eq!(cause.message(), "log:79 of b; a handler panicked: c panics");
    assert_eq!(calls.take(), ["a(x)", "b(x)", "c(x)", "d(x)", "a(y)", "b(y)", "c(y)", "d(y)"]);

    assert_eq!(summary(&write(&writer, &batch, &[1, 2])), (0, vec![], Some((1, FaultKind::Retry))));
    assert_eq!(calls.take(), ["b(y)", "c(y)"]);
    assert_eq!(summary(&write(&writer, &batch, &[1, 2])), (2, vec![], None));
    assert_eq!(calls.take(), ["b(y)", "a(z)", "b(z)", "c(z)", "d(z)"]);
}

#[test]
fn a_panic_is_tried_again_and_stops_no_other_handler() {
    let (writer, calls) = scripted(&[&[Panic], &[]]);
    let batch = batch(0, &["x"]);
    assert_eq!(summary(&write(&writer, &batch, &[0])), (0, vec![], Some((0, FaultKind::Panic))));
    assert_eq!(calls.take(), ["a(x)", "b(x)"]);
    assert_eq!(summary(&write(&writer, &batch, &[0])), (1, vec![], None));
    assert_eq!(calls.take(), ["a(x)"]);
}

#[test]
fn a_rejection_returns_right_after_its_row() {
    let (writer, calls) = scripted(&[&[Good, Reject], &[]]);
    let batch = batch(0, &["x", "y", "z"]);
    let written = write(&writer, &batch, &[0, 1, 2]);
    assert_eq!(summary(&written), (2, vec![1], None));
    assert_eq!(written.rejected[0].kind, FaultKind::Reject);
    assert_eq!(calls.take(), ["a(x)", "b(x)", "a(y)", "b(y)"]);
    assert_eq!(summary(&write(&writer, &batch, &[2])), (1, vec![], None));
    assert_eq!(calls.take(), ["a(z)", "b(z)"]);
}

#[test]
fn rejections_wait_until_nobody_asks_for_another_try() {
    let (writer, calls) = scripted(&[&[Reject], &[Retry, Retry], &[Retry, Reject]]);
    let batch = batch(0, &["x"]);
    assert_eq!(summary(&write(&writer, &batch, &[0])), (0, vec![], Some((0, FaultKind::Retry))));
    assert_eq!(summary(&write(&writer, &batch, &[0])), (0, vec![], Some((0, FaultKind::Retry))));
    let written = write(&writer, &batch, &[0]);
    assert_eq!(summary(&written), (1, vec![0], None));
    assert_eq!(written.rejected[0].error.message(), "log:78 of a; log:78 of c");
    assert_eq!(calls.take(), ["a(x)", "b(x)", "c(x)", "b(x)", "c(x)", "b(x)"]);
}

#[test]
fn fatal_wins_over_all() {
    let (writer, calls) = scripted(&[&[Retry], &[Fatal], &[Reject], &[Panic]]);
    let written = write(&writer, &batch(0, &["x", "y"]), &[0, 1]);
    assert_eq!(summary(&written), (0, vec![], Some((0, FaultKind::Fatal))));
    assert_eq!(written.stopped.expect("it stopped").error.message(), "log:78 of b");
    assert_eq!(calls.take(), ["a(x)", "b(x)", "c(x)", "d(x)"]);
}

#[test]
fn a_row_that_was_given_up_is_forgotten() {
    let (writer, calls) = scripted(&[&[Good], &[Retry]]);
    let batch = batch(0, &["x", "y"]);
    write(&writer, &batch, &[0]);
    write(&writer, &batch, &[1]);
    calls.take();
    write(&writer, &batch, &[0]);
    assert_eq!(calls.take(), ["a(x)", "b(x)"]);
}

#[test]
fn only_the_same_change_in_the_same_batch_is_remembered() {
    for other in [batch(1, &["x"]), batch(0, &["y"])] {
        let (writer, calls) = scripted(&[&[Good], &[Retry]]);
        write(&writer, &batch(0, &["x"]), &[0]);
        calls.take();
        write(&writer, &other, &[0]);
        assert_eq!(calls.take().len(), 2, "both handlers see another change");
    }
}

#[test]
fn lanes_remember_for_themselves() {
    let (writer, calls) = scripted(&[&[Good, Good], &[Retry, Retry]]);
    let batch = batch(0, &["x", "y"]);
    write(&writer, &batch, &[0]);
    now(writer.write(&cx(), 1, &batch, &[1])).expect("nothing forbids the calls");
    calls.take();
    write(&writer, &batch, &[0]);
    now(writer.write(&cx(), 1, &batch, &[1])).expect("nothing forbids the calls");
    assert_eq!(calls.take(), ["b(x)", "b(y)"]);
}

/// A writer whose handlers `a` and `b` each take 10 ns, and a context whose lease ends at `lease` ns.
fn timed(lease: u64) -> (Arc<dyn SinkWriter>, Calls, Cx, Arc<AtomicU64>) {
    let (clock, calls, deadline) = (Arc::new(HandClock::default()), Calls::default(), Arc::new(AtomicU64::new(lease)));
    let slow = |name: &'static str| {
        let (clock, calls) = (Arc::clone(&clock), calls.clone());
        handler(move |change| {
            calls.note(name, &change);
            clock.0.fetch_add(10, Ordering::Relaxed);
            async { Ok(()) }
        })
    };
    let routes = Routes::new().on("*", Operations::ANY, slow("a")).on("*", Operations::ANY, slow("b"));
    let cx = Cx::new(clock).bound_to(Arc::clone(&deadline), Default::default());
    (open(&ObserverExecutor::new(routes)), calls, cx, deadline)
}

#[test]
fn no_handler_is_called_after_the_lease_has_ended() {
    let no_time = Err(ErrorKind::Unavailable);
    // With half of the time gone, what is done is answered, and the rest is left for another call.
    let cases = [(0, 0, no_time), (5, 1, no_time), (10, 1, no_time), (11, 2, Ok(1)), (25, 2, Ok(1)), (41, 4, Ok(2))];
    for (lease, called, done) in cases {
        let (writer, calls, cx, _) = timed(lease);
        let answer = now(writer.write(&cx, 0, &batch(0, &["x", "y"]), &[0, 1]));
        assert_eq!(calls.take().len(), called, "lease of {lease}");
        assert_eq!(answer.map(|written| written.done).map_err(|error| error.kind()), done, "lease of {lease}");
    }
}

#[test]
fn what_is_done_is_answered_as_often_as_the_caller_asks() {
    // A row takes 20 ns, so that the first look after the given time is that before the third, the second and the last row.
    for (every, done) in [(25, 2), (1, 1), (60, 3), (61, 4)] {
        let (writer, _, cx, _) = timed(1_000);
        let cx = cx.with_progress_every(Duration::from_nanos(every));
        let rows = batch(0, &["w", "x", "y", "z"]);
        let written = now(writer.write(&cx, 0, &rows, &[0, 1, 2, 3])).expect("there is time");
        assert_eq!(summary(&written), (done, vec![], None), "every {every} ns");
    }
}

#[test]
fn what_ran_before_the_deadline_does_not_run_again_if_the_row_goes_on() {
    let (writer, calls, cx, deadline) = timed(5);
    let batch = batch(0, &["x"]);
    now(writer.write(&cx, 0, &batch, &[0])).expect_err("the deadline passed between the handlers");
    deadline.store(1_000, Ordering::Relaxed);
    assert_eq!(now(writer.write(&cx, 0, &batch, &[0])).expect("there is time now").done, 1);
    assert_eq!(calls.take(), ["a(x)", "b(x)"]);
}

#[test]
fn changes_go_where_their_route_says() {
    let calls = Calls::default();
    let named = |name| Scripted { name, calls: calls.clone(), answers: Mutex::default() };
    let routes = Routes::new()
        .on("shop.orders", Operation::Insert, named("exact"))
        .on("shop.*", [Operation::Update, Operation::Delete], named("below"))
        .on("*", Operations::ANY, named("all"));
    let writer = open(&ObserverExecutor::new(routes));
    let batch = batch_of(
        0,
        &[
            ("shop.orders", Operation::Insert, "1"),
            ("shop.users", Operation::Insert, "2"),
            ("shop.orders", Operation::Delete, "3"),
            ("shopping", Operation::Delete, "4"),
            ("shop.orders", Operation::Insert, "5"),
        ],
    );
    assert_eq!(write(&writer, &batch, &[0, 1, 2, 3, 4]).done, 5);
    assert_eq!(calls.take(), ["exact(1)", "all(1)", "all(2)", "below(3)", "all(3)", "all(4)", "exact(5)", "all(5)"]);
}

#[test]
fn a_change_without_a_handler_is_passed_over() {
    let routes = Routes::new().on("users", Operations::ANY, handler(|_| async { Err(HandlerError::fatal("called")) }));
    let writer = open(&ObserverExecutor::new(routes));
    assert_eq!(summary(&write(&writer, &batch(0, &["x", "y"]), &[0, 1])), (2, vec![], None));
}

#[derive(Debug, Deserialize)]
struct Order {
    id: u32,
}

/// One insert into `shop.orders` with this body.
fn order(body: &'static str) -> Change {
    let mut builder = BatchBuilder::new("log".into(), Arc::new(JsonPayload));
    let namespace = builder.namespace("shop.orders");
    builder.push(RowParts {
        operation: Operation::Insert,
        namespace,
        half: 0,
        committable: true,
        key: Some(b"k"),
        position: b"p",
        body: body.as_bytes(),
        time: SourceTime(1),
        version: Version::default(),
    });
    Change::new(Arc::new(builder.finish(Position::new("end", None))), 0)
}

/// What a handler asks for when `handle`, which has errors of its own, is called by it with `?`.
fn asked_for<E>(handle: fn(&Change) -> Result<u32, E>, change: Change) -> Option<FaultKind>
where
    E: Into<Box<dyn std::error::Error + Send + Sync>> + 'static,
{
    let handles = handler(move |change: Change| async move {
        handle(&change)?;
        Ok(())
    });
    let executor = ObserverExecutor::new(Routes::new().on("*", Operations::ANY, handles));
    now(executor.execute(change)).map_err(|error| error.kind()).err()
}

fn id_of(change: &Change) -> Result<u32, Error> {
    Ok(change.after::<Order>()?.map_or(0, |order| order.id))
}

fn number_in_key(change: &Change) -> Result<u32, std::num::ParseIntError> {
    String::from_utf8_lossy(change.key().unwrap_or_default()).parse()
}

#[test]
fn an_undecodable_change_is_rejected_whatever_wraps_its_error() {
    /// Like an error enum whose variants are transparent: it shows only what lies below the error in it.
    #[derive(Debug)]
    struct Transparent(Error);
    impl std::fmt::Display for Transparent {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            self.0.fmt(f)
        }
    }
    impl std::error::Error for Transparent {
        fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
            self.0.source()
        }
    }

    // Of a wrong type, without the field, and no JSON at all.
    for body in [r#"{"id":"seven"}"#, r#"{"item":"rope"}"#, "{"] {
        let asked = [
            ("as it is", asked_for(id_of, order(body))),
            ("anyhow", asked_for::<anyhow::Error>(|change| Ok(id_of(change)?), order(body))),
            ("anyhow, one context", asked_for(|change| id_of(change).context("no id"), order(body))),
            ("anyhow, two", asked_for(|change| id_of(change).context("no id").context("no order"), order(body))),
            ("eyre", asked_for::<eyre::Report>(|change| Ok(id_of(change)?), order(body))),
            ("eyre, one context", asked_for(|change| eyre::WrapErr::wrap_err(id_of(change), "no id"), order(body))),
            ("transparent", asked_for(|change| id_of(change).map_err(Transparent), order(body))),
            (
                "transparent in anyhow",
                asked_for(|change| Ok::<_, anyhow::Error>(id_of(change).map_err(Transparent)?), order(body)),
            ),
        ];
        for (wrapped, asked) in asked {
            assert_eq!(asked, Some(FaultKind::Reject), "{wrapped}: {body} never fits");
        }
    }
}

#[test]
fn every_other_error_asks_for_another_try_whatever_wraps_it() {
    let away = |_: &Change| Err(Error::unavailable("no connection"));
    let asked = [
        asked_for(number_in_key, order("{}")),
        asked_for::<anyhow::Error>(|change| Ok(number_in_key(change)?), order("{}")),
        asked_for(|change| number_in_key(change).context("no number"), order("{}")),
        asked_for::<anyhow::Error>(|_| anyhow::bail!("no number"), order("{}")),
        asked_for::<eyre::Report>(|change| Ok(number_in_key(change)?), order("{}")),
        asked_for(away, order("{}")),
        asked_for(|_| Err(Error::unavailable("no connection").caused_by(Error::corrupt("of a log line"))), order("{}")),
        asked_for(|_| Err::<u32, _>(Error::unavailable("no connection")).context("no stock"), order("{}")),
    ];
    assert_eq!(asked, [Some(FaultKind::Retry); 8]);
    assert_eq!(asked_for(id_of, order(r#"{"id":7}"#)), None, "it fits");
}

#[test]
fn what_lies_below_an_error_is_reported_once() {
    let reported = |error: anyhow::Error| HandlerError::from(error).into_error();
    let refused = std::io::Error::other("connection refused");
    let error = reported(anyhow::Error::new(refused).context("no stock").context("no order"));
    assert_eq!((error.kind(), error.message()), (ErrorKind::Unavailable, "no order: no stock: connection refused"));
    let error = reported(anyhow::Error::new(Error::corrupt("of no type")).context("no order"));
    assert_eq!((error.kind(), error.message()), (ErrorKind::Corrupt, "no order: of no type [WK-CORRUPT]"));
    let error = reported(Error::corrupt("of no type").caused_by(std::fmt::Error).into());
    let below = format!("of no type [WK-CORRUPT]: {}", std::fmt::Error);
    assert_eq!((error.kind(), error.message()), (ErrorKind::Corrupt, below.as_str()));
}

#[test]
fn a_handler_learns_the_stream_and_the_epoch() {
    let reported = Arc::new(Mutex::new(None));
    let keep = Arc::clone(&reported);
    let keeps = handler_with(move |_, context| {
        let keep = Arc::clone(&keep);
        async move {
            *keep.lock().expect("no panic holds it") = Some((context.stream.to_string(), context.epoch()));
            Ok(())
        }
    });
    let writer = open(&ObserverExecutor::new(Routes::new().on("*", Operations::ANY, keeps)));
    assert_eq!(summary(&write(&writer, &batch(0, &["x"]), &[0])), (1, vec![], None));
    assert_eq!(*reported.lock().expect("no panic holds it"), Some(("orders".to_owned(), Epoch(1))));
}

#[test]
fn executing_directly_answers_with_the_gravest_error() {
    let grave = |errors: Vec<fn() -> HandlerError>| {
        let routes = errors.into_iter().fold(Routes::new(), |routes, error| {
            routes.on("*", Operations::ANY, handler(move |_| async move { Err(error()) }))
        });
        let outcome = now(ObserverExecutor::new(routes).execute(Change::new(batch(0, &["x"]), 0)));
        outcome.map_err(|error| error.kind())
    };
    let (retry, reject, fatal) =
        (|| HandlerError::retry("r"), || HandlerError::reject("j"), || HandlerError::fatal("f"));
    assert_eq!(grave(vec![]), Ok(()));
    assert_eq!(grave(vec![reject]), Err(FaultKind::Reject));
    assert_eq!(grave(vec![reject, retry]), Err(FaultKind::Retry));
    assert_eq!(grave(vec![retry, fatal, reject]), Err(FaultKind::Fatal));
}

#[test]
fn settings_are_declared_and_what_cannot_be_true_is_refused() {
    let executor = ObserverExecutor::new(Routes::new());
    let profile = executor.sink().profile();
    assert_eq!((profile.grade, profile.settle), (Grade::Plain, Duration::from_secs(5)));
    let settings =
        HandlerSettings { grade: Grade::Idempotent, settle: Duration::from_secs(1), ..HandlerSettings::default() };
    let profile = executor.clone().with_settings(settings).expect("handlers may be idempotent").sink().profile();
    assert_eq!((profile.grade, profile.settle), (Grade::Idempotent, Duration::from_secs(1)));
    let refused = executor.with_settings(HandlerSettings { grade: Grade::Transactional, ..settings });
    assert_eq!(refused.map(drop).map_err(|error| error.kind()), Err(ErrorKind::Config));
}

#[test]
fn a_check_names_routes_that_will_not_do_what_they_seem_to() {
    let findings = |routes| now(ObserverExecutor::new(routes).sink().check(&cx())).expect("a check asks nobody").len();
    let ok = || handler(|_| async { Ok(()) });
    assert_eq!(findings(Routes::new()), 1);
    assert_eq!(findings(Routes::new().on("shop*", Operations::ANY, ok()).on("*", Operations::ANY, ok())), 1);
    assert_eq!(findings(Routes::new().on("shop.*", Operations::ANY, ok())), 0);
}

#[test]
fn handlers_may_wait() {
    let calls = Calls::default();
    let noted = calls.clone();
    let waits = handler(move |change| {
        let calls = noted.clone();
        async move {
            tokio::task::yield_now().await;
            calls.note("a", &change);
            Ok(())
        }
    });
    let writer = open(&ObserverExecutor::new(Routes::new().on("*", Operations::ANY, waits)));
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime without I/O");
    let written = runtime.block_on(writer.write(&cx(), 0, &batch(0, &["x", "y"]), &[0, 1]));
    assert_eq!(written.expect("nothing forbids the calls").done, 2);
    assert_eq!(calls.take(), ["a(x)", "a(y)"]);
}

#[test]
fn a_route_that_none_of_1_000_changes_matched_is_warned_of_once() {
    let ok = || handler(|_| async { Ok(()) });
    let routes = Routes::new().on("shop.orders", Operation::Delete, ok()).on("shop.items", Operations::ANY, ok());
    let writer = open(&ObserverExecutor::new(routes.on("shop.*", Operations::ANY, ok())));
    let warnings = Warnings::default();
    let rows: Vec<u32> = (0..500).collect();
    // Rows of a snapshot do not count: it reads one table after the other.
    let batches = [(Operation::Read, 0), (Operation::Read, 0), (Operation::Read, 0), (Operation::Insert, 0)];
    let batches = [&batches[..], &[(Operation::Insert, 1), (Operation::Insert, 1), (Operation::Insert, 1)]].concat();
    tracing::subscriber::with_default(warnings.clone(), || {
        for (seq, (operation, expected)) in (1..).zip(batches) {
            let batch = batch_of(seq, &vec![("shop.orders", operation, "row"); rows.len()]);
            let written = now(writer.write(&cx(), 0, &batch, &rows)).expect("all handlers take all rows");
            assert_eq!(written.done, rows.len());
            let unmatched = warnings.count(&["a route matched none of the changes"]);
            assert_eq!(unmatched, expected, "after batch {seq}");
        }
    });
}
