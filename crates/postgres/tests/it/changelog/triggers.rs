//! What triggers see, and what they would miss.

use watchkeeper_core::{ErrorKind, Operation, Source, StartAt};
use watchkeeper_postgres::Client;
use watchkeeper_postgres::changelog::{Unread, Wake, install, uninstall};
use watchkeeper_testkit::servers::postgres::Version;

use super::support::{LIMITS, Shop, is_quiet, read, received};
use crate::support::{Base, assert_error, block_on, cx};

fn is(operation: Operation, key: &str, body: &str) -> (Operation, String, String) {
    (operation, key.to_owned(), body.to_owned())
}

#[test]
fn bodies_show_the_row_before_and_after_and_what_changed() {
    use Operation::{Delete, Insert, Truncate, Update};
    for version in Version::ALL {
        block_on(async {
            let table = r#"CREATE TABLE "odd ""table""'s\" ("the key" text, part numeric, "a'b" jsonb, same int,
                PRIMARY KEY ("the key", part))"#;
            let shop = Shop::with(version, table, "odd \"table\"'s\\").await;
            let mut stream = shop.log().await.open(&cx(), StartAt::Oldest).await.unwrap();
            shop.run(
                r#"INSERT INTO "odd ""table""'s\" VALUES ('k"', 1.50, '{"x": [1.0]}', NULL);
                UPDATE "odd ""table""'s\" SET "a'b" = NULL, part = 1.5;
                UPDATE "odd ""table""'s\" SET part = 2;
                DELETE FROM "odd ""table""'s\"; TRUNCATE "odd ""table""'s\""#,
            )
            .await;
            let one = r#"{"the key":"k\"","part":1.50,"a'b":{"x": [1.0]},"same":null}"#;
            let two = r#"{"the key":"k\"","part":1.5,"a'b":null,"same":null}"#;
            let three = r#"{"the key":"k\"","part":2,"a'b":null,"same":null}"#;
            let changes = read(&mut *stream, 6).await;
            assert_eq!(
                received(&changes),
                [
                    is(Insert, r#"["k\"",1.5]"#, &format!(r#"{{"before":null,"after":{one}}}"#)),
                    // The key is the same, but what is stored of it is not.
                    is(
                        Update,
                        r#"["k\"",1.5]"#,
                        &format!(r#"{{"before":{one},"after":{two},"changed":["part", "a'b"]}}"#)
                    ),
                    is(Delete, r#"["k\"",1.5]"#, &format!(r#"{{"before":{two},"after":null}}"#)),
                    is(Insert, r#"["k\"",2]"#, &format!(r#"{{"before":null,"after":{three}}}"#)),
                    is(Delete, r#"["k\"",2]"#, &format!(r#"{{"before":{three},"after":null}}"#)),
                    is(Truncate, "", r#"{"before":null,"after":null}"#),
                ]
            );
            assert_eq!(changes[0].namespace(), "public.odd \"table\"'s\\");
            let millis =
                shop.application.query_one("SELECT extract(epoch FROM now())::bigint * 1000", &[]).await.unwrap();
            let age = millis.get::<_, i64>(0).abs_diff(changes[0].time().0.cast_signed());
            assert!(age < 3_600_000, "the time of a change is off by {age} ms");
        });
    }
}

/// A key is the same whoever writes it: order and partitions depend on that.
#[test]
fn settings_of_a_session_do_not_change_keys() {
    block_on(async {
        let table = "CREATE TABLE things (at timestamptz, bytes bytea, length interval, real float8,
            PRIMARY KEY (at, bytes, length, real))";
        let shop = Shop::with(Version::V15, table, "things").await;
        let mut stream = shop.log().await.open(&cx(), StartAt::Oldest).await.unwrap();
        shop.run("INSERT INTO things VALUES ('2026-01-02 03:04:05+00', '\\x00ff', '1 day 2 hours', 0.1)").await;
        shop.run(
            "SET timezone = 'Asia/Tokyo'; SET bytea_output = escape; SET intervalstyle = postgres_verbose;
            SET extra_float_digits = -5; SET search_path = pg_temp; SET session_replication_role = replica;
            DELETE FROM public.things",
        )
        .await;
        let changes = read(&mut *stream, 2).await;
        assert_eq!(changes[1].operation(), Operation::Delete, "it is logged for a replica's session too");
        assert_eq!(changes[0].key(), changes[1].key());
    });
}

#[test]
fn a_user_without_rights_on_the_log_is_logged() {
    block_on(async {
        let shop = Shop::new(Version::V18).await;
        let user = crate::support::fresh_name();
        shop.run(&format!("CREATE ROLE {user} LOGIN; GRANT ALL ON things TO {user}")).await;
        let session = crate::support::connect(&shop.base.url_of(&user)).await;
        let refused =
            session.batch_execute("SELECT * FROM watchkeeper.log").await.expect_err("it has no right to look");
        assert_eq!(refused.code().map(|code| code.code()), Some("42501"));
        session
            .batch_execute("INSERT INTO things VALUES (1); TRUNCATE things")
            .await
            .expect("it may write to its table");
        let mut stream = shop.log().await.open(&cx(), StartAt::Oldest).await.unwrap();
        assert_eq!(read(&mut *stream, 2).await.len(), 2);
    });
}

/// Neither the application nor the reader stumbles over a column that goes or gets another name.
#[test]
fn columns_may_come_go_and_be_renamed() {
    block_on(async {
        let shop = Shop::new(Version::V18).await;
        let mut stream = shop.log().await.open(&cx(), StartAt::Oldest).await.unwrap();
        shop.run("INSERT INTO things VALUES (1, 1, 'x')").await;
        let open = shop.session().await;
        open.batch_execute("BEGIN; INSERT INTO things VALUES (2, 1, 'y')").await.unwrap();
        read(&mut *stream, 1).await;
        open.batch_execute("ALTER TABLE things DROP COLUMN name; INSERT INTO things VALUES (3, 1); COMMIT")
            .await
            .unwrap();
        shop.run("ALTER TABLE things ADD COLUMN more int DEFAULT 7; ALTER TABLE things RENAME COLUMN id TO number")
            .await;
        shop.run("UPDATE things SET n = 5 WHERE number = 1").await;
        let received = received(&read(&mut *stream, 3).await);
        assert_eq!(received[0], is(Operation::Insert, "[2]", r#"{"before":null,"after":{"id":2,"n":1,"name":"y"}}"#));
        assert_eq!(received[1], is(Operation::Insert, "[3]", r#"{"before":null,"after":{"id":3,"n":1}}"#));
        assert_eq!(received[2].1, "[1]", "the key is found under its new name");
        // Without any key left the change is told without one, and nobody is kept from writing.
        shop.run("ALTER TABLE things DROP COLUMN number; UPDATE things SET n = 6 WHERE n = 5").await;
        let last = read(&mut *stream, 1).await;
        assert_eq!((last[0].operation(), last[0].key()), (Operation::Update, None));
    });
}

#[test]
fn what_cannot_be_logged_is_refused_with_the_reason() {
    block_on(async {
        let base = Base::new(Version::V15).await;
        let (client, admin) = (base.client().await, base.admin().await);
        admin
            .batch_execute(
                "CREATE TABLE keyless (a int); CREATE UNLOGGED TABLE fleeting (id int PRIMARY KEY); CREATE VIEW seen AS SELECT 1 AS a; CREATE TABLE fine (id int PRIMARY KEY);
                CREATE COLLATION loose (provider = icu, locale = 'und-u-ks-level2', deterministic = false);
                CREATE TABLE loosely (id text COLLATE loose PRIMARY KEY)",
            )
            .await
            .unwrap();
        for (table, cause) in [
            ("keyless", "no primary key"),
            ("seen", "is not a table that lasts"),
            ("fleeting", "is not a table that lasts"),
            ("gone", "there is no table gone"),
            ("a.b.c", "does not name a table"),
            ("loosely", "holds different texts to be equal"),
        ] {
            assert_error(install(&cx(), &client, &["fine", table], Wake::Notify).await, ErrorKind::Config, cause);
        }
        let sql =
            "SELECT tgname FROM pg_trigger UNION ALL SELECT nspname FROM pg_namespace WHERE nspname = 'watchkeeper'";
        assert!(admin.query(sql, &[]).await.unwrap().is_empty(), "nothing was changed");
    });
}

#[test]
fn a_table_that_is_not_logged_any_more_is_reported_after_what_is_unread() {
    block_on(async {
        let shop = Shop::new(Version::V18).await;
        let log = shop.log().await;
        shop.run(r#"INSERT INTO things VALUES (1); ALTER TABLE things DISABLE TRIGGER "!watchkeeper_log_insert""#)
            .await;
        shop.run("INSERT INTO things VALUES (2)").await;
        let mut stream = log.open(&cx(), StartAt::Oldest).await.unwrap();
        let first = read(&mut *stream, 1).await;
        assert_error(stream.next_batch(&cx(), LIMITS).await, ErrorKind::PositionLost, "is not logged any more");
        let found = log.check(&cx()).await.unwrap();
        assert!(
            found.iter().any(|finding| finding.what.starts_with("public.things is not logged any more")),
            "{found:?}"
        );
        // Installed again, the loss stands in the log: nobody who comes later takes it for whole.
        install(&cx(), &shop.client, &["things"], Wake::Notify).await.unwrap();
        shop.run("INSERT INTO things VALUES (3)").await;
        let mut stream = log.open(&cx(), StartAt::After(first[0].position())).await.unwrap();
        assert_error(stream.next_batch(&cx(), LIMITS).await, ErrorKind::PositionLost, "history is lost before change");
        let mut stream = log.open(&cx(), StartAt::Oldest).await.unwrap();
        assert_eq!(read(&mut *stream, 1).await[0].key(), Some(&b"[3]"[..]));
        assert!(is_quiet(&mut *stream).await);
    });
}

/// Names go from table to table, and keys from column to column: what was logged under them is not what is logged now.
#[test]
fn another_table_and_another_key_are_not_taken_for_the_same() {
    block_on(async {
        let shop = Shop::new(Version::V15).await;
        let log = shop.log().await;
        shop.run("ALTER TABLE things RENAME TO old; CREATE TABLE things (id bigint PRIMARY KEY, n bigint, name text)")
            .await;
        let mut stream = log.open(&cx(), StartAt::Oldest).await.unwrap();
        assert_error(stream.next_batch(&cx(), LIMITS).await, ErrorKind::PositionLost, "another table has its name");
        install(&cx(), &shop.client, &["things"], Wake::Notify).await.unwrap();
        let mut stream = log.open(&cx(), StartAt::Oldest).await.unwrap();
        shop.run("INSERT INTO old VALUES (1); INSERT INTO things VALUES (2, 0); TRUNCATE old").await;
        assert_eq!(read(&mut *stream, 1).await[0].key(), Some(&b"[2]"[..]));
        assert!(is_quiet(&mut *stream).await, "what has the name no more is not told under it");
        shop.run("ALTER TABLE things DROP CONSTRAINT things_pkey1, ADD PRIMARY KEY (id, n)").await;
        let mut stream = log.open(&cx(), StartAt::Oldest).await.unwrap();
        read(&mut *stream, 1).await;
        assert_error(stream.next_batch(&cx(), LIMITS).await, ErrorKind::PositionLost, "has another primary key");
        install(&cx(), &shop.client, &["things"], Wake::Notify).await.unwrap();
        let mut stream = log.open(&cx(), StartAt::Oldest).await.unwrap();
        shop.run("INSERT INTO things VALUES (3, 4)").await;
        assert_eq!(read(&mut *stream, 1).await[0].key(), Some(&b"[3,4]"[..]));
    });
}

/// Triggers run with the rights of whoever installed them, and have to see the rows that they tell of.
#[test]
fn rows_that_the_installer_cannot_see_are_not_logged() {
    block_on(async {
        let base = Base::new(Version::V15).await;
        let (user, admin) = (base.user().await, base.admin().await);
        let (schema, client) = (base.schema_name(), Client::lazy(base.config_of(&user)));
        admin
            .batch_execute(&format!(
                "CREATE TABLE hidden (id int PRIMARY KEY); CREATE TABLE forbidden (id int PRIMARY KEY);
                ALTER TABLE hidden OWNER TO {user}; ALTER TABLE hidden ENABLE ROW LEVEL SECURITY;
                ALTER TABLE hidden FORCE ROW LEVEL SECURITY; GRANT TRIGGER ON forbidden TO {user};
                CREATE SCHEMA IF NOT EXISTS {schema} AUTHORIZATION {user}"
            ))
            .await
            .unwrap();
        for (table, cause) in
            [("hidden", "row-level security hides rows of hidden"), ("forbidden", "may not read forbidden")]
        {
            assert_error(install(&cx(), &client, &[table], Wake::Silent).await, ErrorKind::Config, cause);
        }
    });
}

#[test]
fn uninstalling_refuses_to_discard_what_is_unread() {
    block_on(async {
        let shop = Shop::new(Version::V15).await;
        let log = shop.log().await;
        let mut stream = log.open(&cx(), StartAt::Oldest).await.unwrap();
        shop.run("INSERT INTO things VALUES (1), (2)").await;
        let refused = uninstall(&cx(), &shop.client, &["things"], Unread::Keep).await;
        assert_error(refused, ErrorKind::Config, "it has 2 changes to read");
        assert_error(
            uninstall(&cx(), &shop.client, &["other"], Unread::Keep).await,
            ErrorKind::Config,
            "is not logged",
        );
        let end = read(&mut *stream, 2).await[1].position();
        let batch = stream.next_batch(&cx(), LIMITS).await.unwrap();
        assert!(batch.is_empty());
        uninstall(&cx(), &shop.client, &["things"], Unread::Discard).await.unwrap();
        assert_error(stream.next_batch(&cx(), LIMITS).await, ErrorKind::PositionLost, "the log was uninstalled");
        shop.run("INSERT INTO things VALUES (3)").await;
        // Another log begins, which is not taken for the one before.
        install(&cx(), &shop.client, &["things"], Wake::Notify).await.unwrap();
        let other = shop.log().await;
        let pedigree = other.identity(&cx()).await.unwrap();
        assert_error(other.verify(&cx(), &end, &pedigree).await, ErrorKind::PositionLost, "is not there");
    });
}
