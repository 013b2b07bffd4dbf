//! What is wrong with a file is found all at once, and without a connection.

use serde_json::Value;

use crate::workspace::{Answer, GOOD, INTO_FILES, Running, Workspace, answer};

/// Nobody answers there.
const NOWHERE: &str = "postgres://x@127.0.0.1:1/x";

fn good() -> String {
    format!("{GOOD}{INTO_FILES}")
}

/// Asserts that `check --offline`, `check` and `run` each refuse this file for this reason.
#[track_caller]
fn refused_by_all(config: &str, parts: &[&str]) -> Workspace {
    let workspace = Workspace::with(config);
    for command in [&["check", "--offline"][..], &["check"]] {
        says(&workspace.run(command), parts);
    }
    workspace.run(&["run"]).assert_refused(2, parts);
    assert!(!workspace.path("state.db").exists(), "nothing was begun");
    workspace
}

/// Asserts that one line of a check, wherever it stands, has these parts.
#[track_caller]
fn says(checked: &Answer, parts: &[&str]) {
    assert_eq!(checked.code, Some(2), "{checked:?}");
    let said = format!("{}{}", checked.out, checked.err);
    let line = said.lines().find(|line| parts.iter().all(|part| line.contains(part)));
    assert!(line.is_some_and(|line| line.contains("]; ")), "{parts:?} is not in: {said}");
}

#[test]
fn settings_of_a_backend_are_checked_although_no_server_answers() {
    let postgres = good()
        .replace("\"sqlite:app.db\"", &format!("{{ url = {NOWHERE:?}, mode = \"replication\", tabels = [\"a\"] }}"));
    let workspace =
        refused_by_all(&postgres, &["watchkeeper.toml:8: stream.orders.source.tabels", "did you mean \"tables\"?"]);
    workspace.write("watchkeeper.toml", &postgres.replace("tabels", "failover = 1, tabels"));
    for part in ["source.failover: this is a whole number", "source.tabels: there is no such setting"] {
        says(&workspace.run(&["check", "--offline"]), &["watchkeeper.toml:8: ", part]);
    }
    let mongodb = good().replace(
        "\"sqlite:app.db\"",
        "{ url = \"mongodb://127.0.0.1:1/x\", collection = \"orders\", full_documnt = \"required\" }",
    );
    refused_by_all(&mongodb, &["watchkeeper.toml:8: ", "full_documnt", "did you mean \"full_document\"?"]);
}

#[test]
fn all_errors_are_listed_with_their_lines() {
    let config = format!(
        "[group]\nname = \"shop\"\nstore = \"sqlite::memory:\"\nlaese = \"5s\"\nlease = \"100years\"\n\n\
         [[stream]]\nname = \"orders\"\nsource = {{ url = {NOWHERE:?}, tabels = [\"a\"] }}\nconcurrency = -1\n\
         start = \"2999-01-01T00:00:00Z\"\nbatch = {{ rows = 0 }}\nwindow = {{ size = 1 }}\nhistroy = 4\n\n\
         [[stream.sink]]\ntype = \"file\"\nfolder = 7\nfsync = \"rarely\"\nfilter = {{ operations = [] }}\n\n\
         [[stream]]\nname = \"users\"\nsource = \"sqlite:${{WATCHKEEPER_NOWHERE}}\"\n"
    );
    let workspace = Workspace::with(&config);
    let expected = [
        (3, "a database in memory"),
        (4, "group.laese"),
        (5, "the lease is longer than a day"),
        (9, "stream.orders.source.tabels"),
        (10, "stream.orders.concurrency: this number is negative"),
        (11, "stream.orders.start: this time is 9"),
        (12, "nothing may be read at once"),
        (13, "stream.orders.window.size: there is no such setting"),
        (14, "stream.orders.histroy"),
        (18, "stream.orders.sink[0].folder: this is a whole number"),
        (19, "stream.orders.sink[0].fsync"),
        (20, "nothing passes this filter"),
        (22, "stream \"users\" has no sink"),
        (24, "the variable WATCHKEEPER_NOWHERE is not set"),
    ];
    let checked = workspace.run(&["check", "--offline"]);
    assert_eq!(checked.code, Some(2), "{checked:?}");
    let lines: Vec<&str> = checked.err.lines().filter(|line| line.contains("error: ")).collect();
    assert_eq!(lines.len(), expected.len(), "{lines:#?}");
    for ((number, part), line) in expected.iter().zip(&lines) {
        assert!(line.contains(&format!("watchkeeper.toml:{number}: ")) && line.contains(part), "{part}: {line}");
        assert!(line.contains(" [WK-CONFIG]; "), "no remedy: {line}");
    }
    workspace
        .run(&["run"])
        .assert_refused(2, &["watchkeeper.toml:3: ", "13 more errors", "`watchkeeper check --offline`"]);
    assert!(!workspace.path("state.db").exists() && !workspace.path(":memory:").exists(), "nothing was begun");
}

