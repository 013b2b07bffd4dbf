//! Messages that name the right cause and remedy, and how the program behaves at its edges.

use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;

use crate::workspace::{GOOD, INTO_FILES, Running, Workspace, answer, ids, until};

const PROGRAM: &str = env!("CARGO_BIN_EXE_watchkeeper");

fn good() -> String {
    format!("{GOOD}{INTO_FILES}")
}

/// Runs a line of a shell in which `$0` is the program.
fn shell(workspace: &Workspace, line: &str) -> crate::workspace::Answer {
    answer(Command::new("bash").current_dir(workspace.path(".")).args(["-o", "pipefail", "-c", line, PROGRAM]))
}

#[test]
fn a_full_group_says_which_setting_to_raise() {
    let workspace = Workspace::with(&good().replace("lease =", "max_instances = 1\nlease ="));
    let mut first = workspace.start("first");
    first.says(&["to=running"]);
    let refused =
        answer(workspace.command().args(["run", "--log", "error"]).env("WATCHKEEPER__INSTANCE__NAME", "second"));
    refused.assert_refused(2, &["takes 1 instances", "raise max_instances"]);
    first.ends_in_order();
}

#[test]
fn settings_say_what_to_write() {
    for (config, parts) in [
        (good().replace("[[stream.sink]]", "[stream.sink]"), &["stream.orders.sink", "headed [[stream.sink]]"][..]),
        (good().replace("start =", "concurrency = -1\nstart ="), &["concurrency: this number is negative", "positive"]),
        (good().replace("start =", "window = { size = 1 }\nstart ="), &["window.size", "known here: bytes, pieces"]),
    ] {
        Workspace::with(&config).run(&["run"]).assert_refused(2, parts);
    }
}

#[test]
fn a_file_that_is_no_text_and_a_folder_have_remedies_of_their_own() {
    let workspace = Workspace::new();
    std::fs::write(workspace.path("watchkeeper.toml"), [b'#', 0xff, 0xfe]).expect("it can be written");
    workspace.run(&["run"]).assert_refused(2, &["watchkeeper.toml: ", "save it as UTF-8"]);
    workspace.run(&["run", "--config", "."]).assert_refused(2, &["directory", "name the file in it with --config"]);
}

#[test]
fn a_store_that_is_a_folder() {
    let workspace = Workspace::with(&good().replace("sqlite:state.db", "sqlite:."));
    let parts = ["watchkeeper.toml:3: ", "this is a folder, not a file", "WK-CONFIG", "name a file in it"];
    workspace.run(&["check"]).assert_found(2, &parts);
    workspace.run(&["run", "--log", "error"]).assert_refused(2, &parts);
}

#[test]
fn a_folder_that_cannot_be_written_has_one_code() {
    let workspace = Workspace::with(&good().replace("sqlite:state.db", "sqlite:locked/state.db"));
    std::fs::create_dir(workspace.path("locked")).expect("it can be made");
    let setup = "mount --bind locked locked && mount -o remount,bind,ro locked";
    let parts = ["locked/state.db", "WK-DENIED", "make the file and its folder writable"];
    answer(&mut workspace.command_after(setup, &["check"])).assert_found(1, &parts);
    answer(&mut workspace.command_after(setup, &["run", "--log", "error"])).assert_refused(1, &parts);
}

#[test]
fn a_sink_folder_that_cannot_be_written_has_one_code() {
    let workspace = Workspace::with(&format!("{GOOD}[[stream.sink]]\ntype = \"file\"\nfolder = \"locked\"\n"));
    std::fs::create_dir(workspace.path("locked")).expect("it can be made");
    let setup = "mount --bind locked locked && mount -o remount,bind,ro locked";
    let reported = "the file system is read-only [WK-DENIED]; mount it for writing";
    answer(&mut workspace.command_after(setup, &["check"]))
        .assert_found(1, &["sink file (file): ", "locked", reported]);
    let mut running = Running::start(&mut workspace.command_after(setup, &["run"]));
    running.says(&["locked", reported]);
    running.ends_in_order();
}

