//! Disks that are full or read-only: real ones, mounted where only the program sees them.

use crate::workspace::{GOOD, INTO_FILES, Running, Workspace, answer, ids, until};

#[test]
fn a_full_disk_is_reported_and_waited_for_and_nothing_is_lost() {
    let config = GOOD.to_owned()
        + "retry = { recovery_backoff = \"50ms\", recovery_backoff_max = \"200ms\" }\n"
        + "breaker = { failures = 5, open_for = \"50ms\", open_max = \"200ms\" }\n\n"
        + &INTO_FILES.replace("\".\"", "\"small\"");
    let workspace = Workspace::with(&config);
    std::fs::create_dir(workspace.path("small")).expect("a folder can be made");
    // Filled up to the last block, but for what the fence of the files needs.
    let setup = "mount -t tmpfs -o size=64k small small && dd if=/dev/zero of=small/ballast bs=4k count=14 2>/dev/null";
    let mut running = Running::start(&mut workspace.command_after(setup, &["run"]));
    running.says(&["to=running"]);
    workspace.order(0..200);
    running.says(&["WARN", "to=recovering", "the disk is full", "]; "]);
    let line = running.says(&["[WK-UNAVAILABLE]"]);
    assert!(line.contains("full") || line.contains("space"), "{line}");
    assert!(line.contains("]; "), "it says what to do: {line}");

    let inside = |name: &str| format!("/proc/{}/root{}", running.pid(), workspace.path("small").join(name).display());
    std::fs::remove_file(inside("ballast")).expect("the ballast is there");
    let delivered = || ids(&std::fs::read_to_string(inside("orders-000001.ndjson")).unwrap_or_default());
    until("all have arrived", || delivered().contains(&199));
    let mut delivered = delivered();
    delivered.dedup();
    assert_eq!(delivered, Vec::from_iter(0..200), "nothing is lost and all is in order");
    running.ends_in_order();
}

#[test]
fn a_check_finds_a_full_disk() {
    let workspace = Workspace::with(&format!("{GOOD}{}", INTO_FILES.replace("\".\"", "\"small\"")));
    std::fs::create_dir(workspace.path("small")).expect("a folder can be made");
    let tmpfs = "mount -t tmpfs -o size=64k small small";
    answer(&mut workspace.command_after(tmpfs, &["check"])).assert_well();
    // To the last block: an empty file can still be made there.
    let full = format!("{tmpfs} && ! dd if=/dev/zero of=small/ballast bs=4k 2>/dev/null && : >small/empty");
    let checked = answer(&mut workspace.command_after(&full, &["check"]));
    checked.assert_found(1, &["sink file (file): cannot write to small: the disk is full [WK-UNAVAILABLE]; make room"]);
}

#[test]
fn a_store_on_a_full_disk_is_reported_and_waited_for() {
    let config = format!("{GOOD}{INTO_FILES}").replace("sqlite:state.db", "sqlite:small/state.db");
    let workspace = Workspace::with(&config);
    std::fs::create_dir(workspace.path("small")).expect("a folder can be made");
    let setup =
        "mount -t tmpfs -o size=256k small small && dd if=/dev/zero of=small/ballast bs=4k count=63 2>/dev/null";
    let mut running = Running::start(&mut workspace.command_after(setup, &["run"]));
    running.says(&["the disk is full", "free some space"]);
    let ballast = format!("/proc/{}/root{}", running.pid(), workspace.path("small/ballast").display());
    std::fs::remove_file(ballast).expect("the ballast is there");
    workspace.order(0..3);
    running.says(&["to=running"]);
    until("all have arrived", || workspace.delivered() == [0, 1, 2]);
    running.ends_in_order();
}

#[test]
fn a_read_only_file_is_reported_with_what_to_do() {
    let workspace = Workspace::with(&format!("{GOOD}{INTO_FILES}").replace("sqlite:state.db", "sqlite:kept/state.db"));
    std::fs::create_dir(workspace.path("kept")).expect("a folder can be made");
    rusqlite::Connection::open(workspace.path("kept/state.db"))
        .and_then(|store| store.execute_batch("CREATE TABLE mine(a)"))
        .expect("a database can be made");
    let setup = "mount --bind kept kept && mount -o remount,bind,ro kept";
    for arguments in [["run"], ["check"]] {
        let reported = answer(&mut workspace.command_after(setup, &arguments));
        assert_eq!(reported.code, Some(1), "{reported:?}");
        let text = reported.out + &reported.err;
        let line = text.lines().find(|line| line.contains("[WK-DENIED]; ")).unwrap_or_else(|| panic!("{text}"));
        assert!(
            line.contains("watchkeeper.toml:3: ") && line.contains("make the file and its folder writable"),
            "{line}"
        );
    }
}
