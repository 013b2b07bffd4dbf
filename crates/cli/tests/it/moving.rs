//! Moving a checkpoint.

use rustix::process::Signal;

use crate::shop::{Shop, until};

/// Five changes, delivered and committed.
fn five(shop: &Shop) {
    shop.order(&["a", "b", "c", "d", "e"]);
    shop.until_delivered(5);
    until("all is committed", || (shop.orders()["checkpoint"]["changes"] == 5).then_some(()));
}

#[test]
fn a_rewind_delivers_again() {
    let shop = Shop::new("stop");
    let _a = shop.start("a");
    five(&shop);
    let moved = shop.ask(&["checkpoint", "rewind", "orders", "--by", "2", "--yes"]);
    assert_eq!((&moved["before"], &moved["after"]), (&"0000000000000005".into(), &"0000000000000003".into()));
    shop.until_delivered(7);
    assert_eq!(shop.delivered(), ["[1]", "[2]", "[3]", "[4]", "[5]", "[4]", "[5]"]);
    until("all is committed again", || (shop.orders()["checkpoint"]["changes"] == 7).then_some(()));
    let history = shop.ask(&["checkpoint", "history", "orders", "--limit", "3"]);
    let past = history["checkpoints"].as_array().expect("a list");
    // The current one comes first, although its holder has not stored it in the history yet.
    let by: Vec<_> =
        past.iter().map(|checkpoint| checkpoint["changes"].as_u64().zip(checkpoint["by"].as_str())).collect();
    assert!(by.len() == 3 && by[0] == Some((7, "a")), "{history}");
    let moved = past.iter().position(|checkpoint| checkpoint["by"] == "operator").expect("the move is in it");
    assert!((1..3).contains(&moved) && past[moved]["position"] == "0000000000000003", "{history}");
    // The whole history, and not only what was asked for.
    let size = &history["size"];
    let number = |name: &str| size[name].as_u64().expect("a number");
    assert!(number("blocks") >= 1 && number("checkpoints") > 3 && number("bytes") > 0, "{history}");
    let reported = shop.run(&["checkpoint", "history", "orders"]).said;
    let line = format!("{} bytes, compressed from {} (", number("bytes"), number("plain_bytes"));
    assert!(reported.contains(&line), "{reported}");
}

#[test]
fn a_move_is_confirmed_by_a_person_or_by_a_flag() {
    let shop = Shop::new("stop");
    let _a = shop.start("a");
    five(&shop);
    for command in [
        &["checkpoint", "rewind", "orders", "--steps", "1"][..],
        &["checkpoint", "set", "orders", "oldest"],
        &["seek", "orders", "now"],
    ] {
        let answer = shop.run(command);
        answer.refused(2, &["no terminal", "--yes"]);
        assert!(answer.reported.contains("Stream orders is moved"), "{}", answer.reported);
    }
    shop.run(&["accept-gap", "orders"]).refused(2, &["has lost no history", "checkpoint set"]);
    assert_eq!(shop.delivered().len(), 5, "nothing was moved");
}

#[test]
fn a_position_a_time_or_a_word_says_where_to_go() {
    let shop = Shop::new("stop");
    let a = shop.start("a");
    five(&shop);
    let history = shop.ask(&["checkpoint", "history", "orders", "--limit", "1"]);
    let current = &history["checkpoints"][0];
    assert_eq!((&current["position"], &current["changes"]), (&"0000000000000005".into(), &5.into()), "{history}");
    shop.ask(&["pause", "orders"]);
    drop(a);
    let to = |target: &str| shop.ask(&["checkpoint", "set", "orders", target, "--yes"])["after"].clone();
    assert_eq!(to("0000000000000002"), "0000000000000002");
    assert_eq!(to("oldest"), "0000000000000000");
    assert!(shop.orders()["lag_millis"].is_null(), "what was delivered last does not tell how far it is behind now");
    assert_eq!(to("now"), "0000000000000005");
    let gaps = shop.ask(&["dead-letters", "list", "orders", "--all"]);
    assert_eq!(gaps["letters"][0]["kind"], "gap", "what is passed over is noted: {gaps}");
    shop.ask(&["checkpoint", "set", "orders", "oldest", "--yes"]);
    let said = shop.run(&["checkpoint", "set", "orders", "now", "--yes"]).said;
    assert!(said.contains("`watchkeeper dead-letters list orders --all`"), "{said}");
    assert_eq!(shop.orders()["state"], "paused", "a move leaves what people want");
    // Nobody knows any more what was committed when: a start by time begins before all that may have been open then, and says so.
    shop.app().execute("DELETE FROM watchkeeper_meta WHERE name LIKE 'log/mark/%'", []).expect("it is a table");
    let sql = "SELECT strftime('%Y-%m-%dT%H:%M:%fZ', max(millis) / 1000.0, 'unixepoch') FROM watchkeeper_changes";
    let last: String = shop.app().query_row(sql, [], |row| row.get(0)).expect("there are changes");
    for move_to in [
        &["checkpoint", "set", "orders", &last, "--yes"][..],
        &["checkpoint", "rewind", "orders", "--to", &last, "--yes"],
    ] {
        shop.ask(&["checkpoint", "set", "orders", "now", "--yes"]);
        let answer = shop.run(move_to);
        assert!(answer.said.contains("to 0000000000000000"), "{answer:?}");
        let reported = format!(
            "so that no transaction is skipped that was open at {last}; changes from before that time may come again."
        );
        assert!(
            answer.said.contains("Reading begins with change 1 of ") && answer.said.contains(&reported),
            "{answer:?}"
        );
        let asked = shop.run(&move_to[..move_to.len() - 1]);
        assert!(asked.reported.contains(&reported), "a person who is asked is told before: {asked:?}");
    }
    shop.ask(&["checkpoint", "set", "orders", "now", "--yes"]);
    shop.run(&["checkpoint", "set", "orders", "2020-01-01", "--yes"])
        .refused(2, &["the log reaches back to", "oldest"]);
    shop.run(&["checkpoint", "set", "orders", "00000000000000ff", "--yes"]).refused(1, &["after the newest one"]);
    shop.run(&["checkpoint", "rewind", "orders", "--by", "9", "--yes"]).refused(
        2,
        &["cannot go back 9 changes", "`watchkeeper checkpoint set orders oldest`", "rewind orders --to TIME"],
    );
    shop.run(&["checkpoint", "set", "orders", "2099-01-01", "--yes"]).refused(2, &["is still to come", "or now"]);
    let usage = shop.run(&["checkpoint", "set", "orders", "yesterday"]);
    assert!(usage.code == Some(2) && usage.reported.contains("is no place"), "{usage:?}");
    let shown = shop.ask(&["checkpoint", "show", "orders"]);
    assert_eq!(shown["checkpoint"]["position"], "0000000000000005");
}

