//! Dead letters.

use serde_json::{Value, json};

use crate::shop::{Instance, Shop, until};

fn open(shop: &Shop) -> Vec<Value> {
    shop.ask(&["dead-letters", "list", "orders"])["letters"].as_array().expect("a list").clone()
}

/// A running stream of which orders of poison are dead letters, and as many of them.
fn rejected(count: usize) -> (Shop, Instance) {
    let shop = Shop::new("dead_letter");
    let a = shop.start("a");
    shop.order(&["rope"]);
    shop.until_delivered(1);
    shop.refuse("poison");
    shop.order(&vec!["poison"; count]);
    until("the letters are there", || (open(&shop).len() == count).then_some(()));
    (shop, a)
}

#[test]
fn a_rejected_change_is_listed_replayed_and_gone() {
    let (shop, _a) = rejected(2);
    let letters = open(&shop);
    assert_eq!(
        (&letters[0]["kind"], &letters[0]["key"], &letters[0]["sink"]),
        (&"dead-letter".into(), &"[2]".into(), &"events".into())
    );
    assert!(letters[0]["cause"].as_str().is_some_and(|cause| cause.contains("no poison here")), "{letters:?}");
    assert_eq!(letters[0]["code"], "WK-REJECTED", "{letters:?}");
    assert_eq!(shop.orders()["checkpoint"]["dead_letters"], 2);
    let said = shop.run(&["dead-letters", "list", "orders"]).said;
    assert!(said.contains("dead letter: insert of [2] in orders at events"), "{said}");
    assert!(said.contains(", changed at 20"), "{said}");

    let refused = shop.run(&["dead-letters", "replay", "orders", "--json"]);
    assert_eq!(refused.code, Some(1), "what was not delivered is told by the code: {refused:?}");
    let again: Value = serde_json::from_str(&refused.said).expect("it is JSON");
    assert_eq!((&again["settled"], again["left"].as_array().map(Vec::len)), (&0.into(), Some(2)), "still refused");
    shop.accept_all();
    let number = letters[1]["number"].to_string();
    let one = shop.ask(&["dead-letters", "replay", "orders", &number]);
    assert_eq!((&one["asked"], &one["settled"]), (&1.into(), &1.into()));
    assert_eq!(shop.delivered(), ["[1]", "[3]"]);
    let rest = shop.ask(&["dead-letters", "replay", "orders", "--sink", "events"]);
    assert_eq!((&rest["settled"], &rest["left"]), (&1.into(), &json!([])));
    assert_eq!(shop.delivered(), ["[1]", "[3]", "[2]"]);
    assert!(open(&shop).is_empty());
    shop.run(&["dead-letters", "replay", "orders", &number]).refused(2, &["no open dead letter", "list them"]);
    let all = shop.ask(&["dead-letters", "list", "orders", "--all"]);
    assert_eq!(all["letters"][0]["resolution"], "replayed");
}

#[test]
fn machines_are_reported_open_letters() {
    let (shop, _a) = rejected(2);
    until("they are committed", || (shop.orders()["checkpoint"]["dead_letters"] == 2).then_some(()));
    assert_eq!((&shop.orders()["state"], &shop.orders()["health"]), (&"running".into(), &"degraded".into()));
    assert_eq!(shop.run(&["status", "--exit-code"]).code, Some(3));
    shop.ask(&["dead-letters", "purge", "orders", "--yes"]);
    until("it is well again", || (shop.orders()["health"] == "healthy").then_some(()));
    assert_eq!(shop.run(&["status", "--exit-code"]).code, Some(0));
}

#[test]
fn letters_are_purged_by_whoever_runs_the_stream_or_by_nobody() {
    let (shop, a) = rejected(3);
    let numbers: Vec<_> = open(&shop).iter().map(|letter| letter["number"].to_string()).collect();
    shop.run(&["dead-letters", "purge", "orders"]).refused(2, &["no terminal", "--yes"]);
    let one = shop.ask(&["dead-letters", "purge", "orders", &numbers[0], "--yes"]);
    assert_eq!((&one["settled"], &one["left"]), (&1.into(), &json!([])));
    assert_eq!(open(&shop).len(), 2);

    shop.ask(&["pause", "orders"]);
    drop(a);
    shop.run(&["dead-letters", "replay", "orders"]).refused(1, &["nobody runs orders"]);
    let rest = shop.ask(&["dead-letters", "purge", "orders", "--yes"]);
    assert_eq!((&rest["settled"], &rest["left"]), (&2.into(), &json!([])));
    assert!(open(&shop).is_empty());
    assert_eq!(shop.orders()["checkpoint"]["dead_letters"], 0);
    assert_eq!(shop.delivered(), ["[1]"], "what is given up is never delivered");
}

#[test]
fn a_purge_announces_nothing_before_it_is_confirmed() {
    let (shop, _a) = rejected(2);
    let refused = shop.run(&["dead-letters", "purge", "orders"]);
    refused.refused(2, &["no terminal", "--yes"]);
    assert!(refused.reported.contains("2 dead letters would be given up for good"), "{refused:?}");
    assert!(!refused.reported.contains("letters given up"), "{refused:?}");
    assert_eq!(open(&shop).len(), 2);
}

#[test]
fn a_dead_letter_is_logged_with_its_stream_and_listed_with_its_time() {
    let (shop, _a) = rejected(1);
    let letter = &open(&shop)[0];
    let log = std::fs::read_to_string(shop.file("a.log")).expect("it is written");
    let line = log.lines().find(|line| line.contains("dead letter")).unwrap_or_else(|| panic!("{log}"));
    let change = letter["change"].as_str().expect("it has an id");
    for part in ["stream=\"orders\"", change, "watchkeeper dead-letters list orders"] {
        assert!(line.contains(part), "{part}: {line}");
    }
    let said = shop.run(&["dead-letters", "list", "orders"]).said;
    assert!(said.contains(letter["time"].as_str().expect("its change has one")), "{said}");
}