#[test]
fn a_group_that_cannot_be_read_hides_nothing_of_its_streams() {
    let workspace =
        Workspace::with("[group]\nlease = \"long\"\n\n[[stream]]\nname = \"orders\"\nsuorce = \"sqlite:app.db\"\n");
    let checked = workspace.run(&["check", "--offline", "--json"]);
    assert_eq!(checked.code, Some(2), "{checked:?}");
    let reported: Value = serde_json::from_str(&checked.out).expect("it is JSON");
    let places: Vec<_> = reported["errors"].as_array().expect("a list").iter().map(|error| &error["place"]).collect();
    let lines = [1, 1, 2, 4, 6].map(|line| Value::from(format!("watchkeeper.toml:{line}")));
    assert_eq!(places, lines.iter().collect::<Vec<_>>(), "{reported:#}");
    assert_eq!(reported["error"], reported["errors"][0]);
    assert_eq!(checked.err.lines().count(), 5, "{checked:?}");
}

#[test]
fn a_good_file_is_good_although_nothing_is_there() {
    let workspace = Workspace::empty();
    let config = good().replace("sqlite:app.db", NOWHERE).replace("\".\"", "\"gone\"");
    workspace.write("watchkeeper.toml", &config);
    let checked = workspace.run(&["check", "--offline"]);
    assert_eq!(checked.code, Some(0), "{checked:?}");
    assert!(checked.out.contains("grade: fenced") && checked.out.contains("nothing was connected to"), "{checked:?}");
    let reported: Value =
        serde_json::from_str(&workspace.run(&["check", "--offline", "--json"]).out).expect("it is JSON");
    assert_eq!((&reported["ok"], &reported["offline"]), (&true.into(), &true.into()), "{reported:#}");
}

#[test]
fn a_check_goes_on_with_what_can_be_read() {
    let other =
        format!("\n[[stream]]\nname = \"users\"\nsource = {{ url = {NOWHERE:?}, tabels = [\"a\"] }}\n{INTO_FILES}");
    let workspace = Workspace::with(&format!("{}{other}", good().replace("\"sqlite:app.db\"", "\"sqlite:gone.db\"")));
    let checked = workspace.run(&["check"]);
    checked.assert_found(2, &["file: watchkeeper.toml:18: ", "tabels"]);
    checked.assert_found(2, &["source (sqlite): ", "gone.db"]);
}

#[test]
fn two_streams_that_write_the_same_files() {
    let other = "\n[[stream]]\nname = \"users\"\nsource = \"sqlite:app.db\"\n\
                 [[stream.sink]]\ntype = \"file\"\nfolder = \"./../{here}\"\nprefix = \"orders\"\n";
    let workspace = Workspace::with(&good());
    let here = workspace.path(".").canonicalize().expect("it is there");
    let other = other.replace("{here}", &here.file_name().expect("it has a name").to_string_lossy());
    workspace.write("watchkeeper.toml", &format!("{}{other}", good()));
    let parts = ["watchkeeper.toml:19: ", "the sink \"file\" of stream \"orders\" writes the files ", "`prefix`"];
    for command in [&["check", "--offline"][..], &["check"]] {
        workspace.run(command).assert_found(2, &parts);
    }
    workspace.run(&["run"]).assert_refused(2, &parts);
    workspace.write(
        "watchkeeper.toml",
        &format!("{}{}", good(), other.replace("prefix = \"orders\"", "prefix = \"users\"")),
    );
    assert_eq!(workspace.run(&["check", "--offline"]).code, Some(0));
}

#[test]
fn an_in_memory_store() {
    let config = good().replace("sqlite:state.db", "sqlite::memory:");
    refused_by_all(&config, &["watchkeeper.toml:3: ", "a database in memory is not shared", "name a file"]);
}

#[test]
fn a_filter_that_nothing_passes() {
    for name in ["operations", "namespaces"] {
        let config = format!("{}filter = {{ {name} = [] }}\n", good());
        refused_by_all(&config, &["watchkeeper.toml:15: ", &format!("filter.{name}: nothing passes this filter")]);
    }
}

#[test]
fn a_start_in_the_future() {
    let config = good().replace("\"oldest\"", "2999-01-01T00:00:00Z");
    refused_by_all(&config, &["watchkeeper.toml:9: stream.orders.start: ", "in the future", "\"now\""]);
}

#[test]
fn a_lease_of_a_hundred_years() {
    let config = good().replace("\"30s\"", "\"100years\"");
    refused_by_all(&config, &["watchkeeper.toml:4: ", "the lease is longer than a day", "or less"]);
}

#[test]
fn an_address_that_is_not_ours() {
    // Reserved for documentation, so nobody has it.
    let config = format!("{}[instance]\nlisten = \"192.0.2.1:0\"\n", good());
    let workspace = Workspace::with(&config);
    let parts = ["watchkeeper.toml:16: ", "192.0.2.1"];
    for command in [&["check", "--offline"][..], &["check"]] {
        workspace.run(command).assert_found(2, &parts);
    }
    workspace.run(&["run", "--log", "error"]).assert_refused(2, &parts);
}

