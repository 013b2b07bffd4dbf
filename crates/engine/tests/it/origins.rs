//! Who failed decides what a failure means: only the source can lose the source's history.

use std::sync::Arc;

use watchkeeper_core::memory::TransactionalTable;
use watchkeeper_core::{ErrorKind, LedgerKind, StartAt};
use watchkeeper_engine::settings::OnHistoryLost;
use watchkeeper_testkit::faults::{Fault, Script};

use crate::support::*;

/// What becomes of a stream after one failed call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Effect {
    /// It goes on by itself and delivers everything.
    GoesOn,
    /// It halts until a person resumes it, and then delivers everything.
    Halts,
    /// It passes over what it can no longer read, as `on_history_lost` says.
    Gap,
}

use Effect::{Gap, GoesOn, Halts};

const KINDS: [ErrorKind; 8] = [
    ErrorKind::Config,
    ErrorKind::Denied,
    ErrorKind::Unavailable,
    ErrorKind::Unknown,
    ErrorKind::Fenced,
    ErrorKind::PositionLost,
    ErrorKind::Corrupt,
    ErrorKind::Internal,
];

/// The effect of each origin's errors of the kinds `PositionLost` and `Corrupt`. All other kinds pass.
const ORIGINS: [(&str, &[&str], Effect, Effect); 7] = [
    ("source", &["verify", "identity", "open", "next_batch"], Gap, Halts),
    // The position of an acknowledgement or a window is not the one that is read.
    ("source", &["acknowledge", "window"], GoesOn, GoesOn),
    ("sink", &["open", "write", "flush", "write_and_commit"], GoesOn, Halts),
    ("checkpoints", &["commit", "ledger", "identity"], GoesOn, Halts),
    // A claim that failed before it took effect cannot write a halt; `lost` tests those that take effect.
    ("checkpoints", &["claim"], GoesOn, GoesOn),
    ("leases", &["try_acquire", "renew", "holders"], GoesOn, GoesOn),
    ("records", &["get", "put_if", "list"], GoesOn, GoesOn),
];

/// The effect of one call that fails.
fn effect_of(origin: &str, call: &'static str, kind: ErrorKind) -> Effect {
    let harness = Harness::new();
    let transactional = call == "write_and_commit";
    let plan = |name: &str| {
        let plan = harness.instance(name).stream(|it| it.on_history_lost = OnHistoryLost::GoOn(StartAt::Now));
        if transactional {
            plan.into_sink(Arc::new(TransactionalTable::new(harness.checkpoints.clone())))
        } else {
            plan
        }
    };
    let delivered = || if transactional { numbers(&harness.checkpoints.delivered()) } else { harness.delivered() };
    let first = plan("first").start();
    harness.append_many(3);
    harness.until("the first changes are committed", || harness.committed() == 3);
    first.stop(&harness);

    // Nobody runs: an instance that goes on at the newest change passes over these.
    harness.append_many(3);
    let second = plan("second");
    let script = script_of(&second.faults, origin).clone();
    // An instance that cannot join its group ends; this is about what comes after.
    let fails_later = origin == "records";
    if !fails_later {
        script.next(call, Fault::Reject(kind));
    }
    let _second = second.start();
    if fails_later {
        let is_second = |(name, _): (String, _)| name == "second";
        harness.until("it has joined, and has the lease", || harness.holder().is_some_and(is_second));
        script.next(call, Fault::Reject(kind));
    }
    harness.run_for(30 * SECOND);
    harness.append_many(3);
    harness.run_for(100 * SECOND);
    assert_eq!(script.pending(call), 0, "{origin} {call} {kind:?}: the call was made");
    let gaps = harness.ledger().iter().filter(|record| record.entry.kind == LedgerKind::Gap).count();
    let halted = harness.checkpoint().and_then(|checkpoint| checkpoint.halted);
    match (gaps, halted) {
        (0, None) => {
            let missing: Vec<_> = (1..=9).filter(|number| !delivered().contains(number)).collect();
            assert!(missing.is_empty(), "{origin} {call} {kind:?}: {missing:?} are missing");
            GoesOn
        }
        (0, Some(_)) => Halts,
        _ => Gap,
    }
}

fn script_of<'a>(faults: &'a Faults, origin: &str) -> &'a Script {
    match origin {
        "source" => &faults.source,
        "sink" => &faults.sink,
        "checkpoints" => &faults.checkpoints,
        "leases" => &faults.leases,
        _ => &faults.records,
    }
}

#[test]
fn only_the_source_loses_history_and_every_origin_has_its_scope() {
    let mut wrong = Vec::new();
    for (origin, calls, lost, corrupt) in ORIGINS {
        for call in calls {
            for kind in KINDS {
                let expected = match kind {
                    ErrorKind::PositionLost => lost,
                    ErrorKind::Corrupt => corrupt,
                    _ => GoesOn,
                };
                let effect = effect_of(origin, call, kind);
                if effect != expected {
                    wrong.push(format!("{origin} {call} {kind:?}: {effect:?} instead of {expected:?}"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}
