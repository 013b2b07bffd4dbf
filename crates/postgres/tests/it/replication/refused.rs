use watchkeeper_core::Operation::{Delete, Insert};
use watchkeeper_core::{ErrorKind, Source, StartAt, ValueRef};
use watchkeeper_postgres::replication::Settings;
use watchkeeper_postgres::{Config, Replication};
use watchkeeper_testkit::servers::postgres::{Server, Version};

use super::bench::{Base, LIMITS, Watch, assert_error, block_on, cx, on_both, server, shared};

const THINGS: &str = "CREATE TABLE things(id int PRIMARY KEY, v text)";

/// Opens, and expects to be told why not.
async fn refused(source: &Replication, start: StartAt, kind: ErrorKind, cause: &str) {
    assert_error(source.open(&cx(), start).await.map(drop), kind, cause);
}

#[test]
fn a_server_without_logical_decoding_is_refused() {
    for version in Version::ALL {
        let server = server(version, &["wal_level = replica"]);
        block_on(async {
            let base = Base::new(&server, THINGS).await;
            refused(&base.source(), StartAt::Now, ErrorKind::Config, "wal_level is replica").await;
            assert_error(base.source().check(&cx()).await, ErrorKind::Config, "wal_level is replica");
        });
    }
}

#[test]
fn a_slot_that_is_gone_made_anew_or_passed_is_lost_history() {
    on_both(THINGS, async |base| {
        let (source, name) = (base.source(), &base.name);
        let mut watch = Watch::open(&source, StartAt::Now).await;
        base.run("INSERT INTO things VALUES (1)").await;
        let position = watch.changes(1).await[0].position();
        watch.close().await;
        let pedigree = source.identity(&cx()).await.unwrap();
        let lost = async |cause: &str| {
            assert_error(source.verify(&cx(), &position, &pedigree).await, ErrorKind::PositionLost, cause);
            refused(&source, StartAt::After(position.clone()), ErrorKind::PositionLost, cause).await;
        };
        base.when_free(&format!("SELECT pg_replication_slot_advance('{name}', pg_current_wal_lsn())")).await;
        lost("has passed").await;
        base.when_free(&format!("SELECT pg_drop_replication_slot('{name}')")).await;
        lost("is not there any more").await;
        base.run(&format!("SELECT pg_create_logical_replication_slot('{name}', 'pgoutput')")).await;
        lost("has passed").await;
        // Who starts anew on purpose may.
        let mut watch = Watch::open(&source, StartAt::Oldest).await;
        base.run("INSERT INTO things VALUES (2)").await;
        watch.changes(1).await;
        watch.close().await;
    });
}

#[test]
fn a_slot_that_the_server_gave_up_is_lost_history_and_made_anew_on_purpose() {
    for version in Version::ALL {
        let lines = ["max_slot_wal_keep_size = '1MB'", "min_wal_size = '32MB'", "max_wal_size = '32MB'"];
        let server = server(version, &lines);
        block_on(async {
            let base = Base::new(&server, THINGS).await;
            let source = base.source();
            let watch = Watch::open(&source, StartAt::Now).await;
            let position = watch.stream.position().unwrap();
            watch.close().await;
            let status = format!("SELECT wal_status FROM pg_replication_slots WHERE slot_name = '{}'", base.name);
            for _ in 0..60 {
                base.run("SELECT pg_switch_wal(); INSERT INTO things SELECT 1; DELETE FROM things; CHECKPOINT").await;
                if base.ask(&status).await == "lost" {
                    break;
                }
            }
            assert_eq!(base.ask(&status).await, "lost");
            refused(&source, StartAt::After(position), ErrorKind::PositionLost, "was invalidated by the server").await;
            let mut watch = Watch::open(&source, StartAt::Oldest).await;
            base.run("INSERT INTO things VALUES (2)").await;
            watch.changes(1).await;
            watch.close().await;
        });
    }
}

#[test]
fn a_position_of_another_server_is_recognised() {
    let [mine, theirs] = Version::ALL;
    block_on(async {
        let (here, there) = (Base::new(shared(mine), THINGS).await, Base::new(shared(theirs), THINGS).await);
        let (source, other) = (here.source(), there.source());
        let watch = Watch::open(&source, StartAt::Now).await;
        let position = watch.stream.position().unwrap();
        watch.close().await;
        Watch::open(&other, StartAt::Now).await.close().await;
        let pedigree = source.identity(&cx()).await.unwrap();
        source.verify(&cx(), &position, &pedigree).await.unwrap();
        assert_error(
            other.verify(&cx(), &position, &pedigree).await,
            ErrorKind::PositionLost,
            "belongs to the cluster",
        );
        here.done().await;
        there.done().await;
    });
}