#[test]
fn a_sink_folder_that_was_removed_is_named_and_delivery_goes_on_when_it_is_back() {
    let file = GOOD.replace("lease = \"30s\"", "lease = \"30s\"\nbar = \"1s\"");
    let workspace = Workspace::with(&format!("{file}[[stream.sink]]\ntype = \"file\"\nfolder = \"out\"\n"));
    std::fs::create_dir(workspace.path("out")).expect("it can be made");
    let mut only = workspace.start("only");
    only.says(&["to=running"]);
    std::fs::remove_dir_all(workspace.path("out")).expect("it can be removed");
    workspace.order(0..1);
    let folder = workspace.path(".").canonicalize().expect("it is there").join("out").display().to_string();
    let line = only.says(&[&folder, "the folder does not exist", "mount the volume that it is on, or make the folder"]);
    assert!(!line.contains("WK-FENCED"), "{line}");
    std::fs::create_dir(workspace.path("out")).expect("it can be made again");
    let arrived = || std::fs::read_to_string(workspace.path("out/orders-000001.ndjson")).unwrap_or_default();
    until("the order arrives", || arrived().lines().count() >= 1);
    // It comes back while the stream runs, so that only new files tell that the old ones are gone.
    std::fs::remove_dir_all(workspace.path("out")).expect("it can be removed");
    std::fs::create_dir(workspace.path("out")).expect("it can be made again");
    workspace.order(1..2);
    until("the next one arrives", || ids(&arrived()).contains(&1));
    only.ends_in_order();
    let fenced = only.seen.iter().find(|line| line.contains("newer epoch") || line.contains("holder=\"only\""));
    assert_eq!(fenced, None, "nobody else was there");
}

#[test]
fn a_violated_constraint_is_no_damage() {
    let workspace = Workspace::with(&format!("{GOOD}[[stream.sink]]\nurl = \"sqlite:out.db\"\ntable = \"events\"\n"));
    let mut only = workspace.start("only");
    only.says(&["to=running"]);
    until("the table is there", || {
        let target = rusqlite::Connection::open(workspace.path("out.db")).expect("it can be opened");
        let sql =
            "CREATE TRIGGER refuse BEFORE INSERT ON events BEGIN SELECT RAISE(ABORT, 'CHECK constraint failed'); END";
        target.execute_batch(sql).is_ok()
    });
    workspace.order(0..1);
    let halted = only.says(&["halted", "rejected change"]);
    assert!(halted.contains("WK-REJECTED") && halted.contains("violates a constraint of the table"), "{halted}");
    assert!(!halted.contains("WK-CORRUPT") && !halted.contains("WK-INTERNAL"), "{halted}");
    only.ends_in_order();
    assert!(workspace.run(&["explain", "WK-REJECTED"]).out.contains("watchkeeper skip"));
}

#[test]
fn an_answer_of_no_is_no_error() {
    let workspace = Workspace::with(&good());
    workspace.start("only").says(&["to=running"]);
    // `script` gives it a terminal to ask at.
    let line = "echo n | script -qec \"$0 checkpoint reset orders\" /dev/null";
    let declined = shell(&workspace, line);
    assert_eq!(declined.code, Some(1), "{declined:?}");
    assert!(declined.out.contains("not confirmed: nothing was changed"), "{declined:?}");
    assert!(!declined.out.contains("WK-") && !declined.out.contains("error:"), "{declined:?}");
}

#[test]
fn a_reader_that_goes_is_no_panic_and_a_full_disk_is_an_error() {
    let workspace = Workspace::with(&good());
    for shell_name in ["bash", "zsh"] {
        // The pipe is closed before anything is written.
        let line = format!("{{ sleep 0.2; \"$0\" completions {shell_name}; }} | true; exit ${{PIPESTATUS[0]}}");
        let ended = shell(&workspace, &line);
        assert_eq!((ended.code, ended.err.as_str()), (Some(0), ""), "{ended:?}");
    }
    workspace.start("only").says(&["to=running"]);
    let full = shell(&workspace, "\"$0\" status --json >/dev/full");
    full.assert_refused(1, &["cannot be written to standard output", "make room"]);
    let full = shell(&workspace, "\"$0\" completions bash >/dev/full");
    full.assert_refused(1, &["cannot be written to standard output"]);
    workspace.order(1..2);
    let full = shell(&workspace, "\"$0\" tail orders --from oldest --max 1 >/dev/full");
    full.assert_refused(1, &["cannot be written to standard output", "No space left", "make room"]);
}

