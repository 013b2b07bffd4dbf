//! Commands that look and explain.

use serde_json::Value;

use crate::workspace::{GOOD, INTO_FILES, Workspace, until};

#[test]
fn a_check_changes_nothing_and_says_what_to_expect() {
    let workspace = Workspace::with(&format!("{GOOD}{INTO_FILES}"));
    let before = listing(&workspace);
    let checked = workspace.run(&["check"]);
    assert_eq!(checked.code, Some(0), "{checked:?}");
    for part in ["stream orders", "grade: fenced", "takeover after a crash: as soon as", "all is well"] {
        assert!(checked.out.contains(part), "{part:?} is not in {}", checked.out);
    }
    assert_eq!(listing(&workspace), before);
}

#[test]
fn a_check_tells_that_nothing_runs_or_nothing_that_could_take_over() {
    let workspace = Workspace::with(&format!("{GOOD}{INTO_FILES}"));
    let note = || {
        let checked = workspace.run(&["check"]);
        checked.assert_well();
        let lines: Vec<_> = checked.out.lines().filter(|line| line.contains("note: instances: ")).collect();
        assert!(lines.len() < 2, "{checked:?}");
        lines.first().map(|line| (*line).to_owned()).unwrap_or_default()
    };
    assert!(note().contains("no instance runs; start one with `watchkeeper run`"));
    let mut a = workspace.start("a");
    until("a runs", || note().contains("only a runs: no other instance would take over from it; start another one"));
    let mut b = workspace.start("b");
    until("both run", || note().is_empty());
    b.ends_in_order();
    assert!(note().contains("only a runs"));
    a.ends_in_order();
    assert!(note().contains("no instance runs"));
}

#[test]
fn a_check_tells_of_a_checkpoint_that_cannot_be_gone_on_from_and_of_a_halt() {
    // The checkpoint is in the group's store, or with its sink.
    for (sink, kept) in
        [(INTO_FILES, "state.db"), ("[[stream.sink]]\nurl = \"sqlite:out.db\"\ntable = \"events\"\n", "out.db")]
    {
        let workspace = Workspace::with(&format!("{GOOD}{sink}"));
        let mut only = workspace.start("only");
        workspace.order(1..2);
        let committed = || {
            let stored = rusqlite::Connection::open(workspace.path(kept)).expect("it can be opened");
            let sql = "SELECT count(*) FROM watchkeeper_checkpoints WHERE checkpoint LIKE '%\"changes\":1%'";
            stored.query_row(sql, [], |row| row.get::<_, i64>(0)).is_ok_and(|rows| rows == 1)
        };
        until("it is committed", committed);
        only.ends_in_order();
        let checked = workspace.run(&["check"]);
        assert_eq!(checked.code, Some(0), "{checked:?}");

        let gone = workspace.run(&["sqlite", "uninstall", "--db", "app.db", "--table", "orders", "--yes"]);
        assert_eq!(gone.code, Some(0), "{gone:?}");
        workspace.log_orders();
        let parts = ["another log than the one that answers now", "WK-POSITION-LOST", "move the checkpoint on purpose"];
        workspace.run(&["check"]).assert_found(1, &[&["position (sqlite): "][..], &parts].concat());
        let mut only = workspace.start("only");
        only.says(&parts);
        only.ends_in_order();
        workspace.run(&["check"]).assert_found(
            1,
            &["checkpoint (sqlite): the stream stands halted", "another log", "watchkeeper resume orders"],
        );
    }
}

#[test]
fn a_check_refuses_a_stream_that_began_in_another_store() {
    let into = |file: &str| format!("{GOOD}[[stream.sink]]\nurl = \"sqlite:{file}\"\ntable = \"events\"\n");
    let workspace = Workspace::with(&into("out.db"));
    let mut only = workspace.start("only");
    workspace.order(1..2);
    until("it is committed", || {
        let target = rusqlite::Connection::open(workspace.path("out.db")).expect("it can be opened");
        target.query_row("SELECT count(*) FROM events", [], |row| row.get::<_, i64>(0)).is_ok_and(|rows| rows == 1)
    });
    only.ends_in_order();
    // Another file; then a target that leaves the checkpoint to the group's store.
    for config in [into("other.db"), format!("{GOOD}{INTO_FILES}")] {
        workspace.write("watchkeeper.toml", &config);
        workspace.run(&["check"]).assert_found(2, &["but began in another one", "WK-CONFIG", "checkpoint show orders"]);
        assert!(!workspace.path("other.db").exists(), "a look makes nothing");
    }
    workspace.write("watchkeeper.toml", &into("out.db"));
    let checked = workspace.run(&["check"]);
    assert_eq!(checked.code, Some(0), "{checked:?}");
}

