//! A shop with an application's database, a group of instances of the real program, and a person at the console.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use watchkeeper::sqlite::rusqlite::Connection;
use watchkeeper::sqlite::{Client, Config, tools};
use watchkeeper::{Result, Seams};

const PROGRAM: &str = env!("CARGO_BIN_EXE_watchkeeper");

/// Longer than anything here takes on a machine that does other things too.
const PATIENCE: Duration = Duration::from_secs(30);

/// Waits until `look` finds something.
pub(crate) fn until<T>(what: &str, mut observation: impl FnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(found) = observation() {
            return found;
        }
        assert!(began.elapsed() < PATIENCE, "it took too long until {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

pub(crate) struct Shop {
    folder: tempfile::TempDir,
}

impl Shop {
    /// A shop whose orders are logged, and delivered into the table `events` of another database.
    pub(crate) fn new(on_reject: &str) -> Self {
        let shop = Self { folder: tempfile::tempdir().expect("a temporary folder can be made") };
        shop.app().execute_batch("CREATE TABLE orders(id INTEGER PRIMARY KEY, item TEXT)").expect("a new table");
        install(&shop.file("app.db")).expect("the table can be logged");
        // An empty store: commands make none for a group that never ran.
        std::fs::File::create(shop.file("state.db")).expect("the folder can be written to");
        let path = |name: &str| shop.file(name).display().to_string();
        let file = format!(
            "[group]\nname = \"shop\"\nstore = \"sqlite:{}\"\nlease = \"1s\"\nheartbeat_every = \"200ms\"\n\
             [[stream]]\nname = \"orders\"\nsource = \"sqlite:{}\"\nstart = \"oldest\"\n\
             checkpoint = {{ every = \"100ms\", events = 1 }}\nbatch = {{ rows = 1 }}\n\
             [[stream.sink]]\nname = \"events\"\nurl = \"sqlite:{}\"\ntable = \"events\"\non_reject = \"{on_reject}\"\n",
            path("state.db"),
            path("app.db"),
            path("out.db"),
        );
        std::fs::write(shop.file("watchkeeper.toml"), file).expect("the folder can be written to");
        shop
    }

    /// Lets leases run for longer than a test.
    pub(crate) fn lengthen_leases(&self) {
        let file = self.file("watchkeeper.toml");
        let text = std::fs::read_to_string(&file).expect("it was written");
        std::fs::write(file, text.replace("lease = \"1s\"", "lease = \"60s\"")).expect("it can be written again");
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn open(&self, name: &str) -> Connection {
        let connection = Connection::open(self.file(name)).expect("the file can be opened");
        connection.busy_timeout(PATIENCE).expect("a time-out can be set");
        connection
    }

    /// The application's own database.
    pub(crate) fn app(&self) -> Connection {
        self.open("app.db")
    }

    /// Where the changes go.
    pub(crate) fn out(&self) -> Connection {
        self.open("out.db")
    }

    pub(crate) fn order(&self, items: &[&str]) {
        let app = self.app();
        for item in items {
            app.execute("INSERT INTO orders(item) VALUES (?1)", [item]).expect("an order can be made");
        }
    }

    /// The keys that were delivered, in order.
    pub(crate) fn delivered(&self) -> Vec<String> {
        let out = self.out();
        let Ok(mut statement) = out.prepare("SELECT CAST(key AS TEXT) FROM events ORDER BY number") else {
            return Vec::new();
        };
        let keys = statement.query_map([], |row| row.get(0)).expect("the table can be read");
        keys.collect::<Result<_, _>>().expect("keys are text")
    }

    pub(crate) fn until_delivered(&self, count: usize) {
        until(&format!("{count} changes are delivered"), || (self.delivered().len() == count).then_some(()));
    }

    /// Lets no order of this item into the table of events, as a constraint of its owner would.
    pub(crate) fn refuse(&self, item: &str) {
        let sql = format!(
            "CREATE TRIGGER refuse BEFORE INSERT ON events WHEN CAST(new.body AS TEXT) LIKE '%{item}%'
             BEGIN SELECT RAISE(ABORT, 'no {item} here'); END"
        );
        self.out().execute_batch(&sql).expect("the table is there");
    }

    pub(crate) fn accept_all(&self) {
        self.out().execute_batch("DROP TRIGGER refuse").expect("something was refused");
    }

    fn command(&self) -> Command {
        let mut command = Command::new(PROGRAM);
        command.current_dir(self.folder.path()).stdin(Stdio::null());
        command
    }

    /// Starts an instance of the program.
    pub(crate) fn start(&self, name: &str) -> Instance {
        let log = std::fs::File::create(self.file(&format!("{name}.log"))).expect("a log can be written");
        let mut command = self.command();
        command.arg("run").env("WATCHKEEPER__INSTANCE__NAME", name);
        command.stdout(Stdio::null()).stderr(log);
        Instance(command.spawn().expect("the program can be started"))
    }

    /// Starts the program for a while, with its output to be read.
    pub(crate) fn begin(&self, args: &[&str]) -> Instance {
        let mut command = self.command();
        command.args(args).stdout(Stdio::piped()).stderr(Stdio::piped());
        Instance(command.spawn().expect("the program can be started"))
    }

    /// Runs a command to its end.
    pub(crate) fn run(&self, args: &[&str]) -> Answer {
        Answer::of(&self.command().args(args).output().expect("the program can be started"))
    }

    /// Runs a command that works, and reads its JSON.
    pub(crate) fn ask(&self, args: &[&str]) -> Value {
        let answer = self.run(&[args, &["--json"]].concat());
        assert_eq!(answer.code, Some(0), "{args:?}: {}", answer.reported);
        serde_json::from_str(&answer.said).unwrap_or_else(|error| panic!("{args:?}: {error}: {}", answer.said))
    }

    /// The stream as `status` shows it.
    pub(crate) fn orders(&self) -> Value {
        self.ask(&["status"])["streams"][0].clone()
    }

    /// Waits until the stream is in this state.
    pub(crate) fn until_state(&self, state: &str) -> Value {
        until(&format!("the stream is {state}"), || Some(self.orders()).filter(|orders| orders["state"] == state))
    }

    /// Starts one instance that takes the watch, and one that stands by.
    pub(crate) fn two(&self) -> (Instance, Instance) {
        let a = self.start("a");
        until("a has the watch", || (self.orders()["watch"]["name"] == "a").then_some(()));
        let b = self.start("b");
        until("b stands by", || (self.orders()["standing_by"][0] == "b").then_some(()));
        (a, b)
    }
}

fn install(file: &Path) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let cx = Seams::system().cx();
        let client = Client::open(&cx, Config::existing(file)).await?;
        tools::install(&cx, &client, &["orders"]).await
    })
}