#[test]
fn a_hangup_drains_and_releases_unless_it_is_ignored() {
    let workspace = Workspace::with(&good());
    // Whoever runs the tests may have it ignored, which programs inherit.
    let mut command = Command::new("env");
    command.current_dir(workspace.path(".")).args(["--default-signal=HUP", PROGRAM, "run"]);
    let mut running = Running::start(&mut command);
    running.says(&["to=running"]);
    workspace.order(0..50);
    running.signal(Signal::HUP);
    assert_eq!(running.ends(), Some(0), "{:#?}", running.seen);
    assert!(running.seen.iter().any(|line| line.contains("released everything")), "{:#?}", running.seen);

    let mut next = Running::start(Command::new("nohup").current_dir(workspace.path(".")).args([PROGRAM, "run"]));
    next.says(&["to=running"]);
    until("all have arrived", || workspace.delivered().len() >= 50);
    assert_eq!(workspace.delivered(), Vec::from_iter(0..50), "what was drained does not come again");
    next.signal(Signal::HUP);
    workspace.order(50..51);
    until("it still runs", || workspace.delivered().len() == 51);
    next.ends_in_order();
}

#[test]
fn a_run_ends_when_nobody_reads_its_changes() {
    let workspace = Workspace::with(&format!("{GOOD}[[stream.sink]]\ntype = \"stdout\"\n"));
    workspace.order(0..1);
    let mut child =
        workspace.command().arg("run").stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
    let mut first = String::new();
    let mut out = BufReader::new(child.stdout.take().expect("it is piped"));
    out.read_line(&mut first).expect("it can be read");
    assert!(first.contains("\"rope\""), "{first}");
    drop(out);
    until("it has ended", || child.try_wait().expect("it is our child").is_some());
    let mut said = String::new();
    child.stderr.take().expect("it is piped").read_to_string(&mut said).expect("it can be read");
    assert!(said.contains("draining and releasing") && said.contains("closed standard output"), "{said}");
}

#[test]
fn the_content_of_changes_is_shown_when_it_is_asked_for() {
    let workspace = Workspace::with(&good());
    workspace.start("only").says(&["to=running"]);
    workspace.order(7..8);
    let tail = ["tail", "orders", "--from", "oldest", "--max", "1"];
    assert!(!workspace.run(&tail).out.contains("rope"), "not by itself");
    let shown = workspace.run(&[&tail[..], &["--content"]].concat());
    assert!(shown.out.contains("\"item\":\"rope\""), "{shown:?}");
    let shown = workspace.run(&[&tail[..], &["--content", "--json"]].concat());
    let line: Value = serde_json::from_str(shown.out.lines().next().expect("a line")).expect("it is JSON");
    assert!(line["content"].to_string().contains("\"item\":\"rope\""), "{line:#}");

    let sink = "[[stream.sink]]\nurl = \"sqlite:out.db\"\ntable = \"events\"\non_reject = \"dead_letter\"\n";
    let workspace = Workspace::with(&format!("{GOOD}{sink}"));
    let target = rusqlite::Connection::open(workspace.path("out.db")).expect("it can be made");
    target
        .execute_batch(
            "CREATE TABLE events(number INTEGER PRIMARY KEY, id TEXT, operation, namespace, key, time_millis, \
        version_time, version_ordinal, epoch, tenure, body, CHECK (id IS NULL))",
        )
        .expect("it is new");
    let _only = workspace.start("only");
    workspace.order(7..8);
    let list = ["dead-letters", "list", "orders"];
    until("the letter is there", || workspace.run(&list).out.contains("insert of [7]"));
    assert!(!workspace.run(&list).out.contains("rope"), "not by itself");
    assert!(workspace.run(&[&list[..], &["--content"]].concat()).out.contains("\"item\":\"rope\""));
    let reported: Value =
        serde_json::from_str(&workspace.run(&[&list[..], &["--content", "--json"]].concat()).out).expect("it is JSON");
    assert!(reported["letters"][0]["content"].to_string().contains("\"item\":\"rope\""), "{reported:#}");
}