#[test]
fn a_start_that_the_source_does_not_know_is_found() {
    for (start, cause) in [("snapshot", "cannot begin with a snapshot"), ("1700000000:7", "has no operation times")] {
        let workspace = Workspace::with(&format!("{GOOD}{INTO_FILES}").replace("\"oldest\"", &format!("{start:?}")));
        let parts = ["watchkeeper.toml:9: ", cause, "WK-CONFIG"];
        for command in [&["check", "--offline"][..], &["check"]] {
            let checked = workspace.run(command);
            checked.assert_found(2, &parts);
            assert_eq!(checked.out.matches(cause).count(), 1, "it is told once: {checked:?}");
        }
        workspace.run(&["run", "--log", "error"]).assert_refused(2, &parts);
    }
    let lost = format!("{GOOD}{INTO_FILES}").replace("start =", "on_history_lost = \"snapshot\"\nstart =");
    let checked = Workspace::with(&lost).run(&["check", "--offline"]);
    checked.assert_found(2, &["watchkeeper.toml:9: ", "cannot begin with a snapshot"]);
}

fn listing(workspace: &Workspace) -> Vec<String> {
    let entries = std::fs::read_dir(workspace.path(".")).expect("the folder is there");
    let names = entries.map(|entry| entry.expect("it can be listed").file_name().to_string_lossy().into_owned());
    // SQLite's own helpers come and go with whoever reads.
    let mut names: Vec<_> = names.filter(|name| !name.ends_with("-shm") && !name.ends_with("-wal")).collect();
    names.sort();
    names
}

#[test]
fn a_check_finds_everything_at_once() {
    let workspace = Workspace::with(&format!("{GOOD}[[stream.sink]]\ntype = \"file\"\nfolder = \"gone\"\n"));
    workspace.sql("ALTER TABLE orders ADD COLUMN price INTEGER");
    let checked = workspace.run(&["check", "--json"]);
    assert_eq!(checked.code, Some(2), "{checked:?}");
    let reported: Value = serde_json::from_str(&checked.out).expect("it is JSON");
    assert_eq!(reported["ok"], false);
    let findings = reported["streams"][0]["findings"].as_array().expect("a list").clone();
    let severities: Vec<_> = findings.iter().map(|finding| finding["severity"].as_str().expect("a word")).collect();
    assert_eq!(severities, ["warning", "note", "error"], "{findings:?}");
    assert!(findings.iter().all(|finding| finding["remedy"].is_string()), "{findings:?}");
}

#[test]
fn nothing_is_promised_of_a_stream_that_cannot_run() {
    let workspace = Workspace::with(&format!("{GOOD}{INTO_FILES}").replace("sqlite:app.db", "sqlite:gone.db"));
    let checked = workspace.run(&["check"]);
    assert_eq!(checked.code, Some(2), "{checked:?}");
    assert!(checked.out.contains("gone.db") && checked.out.contains("there are errors"), "{checked:?}");
    assert!(!checked.out.contains("grade: ") && !checked.out.contains("takeover after"), "{checked:?}");
    let reported: Value = serde_json::from_str(&workspace.run(&["check", "--json"]).out).expect("it is JSON");
    let orders = &reported["streams"][0];
    assert!(orders["grade"].is_null() && orders["takeover"].is_null(), "{orders}");
}

