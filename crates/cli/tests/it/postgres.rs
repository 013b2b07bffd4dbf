//! The program on a real server of PostgreSQL.

use std::sync::OnceLock;

use rustix::process::Signal;
use watchkeeper::postgres::tokio_postgres;
use watchkeeper_testkit::servers::postgres::{Server, Version};

use crate::workspace::{Workspace, until};

mod apart;
mod filtering;
mod losing;
mod lost;
mod memory;
mod outbox;
mod refusing;
mod renamed;
mod rotating;
mod slow;
mod snapshots;
mod telling;

/// A server that these tests share; each has a database of its own in it.
fn shared() -> &'static Server {
    static SERVER: OnceLock<Server> = OnceLock::new();
    SERVER.get_or_init(|| Server::start(Version::V15))
}

/// Runs statements; the first column of the last one's rows.
pub(crate) fn sql(url: &str, statements: &str) -> Vec<String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime can be made");
    runtime.block_on(async {
        let (client, connection) =
            tokio_postgres::connect(url, tokio_postgres::NoTls).await.expect("the server is there");
        tokio::spawn(connection);
        let answers = client.simple_query(statements).await.expect("the statements are good");
        let first = |message| match message {
            tokio_postgres::SimpleQueryMessage::Row(row) => row.get(0).map(str::to_owned),
            _ => None,
        };
        answers.into_iter().filter_map(first).collect()
    })
}

/// A database of its own, and its URL.
pub(crate) fn database(name: &str) -> String {
    sql(&shared().url("postgres"), &format!("CREATE DATABASE {name} STRATEGY wal_log"));
    shared().url(name)
}

/// The ids of the orders that have arrived, in their order.
fn delivered(url: &str) -> Vec<u64> {
    let there = sql(url, "SELECT 1 FROM pg_class WHERE relname = 'events'");
    if there.is_empty() {
        return Vec::new();
    }
    let ids = sql(url, "SELECT event -> 'after' ->> 'id' FROM events ORDER BY number");
    ids.iter().map(|id| id.parse().expect("an order has an id")).collect()
}

fn into_events(url: &str) -> Workspace {
    Workspace::with(&format!(
        "[group]\nname = \"shop\"\nstore = \"{url}\"\nlease = \"2s\"\n\n[[stream]]\nname = \"orders\"\nsource = \"sqlite:app.db\"\n\
         start = \"oldest\"\n\n[[stream.sink]]\nurl = \"{url}\"\ntable = \"events\"\n"
    ))
}

#[test]
fn changes_arrive_once_although_their_holder_is_killed() {
    let url = database("killed");
    let workspace = into_events(&url);
    let first = workspace.start("first");
    workspace.order(1..20);
    until("they arrive", || delivered(&url).len() == 19);
    let mut second = workspace.start("second");
    first.signal(Signal::KILL);
    workspace.order(20..40);
    until("the second goes on", || delivered(&url).len() >= 39);
    second.ends_in_order();
    assert_eq!(delivered(&url), Vec::from_iter(1..40));
}

/// What the program reads from one table of a database, into another table of it.
fn from_orders(url: &str, source: &str) -> Workspace {
    Workspace::with(&format!(
        "[group]\nname = \"shop\"\nstore = \"{url}\"\nlease = \"2s\"\n\n[[stream]]\nname = \"orders\"\nstart = \"oldest\"\n\n\
         [stream.source]\nurl = \"{url}\"\ntables = [\"orders\"]\n{source}\n[[stream.sink]]\nurl = \"{url}\"\ntable = \"events\"\n"
    ))
}

pub(crate) fn order(url: &str, ids: std::ops::Range<u64>) {
    let inserts: Vec<String> = ids.map(|id| format!("INSERT INTO orders VALUES ({id})")).collect();
    sql(url, &inserts.join(";"));
}

/// Orders are written before, under and after the first holder, which is killed; each arrives once, in order.
fn relieves(workspace: &Workspace, url: &str, is_open: impl FnMut() -> bool) {
    let first = workspace.start("first");
    until("the source is open", is_open);
    order(url, 1..20);
    until("they arrive", || delivered(url).len() == 19);
    let mut second = workspace.start("second");
    first.signal(Signal::KILL);
    order(url, 20..40);
    until("the second goes on", || delivered(url).len() >= 39);
    second.ends_in_order();
    assert_eq!(delivered(url), Vec::from_iter(1..40));
}