#[test]
fn a_sink_into_what_its_own_stream_watches() {
    let into = |mode: &str, table: &str| {
        format!("{GOOD}[[stream.sink]]\nurl = \"sqlite:./app.db\"\nmode = \"{mode}\"\ntable = \"{table}\"\n")
    };
    for mode in ["events", "mirror"] {
        let parts = ["watchkeeper.toml:1", "the stream \"orders\" watches orders, which this sink writes to"];
        // Which tables are logged only the file itself knows.
        let workspace = Workspace::with(&into(mode, "Orders"));
        workspace.run(&["check"]).assert_found(2, &parts);
        workspace.run(&["run", "--log", "error"]).assert_refused(2, &parts);
        let named = "{ url = \"sqlite:app.db\", tables = [\"orders\"] }";
        refused_by_all(&into(mode, "orders").replace("\"sqlite:app.db\"", named), &parts);
        let workspace = Workspace::with(&into(mode, "events"));
        assert_eq!(workspace.run(&["check"]).code, Some(0), "another table of the same file is good");
    }
}

#[test]
fn a_level_to_log_at_that_nobody_knows() {
    let workspace = Workspace::with(&good());
    for word in ["warning", "watchkeeper_engine=chatty", "info,loud", ""] {
        workspace.run(&["check", "--log", word]).assert_refused(2, &["--log: ", "is no level", "error, warn, info"]);
    }
    for variable in ["WATCHKEEPER_LOG", "RUST_LOG"] {
        let refused = answer(workspace.command().arg("check").env(variable, "warning"));
        refused.assert_refused(2, &[&format!("{variable}: \"warning\" is no level")]);
    }
}

#[test]
fn variables_say_what_to_log() {
    let workspace = Workspace::with(&good());
    let reported = |variables: &[(&str, &str)]| {
        let mut command = workspace.command();
        Running::start(command.arg("run").envs(variables.iter().copied())).says(&["listening for peers"]);
    };
    reported(&[("RUST_LOG", "debug")]);
    reported(&[("WATCHKEEPER_LOG", "watchkeeper_peers=debug"), ("RUST_LOG", "error")]);
    // It ends by itself, since the address is taken, and all that it says then is why.
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("there is a free port");
    let address = taken.local_addr().expect("it is bound");
    workspace.write("watchkeeper.toml", &format!("{}[instance]\nlisten = \"{address}\"\n", good()));
    let lines = |variables: &[(&str, &str)], arguments: &[&str]| {
        let ended = answer(workspace.command().arg("run").args(arguments).envs(variables.iter().copied()));
        assert_eq!(ended.code, Some(2), "{ended:?}");
        ended.err.lines().count()
    };
    assert_eq!(lines(&[("WATCHKEEPER_LOG", "error"), ("RUST_LOG", "trace")], &[]), 1);
    assert_eq!(lines(&[("WATCHKEEPER_LOG", "trace")], &["--log", "error"]), 1);
}

#[test]
fn a_filter_that_names_none_of_the_listed_tables_is_found() {
    let filtered = |tables: &str, name: &str| {
        let source = format!("{{ url = \"sqlite:app.db\", tables = [{tables}] }}");
        let file = good().replace("\"sqlite:app.db\"", &source);
        Workspace::with(&format!("{file}filter = {{ namespaces = [\"{name}\"] }}\n")).run(&["check", "--offline"])
    };
    let checked = filtered("\"orders\"", "order");
    says(&checked, &["watchkeeper.toml:", "the filter names order, ", "the stream watches: orders"]);
    assert!(!checked.out.contains("the file is well"), "{checked:?}");
    // A name may lack its schema, be in another case, or stand for many; quotes may hide a dot.
    for (tables, name) in
        [("\"orders\"", "ORDERS"), ("\"orders\"", "main.orders"), ("\"orders\"", "sales.*"), ("'\"a.b\"'", "a.b")]
    {
        let checked = filtered(tables, name);
        assert_eq!(checked.code, Some(0), "{tables} and {name}: {checked:?}");
    }
}

#[test]
fn an_empty_file_lacks_a_group_and_a_stream() {
    let checked = Workspace::with("").run(&["check", "--offline"]);
    says(&checked, &["group: this table is missing"]);
    says(&checked, &["there is no stream in the file", "[[stream]]"]);
}

#[test]
fn a_misspelt_head_is_one_error() {
    let workspace = Workspace::with(&good().replace("[[stream]]", "[[streams]]"));
    let checked = workspace.run(&["check", "--offline"]);
    says(&checked, &["watchkeeper.toml:6: streams: there is no such setting", "did you mean \"stream\"?"]);
    let said = format!("{}{}", checked.out, checked.err);
    assert_eq!(said.lines().filter(|line| line.contains("error: ")).count(), 1, "{said}");
}