#[test]
fn a_server_that_was_restored_from_a_backup_is_recognised() {
    for version in Version::ALL {
        let (original, restored, name, opened) = restored_before_reading(version);
        let source = |url: &str| Replication::new(Config::new(url).expect("the URL is one"), opened.clone());
        block_on(async {
            let before = source(&original.url(&name));
            let mut watch = Watch::open(&before, StartAt::Oldest).await;
            let sql = super::bench::connect(&original.url(&name)).await;
            sql.batch_execute("INSERT INTO things SELECT g, repeat('v', 1000) FROM generate_series(1, 1000) g")
                .await
                .unwrap();
            let position = watch.changes(1_000).await[999].position();
            let pedigree = before.identity(&cx()).await.unwrap();
            watch.close().await;
            let after = source(&restored.url(&name));
            let reported = after.verify(&cx(), &position, &pedigree).await;
            assert_error(reported, ErrorKind::PositionLost, "restored from a backup");
            refused(&after, StartAt::After(position.clone()), ErrorKind::PositionLost, "restored from a backup").await;
            // Even when its log has grown past the position: the transaction in which the stream stands is not in it.
            let sql = super::bench::connect(&restored.url(&name)).await;
            sql.batch_execute("INSERT INTO things SELECT g, repeat('w', 1000) FROM generate_series(1, 3000) g")
                .await
                .unwrap();
            let mut watch = Watch::open(&after, StartAt::After(position)).await;
            let error = watch.error().await;
            assert_eq!(error.kind(), ErrorKind::PositionLost, "{error}");
            watch.close().await;
        });
    }
}

/// The slot, the tables and the log of a server as they were before anything was read.
fn restored_before_reading(version: Version) -> (Server, Server, String, Settings) {
    let original = server(version, &[]);
    let (name, settings) = block_on(async {
        let base = Base::new(&original, THINGS).await;
        Watch::open(&base.source(), StartAt::Now).await.close().await;
        let settings = base.settings();
        (base.name, settings)
    });
    original.stop();
    let restored = original.restored();
    original.restart();
    (original, restored, name, settings)
}

#[test]
fn a_restored_server_whose_log_has_grown_past_a_position_between_transactions_is_recognised() {
    for version in Version::ALL {
        let (original, restored, name, settings) = restored_before_reading(version);
        let source = |server: &Server| Replication::new(Config::new(&server.url(&name)).unwrap(), settings.clone());
        block_on(async {
            let before = source(&original);
            let mut watch = Watch::open(&before, StartAt::Oldest).await;
            let sql = super::bench::connect(&original.url(&name)).await;
            for id in 1..=3 {
                sql.batch_execute(&format!("INSERT INTO things VALUES ({id}, 'read')")).await.unwrap();
            }
            watch.changes(3).await;
            // The transaction is over, and the server has told that nothing follows.
            for _ in 0..2 {
                assert!(watch.stream.next_batch(&cx(), LIMITS).await.unwrap().is_empty());
            }
            let position = watch.stream.position().unwrap();
            watch.close().await;
            let mut watch = Watch::open(&before, StartAt::After(position.clone())).await;
            sql.batch_execute("INSERT INTO things VALUES (4, 'new')").await.unwrap();
            assert_eq!(watch.changes(1).await[0].get(&["after", "id"]).unwrap(), Some(ValueRef::Int32(4)));
            watch.close().await;
            let sql = super::bench::connect(&restored.url(&name)).await;
            for id in 1..=100 {
                sql.batch_execute(&format!("INSERT INTO things VALUES ({id}, 'another history')")).await.unwrap();
            }
            let mut watch = Watch::open(&source(&restored), StartAt::After(position)).await;
            let reported = watch.stream.next_batch(&cx(), LIMITS).await;
            assert_error(reported.map(|batch| batch.len()), ErrorKind::PositionLost, "where the stream stands");
            watch.close().await;
        });
    }
}

#[test]
fn who_may_not_replicate_is_reported_what_is_missing() {
    on_both(THINGS, async |base| {
        let user = format!("u{}", &base.name[5..21]);
        base.run(&format!("CREATE ROLE {user} LOGIN; GRANT SELECT ON things TO {user}")).await;
        let url = base.server.url_of(&user, &base.name);
        let source = Replication::new(Config::new(&url).unwrap(), base.settings());
        assert_error(source.open(&cx(), StartAt::Now).await.map(drop), ErrorKind::Denied, "42501");
        // It may replicate, but not publish what it does not own.
        base.run(&format!("ALTER ROLE {user} REPLICATION")).await;
        assert_error(source.open(&cx(), StartAt::Now).await.map(drop), ErrorKind::Denied, "42501");
        base.run("CREATE PUBLICATION changes FOR TABLE things").await;
        let mut watch = Watch::open(&source, StartAt::Now).await;
        base.run("INSERT INTO things VALUES (1)").await;
        watch.changes(1).await;
        watch.close().await;
    });
}