#[test]
fn a_change_log_is_installed_and_read_although_its_reader_is_killed() {
    let url = database("logged");
    sql(&url, "CREATE TABLE orders (id bigint PRIMARY KEY)");
    let workspace = from_orders(&url, "");
    let checked = workspace.run(&["check"]);
    assert_ne!(checked.code, Some(0), "{checked:?}");
    assert!(checked.out.contains("postgres install"), "{checked:?}");
    let made = workspace.run(&["postgres", "install", "--url", &url, "--table", "orders"]);
    assert_eq!(made.code, Some(0), "{made:?}");
    // The log keeps what is written before anybody reads it.
    relieves(&workspace, &url, || true);
}

#[test]
fn the_write_ahead_log_is_read_although_its_reader_is_killed() {
    let url = database("replicated");
    sql(&url, "CREATE TABLE orders (id bigint PRIMARY KEY)");
    let slots = |which: &str| {
        sql(&url, &format!("SELECT slot_name FROM pg_replication_slots WHERE database = 'replicated' AND {which}"))
    };
    // A slot tells what is written after it was made.
    relieves(&from_orders(&url, "mode = \"replication\"\n"), &url, || {
        slots("active AND confirmed_flush_lsn IS NOT NULL").len() == 1
    });
    let reported = Workspace::new().run(&["postgres", "slots", "--url", &url]);
    assert_eq!(reported.code, Some(0), "{reported:?}");
    assert!(reported.out.contains(&slots("true")[0]), "{reported:?}");
}

/// The files that the guide shows for PostgreSQL, one after the other: a store with sinks, typed rows, the change log, replication.
fn shown() -> Vec<String> {
    let guide = concat!(
        include_str!("../../../../docs/guide/postgresql.md"),
        include_str!("../../../../docs/guide/postgresql-change-log.md"),
        include_str!("../../../../docs/guide/postgresql-replication.md")
    );
    let files = guide.split("```toml\n").skip(1);
    files.map(|rest| rest.split_once("```").expect("a file has an end").0.to_owned()).collect()
}

#[test]
fn the_sources_in_the_guide_are_accepted() {
    let url = database("sources");
    sql(
        &url,
        "CREATE TABLE orders (id int PRIMARY KEY); CREATE SCHEMA sales; CREATE TABLE sales.items (id int PRIMARY KEY);
         CREATE SCHEMA app; CREATE TABLE app.outbox (id bigserial PRIMARY KEY, order_id text NOT NULL, payload jsonb,
             created_at timestamptz NOT NULL DEFAULT now(), xid xid8 NOT NULL DEFAULT pg_current_xact_id());
         CREATE INDEX ON app.outbox (xid)",
    );
    let files = shown();
    assert_eq!(files.len(), 4, "{files:?}");
    let made =
        Workspace::new().run(&["postgres", "install", "--url", &url, "--table", "orders", "--table", "sales.items"]);
    assert_eq!(made.code, Some(0), "{made:?}");
    let group = format!("[group]\nname = \"shop\"\nstore = \"{url}\"\n\n");
    for file in [files[2].clone(), group + &files[3]] {
        let file = file.replace("postgres://keeper@db1,db2/shop?sslmode=verify-full", &url);
        let checked = Workspace::with(&file.replace("postgres://keeper@db1/shop", &url)).run(&["check"]);
        assert_eq!(checked.code, Some(0), "{checked:?}");
        assert!(!checked.out.contains("error: "), "{checked:?}");
    }
}

#[test]
fn the_settings_in_the_guide_are_accepted() {
    let file = shown().swap_remove(0);
    let (store, reports) = (database("guide"), database("reports"));
    let file = file.replace("postgres://keeper@db1,db2/shop?sslmode=verify-full", &store);
    let file = file.replace("postgres://keeper@reports/reports?sslmode=verify-full", &reports);
    let workspace = Workspace::with(&file);
    let checked = workspace.run(&["check"]);
    assert_eq!(checked.code, Some(0), "{checked:?}");
    assert!(!checked.out.contains("error: "), "{checked:?}");
    let schemas = sql(&store, "SELECT nspname FROM pg_namespace WHERE nspname = 'watchkeeper'");
    assert!(schemas.is_empty(), "a look changes nothing");
    let made = workspace.run(&["postgres", "setup", "--url", &store, "--json"]);
    assert_eq!(made.code, Some(0), "{made:?}");
    let reported: serde_json::Value = serde_json::from_str(&made.out).expect("it is JSON");
    assert_eq!(reported["schema"], "watchkeeper");
}

