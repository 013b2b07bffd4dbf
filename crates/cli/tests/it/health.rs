//! What the holder tells of its work, and what `status` makes of it.

use serde_json::Value;

use crate::workspace::{GOOD, INTO_FILES, Running, Workspace, assert_no_repetition, until};

fn orders(workspace: &Workspace) -> Value {
    let answer = workspace.run(&["status", "--json"]);
    assert_eq!(answer.code, Some(0), "{answer:?}");
    let reported: Value = serde_json::from_str(&answer.out).expect("it is JSON");
    reported["streams"][0].clone()
}

fn code(workspace: &Workspace) -> Option<i32> {
    workspace.run(&["status", "--exit-code"]).code
}

#[test]
fn a_full_disk_is_shown_as_recovering_with_its_cause() {
    let config = GOOD.to_owned()
        + "retry = { recovery_backoff = \"50ms\", recovery_backoff_max = \"200ms\", recoveries = 100000 }\n"
        + "breaker = { failures = 5, open_for = \"50ms\", open_max = \"200ms\" }\n\n"
        + &INTO_FILES.replace("\".\"", "\"small\"");
    let workspace = Workspace::with(&config);
    std::fs::create_dir(workspace.path("small")).expect("a folder can be made");
    // Filled up to the last block, but for what the fence of the files needs.
    let setup = "mount -t tmpfs -o size=64k small small && dd if=/dev/zero of=small/ballast bs=4k count=14 2>/dev/null";
    let mut running = Running::start(&mut workspace.command_after(setup, &["run"]));
    running.says(&["to=running"]);
    workspace.order(0..1);
    until("it is shown as running", || {
        let shown = orders(&workspace);
        shown["state"] == "running" && shown["checkpoint"]["changes"] == 1
    });
    workspace.run(&["check"]).assert_well();
    workspace.order(1..200);
    let is_reported = |shown: &Value| {
        let trouble = &shown["trouble"];
        shown["state"] == "recovering"
            && trouble["error"].as_str().is_some_and(|error| error.contains("full") || error.contains("space"))
            && trouble["attempts"].as_u64() > Some(1)
            && trouble["lasting_millis"].as_u64() > Some(1_000)
            && shown["undelivered_millis"].as_u64() > Some(1_000)
            && shown["lag_millis"].as_u64() > Some(0)
            && shown["lag_millis"].as_u64() >= shown["not_delivering_millis"].as_u64()
            && shown["not_delivering_millis"].as_u64() > Some(1_000)
    };
    until("it is told", || is_reported(&orders(&workspace)));
    // It is so all the time, and not only when somebody looks at the right moment.
    for _ in 0..10 {
        assert_eq!(orders(&workspace)["state"], "recovering", "{}", orders(&workspace));
    }
    let text = workspace.run(&["status"]).out;
    assert!(text.contains("orders: recovering on ") && text.contains("tried "), "{text}");
    assert!(text.contains("the oldest change that waits is "), "{text}");
    assert!(text.contains("  delivery     none for ") && text.contains(", since 20"), "{text}");
    let why = workspace.run(&["why", "orders"]).out;
    assert!(why.contains(" Delivery: none for ") && why.contains(", tried "), "{why}");
    assert!(text.contains("  lag          ") && !text.contains("  lag          0 ms"), "{text}");
    assert_eq!(code(&workspace), Some(3));
    assert_check_tells_of_it(&workspace);
    let ballast = format!("/proc/{}/root{}", running.pid(), workspace.path("small/ballast").display());
    std::fs::remove_file(ballast).expect("the ballast is there");
    until("it is well again", || {
        let shown = orders(&workspace);
        shown["state"] == "running" && shown["trouble"].is_null() && shown["checkpoint"]["changes"] == 200
    });
    assert!(
        orders(&workspace)["not_delivering_millis"].is_null() && orders(&workspace)["not_delivering_since"].is_null()
    );
    until("nothing waits", || orders(&workspace)["undelivered_millis"].is_null());
    assert_eq!(code(&workspace), Some(0));
    workspace.run(&["check"]).assert_well();
    running.says(&["INFO", "the stream delivers again", "after="]);
    running.ends_in_order();
    assert_no_repetition(&running.seen);
    let reopened = running.seen.iter().filter(|line| line.contains("from=recovering to=running")).count();
    assert_eq!(reopened, 0, "it was opened, and did not deliver: {:#?}", running.seen);
}

