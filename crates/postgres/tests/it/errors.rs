//! Every row of the error table, said by a real server.

use tokio_postgres::Error as Native;
use watchkeeper_core::ErrorKind;
use watchkeeper_postgres::{CallPurpose, Class, Client, Config, to_error};
use watchkeeper_testkit::servers::postgres::{Server, Version};

use crate::support::{Base, assert_error, block_on, connect, cx, fresh_name, shared};

fn assert_is(native: Native, code: &str, class: Class) {
    assert_eq!(native.code().map(|code| code.code()), Some(code), "{native:?}");
    assert_eq!(Class::of(&native), class, "{code}");
    let error = to_error(native, CallPurpose::Reading, "here");
    let text = error.to_string();
    assert!(text.contains(code) && error.advice().is_some() && !text.contains('\n'), "{text}");
}

/// What one statement is answered with, after others that prepare it.
const STATEMENTS: &[(&str, Class, &str)] = &[
    ("25006", Class::NotPrimary, "BEGIN READ ONLY; CREATE TABLE t (x int)"),
    ("55P03", Class::Busy, "SET lock_timeout = 50; SELECT 1 FROM locked FOR UPDATE"),
    ("57014", Class::Late, "SET statement_timeout = 50; SELECT pg_sleep(600)"),
    ("57P01", Class::Ended, "SELECT pg_terminate_backend(pg_backend_pid()), pg_sleep(600)"),
    ("3F000", Class::Missing, "CREATE TABLE nowhere.t (x int)"),
    ("42P01", Class::Missing, "SELECT 1 FROM nowhere"),
    ("42703", Class::Missing, "SELECT nothing FROM locked"),
    ("42704", Class::Missing, "SELECT 1::nothing"),
    ("42883", Class::Missing, "SELECT nothing()"),
    ("0A000", Class::Settings, "SELECT 1 FROM elsewhere.public.t"),
    (
        "21000",
        Class::Settings,
        "CREATE TEMP TABLE c (x int UNIQUE); INSERT INTO c VALUES (1), (1) ON CONFLICT (x) DO UPDATE SET x = 1",
    ),
    ("22023", Class::Settings, "SELECT set_config('statement_timeout', '-5', false)"),
    ("42601", Class::Settings, "SELEC 1"),
    ("42602", Class::Settings, "SELECT 'a.b.'::regclass"),
    ("42P02", Class::Settings, "SELECT $9"),
    ("42P10", Class::Settings, "INSERT INTO locked VALUES (1) ON CONFLICT (x) DO NOTHING"),
    ("42804", Class::Settings, "SELECT CASE WHEN true THEN 1 ELSE '1'::text END"),
    ("42809", Class::Settings, "DROP VIEW locked"),
    ("42939", Class::Settings, "CREATE SCHEMA pg_mine"),
    ("55000", Class::Settings, "CREATE TEMP SEQUENCE s; SELECT currval('s')"),
    ("42501", Class::Denied, "SET ROLE pg_monitor; CREATE SCHEMA mine"),
    ("42P06", Class::Duplicate, "CREATE SCHEMA public"),
    ("42P07", Class::Duplicate, "CREATE TABLE locked (x int)"),
    ("42710", Class::Duplicate, "CREATE ROLE postgres"),
    ("42P04", Class::Duplicate, "CREATE DATABASE template1"),
    ("23505", Class::Refused, "CREATE TEMP TABLE u (x int UNIQUE); INSERT INTO u VALUES (1), (1)"),
    ("22P02", Class::Refused, "SELECT 'x'::int"),
    (
        "44000",
        Class::Refused,
        "CREATE TEMP VIEW v AS SELECT * FROM locked WHERE x > 5 WITH CHECK OPTION; INSERT INTO v VALUES (1)",
    ),
    (
        "54000",
        Class::Refused,
        "CREATE TEMP TABLE w (x text UNIQUE); INSERT INTO w SELECT string_agg(md5(g::text), '') FROM generate_series(1, 3000) g",
    ),
    ("54001", Class::Refused, "SELECT repeat('[', 1000000)::json"),
    ("P0001", Class::Refused, "DO $$ BEGIN RAISE EXCEPTION 'no'; END $$"),
    // Other damage, a full disk and broken connections between servers are said by the server, but not for their reasons.
    ("53100", Class::Exhausted, "DO $$ BEGIN RAISE EXCEPTION 'full' USING ERRCODE = '53100'; END $$"),
    ("08006", Class::Network, "DO $$ BEGIN RAISE EXCEPTION 'cut' USING ERRCODE = '08006'; END $$"),
    ("57P02", Class::Ended, "DO $$ BEGIN RAISE EXCEPTION 'crash' USING ERRCODE = '57P02'; END $$"),
    ("57P03", Class::Ended, "DO $$ BEGIN RAISE EXCEPTION 'starting' USING ERRCODE = '57P03'; END $$"),
    ("XX002", Class::Damaged, "DO $$ BEGIN RAISE EXCEPTION 'damaged' USING ERRCODE = 'XX002'; END $$"),
    ("58030", Class::Damaged, "DO $$ BEGIN RAISE EXCEPTION 'unreadable' USING ERRCODE = '58030'; END $$"),
    ("XX000", Class::Other, "DO $$ BEGIN RAISE EXCEPTION 'odd' USING ERRCODE = 'XX000'; END $$"),
];

