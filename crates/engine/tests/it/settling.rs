//! What an opening gave up may still take effect. Sinks that would take it have to settle before the stream is opened again.

use std::time::Duration;

use watchkeeper_core::{Grade, SinkProfile};
use watchkeeper_engine::listener::ListenerState::Recovering;
use watchkeeper_testkit::faults::{Fault, Gate};

use crate::support::*;

const SETTLE: Duration = Duration::from_secs(20);

/// The first flush of change 1 is held up, and given up after a second; only then change 2, of the same key, is there.
fn flush_given_up(rig: &Rig, grade: Grade) -> (Actor, Gate) {
    let profile = SinkProfile::new(grade, SETTLE);
    let plan = rig.instance("a").profile(profile).stream(|settings| settings.timeouts.write = SECOND);
    let a = plan.start();
    rig.until("a runs", || a.is_running());
    let gate = Gate::default();
    a.faults.sink.next("flush", Fault::Hold(gate.clone()));
    rig.append(&["x"]);
    rig.until("the flush is held", || gate.arrived() == 1);
    rig.until("it is given up", || a.state() == Recovering);
    rig.append(&["x"]);
    (a, gate)
}

#[test]
fn a_reopening_waits_until_a_flush_that_was_given_up_at_a_fenced_sink_has_settled() {
    for grade in [Grade::Fenced, Grade::Idempotent, Grade::Plain] {
        let rig = Rig::new();
        let (a, gate) = flush_given_up(&rig, grade);
        let (given_up, opened) = (rig.now(), a.faults.sink.calls("open"));
        rig.run_for(SETTLE - 10 * MILLI);
        assert_eq!(a.faults.sink.calls("open"), opened, "{grade:?}: opened again before it had settled");
        // At the last moment it takes effect after all. The fence lets it in: it has the epoch of what follows.
        gate.open();
        rig.until("both are committed", || rig.committed() == 2);
        assert!(rig.now().since(given_up) >= SETTLE, "{grade:?}");
        // Change 1 again, unless the sink knows it; never after change 2, and all in one tenure.
        let again: &[u64] = if grade == Grade::Idempotent { &[1, 2] } else { &[1, 1, 2] };
        assert_eq!(rig.delivered(), again, "{grade:?}");
        assert_eq!(a.status().tenures, 1, "{grade:?}");
    }
}

#[test]
fn a_versioned_sink_does_not_wait_for_what_it_will_not_take() {
    let rig = Rig::new();
    let (_a, gate) = flush_given_up(&rig, Grade::Versioned);
    let given_up = rig.now();
    rig.until("both are committed", || rig.committed() == 2);
    assert!(rig.now().since(given_up) < SETTLE / 2, "{:?}", rig.now().since(given_up));
    gate.open();
    rig.run_for(SECOND);
    assert_eq!(rig.delivered(), [1, 2], "what came late was without effect");
}
