//! Changes arrive, and instances relieve each other.

use rustix::process::Signal;
use serde_json::Value;
use watchkeeper::mongodb::mongodb::bson::{Bson, Document, doc};
use watchkeeper_testkit::servers::mongodb::ReplicaSet;

use super::SourceFixture;
use crate::workspace::until;

#[test]
fn changes_arrive_and_another_instance_relieves_the_one_that_was_killed() {
    let fixture = SourceFixture::new();
    fixture.configure(&fixture.orders(""));
    let first = fixture.start("first");
    fixture.order(&["rope", "tar"]);
    until("the changes arrive", || fixture.delivered() == ["rope", "tar"]);
    until("they are committed", || changes(&fixture) == 2);

    let mut second = fixture.workspace.start("second");
    second.says(&["standing by", "holder=\"first\""]);
    first.signal(Signal::KILL);
    // The lease is longer than anybody waits here: death was proved.
    second.says(&["to=running"]);
    fixture.order(&["sail"]);
    until("the next change arrives", || fixture.delivered() == ["rope", "tar", "sail"]);
    second.ends_in_order();
    assert_eq!(changes(&fixture), 3);
    let status = fixture.workspace.run(&["status", "--json"]);
    let reported: Value = serde_json::from_str(&status.out).expect("it is JSON");
    assert_eq!(reported["streams"][0]["checkpoint"]["changes"], 3, "{reported}");
}

/// How many changes are committed.
fn changes(fixture: &SourceFixture) -> i64 {
    let facts = fixture.checkpoint().and_then(|checkpoint| checkpoint.get_document("facts").ok().cloned());
    facts.and_then(|facts| facts.get_i64("changes").ok()).unwrap_or_default()
}

#[test]
fn a_collection_that_is_waited_for_is_read_from_its_first_document() {
    let fixture = SourceFixture::new();
    fixture.configure(&fixture.orders(", wait = true").replace("\"orders\"", "\"later\""));
    let mut only = fixture.start("only");
    let later = fixture.database.collection("later");
    let first = doc! { "item": "rope" };
    fixture.block_on(async { later.insert_one(first).await }).expect("it is taken");
    until("it arrives", || fixture.delivered() == ["rope"]);
    only.ends_in_order();
}

#[test]
fn commands_end_without_a_panic_in_a_task_of_the_driver() {
    let fixture = SourceFixture::new();
    fixture.configure(&fixture.orders(""));
    let workspace = &fixture.workspace;
    // The cause was that the command dropped its runtime: that ends the tasks one by one, and the driver panics in a task that
    // waits for one that is gone. `block_on` in `commands/mod.rs` keeps the runtime until the process ends, and
    // `tasks_that_a_command_leaves_behind_are_not_ended_one_by_one` there asserts it for any moment. Here the driver itself is seen.
    // Each ends while the driver still waits for the next changes. It depends on the moment what its tasks are about.
    let tails =
        |of: u64| (0..10).map(move |n| workspace.run(&["tail", "orders", "--for", &format!("{}ms", 100 + of * n)]));
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
    let fixture = SourceFixture::new();
    fixture.configure(&fixture.orders(", full_document = \"whenAvailable\""));
    let before = fixture.collections();
    let checked = fixture.workspace.run(&["check"]);
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
    assert_eq!(fixture.collections(), before);
}

#[test]
fn the_settings_in_the_guide_are_accepted() {
    let guide = include_str!("../../../../../docs/guide/mongodb.md");
    let (file, _) =
        guide.split_once("```toml\n").and_then(|(_, rest)| rest.split_once("```")).expect("it shows a file");
    let fixture = SourceFixture::new();
    let hosts = fixture.url.split(['/', '?']).nth(2).expect("a URL names hosts");
    let own = fixture.database.name();
    let file = file.replace("db1,db2,db3", hosts).replace("/shop?", &format!("/{own}?"));
    fixture.workspace.write("watchkeeper.toml", &file);
    let checked = fixture.workspace.run(&["check"]);
    assert_eq!(checked.code, Some(0), "{checked:?}");
    assert!(!checked.out.contains("error: "), "{checked:?}");
}

