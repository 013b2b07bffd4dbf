//! The demo as a newcomer runs it, only shorter.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

const SOON: Duration = Duration::from_secs(20);

fn demo(temporary: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_watchkeeper"));
    command.arg("demo").args(arguments).env("TMPDIR", temporary);
    command
}

fn events(output: &Output) -> Vec<Value> {
    let text = String::from_utf8(output.stdout.clone()).expect("JSON is text");
    text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"))).collect()
}

/// Which processes of the demo are there, by the folder that they are told.
fn processes(temporary: &Path) -> Vec<PathBuf> {
    let folder = temporary.to_str().expect("temporary folders have plain names");
    let entries = std::fs::read_dir("/proc").expect("there is a list of processes").flatten();
    let of_demo = |entry: &std::fs::DirEntry| {
        let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&line).contains(folder)
    };
    entries.filter(of_demo).map(|entry| entry.path()).collect()
}

/// Nobody is left, at the latest soon.
fn assert_nobody_left(temporary: &Path) {
    let since = Instant::now();
    while !processes(temporary).is_empty() {
        assert!(since.elapsed() < SOON, "left behind: {:?}", processes(temporary));
        std::thread::yield_now();
    }
}

#[test]
fn every_fault_is_survived_and_counted() {
    let temporary = tempfile::tempdir().unwrap();
    let output = demo(temporary.path(), &["--seconds", "6", "--json", "--no-tty"]).output().unwrap();
    let events = events(&output);
    let verdict = events.last().expect("there is a verdict");
    assert_eq!(verdict["event"], "verdict", "{verdict}");
    for none in ["lost", "duplicated", "out_of_order", "stale_accepted"] {
        assert_eq!(verdict[none], 0, "{verdict}");
    }
    assert!(verdict["written"].as_u64() > Some(100), "{verdict}");
    assert_eq!(verdict["written"], verdict["delivered"], "{verdict}");
    assert!(verdict["stale_refused"].as_u64() >= Some(1), "the fence was never tried: {verdict}");
    for kind in ["sigkill", "sigstop", "sigterm", "hand_over", "handler_failure"] {
        assert!(verdict["takeovers"][kind]["count"].as_u64() >= Some(1), "no {kind}: {verdict}");
    }
    assert_eq!((&verdict["good"], output.status.code()), (&Value::Bool(true), Some(0)), "{verdict}");
    assert_nobody_left(temporary.path());
    let left: Vec<_> = std::fs::read_dir(temporary.path()).unwrap().flatten().collect();
    assert!(left.is_empty(), "{left:?}");
}

/// A demo that has shown its first line with this word in it.
fn begun(temporary: &Path, word: &str) -> Child {
    let mut child = demo(temporary, &["--seconds", "60", "--json", "--no-tty"]).stdout(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(child.stdout.as_mut().expect("it is piped")).lines();
    assert!(lines.map_while(Result::ok).any(|line| line.contains(word)), "it never said {word}");
    child
}

#[test]
fn an_interrupted_demo_ends_with_its_verdict() {
    let temporary = tempfile::tempdir().unwrap();
    let child = begun(temporary.path(), "\"takeover\"");
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    let output = child.wait_with_output().unwrap();
    let last = String::from_utf8(output.stdout).unwrap().lines().last().map(str::to_owned);
    let verdict: Value = serde_json::from_str(&last.expect("it says something")).unwrap();
    assert_eq!((&verdict["interrupted"], &verdict["lost"]), (&Value::Bool(true), &Value::from(0)), "{verdict}");
    assert_eq!(output.status.code(), Some(0), "{verdict}");
    assert_nobody_left(temporary.path());
}

#[test]
fn nobody_outlives_a_demo_that_is_killed() {
    let temporary = tempfile::tempdir().unwrap();
    let mut child = begun(temporary.path(), "on_watch");
    assert!(!processes(temporary.path()).is_empty(), "there is nobody to outlive it");
    child.kill().unwrap();
    child.wait().unwrap();
    assert_nobody_left(temporary.path());
}

#[test]
fn without_a_place_to_write_it_says_what_to_do() {
    let temporary = tempfile::tempdir().unwrap();
    let output = demo(&temporary.path().join("missing"), &["--seconds", "5", "--no-tty"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("set TMPDIR"), "{output:?}");
}

#[test]
fn a_length_that_makes_no_sense_is_refused() {
    let temporary = tempfile::tempdir().unwrap();
    let output = demo(temporary.path(), &["--seconds", "2"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("5..=600"), "{output:?}");
}
