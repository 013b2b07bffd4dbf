//! Moving the watch from instance to instance, and taking it away.

use rustix::process::Signal;

use crate::shop::{Shop, until};

#[test]
fn a_hand_over_moves_the_watch_and_why_tells_it() {
    let shop = Shop::new("stop");
    let _two = shop.two();
    let handed = shop.ask(&["handoff", "orders", "--to", "b"]);
    assert_eq!((&handed["from"], &handed["to"]), (&"a".into(), &"b".into()));
    let orders = shop.orders();
    assert_eq!((&orders["watch"]["name"], &orders["watch"]["epoch"]), (&"b".into(), &handed["epoch"]));
    assert!(orders["preferred"].is_null(), "the wish was for this once");
    shop.order(&["rope"]);
    shop.until_delivered(1);

    let sentence = until("the journal tells it", || {
        let why = shop.ask(&["why", "orders"]);
        let last = why["takeovers"].as_array()?.last()?.clone();
        (last["to"] == "b").then_some(why)
    });
    let reported = sentence["takeovers"].as_array().and_then(|all| all.last()).expect("there is one");
    assert_eq!((&reported["from"], &reported["epoch"]), (&"a".into(), &handed["epoch"]));
    let said = shop.run(&["why", "orders"]).said;
    assert!(said.contains("b relieved a") && said.contains("Now b has the watch"), "{said}");
    let last = shop.run(&["why", "orders", "--last", "1"]).said;
    assert!(last.lines().count() == 2 && last.contains("b relieved a"), "{last}");

    let back = shop.run(&["handoff", "orders", "--to", "a"]);
    assert_eq!(back.code, Some(0), "{back:?}");
    assert!(back.said.starts_with("a relieved b after ") && back.said.contains(" ms, epoch "), "{}", back.said);
    let any = shop.ask(&["handoff", "orders"]);
    assert_eq!((&any["from"], &any["to"]), (&"a".into(), &"b".into()));
}

#[test]
fn a_hand_over_says_why_it_cannot_be() {
    let shop = Shop::new("stop");
    shop.run(&["handoff", "orders"]).refused(1, &["nobody has the watch of orders"]);
    let _a = shop.start("a");
    shop.until_state("running");
    shop.run(&["handoff", "orders"]).refused(1, &["nobody but a is there", "start another instance"]);
    let _b = shop.start("b");
    until("b stands by", || (shop.orders()["standing_by"][0] == "b").then_some(()));
    shop.run(&["handoff", "orders", "--to", "c"]).refused(2, &["no instance \"c\"", "known are: b"]);
    let already = shop.ask(&["handoff", "orders", "--to", "a"]);
    assert_eq!(already["to"], "a");
    assert_eq!(shop.orders()["watch"]["name"], "a", "nothing was moved");
}

#[test]
fn a_hand_over_that_nobody_else_takes_is_tried_once() {
    let shop = Shop::new("stop");
    let (_a, b) = shop.two();
    let epoch = || shop.orders()["watch"]["epoch"].as_u64();
    let before = epoch();
    b.signal(Signal::STOP);
    shop.run(&["handoff", "orders"]).refused(1, &["a left orders and took its watch again", "nobody else did"]);
    b.signal(Signal::CONT);
    assert_eq!(epoch(), before.map(|epoch| epoch + 1), "one request is one hand-over");
}

#[test]
fn a_paused_stream_runs_nowhere_until_it_is_resumed() {
    let shop = Shop::new("stop");
    let _two = shop.two();
    shop.order(&["rope"]);
    shop.until_delivered(1);
    let paused = shop.ask(&["pause", "orders"]);
    assert_eq!(paused["left"], "a");
    let orders = shop.orders();
    assert!(orders["state"] == "paused" && orders["watch"].is_null(), "{orders}");
    assert_eq!(orders["checkpoint"]["changes"], 1, "it drained before it left");
    shop.order(&["lamp"]);
    let why = shop.run(&["why", "orders"]).said;
    assert!(why.contains("Now it is paused: an operator paused it"), "{why}");
    assert_eq!(shop.delivered().len(), 1);

    let resumed = shop.ask(&["resume", "orders"]);
    assert!(resumed["was_paused"] == true && resumed["running_on"].is_string(), "{resumed}");
    shop.until_delivered(2);
    let again = shop.run(&["resume", "orders"]).said;
    assert!(again.contains("was not paused"), "{again}");
}

#[test]
fn pausing_needs_nobody_to_be_there() {
    let shop = Shop::new("stop");
    assert!(shop.run(&["pause", "orders"]).said.contains("nobody had its watch"));
    assert_eq!(shop.orders()["state"], "paused");
    assert!(shop.run(&["resume", "orders"]).said.contains("nobody is there"));
    assert_eq!(shop.orders()["state"], "unmanned");
}

#[test]
fn why_says_nothing_for_an_instance_that_was_killed() {
    let shop = Shop::new("stop");
    let a = shop.start("a");
    shop.until_state("running");
    // A release notice of an earlier tenure.
    shop.ask(&["pause", "orders"]);
    shop.ask(&["resume", "orders"]);
    let b = shop.start("b");
    until("b stands by", || (shop.orders()["standing_by"][0] == "b").then_some(()));
    drop(a);
    let last = until("the journal tells of b", || {
        shop.ask(&["why", "orders"])["takeovers"].as_array()?.last().filter(|last| last["to"] == "b").cloned()
    });
    assert_eq!((&last["from"], &last["note"]), (&"a".into(), &"".into()), "{last}");
    let sentence = last["sentence"].as_str().expect("it is told");
    assert!(!sentence.contains("said"), "{sentence}");
    shop.order(&["rope"]);
    shop.until_delivered(1);
    until("the takeover is counted", || (shop.orders()["checkpoint"]["failovers"] == 1).then_some(()));

    drop(b);
    let orders = until("nobody has the watch", || Some(shop.orders()).filter(|orders| orders["watch"].is_null()));
    assert!(orders["release_notice"].is_null(), "{orders}");
    let why = shop.run(&["why", "orders"]).said;
    assert!(why.lines().last().is_some_and(|now| !now.contains("said")), "{why}");
}

#[test]
fn moves_and_restarts_are_no_failovers() {
    let shop = Shop::new("stop");
    let a = shop.start("a");
    shop.order(&["rope", "lamp"]);
    shop.until_delivered(2);
    let failovers = || shop.orders()["checkpoint"]["failovers"].clone();
    shop.ask(&["checkpoint", "set", "orders", "oldest", "--yes"]);
    shop.order(&["saw"]);
    shop.until_state("running");
    until("a goes on", || (shop.orders()["checkpoint"]["by"] == "a").then_some(()));
    assert_eq!(failovers(), 0, "a move is no failover");
    a.signal(Signal::TERM);
    assert_eq!(a.end().code, Some(0));
    let _again = shop.start("the-next-process");
    shop.order(&["axe"]);
    until("it goes on", || (shop.orders()["checkpoint"]["by"] == "the-next-process").then_some(()));
    assert_eq!(failovers(), 0, "a restart is no failover");
}
