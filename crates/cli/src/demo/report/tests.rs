use std::time::Instant;

use watchkeeper::sqlite::rusqlite::Connection;
use watchkeeper::{Result, Seams};
use watchkeeper_drill::{Entry, Ledger};

use super::*;
use crate::demo::target::Target;
use crate::demo::workspace::Workspace;

/// Three changes of two orders, as the writer would have entered them.
fn ledger() -> Ledger {
    let mut ledger = Ledger::default();
    for id in ["order 01", "order 02", "order 01"] {
        ledger.enter(id, Entry::Acknowledged);
    }
    ledger
}

/// What is right: everything once, in order, and the newer epoch after the older.
const SOUND: &str = "INSERT INTO received(id, n, written_micros, epoch) VALUES
    ('order 01', 1, 0, 1), ('order 02', 1, 0, 1), ('order 01', 2, 0, 2)";

/// The report on a sink, in the demo's own file and table, that somebody has doctored with these statements.
fn report(doctor: &str) -> Report {
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    let place = Workspace::new(folder.path());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime can be had");
    let set_up: Result<()> = runtime.block_on(async { place.set_up(&Seams::system().cx()).await });
    set_up.expect("the place can be set up");
    let sink = Connection::open(place.received()).expect("the sink's file is there");
    sink.execute_batch(SOUND).and_then(|()| sink.execute_batch(doctor)).expect("the table is there");
    let mut target = Target::open(&place.received(), Instant::now()).expect("it can be read");
    target.read_new().expect("it can be read");
    let verdict = Verdict::new(&ledger(), target.arrivals(), 0);
    Report { verdict, takeovers: Vec::new(), faults: Vec::new(), missing: Vec::new(), interrupted: false }
}

#[test]
fn a_sink_that_received_everything_is_good() {
    let report = report("");
    assert!(report.is_good(), "{report:?}");
    assert_eq!((report.verdict.written, report.verdict.delivered), (3, 3));
    assert!(report.text(false).contains("All 3 changes arrived"), "{}", report.text(false));
}

#[test]
fn a_doctored_sink_makes_the_verdict_red() {
    type Count = fn(&Verdict) -> u64;
    let cases: [(&str, &str, Count); 4] = [
        ("a lost change", "DELETE FROM received WHERE number = 3", |verdict| verdict.lost.count),
        ("a duplicate", "INSERT INTO received(id, n, written_micros, epoch) VALUES ('order 01', 2, 0, 2)", |verdict| {
            verdict.duplicated.count
        }),
        ("a wrong order", "UPDATE received SET n = 3 - n WHERE id = 'order 01'", |verdict| verdict.out_of_order.count),
        ("a stale write", "UPDATE received SET epoch = 3 WHERE number = 2", |verdict| verdict.stale_accepted.count),
    ];
    for (what, doctor, count) in cases {
        let report = report(doctor);
        assert_eq!(count(&report.verdict), 1, "{what}: {:?}", report.verdict);
        assert!(!report.is_good(), "{what} is called good");
        assert!(report.text(false).contains("A promise was broken"), "{what}");
    }
}

#[test]
fn too_few_faults_are_reported_and_not_good() {
    let report = Report { missing: vec!["SIGKILL: 4 of 5".to_owned()], ..report("") };
    assert!(report.is_sound() && !report.is_good());
    assert!(report.text(false).contains("SIGKILL: 4 of 5"));
}

#[test]
fn median_and_slowest_are_of_one_kind() {
    let takeover = |kind, millis| Takeover { kind, from: "a".to_owned(), to: "b".to_owned(), epoch: 2, millis };
    let takeovers = vec![takeover(Fault::Kill, 10.0), takeover(Fault::Kill, 40.0), takeover(Fault::Fail, 99.0)];
    let report = Report { takeovers, faults: vec![Fault::Kill, Fault::Kill, Fault::Fail], ..report("") };
    let expected = Figures { faults: 2, count: 2, median_ms: Some(25.0), max_ms: Some(40.0) };
    assert_eq!(report.figures(Fault::Kill), expected);
    assert_eq!(report.figures(Fault::Stop), Figures { faults: 0, count: 0, median_ms: None, max_ms: None });
}