/// The check looks at another folder than the one that is full: only the running instance knows of it.
fn assert_check_tells_of_it(workspace: &Workspace) {
    let checked = workspace.run(&["check"]);
    assert_eq!(checked.code, Some(0), "{checked:?}");
    let is_trouble = |line: &&str| {
        line.starts_with("  warning: instance: ") && line.contains(" is recovering: ") && line.contains("tried ")
    };
    let line = checked.out.lines().find(is_trouble).unwrap_or_else(|| panic!("{checked:?}"));
    assert!(line.contains("full") || line.contains("space"), "{line}");
    assert!(line.ends_with("`watchkeeper status orders` shows whether it is over"), "{line}");
    assert!(checked.out.ends_with("the file is well, but an instance is in trouble\n"), "{checked:?}");
    let reported: Value = serde_json::from_str(&workspace.run(&["check", "--json"]).out).expect("it is JSON");
    let findings = reported["streams"][0]["findings"].as_array().expect("it is a list").clone();
    let is_trouble = |finding: &Value| finding["part"] == "instance" && finding["severity"] == "warning";
    assert!(findings.iter().any(is_trouble), "{reported}");
}

#[test]
fn a_standby_is_shown_as_one() {
    let workspace = Workspace::with(&format!("{GOOD}{INTO_FILES}"));
    let mut first = workspace.start("first");
    until("the first one runs", || orders(&workspace)["watch"]["name"] == "first");
    let mut second = workspace.start("second");
    until("both are told of", || {
        let shown = orders(&workspace);
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
fn a_failover_is_counted_before_the_next_commit() {
    let workspace = Workspace::with(&format!("{GOOD}{INTO_FILES}"));
    let mut first = workspace.start("first");
    workspace.order(0..1);
    until("it is committed", || orders(&workspace)["checkpoint"]["changes"] == 1);
    let mut second = workspace.start("second");
    until("the second one stands by", || orders(&workspace)["standing_by"][0] == "second");
    assert_eq!(orders(&workspace)["checkpoint"]["failovers"], 0);
    let handed = workspace.run(&["handoff", "orders"]);
    assert_eq!(handed.code, Some(0), "{handed:?}");
    until("it is counted, though there is nothing to commit", || orders(&workspace)["checkpoint"]["failovers"] == 1);
    workspace.order(1..2);
    until("another change is committed", || orders(&workspace)["checkpoint"]["changes"] == 2);
    assert_eq!(orders(&workspace)["checkpoint"]["failovers"], 1, "it is not counted twice");
    for count in 2..=3 {
        let handed = workspace.run(&["handoff", "orders"]);
        assert_eq!(handed.code, Some(0), "{handed:?}");
        until("it is counted", || orders(&workspace)["checkpoint"]["failovers"] == count);
    }
    second.ends_in_order();
    first.ends_in_order();
    assert!(orders(&workspace)["checkpoint"]["failovers"].as_u64() >= Some(3), "the count never falls");
    let mut third = workspace.start("third");
    workspace.order(2..3);
    until("it is committed", || orders(&workspace)["checkpoint"]["changes"] == 3);
    assert!(orders(&workspace)["checkpoint"]["failovers"].as_u64() >= Some(3), "nor after a commit of a later tenure");
    third.ends_in_order();
}

#[test]
fn machines_are_reported_by_the_exit_code() {
    let workspace = Workspace::with(&format!("{GOOD}{INTO_FILES}"));
    assert_eq!(code(&workspace), Some(2), "there is no store yet, or it is looked for in the wrong folder");
    let mut first = workspace.start("first");
    until("it runs", || orders(&workspace)["state"] == "running");
    assert_eq!(code(&workspace), Some(0));
    assert_eq!(orders(&workspace)["health"], "healthy");
    assert_eq!(workspace.run(&["pause", "orders"]).code, Some(0));
    assert_eq!(code(&workspace), Some(4), "nobody has it");
    let paused = orders(&workspace);
    assert!(paused["not_delivering_millis"].is_u64() && paused["not_delivering_since"].is_string(), "{paused}");
    assert!(paused["lag_millis"].is_null(), "what waits is not known: {paused}");
    assert_eq!(workspace.run(&["status"]).code, Some(0), "unless asked for it is no matter of the code");
    assert_eq!(workspace.run(&["resume", "orders"]).code, Some(0));
    until("it runs again", || orders(&workspace)["state"] == "running");
    let mut command = workspace.command();
    let gone = "WATCHKEEPER__STREAM__ORDERS__SINK__0__FOLDER";
    let mut second = Running::start(command.arg("run").env("WATCHKEEPER__INSTANCE__NAME", "second").env(gone, "gone"));
    until("one that cannot run it is told", || code(&workspace) == Some(3));
    second.ends_in_order();
    first.ends_in_order();
    assert_eq!(code(&workspace), Some(4), "nobody is there");
}
