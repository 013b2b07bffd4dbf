//! The program on a real server of PostgreSQL.

use std::sync::OnceLock;

use rustix::process::Signal;
use watchkeeper::postgres::tokio_postgres;
use watchkeeper_testkit::servers::postgres::{Server, Version};

use crate::desk::{Desk, until};

/// A server that these tests share; each has a database of its own in it.
fn shared() -> &'static Server {
    static SERVER: OnceLock<Server> = OnceLock::new();
    SERVER.get_or_init(|| Server::start(Version::V15))
}

/// Runs statements; the first column of the last one's rows.
fn sql(url: &str, statements: &str) -> Vec<String> {
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
fn database(name: &str) -> String {
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

fn into_events(url: &str) -> Desk {
    Desk::with(&format!(
        "[group]\nname = \"shop\"\nstore = \"{url}\"\nlease = \"2s\"\n\n[[stream]]\nname = \"orders\"\nsource = \"sqlite:app.db\"\n\
         start = \"oldest\"\n\n[[stream.sink]]\nurl = \"{url}\"\ntable = \"events\"\n"
    ))
}

#[test]
fn changes_arrive_once_although_their_holder_is_killed() {
    let url = database("killed");
    let desk = into_events(&url);
    let first = desk.start("first");
    desk.order(1..20);
    until("they arrive", || delivered(&url).len() == 19);
    let mut second = desk.start("second");
    first.signal(Signal::KILL);
    desk.order(20..40);
    until("the second goes on", || delivered(&url).len() >= 39);
    second.ends_in_order();
    assert_eq!(delivered(&url), Vec::from_iter(1..40));
}

#[test]
fn the_settings_in_the_guide_are_accepted() {
    let guide = include_str!("../../../../docs/guide/configuration.md");
    let section = guide.split_once("**PostgreSQL.**").expect("the guide tells of PostgreSQL").1;
    let (file, _) =
        section.split_once("```toml\n").and_then(|(_, rest)| rest.split_once("```")).expect("it shows a file");
    let (store, reports) = (database("guide"), database("reports"));
    let file = file.replace("postgres://keeper@db1,db2/shop?sslmode=verify-full", &store);
    let file = file.replace("postgres://keeper@reports/reports?sslmode=verify-full", &reports);
    let desk = Desk::with(&file);
    let checked = desk.run(&["check"]);
    assert_eq!(checked.code, Some(0), "{checked:?}");
    assert!(!checked.out.contains("error: "), "{checked:?}");
    let schemas = sql(&store, "SELECT nspname FROM pg_namespace WHERE nspname = 'watchkeeper'");
    assert!(schemas.is_empty(), "a look changes nothing");
    let made = desk.run(&["postgres", "setup", "--url", &store, "--json"]);
    assert_eq!(made.code, Some(0), "{made:?}");
    let told: serde_json::Value = serde_json::from_str(&made.out).expect("it is JSON");
    assert_eq!(told["schema"], "watchkeeper");
}

#[test]
fn a_password_is_not_shown_when_the_server_is_not_there() {
    let desk = into_events("postgres://keeper:hunter2@127.0.0.1:1/shop");
    let checked = desk.run(&["check"]);
    assert_ne!(checked.code, Some(0), "{checked:?}");
    assert!(!format!("{checked:?}").contains("hunter2"), "{checked:?}");
    assert!(checked.out.contains("127.0.0.1:1/shop") || checked.err.contains("127.0.0.1:1/shop"), "{checked:?}");
}
