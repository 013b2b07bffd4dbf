//! A folder with an application's database, and the program run in it.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// Nothing here takes as long, even on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

const PROGRAM: &str = env!("CARGO_BIN_EXE_watchkeeper");

/// A file that is good, up to its sinks.
pub(crate) const GOOD: &str = "[group]\nname = \"shop\"\nstore = \"sqlite:state.db\"\nlease = \"30s\"\n\n\
    [[stream]]\nname = \"orders\"\nsource = \"sqlite:app.db\"\nstart = \"oldest\"\ncheckpoint = { every = \"50ms\" }\n\n";

/// A sink for [`GOOD`].
pub(crate) const INTO_FILES: &str = "[[stream.sink]]\ntype = \"file\"\nfolder = \".\"\n";

/// Where the tests of one case happen.
pub(crate) struct Workspace(tempfile::TempDir);

/// What a command came to.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Answer {
    /// Asserts that a command ended with this code, after one line with these parts and a remedy.
    #[track_caller]
    pub(crate) fn assert_refused(&self, code: i32, parts: &[&str]) {
        assert_eq!(self.code, Some(code), "{self:?}");
        let line = self.err.lines().last().unwrap_or_default();
        assert!(line.starts_with("error: ") && line.contains("]; "), "no remedy: {self:?}");
        for part in parts {
            assert!(line.contains(part), "{part:?} is not in: {line}");
        }
    }

    /// Asserts that a check found nothing wrong.
    #[track_caller]
    pub(crate) fn assert_well(&self) {
        assert!(self.code == Some(0) && self.out.ends_with("all is well\n"), "{self:?}");
    }

    /// Asserts that a check ended with this code and names an error with these parts and a remedy.
    #[track_caller]
    pub(crate) fn assert_found(&self, code: i32, parts: &[&str]) {
        assert_eq!(self.code, Some(code), "{self:?}");
        let found = |line: &str| {
            line.contains("error: ") && line.contains("; ") && parts.iter().all(|part| line.contains(part))
        };
        assert!(self.out.lines().any(found), "{parts:?} is not in: {}", self.out);
    }
}

impl Workspace {
    /// Without anything.
    pub(crate) fn empty() -> Self {
        Self(tempfile::tempdir().expect("a temporary folder can be made"))
    }

    /// With an application's database, whose table `orders` is not logged yet.
    pub(crate) fn new() -> Self {
        let workspace = Self::empty();
        workspace.sql("CREATE TABLE orders(id INTEGER PRIMARY KEY, item TEXT)");
        workspace
    }

    /// With the table logged, and this configuration.
    pub(crate) fn with(config: &str) -> Self {
        let workspace = Self::new();
        workspace.log_orders();
        workspace.write("watchkeeper.toml", config);
        workspace
    }

