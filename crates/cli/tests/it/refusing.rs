//! Bad input: each has a cause in one line and a remedy, and changes nothing.

use crate::workspace::{Answer, GOOD, INTO_FILES, Workspace};

/// Asserts that the answer is one line with cause and remedy.
fn assert_refused(answer: &Answer, code: i32, parts: &[&str]) {
    assert_eq!(answer.code, Some(code), "{answer:?}");
    let lines: Vec<_> = answer.err.lines().collect();
    let [line] = lines[..] else { panic!("more or less than one line: {answer:?}") };
    assert!(line.starts_with("error: ") && line.contains("]; "), "no remedy: {line}");
    for part in parts {
        assert!(line.contains(part), "{part:?} is not in: {line}");
    }
}

/// `run` and `check` with this configuration.
fn refuse(config: &str, code: i32, parts: &[&str]) {
    let workspace = Workspace::with(config);
    assert_refused(&workspace.run(&["run"]), code, parts);
    assert!(!workspace.path("state.db").exists(), "nothing was begun");
}

fn good() -> String {
    format!("{GOOD}{INTO_FILES}")
}

#[test]
fn no_file() {
    let workspace = Workspace::new();
    assert_refused(&workspace.run(&["run"]), 2, &["watchkeeper.toml: ", "`watchkeeper init`"]);
}

#[test]
fn broken_toml() {
    refuse(&good().replace("[[stream]]", "[[stream]"), 2, &["watchkeeper.toml:6: this is not TOML"]);
}

#[test]
fn an_unknown_key() {
    refuse(
        &good().replace("start =", "strat ="),
        2,
        &["watchkeeper.toml:9: stream.orders.strat", "did you mean \"start\"?"],
    );
}

#[test]
fn an_unknown_key_of_a_backend() {
    let workspace = Workspace::with(&format!("{}foldr = \"x\"\n", good()));
    let parts = ["watchkeeper.toml:15: stream.orders.sink[0].foldr", "no such setting"];
    workspace.run(&["run"]).assert_refused(2, &parts);
}

#[test]
fn an_unknown_variable() {
    let workspace = Workspace::with(&good());
    let refused = crate::workspace::answer(workspace.command().arg("run").env("WATCHKEEPER__GROUP__LAESE", "9s"));
    assert_refused(&refused, 2, &["WATCHKEEPER__GROUP__LAESE: group.laese", "did you mean \"lease\"?"]);
}

#[test]
fn a_lease_shorter_than_its_renewal() {
    let config = good().replace("lease = \"30s\"", "lease = \"1s\"\nrenew_every = \"2s\"");
    refuse(
        &config,
        2,
        &[
            "watchkeeper.toml:5: ",
            "the lease of 1s",
            "renewal interval of 2s",
            "a lease of 6s, or renewals every 333ms",
        ],
    );
}

#[test]
fn a_folder_that_does_not_exist() {
    let workspace = Workspace::with(&good().replace("\".\"", "\"gone/out\""));
    let folder = workspace.path(".").canonicalize().expect("it is there").join("gone/out");
    let remedy = format!("mount the volume that it is on, or make the folder {} anew", folder.display());
    let parts = ["watchkeeper.toml:14: the folder gone/out does not exist", &*remedy];
    // It is a matter of the stream that writes there: others run, and commands work.
    workspace.start("first").says(&parts);
    assert_eq!(workspace.run(&["status"]).code, Some(0));
    let checked = workspace.run(&["check"]);
    assert_eq!(checked.code, Some(2), "{checked:?}");
    assert!(parts.iter().all(|part| checked.out.contains(part)), "{checked:?}");
    workspace.write("file", "");
    workspace.write("watchkeeper.toml", &good().replace("\".\"", "\"file\""));
    workspace.start("second").says(&["watchkeeper.toml:14: the folder file is no folder"]);
}

#[test]
fn a_variable_that_breaks_a_relation() {
    let workspace = Workspace::with(&good());
    let name = "WATCHKEEPER__STREAM__ORDERS__CONCURRENCY";
    let refused = crate::workspace::answer(workspace.command().arg("run").env(name, "0"));
    assert_refused(&refused, 2, &["error: WATCHKEEPER__STREAM__ORDERS__CONCURRENCY: ", "write 1 to 1024"]);
}

#[test]
fn a_time_without_its_unit() {
    refuse(&good().replace("\"30s\"", "30"), 2, &["watchkeeper.toml:4: group.lease", "such as \"5s\""]);
}

#[test]
fn a_missing_database() {
    let workspace = Workspace::with(&good().replace("sqlite:app.db", "sqlite:gone.db"));
    let parts = ["watchkeeper.toml:8: ", "gone.db", "there is no such file", "correct the path"];
    workspace.run(&["check"]).assert_found(2, &parts[1..]);
    // It is a matter of the stream that reads it: others run, and commands work.
    workspace.start("first").says(&parts);
    assert_eq!(workspace.run(&["status"]).code, Some(0));
    assert!(!workspace.path("gone.db").exists(), "an application's database is not made");
}

