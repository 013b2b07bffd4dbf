//! Looking on while changes happen.

use std::io::{BufRead, BufReader};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::shop::Shop;

/// What holds the log back.
fn consumers(shop: &Shop) -> i64 {
    let count = shop.app().query_row("SELECT count(*) FROM watchkeeper_consumers", [], |row| row.get(0));
    count.expect("the table is there")
}

fn documents(said: &str) -> Vec<Value> {
    said.lines().map(|line| serde_json::from_str(line).expect("each line is a document")).collect()
}

#[test]
fn tail_shows_changes_and_counts_them_without_anyone_noticing() {
    let shop = Shop::new("stop");
    shop.order(&["rope", "lamp"]);
    shop.app()
        .execute_batch("UPDATE orders SET item = 'oar' WHERE id = 1; DELETE FROM orders WHERE id = 2")
        .expect("changes");
    let seen = shop.run(&["tail", "orders", "--from", "oldest", "--max", "4"]);
    let lines: Vec<_> = seen.said.lines().collect();
    assert_eq!(lines.len(), 9, "{}", seen.said);
    assert!(lines[0].contains("Z  insert") && lines[0].ends_with("orders  [1]"), "{}", lines[0]);
    assert_eq!(lines[4..], ["total: 4", "insert: 2", "update: 1", "replace: 0", "delete: 1"]);

    let seen = documents(&shop.run(&["tail", "orders", "--from", "oldest", "--max", "3", "--json"]).said);
    assert_eq!((seen.len(), &seen[2]["operation"], &seen[2]["key"]), (4, &"update".into(), &"[1]".into()));
    assert_eq!(seen[3], json!({"total": 3, "operations": {"insert": 2, "update": 1, "replace": 0, "delete": 0}}));
    assert_eq!(consumers(&shop), 0, "nothing is kept for one who looks on");
    assert!(shop.orders()["checkpoint"].is_null());
}

#[test]
fn tail_ends_in_time_and_with_nothing_to_show() {
    let shop = Shop::new("stop");
    shop.order(&["rope"]);
    let seen = shop.run(&["tail", "orders", "--for", "100ms"]);
    assert_eq!((seen.code, seen.said.lines().next()), (Some(0), Some("total: 0")), "{seen:?}");
}

#[test]
fn tail_says_that_it_waits_and_ends_when_nobody_reads_it() {
    let shop = Shop::new("stop");
    shop.order(&["rope"]);
    let mut tail = shop.begin(&["tail", "orders", "--from", "oldest"]);
    let mut said = BufReader::new(tail.output());
    let mut line = String::new();
    said.read_line(&mut line).expect("it says something");
    drop(said);
    let ended = tail.end();
    assert_eq!((ended.code, ended.reported.as_str()), (Some(0), "watching orders, waiting for changes…\n"));
}

#[test]
fn tail_counts_also_when_it_is_interrupted() {
    let shop = Shop::new("stop");
    for signal in [Signal::INT, Signal::TERM] {
        shop.order(&["rope"]);
        let mut tail = shop.begin(&["tail", "orders", "--from", "oldest", "--json"]);
        let mut said = BufReader::new(tail.output());
        let mut line = String::new();
        said.read_line(&mut line).expect("it says something");
        assert!(line.contains("\"insert\""), "{line}");
        tail.signal(signal);
        let rest: Vec<_> = said.lines().map(|line| line.expect("it is text")).collect();
        let last: Value = serde_json::from_str(rest.last().expect("there is a total")).expect("it is JSON");
        assert_eq!(last["total"], last["operations"]["insert"]);
        assert_eq!(last["total"].as_u64(), Some(rest.len() as u64), "the first line is read already");
        assert_eq!(tail.end().code, Some(0));
    }
}

#[test]
fn tail_from_the_checkpoint_shows_what_is_not_passed_yet() {
    let shop = Shop::new("stop");
    let a = shop.start("a");
    shop.order(&["rope", "lamp"]);
    shop.until_delivered(2);
    shop.ask(&["pause", "orders"]);
    drop(a);
    shop.order(&["axe"]);
    let seen = documents(&shop.run(&["tail", "orders", "--from", "checkpoint", "--max", "1", "--json"]).said);
    assert_eq!(seen[0]["key"], "[3]");
}