#[test]
fn rows_that_a_policy_hides_are_not_left_out_of_a_snapshot() {
    on_both(THINGS, async |base| {
        let user = format!("u{}", &base.name[5..21]);
        base.run(&format!(
            "CREATE ROLE {user} LOGIN REPLICATION; GRANT SELECT ON things TO {user}; INSERT INTO things VALUES (1), (2);
            CREATE PUBLICATION changes FOR TABLE things; ALTER TABLE things ENABLE ROW LEVEL SECURITY;
            CREATE POLICY few ON things USING (id > 1)"
        ))
        .await;
        let url = base.server.url_of(&user, &base.name);
        let source = Replication::new(Config::new(&url).unwrap(), base.settings());
        let mut watch = Watch::open(&source, StartAt::Snapshot).await;
        let reported = watch.stream.next_batch(&cx(), LIMITS).await;
        assert_error(reported.map(|batch| batch.len()), ErrorKind::Denied, "row-level security");
        watch.close().await;
    });
}

#[test]
fn tables_without_an_identity_are_refused() {
    for (change, what) in [
        ("ALTER TABLE things DROP CONSTRAINT things_pkey", "no primary key"),
        ("ALTER TABLE things REPLICA IDENTITY NOTHING", "no replica identity"),
        ("ALTER TABLE things DROP CONSTRAINT things_pkey; ALTER TABLE things REPLICA IDENTITY FULL", "only whole rows"),
    ] {
        on_both(&format!("{THINGS}; {change}"), async |base| {
            let cause = "public.things has no key that its rows can be told apart by";
            refused(&base.source(), StartAt::Now, ErrorKind::Config, cause).await;
            let findings = base.source().check(&cx()).await.unwrap();
            assert!(findings.iter().any(|finding| finding.what.contains(cause)), "{what}: {findings:?}");
        });
    }
}

#[test]
fn a_wrong_publication_table_or_slot_is_reported() {
    on_both(THINGS, async |base| {
        let mut settings = base.settings();
        settings.tables = vec!["thingz".to_owned()];
        refused(&base.source_with(settings.clone()), StartAt::Now, ErrorKind::Config, "thingz").await;
        settings.tables.clear();
        refused(&base.source_with(settings.clone()), StartAt::Now, ErrorKind::Config, "no publication changes").await;
        base.run("CREATE PUBLICATION changes").await;
        settings.tables = vec!["things".to_owned()];
        let cause = "publication changes does not tell of table public.things";
        refused(&base.source_with(settings.clone()), StartAt::Now, ErrorKind::Config, cause).await;
        base.run("ALTER PUBLICATION changes ADD TABLE things").await;
        let name = &base.name;
        base.run(&format!("SELECT pg_create_physical_replication_slot('{name}')")).await;
        // Also by a snapshot, which makes its slot anew: this one is somebody else's.
        for start in [StartAt::Now, StartAt::Snapshot] {
            refused(&base.source(), start, ErrorKind::Config, "is not a logical one of pgoutput").await;
        }
        base.run(&format!("SELECT pg_drop_replication_slot('{name}')")).await;
        let elsewhere = super::bench::connect(&base.server.url("postgres")).await;
        let create = format!("SELECT pg_create_logical_replication_slot('{name}', 'pgoutput')");
        elsewhere.batch_execute(&create).await.unwrap();
        for start in [StartAt::Now, StartAt::Snapshot] {
            refused(&base.source(), start, ErrorKind::Config, "belongs to the database postgres").await;
        }
        elsewhere.batch_execute(&format!("SELECT pg_drop_replication_slot('{name}')")).await.unwrap();
    });
}

#[test]
fn a_publication_that_goes_while_it_is_read_is_reported() {
    on_both(THINGS, async |base| {
        let source = base.source();
        let mut watch = Watch::open(&source, StartAt::Now).await;
        base.run("INSERT INTO things VALUES (1)").await;
        let position = watch.changes(1).await[0].position();
        watch.close().await;
        base.run("DROP PUBLICATION changes").await;
        refused(&source, StartAt::After(position), ErrorKind::Config, "no publication changes").await;
    });
}

#[test]
fn a_publication_that_leaves_something_out_is_reported() {
    on_both(THINGS, async |base| {
        base.run("CREATE PUBLICATION changes FOR TABLE things WITH (publish = 'insert, update')").await;
        let findings = base.source().check(&cx()).await.unwrap();
        let reported = "publication changes does not tell of deletes, truncates";
        assert!(findings.iter().any(|finding| finding.what.contains(reported)), "{findings:?}");
        base.run("ALTER PUBLICATION changes SET (publish = 'insert, update, delete, truncate')").await;
        let findings = base.source().check(&cx()).await.unwrap();
        assert!(findings.iter().all(|finding| !finding.what.contains("does not tell")), "{findings:?}");
    });
}

