//! The log as a configuration file and a command line name it.

use watchkeeper_core::{Backend, ErrorKind, Options, Origin, Purpose, Setting, StartAt, WrittenSetting};
use watchkeeper_postgres::{ChangeLog, Postgres};
use watchkeeper_testkit::servers::postgres::Version;

use super::support::{LIMITS, read};
use crate::support::{Base, assert_error, block_on, cx, eventually};

fn origin() -> Origin {
    Origin::new("shop.toml:1")
}

fn text(options: &mut Options, name: &str, value: &str) {
    options.insert(name, WrittenSetting::text(value, origin()));
}

fn options(base: &Base) -> Options {
    options_at(&base.url())
}

pub(super) fn options_at(url: &str) -> Options {
    let mut options = Options::new("stream.orders.source", origin());
    text(&mut options, "url", url);
    options
}

pub(super) fn with_tables(base: &Base, name: &str, tables: &[&str]) -> Options {
    listed(options(base), name, tables)
}

pub(super) fn listed(mut options: Options, name: &str, tables: &[&str]) -> Options {
    let list = tables.iter().map(|table| WrittenSetting::text(*table, origin())).collect();
    options.insert(name, WrittenSetting { setting: Setting::List(list), origin: origin() });
    options
}

pub(super) fn flagged(mut options: Options, name: &str) -> Options {
    options.insert(name, WrittenSetting { setting: Setting::Flag(true), origin: origin() });
    options
}

fn purpose() -> Purpose {
    Purpose::new("shop", "orders")
}

pub(super) async fn run(tool: &str, mut options: Options) -> watchkeeper_core::Result<Vec<String>> {
    let tools = Postgres.tools();
    let tool = tools.iter().find(|known| known.name() == tool).expect("there is such a tool");
    let report = tool.run(&cx(), &mut options).await?;
    options.finish().expect("it takes all that it is given");
    Ok(report.lines)
}

#[test]
fn commands_install_prune_and_uninstall_and_a_source_reads_some_tables() {
    block_on(async {
        let base = Base::new(Version::V18).await;
        let application = base.admin().await;
        application
            .batch_execute("CREATE TABLE a (id int PRIMARY KEY); CREATE TABLE b (id int PRIMARY KEY)")
            .await
            .unwrap();
        let missing = Postgres.source(&cx(), &purpose(), &mut options(&base)).await.unwrap();
        let cause = "no table of this database is logged";
        assert_error(missing.open(&cx(), StartAt::Oldest).await.map(drop), ErrorKind::Config, cause);
        assert_error(missing.identity(&cx()).await, ErrorKind::Config, cause);
        assert_error(missing.check(&cx()).await, ErrorKind::Config, cause);
        let received = run("install", flagged(with_tables(&base, "table", &["a", "b"]), "silent")).await.unwrap();
        assert_eq!(received, ["public.a: changes are logged from now on", "public.b: changes are logged from now on"]);
        let wrong = Postgres.source(&cx(), &purpose(), &mut with_tables(&base, "tables", &["c"])).await.unwrap();
        let wrong = wrong.open(&cx(), StartAt::Oldest).await.map(drop);
        assert_error(wrong, ErrorKind::Config, "the table c is not logged; those that are: public.a, public.b");

        let mut settings = with_tables(&base, "tables", &["b"]);
        text(&mut settings, "poll", "10ms");
        let source = Postgres.source(&cx(), &purpose(), &mut settings).await.unwrap();
        settings.finish().unwrap();
        let found = source.check(&cx()).await.unwrap();
        assert!(found.iter().any(|finding| finding.what.contains("do not tell of their changes")), "{found:?}");
        let mut stream = source.open(&cx(), StartAt::Oldest).await.unwrap();
        application
            .batch_execute("INSERT INTO a VALUES (1); INSERT INTO b VALUES (2); INSERT INTO a VALUES (3)")
            .await
            .unwrap();
        let changes = read(&mut *stream, 1).await;
        assert_eq!((changes[0].namespace(), changes[0].key()), ("public.b", Some(&b"[2]"[..])));
        application.batch_execute("INSERT INTO a VALUES (4)").await.unwrap();
        // Nothing is given out of the other table, yet the position moves past it.
        let mut moved = stream.next_batch(&cx(), LIMITS).await.unwrap();
        while source.compare(&changes[0].position(), &moved.end) != Some(std::cmp::Ordering::Less) {
            moved = stream.next_batch(&cx(), LIMITS).await.unwrap();
        }
        assert!(moved.is_empty());

        assert_eq!(run("prune", options(&base)).await.unwrap(), ["0 changes were removed"]);
        let refused = run("uninstall", with_tables(&base, "table", &["a", "b"])).await;
        assert_error(refused, ErrorKind::Config, "shop/orders has 4 changes to read");
        assert_eq!(run("prune", flagged(options(&base), "yes")).await.unwrap(), ["4 changes were removed"]);
        let received = run("uninstall", flagged(with_tables(&base, "table", &["a", "b"]), "yes")).await.unwrap();
        assert_eq!(received, ["a: changes are no longer logged", "b: changes are no longer logged"]);
        let gone = ChangeLog::open(&cx(), base.client().await, "it").await.map(drop);
        assert_error(gone, ErrorKind::Config, "no table of this database is logged");
    });
}

