//! What a hostile session, or an unlucky name, does to the triggers of the log.

use watchkeeper_core::{Source, StartAt};
use watchkeeper_postgres::changelog::{Wake, install};
use watchkeeper_testkit::servers::postgres::Version;

use super::statements::{keyed, logs_statements};
use super::support::{Shop, is_quiet, read};
use crate::sink::shown;
use crate::support::{block_on, connect, cx, fresh_name};

/// Views in front of the catalogs that the triggers look at; each calls a function that notes whose rights it has.
const SHADOWS: &str = "
    CREATE FUNCTION pg_temp.spy() RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$ BEGIN
        INSERT INTO public.seen VALUES (current_user); RETURN true; END $$;
    CREATE TEMP VIEW pg_attribute AS SELECT attrelid, attname, atttypid, attnum, attisdropped, attnotnull, attgenerated, attcollation
        FROM pg_catalog.pg_attribute WHERE pg_temp.spy();
    CREATE TEMP VIEW pg_type AS SELECT * FROM pg_catalog.pg_type WHERE pg_temp.spy();
    CREATE TEMP VIEW pg_index AS SELECT * FROM pg_catalog.pg_index WHERE pg_temp.spy();
    CREATE TEMP VIEW pg_constraint AS SELECT * FROM pg_catalog.pg_constraint WHERE pg_temp.spy();
    CREATE TEMP VIEW pg_class AS SELECT * FROM pg_catalog.pg_class WHERE pg_temp.spy();
    CREATE TEMP VIEW pg_opclass AS SELECT * FROM pg_catalog.pg_opclass WHERE pg_temp.spy()";

/// Whoever may make temporary tables could otherwise act as the owner of the log.
#[test]
fn views_in_front_of_the_catalogs_are_not_looked_at() {
    for version in Version::ALL {
        block_on(async {
            let shop = Shop::new(version).await;
            shop.run("CREATE TABLE singly (id int PRIMARY KEY DEFERRABLE, n int, body jsonb); CREATE TABLE bodies (id int PRIMARY KEY, n int, body jsonb)").await;
            install(&cx(), &shop.client, &["singly", "bodies"], Wake::Silent).await.unwrap();
            let user = fresh_name();
            shop.run(&format!(
                "CREATE ROLE {user} LOGIN; CREATE TABLE seen (who text); GRANT ALL ON seen TO PUBLIC; GRANT ALL ON things, singly, bodies TO {user}"
            ))
            .await;
            let session = connect(&shop.base.url_of(&user)).await;
            session.batch_execute(SHADOWS).await.unwrap();
            for table in ["things", "singly", "bodies"] {
                let sql = format!(
                    "INSERT INTO {table} (id, n) VALUES (1, 1); INSERT INTO {table} (id, n) VALUES (2, 2), (3, 3);
                    UPDATE {table} SET n = 5 WHERE id > 1; UPDATE {table} SET id = 9 WHERE id = 1; DELETE FROM {table}"
                );
                session.batch_execute(&sql).await.unwrap();
            }
            shop.run("ALTER TABLE things RENAME id TO number; ALTER TABLE bodies RENAME id TO number").await;
            for table in ["things", "bodies"] {
                let sql = format!("INSERT INTO {table} (number, n) VALUES (1, 1); DELETE FROM {table}");
                session.batch_execute(&sql).await.unwrap();
            }
            assert_eq!(shown(&shop.client, "SELECT DISTINCT who FROM seen").await, [""; 0], "{version:?}");
            let mut stream = shop.log().await.open(&cx(), StartAt::Oldest).await.unwrap();
            read(&mut *stream, 3 * 10 + 2 * 2).await;
            assert!(is_quiet(&mut *stream).await);
        });
    }
}

