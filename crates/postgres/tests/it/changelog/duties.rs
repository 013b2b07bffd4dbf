//! What triggers owe to the application, and to those who read what they wrote.

use std::sync::Arc;

use watchkeeper_core::{ChangeStream, ErrorKind, Limits, Source, StartAt, Transacted};
use watchkeeper_postgres::Rows;
use watchkeeper_postgres::changelog::{Unread, Wake, install, uninstall};
use watchkeeper_postgres::{Client, Config};
use watchkeeper_testkit::servers::postgres::Version;

use super::support::{LIMITS, Shop, read, received};
use crate::sink::{SinkFixture, shown};
use crate::support::{assert_error, block_on, cx};

/// How a session has its dates written does not change what is logged.
#[test]
fn settings_of_a_session_do_not_change_values() {
    block_on(async {
        let table = "CREATE TABLE things (id int PRIMARY KEY, span tstzrange, days daterange, dates date[])";
        let shop = Shop::with(Version::V18, table, "things").await;
        let mut stream = shop.log().await.open(&cx(), StartAt::Oldest).await.unwrap();
        let write = "INSERT INTO things VALUES (1, tstzrange('2026-02-03 00:00+00', '2026-04-05 00:00+00'),
            daterange('2026-02-03', '2026-04-05'), ARRAY[date '2026-02-03']); DELETE FROM things";
        shop.run(write).await;
        for style in ["German", "SQL, DMY", "Postgres, MDY"] {
            shop.run(&format!("SET datestyle = '{style}'; {write}")).await;
        }
        let received = received(&read(&mut *stream, 8).await);
        assert!(received[0].2.contains("2026-02-03 00:00:00+00"), "{received:?}");
        for pair in received.chunks(2) {
            assert_eq!(pair, &received[..2]);
        }
    });
}

