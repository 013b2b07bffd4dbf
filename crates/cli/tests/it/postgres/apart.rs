//! What is wrong with one stream leaves the others alone.

use serde_json::Value;

use super::rotating::guarded;
use super::{database, order, sql};
use crate::apart::{assert_apart, beside, status, stream as shown};
use crate::workspace::{Answer, GOOD, INTO_FILES, Workspace, answer, until};

fn stream(url: &str, table: &str) -> String {
    format!(
        "[[stream]]\nname = \"{table}\"\nstart = \"oldest\"\nsource = {{ url = \"{url}\", tables = [\"{table}\"] }}\n\n\
         [[stream.sink]]\nurl = \"{url}\"\ntable = \"events_{table}\"\n\n"
    )
}

fn arrived(url: &str, table: &str) -> usize {
    sql(url, &format!("SELECT 1 FROM events_{table}")).len()
}

/// A table that another one has taken the name of.
#[test]
fn a_table_that_is_not_logged_any_more_stops_its_own_stream_only() {
    let url = database("apart");
    sql(&url, "CREATE TABLE good (id int PRIMARY KEY); CREATE TABLE swapped (id int PRIMARY KEY)");
    let workspace = Workspace::with(&format!(
        "[group]\nname = \"shop\"\nstore = \"{url}\"\nlease = \"2s\"\n\n{}{}",
        stream(&url, "good"),
        stream(&url, "swapped")
    ));
    let made = workspace.run(&["postgres", "install", "--url", &url, "--table", "good", "--table", "swapped"]);
    assert_eq!(made.code, Some(0), "{made:?}");
    let mut first = workspace.start("first");
    sql(&url, "INSERT INTO good VALUES (1); INSERT INTO swapped VALUES (1)");
    let is_there = || sql(&url, "SELECT 1 FROM pg_class WHERE relname IN ('events_good', 'events_swapped')").len() == 2;
    until("both arrive", || is_there() && arrived(&url, "good") == 1 && arrived(&url, "swapped") == 1);
    first.ends_in_order();

    sql(&url, "ALTER TABLE swapped RENAME TO former; CREATE TABLE swapped (id int PRIMARY KEY)");
    let why = "public.swapped is not logged any more: it has another name, and another table has its name";
    workspace.run(&["check"]).assert_found(1, &[why, "--table public.swapped"]);
    let _second = workspace.start("second");
    sql(&url, "INSERT INTO good VALUES (2)");
    until("the other stream goes on", || arrived(&url, "good") == 2);
    until("its own stream halts", || workspace.run(&["checkpoint", "show", "swapped"]).out.contains(why));
    for command in
        [&["status"][..], &["checkpoint", "show", "good"], &["pause", "good"], &["checkpoint", "history", "swapped"]]
    {
        let answer = workspace.run(command);
        assert_eq!(answer.code, Some(0), "{answer:?}");
    }
}

#[test]
fn a_wrong_password_stops_its_own_stream_only() {
    let (server, _) = guarded();
    let wrong = server.url_of("keeper:wrong-password", "shop");
    let other = format!(
        "source = {{ url = \"{wrong}\", tables = [\"orders\"] }}\n\n[[stream.sink]]\ntype = \"file\"\nfolder = \".\"\nprefix = \"other\"\n"
    );
    let workspace = Workspace::with(&beside(&other));
    let mut first = workspace.start("first");
    assert_apart(&workspace, &mut first, "password authentication failed");
    assert!(first.seen.iter().all(|line| !line.contains("wrong-password")), "{:#?}", first.seen);
    first.ends_in_order();
}

/// Runs a command while the server at `setting` cannot be reached, for that command only.
fn without(workspace: &Workspace, setting: &str, arguments: &[&str]) -> Answer {
    let mut command = workspace.command();
    answer(command.args(arguments).env(format!("WATCHKEEPER__STREAM__ORDERS__{setting}"), "postgres://x@127.0.0.1:1/x"))
}

