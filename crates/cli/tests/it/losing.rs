//! A checkpoint that is removed or damaged: the stream halts, and everything else keeps working.

use serde_json::Value;

use crate::workspace::{GOOD, INTO_FILES, Running, Workspace, until};

/// Two streams that begin with what happens from now on, and the store that their checkpoints are in.
pub(crate) struct Case<'a> {
    pub(crate) workspace: &'a Workspace,
    /// What is done to the checkpoint of `orders`.
    pub(crate) damage: &'a dyn Fn(),
    /// What is said of it.
    pub(crate) reported: &'a str,
}

impl Case<'_> {
    /// Damages the checkpoint while nobody runs the stream, and has a person decide where it goes on.
    pub(crate) fn halts_until_a_person_decides(
        &self,
        order: impl Fn(std::ops::Range<u64>),
        delivered: impl Fn() -> Vec<u64>,
    ) {
        let workspace = self.workspace;
        let mut only = workspace.start("only");
        until("the stream is open", || shown(workspace)["checkpoint"]["position"].is_string());
        order(0..3);
        until("they arrive", || delivered() == [0, 1, 2]);
        only.ends_in_order();
        let position = newest_position(workspace);
        order(3..6);
        (self.damage)();

        let checked = workspace.run(&["check"]);
        assert_ne!(checked.code, Some(0), "{checked:?}");
        assert!(checked.out.contains(self.reported) && checked.out.contains(&position), "{checked:?}");
        checked.assert_found(1, &["the stream will halt when it runs next", "checkpoint reset orders"]);
        assert!(!checked.out.contains("watchkeeper resume"), "{checked:?}");
        assert_eq!(shown(workspace)["state"], "halted", "{}", shown(workspace));
        let mut only = workspace.start("only");
        only.says(&["halted until a person resumes it", self.reported, &position, "checkpoint set orders"]);
        only.says(&["to=stopped"]);
        let status = workspace.run(&["status"]);
        assert_eq!(status.code, Some(0), "{status:?}");
        assert!(status.out.contains(self.reported), "{status:?}");
        assert!(status.out.contains("  position     lost\n"), "{status:?}");
        until("the instance says that it is halted", || {
            let text = workspace.run(&["status"]).out;
            text.contains(", halted: orders, version ") && !text.contains("standing by") && !text.contains("stands by")
        });
        let planned = workspace.run(&["checkpoint", "set", "orders", &position]);
        assert!(planned.err.contains(" The cause of the halt: "), "{planned:?}");
        let halted = shown(workspace);
        assert!(halted["not_delivering_millis"].is_u64() && halted["lag_millis"].is_null(), "{halted}");
        let resumed = workspace.run(&["resume", "orders", "--wait", "1s"]);
        resumed.assert_refused(
            1,
            &["halts again at once", self.reported, &format!("watchkeeper checkpoint set orders {position}`")],
        );
        only.says(&["halted until a person resumes it"]);
        assert_eq!(delivered(), [0, 1, 2], "nothing is passed over");

        let set = workspace.run(&["checkpoint", "set", "orders", &position, "--yes"]);
        assert_eq!(set.code, Some(0), "{set:?}");
        until("it goes on", || delivered() == [0, 1, 2, 3, 4, 5]);
        only.ends_in_order();
    }

    /// Damages the checkpoint under a running stream.
    pub(crate) fn halts_a_running_stream(
        &self,
        order: impl Fn(std::ops::Range<u64>),
        delivered: impl Fn() -> Vec<u64>,
    ) {
        let workspace = self.workspace;
        let mut only = workspace.start("only");
        until("the stream is open", || shown(workspace)["checkpoint"]["position"].is_string());
        order(0..3);
        until("they arrive", || delivered() == [0, 1, 2]);
        until("they are committed", || shown(workspace)["checkpoint"]["changes"] == 3);
        (self.damage)();
        order(3..6);
        only.says(&["halted until a person resumes it", self.reported]);
        assert_honest(&only);
        let resumed = workspace.run(&["resume", "orders"]);
        assert_eq!(resumed.code, Some(0), "{resumed:?}");
        until("everything is there", || (0..6).all(|id| delivered().contains(&id)));
        only.ends_in_order();
    }
}

fn assert_honest(running: &Running) {
    assert!(!running.seen.iter().any(|line| line.contains("newer epoch")), "{:#?}", running.seen);
}

/// The stream as `status` shows it.
fn shown(workspace: &Workspace) -> Value {
    let status = workspace.run(&["status", "--json"]);
    assert_eq!(status.code, Some(0), "{status:?}");
    let all: Value = serde_json::from_str(&status.out).expect("it is JSON");
    all["streams"][0].clone()
}

fn newest_position(workspace: &Workspace) -> String {
    let history = workspace.run(&["checkpoint", "history", "orders", "--json"]);
    let reported: Value = serde_json::from_str(&history.out).expect("it is JSON");
    reported["checkpoints"][0]["position"].as_str().expect("there is one").to_owned()
}

fn from_now() -> Workspace {
    let now = GOOD.replace("start = \"oldest\"", "start = \"now\"");
    Workspace::with(&format!("{now}{INTO_FILES}"))
}

fn store(workspace: &Workspace, sql: &str) {
    let store = rusqlite::Connection::open(workspace.path("state.db")).expect("the store is a database");
    store.busy_timeout(crate::workspace::PATIENCE).expect("a time-out can be set");
    store.execute_batch(sql).expect("the statements are good");
}

