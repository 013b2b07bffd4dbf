//! Passwords that are replaced while the program runs, and connections that break.

use watchkeeper_testkit::servers::postgres::{Server, ServerSettings, Version};

use super::{delivered, order, sql};
use crate::workspace::{Running, Workspace, until};

/// A server that asks everyone but its superuser for a password, with a database in which orders are logged.
pub(super) fn guarded() -> (Server, String) {
    let mut settings = ServerSettings::new(Version::V15);
    settings.hba = vec![
        "host all postgres 127.0.0.1/32 trust".to_owned(),
        "host all all 127.0.0.1/32 scram-sha-256".to_owned(),
        "host replication all 127.0.0.1/32 scram-sha-256".to_owned(),
    ];
    let server = Server::with(&settings);
    sql(&server.url("postgres"), "CREATE DATABASE shop");
    let url = server.url("shop");
    sql(
        &url,
        "CREATE ROLE keeper LOGIN SUPERUSER PASSWORD 'first-password'; CREATE TABLE orders (id bigint PRIMARY KEY)",
    );
    (server, url)
}

/// A stream of which store, source and sink are reached with a password that stands in a file.
fn workspace(server: &Server, source: &str) -> Workspace {
    let url = server.url_of("keeper:${file:password}", "shop");
    let workspace = Workspace::with(&format!(
        "[group]\nname = \"shop\"\nstore = \"{url}\"\nlease = \"2s\"\n\n[[stream]]\nname = \"orders\"\nstart = \"oldest\"\n\n\
         [stream.source]\nurl = \"{url}\"\ntables = [\"orders\"]\n{source}\n[[stream.sink]]\nurl = \"{url}\"\ntable = \"events\"\n"
    ));
    workspace.write("password", "first-password\n");
    workspace
}

/// Ends all connections of the program.
fn cut(url: &str) {
    sql(url, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'keeper'");
}

fn goes_on_with_a_new_password(source: &str, install: bool) {
    let (server, url) = guarded();
    let workspace = workspace(&server, source);
    if install {
        let made = workspace.run(&["postgres", "install", "--url", &url, "--table", "orders"]);
        assert_eq!(made.code, Some(0), "{made:?}");
    }
    let mut only = workspace.start("only");
    only.says(&["to=running"]);
    if !install {
        let open = "SELECT 1 FROM pg_replication_slots WHERE active AND confirmed_flush_lsn IS NOT NULL";
        until("the slot is there", || !sql(&url, open).is_empty());
    }
    order(&url, 1..20);
    until("they arrive", || delivered(&url).len() == 19);

    workspace.write("password", "second-password\n");
    sql(&url, "ALTER ROLE keeper PASSWORD 'second-password'");
    cut(&url);
    order(&url, 20..40);
    until("it goes on with the new password", || delivered(&url).len() == 39);
    only.ends_in_order();
    assert_eq!(delivered(&url), Vec::from_iter(1..40));
    assert_quiet(&only);
}

/// Asserts that no password was logged, and no line that names neither server nor cause.
fn assert_quiet(running: &Running) {
    for line in &running.seen {
        assert!(!line.contains("first-password") && !line.contains("second-password"), "{line}");
        assert!(!line.contains("Connection error:"), "{line}");
    }
}

#[test]
fn a_new_password_in_a_file_is_read_when_access_is_denied_by_a_change_log() {
    goes_on_with_a_new_password("", true);
}

#[test]
fn a_new_password_in_a_file_is_read_when_access_is_denied_by_replication() {
    goes_on_with_a_new_password("mode = \"replication\"", false);
}

#[test]
fn connections_that_break_are_logged_with_setting_place_and_cause_and_not_one_by_one() {
    let (server, url) = guarded();
    let workspace = workspace(&server, "");
    let made = workspace.run(&["postgres", "install", "--url", &url, "--table", "orders"]);
    assert_eq!(made.code, Some(0), "{made:?}");
    let mut only = workspace.start("only");
    only.says(&["to=running"]);
    for round in 0..10 {
        order(&url, round * 10 + 1..round * 10 + 11);
        until("they arrive", || delivered(&url).len() as u64 == round * 10 + 10);
        cut(&url);
    }
    order(&url, 101..111);
    until("they arrive", || delivered(&url).len() == 110);
    only.ends_in_order();
    assert_quiet(&only);
    let reported: Vec<_> = only.seen.iter().filter(|line| line.contains("a connection to PostgreSQL broke")).collect();
    assert!(!reported.is_empty(), "{:#?}", only.seen);
    // A setting has at most two clients, its own and that of the lease keeper; each logs a cause once a minute.
    let said =
        |line: &str| line.split(" WARN ").nth(1).and_then(|rest| rest.split(" repeated=").next()).map(str::to_owned);
    let mut counts = std::collections::BTreeMap::new();
    reported.iter().for_each(|line| *counts.entry(said(line)).or_insert(0) += 1);
    assert!(counts.values().all(|count| *count <= 2), "{reported:#?}");
    for line in &reported {
        assert!(line.contains("/shop") && line.contains("setting=") && !line.contains("cause=\"\""), "{line}");
    }
    assert!(reported.iter().any(|line| line.contains("due to administrator command (57P01)")), "{reported:#?}");
    assert!(reported.iter().any(|line| line.contains("orders")), "one names the stream: {reported:#?}");
}
