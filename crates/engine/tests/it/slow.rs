//! Handlers that take long for a batch: what they have taken is committed meanwhile.

use std::sync::Arc;
use std::time::Duration;

use watchkeeper_core::Sink;
use watchkeeper_engine::delivery::{ObserverExecutor, Operations, Routes, handler};

use crate::support::*;

/// Handlers that take so long for each change.
fn slow(harness: &Harness, takes: Duration) -> Arc<dyn Sink> {
    let clock = harness.world.clock();
    let waits = handler(move |_| {
        let clock = Arc::clone(&clock);
        async move {
            clock.sleep_until(clock.now() + takes).await;
            Ok(())
        }
    });
    Arc::new(ObserverExecutor::new(Routes::new().on("*", Operations::ANY, waits)).sink())
}

/// The longest time for which the committed position stood still while changes were delivered.
fn longest_standstill(lanes: usize) -> Duration {
    let harness = Harness::new();
    let plan = harness.instance("a").stream(|stream| stream.concurrency = lanes);
    harness.append_many(1_000);
    let a = plan.into_sink(slow(&harness, 50 * MILLI)).start();
    harness.until("it runs", || a.is_running());
    let (mut committed, mut since, mut longest) = (0, harness.now(), Duration::ZERO);
    while committed < 1_000 {
        harness.run_for(100 * MILLI);
        if harness.committed() > committed {
            (committed, since) = (harness.committed(), harness.now());
        }
        longest = longest.max(harness.now().since(since));
    }
    longest
}

#[test]
fn what_slow_handlers_have_taken_is_committed_in_the_usual_rhythm() {
    for lanes in [1, 4] {
        let longest = longest_standstill(lanes);
        assert!(longest < 2_500 * MILLI, "{lanes} lanes: nothing was committed for {longest:?}");
    }
}

#[test]
fn after_a_crash_in_the_middle_of_a_slow_batch_only_the_last_moments_come_again() {
    let harness = Harness::new();
    harness.append_many(1_000);
    let a = harness.instance("a").into_sink(slow(&harness, 50 * MILLI)).start();
    harness.until("it runs", || a.is_running());
    harness.run_for(10 * SECOND);
    a.node.kill();
    // 50 ms each: 200 were taken.
    assert!((150..=200).contains(&harness.committed()), "{} are committed", harness.committed());
}
