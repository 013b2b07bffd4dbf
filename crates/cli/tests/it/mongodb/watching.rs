//! Changes arrive, and instances relieve each other.

use rustix::process::Signal;
use serde_json::Value;
use watchkeeper::mongodb::mongodb::bson::{Bson, Document, doc};
use watchkeeper_testkit::servers::mongodb::ReplicaSet;

use super::Harbour;
use crate::desk::until;

#[test]
fn changes_arrive_and_another_instance_relieves_the_one_that_was_killed() {
    let harbour = Harbour::new();
    harbour.configure(&harbour.orders(""));
    let first = harbour.start("first");
    harbour.order(&["rope", "tar"]);
    until("the changes arrive", || harbour.delivered() == ["rope", "tar"]);
    until("they are committed", || changes(&harbour) == 2);

    let mut second = harbour.desk.start("second");
    second.says(&["standing by", "holder=\"first\""]);
    first.signal(Signal::KILL);
    // The lease is longer than anybody waits here: death was proved.
    second.says(&["to=running"]);
    harbour.order(&["sail"]);
    until("the next change arrives", || harbour.delivered() == ["rope", "tar", "sail"]);
    second.ends_in_order();
    assert_eq!(changes(&harbour), 3);
    let status = harbour.desk.run(&["status", "--json"]);
    let told: Value = serde_json::from_str(&status.out).expect("it is JSON");
    assert_eq!(told["streams"][0]["checkpoint"]["changes"], 3, "{told}");
}

/// How many changes are committed.
fn changes(harbour: &Harbour) -> i64 {
    let facts = harbour.checkpoint().and_then(|checkpoint| checkpoint.get_document("facts").ok().cloned());
    facts.and_then(|facts| facts.get_i64("changes").ok()).unwrap_or_default()
}

#[test]
fn a_collection_that_is_waited_for_is_read_from_its_first_document() {
    let harbour = Harbour::new();
    harbour.configure(&harbour.orders(", wait = true").replace("\"orders\"", "\"later\""));
    let mut only = harbour.start("only");
    let later = harbour.database.collection("later");
    let first = doc! { "item": "rope" };
    harbour.block_on(async { later.insert_one(first).await }).expect("it is taken");
    until("it arrives", || harbour.delivered() == ["rope"]);
    only.ends_in_order();
}

#[test]
fn commands_end_without_a_panic_in_a_task_of_the_driver() {
    let harbour = Harbour::new();
    harbour.configure(&harbour.orders(""));
    let desk = &harbour.desk;
    // The cause was that the command dropped its runtime: that ends the tasks one by one, and the driver panics in a task that
    // waits for one that is gone. `block_on` in `commands/mod.rs` keeps the runtime until the process ends, and
    // `tasks_that_a_command_leaves_behind_are_not_ended_one_by_one` there asserts it for any moment. Here the driver itself is seen.
    // Each ends while the driver still waits for the next changes. It depends on the moment what its tasks are about.
    let tails = |of: u64| (0..10).map(move |n| desk.run(&["tail", "orders", "--for", &format!("{}ms", 100 + of * n)]));
    std::thread::scope(|scope| {
        let rows: Vec<_> = (1..5).map(|of| scope.spawn(move || tails(of).collect::<Vec<_>>())).collect();
        for ended in rows.into_iter().flat_map(|row| row.join().expect("it is run")) {
            assert_eq!(ended.code, Some(0), "{ended:?}");
            assert!(!ended.err.contains("panicked"), "{ended:?}");
        }
    });
}

#[test]
fn a_check_tells_what_it_finds_and_changes_nothing() {
    let harbour = Harbour::new();
    harbour.configure(&harbour.orders(", full_document = \"whenAvailable\""));
    let before = harbour.collections();
    let checked = harbour.desk.run(&["check"]);
    assert_eq!(checked.code, Some(0), "{checked:?}");
    for part in [
        "warning: store (mongodb): the replica set rs0 has 1 of the three members",
        "warning: source (mongodb): orders stores no images",
        "warning: source (mongodb): the oplog reaches back ",
        "grade: fenced",
        "all is well",
    ] {
        assert!(checked.out.contains(part), "{part:?} is not in: {}", checked.out);
    }
    assert_eq!(harbour.collections(), before);
}

