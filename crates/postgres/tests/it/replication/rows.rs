use std::sync::Arc;

use watchkeeper_core::{ChangeStream, Limits, Operation, Source, StartAt, ValueRef};

use super::bench::{LIMITS, Watch, cx, on_both, operations, shown};

#[test]
fn values_are_reported_as_the_server_holds_them() {
    let schema = "CREATE TYPE mood AS ENUM ('glad', 'sad'); CREATE TABLE things(id int PRIMARY KEY, b bool, s smallint, l bigint,
        f real, d double precision, n numeric, t text, c char(4), j json, jb jsonb, y bytea, dt date, ts timestamp, tz timestamptz, iv interval,
        u uuid, ia int[], ta text[], na numeric[], m mood, r int4range, x text)";
    on_both(schema, async |base| {
        let mut watch = Watch::open(&base.source(), StartAt::Now).await;
        base.run(
            r#"INSERT INTO things VALUES (1, true, -3, 9007199254740993, 0.1, 'NaN', 12345678901234567890.1234567890, 'a "b" ü',
            'xy', '{"k": 1.50}', '{"k": [1, null]}', '\x00ff', '2026-02-03', '2026-02-03 04:05:06.789', '2026-02-03 04:05:06.789+02',
            '1 day 2 hours', '00000000-0000-0000-0000-000000000001', '{1,NULL,3}', '{"a,b",c}', '{1.10,NaN}', 'glad', '[1,5)', NULL);
            INSERT INTO things(id, d, n, ts, ia) VALUES (2, '-Infinity', 'NaN', 'infinity', '{{1,2},{3,4}}')"#,
        )
        .await;
        let changes = watch.changes(2).await;
        let first = r#"insert {"before":null,"after":{"id":1,"b":true,"s":-3,"l":9007199254740993,"f":0.1,"#.to_owned()
            + r#""d":{"$numberDouble":"NaN"},"n":{"$numberDecimal":"12345678901234567890.1234567890"},"t":"a \"b\" ü","#
            + r#""c":"xy  ","j":{"k": 1.50},"jb":{"k": [1, null]},"y":{"$binary":{"base64":"AP8=","subType":"00"}},"#
            + r#""dt":"2026-02-03","ts":"2026-02-03T04:05:06.789","tz":"2026-02-03T02:05:06.789+00:00","#
            + r#""iv":"1 day 02:00:00","u":"00000000-0000-0000-0000-000000000001","ia":[1,null,3],"ta":["a,b","c"],"#
            + r#""na":[{"$numberDecimal":"1.10"},{"$numberDecimal":"NaN"}],"m":"glad","r":"[1,5)","x":null}}"#;
        assert_eq!(shown(&changes[0]), first);
        let get = |path: &[&str]| changes[1].get(path).unwrap();
        assert_eq!(get(&["after", "d"]), Some(ValueRef::Double(f64::NEG_INFINITY)));
        assert_eq!(get(&["after", "n"]), Some(ValueRef::Decimal("NaN".into())));
        assert_eq!(get(&["after", "ts"]), Some(ValueRef::Str("infinity".into())));
        assert_eq!(get(&["after", "ia"]), Some(ValueRef::Array));
        assert_eq!(get(&["after", "b"]), Some(ValueRef::Null));
        assert_eq!(get(&["after", "nothing"]), None);
        assert_eq!(get(&["before"]), Some(ValueRef::Null));
        assert_eq!(changes[0].get(&["after", "ia", "2"]).unwrap(), Some(ValueRef::Int32(3)));
        assert_eq!(changes[0].get(&["after", "jb", "k", "0"]).unwrap(), Some(ValueRef::Int64(1)));
        watch.close().await;
    });
}

const TOAST: &str = "CREATE TABLE things(id int PRIMARY KEY, n int, large text);
    ALTER TABLE things ALTER large SET STORAGE EXTERNAL";