/// What a command answered.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) code: Option<i32>,
    /// On standard output.
    pub(crate) said: String,
    /// On standard error.
    pub(crate) reported: String,
}

impl Answer {
    fn of(output: &Output) -> Self {
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("answers are text");
        Self { code: output.status.code(), said: text(&output.stdout), reported: text(&output.stderr) }
    }

    /// Asserts that the command failed with this code, in one line that says this.
    #[track_caller]
    pub(crate) fn refused(&self, code: i32, parts: &[&str]) {
        assert_eq!(self.code, Some(code), "{self:?}");
        let last = self.reported.lines().last().unwrap_or_default();
        for part in parts {
            assert!(last.contains(part), "{last:?} does not say {part:?}");
        }
        assert!(last.starts_with("error: ") && last.contains("]; "), "{last:?} has no remedy");
    }
}

/// A process of the program, killed at the end of its test.
pub(crate) struct Instance(Child);

impl Instance {
    pub(crate) fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.0.id()).ok().and_then(Pid::from_raw).expect("it has an id");
        kill_process(pid, signal).expect("it is running");
    }

    /// What it says, as it says it.
    pub(crate) fn output(&mut self) -> std::process::ChildStdout {
        self.0.stdout.take().expect("it was begun to be read")
    }

    /// Waits for its end and reads what it said.
    pub(crate) fn end(mut self) -> Answer {
        let until_ended = || self.0.try_wait().expect("it can be waited for");
        let status = until("the process has ended", until_ended);
        let mut read = Answer { code: status.code(), said: String::new(), reported: String::new() };
        let (out, err) = (self.0.stdout.take(), self.0.stderr.take());
        out.map(|mut out| std::io::Read::read_to_string(&mut out, &mut read.said));
        err.map(|mut err| std::io::Read::read_to_string(&mut err, &mut read.reported));
        read
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        // It may have ended already, which is as good.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