#[test]
fn a_database_without_a_log() {
    let workspace = Workspace::new();
    workspace.write("watchkeeper.toml", &good());
    let parts = ["is logged", "watchkeeper sqlite install --db"];
    workspace.run(&["check"]).assert_found(2, &parts);
    // It is a matter of the stream that reads it: others run, and commands work.
    workspace.start("first").says(&parts);
    assert_eq!(workspace.run(&["status"]).code, Some(0));
}

#[test]
fn two_streams_of_one_name() {
    let config = format!(
        "{}\n[[stream]]\nname = \"orders\"\nsource = \"sqlite:app.db\"\n\
                 [[stream.sink]]\ntype = \"stdout\"\n",
        good()
    );
    refuse(
        &config,
        2,
        &["watchkeeper.toml:16: two streams are named \"orders\"", "watchkeeper.toml:6", "name them apart"],
    );
}

#[test]
fn no_stream_and_no_sink() {
    refuse("[group]\nname = \"shop\"\nstore = \"sqlite:state.db\"\n", 2, &["there is no stream", "[[stream]]"]);
    let workspace = Workspace::with(GOOD);
    assert_refused(&workspace.run(&["run"]), 2, &["watchkeeper.toml:6: ", "has no sink"]);
    let checked = workspace.run(&["check"]);
    assert_eq!(checked.code, Some(2));
    assert!(checked.out.contains("has no sink"), "{checked:?}");
}

#[test]
fn an_unknown_scheme_and_an_unknown_type() {
    let config = good().replace("sqlite:app.db", "oracle://db/x");
    refuse(&config, 2, &["watchkeeper.toml:8: ", "URLs that begin with \"oracle\"", "or sqlite:"]);
    let config = good().replace("type = \"file\"", "type = \"fiel\"");
    refuse(&config, 2, &["watchkeeper.toml:13: ", "\"fiel\"", "file, stdout, mongodb, postgres, sqlite"]);
}

#[test]
fn a_missing_variable_and_a_missing_file() {
    let config = good().replace("sqlite:state.db", "sqlite:${WATCHKEEPER_NOWHERE}");
    refuse(&config, 2, &["watchkeeper.toml:3: the variable WATCHKEEPER_NOWHERE is not set", "set it"]);
    let config = good().replace("sqlite:state.db", "sqlite:${file:nowhere}");
    refuse(&config, 2, &["watchkeeper.toml:3: the file nowhere", "create it"]);
}

#[test]
fn a_table_without_a_primary_key() {
    let workspace = Workspace::new();
    workspace.sql("CREATE TABLE heap(a, b)");
    let refused = workspace.run(&["sqlite", "install", "--db", "app.db", "--table", "heap"]);
    assert_refused(&refused, 2, &["the table heap", "no primary key", "give it a primary key"]);
}

#[test]
fn a_table_that_is_not_logged() {
    let workspace =
        Workspace::with(&good().replace("\"sqlite:app.db\"", "{ url = \"sqlite:app.db\", tables = [\"users\"] }"));
    let parts = ["the table users", "there is no such table", "create it first"];
    workspace.run(&["check"]).assert_found(2, &parts);
    // It is a matter of the stream that reads it: others run, and commands work.
    workspace.start("first").says(&parts);
    assert_eq!(workspace.run(&["status"]).code, Some(0));
    workspace.sql("CREATE TABLE users(id INTEGER PRIMARY KEY)");
    let parts = ["the table users is not logged", "app.db --table users"];
    workspace.run(&["check"]).assert_found(2, &parts);
    workspace.start("second").says(&parts);
}

#[test]
fn a_tool_without_its_arguments() {
    let workspace = Workspace::new();
    let refused = workspace.run(&["sqlite", "install", "--table", "orders"]);
    assert_eq!(refused.code, Some(2));
    assert!(refused.err.contains("--db"), "{refused:?}");
    let refused = workspace.run(&["sqlite", "install", "--db", "gone.db", "--table", "orders"]);
    assert_refused(&refused, 2, &["gone.db", "correct the path"]);
}

#[test]
fn a_code_that_nobody_knows() {
    let workspace = Workspace::new();
    assert_refused(&workspace.run(&["explain", "WK-NOTHING"]), 2, &["WK-NOTHING", "WK-CONFIG, WK-DENIED"]);
}

#[test]
fn an_address_that_is_taken() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("there is a free port");
    let address = taken.local_addr().expect("it is bound");
    let workspace = Workspace::with(&format!("{}[instance]\nlisten = \"{address}\"\n", good()));
    let refused = workspace.run(&["run", "--log", "error"]);
    assert_refused(&refused, 2, &["watchkeeper.toml:16: ", &address.to_string()]);
}