#[test]
fn the_tools_of_mongodb_answer_in_json() {
    let fixture = SourceFixture::new();
    fixture.configure(&fixture.orders(""));
    let mut only = fixture.start("only");
    fixture.order(&["rope"]);
    until("it is committed", || changes(&fixture) == 1);
    only.ends_in_order();
    let ask = |words: &[&str]| -> Value {
        let answer = fixture.workspace.run(&[words, &["--url", &fixture.url, "--json"]].concat());
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
    let fixture = SourceFixture::new();
    fixture.configure(&fixture.orders(""));
    let unknown = fixture.workspace.run(&["check", "--json"]);
    let reported: Value = serde_json::from_str(&unknown.out).expect("it is JSON");
    assert!(reported["streams"][0]["history"].is_null(), "a stream that never ran has none: {reported}");
    let mut only = fixture.start("only");
    fixture.order(&["rope"]);
    until("it is committed", || changes(&fixture) == 1);
    only.ends_in_order();
    let before = fixture.collections();
    let checked = fixture.workspace.run(&["check", "--json"]);
    assert_eq!(checked.code, Some(0), "{checked:?}");
    let reported: Value = serde_json::from_str(&checked.out).expect("it is JSON");
    let history = &reported["streams"][0]["history"];
    assert!(history["seconds_to_loss"].as_u64().is_some_and(|seconds| seconds > 0), "{reported}");
    assert!(history["headroom_seconds"].is_u64() && history["bytes_per_second"].is_u64(), "{reported}");
    assert_eq!(history["bytes_max"], 64 * 1024 * 1024, "{reported}");
    let said = fixture.workspace.run(&["check"]).out;
    assert!(said.contains("note: history (mongodb): the checkpoint has "), "{said}");
    assert_eq!(fixture.collections(), before);
}

#[test]
fn a_mirror_of_updates_that_tell_only_what_differs_is_refused_by_check() {
    let fixture = SourceFixture::new();
    let file = |source: &str| {
        format!(
            "[group]\nname = \"shop\"\nstore = \"{url}\"\n\n[[stream]]\nname = \"orders\"\n{source}\n[[stream.sink]]\n\
             type = \"mongodb\"\nurl = \"{url}\"\ncollection = \"copies\"\nmode = \"mirror\"\n",
            url = fixture.url
        )
    };
    fixture.workspace.write("watchkeeper.toml", &file(&fixture.orders("")));
    let checked = fixture.workspace.run(&["check"]);
    assert_eq!(checked.code, Some(2), "{checked:?}");
    assert!(checked.out.contains("its updates tell only what differs, and a mirror needs all"), "{}", checked.out);
    fixture.workspace.write("watchkeeper.toml", &file(&fixture.orders(", full_document = \"updateLookup\"")));
    let checked = fixture.workspace.run(&["check"]);
    assert_eq!(checked.code, Some(0), "{checked:?}");
}

#[test]
fn how_far_a_snapshot_is_stands_in_the_log_and_in_the_status() {
    let set = ReplicaSet::start(1);
    let fixture = SourceFixture::on(&set);
    let orders = fixture.database.collection::<Document>("orders");
    let documents = (0..6_000).map(|number| doc! { "_id": number, "item": "rope" });
    fixture.block_on(async { orders.insert_many(documents).await }).expect("orders are taken");
    // Ranges after the first cannot be read, until that is over.
    let admin = fixture.database.client().database("admin");
    let point = |mode: Bson| {
        let data = doc! {
            "failCommands": ["find"], "namespace": format!("{}.orders", fixture.database.name()), "errorCode": 91,
        };
        let command = doc! { "configureFailPoint": "failCommand", "mode": mode, "data": data };
        fixture.block_on(async { admin.run_command(command).await }).expect("a fail point can be set");
    };
    point(doc! { "skip": 1 }.into());
    let source = fixture.orders("");
    fixture.configure(&format!("start = \"snapshot\"\n{source}"));
    let mut only = fixture.workspace.start("only");
    only.says(&["snapshot: reading orders, 1 of 1"]);
    let status = || -> Value {
        let status = fixture.workspace.run(&["status", "--json"]);
        serde_json::from_str(&status.out).expect("it is JSON")
    };
    let mut reported = Value::Null;
    until("the status tells it", || {
        reported = status()["streams"][0]["stage"].clone();
        reported["done"].as_u64().is_some_and(|done| done > 0)
    });
    assert_eq!((&reported["of"], &reported["what"]), (&6_000.into(), &"snapshot: reading orders, 1 of 1".into()));
    let said = fixture.workspace.run(&["status"]).out;
    assert!(
        said.contains("  busy with    snapshot: reading orders, 1 of 1: ") && said.contains(" of about 6000"),
        "{said}"
    );
    point("off".into());
    only.says(&["everything that existed was read"]);
    until("it is over", || status()["streams"][0]["stage"].is_null());
    until("all is delivered", || fixture.delivered().len() == 6_000);
    only.ends_in_order();
}

#[test]
fn a_snapshot_is_taken_when_an_operator_asks_for_one() {
    let fixture = SourceFixture::new();
    fixture.order(&["rope", "tar"]);
    fixture.configure(&fixture.orders(""));
    let mut only = fixture.start("only");
    fixture.order(&["sail"]);
    until("the change arrives", || fixture.delivered() == ["sail"]);
    let set = fixture.workspace.run(&["checkpoint", "set", "orders", "snapshot", "--yes"]);
    assert_eq!(set.code, Some(0), "{set:?}");
    until("everything arrives", || fixture.delivered() == ["sail", "rope", "tar", "sail"]);
    fixture.order(&["oar"]);
    until("what follows arrives, too", || fixture.delivered().last().is_some_and(|item| item == "oar"));
    only.ends_in_order();
    assert_eq!(fixture.delivered().len(), 5);
}

#[test]
fn a_snapshot_whose_history_is_lost_is_begun_anew() {
    let (fixture, set) = (SourceFixture::new(), ReplicaSet::start(1));
    fixture.configure(&fixture.orders(""));
    let requested = fixture.workspace.run(&["checkpoint", "set", "orders", "snapshot", "--yes"]);
    assert_eq!(requested.code, Some(0), "{requested:?}");
    // Another cluster answers before anything of the snapshot was read.
    let other = SourceFixture::on(&set);
    other.order(&["rope", "tar"]);
    fixture.configure(&other.orders(""));
    fixture.workspace.run(&["check"]).assert_found(1, &["another cluster", "accept-gap orders --to snapshot"]);
    let mut only = fixture.workspace.start("only");
    only.says(&["the stream is halted", "another cluster", "`watchkeeper accept-gap orders --to snapshot`"]);
    let refused = fixture.workspace.run(&["accept-gap", "orders", "--to", "now", "--yes"]);
    refused.assert_refused(2, &["in the middle of a snapshot", "--leave-snapshot-unfinished"]);
    let accepted = fixture.workspace.run(&["accept-gap", "orders", "--to", "snapshot", "--yes"]);
    assert_eq!(accepted.code, Some(0), "{accepted:?}");
    until("everything arrives", || fixture.delivered() == ["rope", "tar"]);
    only.ends_in_order();
}