#[test]
fn an_install_says_that_the_journal_is_another_one() {
    let workspace = Workspace::new();
    let install = ["sqlite", "install", "--db", "app.db", "--table", "orders"];
    let installed = workspace.run(&install);
    for part in
        ["journal_mode=delete", "write-ahead logging (WAL)", "`uninstall` leaves it so", "PRAGMA journal_mode=DELETE"]
    {
        assert!(installed.out.contains(part), "{part}: {installed:?}");
    }
    assert!(!workspace.run(&install).out.contains("(WAL)"), "it was so already");
    let gone = workspace.run(&["sqlite", "uninstall", "--db", "app.db", "--table", "orders"]);
    assert!(gone.out.contains("stays in write-ahead logging (WAL)"), "{gone:?}");
    let (_, command) = gone.out.trim().rsplit_once("\"PRAGMA").expect("it says how to switch back");
    workspace.sql(&format!("PRAGMA{}", command.trim_end_matches('"')));
    let mode = |sql: &str| {
        let connection = rusqlite::Connection::open(workspace.path("app.db")).expect("it is there");
        connection.query_row(sql, [], |row| row.get::<_, String>(0)).expect("it answers")
    };
    assert_eq!(mode("PRAGMA journal_mode"), "delete");
}

#[test]
fn a_file_is_written_for_each_system() {
    for source in ["sqlite", "mongodb", "postgres"] {
        for sink in ["file", "stdout", "sqlite", "mongodb", "postgres"] {
            let workspace = Workspace::empty();
            let written = workspace.run(&["init", "--source", source, "--sink", sink]);
            assert_eq!(written.code, Some(0), "{written:?}");
            let checked = workspace.run(&["check", "--offline", "--json"]);
            assert_eq!(checked.code, Some(0), "{source} into {sink}: {checked:?}");
            let named = workspace.run(&["check", "--offline"]).out;
            assert!(named.contains(&format!("source ({source})")), "{named}");
            assert!(named.contains(&format!("sink {sink} ({sink})")), "{named}");
            let text = std::fs::read_to_string(workspace.path("watchkeeper.toml")).expect("it is there");
            assert!(!text.contains("{s"), "nothing is left to fill in: {text}");
        }
    }
    assert_eq!(Workspace::empty().run(&["init", "--source", "oracle"]).code, Some(2));
}

/// A relative store is looked for where the program is started; in another folder it does not exist, and is not made there either.
#[test]
fn a_command_that_only_reads_makes_no_store() {
    let workspace = Workspace::with(&good());
    workspace.start("only").says(&["to=running"]);
    let elsewhere = workspace.path("elsewhere");
    std::fs::create_dir(&elsewhere).expect("it can be made");
    let config = workspace.path("watchkeeper.toml").display().to_string();
    let run = |arguments: &[&str]| {
        answer(Command::new(PROGRAM).current_dir(&elsewhere).args(arguments).args(["--config", &config]))
    };
    let named = elsewhere.canonicalize().expect("it is there").join("state.db").display().to_string();
    for arguments in [
        &["status"][..],
        &["why", "orders"],
        &["tail", "orders", "--for", "1s"],
        &["checkpoint", "show", "orders"],
        &["checkpoint", "history", "orders"],
        &["dead-letters", "list", "orders"],
        &["pause", "orders"],
        &["resume", "orders"],
    ] {
        let parts = [&*named, "does not exist", "relative paths begin in the folder", "watchkeeper run", "WK-CONFIG"];
        run(arguments).assert_refused(2, &parts);
        assert!(!elsewhere.join("state.db").exists(), "{arguments:?} makes nothing");
    }
    let checked = run(&["check"]);
    assert!(checked.out.contains(&format!("{named} is not there yet and will be made")), "{checked:?}");
    assert!(checked.out.contains("relative paths begin in the folder"), "{checked:?}");
    assert!(!elsewhere.join("state.db").exists(), "a check makes nothing");
}

#[test]
fn a_store_in_a_file_is_shown_with_its_absolute_path() {
    let workspace = Workspace::with(&good());
    let mut only = workspace.start("only");
    only.says(&["to=running"]);
    let named = workspace.path(".").canonicalize().expect("it is there").join("state.db").display().to_string();
    let reported = workspace.run(&["status"]);
    assert!(reported.out.contains(&format!("  store        {named}\n")), "{reported:?}");
    let reported: Value = serde_json::from_str(&workspace.run(&["status", "--json"]).out).expect("it is JSON");
    assert_eq!(reported["store_file"], *named);
    let checked = workspace.run(&["check"]);
    assert!(checked.out.contains(&format!("  ok: store (sqlite): {named}\n")), "{checked:?}");
    only.ends_in_order();
}

