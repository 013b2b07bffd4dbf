//! Tables whose triggers run once per statement.

use std::sync::Arc;

use watchkeeper_core::{Change, ChangeStream, ErrorKind, Limits, Operation, Source, StartAt, Transacted};
use watchkeeper_postgres::Rows;
use watchkeeper_postgres::changelog::{Wake, install};
use watchkeeper_testkit::servers::postgres::Version;

use super::configured::{flagged, run, with_tables};
use super::support::{LIMITS, Shop, is_quiet, read, received};
use crate::sink::{SinkFixture, shown};
use crate::support::{Base, assert_error, block_on, cx, fresh_name};

pub(super) async fn logs_statements(shop: &Shop, table: &str) -> bool {
    let sql = format!(
        "SELECT count(*)::text FROM pg_trigger WHERE tgrelid = '{table}'::regclass AND tgnewtable IS NOT NULL AND tgname LIKE '%watchkeeper%'"
    );
    shown(&shop.client, &sql).await == ["2"]
}

pub(super) fn keyed(changes: &[Change]) -> Vec<String> {
    received(changes).into_iter().map(|(operation, key, _)| format!("{operation} {key}")).collect()
}

#[test]
fn tables_that_statement_triggers_would_miss_rows_of_have_row_triggers() {
    for version in Version::ALL {
        block_on(async {
            let shop = Shop::new(version).await;
            assert!(logs_statements(&shop, "things").await);
            shop.run(
                "CREATE TABLE swapped (id int PRIMARY KEY DEFERRABLE);
                CREATE TABLE whole (id int PRIMARY KEY) PARTITION BY RANGE (id);
                CREATE TABLE other_whole (id int PRIMARY KEY) PARTITION BY RANGE (id);
                CREATE TABLE part PARTITION OF other_whole FOR VALUES FROM (0) TO (9);
                CREATE TABLE parent (id int PRIMARY KEY); CREATE TABLE child (PRIMARY KEY (id)) INHERITS (parent);
                CREATE TABLE handled (id int PRIMARY KEY);
                CREATE FUNCTION nothing() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$;
                CREATE TRIGGER after AFTER INSERT ON handled FOR EACH ROW EXECUTE FUNCTION nothing()",
            )
            .await;
            for table in ["swapped", "whole", "part", "parent", "child", "handled"] {
                install(&cx(), &shop.client, &[table], Wake::Silent).await.unwrap();
                assert!(!logs_statements(&shop, table).await, "{table} on {version:?}");
            }
            // What has changed is seen when it is installed again, in both directions.
            shop.run("DROP TRIGGER after ON handled; CREATE TRIGGER after AFTER INSERT ON things FOR EACH ROW EXECUTE FUNCTION nothing()")
                .await;
            install(&cx(), &shop.client, &["handled", "things"], Wake::Silent).await.unwrap();
            assert!(logs_statements(&shop, "handled").await && !logs_statements(&shop, "things").await);
            let mut stream = shop.log().await.open(&cx(), StartAt::Oldest).await.unwrap();
            shop.run("INSERT INTO handled VALUES (1); INSERT INTO things VALUES (2)").await;
            assert_eq!(keyed(&read(&mut *stream, 2).await), ["insert [1]", "insert [2]"]);
            assert!(is_quiet(&mut *stream).await, "nothing is logged twice, and nothing is a loss");
        });
    }
}