#[test]
fn the_typed_rows_in_the_guide_arrive() {
    let url = database("typed");
    sql(
        &url,
        "CREATE TABLE orders (id bigint PRIMARY KEY, address jsonb);
         CREATE TABLE towns (id bigint PRIMARY KEY, city text NOT NULL, seen timestamptz NOT NULL DEFAULT now())",
    );
    let made = Workspace::new().run(&["postgres", "install", "--url", &url, "--table", "orders"]);
    assert_eq!(made.code, Some(0), "{made:?}");
    let sink = shown().swap_remove(1).replace("postgres://keeper@db1/shop", &url);
    let before = format!(
        "[group]\nname = \"shop\"\nstore = \"{url}\"\nlease = \"2s\"\n\n[[stream]]\nname = \"orders\"\nsource = \"{url}\"\n\
         start = \"oldest\"\n\n"
    );
    let workspace = Workspace::with(&(before.clone() + &sink));
    let checked = workspace.run(&["check"]);
    assert_eq!(checked.code, Some(0), "{checked:?}");
    let mut only = workspace.start("only");
    sql(&url, r#"INSERT INTO orders VALUES (1, '{"city": "Brest"}'), (2, '{"city": "Lorient"}')"#);
    sql(&url, r#"UPDATE orders SET address = '{"city": "Quimper"}' WHERE id = 2"#);
    let towns = || sql(&url, "SELECT city FROM towns WHERE seen IS NOT NULL ORDER BY id");
    until("they arrive", || towns() == ["Brest", "Quimper"]);
    sql(&url, "DELETE FROM orders WHERE id = 1");
    until("one goes", || towns() == ["Quimper"]);
    only.ends_in_order();
    let wrong = Workspace::with(&(before + &sink.replace("city = ", "town = "))).run(&["check"]);
    assert_eq!(wrong.code, Some(2), "{wrong:?}");
    assert!(wrong.out.contains("has no column \"town\""), "{wrong:?}");
}

#[test]
fn a_password_is_not_shown_when_the_server_is_not_there() {
    let workspace = into_events("postgres://keeper:hunter2@127.0.0.1:1/shop");
    let checked = workspace.run(&["check"]);
    assert_ne!(checked.code, Some(0), "{checked:?}");
    assert!(!format!("{checked:?}").contains("hunter2"), "{checked:?}");
    assert!(checked.out.contains("127.0.0.1:1/shop") || checked.err.contains("127.0.0.1:1/shop"), "{checked:?}");
}

/// Every commit in the database moves the end of what is read together; the change that is meant stays the same.
#[test]
fn a_change_of_a_log_that_no_sink_takes_is_skipped() {
    let url = database("skipped");
    sql(&url, "CREATE TABLE orders (id bigint PRIMARY KEY, n text); CREATE TABLE copy (id bigint PRIMARY KEY, n int)");
    let workspace = from_orders(&url, "");
    let config = std::fs::read_to_string(workspace.path("watchkeeper.toml")).expect("the desk has a configuration");
    let config = config.replace("table = \"events\"", "table = \"copy\"\nmode = \"rows\"");
    std::fs::write(workspace.path("watchkeeper.toml"), config).expect("it can be changed");
    let made = workspace.run(&["postgres", "install", "--url", &url, "--table", "orders"]);
    assert_eq!(made.code, Some(0), "{made:?}");
    let mut program = workspace.start("first");
    sql(&url, "INSERT INTO orders VALUES (1, '1')");
    let copied = || sql(&url, "SELECT id::text FROM copy ORDER BY id");
    until("it arrives", || copied() == ["1"]);
    sql(&url, "INSERT INTO orders VALUES (2, '2'), (3, 'wrong'), (4, '4')");
    until("it is halted", || workspace.run(&["status"]).out.contains("halted"));
    let skipped = workspace.run(&["skip", "orders", "--yes"]);
    assert_eq!(skipped.code, Some(0), "{skipped:?}");
    until("what follows arrives", || copied() == ["1", "2", "4"]);
    program.ends_in_order();
}
