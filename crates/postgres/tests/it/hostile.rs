//! Settings that an administrator has given to a role or a database: what Watchkeeper tells and writes does not depend on them.

use std::sync::Arc;

use watchkeeper_core::{
    Backend, ErrorKind, Limits, Options, Origin, Purpose, Severity, Source, StartAt, WrittenSetting,
};
use watchkeeper_postgres::changelog::{Wake, install};
use watchkeeper_postgres::replication::Settings;
use watchkeeper_postgres::{ChangeLog, Client, Config, Postgres, Replication, Rows};
use watchkeeper_testkit::servers::postgres::{Server, Version};

use crate::columns::Flow;
use crate::support::{Base, assert_error, block_on, connect, cx, fresh_name};

/// What may be set for a role, beside what keeps it from working at all.
const SETTINGS: [&str; 21] = [
    "standard_conforming_strings = off",
    "escape_string_warning = off",
    "backslash_quote = off",
    "array_nulls = off",
    "bytea_output = escape",
    "extra_float_digits = -10",
    "datestyle = 'SQL, DMY'",
    "intervalstyle = sql_standard",
    "timezone = 'Asia/Tokyo'",
    "client_encoding = LATIN1",
    "search_path = nowhere",
    "default_transaction_isolation = serializable",
    "default_transaction_deferrable = on",
    "statement_timeout = '1s'",
    "lock_timeout = '1ms'",
    "idle_in_transaction_session_timeout = '200ms'",
    "idle_session_timeout = '200ms'",
    "row_security = on",
    "session_replication_role = replica",
    "quote_all_identifiers = on",
    "synchronous_commit = off",
];

const TABLES: &str = r"CREATE TABLE things (id int PRIMARY KEY, real float8, small float4, at timestamptz, plain timestamp, day date,
        span interval, bytes bytea, numbers int[], words text[], days date[], spans interval[], said text, doc jsonb, range tstzrange,
        money numeric, flag boolean, part uuid);
    CREATE TABLE copy (LIKE things INCLUDING ALL)";