#[test]
fn a_wrong_setting_is_reported_to_programs_too() {
    let workspace = Workspace::with(&format!("{GOOD}{INTO_FILES}").replace("\"30s\"", "\"5 lightyears\""));
    for command in [&["check", "--json"][..], &["status", "--json"], &["run", "--json"]] {
        let refused = workspace.run(command);
        assert_eq!(refused.code, Some(2), "{refused:?}");
        let reported: Value = serde_json::from_str(&refused.out).expect("it is JSON");
        let error = &reported["error"];
        assert_eq!((&error["code"], &error["place"]), (&"WK-CONFIG".into(), &"watchkeeper.toml:4".into()), "{error}");
        assert_eq!(error["message"], "group.lease: \"5 lightyears\" is not a time");
        assert!(error["remedy"].as_str().is_some_and(|remedy| remedy.contains("\"5s\"")), "{error}");
    }
    assert_eq!(workspace.run(&["check"]).out, "", "people are told on standard error");
}

#[test]
fn a_plain_target_is_said_to_be_exposed() {
    let workspace = Workspace::with(&format!("{GOOD}[[stream.sink]]\ntype = \"stdout\"\n"));
    let checked = workspace.run(&["check"]);
    assert!(checked.out.contains("grade: plain") && checked.out.contains("may come twice"), "{checked:?}");
    assert!(checked.out.contains("on the same machine"), "{checked:?}");
    let workspace =
        Workspace::with(&format!("{GOOD}[[stream.sink]]\ntype = \"stdout\"\n[instance]\nlisten = \"off\"\n"));
    let checked = workspace.run(&["check"]);
    assert!(checked.out.contains("when the lease of 30s has expired"), "{checked:?}");
}

#[test]
fn every_code_is_explained() {
    let workspace = Workspace::new();
    let explained = workspace.run(&["explain", "--json"]);
    let pages: Value = serde_json::from_str(&explained.out).expect("it is JSON");
    assert_eq!(pages.as_array().map(Vec::len), Some(9));
    for page in pages.as_array().expect("a list") {
        let code = page["code"].as_str().expect("a code");
        let reported = workspace.run(&["explain", code]);
        assert_eq!(reported.code, Some(0));
        assert!(reported.out.starts_with(code) && reported.out.contains("What to do: "), "{reported:?}");
    }
    assert!(workspace.run(&["explain", "fenced"]).out.starts_with("WK-FENCED"));
}

#[test]
fn shells_complete_the_commands_of_backends_too() {
    let workspace = Workspace::new();
    for shell in ["bash", "zsh", "fish"] {
        let script = workspace.run(&["completions", shell]);
        assert_eq!(script.code, Some(0));
        assert!(script.out.contains("uninstall"), "{shell}");
    }
}

#[test]
fn tools_answer_in_json_and_the_help_lists_the_exit_codes() {
    let workspace = Workspace::new();
    let installed = workspace.run(&["sqlite", "install", "--db", "app.db", "--table", "orders", "--json"]);
    let reported: Value = serde_json::from_str(&installed.out).expect("it is JSON");
    assert_eq!(reported, serde_json::json!({ "logged": ["orders"] }));
    let help = workspace.run(&["--help"]);
    assert!(help.out.contains("143  ended at once by a second SIGTERM"), "{help:?}");
}

#[test]
fn the_settings_in_the_guide_are_accepted() {
    let guide = include_str!("../../../../docs/guide/configuration.md");
    let (_, rest) = guide.split_once("```toml\n").expect("the guide shows a file");
    let (file, _) = rest.split_once("```").expect("the file has an end");
    let workspace = Workspace::with(file);
    let checked = workspace.run(&["check"]);
    assert_eq!(checked.code, Some(0), "{checked:?}");
}

#[test]
fn a_filter_that_names_nothing_is_warned_of() {
    for (name, warned) in [("ORDERS", false), ("orders.*", false), ("order", true)] {
        let filter = format!("filter = {{ namespaces = [{name:?}] }}\n");
        let checked = Workspace::with(&format!("{GOOD}{INTO_FILES}{filter}")).run(&["check"]);
        assert_eq!(checked.code, Some(0), "{checked:?}");
        assert_eq!(checked.out.contains("its filter names"), warned, "{checked:?}");
        let reported = "names order, and the stream watches nothing of that name; what it watches: orders";
        assert_eq!(checked.out.contains(reported), warned, "{checked:?}");
    }
}
