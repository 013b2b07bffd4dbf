//! Changes arrive, and instances relieve each other.

use rustix::process::Signal;
use serde_json::Value;

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
    let first = watchkeeper::mongodb::mongodb::bson::doc! { "item": "rope" };
    harbour.block_on(async { later.insert_one(first).await }).expect("it is taken");
    until("it arrives", || harbour.delivered() == ["rope"]);
    only.ends_in_order();
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
        "warning: source (mongodb): the oplog reaches back 0h",
        "grade: fenced",
        "all is well",
    ] {
        assert!(checked.out.contains(part), "{part:?} is not in: {}", checked.out);
    }
    assert_eq!(harbour.collections(), before);
}

#[test]
fn the_settings_in_the_guide_are_accepted() {
    let guide = include_str!("../../../../../docs/guide/configuration.md");
    let section = guide.split_once("**MongoDB.**").expect("the guide tells of MongoDB").1;
    let (file, _) =
        section.split_once("```toml\n").and_then(|(_, rest)| rest.split_once("```")).expect("it shows a file");
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
        let answer = harbour.desk.run(&[&["mongodb"], words, &["--url", &harbour.url, "--json"]].concat());
        assert_eq!(answer.code, Some(0), "{answer:?}");
        serde_json::from_str(&answer.out).expect("it is JSON")
    };
    let oplog = ask(&["oplog"]);
    assert_eq!(oplog["streams"][0]["lost"], false, "{oplog}");
    assert!(oplog["streams"][0]["stream"].as_str().is_some_and(|stream| stream.contains("orders")), "{oplog}");
    assert!(oplog["streams"][0]["seconds_to_loss"].as_u64().is_some_and(|seconds| seconds > 0), "{oplog}");
    assert_eq!(ask(&["setup", "--collection", "orders", "--images"])["images"][0], "orders");
    assert_eq!(ask(&["audit-query", "--operation", "update"]), serde_json::json!([]));
}