/// The server gives the rows before and after an UPDATE in two tables, in the same order.
#[test]
fn rows_before_and_after_an_update_belong_together() {
    for version in Version::ALL {
        block_on(async {
            let shop = Shop::new(version).await;
            shop.run(
                "CREATE FUNCTION meddle() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                    IF OLD.id % 7 = 0 THEN RETURN NULL; END IF;
                    NEW.n := OLD.id * 2; IF OLD.id % 5 = 0 THEN NEW.id := NEW.id + 100000; END IF; RETURN NEW; END $$;
                CREATE TRIGGER meddle BEFORE UPDATE ON things FOR EACH ROW EXECUTE FUNCTION meddle();
                INSERT INTO things SELECT i, 0, repeat('x', i % 300) FROM generate_series(1, 6000) i ORDER BY i * 7919 % 6007;
                DELETE FROM things WHERE id % 11 = 0; TRUNCATE watchkeeper.log",
            )
            .await;
            // Little memory, so that sorting and joining go to the disk; a key that changes, one that does not, and few rows.
            for (sql, moved) in [
                ("SET work_mem = '64kB'; UPDATE things SET id = id + 10000, name = 'was ' || id", 10_000),
                ("UPDATE things SET name = 'was ' || id WHERE id % 3 = 0", 0),
                ("UPDATE things SET name = 'was ' || id WHERE id IN (10001, 10002)", 0),
            ] {
                let before = "SELECT count(*)::text FROM things";
                let count = shown(&shop.client, before).await;
                shop.run(sql).await;
                let wrong = format!(
                    "SELECT count(*)::text FROM watchkeeper.log WHERE NOT coalesce((after->>'name' = 'was ' || (before->>'id')
                        AND (after->>'n')::int = (before->>'id')::int * 2 AND (before->>'id')::int % 7 <> 0
                        AND (after->>'id')::int = (before->>'id')::int + {moved} + CASE WHEN (before->>'id')::int % 5 = 0 THEN 100000 ELSE 0 END
                        AND key = '[' || (after->>'id') || ']' AND operation = CASE WHEN after->>'id' = before->>'id' THEN 'update' ELSE 'rekey' END
                        AND old_key IS NOT DISTINCT FROM CASE WHEN operation = 'rekey' THEN '[' || (before->>'id') || ']' END), false)"
                );
                assert_eq!(shown(&shop.client, &wrong).await, ["0"], "{sql} on {version:?}");
                assert_eq!(shown(&shop.client, before).await, count);
                let logged: usize =
                    shown(&shop.client, "SELECT count(*)::text FROM watchkeeper.log").await[0].parse().unwrap();
                assert!(logged > 0, "{sql}");
                shop.run("TRUNCATE watchkeeper.log").await;
            }
        });
    }
}

/// Operations that are parts of one statement are logged one after the other; the changes of a key keep their order.
#[test]
fn changes_of_a_key_in_one_statement_keep_their_order() {
    for version in Version::ALL {
        block_on(async {
            let shop = Shop::new(version).await;
            shop.run(
                "CREATE FUNCTION mark(i bigint) RETURNS text LANGUAGE plpgsql AS $$ BEGIN
                UPDATE things SET name = 'marked' WHERE id = 11 AND i = 12; RETURN 'called'; END $$",
            )
            .await;
            let mut stream = shop.log().await.open(&cx(), StartAt::Oldest).await.unwrap();
            for (sql, expected) in [
                ("INSERT INTO things VALUES (1), (2)", vec!["insert [1]", "insert [2]"]),
                // The server runs triggers of a MERGE for inserts first.
                (
                    "MERGE INTO things USING (VALUES (1, 0), (9, 7)) AS s (id, n) ON things.id = s.id
                        WHEN MATCHED THEN DELETE WHEN NOT MATCHED THEN INSERT VALUES (1, s.n)",
                    vec!["delete [1]", "insert [1]"],
                ),
                // Only as much of the WITH as is needed runs before the main part.
                (
                    "WITH gone AS (DELETE FROM things WHERE id = 2 OR id = 1 RETURNING id, n)
                        INSERT INTO things SELECT id, n + 1 FROM gone ORDER BY id LIMIT 1; INSERT INTO things VALUES (2)",
                    vec!["delete [1]", "delete [2]", "insert [1]", "insert [2]"],
                ),
                (
                    "INSERT INTO things VALUES (1, 5), (3, 5) ON CONFLICT (id) DO UPDATE SET n = excluded.n",
                    vec!["update [1]", "insert [3]"],
                ),
                ("INSERT INTO things VALUES (1, 6) ON CONFLICT (id) DO UPDATE SET id = 4", vec!["delete [1]", "insert [4]"]),
                ("UPDATE things SET id = 1 WHERE id = 4", vec!["delete [4]", "insert [1]"]),
                // A function that is called for the second row changes the first one again.
                ("INSERT INTO things VALUES (11), (12)", vec!["insert [11]", "insert [12]"]),
                ("UPDATE things SET name = mark(id) WHERE id > 10", vec!["update [11]", "update [12]", "update [11]"]),
            ] {
                shop.run(sql).await;
                let changes = read(&mut *stream, expected.len()).await;
                // Between keys the order is the server's.
                for key in ["[1]", "[2]", "[3]", "[4]", "[11]", "[12]"] {
                    let of_key = |all: Vec<String>| all.into_iter().filter(|one| one.ends_with(key)).collect::<Vec<_>>();
                    let wanted = of_key(expected.iter().map(ToString::to_string).collect());
                    assert_eq!(of_key(keyed(&changes)), wanted, "{sql} on {version:?}");
                }
            }
            assert!(is_quiet(&mut *stream).await);
        });
    }
}

