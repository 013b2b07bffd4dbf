//! The programs that cargo builds of the tests, several running at a time.
//!
//! `cargo test` runs one after the other, and those of the backends mostly wait for their servers. Each starts servers of its own on
//! ports of its own, so that they may run beside each other.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::cargo::{Call, without_our_own};

/// How many run at a time. More than cores, since most of them wait most of the time.
const BESIDE: usize = 3;

/// The packages whose tests take longest: they begin first, so that none of them runs alone in the end.
const LONGEST: [&str; 4] = ["mongodb", "postgres", "cli", "engine"];

/// One program with tests.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Program {
    /// The folder of its package, in which it runs.
    folder: PathBuf,
    /// What cargo calls it: `it`, or the name of the library for the tests inside.
    target: String,
    executable: PathBuf,
}

impl Program {
    /// The name of the package's folder.
    fn package(&self) -> &str {
        self.folder.file_name().and_then(|name| name.to_str()).unwrap_or_default()
    }

    fn name(&self) -> String {
        format!("{} ({})", self.package(), self.target)
    }

    /// Where it stands in the order: the longest first, then the tests from outside, then those inside.
    fn turn(&self) -> (usize, bool) {
        let outside = self.target == "it";
        let place = LONGEST.iter().position(|name| outside && *name == self.package());
        (place.unwrap_or(LONGEST.len()), !outside)
    }

    /// Runs it as cargo would.
    fn run(&self) -> Ended {
        let begun = Instant::now();
        let mut command = without_our_own(Command::new(&self.executable));
        command.current_dir(&self.folder).env("CARGO_MANIFEST_DIR", &self.folder);
        let (passed, printed) = match command.output() {
            Ok(output) => (output.status.success(), [output.stdout, output.stderr].concat()),
            Err(error) => (false, format!("it could not be started: {error}\n").into_bytes()),
        };
        Ended {
            name: self.name(),
            passed,
            took: begun.elapsed(),
            printed: String::from_utf8_lossy(&printed).into_owned(),
        }
    }
}

/// How one ended.
#[derive(Debug)]
struct Ended {
    name: String,
    passed: bool,
    took: Duration,
    /// All that it printed.
    printed: String,
}

impl Ended {
    /// Its own last words where it passed, everything where it did not.
    fn report(&self) -> String {
        let seconds = self.took.as_secs_f64();
        let result = self.printed.lines().rev().find_map(|line| line.strip_prefix("test result: "));
        if self.passed
            && let Some(result) = result
        {
            return format!("{:<28} {seconds:>6.1} s  {result}", self.name);
        }
        format!("{}\n{:<28} {seconds:>6.1} s  FAILED", self.printed, self.name)
    }
}

/// Builds what each of `calls` (of `cargo test`) names, then runs all of it; the answer is an exit code.
pub(crate) fn build_and_run(calls: &[Call]) -> Result<u8, String> {
    let mut programs = Vec::new();
    for call in calls {
        let mut call = call.clone();
        call.words.extend(["--no-run", "--message-format=json-render-diagnostics"].map(str::to_owned));
        match call.answer()? {
            (0, printed) => programs.extend(printed.lines().filter_map(built)),
            (code, _) => return Ok(code),
        }
    }
    if programs.is_empty() {
        return Err("cargo built no tests at all".to_owned());
    }
    programs.sort_by_key(Program::turn);
    Ok(u8::from(!all_pass(programs)))
}

/// The program that a line of cargo's answer tells of, if it does of one with tests.
fn built(line: &str) -> Option<Program> {
    let printed: Value = serde_json::from_str(line).ok()?;
    let tests = printed["reason"] == "compiler-artifact" && printed["profile"]["test"] == true;
    let executable = printed["executable"].as_str().filter(|_| tests)?;
    let folder = Path::new(printed["manifest_path"].as_str()?).parent()?;
    let target = printed["target"]["name"].as_str()?.to_owned();
    Some(Program { folder: folder.to_owned(), target, executable: executable.into() })
}

/// Runs them, each told when it has ended; whether all passed.
fn all_pass(programs: Vec<Program>) -> bool {
    let waiting = Mutex::new(programs.into_iter());
    let failed = Mutex::new(Vec::new());
    // A thread that panicked has printed why, and the scope passes it on.
    let next = || waiting.lock().unwrap_or_else(std::sync::PoisonError::into_inner).next();
    let work = || {
        while let Some(program) = next() {
            let ended = program.run();
            println!("{}", ended.report());
            if !ended.passed {
                failed.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push(ended.name);
            }
        }
    };
    thread::scope(|scope| {
        for _ in 0..BESIDE {
            scope.spawn(work);
        }
    });
    let failed = failed.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    if !failed.is_empty() {
        println!("failed: {}", failed.join(", "));
    }
    failed.is_empty()
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::time::Duration;

    use super::{Ended, Program, all_pass, built};

    fn program(package: &str, target: &str) -> Program {
        Program { folder: PathBuf::from("/clone").join(package), target: target.to_owned(), executable: "x".into() }
    }

    #[test]
    fn only_what_has_tests_is_run() {
        let line = |test: bool, executable: &str| {
            format!(
                r#"{{"reason":"compiler-artifact","manifest_path":"/clone/crates/cli/Cargo.toml","target":{{"name":"it"}},"profile":{{"test":{test}}},"executable":{executable}}}"#
            )
        };
        let expected =
            Program { folder: "/clone/crates/cli".into(), target: "it".to_owned(), executable: "/target/it-1".into() };
        assert_eq!(built(&line(true, r#""/target/it-1""#)), Some(expected));
        assert_eq!(built(&line(false, r#""/target/it-1""#)), None, "the program itself, which tests start");
        assert_eq!(built(&line(true, "null")), None, "a library");
        assert_eq!(built(r#"{"reason":"build-finished","success":true}"#), None);
        assert_eq!(built("no message"), None);
    }

    #[test]
    fn the_longest_begin_first_and_what_is_inside_comes_last() {
        let mut all =
            [("core", "watchkeeper_core"), ("core", "it"), ("cli", "it"), ("mongodb", "mongodb"), ("mongodb", "it")]
                .map(|(package, target)| program(package, target));
        all.sort_by_key(Program::turn);
        let names = all.map(|program| program.name());
        let expected = ["mongodb (it)", "cli (it)", "core (it)", "core (watchkeeper_core)", "mongodb (mongodb)"];
        assert_eq!(names, expected);
    }

    #[test]
    fn one_that_fails_tells_everything_and_one_that_passes_its_result() {
        let printed = "running 1 test\ntest result: ok. 1 passed\n".to_owned();
        let mut ended = Ended { name: "cli (it)".to_owned(), passed: true, took: Duration::from_secs(2), printed };
        assert_eq!(ended.report(), "cli (it)                        2.0 s  ok. 1 passed");
        ended.passed = false;
        assert!(ended.report().starts_with("running 1 test\n") && ended.report().ends_with("FAILED"));
    }

    #[test]
    fn one_that_can_not_be_started_has_failed() {
        let missing = Program { executable: "/nowhere/at/all".into(), ..program("cli", "it") };
        assert!(!all_pass(vec![missing]));
    }
}