    pub(crate) fn log_orders(&self) {
        let installed = self.run(&["sqlite", "install", "--db", "app.db", "--table", "orders"]);
        assert_eq!(installed.code, Some(0), "{installed:?}");
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub(crate) fn write(&self, name: &str, text: &str) {
        std::fs::write(self.path(name), text).expect("the folder can be written");
    }

    /// Runs statements on the application's database.
    pub(crate) fn sql(&self, sql: &str) {
        let connection = rusqlite::Connection::open(self.path("app.db")).expect("the database can be opened");
        connection.busy_timeout(PATIENCE).expect("a time-out can be set");
        connection.execute_batch(sql).expect("the statements are good");
    }

    /// Inserts orders with these ids, each in a transaction of its own.
    pub(crate) fn order(&self, ids: std::ops::Range<u64>) {
        ids.for_each(|id| self.sql(&format!("INSERT INTO orders VALUES ({id}, 'rope')")));
    }

    pub(crate) fn command(&self) -> Command {
        self.wrapped(PROGRAM)
    }

    /// The command `program` in this folder.
    fn wrapped(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.current_dir(self.0.path()).stdin(Stdio::null());
        command
    }

    /// The program in a mount namespace of its own, after the shell has run `setup` there.
    pub(crate) fn command_after(&self, setup: &str, arguments: &[&str]) -> Command {
        let mut command = self.wrapped("unshare");
        let script = format!("{setup} && exec \"$0\" \"$@\"");
        command.args(["--map-root-user", "--mount", "sh", "-c", &script, PROGRAM]).args(arguments);
        command
    }

    pub(crate) fn run(&self, arguments: &[&str]) -> Answer {
        answer(self.command().args(arguments))
    }

    /// Runs an instance of this name. A store in a file is there when this returns: commands that only read make none.
    pub(crate) fn start(&self, name: &str) -> Running {
        let mut running = Running::start(self.command().arg("run").env("WATCHKEEPER__INSTANCE__NAME", name));
        let config = std::fs::read_to_string(self.path("watchkeeper.toml")).unwrap_or_default();
        if config.contains("\"sqlite:state.db\"") {
            until("the store is made", || self.path("state.db").exists() || running.has_ended());
        }
        running
    }

    /// The ids of the orders in the files that begin with `prefix`, in the order of the lines.
    pub(crate) fn delivered(&self) -> Vec<u64> {
        let text = std::fs::read_to_string(self.path("orders-000001.ndjson")).unwrap_or_default();
        ids(&text)
    }
}

/// The ids of the orders in lines of the native format. A last line without its end is not counted.
pub(crate) fn ids(text: &str) -> Vec<u64> {
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    let id = |line: &str| {
        let value: serde_json::Value = serde_json::from_str(line).expect("a line is JSON");
        value["document"]["after"]["id"].as_u64().expect("an order has an id")
    };
    whole.lines().map(id).collect()
}

/// Runs a command to its end.
pub(crate) fn answer(command: &mut Command) -> Answer {
    let output = command.output().expect("the program can be run");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("it speaks UTF-8");
    Answer { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
}

/// Waits until `done`, and fails after long.
pub(crate) fn until(what: &str, mut done: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !done() {
        assert!(begun.elapsed() < PATIENCE, "it did not come to this: {what}");
        std::thread::park_timeout(Duration::from_millis(5));
    }
}

/// A running instance; killed when it is dropped.
pub(crate) struct Running {
    child: Child,
    lines: Receiver<String>,
    /// All that it has logged so far, as far as somebody waited for it.
    pub(crate) seen: Vec<String>,
}

impl Running {
    pub(crate) fn start(command: &mut Command) -> Self {
        let mut child = command.stderr(Stdio::piped()).stdout(Stdio::null()).spawn().expect("the program can be run");
        let (sender, lines) = sync_channel(10_000);
        let errors = BufReader::new(child.stderr.take().expect("it was piped"));
        std::thread::spawn(move || {
            errors.lines().map_while(Result::ok).all(|line| sender.send(line).is_ok());
        });
        Self { child, lines, seen: Vec::new() }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits for a line with all of these parts in it.
    pub(crate) fn says(&mut self, parts: &[&str]) -> String {
        let begun = Instant::now();
        loop {
            match self.lines.recv_timeout(PATIENCE.saturating_sub(begun.elapsed())) {
                Ok(line) => {
                    self.seen.push(line.clone());
                    if parts.iter().all(|part| line.contains(part)) {
                        return line;
                    }
                }
                Err(_) => panic!("it never said {parts:?}, but: {:#?}", self.seen),
            }
        }
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("the process is there");
    }

    pub(crate) fn has_ended(&mut self) -> bool {
        self.child.try_wait().expect("it is our child").is_some()
    }

    /// Waits for its end; the answer is its exit code.
    pub(crate) fn ends(&mut self) -> Option<i32> {
        let begun = Instant::now();
        loop {
            match self.lines.recv_timeout(PATIENCE.saturating_sub(begun.elapsed())) {
                Ok(line) => self.seen.push(line),
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => panic!("it did not end: {:#?}", self.seen),
            }
        }
        self.child.wait().expect("it is our child").code()
    }

    /// Asks it to end, and waits until it has drained and released.
    pub(crate) fn ends_in_order(&mut self) {
        self.signal(Signal::TERM);
        assert_eq!(self.ends(), Some(0), "{:#?}", self.seen);
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Asserts that each warning was logged once: within a minute the same cause is not logged again. Counts and times of the attempts are not
/// what a person reads a line for.
#[track_caller]
pub(crate) fn assert_no_repetition(seen: &[String]) {
    let mut lines: Vec<_> = seen.iter().filter_map(|line| Some(without_counts(line.split_once(" WARN ")?.1))).collect();
    lines.extend(seen.iter().filter_map(|line| Some(without_counts(line.split_once(" ERROR ")?.1))));
    lines.sort();
    let all = lines.clone();
    lines.dedup();
    assert_eq!(lines, all, "{seen:#?}");
}

fn without_counts(line: &str) -> String {
    let mut line = line.to_owned();
    for field in [" epoch=", " attempt=", " attempts=", " failing_for=\"", " next_try_in=\""] {
        let Some(begin) = line.find(field) else { continue };
        let value = &line[begin + field.len()..];
        let end = if field.ends_with('"') { value.find('"').map(|end| end + 1) } else { value.find(' ') };
        let end = begin + field.len() + end.unwrap_or(value.len());
        line.replace_range(begin..end, "");
    }
    line
}