/// What kept the instances away is repaired: a person need not wait until they try again by themselves.
#[test]
fn a_failing_stream_is_tried_at_once_when_a_person_resumes_it() {
    // The longest that they stay away is longer than this test may take.
    let file = GOOD.replace("lease = \"30s\"", "lease = \"30s\"\nbar = \"10m\"");
    let workspace = Workspace::with(&format!("{file}[[stream.sink]]\ntype = \"file\"\nfolder = \"out\"\n"));
    std::fs::create_dir(workspace.path("out")).expect("it can be made");
    let mut first = workspace.start("first");
    first.says(&["to=running"]);
    let mut second = workspace.start("second");
    second.says(&["standing by"]);
    std::fs::remove_dir_all(workspace.path("out")).expect("it can be removed");
    workspace.order(0..1);
    // Nobody is left who could take it, so it is tried again, less and less soon.
    for instance in [&mut first, &mut second] {
        instance.says(&["staying away", "next_try_in=\""]);
    }
    let mut next_try = None;
    until("both wait for long", || {
        let status: Value = serde_json::from_str(&workspace.run(&["status", "--json"]).out).expect("it is JSON");
        let instances = status["streams"][0]["instances"].as_array().expect("a list").clone();
        // At first each leaves it to the other one, until they hear that both fail.
        let troubles = instances.iter().map(|instance| &instance["trouble"]);
        let repeated = troubles.filter(|trouble| trouble["attempts"].as_u64() > Some(2));
        let waits = repeated.filter_map(|trouble| trouble["next_try_millis"].as_u64());
        let waits: Vec<_> = waits.collect();
        let is_failing = status["streams"][0]["state"] == "failing" && waits.len() == 2;
        let waits_long = waits.into_iter().min().filter(|wait| is_failing && *wait > 5_000);
        next_try = waits_long.map(|wait| Instant::now() + Duration::from_millis(wait));
        next_try.is_some()
    });
    let shown = workspace.run(&["status"]).out;
    assert!(shown.contains("orders: failing") && shown.contains(", next try in "), "{shown}");
    let why = shown.lines().find(|line| line.starts_with("  why ")).expect("it says why");
    assert!(why.matches("cannot open").count() == 1 && why.contains("on first, second: "), "{shown}");
    std::fs::create_dir(workspace.path("out")).expect("it can be made again");
    let resumed = workspace.run(&["resume", "orders"]);
    assert!(resumed.code == Some(0) && resumed.out.contains(" has it, epoch "), "{resumed:?}");
    assert!(Some(Instant::now()) < next_try, "they would have tried by themselves");
    let arrived = || std::fs::read_to_string(workspace.path("out/orders-000001.ndjson")).unwrap_or_default();
    until("the order arrives", || ids(&arrived()) == [0]);
    second.ends_in_order();
    first.ends_in_order();
    for instance in [&first, &second] {
        let gave_up = |line: &&String| line.contains("giving up the watch");
        let line = instance.seen.iter().find(gave_up).expect("it gave up");
        let (cause, _) =
            line.split_once("error=").and_then(|(_, error)| error.split_once(" [WK-")).expect("it says why");
        let reported = instance.seen.iter().filter(|line| line.contains(cause)).count();
        assert_eq!(reported, 1, "one line has the cause {cause:?}: {:#?}", instance.seen);
    }
}

#[test]
fn that_a_sink_fails_is_logged_with_its_stream_and_its_recovery_too() {
    let workspace = Workspace::with(&format!(
        "{GOOD}[[stream.sink]]\nurl = \"sqlite:out.db\"\ntable = \"events\"\nbusy = \"50ms\"\n"
    ));
    let mut only = workspace.start("only");
    only.says(&["to=running"]);
    workspace.order(0..1);
    let target = rusqlite::Connection::open(workspace.path("out.db")).expect("it can be opened");
    until("it arrives", || {
        target.query_row("SELECT count(*) FROM events", [], |row| row.get::<_, i64>(0)).is_ok_and(|rows| rows == 1)
    });
    target.busy_timeout(crate::workspace::PATIENCE).expect("a time-out can be set");
    target.execute_batch("BEGIN IMMEDIATE").expect("nobody writes for long");
    workspace.order(1..2);
    let line = only.says(&["WARN", "the stream does not deliver", "stream=\"orders\"", "part=", "cause="]);
    assert!(!line.contains("0ns"), "{line}");
    only.says(&["a transaction failed", "stream=\"orders\"", "instance=\"only\""]);
    target.execute_batch("ROLLBACK").expect("it has begun");
    only.says(&["INFO", "the stream delivers again", "stream=\"orders\"", "after="]);
    only.ends_in_order();
    let reported = only.seen.iter().filter(|line| line.contains("the stream does not deliver")).count();
    assert_eq!(reported, 1, "once a minute: {:#?}", only.seen);
}