const PARTS: &str = "CREATE TABLE things (id int PRIMARY KEY, value text) PARTITION BY RANGE (id);
    CREATE TABLE low PARTITION OF things FOR VALUES FROM (0) TO (10);
    CREATE TABLE high PARTITION OF things FOR VALUES FROM (10) TO (20);
    INSERT INTO things VALUES (1, 'there')";

#[test]
fn a_table_in_parts_is_reported_under_its_own_name() {
    on_both(PARTS, async |base| {
        let mut watch = Watch::open(&base.source(), StartAt::Snapshot).await;
        base.run("INSERT INTO things VALUES (2, 'low'), (12, 'high'); UPDATE things SET id = 11 WHERE id = 1").await;
        let changes = watch.changes(5).await;
        let reported: Vec<_> = changes.iter().map(|change| (change.namespace(), change.operation())).collect();
        let table = "public.things";
        let read = changes[0].operation();
        assert_eq!(reported, [(table, read), (table, Insert), (table, Insert), (table, Delete), (table, Insert)]);
        watch.close().await;
        let error = "ALTER PUBLICATION changes SET (publish_via_partition_root = false)";
        base.run(error).await;
        let findings = base.source().check(&cx()).await.unwrap();
        let advises = |finding: &watchkeeper_core::Finding| {
            finding.remedy.as_ref().is_some_and(|remedy| remedy.contains("publish_via_partition_root = true"))
        };
        assert!(findings.iter().any(advises), "{findings:?}");
    });
}

#[test]
fn a_gap_can_be_accepted_although_there_is_no_slot() {
    on_both(THINGS, async |base| {
        let (source, name) = (base.source(), &base.name);
        let mut watch = Watch::open(&source, StartAt::Now).await;
        base.run("INSERT INTO things VALUES (1)").await;
        let old = watch.changes(1).await[0].position();
        let pedigree = source.identity(&cx()).await.unwrap();
        watch.close().await;
        base.when_free(&format!("SELECT pg_drop_replication_slot('{name}')")).await;
        assert_error(source.verify(&cx(), &old, &pedigree).await, ErrorKind::PositionLost, "not there any more");
        for start in [StartAt::Oldest, StartAt::Now] {
            // Somebody looks where it could go on: nothing is made for that.
            let log = source.peek(&cx(), start).await.unwrap();
            let accepted = log.position().unwrap();
            log.close(&cx()).await.unwrap();
            let count = format!("SELECT count(*)::text FROM pg_replication_slots WHERE slot_name = '{name}'");
            assert_eq!(base.ask(&count).await, "0");
            source.verify(&cx(), &accepted, &pedigree).await.unwrap();
            // Of the first attempt nothing is committed; the next one begins with the same slot, and so with the same change.
            let mut watch = Watch::open(&source, StartAt::After(accepted.clone())).await;
            base.run("INSERT INTO things VALUES (2)").await;
            let first = watch.changes(1).await[0].id().to_string();
            watch.close().await;
            let mut watch = Watch::open(&source, StartAt::After(accepted)).await;
            let again = watch.changes(1).await[0].clone();
            assert_eq!(again.id().to_string(), first);
            let place = again.position();
            watch.close().await;
            // From there on it is a place like any other: without its slot it is lost.
            source.verify(&cx(), &place, &pedigree).await.unwrap();
            base.when_free(&format!("SELECT pg_drop_replication_slot('{name}')")).await;
            assert_error(source.verify(&cx(), &place, &pedigree).await, ErrorKind::PositionLost, "not there any more");
            base.run("DELETE FROM things WHERE id = 2").await;
        }
    });
}

#[test]
fn what_watchkeeper_writes_for_itself_is_not_reported() {
    let own = "CREATE SCHEMA watchkeeper; CREATE TABLE watchkeeper.leases(id int PRIMARY KEY);
        INSERT INTO watchkeeper.leases VALUES (1)";
    on_both(&format!("{THINGS}; {own}; CREATE PUBLICATION changes FOR ALL TABLES"), async |base| {
        let mut settings = base.settings();
        settings.tables.clear();
        base.run("INSERT INTO things VALUES (1)").await;
        let mut watch = Watch::open(&base.source_with(settings), StartAt::Snapshot).await;
        base.run("INSERT INTO watchkeeper.leases VALUES (2); INSERT INTO things VALUES (2)").await;
        let reported = watch.changes(2).await;
        assert!(reported.iter().all(|change| change.namespace() == "public.things"), "{reported:?}");
        watch.close().await;
    });
}
