//! The trigger function of plain tables, which logs most statements without settings of its own.

use watchkeeper_core::{Operation, Source, StartAt};
use watchkeeper_postgres::changelog::{Wake, install};
use watchkeeper_testkit::servers::postgres::Version;

use super::support::{Shop, is_quiet, read, received};
use crate::sink::shown;
use crate::support::{block_on, cx};

/// A table with every type whose text depends on one setting.
const PLAIN: &str =
    "CREATE TABLE plain (id int PRIMARY KEY, amount float8, small float4, bytes bytea, at timestamptz, day date,
    stamp timestamp, note text, exact numeric, part uuid)";

/// Changes of single and of several rows; the table is empty again at the end.
const CHANGES: [&str; 8] = [
    "INSERT INTO plain SELECT 1, 1.0 / 3, 0.1, '\\x00ff5c27', '2026-02-03 04:05:06.789+00', '2026-02-03', '2026-02-03 04:05', 'it''s \"ü\"', 1.50, NULL",
    "INSERT INTO plain SELECT n, n / 7.0, 0.7, '\\x5c', '2026-07-03 04:05:06+02', NULL, NULL, NULL, NULL, NULL FROM generate_series(2, 4) n",
    "UPDATE plain SET amount = amount / 3 WHERE id = 1",
    "UPDATE plain SET id = 9 WHERE id = 1",
    "UPDATE plain SET small = small * 3 WHERE id IN (2, 3)",
    "UPDATE plain SET note = 'nobody' WHERE id = 77",
    "DELETE FROM plain WHERE id = 9",
    "DELETE FROM plain",
];
/// One, three, one, two halves of a new key, two, none, one, three.
const LOGGED: usize = 13;

/// What a session may set, with operators and functions that end every statement which calls them.
const HOSTILE: &str = "
    CREATE SCHEMA evil;
    CREATE FUNCTION evil.trap(text, text) RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN RAISE 'trapped'; END $$;
    CREATE FUNCTION evil.trap(bigint, bigint) RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN RAISE 'trapped'; END $$;
    CREATE FUNCTION evil.trap(bigint, int) RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN RAISE 'trapped'; END $$;
    CREATE FUNCTION evil.trapped(text, text) RETURNS text LANGUAGE plpgsql AS $$ BEGIN RAISE 'trapped'; END $$;
    CREATE FUNCTION evil.current_setting(text, boolean) RETURNS text LANGUAGE plpgsql AS $$ BEGIN RAISE 'trapped'; END $$;
    CREATE FUNCTION evil.set_config(text, text, boolean) RETURNS text LANGUAGE plpgsql AS $$ BEGIN RAISE 'trapped'; END $$;
    CREATE FUNCTION evil.to_json(anyelement) RETURNS json LANGUAGE plpgsql AS $$ BEGIN RAISE 'trapped'; END $$;
    CREATE FUNCTION evil.row_to_json(record) RETURNS json LANGUAGE plpgsql AS $$ BEGIN RAISE 'trapped'; END $$;
    CREATE OPERATOR evil.= (LEFTARG = text, RIGHTARG = text, PROCEDURE = evil.trap);
    CREATE OPERATOR evil.<> (LEFTARG = text, RIGHTARG = text, PROCEDURE = evil.trap);
    CREATE OPERATOR evil.= (LEFTARG = bigint, RIGHTARG = int, PROCEDURE = evil.trap);
    CREATE OPERATOR evil.= (LEFTARG = bigint, RIGHTARG = bigint, PROCEDURE = evil.trap);
    CREATE OPERATOR evil.|| (LEFTARG = text, RIGHTARG = text, PROCEDURE = evil.trapped)";

const SESSIONS: [&str; 9] = [
    "SET timezone = 'UTC'",
    "SET timezone = 'Etc/UTC'; SET extra_float_digits = 3",
    "SET timezone = 'Asia/Tokyo'",
    "SET extra_float_digits = -10",
    "SET bytea_output = 'escape'",
    "SET datestyle = 'SQL, DMY'; SET intervalstyle = 'sql_standard'; SET quote_all_identifiers = on",
    "SET plan_cache_mode = 'force_generic_plan'",
    "SET plan_cache_mode = 'force_custom_plan'; SET jit_above_cost = 0",
    "SET search_path = evil, pg_catalog, public",
];

const WATCHED: [&str; 7] =
    ["search_path", "timezone", "bytea_output", "intervalstyle", "extra_float_digits", "datestyle", "lc_monetary"];