/// What ends a session that lies idle.
const IDLE: [(&str, &str); 3] = [
    ("25P03", "SET idle_in_transaction_session_timeout = 50; BEGIN"),
    ("57P05", "SET idle_session_timeout = 50"),
    ("25P04", "SET transaction_timeout = 50; BEGIN"),
];

/// What is provoked by a test of its own.
const APART: [&str; 7] = ["40001", "40P01", "55006", "3D000", "28000", "53300", "XX001"];

#[test]
fn no_row_of_the_table_is_left_out() {
    let provoked: Vec<&str> =
        STATEMENTS.iter().map(|(code, ..)| *code).chain(IDLE.map(|(code, _)| code)).chain(APART).collect();
    for (code, class) in Class::codes() {
        let other = |reported: &str| reported != code && Class::codes().any(|(nearer, _)| nearer == reported);
        let is_row = |reported: &&str| reported.starts_with(code) && !other(reported);
        let reported = provoked.iter().find(|reported| is_row(reported));
        let reported = reported.unwrap_or_else(|| panic!("nothing provokes {code}"));
        assert_eq!(Class::of_code(reported), class, "{reported}");
    }
}

#[test]
fn a_page_that_is_no_page_is_reported_to_be_damage() {
    let server = Server::start(Version::V15);
    let url = server.url("postgres");
    let path = block_on(async {
        let admin = connect(&url).await;
        admin.batch_execute("CREATE TABLE t AS SELECT 1 AS x; CHECKPOINT").await.expect("it is new");
        admin.query_one("SELECT pg_relation_filepath('t')", &[]).await.expect("it has one").get::<_, String>(0)
    });
    server.stop();
    let file = server.folder().join("data").join(path);
    std::fs::write(&file, [0xa5; 8_192]).expect("the data folder is ours");
    server.restart();
    block_on(async {
        let admin = connect(&url).await;
        assert_is(admin.batch_execute("SELECT * FROM t").await.expect_err("it is damaged"), "XX001", Class::Damaged);
    });
}

#[test]
fn what_statements_are_answered_with_is_reported_by_the_table() {
    for version in Version::ALL {
        block_on(async {
            let base = Base::new(version).await;
            let mut holder = base.admin().await;
            holder
                .batch_execute("CREATE TABLE locked (x int); INSERT INTO locked VALUES (1)")
                .await
                .expect("it is new");
            let transaction = holder.transaction().await.expect("it answers");
            transaction.batch_execute("SELECT 1 FROM locked FOR UPDATE").await.expect("it is free");
            for (code, class, sql) in STATEMENTS {
                let connection = base.admin().await;
                let (before, last) = sql.rsplit_once("; ").filter(|_| !sql.starts_with("DO")).unwrap_or(("", sql));
                connection.batch_execute(before).await.expect(sql);
                assert_is(connection.batch_execute(last).await.expect_err(sql), code, *class);
            }
        });
    }
}

#[test]
fn sessions_that_lie_idle_are_reported_to_have_ended() {
    block_on(async {
        let base = Base::new(Version::V18).await;
        for (code, sql) in IDLE {
            let (client, connection) =
                tokio_postgres::connect(&base.url(), tokio_postgres::NoTls).await.expect("the server is there");
            let ended = tokio::spawn(connection);
            client.batch_execute(sql).await.expect("it answers");
            let native = ended.await.expect("it does not panic").expect_err("the server ends it");
            assert_is(native, code, Class::Ended);
        }
    });
}

