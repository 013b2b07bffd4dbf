//! Looking at a group.

use serde_json::Value;
use watchkeeper::sqlite::rusqlite::Connection;

use crate::shop::{Shop, until};

#[test]
fn a_group_that_nobody_runs_can_be_looked_at() {
    let shop = Shop::new("stop");
    let overview = shop.ask(&["status"]);
    let orders = &overview["streams"][0];
    assert_eq!((&orders["state"], &orders["name"]), (&"unmanned".into(), &"orders".into()));
    assert!(orders["watch"].is_null() && orders["checkpoint"].is_null(), "{orders}");
    assert_eq!(orders["grade"], "transactional");
    assert_eq!(overview["members"].as_array().map(Vec::len), Some(0));
    let reported = shop.run(&["why", "orders"]).said;
    assert!(reported.contains("Nobody has ever had the watch.") && reported.contains("watchkeeper run"), "{reported}");
    let shown = shop.run(&["checkpoint", "show", "orders"]).said;
    assert!(shown.contains("none yet"), "{shown}");
}

#[test]
fn status_shows_one_on_watch_and_one_standing_by() {
    let shop = Shop::new("stop");
    shop.order(&["rope", "lamp"]);
    let (_a, b) = shop.two();
    shop.until_delivered(2);
    until("the second change is committed", || (shop.orders()["checkpoint"]["changes"] == 2).then_some(()));
    // The lag comes with the holder's next heartbeat.
    until("the lag is reported", || (shop.orders()["lag_millis"] == 0).then_some(()));
    let overview = shop.ask(&["status", "orders"]);
    let orders = &overview["streams"][0];
    assert_eq!((&orders["state"], &orders["watch"]["name"]), (&"running".into(), &"a".into()));
    assert_eq!(orders["standing_by"], serde_json::json!(["b"]));
    assert!(orders["watch"]["epoch"].as_u64() >= Some(1) && orders["watch"]["lease_millis"].as_u64() <= Some(1_000));
    assert_eq!((&orders["lag_millis"], &orders["checkpoint"]["by"]), (&0.into(), &"a".into()));
    assert_eq!(
        (&orders["checkpoint"]["last_operation"], &orders["checkpoint"]["dead_letters"]),
        (&"insert".into(), &0.into())
    );
    let members = overview["members"].as_array().expect("they are a list");
    assert!(members.len() == 2 && members.iter().all(|member| member["healthy"] == true), "{members:?}");
    let holds = |name: &str| members.iter().find(|member| member["name"] == name).map(|member| member["holds"].clone());
    assert_eq!((holds("a"), holds("b")), (Some(serde_json::json!(["orders"])), Some(serde_json::json!([]))));
    assert_eq!(overview["remarks"], serde_json::json!([]), "they agree");
    let said = shop.run(&["status"]).said;
    for part in ["orders: running on a, epoch", "standing by  b", "2 changes", "grade        transactional"] {
        assert!(said.contains(part), "{said}");
    }
    drop(b);
    until("b is gone", || (shop.orders()["standing_by"] == serde_json::json!([])).then_some(()));
    let said = shop.run(&["status"]).said;
    assert!(said.contains("  standing by  nobody: if a dies, the stream waits\n"), "{said}");
}

#[test]
fn a_wrong_name_is_answered_with_the_known_ones() {
    let shop = Shop::new("stop");
    let commands: [&[&str]; 13] = [
        &["status", "order"],
        &["why", "order"],
        &["tail", "order"],
        &["checkpoint", "show", "order"],
        &["checkpoint", "history", "order"],
        &["checkpoint", "set", "order", "oldest", "--yes"],
        &["checkpoint", "rewind", "order", "--steps", "1", "--yes"],
        &["skip", "order", "--yes"],
        &["handoff", "order"],
        &["pause", "order"],
        &["resume", "order"],
        &["dead-letters", "list", "order"],
        &["dead-letters", "replay", "order"],
    ];
    for command in commands {
        shop.run(command).refused(2, &["\"order\"", "known are: orders"]);
    }
    shop.run(&["dead-letters", "list", "orders", "--sink", "event"]).refused(2, &["\"event\"", "known are: events"]);
}

#[test]
fn a_store_that_does_not_answer_is_an_error_and_no_empty_group() {
    let shop = Shop::new("stop");
    shop.ask(&["status"]);
    let blocker = Connection::open(shop.file("state.db")).expect("the file can be opened");
    // Whoever locks a file in this mode locks readers out, too.
    blocker.execute_batch("PRAGMA locking_mode = EXCLUSIVE; BEGIN EXCLUSIVE; CREATE TABLE blocker(a)").expect("a lock");
    let answer = shop.run(&["status", "--json"]);
    answer.refused(1, &["locked"]);
    let reported: Value = serde_json::from_str(&answer.said).expect("it is JSON");
    assert!(reported["error"]["message"].is_string() && reported["streams"].is_null(), "{reported}");
}