#[test]
fn a_move_that_is_interrupted_leaves_nothing_behind() {
    let shop = Shop::new("stop");
    shop.lengthen_leases();
    let a = shop.start("a");
    five(&shop);
    // Killed: nobody gives its lease back.
    drop(a);
    let moving = shop.begin(&["checkpoint", "rewind", "orders", "--steps", "1", "--yes"]);
    shop.until_state("pausing");
    moving.signal(Signal::INT);
    moving.end().refused(1, &["is still held by a", "stop that instance"]);
    let orders = shop.orders();
    assert_eq!((&orders["state"], &orders["checkpoint"]["by"]), (&"running".into(), &"a".into()), "{orders}");
}

#[test]
fn a_halted_stream_is_resumed_or_its_change_is_skipped() {
    let shop = Shop::new("stop");
    let _a = shop.start("a");
    shop.order(&["rope"]);
    shop.until_delivered(1);
    shop.refuse("poison");
    shop.order(&["poison", "lamp", "poison"]);
    let halted = shop.until_state("halted");
    assert!(halted["cause"].as_str().is_some_and(|cause| cause.contains("no poison here")), "{halted}");

    shop.accept_all();
    let resumed = shop.ask(&["resume", "orders"]);
    assert!(resumed["lifted"]["cause"].is_string() && resumed["running_on"] == "a", "{resumed}");
    shop.until_delivered(4);

    shop.refuse("poison");
    shop.order(&["saw", "poison", "axe"]);
    shop.until_state("halted");
    let gap = shop.run(&["accept-gap", "orders", "--yes"]);
    gap.refused(2, &["has lost no history", "watchkeeper skip"]);
    let skipped = shop.ask(&["skip", "orders", "--yes", "--cause", "it is poison"]);
    assert_eq!(skipped["ledgered"], 1);
    shop.until_delivered(6);
    assert_eq!(shop.delivered()[4..], ["[5]", "[7]"], "only what no one takes is missing");
    let ledger = shop.ask(&["dead-letters", "list", "orders", "--all"]);
    let entry = &ledger["letters"][0];
    assert_eq!(
        (&entry["kind"], &entry["key"], &entry["cause"]),
        (&"skipped".into(), &"[6]".into(), &"it is poison".into())
    );
}

#[test]
fn a_halt_is_reported_once_with_its_commands_and_stays_in_why() {
    let shop = Shop::new("stop");
    let _a = shop.start("a");
    shop.order(&["rope"]);
    shop.until_delivered(1);
    shop.refuse("poison");
    shop.order(&["poison"]);
    shop.until_state("halted");
    for command in ["status", "why"] {
        let said = shop.run(&[command, "orders"]).said;
        for once in ["no poison here", "WK-REJECTED"] {
            assert_eq!(said.matches(once).count(), 1, "{once} in {command}: {said}");
        }
        assert!(said.contains("`watchkeeper resume orders`") && said.contains("`watchkeeper skip orders`"), "{said}");
    }
    let why = shop.run(&["why", "orders"]).said;
    assert!(why.contains("Now it is halted, by a at 20"), "{why}");

    shop.accept_all();
    shop.ask(&["resume", "orders"]);
    shop.until_delivered(2);
    let why = until("the journal tells it", || {
        Some(shop.run(&["why", "orders"]).said).filter(|why| why.contains("an operator resumed the stream"))
    });
    assert!(why.contains("a had halted the stream at 20") && why.contains("no poison here"), "{why}");
    shop.ask(&["checkpoint", "rewind", "orders", "--steps", "1", "--yes"]);
    let why = until("the journal tells it too", || {
        Some(shop.run(&["why", "orders"]).said).filter(|why| why.contains("an operator moved the checkpoint to 0"))
    });
    assert!(!why.contains("operator said") && !why.contains("relieved operator"), "{why}");
}