#[test]
fn an_outbox_is_described_by_its_columns() {
    block_on(async {
        let base = Base::new(Version::V15).await;
        let application = base.admin().await;
        let sql = "CREATE TABLE events (id bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY, order_id int, said jsonb,
            xid xid8 NOT NULL DEFAULT pg_current_xact_id())";
        application.batch_execute(sql).await.unwrap();
        let mut settings = options(&base);
        text(&mut settings, "outbox", "events");
        let missing = Postgres.source(&cx(), &purpose(), &mut settings).await.map(|_| ());
        assert_error(missing, ErrorKind::Config, "columns");
        let mut settings = options(&base);
        text(&mut settings, "outbox", "events");
        let mut columns = Options::new("stream.orders.source.columns", origin());
        text(&mut columns, "key", "order_id");
        text(&mut columns, "after", "said");
        settings.insert("columns", WrittenSetting { setting: Setting::Table(columns), origin: origin() });
        let source = Postgres.source(&cx(), &purpose(), &mut settings).await.unwrap();
        settings.finish().unwrap();
        let mut stream = source.open(&cx(), StartAt::Oldest).await.unwrap();
        application.batch_execute("INSERT INTO events (order_id, said) VALUES (7, '{\"a\": 1}')").await.unwrap();
        assert_eq!(read(&mut *stream, 1).await[0].key(), Some(&b"7"[..]));
    });
}

/// The role that reads may do what it needs to, and no more.
#[test]
fn a_role_reads_acknowledges_and_prunes_with_what_it_is_granted() {
    block_on(async {
        let base = Base::new(Version::V15).await;
        let (application, role) = (base.admin().await, base.user().await);
        application.batch_execute("CREATE TABLE a (id int PRIMARY KEY)").await.unwrap();
        let mut install = with_tables(&base, "table", &["a"]);
        text(&mut install, "role", &role);
        assert_eq!(run("install", install).await.unwrap()[1], format!("{role}: may read the log"));
        application.batch_execute("INSERT INTO a VALUES (1); INSERT INTO a VALUES (2)").await.unwrap();
        let mut settings = Options::new("stream.orders.source", origin());
        text(&mut settings, "url", &base.url_of(&role));
        text(&mut settings, "rewind", "0s");
        let source = Postgres.source(&cx(), &purpose(), &mut settings).await.unwrap();
        let mut stream = source.open(&cx(), StartAt::Oldest).await.unwrap();
        read(&mut *stream, 2).await;
        eventually("what was acknowledged is pruned", async || {
            let end = stream.next_batch(&cx(), LIMITS).await.unwrap().end;
            stream.acknowledge(&cx(), &end).await.unwrap();
            application.query("SELECT FROM watchkeeper.log", &[]).await.unwrap().is_empty()
        })
        .await;
        let writing = crate::support::connect(&base.url_of(&role)).await;
        let refused =
            writing.batch_execute("INSERT INTO watchkeeper.log (entity, operation) VALUES ('a', 'insert')").await;
        assert_eq!(refused.unwrap_err().code().map(|code| code.code()), Some("42501"));
    });
}

