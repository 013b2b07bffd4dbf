//! A stream that goes by another name than before.

use serde_json::Value;

use super::{database, delivered, order, sql};
use crate::workspace::{Workspace, until};

fn reading(url: &str, name: &str, mode: &str) -> String {
    format!(
        "[group]\nname = \"shop\"\nstore = \"{url}\"\nlease = \"2s\"\n\n[[stream]]\nname = \"{name}\"\nstart = \"now\"\n\n\
         [stream.source]\nurl = \"{url}\"\nmode = \"{mode}\"\ntables = [\"orders\"]\n\n[[stream.sink]]\nurl = \"{url}\"\n\
         table = \"events\"\n"
    )
}

/// A stream that has delivered one order and stopped, and was then renamed.
fn renamed(database_name: &str, mode: &str) -> (Workspace, String) {
    let url = database(database_name);
    sql(&url, "CREATE TABLE orders (id bigint PRIMARY KEY, item text)");
    let workspace = Workspace::with(&reading(&url, "orders", mode));
    if mode == "log" {
        let made = workspace.run(&["postgres", "install", "--url", &url, "--table", "orders"]);
        assert_eq!(made.code, Some(0), "{made:?}");
    }
    let checked = workspace.run(&["check"]);
    assert!(!checked.out.contains("other streams"), "{checked:?}");
    let mut only = workspace.start("only");
    let mut next = 1;
    until("an order arrives", || {
        order(&url, next..next + 1);
        next += 1;
        !delivered(&url).is_empty()
    });
    only.ends_in_order();
    workspace.write("watchkeeper.toml", &reading(&url, "purchases", mode));
    order(&url, 1_000..1_010);
    (workspace, url)
}

#[test]
fn the_checkpoint_and_the_slot_of_a_renamed_stream_are_named() {
    let (workspace, url) = renamed("renamed_wal", "replication");
    let slot = sql(&url, "SELECT slot_name FROM pg_replication_slots WHERE database = current_database()").remove(0);
    let checked = workspace.run(&["check"]);
    assert_eq!(checked.code, Some(0), "{checked:?}");
    let warnings: Vec<_> = checked.out.lines().filter(|line| line.contains("warning: other streams: ")).collect();
    let reported = |parts: &[&str]| warnings.iter().any(|line| parts.iter().all(|part| line.contains(part)));
    assert!(
        reported(&["stream \"orders\" is not in this file", "purchases would begin anew", "checkpoint set purchases"]),
        "{warnings:?}"
    );
    assert!(reported(&[&slot, "stream \"orders\"", "pg_drop_replication_slot"]), "{warnings:?}");
    let json: Value = serde_json::from_str(&workspace.run(&["check", "--json"]).out).expect("it is JSON");
    let found = json["group"]["findings"].as_array().expect("a list");
    assert!(found.iter().any(|finding| finding["part"] == "other streams"), "{json}");
    let mut only = workspace.start("only");
    only.says(&["stream \"orders\" is not in this file"]);
    only.says(&[&slot, "pg_drop_replication_slot"]);
    let status = || serde_json::from_str::<Value>(&workspace.run(&["status", "--json"]).out).expect("it is JSON");
    until("it has begun", || status()["streams"][0]["checkpoint"]["position"].is_string());
    only.ends_in_order();
    // The slot is in the way of nobody once it is dropped, and a checkpoint without a newcomer is a note.
    sql(&url, &format!("SELECT pg_drop_replication_slot('{slot}')"));
    let checked = workspace.run(&["check"]);
    assert!(!checked.out.contains("warning: other streams"), "{checked:?}");
    assert!(checked.out.contains("note: other streams: stream \"orders\""), "{checked:?}");
}

#[test]
fn a_renamed_stream_goes_on_where_it_stood_if_it_is_allowed_to() {
    let (workspace, url) = renamed("renamed_log", "log");
    let checked = workspace.run(&["check"]);
    let command = checked.out.split("(watchkeeper ").nth(1).and_then(|rest| rest.split(')').next());
    let command = command.unwrap_or_else(|| panic!("{checked:?}"));
    let arguments: Vec<_> = command.split(' ').chain(["--yes"]).collect();
    let set = workspace.run(&arguments);
    assert_eq!(set.code, Some(0), "{set:?}");
    let mut only = workspace.start("only");
    until("what lay between arrives", || delivered(&url).ends_with(&Vec::from_iter(1_000..1_010)));
    only.ends_in_order();
}