#[test]
fn the_settings_in_the_guide_are_accepted() {
    let guide = include_str!("../../../../../docs/guide/mongodb.md");
    let (file, _) =
        guide.split_once("```toml\n").and_then(|(_, rest)| rest.split_once("```")).expect("it shows a file");
    let harbour = Harbour::new();
    let hosts = harbour.url.split(['/', '?']).nth(2).expect("a URL names hosts");
    let own = harbour.database.name();
    let file = file.replace("db1,db2,db3", hosts).replace("/shop?", &format!("/{own}?"));
    harbour.desk.write("watchkeeper.toml", &file);
    let checked = harbour.desk.run(&["check"]);
    assert_eq!(checked.code, Some(0), "{checked:?}");
    assert!(!checked.out.contains("error: "), "{checked:?}");
}

#[test]
fn the_tools_of_mongodb_answer_in_json() {
    let harbour = Harbour::new();
    harbour.configure(&harbour.orders(""));
    let mut only = harbour.start("only");
    harbour.order(&["rope"]);
    until("it is committed", || changes(&harbour) == 1);
    only.ends_in_order();
    let ask = |words: &[&str]| -> Value {
        let answer = harbour.desk.run(&[words, &["--url", &harbour.url, "--json"]].concat());
        assert_eq!(answer.code, Some(0), "{answer:?}");
        serde_json::from_str(&answer.out).expect("it is JSON")
    };
    let oplog = ask(&["mongodb", "oplog"]);
    assert_eq!(
        ask(&["oplog"])["streams"][0]["stream"],
        oplog["streams"][0]["stream"],
        "the URL tells whose tool it is"
    );
    assert_eq!(oplog["streams"][0]["lost"], false, "{oplog}");
    assert!(oplog["streams"][0]["stream"].as_str().is_some_and(|stream| stream.contains("orders")), "{oplog}");
    assert!(oplog["streams"][0]["seconds_to_loss"].as_u64().is_some_and(|seconds| seconds > 0), "{oplog}");
    assert_eq!(ask(&["setup", "--collection", "orders", "--images"])["images"][0], "orders");
    assert_eq!(ask(&["audit", "query", "--operation", "update"]), serde_json::json!([]));
}

#[test]
fn a_check_tells_how_much_history_is_left_and_changes_nothing() {
    let harbour = Harbour::new();
    harbour.configure(&harbour.orders(""));
    let unknown = harbour.desk.run(&["check", "--json"]);
    let told: Value = serde_json::from_str(&unknown.out).expect("it is JSON");
    assert!(told["streams"][0]["history"].is_null(), "a stream that never ran has none: {told}");
    let mut only = harbour.start("only");
    harbour.order(&["rope"]);
    until("it is committed", || changes(&harbour) == 1);
    only.ends_in_order();
    let before = harbour.collections();
    let checked = harbour.desk.run(&["check", "--json"]);
    assert_eq!(checked.code, Some(0), "{checked:?}");
    let told: Value = serde_json::from_str(&checked.out).expect("it is JSON");
    let history = &told["streams"][0]["history"];
    assert!(history["seconds_to_loss"].as_u64().is_some_and(|seconds| seconds > 0), "{told}");
    assert!(history["headroom_seconds"].is_u64() && history["bytes_per_second"].is_u64(), "{told}");
    assert_eq!(history["bytes_max"], 64 * 1024 * 1024, "{told}");
    let said = harbour.desk.run(&["check"]).out;
    assert!(said.contains("note: history (mongodb): the checkpoint has "), "{said}");
    assert_eq!(harbour.collections(), before);
}

#[test]
fn a_mirror_of_updates_that_tell_only_what_differs_is_refused_by_check() {
    let harbour = Harbour::new();
    let file = |source: &str| {
        format!(
            "[group]\nname = \"shop\"\nstore = \"{url}\"\n\n[[stream]]\nname = \"orders\"\n{source}\n[[stream.sink]]\n\
             type = \"mongodb\"\nurl = \"{url}\"\ncollection = \"copies\"\nmode = \"mirror\"\n",
            url = harbour.url
        )
    };
    harbour.desk.write("watchkeeper.toml", &file(&harbour.orders("")));
    let checked = harbour.desk.run(&["check"]);
    assert_eq!(checked.code, Some(2), "{checked:?}");
    assert!(checked.out.contains("its updates tell only what differs, and a mirror needs all"), "{}", checked.out);
    harbour.desk.write("watchkeeper.toml", &file(&harbour.orders(", full_document = \"updateLookup\"")));
    let checked = harbour.desk.run(&["check"]);
    assert_eq!(checked.code, Some(0), "{checked:?}");
}