const ROW: &str = r#"0.1::float8 + 0.2, 0.1, '2026-02-03 04:05:06.789+00', '2026-02-03 04:05:06', '2026-02-03',
    '-1 day +02:03:04', '\x00ff5c27', ARRAY[1, NULL, 3], ARRAY['a', NULL, 'NULL', 'q"\'''], ARRAY[date '2026-02-03', NULL],
    ARRAY[interval '-1 year -2 mons +3 days -04:05:06'], 'it''s \ "ü" 𝄞', '{"a": "\\ ''ü"}',
    tstzrange('2026-02-03 00:00+00', NULL), 1.50, true, '00000000-0000-0000-0000-00000000000a'"#;

/// A role that may do everything, with all of these settings.
async fn role(url: &str, version: Version) -> String {
    let (admin, name) = (connect(url).await, fresh_name());
    let mut sql = format!("CREATE ROLE {name} LOGIN SUPERUSER REPLICATION;");
    let newer = (version == Version::V18).then_some("transaction_timeout = '2s'");
    for setting in SETTINGS.into_iter().chain(newer) {
        sql += &format!("ALTER ROLE {name} SET {setting};");
    }
    admin.batch_execute(&sql).await.expect("the superuser may");
    name
}

/// Lets rows come, change and go, and expects the copy to be the same.
async fn carry(mut flow: Flow) {
    flow.carry(&format!("INSERT INTO things SELECT n, {ROW} FROM generate_series(1, 20) n"), 20).await;
    flow.carry(
        "UPDATE things SET said = said || '\\', numbers = NULL WHERE id <= 5; DELETE FROM things WHERE id = 6",
        6,
    )
    .await;
    flow.carry("UPDATE things SET id = -7, span = -span, spans = spans || spans WHERE id = 7", 2).await;
    let differing = "SELECT (SELECT count(*) FROM (TABLE public.things EXCEPT TABLE public.copy) AS a)
        + (SELECT count(*) FROM (TABLE public.copy EXCEPT TABLE public.things) AS b)";
    let rows = flow.application.query_one(differing, &[]).await.unwrap();
    assert_eq!(rows.get::<_, i64>(0), 0, "the copy differs");
}

fn copy() -> Rows {
    Rows::into("public.copy").unwrap()
}

#[test]
fn what_a_log_tells_does_not_depend_on_settings_of_the_role() {
    for version in Version::ALL {
        block_on(async {
            let base = Base::new(version).await;
            let application = base.admin().await;
            application.batch_execute(TABLES).await.unwrap();
            let user = role(&base.url(), version).await;
            let client = Client::open(&cx(), Config::new(&base.url_of(&user)).unwrap()).await.unwrap();
            install(&cx(), &client, &["public.things"], Wake::Notify).await.unwrap();
            let log = ChangeLog::open(&cx(), client, "it").await.unwrap();
            let flow = Flow::between((&base.url(), &base.url_of(&user)), &log, StartAt::Oldest, copy()).await;
            carry(flow).await;
        });
    }
}

#[test]
fn what_the_write_ahead_log_tells_does_not_depend_on_settings_of_the_role() {
    for version in Version::ALL {
        // A server of its own: a new slot waits for every transaction of its server.
        let server = Server::start(version);
        block_on(async {
            let url = server.url("postgres");
            let application = connect(&url).await;
            application.batch_execute(TABLES).await.unwrap();
            let insert = format!("INSERT INTO things SELECT n, {ROW} FROM generate_series(1001, 1010) n");
            application.batch_execute(&insert).await.unwrap();
            let user = role(&url, version).await;
            let of_user = server.url_of(&user, "postgres");
            let mut settings = Settings::new("hostile", "hostile");
            settings.tables = vec!["things".to_owned()];
            let source = Replication::new(Config::new(&of_user).unwrap(), settings);
            let mut flow = Flow::between((&url, &of_user), &source, StartAt::Snapshot, copy()).await;
            flow.carry("SELECT 1", 10).await;
            carry(flow).await;
        });
    }
}

fn written(settings: &[(&str, &str)]) -> Options {
    let origin = Origin::new("test.toml:1");
    let mut options = Options::new("", origin.clone());
    for (name, value) in settings {
        options.insert(*name, WrittenSetting::text(*value, origin.clone()));
    }
    options
}

/// Everything that a file can name is looked at and opened.
#[test]
fn what_a_file_names_opens_whatever_is_set_for_its_role() {
    for version in Version::ALL {
        block_on(async {
            let base = Base::new(version).await;
            base.admin().await.batch_execute(TABLES).await.unwrap();
            let user = role(&base.url(), version).await;
            let url = base.url_of(&user);
            let client = Client::open(&cx(), Config::new(&url).unwrap()).await.unwrap();
            install(&cx(), &client, &["public.things"], Wake::Notify).await.unwrap();
            Postgres.check_store(&cx(), &mut written(&[("url", &url)])).await.unwrap();
            Postgres.store(&cx(), &mut written(&[("url", &url)])).await.unwrap();
            let source = written(&[("url", &url)]);
            let purpose = Purpose::new("shop", "orders").reading(&Postgres, &source);
            let log = Postgres.source(&cx(), &purpose, &mut source.clone()).await.unwrap();
            assert_eq!(log.check(&cx()).await.unwrap(), []);
            for mode in ["events", "mirror", "versioned", "rows", "versioned_rows"] {
                let table = if mode.ends_with("rows") { "public.copy".to_owned() } else { format!("public.{mode}") };
                let settings = [("url", url.as_str()), ("mode", mode), ("table", &table)];
                // Before the table is there, and after.
                for _ in 0..2 {
                    let seen = Postgres.check_sink(&cx(), &purpose, &mut written(&settings)).await.unwrap();
                    let wrong = seen.findings.iter().any(|finding| finding.severity == Severity::Error);
                    assert!(!wrong, "{mode}: {seen:?}");
                    let target = Postgres.sink(&cx(), &purpose, &mut written(&settings)).await.unwrap();
                    target.sink.check(&cx()).await.unwrap();
                }
            }
            let settings = [("url", url.as_str()), ("mode", "events"), ("table", "public.things")];
            let fed = Postgres.check_sink(&cx(), &purpose, &mut written(&settings)).await.map(drop);
            assert_error(fed, ErrorKind::Config, "watches public.things, which this sink writes to");
        });
    }
}

#[test]
fn a_role_that_may_only_read_by_default_is_reported_so() {
    block_on(async {
        let base = Base::new(Version::V15).await;
        let user = base.user().await;
        let sql = format!("ALTER ROLE {user} SUPERUSER; ALTER ROLE {user} SET default_transaction_read_only = on");
        base.admin().await.batch_execute(&sql).await.unwrap();
        let found = Postgres.check_store(&cx(), &mut written(&[("url", &base.url_of(&user))])).await.unwrap();
        let reported =
            found.iter().find(|finding| finding.severity == Severity::Error).expect("it could write nothing");
        assert!(
            reported.what.contains("default_transaction_read_only is on") && reported.remedy.is_some(),
            "{reported:?}"
        );
    });
}

/// Keys that are cast to text are the same whoever reads them.
#[test]
fn keys_of_an_outbox_do_not_depend_on_settings_of_the_role() {
    block_on(async {
        let base = Base::new(Version::V18).await;
        let application = base.admin().await;
        let sql = "CREATE TABLE outbox (id bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY, about timestamptz,
                xid xid8 NOT NULL DEFAULT pg_current_xact_id());
            INSERT INTO outbox (about) VALUES ('2026-02-03 04:05:06+00')";
        application.batch_execute(sql).await.unwrap();
        let user = role(&base.url(), Version::V18).await;
        for url in [base.url(), base.url_of(&user)] {
            let client = Client::open(&cx(), Config::new(&url).unwrap()).await.unwrap();
            let columns = watchkeeper_postgres::changelog::Columns::of_outbox("about");
            let log = ChangeLog::outbox(&cx(), client, "it", "public.outbox", columns).await.unwrap();
            let mut stream = log.open(&cx(), StartAt::Oldest).await.unwrap();
            let batch = stream.next_batch(&cx(), super::changelog::LIMITS).await.unwrap();
            assert_eq!(batch.key(0), Some(&b"2026-02-03 04:05:06+00"[..]));
        }
    });
}