/// JSON holds more than the server's own binary form of it.
#[test]
fn triggers_take_whatever_the_table_takes() {
    for version in Version::ALL {
        block_on(async {
            let table = r#"CREATE TABLE things (id int, "a part" text, doc json, n int, PRIMARY KEY (id, "a part"))"#;
            let shop = Shop::with(version, table, "things").await;
            let mut stream = shop.log().await.open(&cx(), StartAt::Oldest).await.unwrap();
            shop.run(
                r#"INSERT INTO things VALUES (1, 'it''s', '{"a":"\u0000"}', 1), (2, 'x', '1e200000', 1);
                UPDATE things SET n = 2; UPDATE things SET id = 3 WHERE id = 1; DELETE FROM things"#,
            )
            .await;
            let received = received(&read(&mut *stream, 8).await);
            let keys: Vec<_> = received.iter().map(|(_, key, _)| key.as_str()).collect();
            let (first, second, moved) = (r#"[1,"it's"]"#, r#"[2,"x"]"#, r#"[3,"it's"]"#);
            assert_eq!(keys[..6], [first, second, first, second, first, moved]);
            assert!(received[0].2.contains(r#""doc":{"a":"\u0000"},"n":1"#), "{received:?}");
            assert!(received[1].2.contains(r#""doc":1e200000"#), "{received:?}");
            assert!(received[2].2.ends_with(r#""changed":["n"]}"#), "{received:?}");
        });
    }
}

/// What is not stored is not told: triggers see nothing there.
#[test]
fn columns_that_are_computed_when_they_are_read_are_left_out() {
    block_on(async {
        let table = "CREATE TABLE things (id int PRIMARY KEY, a int, twice int GENERATED ALWAYS AS (a * 2) VIRTUAL,
            thrice int GENERATED ALWAYS AS (a * 3) STORED)";
        let shop = Shop::with(Version::V18, table, "things").await;
        let mut stream = shop.log().await.open(&cx(), StartAt::Oldest).await.unwrap();
        shop.run("INSERT INTO things VALUES (1, 1); UPDATE things SET a = 2; DELETE FROM things").await;
        let received = received(&read(&mut *stream, 3).await);
        let (one, two) = (r#"{"id":1,"a":1,"thrice":3}"#, r#"{"id":1,"a":2,"thrice":6}"#);
        assert_eq!(received[0].2, format!(r#"{{"before":null,"after":{one}}}"#));
        assert!(received[1].2.starts_with(&format!(r#"{{"before":{one},"after":{two}"#)), "{received:?}");
        assert_eq!(received[2].2, format!(r#"{{"before":{two},"after":null}}"#));
    });
}

/// Whatever triggers of the application do to rows of the same table, the copy is the same in the end.
/// Triggers look up virtual columns only where there were some when they were made.
#[test]
fn a_virtual_column_that_comes_later_is_warned_of() {
    block_on(async {
        let shop = Shop::new(Version::V18).await;
        let log = shop.log().await;
        assert_eq!(log.check(&cx()).await.unwrap(), []);
        shop.run("ALTER TABLE things ADD COLUMN twice bigint GENERATED ALWAYS AS (n * 2) VIRTUAL").await;
        let found = log.check(&cx()).await.unwrap();
        assert!(found.iter().any(|finding| finding.what.contains("virtual columns since it was logged")), "{found:?}");
        install(&cx(), &shop.client, &["things"], Wake::Notify).await.expect("it can be repeated");
        assert_eq!(log.check(&cx()).await.unwrap(), []);
    });
}

#[test]
fn triggers_of_the_application_that_write_the_same_table() {
    let table = "CREATE TABLE things (id int PRIMARY KEY, v text, total int DEFAULT 0, r int, k int, t text);
        CREATE TABLE copy (LIKE things INCLUDING ALL);
        CREATE FUNCTION again() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
            IF NEW.v = 'done' THEN UPDATE things SET v = 'closed' WHERE id = NEW.id; END IF;
            IF NEW.v = 'job' THEN DELETE FROM things WHERE id = NEW.id; END IF;
            IF NEW.v = 'next' THEN UPDATE things SET total = total + 1 WHERE id = NEW.id + 1; END IF;
            IF NEW.v = 'eats' THEN DELETE FROM things WHERE id = NEW.id + 1; END IF;
            IF NEW.v = 'moves' THEN UPDATE things SET id = id + 100 WHERE id = NEW.id + 1; END IF;
            RETURN NULL; END $$;
        CREATE FUNCTION refill() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
            IF OLD.v = 'phoenix' THEN INSERT INTO things VALUES (OLD.id + 1, 'risen'); END IF; RETURN NULL; END $$;
        CREATE FUNCTION first() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
            INSERT INTO things VALUES (1, 'first'); RETURN NULL; END $$;
        CREATE TRIGGER again AFTER INSERT OR UPDATE ON things FOR EACH ROW EXECUTE FUNCTION again();
        CREATE TRIGGER refill AFTER DELETE ON things FOR EACH ROW EXECUTE FUNCTION refill();
        CREATE TRIGGER first AFTER TRUNCATE ON things FOR EACH STATEMENT EXECUTE FUNCTION first()";
    let steps = [
        "INSERT INTO things VALUES (1, 'done'), (2, 'job'), (3, 'next'), (4, 'job')",
        "INSERT INTO things VALUES (10, 'next'), (11, 'next'), (12, 'eats'), (13, 'eaten'), (14, 'moves'), (15, 'moved')",
        "BEGIN; UPDATE things SET r = 7; UPDATE things SET r = 8 WHERE id > 10; INSERT INTO things VALUES (20, 'next'); COMMIT",
        "INSERT INTO things VALUES (30, 'phoenix'), (31, 'x'); DELETE FROM things WHERE id IN (30, 31)",
        "INSERT INTO things VALUES (40, E'\\x01', 1, 2, 3, 'x'); UPDATE things SET t = E'\\x02' WHERE id = 40",
        "TRUNCATE things",
    ];
    for version in Version::ALL {
        block_on(async {
            let shop = Shop::with(version, table, "things").await;
            let mut fixture = SinkFixture::new(shop.client.clone(), Rows::into("public.copy").unwrap()).await;
            let mut stream = shop.log().await.open(&cx(), StartAt::Oldest).await.unwrap();
            let mut seq = 0;
            for sql in steps {
                shop.run(sql).await;
                deliver_all(&mut fixture, &mut *stream, &mut seq, 1_000).await;
                let held = async |table: &str| {
                    shown(&shop.client, &format!("SELECT to_json({table})::text FROM {table} ORDER BY id")).await
                };
                assert_eq!(held("copy").await, held("things").await, "after {sql}");
            }
        });
    }
}

/// Gives the sink everything that is there, so many rows at a time.
async fn deliver_all(fixture: &mut SinkFixture, stream: &mut dyn ChangeStream, seq: &mut u64, rows: usize) {
    loop {
        let batch = Arc::new(stream.next_batch(&cx(), Limits { rows, ..LIMITS }).await.unwrap());
        if batch.is_empty() {
            return;
        }
        *seq += 1;
        let answer = fixture.deliver(*seq, &batch).await.unwrap();
        assert!(matches!(answer, Transacted::Committed), "{answer:?}");
    }
}

/// Several rows may have one key until a statement or a transaction ends. However the changes are cut into batches, the copy is the
/// same in the end.
#[test]
fn keys_that_are_shifted_swapped_and_rotated_arrive_as_they_are() {
    let key = "PRIMARY KEY (id) DEFERRABLE INITIALLY DEFERRED";
    let wide_key = "PRIMARY KEY (id) INCLUDE (v) DEFERRABLE INITIALLY DEFERRED";
    for (version, rows, key) in [(Version::V15, 1, key), (Version::V18, 2, wide_key), (Version::V15, 1_000, key)] {
        block_on(async {
            let table =
                format!("CREATE TABLE things (id int, v text, {key}); CREATE TABLE copy (id int PRIMARY KEY, v text)");
            let shop = Shop::with(version, &table, "things").await;
            let mut fixture = SinkFixture::new(shop.client.clone(), Rows::into("public.copy").unwrap()).await;
            let mut stream = shop.log().await.open(&cx(), StartAt::Oldest).await.unwrap();
            let mut seq = 0;
            for sql in [
                "INSERT INTO things VALUES (1, 'a'), (2, 'b'), (3, 'c'), (4, 'c')",
                "UPDATE things SET id = id + 1",
                "UPDATE things SET id = id - 1",
                "UPDATE things SET id = 3 - id WHERE id < 3",
                "UPDATE things SET id = id % 4 + 1",
                "BEGIN; UPDATE things SET id = id + 1; UPDATE things SET id = id + 1, v = v || 'x'; COMMIT",
                "BEGIN; UPDATE things SET id = 9 WHERE id = 3; UPDATE things SET id = 3 WHERE id = 4;
                    UPDATE things SET id = 4 WHERE id = 9; COMMIT",
                "BEGIN; INSERT INTO things VALUES (3, 'new'); DELETE FROM things WHERE id = 3 AND v <> 'new'; COMMIT",
                "BEGIN; INSERT INTO things VALUES (3, 'gone'); DELETE FROM things WHERE v = 'gone'; COMMIT",
                "DELETE FROM things WHERE id > 4",
            ] {
                shop.run(sql).await;
                deliver_all(&mut fixture, &mut *stream, &mut seq, rows).await;
                let held =
                    async |table: &str| shown(&shop.client, &format!("SELECT id || v FROM {table} ORDER BY id")).await;
                assert_eq!(held("copy").await, held("things").await, "after {sql}, {rows} at a time");
            }
        });
    }
}

async fn other_client(shop: &Shop) -> Client {
    let config = Config::new(&shop.base.url()).and_then(|config| config.in_schema("other"));
    Client::open(&cx(), config.unwrap()).await.unwrap()
}

/// A table has room for the triggers of one log.
#[test]
fn no_log_takes_a_table_from_another_one() {
    block_on(async {
        let shop = Shop::new(Version::V15).await;
        shop.run("CREATE TABLE b (id int PRIMARY KEY)").await;
        let (log, other) = (shop.log().await, other_client(&shop).await);
        let refused = install(&cx(), &other, &["things"], Wake::Notify).await;
        assert_error(refused, ErrorKind::Config, "is logged already, by the log in schema \"watchkeeper\"");
        install(&cx(), &other, &["b"], Wake::Notify).await.unwrap();
        let mut stream = log.open(&cx(), StartAt::Oldest).await.unwrap();
        shop.run("INSERT INTO things VALUES (1)").await;
        assert_eq!(read(&mut *stream, 1).await.len(), 1);
        assert_eq!(log.check(&cx()).await.unwrap(), []);
        // Somebody did it by hand.
        shop.run(
            r#"DROP TRIGGER "!watchkeeper_log_row" ON things;
            CREATE TRIGGER "!watchkeeper_log_row" AFTER INSERT OR UPDATE OR DELETE ON things
                FOR EACH ROW EXECUTE FUNCTION other.log_row('public.things', '', 'id');
            ALTER TABLE things ENABLE ALWAYS TRIGGER "!watchkeeper_log_row""#,
        )
        .await;
        let found = log.check(&cx()).await.unwrap();
        assert!(
            found.iter().any(|finding| finding.what.starts_with("public.things is not logged any more")),
            "{found:?}"
        );
        // What is not its own it does not drop.
        uninstall(&cx(), &shop.client, &["things"], Unread::Discard).await.unwrap();
        let left = "SELECT tgname::text FROM pg_trigger WHERE tgrelid = 'things'::regclass AND tgname LIKE '%_row'";
        assert_eq!(shown(&shop.client, left).await, ["!watchkeeper_log_row"]);
    });
}

#[test]
fn no_log_logs_itself() {
    block_on(async {
        let shop = Shop::new(Version::V18).await;
        for client in [shop.client.clone(), other_client(&shop).await] {
            for table in ["watchkeeper.log", "watchkeeper.log_consumers", "watchkeeper.meta"] {
                let refused = install(&cx(), &client, &[table], Wake::Notify).await;
                assert_error(refused, ErrorKind::Config, "one of Watchkeeper's own tables");
            }
        }
        shop.run("INSERT INTO things VALUES (1)").await;
    });
}

/// Whoever keeps what is newest by its version would else take new changes for old ones.
#[test]
fn a_log_that_is_installed_again_goes_on_with_higher_versions() {
    block_on(async {
        let shop = Shop::new(Version::V15).await;
        let mut versions = Vec::new();
        for id in 0..2 {
            install(&cx(), &shop.client, &["things"], Wake::Notify).await.unwrap();
            let mut stream = shop.log().await.open(&cx(), StartAt::Oldest).await.unwrap();
            shop.run(&format!("INSERT INTO things VALUES ({id}); UPDATE things SET n = n + 1")).await;
            versions.extend(read(&mut *stream, 2 + id).await.iter().map(watchkeeper_core::Change::version));
            uninstall(&cx(), &shop.client, &["things"], Unread::Discard).await.unwrap();
        }
        assert!(versions.is_sorted_by(|a, b| a < b), "{versions:?}");
    });
}