/// Names are no formats.
#[test]
fn key_columns_may_have_percent_signs_in_their_names() {
    for version in Version::ALL {
        block_on(async {
            let shop = Shop::new(version).await;
            let mut stream = shop.log().await.open(&cx(), StartAt::Oldest).await.unwrap();
            for (number, name) in ["a%b", "a%%b", "%s", "100%", "%1$s%I"].into_iter().enumerate() {
                for body in ["text", "jsonb"] {
                    let odd = format!("{body}_{number}");
                    shop.run(&format!(r#"CREATE TABLE {odd} ("{name}" int PRIMARY KEY, n int, body {body})"#)).await;
                    install(&cx(), &shop.client, &[&odd], Wake::Silent).await.unwrap();
                    shop.run(&format!(
                        r#"INSERT INTO {odd} VALUES (1); UPDATE {odd} SET n = 1; UPDATE {odd} SET "{name}" = 2;
                        INSERT INTO {odd} VALUES (3); UPDATE {odd} SET n = 4"#
                    ))
                    .await;
                    let keys = [
                        "insert [1]",
                        "update [1]",
                        "delete [1]",
                        "insert [2]",
                        "insert [3]",
                        "update [2]",
                        "update [3]",
                    ];
                    assert_eq!(keyed(&read(&mut *stream, keys.len()).await), keys, "{name}, {body}");
                }
            }
            shop.run(r#"ALTER TABLE things RENAME id TO "a%s"; INSERT INTO things VALUES (1), (2); UPDATE things SET n = 2; DELETE FROM things"#).await;
            assert_eq!(read(&mut *stream, 6).await[5].key(), Some(&b"[2]"[..]));
        });
    }
}

/// The index of a key gets another number, and names go from column to column.
#[test]
fn a_key_is_known_by_its_columns_after_its_index_was_made_anew() {
    for (table, is_by_statement) in [
        ("CREATE TABLE things (id bigint PRIMARY KEY, n bigint)", true),
        ("CREATE TABLE things (id bigint PRIMARY KEY, n bigint, body jsonb)", true),
        (
            "CREATE TABLE things (id bigint PRIMARY KEY, n bigint, parent bigint REFERENCES things ON DELETE CASCADE)",
            false,
        ),
    ] {
        for version in Version::ALL {
            block_on(async {
                let shop = Shop::with(version, table, "things").await;
                assert_eq!(logs_statements(&shop, "things").await, is_by_statement, "{table}");
                let mut stream = shop.log().await.open(&cx(), StartAt::Oldest).await.unwrap();
                shop.run("REINDEX INDEX CONCURRENTLY things_pkey").await;
                shop.run("INSERT INTO things (id, n) VALUES (1, 100); UPDATE things SET n = 101").await;
                shop.run("ALTER TABLE things RENAME id TO spare; ALTER TABLE things RENAME n TO id; ALTER TABLE things RENAME spare TO n").await;
                shop.run("INSERT INTO things (n, id) VALUES (2, 200); UPDATE things SET id = 201 WHERE n = 2; UPDATE things SET id = id + 1; DELETE FROM things WHERE n = 1").await;
                let keys =
                    ["insert [1]", "update [1]", "insert [2]", "update [2]", "update [1]", "update [2]", "delete [1]"];
                let mut logged = keyed(&read(&mut *stream, keys.len()).await);
                // Rows of one statement come as they lie in the table.
                logged[4..6].sort();
                assert_eq!(logged, keys, "{version:?}: {table}");
                assert!(is_quiet(&mut *stream).await);
            });
        }
    }
}

/// The server forgets the rows of a MERGE for statement-level triggers when a foreign key writes the same table.
#[test]
fn a_merge_into_a_table_that_refers_to_itself_is_logged() {
    for action in ["CASCADE", "SET NULL", "SET DEFAULT"] {
        for table in [
            format!("CREATE TABLE things (id int PRIMARY KEY, n int, parent int REFERENCES things ON DELETE {action})"),
            format!(
                "CREATE TABLE things (id int PRIMARY KEY, n int, parent int);
                CREATE TABLE between (id int PRIMARY KEY REFERENCES things ON DELETE CASCADE);
                ALTER TABLE things ADD FOREIGN KEY (parent) REFERENCES between ON DELETE {action}"
            ),
        ] {
            for version in Version::ALL {
                block_on(async {
                    let shop = Shop::with(version, &table, "things").await;
                    let mut stream = shop.log().await.open(&cx(), StartAt::Oldest).await.unwrap();
                    shop.run("INSERT INTO things SELECT n FROM generate_series(1, 4) n").await;
                    shop.run(
                        "MERGE INTO things USING (SELECT generate_series(1, 5) AS id) AS new ON new.id = things.id
                            WHEN MATCHED AND things.id < 3 THEN DELETE WHEN MATCHED THEN UPDATE SET n = 7
                            WHEN NOT MATCHED THEN INSERT VALUES (new.id)",
                    )
                    .await;
                    let mut logged = keyed(&read(&mut *stream, 4 + 5).await).split_off(4);
                    logged.sort();
                    let expected = ["delete [1]", "delete [2]", "insert [5]", "update [3]", "update [4]"];
                    assert_eq!(logged, expected, "{version:?}: {table}");
                });
            }
        }
    }
}