#[test]
fn transactions_in_each_others_way_are_reported_to_be_busy() {
    block_on(async {
        let base = Base::new(Version::V15).await;
        let (a, b) = (base.admin().await, base.admin().await);
        a.batch_execute("CREATE TABLE t (x int); INSERT INTO t VALUES (1), (2)").await.expect("it is new");
        // A row that changed after the snapshot was taken.
        a.batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1 FROM t").await.expect("it answers");
        b.batch_execute("UPDATE t SET x = x").await.expect("it is free");
        assert_is(a.batch_execute("UPDATE t SET x = x").await.expect_err("it changed"), "40001", Class::Busy);
        a.batch_execute("ROLLBACK").await.expect("it answers");
        // Each waits for the other.
        a.batch_execute("BEGIN; SELECT 1 FROM t WHERE x = 1 FOR UPDATE").await.expect("it is free");
        b.batch_execute("BEGIN; SELECT 1 FROM t WHERE x = 2 FOR UPDATE").await.expect("it is free");
        let first = async {
            let answer = a.batch_execute("SELECT 1 FROM t WHERE x = 2 FOR UPDATE").await;
            a.batch_execute("ROLLBACK").await.expect("it answers");
            answer
        };
        let second = async {
            let answer = b.batch_execute("SELECT 1 FROM t WHERE x = 1 FOR UPDATE").await;
            b.batch_execute("ROLLBACK").await.expect("it answers");
            answer
        };
        let (first, second) = tokio::join!(first, second);
        let victim = first.err().or(second.err()).expect("one of them is chosen");
        assert_is(victim, "40P01", Class::Busy);
        // A database that someone is in cannot be dropped.
        let other = Base::new(Version::V15).await;
        let _guest = other.admin().await;
        let drop = format!("DROP DATABASE {}", other.database());
        assert_is(a.batch_execute(&drop).await.expect_err("someone is in it"), "55006", Class::Busy);
    });
}

#[test]
fn who_is_not_let_in_is_reported_why() {
    let server = shared(Version::V15);
    block_on(async {
        let open = async |url: &str| Client::open(&cx(), Config::new(url).expect("a URL")).await;
        let unknown = open(&server.url("nowhere")).await;
        let remedy = unknown.as_ref().err().and_then(|error| error.advice()).unwrap_or_default();
        assert!(remedy.contains("in the URL"), "{remedy}");
        assert_error(unknown, ErrorKind::Config, "/nowhere: database \"nowhere\" does not exist (3D000)");
        assert_error(open(&server.url_of("nobody_here", "postgres")).await, ErrorKind::Denied, "28000");
        let writers = fresh_name();
        let sql = format!("CREATE ROLE {writers} LOGIN CONNECTION LIMIT 0");
        connect(&server.url("postgres")).await.batch_execute(&sql).await.expect("the superuser may");
        assert_error(open(&server.url_of(&writers, "postgres")).await, ErrorKind::Unavailable, "53300");
        // Nobody listens on a port that was just given back.
        let port = std::net::TcpListener::bind("127.0.0.1:0").and_then(|one| one.local_addr()).expect("a port").port();
        let url = format!("postgres://postgres@127.0.0.1:{port}/postgres");
        let cause = format!("127.0.0.1:{port}/postgres: the server cannot be reached (Connection refused)");
        assert_error(open(&url).await, ErrorKind::Unavailable, &cause);
        let encrypted = open(&format!("{}?sslmode=verify-full", server.url("postgres"))).await;
        let remedy = encrypted.as_ref().err().and_then(|error| error.advice()).unwrap_or_default();
        assert!(remedy.contains("ssl = on") && !remedy.contains("authority"), "{remedy}");
        assert_error(encrypted, ErrorKind::Config, "does not support TLS");
    });
}

#[test]
fn what_broke_while_writing_is_not_known() {
    let server = Server::start(Version::V15);
    block_on(async {
        let client =
            Client::open(&cx(), Config::new(&server.url("postgres")).expect("a URL")).await.expect("it is there");
        let context = cx();
        let write = client.write(&context, "SELECT pg_sleep(600)", &[]);
        let kill = async {
            let admin = connect(&server.url("postgres")).await;
            crate::support::eventually("it sleeps", async || {
                let sql = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'SELECT pg_sleep%'";
                admin.query_one(sql, &[]).await.expect("it answers").get::<_, i64>(0) == 1
            })
            .await;
            server.kill();
        };
        let (written, ()) = tokio::join!(write, kill);
        let error = written.expect_err("the server is gone");
        // The processes of a killed server may still say that they end: then nothing was committed.
        assert!(matches!(error.kind(), ErrorKind::Unknown | ErrorKind::Unavailable), "{error}");
    });
}
