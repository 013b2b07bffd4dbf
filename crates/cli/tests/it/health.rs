//! What the holder tells of its work, and what `status` makes of it.

use serde_json::Value;

use crate::desk::{Desk, GOOD, INTO_FILES, Running, until};

fn orders(desk: &Desk) -> Value {
    let answer = desk.run(&["status", "--json"]);
    assert_eq!(answer.code, Some(0), "{answer:?}");
    let told: Value = serde_json::from_str(&answer.out).expect("it is JSON");
    told["streams"][0].clone()
}

fn code(desk: &Desk) -> Option<i32> {
    desk.run(&["status", "--exit-code"]).code
}

#[test]
fn a_full_disk_is_shown_as_recovering_with_its_cause() {
    let config = GOOD.to_owned()
        + "retry = { recovery_backoff = \"50ms\", recovery_backoff_max = \"200ms\", recoveries = 100000 }\n"
        + "breaker = { failures = 5, open_for = \"50ms\", open_max = \"200ms\" }\n\n"
        + &INTO_FILES.replace("\".\"", "\"small\"");
    let desk = Desk::with(&config);
    std::fs::create_dir(desk.path("small")).expect("a folder can be made");
    // Filled up to the last block, but for what the fence of the files needs.
    let setup = "mount -t tmpfs -o size=64k small small && dd if=/dev/zero of=small/ballast bs=4k count=14 2>/dev/null";
    let mut running = Running::start(&mut desk.command_after(setup, &["run"]));
    until("it is shown as running", || orders(&desk)["state"] == "running");
    desk.order(0..200);
    let is_told = |shown: &Value| {
        let trouble = &shown["trouble"];
        shown["state"] == "recovering"
            && trouble["error"].as_str().is_some_and(|error| error.contains("full") || error.contains("space"))
            && trouble["attempts"].as_u64() > Some(1)
            && trouble["lasting_millis"].as_u64() > Some(1_000)
            && shown["undelivered_millis"].as_u64() > Some(1_000)
    };
    until("it is told", || is_told(&orders(&desk)));
    // It is so all the time, and not only when somebody looks at the right moment.
    for _ in 0..10 {
        assert_eq!(orders(&desk)["state"], "recovering", "{}", orders(&desk));
    }
    let text = desk.run(&["status"]).out;
    assert!(text.contains("orders: recovering on ") && text.contains("tried "), "{text}");
    assert!(text.contains("the oldest change that waits is "), "{text}");
    assert_eq!(code(&desk), Some(3));
    let ballast = format!("/proc/{}/root{}", running.pid(), desk.path("small/ballast").display());
    std::fs::remove_file(ballast).expect("the ballast is there");
    until("it is well again", || {
        let shown = orders(&desk);
        shown["state"] == "running" && shown["trouble"].is_null() && shown["checkpoint"]["changes"] == 200
    });
    until("nothing waits", || orders(&desk)["undelivered_millis"].is_null());
    assert_eq!(code(&desk), Some(0));
    running.ends_in_order();
}

#[test]
fn a_standby_is_shown_as_one() {
    let desk = Desk::with(&format!("{GOOD}{INTO_FILES}"));
    let mut first = desk.start("first");
    until("the first one runs", || orders(&desk)["watch"]["name"] == "first");
    let mut second = desk.start("second");
    until("both are told of", || {
        let shown = orders(&desk);
        let does = |name: &str, doing: &str| {
            let instances = shown["instances"].as_array().cloned().unwrap_or_default();
            instances.iter().any(|on| on["name"] == name && on["doing"] == doing)
        };
        does("first", "running") && does("second", "standby")
    });
    second.ends_in_order();
    first.ends_in_order();
}

#[test]
fn machines_are_told_by_the_exit_code() {
    let desk = Desk::with(&format!("{GOOD}{INTO_FILES}"));
    assert_eq!(code(&desk), Some(4), "nobody has ever had it");
    let mut first = desk.start("first");
    until("it runs", || orders(&desk)["state"] == "running");
    assert_eq!(code(&desk), Some(0));
    assert_eq!(orders(&desk)["health"], "healthy");
    assert_eq!(desk.run(&["pause", "orders"]).code, Some(0));
    assert_eq!(code(&desk), Some(4), "nobody has it");
    assert_eq!(desk.run(&["status"]).code, Some(0), "unless asked for it is no matter of the code");
    assert_eq!(desk.run(&["resume", "orders"]).code, Some(0));
    until("it runs again", || orders(&desk)["state"] == "running");
    let mut command = desk.command();
    let gone = "WATCHKEEPER__STREAM__ORDERS__SINK__0__FOLDER";
    let mut second = Running::start(command.arg("run").env("WATCHKEEPER__INSTANCE__NAME", "second").env(gone, "gone"));
    until("one that can not run it is told", || code(&desk) == Some(3));
    second.ends_in_order();
    first.ends_in_order();
    assert_eq!(code(&desk), Some(4), "nobody is there");
}