#[test]
fn how_far_a_snapshot_is_stands_in_the_log_and_in_the_status() {
    let set = ReplicaSet::start(1);
    let harbour = Harbour::on(&set);
    let orders = harbour.database.collection::<Document>("orders");
    let documents = (0..6_000).map(|number| doc! { "_id": number, "item": "rope" });
    harbour.block_on(async { orders.insert_many(documents).await }).expect("orders are taken");
    // Ranges after the first can not be read, until that is over.
    let admin = harbour.database.client().database("admin");
    let point = |mode: Bson| {
        let data = doc! {
            "failCommands": ["find"], "namespace": format!("{}.orders", harbour.database.name()), "errorCode": 91,
        };
        let command = doc! { "configureFailPoint": "failCommand", "mode": mode, "data": data };
        harbour.block_on(async { admin.run_command(command).await }).expect("a fail point can be set");
    };
    point(doc! { "skip": 1 }.into());
    let source = harbour.orders("");
    harbour.configure(&format!("start = \"snapshot\"\n{source}"));
    let mut only = harbour.desk.start("only");
    only.says(&["snapshot: reading orders, 1 of 1"]);
    let status = || -> Value {
        let status = harbour.desk.run(&["status", "--json"]);
        serde_json::from_str(&status.out).expect("it is JSON")
    };
    let mut told = Value::Null;
    until("the status tells it", || {
        told = status()["streams"][0]["stage"].clone();
        told["done"].as_u64().is_some_and(|done| done > 0)
    });
    assert_eq!((&told["of"], &told["what"]), (&6_000.into(), &"snapshot: reading orders, 1 of 1".into()));
    let said = harbour.desk.run(&["status"]).out;
    assert!(
        said.contains("  busy with    snapshot: reading orders, 1 of 1: ") && said.contains(" of about 6000"),
        "{said}"
    );
    point("off".into());
    only.says(&["everything that existed was read"]);
    until("it is over", || status()["streams"][0]["stage"].is_null());
    until("all is delivered", || harbour.delivered().len() == 6_000);
    only.ends_in_order();
}

#[test]
fn a_snapshot_is_taken_when_an_operator_asks_for_one() {
    let harbour = Harbour::new();
    harbour.order(&["rope", "tar"]);
    harbour.configure(&harbour.orders(""));
    let mut only = harbour.start("only");
    harbour.order(&["sail"]);
    until("the change arrives", || harbour.delivered() == ["sail"]);
    let set = harbour.desk.run(&["checkpoint", "set", "orders", "snapshot", "--yes"]);
    assert_eq!(set.code, Some(0), "{set:?}");
    until("everything arrives", || harbour.delivered() == ["sail", "rope", "tar", "sail"]);
    harbour.order(&["oar"]);
    until("what follows arrives, too", || harbour.delivered().last().is_some_and(|item| item == "oar"));
    only.ends_in_order();
    assert_eq!(harbour.delivered().len(), 5);
}

#[test]
fn a_snapshot_whose_history_is_lost_is_begun_anew() {
    let (harbour, set) = (Harbour::new(), ReplicaSet::start(1));
    harbour.configure(&harbour.orders(""));
    let requested = harbour.desk.run(&["checkpoint", "set", "orders", "snapshot", "--yes"]);
    assert_eq!(requested.code, Some(0), "{requested:?}");
    // Another cluster answers before anything of the snapshot was read.
    let other = Harbour::on(&set);
    other.order(&["rope", "tar"]);
    harbour.configure(&other.orders(""));
    harbour.desk.run(&["check"]).assert_found(1, &["another cluster", "accept-gap orders --to snapshot"]);
    let mut only = harbour.desk.start("only");
    only.says(&["the stream is halted", "another cluster", "`watchkeeper accept-gap orders --to snapshot`"]);
    let refused = harbour.desk.run(&["accept-gap", "orders", "--to", "now", "--yes"]);
    refused.assert_refused(2, &["in the middle of a snapshot", "--leave-snapshot-unfinished"]);
    let accepted = harbour.desk.run(&["accept-gap", "orders", "--to", "snapshot", "--yes"]);
    assert_eq!(accepted.code, Some(0), "{accepted:?}");
    until("everything arrives", || harbour.delivered() == ["rope", "tar"]);
    only.ends_in_order();
}
