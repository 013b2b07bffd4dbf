//! Secrets do not appear in anything that the program says.

use crate::workspace::{GOOD, INTO_FILES, Running, Workspace, answer};

const SECRET: &str = "s3cret-of-the-shop";

fn assert_silent(texts: &[String]) {
    let reported = texts.join("\n");
    assert!(!reported.is_empty(), "there was something to say");
    assert!(!reported.contains(SECRET), "{reported}");
}

#[test]
fn a_password_in_a_url_that_nobody_understands() {
    let workspace = Workspace::with(
        &format!("{GOOD}{INTO_FILES}").replace("sqlite:app.db", &format!("oracle://ann:{SECRET}@db/x")),
    );
    for arguments in [&["run", "--log", "trace"][..], &["check"], &["check", "--json"]] {
        let reported = workspace.run(arguments);
        assert_eq!(reported.code, Some(2));
        assert_silent(&[reported.out, reported.err]);
    }
}

#[test]
fn what_a_variable_stands_for() {
    // In a place that everything shows: a file that cannot be opened.
    let workspace =
        Workspace::with(&format!("{GOOD}{INTO_FILES}").replace("sqlite:app.db", "sqlite:${SHOP_SECRET}.db"));
    let mut running = Running::start(workspace.command().args(["run", "--log", "trace"]).env("SHOP_SECRET", SECRET));
    running.says(&["***"]);
    running.ends_in_order();
    assert_silent(&running.seen);
    for arguments in [&["check"][..], &["check", "--json"]] {
        let reported = answer(workspace.command().args(arguments).env("SHOP_SECRET", SECRET));
        assert_eq!(reported.code, Some(2));
        assert!((reported.out.clone() + &reported.err).contains("***"), "{reported:?}");
        assert_silent(&[reported.out, reported.err]);
    }
}

#[test]
fn what_a_file_holds_in_the_logs_of_a_running_stream() {
    let config = format!("{GOOD}[[stream.sink]]\ntype = \"file\"\nfolder = \"${{file:secret.txt}}\"\n");
    let workspace = Workspace::with(&config);
    workspace.write("secret.txt", &format!("{SECRET}\n"));
    // The folder is there, and yet no file can be opened in it.
    std::fs::create_dir_all(workspace.path(SECRET).join("orders-000001.ndjson")).expect("a folder can be made");
    let mut running = Running::start(workspace.command().args(["run", "--log", "trace"]));
    running.says(&["***"]);
    running.ends_in_order();
    assert_silent(&running.seen);
}

#[test]
fn a_password_in_a_variable() {
    let workspace = Workspace::with(&format!("{GOOD}{INTO_FILES}"));
    let url = format!("oracle://ann:{SECRET}@db/x");
    let reported = answer(workspace.command().arg("run").env("WATCHKEEPER__GROUP__STORE", url));
    assert_eq!(reported.code, Some(2));
    assert_silent(&[reported.out, reported.err]);
}
