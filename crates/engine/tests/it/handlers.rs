//! Handlers as the sink of a running stream, with the default settings.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use watchkeeper_core::Sink;
use watchkeeper_engine::delivery::{ObserverExecutor, Operations, Routes, handler};
use watchkeeper_engine::listener::ListenerState::Running;
use watchkeeper_engine::settings::{RetrySettings, StreamSettings};

use crate::support::*;
use crate::warnings::Warnings;

/// A database that handlers write to.
#[derive(Debug, Default)]
struct Database {
    is_away: AtomicBool,
    written: AtomicU64,
    refused: AtomicU64,
}

impl Database {
    /// As a driver answers.
    fn write(&self) -> std::io::Result<()> {
        if self.is_away.load(Ordering::Relaxed) {
            self.refused.fetch_add(1, Ordering::Relaxed);
            return Err(std::io::Error::other("connection refused"));
        }
        self.written.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    fn counts(&self) -> (u64, u64) {
        (self.written.load(Ordering::Relaxed), self.refused.load(Ordering::Relaxed))
    }
}

/// A handler that writes every change to `database`, and passes its errors on.
fn writes_to(database: &Arc<Database>) -> Arc<dyn Sink> {
    let database = Arc::clone(database);
    let writes = handler(move |_| {
        let database = Arc::clone(&database);
        async move { Ok(database.write()?) }
    });
    Arc::new(ObserverExecutor::new(Routes::new().on("*", Operations::ANY, writes)).sink())
}

#[test]
fn by_default_a_handler_waits_for_its_database_for_as_long_as_it_is_away() {
    let (harness, database) = (Harness::new(), Arc::new(Database::default()));
    let away_for = 90 * SECOND;
    let settings = StreamSettings::new("orders").retry;
    let counted = (0..RetrySettings::PANICS_MAX).map(|at| settings.backoff.cap(at)).sum::<Duration>();
    assert!(settings.attempts.is_none() && away_for > 10 * counted, "far longer than five attempts take");

    let run = || {
        let a = harness.instance("a").into_sink(writes_to(&database)).start();
        harness.append(&["a"]);
        harness.until("the first change is committed", || harness.committed() == 1);
        database.is_away.store(true, Ordering::Relaxed);
        harness.append(&["b", "c"]);
        harness.run_for(away_for);
        let status = a.status();
        assert_eq!((status.state, status.halted, status.tenures), (Running, false, 1));
        assert_eq!((harness.committed(), harness.ledger().len()), (1, 0), "no change is passed over or given up");
        assert!(database.counts().1 > u64::from(RetrySettings::PANICS_MAX), "{database:?}");
        database.is_away.store(false, Ordering::Relaxed);
        harness.until("the rest is committed", || harness.committed() == 3);
        assert_eq!((database.counts().0, harness.ledger().len(), a.status().halted), (3, 0, false));
    };
    let warnings = Warnings::during(run, &["did not take a change", "is repeated"]);
    assert_eq!(warnings, 2, "once a minute");
}

#[test]
fn a_sink_that_its_user_shares_delivers() {
    let (harness, database) = (Harness::new(), Arc::new(Database::default()));
    let shared: Arc<dyn Sink> = writes_to(&database);
    // As a builder does that takes any sink.
    fn boxed(sink: impl Sink + 'static) -> Arc<dyn Sink> {
        Arc::new(sink)
    }
    let _a = harness.instance("a").into_sink(boxed(Arc::clone(&shared))).start();
    harness.append(&["a", "b"]);
    harness.until("all is committed", || harness.committed() == 2);
    assert_eq!(database.counts(), (2, 0));
    assert_eq!(Arc::new(Arc::clone(&shared)).profile(), shared.profile());
}
