//! How much memory a large row takes on its way.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};

use watchkeeper_testkit::servers::postgres::{Server, Version};

use super::sql;
use crate::workspace::{Workspace, until};

/// The size of the large row.
const LARGE: usize = 64 << 20;

/// At most so many times the large row, above what is used without it.
const COPIES_MAX: f64 = 2.5;

const ROWS: usize = 4_000;

/// Rows before and after the large one, of which many are in memory at once.
const SMALL: &str = "INSERT INTO things SELECT i, repeat('small ', 50) FROM generate_series(1, 2000) i";
const MORE: &str = "INSERT INTO things SELECT i, repeat('small ', 50) FROM generate_series(2002, 4001) i";

fn config(url: &str, source: &str) -> String {
    format!(
        "[group]\nname = \"shop\"\nstore = \"{url}\"\nlease = \"30s\"\n\n[[stream]]\nname = \"things\"\n\n\
         [stream.source]\nurl = \"{url}\"\ntables = [\"things\"]\n{source}\n\
         [[stream.sink]]\ntype = \"file\"\nfolder = \".\"\n"
    )
}

/// Whether the last line of the file is that of the last row. The lines before it are too large to be read again and again.
fn has_last(workspace: &Workspace) -> bool {
    let Ok(mut file) = File::open(workspace.path("things-000001.ndjson")) else { return false };
    let end = file.seek(SeekFrom::End(0)).expect("a file has an end");
    file.seek(SeekFrom::Start(end.saturating_sub(1_000))).expect("it can be read from anywhere");
    let mut text = Vec::new();
    file.read_to_end(&mut text).expect("it can be read");
    String::from_utf8_lossy(&text).contains(r#""id":4001,"#)
}

/// The most memory that a process had, in bytes.
fn peak(pid: u32) -> usize {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("the process is there");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("the system tells the peak");
    let kilobytes: usize = line.trim().trim_end_matches(" kB").parse().expect("it is a number");
    kilobytes << 10
}

/// Drains a backlog with this row in its middle; the most memory that took.
fn drain(source: &str, row: &str) -> usize {
    let server = Server::start(Version::V15);
    let url = server.url("postgres");
    sql(&url, "CREATE TABLE things (id bigint PRIMARY KEY, body text)");
    let workspace = Workspace::with(&config(&url, source));
    if source.is_empty() {
        let made = workspace.run(&["postgres", "install", "--url", &url, "--table", "things"]);
        assert_eq!(made.code, Some(0), "{made:?}");
    }
    // It begins now: what is written after its end is the backlog.
    let mut first = workspace.start("first");
    until("it has begun", || {
        sql(&url, "SELECT 1 FROM pg_tables WHERE tablename = 'checkpoints'") == ["1"]
            && sql(&url, "SELECT 1 FROM watchkeeper.checkpoints WHERE checkpoint ->> 'position' IS NOT NULL") == ["1"]
    });
    first.ends_in_order();
    sql(&url, SMALL);
    sql(&url, row);
    sql(&url, MORE);
    let mut only = workspace.start("only");
    until("all arrive", || has_last(&workspace));
    let peak = peak(only.pid());
    only.ends_in_order();
    let lines = std::fs::read(workspace.path("things-000001.ndjson")).expect("there is a file");
    assert_eq!(lines.iter().filter(|byte| **byte == b'\n').count(), ROWS + 1);
    peak
}

fn assert_few_copies(source: &str, row: &str) {
    let (without, with) = (drain(source, "INSERT INTO things VALUES (2001, 'small')"), drain(source, row));
    let copies = (with as f64 - without as f64) / LARGE as f64;
    println!(
        "{source:?}: {} MiB without the large row, {} MiB with it: {copies:.2} times its size",
        without >> 20,
        with >> 20
    );
    assert!(copies <= COPIES_MAX, "{copies:.2} times the large row: {with} bytes with it, {without} without");
}

/// Text that is written as it is, and text of which a part is escaped.
fn rows() -> [String; 2] {
    [("abcdefgh", 8), (r#"some "text"#, 11)]
        .map(|(part, length)| format!("INSERT INTO things VALUES (2001, repeat('{part}', {}))", LARGE / length))
}

#[test]
fn a_large_row_of_a_change_log_is_held_a_few_times() {
    rows().iter().for_each(|row| assert_few_copies("", row));
}

#[test]
fn a_large_row_of_the_write_ahead_log_is_held_a_few_times() {
    rows().iter().for_each(|row| assert_few_copies("mode = \"replication\"\n", row));
}
