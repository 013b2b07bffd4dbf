//! What an opening gave up may still take effect. Sinks that would take it have to settle before the stream is opened again.

use std::time::Duration;

use watchkeeper_core::{Grade, SinkProfile};
use watchkeeper_engine::listener::ListenerState::Recovering;
use watchkeeper_testkit::faults::{Fault, Gate};

use crate::support::*;

const SETTLE: Duration = Duration::from_secs(20);

/// The first flush of change 1 is held up, and given up after a second; only then change 2, of the same key, is there.
fn flush_given_up(harness: &Harness, grade: Grade) -> (TestInstance, Gate) {
    let profile = SinkProfile::new(grade, SETTLE);
    let plan = harness.instance("a").profile(profile).stream(|settings| settings.timeouts.write = SECOND);
    let a = plan.start();
    harness.until("a runs", || a.is_running());
    let gate = Gate::default();
    a.faults.sink.next("flush", Fault::Hold(gate.clone()));
    harness.append(&["x"]);
    harness.until("the flush is held", || gate.arrived() == 1);
    harness.until("it is given up", || a.state() == Recovering);
    harness.append(&["x"]);
    (a, gate)
}

#[test]
fn a_reopening_waits_until_a_flush_that_was_given_up_at_a_fenced_sink_has_settled() {
    for grade in [Grade::Fenced, Grade::Idempotent, Grade::Plain] {
        let harness = Harness::new();
        let (a, gate) = flush_given_up(&harness, grade);
        let (given_up, opened) = (harness.now(), a.faults.sink.calls("open"));
        harness.run_for(SETTLE - 10 * MILLI);
        assert_eq!(a.faults.sink.calls("open"), opened, "{grade:?}: opened again before it had settled");
        // At the last moment it takes effect after all. The fence lets it in: it has the epoch of what follows.
        gate.open();
        harness.until("both are committed", || harness.committed() == 2);
        assert!(harness.now().since(given_up) >= SETTLE, "{grade:?}");
        // Change 1 again, unless the sink knows it; never after change 2, and all in one tenure.
        let again: &[u64] = if grade == Grade::Idempotent { &[1, 2] } else { &[1, 1, 2] };
        assert_eq!(harness.delivered(), again, "{grade:?}");
        assert_eq!(a.status().tenures, 1, "{grade:?}");
    }
}

#[test]
fn a_versioned_sink_does_not_wait_for_what_it_will_not_take() {
    let harness = Harness::new();
    let (_a, gate) = flush_given_up(&harness, Grade::Versioned);
    let given_up = harness.now();
    harness.until("both are committed", || harness.committed() == 2);
    assert!(harness.now().since(given_up) < SETTLE / 2, "{:?}", harness.now().since(given_up));
    gate.open();
    harness.run_for(SECOND);
    assert_eq!(harness.delivered(), [1, 2], "what came late was without effect");
}