#[test]
fn a_change_of_a_stream_that_delivers_is_not_skipped_at_the_cost_of_its_watch() {
    let workspace = Workspace::with(&good());
    let mut only = workspace.start("only");
    only.says(&["to=running"]);
    workspace.order(0..1);
    let shown = || -> Value {
        let reported: Value = serde_json::from_str(&workspace.run(&["status", "--json"]).out).expect("it is JSON");
        reported["streams"][0].clone()
    };
    until("it delivers", || shown()["state"] == "running" && shown()["checkpoint"]["changes"] == 1);
    until("it says so", || shown()["instances"][0]["doing"] == "running");
    let before = shown()["watch"]["epoch"].clone();
    let parts = ["runs on only and delivers", "watchkeeper status orders", "watchkeeper pause orders"];
    workspace.run(&["skip", "orders", "--yes"]).assert_refused(2, &parts);
    assert_eq!(shown()["watch"]["epoch"], before, "no epoch is spent");
    only.ends_in_order();
}

#[test]
fn instances_with_different_settings_are_named_with_them() {
    let workspace = Workspace::with(&good());
    let mut first = workspace.start("first");
    first.says(&["to=running"]);
    let mut command = workspace.command();
    let lanes = "WATCHKEEPER__STREAM__ORDERS__CONCURRENCY";
    let mut second = Running::start(command.arg("run").env("WATCHKEEPER__INSTANCE__NAME", "second").env(lanes, "2"));
    until("it is remarked", || {
        let reported = workspace.run(&["status"]).out;
        let is_remark = |line: &str| {
            line.contains("The instances have different settings: ")
                && line.contains(" on first")
                && line.contains(" on second")
        };
        reported.lines().any(is_remark)
    });
    second.ends_in_order();
    first.ends_in_order();
}

#[test]
fn the_help_tells_every_exit_code() {
    let workspace = Workspace::empty();
    let help = workspace.run(&["--help"]).out;
    let codes = help.split_once("Exit codes:").expect("they are told").1;
    let is_reported = |code: &str| codes.lines().any(|line| line.trim_start().starts_with(&format!("{code}  ")));
    for code in ["0", "1", "2", "3", "4", "129", "130", "141", "143"] {
        assert!(is_reported(code), "{code}: {codes}");
    }
    // A check ends with 2 for what the file names and is not there.
    let missing = Workspace::with(&good().replace("sqlite:app.db", "sqlite:missing.db"));
    assert_eq!(missing.run(&["check"]).code, Some(2));
    let two = codes.lines().find(|line| line.trim_start().starts_with("2  ")).expect("it is told");
    assert!(two.contains("`check`"), "{two}");
}

#[test]
fn a_length_of_time_says_how_to_write_it() {
    let workspace = Workspace::with(&good());
    for args in [["tail", "orders", "--for", "soon"], ["pause", "orders", "--wait", "soon"]] {
        let refused = workspace.run(&args);
        assert_eq!(refused.code, Some(2), "{refused:?}");
        assert!(refused.err.contains("a length of time such as 10s"), "{refused:?}");
        assert!(!refused.err.contains("expected number"), "{refused:?}");
    }
}

#[test]
fn init_says_that_the_folder_is_missing() {
    let workspace = Workspace::empty();
    let refused = workspace.run(&["init", "--config", "missing/watchkeeper.toml"]);
    refused.assert_refused(2, &["its folder is missing", "make the folder"]);
    assert!(!refused.err.contains("writable"), "{refused:?}");
}

#[test]
fn a_second_install_says_that_the_table_is_logged_already() {
    let workspace = Workspace::new();
    let install = ["sqlite", "install", "--db", "app.db", "--table", "orders"];
    assert!(workspace.run(&install).out.contains("orders: changes are logged from now on"));
    let again = workspace.run(&install).out;
    assert!(again.contains("orders: changes are already logged"), "{again}");
    assert!(!again.contains("from now on"), "{again}");
}