#[test]
fn a_checkpoint_in_sqlite_that_is_missing_or_damaged_halts_its_stream() {
    for (sql, reported) in [
        ("DELETE FROM watchkeeper_checkpoints", "is missing"),
        (
            "DELETE FROM watchkeeper_checkpoints; DELETE FROM watchkeeper_records WHERE name = 'shop/home/orders'",
            "is missing",
        ),
        ("UPDATE watchkeeper_checkpoints SET checkpoint = NULL", "is missing"),
        ("UPDATE watchkeeper_checkpoints SET checkpoint = 'x'", "cannot be read"),
        ("UPDATE watchkeeper_checkpoints SET checkpoint = json_remove(checkpoint, '$.position')", "has no position"),
        (
            "UPDATE watchkeeper_checkpoints SET checkpoint = json_replace(checkpoint, '$.position', NULL)",
            "has no position",
        ),
    ] {
        let workspace = from_now();
        let case = Case { workspace: &workspace, damage: &|| store(&workspace, sql), reported };
        case.halts_until_a_person_decides(|ids| workspace.order(ids), || workspace.delivered());
    }
}

#[test]
fn a_checkpoint_in_sqlite_that_is_removed_under_a_running_stream_is_reported_as_that() {
    let workspace = from_now();
    let damage = || store(&workspace, "DELETE FROM watchkeeper_checkpoints");
    let case = Case { workspace: &workspace, damage: &damage, reported: "was removed" };
    case.halts_a_running_stream(|ids| workspace.order(ids), || workspace.delivered());
}

#[test]
fn a_stream_is_reset_by_a_person_only() {
    let workspace = from_now();
    let mut only = workspace.start("only");
    until("the stream is open", || shown(&workspace)["checkpoint"]["position"].is_string());
    workspace.order(0..1);
    until("it arrives", || workspace.delivered() == [0]);
    only.ends_in_order();
    store(&workspace, "DELETE FROM watchkeeper_checkpoints");
    workspace.order(1..2);
    let reset = workspace.run(&["checkpoint", "reset", "orders", "--yes"]);
    assert_eq!(reset.code, Some(0), "{reset:?}");
    let mut only = workspace.start("only");
    until("the stream is open", || shown(&workspace)["checkpoint"]["position"].is_string());
    workspace.order(2..3);
    until("it begins anew, as its settings say", || workspace.delivered() == [0, 2]);
    only.ends_in_order();
    let ledger = workspace.run(&["dead-letters", "list", "orders", "--all"]);
    assert!(ledger.out.contains("an operator reset the checkpoint"), "{ledger:?}");
}

#[test]
fn a_check_hints_at_a_checkpoint_that_nothing_proves_any_more() {
    let workspace = from_now();
    let mut only = workspace.start("only");
    until("the stream is open", || shown(&workspace)["checkpoint"]["position"].is_string());
    only.ends_in_order();
    workspace.run(&["check"]).assert_well();
    store(
        &workspace,
        "DELETE FROM watchkeeper_checkpoints; DELETE FROM watchkeeper_records WHERE name = 'shop/home/orders';
         DELETE FROM watchkeeper_logs WHERE name LIKE 'shop/history/%'",
    );
    let checked = workspace.run(&["check"]);
    assert_eq!(checked.code, Some(0), "{checked:?}");
    let is_hint = |line: &str| {
        line.starts_with(
            "  warning: checkpoint (sqlite): there is none, although only ran the stream under epoch 1 at ",
        ) && line.ends_with("watchkeeper checkpoint set orders POSITION")
    };
    assert!(checked.out.lines().any(is_hint), "{checked:?}");
}

#[test]
fn commands_work_for_a_second_stream_next_to_one_with_a_damaged_checkpoint() {
    let other = "\n[[stream]]\nname = \"other\"\nsource = \"sqlite:app.db\"\nstart = \"oldest\"\n\
        checkpoint = { every = \"50ms\" }\n\n[[stream.sink]]\ntype = \"file\"\nfolder = \".\"\nprefix = \"other\"\n";
    let workspace = Workspace::with(&format!("{GOOD}{INTO_FILES}{other}"));
    let mut only = workspace.start("only");
    workspace.order(0..3);
    let of = |name: &str| {
        let status = workspace.run(&["status", "--json"]);
        assert_eq!(status.code, Some(0), "{status:?}");
        let all: Value = serde_json::from_str(&status.out).expect("it is JSON");
        all["streams"].as_array().expect("a list").iter().find(|stream| stream["name"] == name).expect("listed").clone()
    };
    until("both have committed", || ["orders", "other"].iter().all(|name| of(name)["checkpoint"]["changes"] == 3));
    only.ends_in_order();
    let other_is = |state: &str| of("other")["state"] == state;
    store(&workspace, "UPDATE watchkeeper_checkpoints SET checkpoint = 'x' WHERE key = 'shop/orders/0/0'");
    assert!(of("orders")["state"] == "halted" && other_is("unmanned"), "{}", of("orders"));

    let set = workspace.run(&["checkpoint", "set", "other", "0000000000000001", "--yes"]);
    assert_eq!(set.code, Some(0), "{set:?}");
    assert_eq!(of("other")["checkpoint"]["position"], "0000000000000001");
    let mut only = workspace.start("only");
    only.says(&["halted until a person resumes it", "cannot be read"]);
    let delivered = || {
        let text = std::fs::read_to_string(workspace.path("other-000001.ndjson")).unwrap_or_default();
        crate::workspace::ids(&text)
    };
    until("the other one delivers again", || delivered() == [0, 1, 2, 1, 2]);
    for (command, state) in [("pause", "paused"), ("resume", "running")] {
        let answer = workspace.run(&[command, "other"]);
        assert_eq!(answer.code, Some(0), "{answer:?}");
        until("it is so", || other_is(state));
    }
    assert_eq!(of("orders")["state"], "halted");
    assert_eq!(workspace.delivered(), [0, 1, 2]);
    only.ends_in_order();
}