/// A stream whose sink writes into the table that it watches would never come to an end.
#[test]
fn a_sink_does_not_write_into_what_its_own_stream_watches() {
    block_on(async {
        let base = Base::new(Version::V15).await;
        let sql = "CREATE TABLE a (id int PRIMARY KEY); CREATE TABLE b (id int PRIMARY KEY); CREATE TABLE c (id int PRIMARY KEY)";
        base.admin().await.batch_execute(sql).await.unwrap();
        run("install", with_tables(&base, "table", &["a", "b"])).await.unwrap();
        let stream = Purpose::new("shop", "fed").reading(&Postgres, &with_tables(&base, "tables", &["a"]));
        let into = |table: &str| {
            let mut options = options(&base);
            text(&mut options, "mode", "rows");
            text(&mut options, "table", table);
            options
        };
        let cause = "watches public.a, which this sink writes to";
        let checked = Postgres.check_sink(&cx(), &stream, &mut into("a")).await.map(drop);
        assert_error(checked, ErrorKind::Config, cause);
        assert_error(Postgres.sink(&cx(), &stream, &mut into("public.a")).await.map(drop), ErrorKind::Config, cause);
        // What others watch, or nobody, may be written into.
        for table in ["b", "c"] {
            Postgres.check_sink(&cx(), &stream, &mut into(table)).await.unwrap();
        }
        let stream = Purpose::new("shop", "fed").reading(&Postgres, &options(&base));
        let checked = Postgres.check_sink(&cx(), &stream, &mut into("b")).await.map(drop);
        assert_error(checked, ErrorKind::Config, "watches public.b");
        // Rows with another key than that of the source would overwrite one another.
        let sql = "CREATE TABLE wrong (id int, n int PRIMARY KEY); CREATE TABLE named (number int PRIMARY KEY)";
        base.admin().await.batch_execute(sql).await.unwrap();
        let cause = "the primary key of \"wrong\" is taken from (n), but that of public.a is (id)";
        let checked = Postgres.check_sink(&cx(), &stream, &mut into("wrong")).await.map(drop);
        assert_error(checked, ErrorKind::Config, cause);
        assert_error(Postgres.sink(&cx(), &stream, &mut into("wrong")).await.map(drop), ErrorKind::Config, cause);
        let mut named = into("named");
        let mut columns = Options::new("stream.fed.sink.columns", origin());
        text(&mut columns, "number", "id");
        named.insert("columns", WrittenSetting { setting: Setting::Table(columns), origin: origin() });
        Postgres.check_sink(&cx(), &stream, &mut named).await.unwrap();
    });
}

#[test]
fn an_installation_that_fails_changes_nothing() {
    block_on(async {
        let base = Base::new(Version::V18).await;
        let admin = base.admin().await;
        admin.batch_execute("CREATE TABLE a (id int PRIMARY KEY); CREATE TABLE b (id int PRIMARY KEY)").await.unwrap();
        let count = async |sql: &str| admin.query_one(sql, &[]).await.unwrap().get::<_, i64>(0);
        let made = "SELECT count(*) FROM pg_namespace WHERE nspname = 'watchkeeper'";
        let triggers = "SELECT count(*) FROM pg_trigger";
        let before = count(triggers).await;
        let for_role = |tables: &[&str], role: &str| {
            let mut options = with_tables(&base, "table", tables);
            text(&mut options, "role", role);
            options
        };
        let unknown = run("install", for_role(&["a", "nope"], "postgres")).await;
        assert_error(unknown, ErrorKind::Config, "there is no table nope");
        assert_eq!((count(made).await, count(triggers).await), (0, before));
        let unknown = run("install", for_role(&["a"], "nobody_here")).await;
        assert_error(unknown, ErrorKind::Config, "nobody_here");
        assert_eq!((count(made).await, count(triggers).await), (0, before));
        // A log that was there stays as it is.
        run("install", with_tables(&base, "table", &["a"])).await.unwrap();
        let with_a = count(triggers).await;
        let unknown = run("install", for_role(&["b"], "nobody_here")).await;
        assert_error(unknown, ErrorKind::Config, "nobody_here");
        assert_eq!((count(made).await, count(triggers).await), (1, with_a));
        let received = run("install", for_role(&["b"], "postgres")).await.unwrap();
        assert_eq!(received, ["public.b: changes are logged from now on", "postgres: may read the log"]);
    });
}

#[test]
fn two_who_install_at_once_make_one_log() {
    block_on(async {
        let base = Base::new(Version::V15).await;
        let admin = base.admin().await;
        admin.batch_execute("CREATE TABLE a (id int PRIMARY KEY); CREATE TABLE b (id int PRIMARY KEY)").await.unwrap();
        let one = run("install", with_tables(&base, "table", &["a"]));
        let other = run("install", with_tables(&base, "table", &["b"]));
        let (one, other) = tokio::join!(one, other);
        assert_eq!(one.unwrap(), ["public.a: changes are logged from now on"]);
        assert_eq!(other.unwrap(), ["public.b: changes are logged from now on"]);
        let logged = admin.query_one("SELECT count(*) FROM watchkeeper.log_tables", &[]).await.unwrap();
        assert_eq!(logged.get::<_, i64>(0), 2);
    });
}