/// Gives the sink everything that was logged.
async fn deliver(fixture: &mut SinkFixture, stream: &mut dyn ChangeStream, seq: &mut u64, rows: usize) {
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

/// Foreign keys and triggers that were made after the table was installed write the same table during a statement.
#[test]
fn a_copy_is_right_whatever_changes_the_table_during_a_statement() {
    let table = "CREATE TABLE owners (id int PRIMARY KEY);
        CREATE TABLE things (id int PRIMARY KEY, v text, total int DEFAULT 0,
            first int REFERENCES owners ON DELETE SET NULL ON UPDATE CASCADE, second int REFERENCES owners ON DELETE CASCADE,
            above int REFERENCES things ON DELETE CASCADE ON UPDATE CASCADE);
        CREATE TABLE copy (id int PRIMARY KEY, v text, total int, first int, second int, above int)";
    let later = "CREATE FUNCTION again() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
            IF NEW.v = 'done' THEN UPDATE things SET v = 'closed' WHERE id = NEW.id; END IF;
            IF NEW.v = 'job' THEN DELETE FROM things WHERE id = NEW.id; END IF;
            IF NEW.v = 'next' THEN UPDATE things SET total = total + 1 WHERE id = NEW.id + 1; END IF;
            IF NEW.v = 'moves' THEN UPDATE things SET id = id + 100 WHERE id = NEW.id + 1;
                UPDATE things SET total = 5 WHERE id = NEW.id + 101; END IF;
            IF NEW.v = 'fails' THEN
                BEGIN UPDATE things SET v = 'undone' WHERE id = NEW.id; RAISE 'no'; EXCEPTION WHEN raise_exception THEN NULL; END;
            END IF;
            RETURN NULL; END $$;
        CREATE FUNCTION refill() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
            IF OLD.v = 'phoenix' THEN INSERT INTO things VALUES (OLD.id, 'risen'); END IF; RETURN NULL; END $$;
        CREATE FUNCTION total() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
            UPDATE things SET total = total + 1 WHERE v = 'summed' AND total < 3; RETURN NULL; END $$;
        CREATE TRIGGER again AFTER INSERT OR UPDATE ON things FOR EACH ROW EXECUTE FUNCTION again();
        CREATE TRIGGER refill AFTER DELETE ON things FOR EACH ROW EXECUTE FUNCTION refill();
        CREATE TRIGGER \" first\" AFTER INSERT ON things FOR EACH STATEMENT EXECUTE FUNCTION total();
        CREATE TRIGGER zz_last AFTER UPDATE ON things FOR EACH STATEMENT WHEN (pg_trigger_depth() < 3) EXECUTE FUNCTION total()";
    let steps = [
        "INSERT INTO owners SELECT generate_series(1, 9); INSERT INTO things VALUES (1, 'a', 0, 1, 1), (2, 'b', 0, 2, NULL), (3, 'c', 0, 3, 4)",
        // The first row is changed and then deleted; the second one is only changed, which comes last.
        "DELETE FROM owners WHERE id IN (1, 2)",
        "UPDATE owners SET id = 33 WHERE id = 3; DELETE FROM owners WHERE id = 4",
        "INSERT INTO things (id, v, above) VALUES (10, 'x', NULL), (11, 'x', 10), (12, 'x', 11), (13, 'x', 10)",
        "UPDATE things SET id = 20 WHERE id = 10; DELETE FROM things WHERE id = 20",
        later,
        "INSERT INTO things VALUES (1, 'done'), (2, 'job'), (3, 'next'), (4, 'job'), (5, 'summed') ON CONFLICT (id) DO UPDATE SET v = excluded.v",
        "INSERT INTO things VALUES (30, 'next'), (31, 'next'), (32, 'moves'), (33, 'moved'), (34, 'fails'), (35, 'phoenix')",
        "BEGIN; UPDATE things SET total = total + 10; UPDATE things SET v = v WHERE id > 10; INSERT INTO things VALUES (40, 'next'); COMMIT",
        "DELETE FROM things WHERE id IN (34, 35); UPDATE things SET v = 'done' WHERE id < 40",
        "BEGIN; SAVEPOINT a; UPDATE things SET v = 'gone'; ROLLBACK TO a; UPDATE things SET total = 1 WHERE id = 1; COMMIT",
        "COPY things (id, v) FROM PROGRAM 'printf \"50\\tnext\\n51\\tdone\\n\"'",
        "TRUNCATE things CASCADE; INSERT INTO things VALUES (1, 'done')",
    ];
    // A table whose foreign keys lead back to it has row-level triggers.
    let plain = table.replace(" REFERENCES things ON DELETE CASCADE ON UPDATE CASCADE", "");
    let runs = [(Version::V15, 1_000), (Version::V18, 1), (Version::V18, 1_000)];
    let runs = runs.into_iter().flat_map(|(version, rows)| [(version, rows, table), (version, rows, &*plain)]);
    for (version, rows, made) in runs {
        block_on(async {
            let shop = Shop::with(version, made, "things").await;
            assert_eq!(logs_statements(&shop, "things").await, made == plain);
            let mut fixture = SinkFixture::new(shop.client.clone(), Rows::into("public.copy").unwrap()).await;
            let mut stream = shop.log().await.open(&cx(), StartAt::Oldest).await.unwrap();
            let mut seq = 0;
            for sql in steps {
                shop.run(sql).await;
                deliver(&mut fixture, &mut *stream, &mut seq, rows).await;
                let held = async |table: &str| {
                    shown(&shop.client, &format!("SELECT to_json({table})::text FROM {table} ORDER BY id")).await
                };
                assert_eq!(held("copy").await, held("things").await, "after {sql} on {version:?}");
            }
        });
    }
}

/// A trigger of the application sees its own row logged before what it does to it, also if it is younger than the log.
#[test]
fn what_a_trigger_does_to_its_row_comes_after_it() {
    for version in Version::ALL {
        block_on(async {
            let shop = Shop::new(version).await;
            shop.run(
                "CREATE FUNCTION again() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                    IF NEW.n < 3 THEN UPDATE things SET n = n + 1 WHERE id = NEW.id; END IF; RETURN NULL; END $$;
                CREATE TRIGGER again AFTER INSERT OR UPDATE ON things FOR EACH ROW EXECUTE FUNCTION again()",
            )
            .await;
            let mut stream = shop.log().await.open(&cx(), StartAt::Oldest).await.unwrap();
            shop.run("INSERT INTO things VALUES (1, 1), (2, 2)").await;
            let received: Vec<_> = received(&read(&mut *stream, 5).await);
            let of = |key: &str| -> Vec<(Operation, String)> {
                received.iter().filter(|one| one.1 == key).map(|one| (one.0, one.2.clone())).collect()
            };
            let is = |id: u32, n: u32| format!(r#"{{"id":{id},"n":{n},"name":null}}"#);
            let updated = |id, from, to| {
                (Operation::Update, format!(r#"{{"before":{},"after":{},"changed":["n"]}}"#, is(id, from), is(id, to)))
            };
            let inserted = |id, n| (Operation::Insert, format!(r#"{{"before":null,"after":{}}}"#, is(id, n)));
            assert_eq!(of("[1]"), [inserted(1, 1), updated(1, 1, 2), updated(1, 2, 3)], "{version:?}");
            assert_eq!(of("[2]"), [inserted(2, 2), updated(2, 2, 3)], "{version:?}");
        });
    }
}

/// Neither a subscription nor a statement on a partitioned table fires statement-level triggers.
#[test]
fn rows_that_come_without_a_statement_on_their_table_are_logged_once() {
    for version in Version::ALL {
        block_on(async {
            let shop = Shop::new(version).await;
            let mut stream = shop.log().await.open(&cx(), StartAt::Oldest).await.unwrap();
            shop.run("SET session_replication_role = replica; INSERT INTO things VALUES (1); UPDATE things SET n = 1; RESET session_replication_role")
                .await;
            assert_eq!(keyed(&read(&mut *stream, 2).await), ["insert [1]", "update [1]"]);
            shop.run("CREATE TABLE whole (LIKE things INCLUDING ALL) PARTITION BY RANGE (id)").await;
            let attach = "ALTER TABLE whole ATTACH PARTITION things FOR VALUES FROM (0) TO (100)";
            assert_refused(&shop, attach).await;
            run("install", flagged(flagged(with_tables(&shop.base, "table", &["things"]), "silent"), "each-row"))
                .await
                .unwrap();
            shop.run(attach).await;
            shop.run(
                "INSERT INTO whole VALUES (2); INSERT INTO things VALUES (3); UPDATE whole SET n = 5 WHERE id < 3; DELETE FROM things;
                ALTER TABLE whole DETACH PARTITION things; INSERT INTO things VALUES (4)",
            )
            .await;
            let changes = read(&mut *stream, 8).await;
            let expected = [
                "insert [2]",
                "insert [3]",
                "update [1]",
                "update [2]",
                "delete [3]",
                "delete [1]",
                "delete [2]",
                "insert [4]",
            ];
            assert_eq!(keyed(&changes), expected, "{version:?}");
            assert!(is_quiet(&mut *stream).await);
        });
    }
}

#[test]
fn rows_of_a_subscription_are_logged() {
    for version in Version::ALL {
        block_on(async {
            let (publisher, shop) = (Base::new(version).await, Shop::new(version).await);
            let (source, name) = (publisher.admin().await, fresh_name());
            source
                .batch_execute(&format!("{}; CREATE PUBLICATION {name} FOR TABLE things", super::support::THINGS))
                .await
                .unwrap();
            // Both databases may be of one server, where a subscription cannot wait for its own slot.
            source
                .execute(&format!("SELECT pg_create_logical_replication_slot('{name}', 'pgoutput')"), &[])
                .await
                .unwrap();
            let url = publisher.url();
            shop.run(&format!(
                "CREATE SUBSCRIPTION {name} CONNECTION '{url}' PUBLICATION {name} WITH (create_slot = false, copy_data = false)"
            ))
            .await;
            source.batch_execute("INSERT INTO things VALUES (1), (2); UPDATE things SET n = 2 WHERE id = 2; DELETE FROM things WHERE id = 1").await.unwrap();
            let mut stream = shop.log().await.open(&cx(), StartAt::Oldest).await.unwrap();
            let changes = read(&mut *stream, 4).await;
            assert_eq!(keyed(&changes), ["insert [1]", "insert [2]", "update [2]", "delete [1]"], "{version:?}");
            shop.run(&format!("DROP SUBSCRIPTION {name}")).await;
        });
    }
}

/// The server refuses what would keep rows from being logged.
async fn assert_refused(shop: &Shop, sql: &str) {
    let refused = shop.application.batch_execute(sql).await.expect_err("rows would not be logged");
    let cause = refused.as_db_error().map(|error| error.message().to_owned());
    let cause = cause.expect("the server refuses it");
    assert!(cause.contains("!watchkeeper_log_partition") && cause.contains("prevents table"), "{cause}");
}

/// Statements on a parent change rows of its children, and fire no triggers of theirs.
#[test]
fn a_table_that_inherits_since_it_was_logged_is_refused_or_found() {
    block_on(async {
        let shop = Shop::new(Version::V18).await;
        let log = shop.log().await;
        shop.run("CREATE TABLE above (id bigint)").await;
        assert_refused(&shop, "ALTER TABLE things INHERIT above").await;
        shop.run("CREATE TABLE heir () INHERITS (things)").await;
        let mut stream = log.open(&cx(), StartAt::Oldest).await.unwrap();
        assert_error(stream.next_batch(&cx(), LIMITS).await, ErrorKind::PositionLost, "inherits from another table");
        install(&cx(), &shop.client, &["things"], Wake::Silent).await.unwrap();
        assert!(!logs_statements(&shop, "things").await);
    });
}