#[test]
fn a_sink_that_keeps_the_checkpoint_and_does_not_answer_is_a_remark() {
    let url = database("keeper");
    let workspace = Workspace::with(&format!("{GOOD}[[stream.sink]]\nurl = \"{url}\"\ntable = \"events\"\n"));
    let mut first = workspace.start("first");
    workspace.order(1..2);
    until("it has committed", || shown(&status(&workspace), "orders")["checkpoint"]["changes"] == 1);
    let reported = without(&workspace, "SINK__0__URL", &["status", "--json"]);
    assert_eq!(reported.code, Some(0), "{reported:?}");
    let overview: Value = serde_json::from_str(&reported.out).expect("it is JSON");
    let orders = &overview["streams"][0];
    assert!(orders["checkpoint"].is_null() && orders["watch"]["name"] == "first", "{orders}");
    let remark = orders["remarks"][0].as_str().expect("there is a remark");
    assert!(remark.contains("Its checkpoint is kept with one of its sinks, which cannot be asked: "), "{remark}");
    assert!(remark.contains("Connection refused"), "{remark}");
    assert_eq!(orders["health"], "degraded");
    assert_eq!(without(&workspace, "SINK__0__URL", &["status", "--exit-code"]).code, Some(3));
    let text = without(&workspace, "SINK__0__URL", &["status"]).out;
    assert!(text.contains("  remark       Its checkpoint is kept with one of its sinks"), "{text}");
    assert!(text.contains("  position     unknown (Its checkpoint is kept with one of its sinks"), "{text}");
    without(&workspace, "SINK__0__URL", &["checkpoint", "show", "orders"]).assert_refused(1, &["Connection refused"]);
    let history = without(&workspace, "SINK__0__URL", &["checkpoint", "history", "orders"]);
    assert!(history.code == Some(0) && history.out.contains("the current checkpoint cannot be read: "), "{history:?}");
    let paused = without(&workspace, "SINK__0__URL", &["pause", "orders"]);
    assert_eq!(paused.code, Some(0), "{paused:?}");
    let resumed = without(&workspace, "SINK__0__URL", &["resume", "orders"]);
    assert!(resumed.code == Some(0) && resumed.out.contains("orders runs again: first has it"), "{resumed:?}");
    assert!(resumed.out.contains("Whether it is halted could not be seen ("), "{resumed:?}");
    without(&workspace, "SINK__0__URL", &["resume", "orders"]).assert_refused(1, &["Connection refused"]);
    first.ends_in_order();
}

#[test]
fn a_checkpoint_of_a_slot_is_moved_without_its_server() {
    let url = database("unreached");
    sql(&url, "CREATE TABLE orders (id bigint PRIMARY KEY); CREATE PUBLICATION unreached FOR TABLE orders");
    let config = GOOD.replace(
        "source = \"sqlite:app.db\"",
        &format!(
            "source = {{ url = \"{url}\", mode = \"replication\", slot = \"unreached\", publication = \"unreached\", rewind = \"1h\" }}"
        ),
    );
    let config = config.replace("start = \"oldest\"", "start = \"now\"");
    let workspace = Workspace::with(&format!("{config}{INTO_FILES}"));
    let mut first = workspace.start("first");
    let changes = || shown(&status(&workspace), "orders")["checkpoint"].clone();
    until("the stream is open", || changes()["position"].is_string());
    for id in 1..4 {
        order(&url, id..id + 1);
        until("it is committed", || changes()["changes"] == id);
    }
    first.ends_in_order();
    let back = without(&workspace, "SOURCE__URL", &["checkpoint", "rewind", "orders", "--by", "1", "--yes"]);
    assert_eq!(back.code, Some(0), "{back:?}");
    assert!(back.out.contains("NOT verified (") && back.out.contains("Connection refused"), "{back:?}");
    let position = changes()["position"].clone();
    let to_time = ["checkpoint", "set", "orders", "now", "--yes"];
    without(&workspace, "SOURCE__URL", &to_time)
        .assert_refused(1, &["needs the source of stream orders, which cannot be reached: ", "Connection refused"]);
    assert_eq!(changes()["position"], position);
    let mut second = workspace.start("second");
    let delivered =
        || std::fs::read_to_string(workspace.path("orders-000001.ndjson")).unwrap_or_default().lines().count();
    until("the last one comes again", || delivered() == 4);
    second.ends_in_order();
}