/// Whether a table's function is that of plain tables, which sets nothing.
async fn has_fast_path(shop: &Shop, table: &str) -> bool {
    let sql = format!(
        "SELECT (proconfig IS NULL)::text FROM pg_proc WHERE pronamespace = 'watchkeeper'::regnamespace
            AND proname = 'log_of_' || '{table}'::regclass::oid"
    );
    shown(&shop.client, &sql).await == ["true"]
}

async fn settings(session: &tokio_postgres::Client) -> Vec<String> {
    let mut values = Vec::new();
    for name in WATCHED {
        values.push(session.query_one(&format!("SHOW {name}"), &[]).await.expect("it can be shown").get(0));
    }
    values
}

#[test]
fn a_plain_table_is_logged_alike_whatever_its_writers_have_set() {
    for version in Version::ALL {
        block_on(async {
            let shop = Shop::with(version, PLAIN, "plain").await;
            assert!(has_fast_path(&shop, "plain").await);
            shop.run(HOSTILE).await;
            let mut stream = shop.log().await.open(&cx(), StartAt::Oldest).await.unwrap();
            let mut first = None;
            for set in SESSIONS {
                let session = shop.session().await;
                session.batch_execute(set).await.unwrap();
                let before = settings(&session).await;
                // Each for itself, and all in one transaction, where a setting that was left behind would be seen.
                for together in [false, true] {
                    if together {
                        session.batch_execute("BEGIN").await.unwrap();
                    }
                    for change in CHANGES {
                        session
                            .batch_execute(change)
                            .await
                            .unwrap_or_else(|error| panic!("{set}: {change}: {error:?}"));
                        assert_eq!(settings(&session).await, before, "{version:?}: {set}: {change}");
                    }
                    if together {
                        session.batch_execute("COMMIT").await.unwrap();
                    }
                    let mut logged = received(&read(&mut *stream, LOGGED).await);
                    // Rows of one statement come as they lie in the table; those of a key stay in their order.
                    logged.sort_by(|one, other| one.1.cmp(&other.1));
                    assert_eq!(&logged, first.get_or_insert_with(|| logged.clone()), "{version:?}: {set}");
                }
            }
            assert!(is_quiet(&mut *stream).await);
            let first = first.unwrap();
            assert!(first[0].2.contains(r#""at":"2026-02-03T04:05:06.789+00:00""#), "{:?}", first[0]);
            assert!(first[0].2.contains(r#""amount":0.3333333333333333"#), "{:?}", first[0]);
            assert!(first[0].2.contains(r#""bytes":"\\x00ff5c27""#), "{:?}", first[0]);
        });
    }
}

/// SQL in a function may take a column for a variable, or a variable for a column.
#[test]
fn key_columns_may_be_called_like_anything_in_the_function() {
    let names = [
        "state",
        "settings",
        "others",
        "place",
        "is_behind",
        "since",
        "through",
        "names",
        "logged",
        "doubts",
        "doubtful",
        "general",
        "found",
        "tg_op",
        "tg_relid",
        "tg_argv",
        "key",
        "image",
        "k",
        "n",
        "o",
        "c",
        "operation",
        "entity",
        "watchkeeper row",
        "watchkeeper new",
        "watchkeeper absent",
        "watchkeeper present",
        "It's \"quoted\"",
    ];
    let quoted = |name: &str| format!("\"{}\"", name.replace('"', "\"\""));
    for version in Version::ALL {
        block_on(async {
            let shop = Shop::new(version).await;
            let mut stream = shop.log().await.open(&cx(), StartAt::Oldest).await.unwrap();
            for name in names {
                let (column, table) = (quoted(name), quoted(&format!("of {name}")));
                shop.run(&format!("CREATE TABLE {table} ({column} int PRIMARY KEY, after text)")).await;
                let entity = install(&cx(), &shop.client, &[&table], Wake::Silent).await.unwrap();
                shop.run(&format!(
                    "INSERT INTO {table} VALUES (1, 'a'); UPDATE {table} SET after = 'b'; UPDATE {table} SET {column} = 2;
                    INSERT INTO {table} VALUES (3), (4); UPDATE {table} SET after = 'c' WHERE {column} > 2; DELETE FROM {table} WHERE {column} = 2;
                    DELETE FROM {table}"
                ))
                .await;
                let keys: Vec<_> = read(&mut *stream, 11)
                    .await
                    .iter()
                    .map(|change| String::from_utf8(change.key().unwrap().to_vec()).unwrap())
                    .collect();
                let expected = ["[1]", "[1]", "[1]", "[2]", "[3]", "[4]", "[3]", "[4]", "[2]", "[3]", "[4]"];
                assert_eq!(keys, expected, "{version:?}: {entity:?}");
            }
        });
    }
}

/// The planner asks once for a plan whether the table is still plain; every change of the table makes a new plan.
#[test]
fn a_plain_table_that_changes_is_logged_right_by_sessions_that_know_the_old_one() {
    for version in Version::ALL {
        block_on(async {
            let shop = Shop::new(version).await;
            let mut stream = shop.log().await.open(&cx(), StartAt::Oldest).await.unwrap();
            let session = shop.session().await;
            session.batch_execute("SET timezone = 'Asia/Tokyo'; SET extra_float_digits = -10").await.unwrap();
            let expected = |received: Vec<(Operation, String, String)>, keys: &[&str], part: &str| {
                let seen: Vec<_> = received.iter().map(|one| one.1.as_str()).collect();
                assert_eq!(seen, keys, "{version:?}: {received:?}");
                assert!(received.iter().all(|one| one.2.contains(part)), "{version:?}: {received:?}");
            };
            let write = |id: i32, column: &str, more: &str| {
                format!("INSERT INTO things SELECT {id}{more}; UPDATE things SET n = {id} WHERE {column} = {id}")
            };
            session.batch_execute(&write(1, "id", "")).await.unwrap();
            expected(received(&read(&mut *stream, 2).await), &["[1]", "[1]"], r#""id":1"#);
            // By another session, and by the one that writes, in the middle of its transaction.
            shop.run("ALTER TABLE things ADD at timestamptz DEFAULT '2026-02-03 04:05:06+00'").await;
            session.batch_execute(&write(2, "id", "")).await.unwrap();
            expected(received(&read(&mut *stream, 2).await), &["[2]", "[2]"], r#""at":"2026-02-03T04:05:06+00:00""#);
            shop.run("ALTER TABLE things RENAME id TO number").await;
            session.batch_execute(&write(3, "number", "")).await.unwrap();
            expected(received(&read(&mut *stream, 2).await), &["[3]", "[3]"], r#""number":3"#);
            shop.run("ALTER TABLE things RENAME number TO id; ALTER TABLE things ADD number text DEFAULT 'x'").await;
            session.batch_execute(&write(4, "id", "")).await.unwrap();
            expected(received(&read(&mut *stream, 2).await), &["[4]", "[4]"], r#""number":"x""#);
            let sql = format!(
                "BEGIN; {}; ALTER TABLE things ADD share float8 DEFAULT 0.1::float8 + 0.2; {}; COMMIT",
                write(5, "id", ""),
                write(6, "id", "")
            );
            session.batch_execute(&sql).await.unwrap();
            let logged = received(&read(&mut *stream, 4).await);
            expected(logged[..2].to_vec(), &["[5]", "[5]"], r#""id":5"#);
            expected(logged[2..].to_vec(), &["[6]", "[6]"], r#""share":0.30000000000000004"#);
            // A key of this type needs more than to be written as JSON.
            shop.run("ALTER TABLE things ALTER id TYPE numeric").await;
            session.batch_execute("INSERT INTO things SELECT 7.50").await.unwrap();
            expected(received(&read(&mut *stream, 1).await), &["[7.5]"], r#""id":7.50"#);
            // The texts of integers are JSON; other texts are not.
            shop.run("ALTER TABLE things ALTER id TYPE text").await;
            session.batch_execute("INSERT INTO things SELECT 'a\"b'").await.unwrap();
            expected(received(&read(&mut *stream, 1).await), &[r#"["a\"b"]"#], r#""id":"a\"b""#);
            assert!(is_quiet(&mut *stream).await);
        });
    }
}

/// Where the text of a value depends on several settings, or the key needs more than to be written as JSON, nothing is left out.
#[test]
fn other_tables_have_the_general_function() {
    block_on(async {
        let shop = Shop::new(Version::V18).await;
        shop.run("CREATE TYPE mood AS ENUM ('well', 'ill')").await;
        for (columns, is_plain) in [
            ("id int PRIMARY KEY, span interval", false),
            ("id int PRIMARY KEY, price money", false),
            ("id int PRIMARY KEY, numbers int[]", false),
            ("id int PRIMARY KEY, body jsonb", false),
            ("id numeric PRIMARY KEY", false),
            ("id timestamptz PRIMARY KEY", false),
            ("id int, part text, PRIMARY KEY (id, part)", true),
            ("id uuid PRIMARY KEY, at timestamptz, bytes bytea, amount float8", true),
            ("id int PRIMARY KEY, mood mood", true),
        ] {
            shop.run(&format!("DROP TABLE IF EXISTS other; CREATE TABLE other ({columns})")).await;
            install(&cx(), &shop.client, &["other"], Wake::Silent).await.unwrap();
            assert_eq!(has_fast_path(&shop, "other").await, is_plain, "{columns}");
        }
    });
}
