//! From nothing to a stream that is relieved.

use rustix::process::Signal;

use crate::workspace::{GOOD, INTO_FILES, Running, Workspace, until};

#[test]
fn a_newcomer_comes_from_nothing_to_relief() {
    let workspace = Workspace::new();
    assert_eq!(workspace.run(&["init"]).code, Some(0));
    workspace.log_orders();
    let checked = workspace.run(&["check"]);
    assert_eq!(checked.code, Some(0), "the file that init writes is good: {checked:?}");

    let mut first = workspace.start("first");
    first.says(&["to=running", "stream=\"orders\"", "epoch=1"]);
    workspace.order(0..20);
    until("20 orders have arrived", || workspace.delivered().len() == 20);

    let mut second = workspace.start("second");
    second.says(&["standing by", "holder=\"first\"", "epoch=1"]);
    first.ends_in_order();
    second.says(&["to=running", "epoch=2"]);
    workspace.order(20..40);
    until("20 more have arrived", || workspace.delivered().len() >= 40);
    second.ends_in_order();
    assert_eq!(workspace.delivered(), Vec::from_iter(0..40), "all, once, in order");
    let waits = second.seen.iter().filter(|line| line.contains("standing by") && line.contains("holder")).count();
    assert_eq!(waits, 1, "it says once whom it waits for: {:#?}", second.seen);
}

#[test]
fn a_killed_holder_is_relieved_long_before_its_lease_expires() {
    let workspace = Workspace::with(&format!("{GOOD}{INTO_FILES}"));
    let mut first = workspace.start("first");
    first.says(&["to=running"]);
    workspace.order(0..5);
    until("they have arrived", || workspace.delivered().len() == 5);
    // A death can be proved only of a holder that has answered.
    let mut second = Running::start(workspace.command().args(["run", "--log", "info,watchkeeper_peers=debug"]));
    second.says(&["standing by", "holder=\"first\""]);
    second.says(&["the holder has answered"]);
    let begun = std::time::Instant::now();
    first.signal(Signal::KILL);
    second.says(&["to=running", "epoch=2"]);
    assert!(begun.elapsed().as_secs() < 20, "the lease is 30 s, relief took {:?}", begun.elapsed());
    workspace.order(5..10);
    until("all have arrived", || workspace.delivered().contains(&9));
    second.ends_in_order();
    let mut delivered = workspace.delivered();
    delivered.dedup();
    assert_eq!(delivered, Vec::from_iter(0..10), "nothing is lost and all is in order");
}

#[test]
fn a_file_that_is_there_is_not_overwritten() {
    let workspace = Workspace::new();
    workspace.write("watchkeeper.toml", "mine");
    let refused = workspace.run(&["init"]);
    assert_eq!(refused.code, Some(2));
    assert!(refused.err.contains("left as it is"), "{refused:?}");
    assert_eq!(std::fs::read_to_string(workspace.path("watchkeeper.toml")).expect("it is there"), "mine");
}

#[test]
fn a_transactional_target_keeps_the_checkpoint_itself() {
    let workspace = Workspace::with(&format!("{GOOD}[[stream.sink]]\nurl = \"sqlite:copy.db\"\ntable = \"copies\"\n"));
    let mut running = workspace.start("only");
    running.says(&["to=running"]);
    workspace.order(0..10);
    let copy = rusqlite::Connection::open(workspace.path("copy.db")).expect("the target is a database");
    let count = |sql: &str| copy.query_row(sql, [], |row| row.get::<_, i64>(0)).unwrap_or(0);
    until("all were copied", || count("SELECT count(*) FROM copies") == 10);
    running.ends_in_order();
    assert_eq!(count("SELECT count(*) FROM watchkeeper_checkpoints"), 1, "beside what it passes");
    let checked = workspace.run(&["check", "--json"]);
    let reported: serde_json::Value = serde_json::from_str(&checked.out).expect("it is JSON");
    assert_eq!(reported["streams"][0]["grade"], "transactional", "{checked:?}");
}

#[test]
fn variables_are_settings_too() {
    let workspace = Workspace::with(&format!("{GOOD}{INTO_FILES}prefix = \"wrong\"\n"));
    std::fs::create_dir(workspace.path("out")).expect("a folder can be made");
    let variables = [
        ("WATCHKEEPER__STREAM__ORDERS__SINK__0__FOLDER", "out"),
        ("WATCHKEEPER__STREAM__orders__SINK__FILE__PREFIX", "right"),
    ];
    let mut running = Running::start(workspace.command().arg("run").envs(variables));
    running.says(&["to=running"]);
    workspace.order(0..1);
    until("it has arrived", || workspace.path("out/right-000001.ndjson").exists());
    running.ends_in_order();
}