/// A reader that waits for its target is not at fault: the server has to have patience with it.
#[test]
fn a_slow_reader_of_a_log_outlives_the_patience_of_the_server() {
    block_on(async {
        let base = Base::new(Version::V15).await;
        let application = base.admin().await;
        application.batch_execute("CREATE TABLE things (id int PRIMARY KEY, said text)").await.unwrap();
        let client = base.client().await;
        install(&cx(), &client, &["things"], Wake::Silent).await.unwrap();
        let sql = "INSERT INTO things SELECT n, repeat(md5(n::text), 200) FROM generate_series(1, 3000) n";
        application.batch_execute(sql).await.unwrap();
        let user = base.user().await;
        let sql = format!("ALTER ROLE {user} SUPERUSER; ALTER ROLE {user} SET statement_timeout = '100ms'");
        application.batch_execute(&sql).await.unwrap();
        let client = Client::open(&cx(), Config::new(&base.url_of(&user)).unwrap()).await.unwrap();
        let log = ChangeLog::open(&cx(), client, "it").await.unwrap();
        let mut stream = log.open(&cx(), StartAt::Oldest).await.unwrap();
        let limits = Limits { rows: 100, ..super::changelog::LIMITS };
        let mut count = 0;
        while count < 3_000 {
            let batch = Arc::new(stream.next_batch(&cx(), limits).await.expect("the server has patience"));
            if count == 0 {
                // So long the target takes.
                application.batch_execute("SELECT pg_sleep(0.3)").await.unwrap();
            }
            count += batch.len();
        }
    });
}

#[test]
fn transactions_are_what_they_are_meant_to_be_whatever_is_the_default() {
    block_on(async {
        let base = Base::new(Version::V18).await;
        let user = role(&base.url(), Version::V18).await;
        let client = Client::open(&cx(), Config::new(&base.url_of(&user)).unwrap()).await.unwrap();
        let sql = "SELECT current_setting('transaction_isolation')";
        let level = |rows: Vec<watchkeeper_postgres::tokio_postgres::Row>| rows[0].get::<_, String>(0);
        assert_eq!(level(client.read(&cx(), sql, &[]).await.unwrap()), "read committed");
        assert_eq!(level(client.write(&cx(), sql, &[]).await.unwrap()), "read committed");
        let work = client.begin(&cx()).await.unwrap();
        assert_eq!(level(work.query(&cx(), sql, &[]).await.unwrap()), "read committed");
        work.rollback(&cx()).await;
    });
}