#[test]
fn a_large_value_that_did_not_change_is_marked_and_never_null() {
    on_both(TOAST, async |base| {
        let mut watch = Watch::open(&base.source(), StartAt::Now).await;
        base.run("INSERT INTO things VALUES (1, 0, repeat('x', 10000))").await;
        base.run("UPDATE things SET n = 1").await;
        base.run("UPDATE things SET large = NULL").await;
        let changes = watch.changes(3).await;
        assert_eq!(shown(&changes[1]), r#"update {"before":null,"after":{"id":1,"n":1,"large":{"$unchanged":true}}}"#);
        assert_eq!(changes[1].get(&["after", "large"]).unwrap(), Some(ValueRef::Unchanged));
        assert_eq!(shown(&changes[2]), r#"update {"before":null,"after":{"id":1,"n":1,"large":null}}"#);
        watch.close().await;
    });
}

#[test]
fn a_large_value_that_did_not_change_is_found_in_a_whole_old_row() {
    let schema = format!("{TOAST}; ALTER TABLE things REPLICA IDENTITY FULL");
    on_both(&schema, async |base| {
        let mut watch = Watch::open(&base.source(), StartAt::Now).await;
        base.run("INSERT INTO things VALUES (1, 0, repeat('x', 10000))").await;
        base.run("UPDATE things SET n = 1").await;
        base.run("UPDATE things SET id = 2").await;
        base.run("DELETE FROM things").await;
        let changes = watch.changes(5).await;
        let expected = [Operation::Insert, Operation::Update, Operation::Delete, Operation::Insert, Operation::Delete];
        assert_eq!(operations(&changes), expected);
        let large = "x".repeat(10_000);
        for (change, side) in [(1, "before"), (1, "after"), (2, "before"), (3, "after"), (4, "before")] {
            let reported = changes[change].get(&[side, "large"]).unwrap();
            assert_eq!(reported, Some(ValueRef::Str(large.as_str().into())), "{side} of change {change}");
        }
        assert_eq!(changes[3].get(&["before"]).unwrap(), Some(ValueRef::Null));
        // The key is the primary key, although every column counts as identity.
        assert_eq!(changes[0].key(), changes[1].key());
        assert_eq!(changes[3].key(), changes[4].key());
        assert_ne!(changes[1].key(), changes[3].key());
        watch.close().await;
    });
}

#[test]
fn old_rows_are_reported_as_far_as_the_replica_identity_goes() {
    let schema =
        "CREATE TABLE things(id int PRIMARY KEY, n int NOT NULL, v text); CREATE UNIQUE INDEX other ON things(n)";
    on_both(schema, async |base| {
        let mut watch = Watch::open(&base.source(), StartAt::Now).await;
        base.run("INSERT INTO things VALUES (1, 10, 'a'), (2, 20, 'b'), (3, 30, 'c')").await;
        base.run("DELETE FROM things WHERE id = 1").await;
        base.run("ALTER TABLE things REPLICA IDENTITY FULL").await;
        base.run("UPDATE things SET v = 'bb' WHERE id = 2; DELETE FROM things WHERE id = 2").await;
        let mut changes = watch.changes(6).await;
        watch.close().await;
        base.run("ALTER TABLE things REPLICA IDENTITY USING INDEX other").await;
        let mut watch = Watch::open(&base.source(), StartAt::Now).await;
        base.run("UPDATE things SET id = 4 WHERE id = 3; DELETE FROM things WHERE id = 4").await;
        changes.extend(watch.changes(2).await);
        let reported: Vec<String> = changes[3..].iter().map(shown).collect();
        let expected = [
            r#"delete {"before":{"id":1},"after":null}"#,
            r#"update {"before":{"id":2,"n":20,"v":"b"},"after":{"id":2,"n":20,"v":"bb"}}"#,
            r#"delete {"before":{"id":2,"n":20,"v":"bb"},"after":null}"#,
            r#"update {"before":null,"after":{"id":4,"n":30,"v":"c"}}"#,
            r#"delete {"before":{"n":30},"after":null}"#,
        ];
        assert_eq!(reported, expected);
        watch.close().await;
    });
}

#[test]
fn a_truncate_is_a_barrier_for_each_table() {
    let schema = "CREATE TABLE things(id int PRIMARY KEY); CREATE TABLE parts(id int PRIMARY KEY REFERENCES things)";
    on_both(schema, async |base| {
        let mut settings = base.settings();
        settings.tables.push("public.parts".to_owned());
        let mut watch = Watch::open(&base.source_with(settings), StartAt::Now).await;
        base.run(
            "INSERT INTO things VALUES (1); TRUNCATE things, parts RESTART IDENTITY; INSERT INTO things VALUES (1)",
        )
        .await;
        let changes = watch.changes(4).await;
        let (insert, truncate) = (Operation::Insert, Operation::Truncate);
        assert_eq!(operations(&changes), [insert, truncate, truncate, insert]);
        let mut tables: Vec<_> = changes[1..3].iter().map(watchkeeper_core::Change::namespace).collect();
        tables.sort_unstable();
        assert_eq!(tables, ["public.parts", "public.things"]);
        assert!(changes[1].key().is_none() && changes[2].key().is_none());
        assert_eq!(shown(&changes[1]), r#"truncate {"cascade":false,"restartIdentity":true}"#);
        watch.close().await;
    });
}

#[test]
fn a_column_that_is_dropped_in_flight_stays_with_the_older_rows() {
    on_both("CREATE TABLE things(id int PRIMARY KEY, a text, b text)", async |base| {
        let mut watch = Watch::open(&base.source(), StartAt::Now).await;
        base.run("INSERT INTO things VALUES (1, 'a', 'b')").await;
        base.run("ALTER TABLE things DROP COLUMN a; ALTER TABLE things ADD COLUMN c int DEFAULT 7").await;
        base.run("INSERT INTO things VALUES (2, 'b', 8)").await;
        let changes = watch.changes(2).await;
        assert_eq!(shown(&changes[0]), r#"insert {"before":null,"after":{"id":1,"a":"a","b":"b"}}"#);
        assert_eq!(shown(&changes[1]), r#"insert {"before":null,"after":{"id":2,"b":"b","c":8}}"#);
        watch.close().await;
    });
}

#[test]
fn a_large_transaction_is_read_in_parts_and_resumed_in_its_middle() {
    on_both("CREATE TABLE things(id int PRIMARY KEY, v text)", async |base| {
        let source = base.source();
        let mut watch = Watch::open(&source, StartAt::Now).await;
        base.run("INSERT INTO things SELECT g, repeat('v', 100) FROM generate_series(1, 20000) g").await;
        let once = watch.changes(20_000).await;
        let first = &once[0];
        assert!(once.iter().all(|change| change.get(&["xid"]).unwrap() == first.get(&["xid"]).unwrap()));
        assert!(once.iter().all(|change| change.position().bytes[..8] == first.position().bytes[..8]));
        assert!(once.windows(2).all(|pair| pair[0].version() < pair[1].version()));
        watch.close().await;
        for middle in [1, 7_777, 19_999] {
            let mut watch = Watch::open(&source, StartAt::After(once[middle - 1].position())).await;
            let rest = watch.changes(20_000 - middle).await;
            let same = rest
                .iter()
                .zip(&once[middle..])
                .all(|(again, once)| again.id().to_string() == once.id().to_string() && again.body() == once.body());
            assert!(same, "after change {middle} other changes were read");
            watch.close().await;
        }
    });
}

#[test]
fn transactions_are_reported_in_the_order_of_their_commits() {
    on_both("CREATE TABLE things(id int PRIMARY KEY, v text)", async |base| {
        let mut watch = Watch::open(&base.source(), StartAt::Now).await;
        let mut slow = super::bench::connect(&base.url()).await;
        let slow = slow.transaction().await.unwrap();
        slow.batch_execute("INSERT INTO things VALUES (1, 'begun first')").await.unwrap();
        base.run("INSERT INTO things VALUES (2, 'committed first')").await;
        slow.batch_execute("INSERT INTO things VALUES (3, 'begun first'); SAVEPOINT a; INSERT INTO things VALUES (4, 'undone'); ROLLBACK TO a")
            .await
            .unwrap();
        slow.commit().await.unwrap();
        let changes = watch.changes(3).await;
        let ids: Vec<_> = changes.iter().map(|change| change.get(&["after", "id"]).unwrap()).collect();
        assert_eq!(ids, [2, 1, 3].map(|id| Some(ValueRef::Int32(id))));
        watch.close().await;
    });
}

#[test]
fn only_the_tables_that_are_asked_for_are_reported() {
    let schema = "CREATE TABLE things(id int PRIMARY KEY); CREATE TABLE others(id int PRIMARY KEY);
        CREATE PUBLICATION changes FOR TABLE things, others";
    on_both(schema, async |base| {
        let mut watch = Watch::open(&base.source(), StartAt::Now).await;
        base.run("BEGIN; INSERT INTO others VALUES (1); INSERT INTO things VALUES (1); COMMIT; INSERT INTO others VALUES (2)").await;
        base.run("INSERT INTO things VALUES (2)").await;
        let changes = watch.changes(2).await;
        assert!(changes.iter().all(|change| change.namespace() == "public.things"));
        watch.close().await;
    });
}

#[test]
fn from_a_time_on_older_transactions_are_passed_over() {
    on_both("CREATE TABLE things(id int PRIMARY KEY)", async |base| {
        let source = base.source();
        Watch::open(&source, StartAt::Now).await.close().await;
        base.run("INSERT INTO things VALUES (1)").await;
        // The next one is committed at least a millisecond later.
        base.run("SELECT pg_sleep(0.01)").await;
        base.run("INSERT INTO things VALUES (2)").await;
        let mut watch = Watch::open(&source, StartAt::Oldest).await;
        let both = watch.changes(2).await;
        watch.close().await;
        let start = StartAt::Time(both[1].time());
        let mut watch = Watch::open(&source, start).await;
        let opened = watch.stream.position().unwrap();
        assert_eq!(watch.changes(1).await[0].id().to_string(), both[1].id().to_string());
        watch.close().await;
        // Whoever goes on from where it was opened begins at the same change.
        let mut watch = Watch::open(&source, StartAt::After(opened)).await;
        assert_eq!(watch.changes(1).await[0].id().to_string(), both[1].id().to_string());
        watch.close().await;
    });
}

#[test]
fn a_body_can_be_read_without_its_stream() {
    on_both("CREATE TABLE things(id int PRIMARY KEY, v text)", async |base| {
        let source = base.source();
        let mut watch = Watch::open(&source, StartAt::Now).await;
        base.run("INSERT INTO things VALUES (1, 'kept')").await;
        let body = watch.changes(1).await[0].body().to_vec();
        watch.close().await;
        base.run("ALTER TABLE things RENAME v TO w").await;
        let payload = base.source().payload();
        assert_eq!(payload.get(&body, &["after", "v"]).unwrap(), Some(ValueRef::Str("kept".into())));
    });
}

#[test]
fn a_row_larger_than_every_limit_is_read_whole() {
    on_both("CREATE TABLE things(id int PRIMARY KEY, v text)", async |base| {
        let mut stream: Box<dyn ChangeStream> = base.source().open(&cx(), StartAt::Now).await.unwrap();
        base.run("INSERT INTO things VALUES (1, repeat('v', 3000000)); INSERT INTO things VALUES (2, 'small')").await;
        let limits = Limits { bytes: 1_000, ..LIMITS };
        let mut sizes = Vec::new();
        for _ in 0..60 {
            let batch = Arc::new(stream.next_batch(&cx(), limits).await.unwrap());
            if !batch.is_empty() {
                sizes.push((batch.len(), batch.body(0).len() > 3_000_000));
            }
            if sizes.len() == 2 {
                break;
            }
        }
        assert_eq!(sizes, [(1, true), (1, false)]);
        stream.close(&cx()).await.unwrap();
    });
}

#[test]
fn vectors_are_reported_as_the_arrays_that_the_server_makes_of_them() {
    let schema = "CREATE TABLE things(id int PRIMARY KEY, few int2vector, none oidvector, ids oidvector);
        INSERT INTO things VALUES (1, '1 -2', '', '4294967295 7')";
    on_both(schema, async |base| {
        let mut watch = Watch::open(&base.source(), StartAt::Snapshot).await;
        base.run("UPDATE things SET id = id").await;
        let reported = watch.changes(2).await;
        let made = base.ask("SELECT row_to_json(things)::text FROM things").await;
        assert_eq!(made, r#"{"id":1,"few":[1,-2],"none":[],"ids":["4294967295","7"]}"#);
        let made = made.replace("[\"4294967295\",\"7\"]", "[4294967295,7]");
        for change in &reported {
            assert!(shown(change).contains(&made), "{} does not tell {made}", shown(change));
        }
        assert_eq!(reported[0].get(&["after", "few", "1"]).unwrap(), Some(ValueRef::Int32(-2)));
        watch.close().await;
    });
}

#[test]
fn older_rows_are_reported_as_their_table_was_then_although_they_are_read_later() {
    let schema = "CREATE TABLE things(id int PRIMARY KEY, k int, v text)";
    on_both(schema, async |base| {
        let source = base.source();
        let mut watch = Watch::open(&source, StartAt::Now).await;
        base.run("INSERT INTO things VALUES (1, 10, 'read')").await;
        let position = watch.changes(1).await[0].position();
        watch.close().await;
        base.run("INSERT INTO things VALUES (2, 20, 'unread')").await;
        base.run("ALTER TABLE things RENAME v TO w; ALTER TABLE things DROP k; ALTER TABLE things ADD later int").await;
        base.run("INSERT INTO things VALUES (3, 'new')").await;
        let own = Watch::open(&source, StartAt::After(position.clone())).await;
        let aside = Watch { stream: source.peek(&cx(), StartAt::After(position)).await.unwrap() };
        for mut watch in [own, aside] {
            let reported: Vec<String> = watch.changes(2).await.iter().map(shown).collect();
            let expected = [
                r#"insert {"before":null,"after":{"id":2,"k":20,"v":"unread"}}"#,
                r#"insert {"before":null,"after":{"id":3,"w":"new","later":null}}"#,
            ];
            assert_eq!(reported, expected);
            watch.close().await;
        }
    });
}

/// Whoever keeps the newest version of each key goes on with a server that was made later, however short its log is.
#[test]
fn versions_begin_with_the_time_at_which_the_server_was_made() {
    on_both("CREATE TABLE things(id int PRIMARY KEY)", async |base| {
        let mut watch = Watch::open(&base.source(), StartAt::Now).await;
        base.run("INSERT INTO things VALUES (1), (2)").await;
        let changes = watch.changes(2).await;
        watch.close().await;
        let sql = "SELECT to_timestamp(system_identifier >> 32)::text, extract(epoch FROM to_timestamp(system_identifier >> 32))::bigint
            FROM pg_control_system()";
        let row = base.sql.query_one(sql, &[]).await.expect("the server knows it");
        let (made, second): (String, i64) = (row.get(0), row.get(1));
        let reported = changes.iter().map(|change| (change.version().time >> 32) + 1_500_000_000);
        assert!(reported.into_iter().all(|reported| reported == second.unsigned_abs()), "made at {made}");
        assert!(changes[0].version() < changes[1].version());
    });
}
