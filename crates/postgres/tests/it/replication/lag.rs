use watchkeeper_core::{Options, Origin, Report, Severity, Source, StartAt, Tool, WrittenSetting};
use watchkeeper_postgres::replication::Slots;
use watchkeeper_testkit::servers::postgres::Version;

use super::bench::{Base, Watch, block_on, cx, on_both, server};

const THINGS: &str = "CREATE TABLE things(id int PRIMARY KEY)";

async fn slots(base: &Base<'_>) -> Report {
    let origin = Origin::new("command line");
    let mut options = Options::new("", origin.clone());
    options.insert("url", WrittenSetting::text(base.url(), origin));
    let report = Slots.run(&cx(), &mut options).await.expect("the slots can be looked at");
    options.finish().expect("nothing is left over");
    report
}

#[test]
fn slots_tell_how_far_they_are_behind() {
    on_both(THINGS, async |base| {
        assert!(slots(base).await.lines[1].contains("no logical slots"));
        let watch = Watch::open(&base.source(), StartAt::Now).await;
        base.run("INSERT INTO things SELECT generate_series(1, 10000)").await;
        let report = slots(base).await;
        let slot = &report.data["slots"][0];
        assert_eq!((slot["slot"].as_str(), slot["active"].as_bool()), (Some(base.name.as_str()), Some(true)));
        assert!(slot["behind_bytes"].as_u64().unwrap() > 500_000, "{slot}");
        assert!(slot["held_bytes"].as_u64() >= slot["behind_bytes"].as_u64(), "{slot}");
        let is_kept = base.server.version() == Version::V18;
        assert_eq!(slot["failover"].as_bool(), is_kept.then_some(true), "{slot}");
        assert!(report.lines[1].contains("no limit but the disk"), "{:?}", report.lines);
        watch.close().await;
    });
}

#[test]
fn what_will_be_made_and_what_is_in_danger_is_reported_before_it_is_read() {
    for version in Version::ALL {
        let server =
            server(version, &["max_slot_wal_keep_size = '128MB'", "max_wal_size = '32MB'", "min_wal_size = '32MB'"]);
        block_on(async {
            let base = Base::new(&server, THINGS).await;
            let source = base.source();
            let findings = source.check(&cx()).await.unwrap();
            let notes: Vec<_> = findings.iter().map(|finding| (finding.severity, finding.what.as_str())).collect();
            let slot = format!("slot {} is not there yet and will be made", base.name);
            let publication = "publication changes is not there yet and will be made";
            assert_eq!(notes, [(Severity::Note, publication), (Severity::Note, slot.as_str())]);
            let mut open = Watch::open(&source, StartAt::Now).await;
            assert!(!open.stream.holds_back(), "the server keeps 128 MB and no more");
            // What was acknowledged last is no measure of how much the server keeps.
            base.run("INSERT INTO things VALUES (1)").await;
            let change = open.changes(1).await.remove(0);
            open.stream.acknowledge(&cx(), &change.position()).await.unwrap();
            let window = open.stream.window(&cx()).await.unwrap();
            assert_eq!((window.oldest, window.newest), (None, Some(change.time())));
            open.close().await;
            // Until it is in danger, and then lost.
            let mut reported = Vec::new();
            for _ in 0..60 {
                base.run("SELECT pg_switch_wal(); INSERT INTO things VALUES (2); DELETE FROM things; CHECKPOINT").await;
                let findings = source.check(&cx()).await.unwrap();
                reported.extend(findings.into_iter().map(|finding| finding.severity).max());
                if reported.last() == Some(&Severity::Error) {
                    break;
                }
            }
            assert!(reported.contains(&Severity::Warning), "no warning came before the loss: {reported:?}");
            assert_eq!(reported.last(), Some(&Severity::Error));
            assert!(slots(&base).await.lines.iter().any(|line| line.contains("was invalidated")));
        });
    }
}
